//! Extended attributes: refused with ENOTSUP on files of ours, as on a file system without them.

use core::ffi::{c_char, c_int, c_void};

use cairn_posix::Errno;
use libc::{size_t, ssize_t};

fn refused<T, E: From<Errno>>() -> core::result::Result<T, E> {
    Err(Errno(libc::ENOTSUP).into())
}

/// A path that leads to nothing is ENOENT, whatever is asked of it.
fn refused_at<T>(place: &cairn_posix::path::Place, follow: bool) -> cairn_posix::PathResult<T> {
    cairn_posix::file::resolve(place, follow)?;
    refused()
}

path_hooks! {
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t,
        [path, follow true] = |place| refused_at::<usize>(&place, true);
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t,
        [path, follow false] = |place| refused_at::<usize>(&place, false);
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int,
        [path, follow true] = |place| refused_at::<()>(&place, true);
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int,
        [path, follow false] = |place| refused_at::<()>(&place, false);
    fn listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t,
        [path, follow true] = |place| refused_at::<usize>(&place, true);
    fn llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t,
        [path, follow false] = |place| refused_at::<usize>(&place, false);
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int,
        [path, follow true] = |place| refused_at::<()>(&place, true);
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int,
        [path, follow false] = |place| refused_at::<()>(&place, false);
}

descriptor_hooks! {
    fn fgetxattr(descriptor: c_int, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t
        = |_handle| refused::<usize, Errno>();
    fn fsetxattr(descriptor: c_int, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int
        = |_handle| refused::<(), Errno>();
    fn flistxattr(descriptor: c_int, list: *mut c_char, size: size_t) -> ssize_t
        = |_handle| refused::<usize, Errno>();
    fn fremovexattr(descriptor: c_int, name: *const c_char) -> c_int
        = |_handle| refused::<(), Errno>();
}
