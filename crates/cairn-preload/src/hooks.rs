//! The forms that most hooks have: decide, then serve the call or pass it on.

use core::ffi::{c_char, c_int};

use cairn_posix::files::path::{self, Route};
use cairn_posix::files::place::Place;
use cairn_posix::files::{cwd, names};
use cairn_posix::task::table;
use cairn_posix::{Errno, HandleId, PathResult};

/// Place to work on, if the call is Cairn's. The name of an open descriptor (`/dev/fd/3`) is a
/// symbolic link to the kernel, so it counts only for calls that follow links.
#[inline]
pub fn ours(route: Route<'_>, follow: bool) -> Option<Place<'_>> {
    match route {
        Route::Libc => None,
        Route::Place(place) => {
            crate::answer::note_path(&place);
            Some(place)
        }
        Route::Descriptor(descriptor) => descriptor_place(descriptor, follow),
    }
}

#[cold]
fn descriptor_place(descriptor: c_int, follow: bool) -> Option<Place<'static>> {
    if !follow {
        return None;
    }
    let handle = table::lookup(descriptor)?;
    crate::answer::guarded(|| names::place_of(handle)).ok()
}

/// Hooks for functions with one path. `path` alone is relative to the current directory, `path at
/// directory` to a directory descriptor; `then` is called with the C library's result. If a path
/// leads out of the mount, the hook is called again with the path where it leads.
///
/// For most paths the hook is one check and a jump. Returns are slow after a system call, because
/// the processor has lost its return predictions. So the rest is a separate function.
macro_rules! path_hooks {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty,
            [$path:ident $(at $directory:ident)?, follow $follow:expr $(, then $then:path)?] = |$place:ident| $ours:expr;
    )*) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            #[inline(never)]
            unsafe extern "C-unwind" fn any_path($($argument: $type),*) -> $result {
                // SAFETY: the caller passes a path as the C library's function of this name
                // demands.
                let route = unsafe { path_hooks!(@route $path $($directory)?) };
                if let Some($place) = $crate::hooks::ours(route, $follow) {
                    return $crate::answer::answer_path(
                        || $ours,
                        |elsewhere| {
                            let $path = elsewhere.as_ptr();
                            $(let $directory = { let _ = $directory; libc::AT_FDCWD };)?
                            // SAFETY: the caller's own arguments, except for the path, which lives
                            // for the call.
                            unsafe { $name($($argument),*) }
                        },
                    );
                }
                // SAFETY: the caller's own arguments.
                let result = unsafe { next!($name: fn($($type),*) -> $result)($($argument),*) };
                $($then(result);)?
                result
            }
            // SAFETY: the caller passes a path as the C library's function of this name demands.
            match unsafe { path_hooks!(@passes $path [$($directory)?] [$($then)?]) } {
                // SAFETY: the caller's own arguments.
                true => unsafe { next!($name: fn($($type),*) -> $result)($($argument),*) },
                // SAFETY: as above.
                false => unsafe { any_path($($argument),*) },
            }
        }
    )*};
    (@route $path:ident) => { cairn_posix::files::path::route($path) };
    (@route $path:ident $directory:ident) => { cairn_posix::files::path::route_at($directory, $path) };
    (@passes $path:ident [] []) => { cairn_posix::files::path::is_foreign($path) };
    (@passes $path:ident [$directory:ident] []) => {
        $directory == libc::AT_FDCWD && cairn_posix::files::path::is_foreign($path)
    };
    (@passes $path:ident [$($directory:ident)?] [$then:path]) => {
        !cairn_posix::task::table::in_use() && path_hooks!(@passes $path [$($directory)?] [])
    };
}

/// Place named by an empty path with `AT_EMPTY_PATH`, if it is Cairn's.
///
/// # Safety
/// `path` is null or terminated.
pub unsafe fn by_empty_path(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> Option<Place<'static>> {
    // SAFETY: the caller passes null or a terminated path.
    let empty =
        flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { path::is_empty(path) });
    if !empty {
        return None;
    }
    if directory == libc::AT_FDCWD {
        return cwd::inode().map(|base| Place { base, path: b"" });
    }
    let handle = table::lookup(directory)?;
    crate::answer::guarded(|| names::place_of(handle)).ok()
}

/// Fast check: whether a call with a directory, a path and `AT_` flags belongs to the C library.
///
/// # Safety
/// `path` is null or terminated.
#[inline]
pub unsafe fn passes(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    directory == libc::AT_FDCWD
        && flags & libc::AT_EMPTY_PATH == 0
        // SAFETY: promised by the caller.
        && unsafe { path::is_foreign(path) }
}

/// Handle behind a descriptor of Cairn. Recognises one that is not in the table yet.
pub fn known(descriptor: c_int) -> Option<HandleId> {
    table::lookup(descriptor).or_else(|| {
        crate::answer::recognise(descriptor).then(|| table::lookup(descriptor)).flatten()
    })
}

/// Serves a call that has `AT_` flags. Errors: `EINVAL` if a flag is not in `known`.
pub fn with_flags<T>(
    flags: c_int,
    known: c_int,
    act: impl FnOnce() -> PathResult<T>,
) -> PathResult<T> {
    match flags & !known {
        0 => act(),
        _ => Err(Errno(libc::EINVAL).into()),
    }
}

/// Ends the thread here if it was cancelled. POSIX allows that before one of our calls begins,
/// never within one.
#[inline]
pub fn cancellation_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    if !cairn_posix::kernel::gate::is_inside() {
        // SAFETY: takes nothing. It may unwind, and no frame between here and the application has a
        // destructor.
        unsafe { pthread_testcancel() };
    }
}

/// Hooks for functions whose first argument is a descriptor. Those marked with `cancellation_point`
/// are one.
macro_rules! descriptor_hooks {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($descriptor:ident: c_int $(, $argument:ident: $type:ty)*) -> $result:ty $(, $point:ident)?
            = |$handle:ident| $ours:expr;
    )*) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($descriptor: c_int $(, $argument: $type)*) -> $result {
            if let Some($handle) = cairn_posix::task::table::lookup($descriptor) {
                $($crate::hooks::$point();)?
                return $crate::answer::answer(|| $ours);
            }
            // SAFETY: the caller's own arguments.
            let result = unsafe {
                next!($name: fn(c_int $(, $type)*) -> $result)($descriptor $(, $argument)*)
            };
            if result == <$result as $crate::answer::Answer>::FAILED
                && $crate::answer::recognise_after_failure($descriptor)
            {
                if let Some($handle) = cairn_posix::task::table::lookup($descriptor) {
                    return $crate::answer::answer(|| $ours);
                }
            }
            result
        }
    )*};
}
