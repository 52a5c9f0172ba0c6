//! Extended attributes of the namespace `user.`.
//!
//! Arguments are checked in the kernel's order: flags, name, value, then the file. Names and values
//! to be set are copied first, because code that holds the store's lock never touches the
//! application's memory.

use core::ffi::{c_char, c_int, c_void};

use cairn_posix::files::extended;
use cairn_posix::files::extended::{EXTENDED_NAME_BYTES_MAX, EXTENDED_VALUE_BYTES_MAX};
use cairn_posix::files::file::{self, Found};
use cairn_posix::kernel::address;
use cairn_posix::{Errno, PATH_BYTES_MAX, Result};
use libc::{size_t, ssize_t};

type Outcome<T, E> = core::result::Result<T, E>;

/// Copy of a name that the caller passed.
struct Name {
    bytes: [u8; EXTENDED_NAME_BYTES_MAX],
    length: usize,
}

impl Name {
    /// Copies a name. Errors: `EFAULT`; `ERANGE` if it is empty or too long.
    ///
    /// # Safety
    /// `name` is terminated.
    unsafe fn copy(name: *const c_char) -> Result<Name> {
        let room = address::readable(name, EXTENDED_NAME_BYTES_MAX + 1);
        // SAFETY: `room` bytes are readable.
        let length = unsafe { libc::strnlen(name, room) };
        if length == room && room <= EXTENDED_NAME_BYTES_MAX {
            return Err(Errno(libc::EFAULT));
        }
        if length == 0 || length > EXTENDED_NAME_BYTES_MAX {
            return Err(Errno(libc::ERANGE));
        }
        let mut bytes = [0; EXTENDED_NAME_BYTES_MAX];
        // SAFETY: the name has that many bytes, and there is room for them.
        unsafe { core::ptr::copy_nonoverlapping(name.cast(), bytes.as_mut_ptr(), length) };
        Ok(Name { bytes, length })
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// # Safety
/// `name` is terminated, `value` has `size` bytes.
unsafe fn set<E: From<Errno>>(
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
    file: impl FnOnce() -> Outcome<Found, E>,
) -> Outcome<(), E> {
    let update = extended::update(flags)?;
    // SAFETY: promised by the caller.
    let name = unsafe { Name::copy(name) }?;
    if size > EXTENDED_VALUE_BYTES_MAX {
        return Err(Errno(libc::E2BIG).into());
    }
    // A value longer than this does not fit into any file, whatever its length. Copying one byte
    // more than fits is enough to find that out.
    let mut copy = [0; PATH_BYTES_MAX + 1];
    let length = size.min(copy.len());
    if length > 0 {
        address::check_readable(value, length)?;
        // SAFETY: the value has at least that many bytes, and there is room for them.
        unsafe { core::ptr::copy_nonoverlapping(value.cast(), copy.as_mut_ptr(), length) };
    }
    Ok(extended::set(file()?.inode, name.as_bytes(), &copy[..length], update)?)
}

/// # Safety
/// `name` is terminated, `value` has room for `size` bytes.
unsafe fn get<E: From<Errno>>(
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
    file: impl FnOnce() -> Outcome<Found, E>,
) -> Outcome<usize, E> {
    // SAFETY: promised by the caller.
    let name = unsafe { Name::copy(name) }?;
    let found = extended::get(file()?.inode, name.as_bytes())?;
    // SAFETY: promised by the caller.
    Ok(unsafe { hand_out(&found, value, size) }?)
}

/// # Safety
/// `list` has room for `size` bytes.
unsafe fn list<E: From<Errno>>(
    list: *mut c_char,
    size: size_t,
    file: impl FnOnce() -> Outcome<Found, E>,
) -> Outcome<usize, E> {
    let names = extended::list(file()?.inode)?;
    // SAFETY: promised by the caller.
    Ok(unsafe { hand_out(&names, list.cast(), size) }?)
}

/// # Safety
/// `name` is terminated.
unsafe fn remove<E: From<Errno>>(
    name: *const c_char,
    file: impl FnOnce() -> Outcome<Found, E>,
) -> Outcome<(), E> {
    // SAFETY: promised by the caller.
    let name = unsafe { Name::copy(name) }?;
    Ok(extended::remove(file()?.inode, name.as_bytes())?)
}

/// Copies `found` to the application and returns its length; if `room` is 0, only returns the
/// length. Errors: `ERANGE`, `EFAULT`.
///
/// # Safety
/// `target` has `room` bytes.
unsafe fn hand_out(found: &[u8], target: *mut c_void, room: size_t) -> Result<usize> {
    if room == 0 || found.is_empty() {
        return Ok(found.len());
    }
    if found.len() > room {
        return Err(Errno(libc::ERANGE));
    }
    // SAFETY: there is room; `found` is memory of this library.
    unsafe { address::give(target.cast(), found.as_ptr(), found.len()) }?;
    Ok(found.len())
}

path_hooks! {
    fn getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t,
        // SAFETY: the caller passes a terminated name and room for `size` bytes.
        [path, follow true] = |place| unsafe { get(name, value, size, || file::find(&place, true)) };
    fn lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t,
        // SAFETY: the caller passes a terminated name and room for `size` bytes.
        [path, follow false] = |place| unsafe { get(name, value, size, || file::find(&place, false)) };
    fn setxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int,
        // SAFETY: the caller passes a terminated name and `size` bytes.
        [path, follow true] = |place| unsafe { set(name, value, size, flags, || file::find(&place, true)) };
    fn lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int,
        // SAFETY: the caller passes a terminated name and `size` bytes.
        [path, follow false] = |place| unsafe { set(name, value, size, flags, || file::find(&place, false)) };
    fn listxattr(path: *const c_char, names: *mut c_char, size: size_t) -> ssize_t,
        // SAFETY: the caller passes room for `size` bytes.
        [path, follow true] = |place| unsafe { list(names, size, || file::find(&place, true)) };
    fn llistxattr(path: *const c_char, names: *mut c_char, size: size_t) -> ssize_t,
        // SAFETY: the caller passes room for `size` bytes.
        [path, follow false] = |place| unsafe { list(names, size, || file::find(&place, false)) };
    fn removexattr(path: *const c_char, name: *const c_char) -> c_int,
        // SAFETY: the caller passes a terminated name.
        [path, follow true] = |place| unsafe { remove(name, || file::find(&place, true)) };
    fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int,
        // SAFETY: the caller passes a terminated name.
        [path, follow false] = |place| unsafe { remove(name, || file::find(&place, false)) };
}

descriptor_hooks! {
    fn fgetxattr(descriptor: c_int, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t
        // SAFETY: the caller passes a terminated name and room for `size` bytes.
        = |handle| unsafe { get(name, value, size, || Found::opened(handle)) };
    fn fsetxattr(descriptor: c_int, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) -> c_int
        // SAFETY: the caller passes a terminated name and `size` bytes.
        = |handle| unsafe { set(name, value, size, flags, || Found::opened(handle)) };
    fn flistxattr(descriptor: c_int, names: *mut c_char, size: size_t) -> ssize_t
        // SAFETY: the caller passes room for `size` bytes.
        = |handle| unsafe { list(names, size, || Found::opened(handle)) };
    fn fremovexattr(descriptor: c_int, name: *const c_char) -> c_int
        // SAFETY: the caller passes a terminated name.
        = |handle| unsafe { remove(name, || Found::opened(handle)) };
}
