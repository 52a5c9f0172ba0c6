//! Socket calls. They fail on a Cairn file, although its placeholder may be a socket. Calls that
//! can pass descriptors are in `passing.rs`.

use cairn_posix::descriptors::description;
use core::ffi::{c_int, c_void};

use cairn_posix::{Errno, HandleId, Result};
use libc::{size_t, sockaddr, socklen_t, ssize_t};

/// Error of a socket call on a Cairn file: `ENOTSOCK`, or `EBADF` for an `O_PATH` descriptor.
pub fn refused<T>(handle: HandleId) -> Result<T> {
    description::opened(handle).and(Err(Errno(libc::ENOTSOCK)))
}

descriptor_hooks! {
    fn bind(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int
        = |handle| refused::<c_int>(handle);
    fn connect(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int
        = |handle| refused::<c_int>(handle);
    fn __connect(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int
        = |handle| refused::<c_int>(handle);
    fn listen(descriptor: c_int, backlog: c_int) -> c_int = |handle| refused::<c_int>(handle);
    fn shutdown(descriptor: c_int, how: c_int) -> c_int = |handle| refused::<c_int>(handle);
    fn getpeername(descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int
        = |handle| refused::<c_int>(handle);
    fn getsockname(descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int
        = |handle| refused::<c_int>(handle);
    fn getsockopt(descriptor: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int
        = |handle| refused::<c_int>(handle);
    fn setsockopt(descriptor: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int
        = |handle| refused::<c_int>(handle);
    fn recv(descriptor: c_int, target: *mut c_void, length: size_t, flags: c_int) -> ssize_t
        = |handle| refused::<usize>(handle);
    fn __recv_chk(descriptor: c_int, target: *mut c_void, length: size_t, room: size_t, flags: c_int) -> ssize_t
        = |handle| refused::<usize>(handle);
    fn recvfrom(descriptor: c_int, target: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> ssize_t
        = |handle| refused::<usize>(handle);
    fn __recvfrom_chk(descriptor: c_int, target: *mut c_void, length: size_t, room: size_t, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> ssize_t
        = |handle| refused::<usize>(handle);
    fn send(descriptor: c_int, source: *const c_void, length: size_t, flags: c_int) -> ssize_t
        = |handle| refused::<usize>(handle);
    fn __send(descriptor: c_int, source: *const c_void, length: size_t, flags: c_int) -> ssize_t
        = |handle| refused::<usize>(handle);
    fn sendto(descriptor: c_int, source: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, address_length: socklen_t) -> ssize_t
        = |handle| refused::<usize>(handle);
    // As in the C library: by the mode bits that `fstat` reports.
    fn isfdtype(descriptor: c_int, kind: c_int) -> c_int = |handle| {
        let directory = description::is_directory(handle)?;
        let is = if directory { libc::S_IFDIR } else { libc::S_IFREG };
        Ok(c_int::from(kind as u32 == is))
    };
}
