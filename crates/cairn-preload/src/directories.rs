//! Directory streams and the current directory.

use core::ffi::{c_char, c_int, c_long, c_void};

use cairn_posix::files::cwd;
use cairn_posix::files::directory::{self, Stream};
use cairn_posix::kernel::{address, configuration};
use cairn_posix::task::{fs_context, table};
use cairn_posix::{Errno, Result};
use libc::{DIR, dirent64, size_t, ssize_t};

use crate::answer::{answer, answer_as, guarded, number, set_errno};
use crate::signals;

fn as_stream(stream: &'static Stream) -> *mut DIR {
    core::ptr::from_ref(stream).cast_mut().cast()
}

path_hooks! {
    fn opendir(path: *const c_char) -> *mut DIR,
        [path, follow true, then directory_opened] = |place| directory::open(&place).map(as_stream);
}

/// Called when the C library has opened a stream of a foreign directory.
fn directory_opened(stream: *mut DIR) {
    if !stream.is_null() && table::in_use() {
        // SAFETY: the C library has just returned it.
        crate::open::opened(unsafe { library!(dirfd: fn(*mut DIR) -> c_int)(stream) });
    }
}

/// As `fdopendir(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopendir(descriptor: c_int) -> *mut DIR {
    if !table::is_ours(descriptor) {
        // SAFETY: the caller's own argument.
        let stream = unsafe { next!(fdopendir: fn(c_int) -> *mut DIR)(descriptor) };
        if !stream.is_null() || !crate::answer::recognise_after_failure(descriptor) {
            return stream;
        }
    }
    answer(|| directory::from_descriptor(descriptor).map(as_stream))
}

/// Hooks for functions whose first argument is a directory stream.
macro_rules! stream_hooks {
    ($(fn $name:ident($argument:ident $(, $more:ident: $type:ty)*) -> $result:ty = |$stream:ident| $ours:expr;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($argument: *mut DIR $(, $more: $type)*) -> $result {
            match directory::stream($argument.cast::<c_void>()) {
                Some($stream) => $ours,
                // SAFETY: the caller's own arguments.
                None => unsafe { next!($name: fn(*mut DIR $(, $type)*) -> $result)($argument $(, $more)*) },
            }
        }
    )*};
}

stream_hooks! {
    fn readdir(stream) -> *mut dirent64 = |stream| answer(|| stream.next());
    fn readdir64(stream) -> *mut dirent64 = |stream| answer(|| stream.next());
    fn readdir_r(stream, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int
        // SAFETY: the caller passes room for one entry and one pointer.
        = |stream| number(|| unsafe { copy_entry(stream, entry, result) });
    fn readdir64_r(stream, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int
        // SAFETY: the caller passes room for one entry and one pointer.
        = |stream| number(|| unsafe { copy_entry(stream, entry, result) });
    fn closedir(stream) -> c_int = |stream| answer(|| stream.close());
    fn dirfd(stream) -> c_int = |stream| answer(|| stream.descriptor());
    fn rewinddir(stream) -> () = |stream| go_to("rewinddir", stream, 0);
    fn telldir(stream) -> c_long = |stream| answer(|| position(stream));
    fn seekdir(stream, position: c_long) -> () = |stream| go_to("seekdir", stream, position);
}

fn position(stream: &Stream) -> Result<c_long> {
    c_long::try_from(stream.position()?).map_err(|_| Errno(libc::EOVERFLOW))
}

fn go_to(symbol: &'static str, stream: &Stream, position: c_long) {
    // These functions cannot fail. If a signal handler interrupted another user of the stream, its
    // position stays.
    let _: c_int = answer_as(|| symbol, || stream.set_position(position.max(0) as u64));
}

/// # Safety
/// `entry` and `result` are writable.
unsafe fn copy_entry(
    stream: &Stream,
    entry: *mut dirent64,
    result: *mut *mut dirent64,
) -> Result<()> {
    let found = stream.next()?;
    // SAFETY: an entry of ours is valid for `d_reclen` bytes, which is at most the structure's
    // size.
    unsafe {
        if found.is_null() {
            result.write(core::ptr::null_mut());
        } else {
            let length = usize::from((*found).d_reclen);
            core::ptr::copy_nonoverlapping(found.cast::<u8>(), entry.cast::<u8>(), length);
            result.write(entry);
        }
    }
    Ok(())
}

/// As `getdents64(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getdents64(
    descriptor: c_int,
    target: *mut c_void,
    length: size_t,
) -> ssize_t {
    if !table::is_ours(descriptor) {
        let real = || next!(getdents64: fn(c_int, *mut c_void, size_t) -> ssize_t);
        // SAFETY: the caller's own arguments.
        let result = unsafe { real()(descriptor, target, length) };
        if result >= 0 || !crate::answer::recognise_after_failure(descriptor) {
            return result;
        }
    }
    answer(|| {
        let target = target.cast::<u8>();
        let room = match address::writable(target, length) {
            0 => &mut [][..],
            // SAFETY: the caller passes memory for `length` bytes, and these are writable.
            room => unsafe { core::slice::from_raw_parts_mut(target, room) },
        };
        let room_bytes = room.len();
        match directory::read_entries(descriptor, room) {
            // The next entry would be at an unmapped address.
            Err(Errno(libc::EINVAL)) if room_bytes < length => Err(Errno(libc::EFAULT)),
            result => result,
        }
    })
}

macro_rules! entries {
    ($(fn $name:ident;)*) => {$(
        /// As `getdirentries(3)`: `getdents64` that also returns the position where it began.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            descriptor: c_int, target: *mut c_char, length: size_t, base: *mut i64,
        ) -> ssize_t {
            // SAFETY: the caller passes room for `length` bytes and for one position.
            unsafe {
                let position = crate::io::lseek64(descriptor, 0, libc::SEEK_CUR);
                let got = getdents64(descriptor, target.cast(), length);
                if got >= 0 {
                    base.write(position);
                }
                got
            }
        }
    )*};
}

entries! {
    fn getdirentries;
    fn getdirentries64;
}

/// As `chdir(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    let real = || next!(chdir: fn(*const c_char) -> c_int);
    // SAFETY: the caller passes a terminated path.
    let route = unsafe { cairn_posix::files::path::route(path) };
    match crate::hooks::ours(route, true) {
        Some(place) => crate::answer::answer_path(
            || cwd::enter(&place).inspect(|()| signals::watch_cores()),
            // SAFETY: the path lives for the call.
            |elsewhere| unsafe { chdir(elsewhere.as_ptr()) },
        ),
        // SAFETY: the caller's own argument.
        None => left(unsafe { real()(path) }),
    }
}

fn left(result: c_int) -> c_int {
    if result == 0 && !fs_context::is_foreign() {
        let _ = guarded(|| {
            cwd::left();
            Ok::<_, Errno>(())
        });
    }
    result
}

/// As `fchdir(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fchdir(descriptor: c_int) -> c_int {
    if !table::is_ours(descriptor) {
        // SAFETY: the caller's own argument.
        let result = left(unsafe { next!(fchdir: fn(c_int) -> c_int)(descriptor) });
        if result == 0 || !crate::answer::recognise_after_failure(descriptor) {
            return result;
        }
    }
    answer(|| cwd::enter_descriptor(descriptor).inspect(|()| signals::watch_cores()))
}

/// Returns the path of the current directory as the C library's functions do: in `buffer` of `size`
/// bytes; if `buffer` is null, in new memory of `size` bytes, or of the needed size if that is 0.
/// Errors: `EINVAL`; `ERANGE` if the path does not fit; `ENOMEM`.
unsafe fn working_path(path: Result<Vec<u8>>, buffer: *mut c_char, size: size_t) -> *mut c_char {
    let name = || "getcwd";
    answer_as(name, || {
        let path = path?;
        if size == 0 && !buffer.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        if size != 0 && path.len() >= size {
            return Err(Errno(libc::ERANGE));
        }
        let target = match buffer.is_null() {
            // SAFETY: malloc may be called here. The caller frees the result, as getcwd(3) says.
            true => unsafe { libc::malloc(size.max(path.len() + 1)) }.cast::<c_char>(),
            false => buffer,
        };
        if target.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: the target has room for the path and its terminator.
        unsafe {
            core::ptr::copy_nonoverlapping(path.as_ptr(), target.cast(), path.len());
            *target.add(path.len()) = 0;
        }
        Ok(target)
    })
}

fn ours() -> Option<Result<Vec<u8>>> {
    match configuration::get().is_none() || fs_context::is_foreign() {
        true => None,
        false => guarded(|| Ok::<_, Errno>(cwd::path())).unwrap_or(None),
    }
}

/// As `getcwd(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char {
    match ours() {
        // SAFETY: the caller passes a buffer of `size` bytes or null.
        Some(path) => unsafe { working_path(path, buffer, size) },
        // SAFETY: the caller's own arguments.
        None => unsafe { next!(getcwd: fn(*mut c_char, size_t) -> *mut c_char)(buffer, size) },
    }
}

/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __getcwd_chk(
    buffer: *mut c_char,
    size: size_t,
    room: size_t,
) -> *mut c_char {
    match ours() {
        // SAFETY: the caller passes a buffer of `room` bytes.
        Some(path) if size <= room => unsafe { working_path(path, buffer, size) },
        // SAFETY: the caller's own arguments. The C library aborts the program if `size` is too
        // large.
        _ => unsafe {
            next!(__getcwd_chk: fn(*mut c_char, size_t, size_t) -> *mut c_char)(buffer, size, room)
        },
    }
}

/// As `getwd(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getwd(buffer: *mut c_char) -> *mut c_char {
    if buffer.is_null() {
        set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    }
    // SAFETY: the caller passes a buffer of PATH_MAX bytes.
    unsafe { getcwd(buffer, libc::PATH_MAX as size_t) }
}

/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __getwd_chk(buffer: *mut c_char, room: size_t) -> *mut c_char {
    // SAFETY: the caller passes a buffer of `room` bytes.
    unsafe { __getcwd_chk(buffer, room.min(libc::PATH_MAX as size_t), room) }
}

/// As `get_current_dir_name(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn get_current_dir_name() -> *mut c_char {
    match ours() {
        // SAFETY: there is no buffer.
        Some(path) => unsafe { working_path(path, core::ptr::null_mut(), 0) },
        // SAFETY: takes nothing.
        None => unsafe { next!(get_current_dir_name: fn() -> *mut c_char)() },
    }
}
