//! Opening and creating files.

use core::ffi::{CStr, c_char, c_int, c_uint};

use cairn_posix::descriptors::descriptor;
use cairn_posix::files::path::Route;
use cairn_posix::files::place::Place;
use cairn_posix::files::{file, names};
use cairn_posix::task::table;
use cairn_posix::{Errno, PathBounds, PathResult};

use crate::answer::{answer_path, answer_path_as, set_errno};
use crate::{hooks, streams};

/// Updates the table and streams after a new descriptor was opened, by us or by the C library for a
/// foreign file. Returns `number`.
#[inline]
pub fn opened(number: c_int) -> c_int {
    descriptor::claimed(number);
    streams::descriptor_changed(number);
    number
}

/// Opens a Cairn file; its path must stay within `bounds`.
pub fn open_place(
    place: &Place,
    flags: c_int,
    mode: c_uint,
    bounds: PathBounds,
) -> PathResult<c_int> {
    let number = file::open_within(place, flags, mode, bounds)?;
    streams::descriptor_changed(number);
    Ok(number)
}

fn follows(flags: c_int) -> bool {
    flags & libc::O_NOFOLLOW == 0
}

macro_rules! open_hooks {
    ($(fn $name:ident([$($directory:ident)?] path, flags $(, $mode:ident)?);)*) => {$(
        /// As the C library's function of this name. The mode of a variadic one is passed in the
        /// register of its parameter.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($directory: c_int,)? path: *const c_char, flags: c_int $(, $mode: c_uint)?
        ) -> c_int {
            #[inline(never)]
            unsafe extern "C-unwind" fn any_path(
                $($directory: c_int,)? path: *const c_char, flags: c_int $(, $mode: c_uint)?
            ) -> c_int {
                let from = open_hooks!(@directory $($directory)?);
                let mode = open_hooks!(@mode $($mode)?);
                // SAFETY: the caller passes a path as open(2) demands.
                let route = unsafe { cairn_posix::files::path::route_at(from, path) };
                if let Some(place) = hooks::ours(route, follows(flags)) {
                    return answer_path(
                        || open_place(&place, flags, mode, PathBounds::NONE),
                        |elsewhere| {
                            $(let $directory = { let _ = $directory; libc::AT_FDCWD };)?
                            // SAFETY: the caller's own arguments, except for the path, which lives
                            // for the call.
                            unsafe { $name($($directory,)? elsewhere.as_ptr(), flags $(, $mode)?) }
                        },
                    );
                }
                // SAFETY: the caller's own arguments.
                opened(unsafe { open_hooks!(@real $name $($directory)? $(, $mode)?)($($directory,)? path, flags $(, $mode)?) })
            }
            let from = open_hooks!(@directory $($directory)?);
            // If no Cairn file is open, no number needs to be forgotten. The split is as in
            // `path_hooks`.
            //
            // SAFETY: the caller passes a path as open(2) demands.
            match !table::in_use() && from == libc::AT_FDCWD && unsafe { cairn_posix::files::path::is_foreign(path) } {
                // SAFETY: the caller's own arguments.
                true => unsafe { open_hooks!(@real $name $($directory)? $(, $mode)?)($($directory,)? path, flags $(, $mode)?) },
                // SAFETY: as above.
                false => unsafe { any_path($($directory,)? path, flags $(, $mode)?) },
            }
        }
    )*};
    (@real $name:ident $($directory:ident)? $(, $mode:ident)?) => {
        next!($name: fn($(open_hooks!(@int $directory),)? *const c_char, c_int $(, open_hooks!(@uint $mode))?) -> c_int)
    };
    (@directory) => { libc::AT_FDCWD };
    (@directory $directory:ident) => { $directory };
    (@mode) => { 0 };
    (@mode $mode:ident) => { $mode };
    (@int $argument:ident) => { c_int };
    (@uint $argument:ident) => { c_uint };
}

open_hooks! {
    fn open([] path, flags, mode);
    fn open64([] path, flags, mode);
    fn __open([] path, flags, mode);
    fn __open64([] path, flags, mode);
    fn __open_2([] path, flags);
    fn __open64_2([] path, flags);
    fn openat([directory] path, flags, mode);
    fn openat64([directory] path, flags, mode);
    fn __openat_2([directory] path, flags);
    fn __openat64_2([directory] path, flags);
}

const CREATE: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

path_hooks! {
    fn creat(path: *const c_char, mode: c_uint) -> c_int,
        [path, follow true] = |place| open_place(&place, CREATE, mode, PathBounds::NONE);
    fn creat64(path: *const c_char, mode: c_uint) -> c_int,
        [path, follow true] = |place| open_place(&place, CREATE, mode, PathBounds::NONE);
}

/// Calls `make` with names made from `template`, a Cairn path, until one is free.
unsafe fn temporary(
    symbol: &'static str,
    template: *mut c_char,
    suffix: c_int,
    make: impl Fn(&Place) -> PathResult<c_int>,
) -> c_int {
    let outcome = || {
        let suffix = usize::try_from(suffix).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: the caller of mkstemp or a related function passes a writable, terminated string.
        let length = unsafe { CStr::from_ptr(template) }.count_bytes();
        // SAFETY: as above; the terminator is not part of the slice.
        let bytes = unsafe { core::slice::from_raw_parts_mut(template.cast::<u8>(), length) };
        names::with_temporary_name(bytes, suffix, |_| {
            // SAFETY: the template is still terminated.
            let route = unsafe { cairn_posix::files::path::route(template) };
            let place = hooks::ours(route, true).ok_or(Errno(libc::ENOENT))?;
            make(&place)
        })
    };
    answer_path_as(
        || symbol,
        outcome,
        |_| {
            // A directory in the template is a symbolic link out of the mount.
            set_errno(libc::EXDEV);
            -1
        },
    )
}

unsafe fn is_ours(path: *const c_char) -> bool {
    // SAFETY: the caller passes a terminated string.
    !matches!(unsafe { cairn_posix::files::path::route(path) }, Route::Libc)
}

const TEMPORARY: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;

macro_rules! temporary_hooks {
    ($(fn $name:ident(template $(, $argument:ident)*), suffix $suffix:expr, flags $flags:expr;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(template: *mut c_char $(, $argument: c_int)*) -> c_int {
            // SAFETY: the caller passes a writable, terminated string.
            if unsafe { is_ours(template) } {
                // SAFETY: as above.
                return unsafe {
                    temporary(stringify!($name), template, $suffix, |place| open_place(place, TEMPORARY | $flags, 0o600, PathBounds::NONE))
                };
            }
            let real = || next!($name: fn(*mut c_char $(, temporary_hooks!(@int $argument))*) -> c_int);
            // SAFETY: the caller's own arguments.
            opened(unsafe { real()(template $(, $argument)*) })
        }
    )*};
    (@int $argument:ident) => { c_int };
}

temporary_hooks! {
    fn mkstemp(template), suffix 0, flags 0;
    fn mkstemp64(template), suffix 0, flags 0;
    fn mkstemps(template, suffix), suffix suffix, flags 0;
    fn mkstemps64(template, suffix), suffix suffix, flags 0;
    fn mkostemp(template, flags), suffix 0, flags flags & !libc::O_ACCMODE;
    fn mkostemp64(template, flags), suffix 0, flags flags & !libc::O_ACCMODE;
    fn mkostemps(template, suffix, flags), suffix suffix, flags flags & !libc::O_ACCMODE;
    fn mkostemps64(template, suffix, flags), suffix suffix, flags flags & !libc::O_ACCMODE;
}

/// As `mkdtemp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: the caller passes a writable, terminated string.
    if unsafe { is_ours(template) } {
        let make = |place: &Place| names::make_directory(place, 0o700).map(|()| 0);
        // SAFETY: as above.
        let made = unsafe { temporary("mkdtemp", template, 0, make) };
        return if made == 0 { template } else { core::ptr::null_mut() };
    }
    // SAFETY: the caller's own argument.
    unsafe { next!(mkdtemp: fn(*mut c_char) -> *mut c_char)(template) }
}

unsafe extern "C" {
    fn secure_getenv(name: *const c_char) -> *mut c_char;
}

/// As `tempnam(3)`: a free name in the directory that the environment or the caller names, if that
/// is in the mount. Otherwise the C library chooses.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn tempnam(
    directory: *const c_char,
    prefix: *const c_char,
) -> *mut c_char {
    const PREFIX_BYTES_MAX: usize = 5;
    let is_directory = |path: *const c_char| {
        // SAFETY: plain data, for which zero is a valid value; the path is terminated.
        let (found, status) = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            (!path.is_null() && crate::stat::stat64(path, &raw mut status) == 0, status)
        };
        found && status.st_mode & libc::S_IFMT == libc::S_IFDIR
    };
    // SAFETY: the name is terminated.
    let told = unsafe { secure_getenv(c"TMPDIR".as_ptr()) };
    let chosen = [told.cast_const(), directory].into_iter().find(|&path| is_directory(path));
    // SAFETY: the caller passes terminated strings or null.
    let Some(chosen) = chosen.filter(|&path| unsafe { is_ours(path) }) else {
        // SAFETY: the caller's own arguments.
        return unsafe {
            next!(tempnam: fn(*const c_char, *const c_char) -> *mut c_char)(directory, prefix)
        };
    };
    let prefix = if prefix.is_null() { c"file".as_ptr() } else { prefix };
    // SAFETY: as above; the copy is new memory, which the caller frees.
    unsafe {
        let prefix = CStr::from_ptr(prefix).to_bytes();
        let prefix = &prefix[..prefix.len().min(PREFIX_BYTES_MAX)];
        let text = [CStr::from_ptr(chosen).to_bytes(), b"/", prefix, b"XXXXXX\0"].concat();
        let copy = libc::strdup(text.as_ptr().cast());
        if !copy.is_null() && *mktemp(copy) == 0 {
            libc::free(copy.cast());
            return core::ptr::null_mut();
        }
        copy
    }
}

/// As `mktemp(3)`: a name that is free at present; empty if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mktemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: the caller passes a writable, terminated string.
    if !unsafe { is_ours(template) } {
        // SAFETY: the caller's own argument.
        return unsafe { next!(mktemp: fn(*mut c_char) -> *mut c_char)(template) };
    }
    let is_free = |place: &Place| match file::stat(place, false) {
        Ok(_) => Err(Errno(libc::EEXIST).into()),
        Err(error) if error.errno() == Errno(libc::ENOENT) => Ok(0),
        Err(error) => Err(error),
    };
    // SAFETY: as above.
    if unsafe { temporary("mktemp", template, 0, is_free) } != 0 {
        // SAFETY: the template has room for at least its terminator.
        unsafe { *template = 0 };
    }
    template
}
