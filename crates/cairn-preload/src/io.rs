//! Reading, writing, seeking.

use cairn_posix::descriptors::description;
use core::ffi::{c_int, c_void};

use cairn_posix::data::io::{self, At};
use cairn_posix::data::transfer::Buffers;
use cairn_posix::files::file;
use cairn_posix::kernel::{address, configuration};
use cairn_posix::{Errno, HandleId, Result};
use libc::{iovec, size_t, ssize_t};

/// Runs `act` with one buffer of the caller's.
///
/// # Safety
/// The caller passes memory as read(2) or write(2) demands.
unsafe fn with_buffer<R>(
    start: *const c_void,
    length: size_t,
    act: impl FnOnce(Buffers) -> Result<R>,
) -> Result<R> {
    let passes_range_check = address::passes_range_check(start);
    let entry =
        iovec { iov_base: start.cast_mut(), iov_len: if passes_range_check { length } else { 0 } };
    // SAFETY: promised by the caller.
    let result = act(unsafe { Buffers::one(&entry) });
    if passes_range_check { result } else { refused(result) }
}

/// Error of a call with a bad address. The kernel checks the descriptor and the offset first.
#[cold]
fn refused<R>(of_nothing: Result<R>) -> Result<R> {
    match of_nothing {
        Err(errno @ Errno(libc::EBADF | libc::EINVAL)) => Err(errno),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// Runs `act` with the caller's list of buffers.
///
/// # Safety
/// The caller passes a list as readv(2) or writev(2) demands.
unsafe fn with_list(
    (handle, direction): (HandleId, Direction),
    list: *const iovec,
    count: c_int,
    act: impl FnOnce(Buffers) -> Result<usize>,
) -> Result<usize> {
    // SAFETY: promised by the caller.
    match unsafe { Buffers::new(list, count) } {
        Ok(buffers) => match act(buffers) {
            // Reading zero bytes succeeds even on a directory.
            Err(Errno(libc::EISDIR)) if buffers.remaining() == 0 => Ok(0),
            result => result,
        },
        // The kernel checks the descriptor first.
        Err(errno) => may_be_used(handle, direction).and(Err(errno)),
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Read,
    Write,
}

#[cold]
fn may_be_used(handle: HandleId, direction: Direction) -> Result<()> {
    let info = description::opened(handle)?;
    match if direction == Direction::Read { info.read } else { info.write } {
        true => Ok(()),
        false => Err(Errno(libc::EBADF)),
    }
}

macro_rules! one_buffer {
    ($(fn $name:ident($descriptor:ident, $start:ident: $pointer:ty, $length:ident $(, $argument:ident: $type:ty)*)
        = |$handle:ident, $buffers:ident| $act:expr;)*) => {
        descriptor_hooks! {$(
            fn $name($descriptor: c_int, $start: $pointer, $length: size_t $(, $argument: $type)*)
                -> ssize_t, cancellation_point
                // SAFETY: the application's buffer, passed as the call demands.
                = |$handle| unsafe { with_buffer($start, $length, |$buffers| $act) };
        )*}
    };
}

one_buffer! {
    fn read(descriptor, start: *mut c_void, length)
        = |handle, buffers| io::read(handle, buffers, At::Cursor);
    fn __read(descriptor, start: *mut c_void, length)
        = |handle, buffers| io::read(handle, buffers, At::Cursor);
    fn write(descriptor, start: *const c_void, length)
        = |handle, buffers| io::write(handle, buffers, At::Cursor);
    fn __write(descriptor, start: *const c_void, length)
        = |handle, buffers| io::write(handle, buffers, At::Cursor);
    fn pread(descriptor, start: *mut c_void, length, offset: i64)
        = |handle, buffers| io::read(handle, buffers, At::offset(offset)?);
    fn pread64(descriptor, start: *mut c_void, length, offset: i64)
        = |handle, buffers| io::read(handle, buffers, At::offset(offset)?);
    fn __pread64(descriptor, start: *mut c_void, length, offset: i64)
        = |handle, buffers| io::read(handle, buffers, At::offset(offset)?);
    fn pwrite(descriptor, start: *const c_void, length, offset: i64)
        = |handle, buffers| io::write(handle, buffers, At::offset(offset)?);
    fn pwrite64(descriptor, start: *const c_void, length, offset: i64)
        = |handle, buffers| io::write(handle, buffers, At::offset(offset)?);
    fn __pwrite64(descriptor, start: *const c_void, length, offset: i64)
        = |handle, buffers| io::write(handle, buffers, At::offset(offset)?);
}

/// The fortified reads abort the program if the buffer is too small. The C library does that, not
/// this hook.
macro_rules! checked_reads {
    ($(fn $checked:ident as $plain:ident($descriptor:ident, $start:ident, $length:ident $(, $offset:ident)?);)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $checked(
            $descriptor: c_int, $start: *mut c_void, $length: size_t, $($offset: i64,)? room: size_t,
        ) -> ssize_t {
            if $length > room {
                // SAFETY: the caller's own arguments; this call does not return.
                return unsafe {
                    next!($checked: fn(c_int, *mut c_void, size_t $(, checked_reads!(@offset $offset))?, size_t) -> ssize_t)(
                        $descriptor, $start, $length $(, $offset)?, room)
                };
            }
            // SAFETY: the caller's own arguments.
            unsafe { $plain($descriptor, $start, $length $(, $offset)?) }
        }
    )*};
    (@offset $offset:ident) => { i64 };
}

checked_reads! {
    fn __read_chk as read(descriptor, start, length);
    fn __pread_chk as pread(descriptor, start, length, offset);
    fn __pread64_chk as pread64(descriptor, start, length, offset);
}

macro_rules! buffer_lists {
    ($(fn $name:ident($descriptor:ident, $list:ident, $count:ident $(, $argument:ident: $type:ty)*)
        = $direction:ident |$handle:ident, $buffers:ident| $act:expr;)*) => {
        descriptor_hooks! {$(
            fn $name($descriptor: c_int, $list: *const iovec, $count: c_int $(, $argument: $type)*)
                -> ssize_t, cancellation_point
                // SAFETY: the application's list of buffers, passed as the call demands.
                = |$handle| unsafe {
                    with_list(($handle, Direction::$direction), $list, $count, |$buffers| $act)
                };
        )*}
    };
}

buffer_lists! {
    fn readv(descriptor, list, count) = Read |handle, buffers| io::read(handle, buffers, At::Cursor);
    fn writev(descriptor, list, count) = Write |handle, buffers| io::write(handle, buffers, At::Cursor);
    fn preadv(descriptor, list, count, offset: i64)
        = Read |handle, buffers| io::read(handle, buffers, At::offset(offset)?);
    fn preadv64(descriptor, list, count, offset: i64)
        = Read |handle, buffers| io::read(handle, buffers, At::offset(offset)?);
    fn pwritev(descriptor, list, count, offset: i64)
        = Write |handle, buffers| io::write(handle, buffers, At::offset(offset)?);
    fn pwritev64(descriptor, list, count, offset: i64)
        = Write |handle, buffers| io::write(handle, buffers, At::offset(offset)?);
    fn preadv2(descriptor, list, count, offset: i64, flags: c_int)
        = Read |handle, buffers| io::read(handle, buffers, flagged((handle, Direction::Read), offset, flags)?);
    fn preadv64v2(descriptor, list, count, offset: i64, flags: c_int)
        = Read |handle, buffers| io::read(handle, buffers, flagged((handle, Direction::Read), offset, flags)?);
    fn pwritev2(descriptor, list, count, offset: i64, flags: c_int)
        = Write |handle, buffers| write_flagged(handle, buffers, offset, flags);
    fn pwritev64v2(descriptor, list, count, offset: i64, flags: c_int)
        = Write |handle, buffers| write_flagged(handle, buffers, offset, flags);
}

/// Flags of `preadv2` and `pwritev2` that need no special treatment: hints, and flags that concern
/// only writes or durability.
const HARMLESS_FLAGS: c_int =
    libc::RWF_HIPRI | libc::RWF_NOWAIT | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;

fn write_flagged(handle: HandleId, buffers: Buffers, offset: i64, flags: c_int) -> Result<usize> {
    let at = flagged((handle, Direction::Write), offset, flags)?;
    match flags & libc::RWF_APPEND {
        0 => io::write(handle, buffers, at),
        _ => io::append(handle, buffers, at == At::Cursor),
    }
}

/// Position where the call begins. Errors: `EOPNOTSUPP` for flags that change the meaning of the
/// call, and for all flags but `RWF_HIPRI` on a directory.
fn flagged(of: (HandleId, Direction), offset: i64, flags: c_int) -> Result<At> {
    let at = if offset == -1 { At::Cursor } else { At::offset(offset)? };
    if flags & !libc::RWF_HIPRI != 0 {
        may_be_used(of.0, of.1)?;
        if flags & !HARMLESS_FLAGS != 0 || description::opened(of.0)?.is_directory {
            return Err(Errno(libc::EOPNOTSUPP));
        }
    }
    Ok(at)
}

/// As `sync(2)`, for what all programs of the job have written. Cannot report failures; `fsync`
/// does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync() {
    if configuration::get().is_some() {
        let _ = crate::answer::guarded(file::sync_all);
    }
    // SAFETY: takes nothing.
    unsafe { next!(sync: fn() -> ())() };
}

descriptor_hooks! {
    fn lseek(descriptor: c_int, offset: i64, whence: c_int) -> i64
        = |handle| file::seek(handle, offset, whence);
    fn lseek64(descriptor: c_int, offset: i64, whence: c_int) -> i64
        = |handle| file::seek(handle, offset, whence);
    fn __lseek(descriptor: c_int, offset: i64, whence: c_int) -> i64
        = |handle| file::seek(handle, offset, whence);
    fn llseek(descriptor: c_int, offset: i64, whence: c_int) -> i64
        = |handle| file::seek(handle, offset, whence);
    fn fsync(descriptor: c_int) -> c_int, cancellation_point = |handle| file::sync(handle);
    fn fdatasync(descriptor: c_int) -> c_int, cancellation_point = |handle| file::sync(handle);
    fn syncfs(descriptor: c_int) -> c_int
        = |handle| description::opened(handle).and_then(|_| file::sync_all());
    fn sync_file_range(descriptor: c_int, offset: i64, length: i64, flags: u32) -> c_int
        = |handle| file::sync_range(handle, offset, length, flags);
    fn ftruncate(descriptor: c_int, size: i64) -> c_int
        = |handle| file::truncate_handle(handle, size);
    fn ftruncate64(descriptor: c_int, size: i64) -> c_int
        = |handle| file::truncate_handle(handle, size);
}
