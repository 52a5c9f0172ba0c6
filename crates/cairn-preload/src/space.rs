//! Size, space and copies inside the kernel: truncate, fallocate, advice, `copy_file_range`,
//! `sendfile`, `splice`.

use cairn_posix::descriptors::description;
use core::ffi::{c_char, c_int, c_uint};

use cairn_posix::Errno;
use cairn_posix::data::copy::{self, End};
use cairn_posix::files::{allocate, file};
use cairn_posix::task::table;
use libc::{size_t, ssize_t};

use crate::answer::{answer, answer_as, deliver, given, lent, number, recognise_after_failure};

path_hooks! {
    fn truncate(path: *const c_char, size: i64) -> c_int,
        [path, follow true] = |place| file::truncate(&place, size);
    fn truncate64(path: *const c_char, size: i64) -> c_int,
        [path, follow true] = |place| file::truncate(&place, size);
}

descriptor_hooks! {
    fn fallocate(descriptor: c_int, mode: c_int, offset: i64, length: i64) -> c_int
        = |handle| allocate::change(handle, mode, offset, length);
    fn fallocate64(descriptor: c_int, mode: c_int, offset: i64, length: i64) -> c_int
        = |handle| allocate::change(handle, mode, offset, length);
    fn readahead(descriptor: c_int, offset: i64, length: size_t) -> ssize_t
        = |handle| file::read_ahead(handle);
}

/// Hooks for functions that return the error number.
macro_rules! numbered {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),*) = |$handle:ident| $ours:expr;)*) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(descriptor: c_int $(, $argument: $type)*) -> c_int {
            if let Some($handle) = table::lookup(descriptor) {
                return number(|| $ours);
            }
            // SAFETY: the caller's own arguments.
            let result = unsafe { next!($name: fn(c_int $(, $type)*) -> c_int)(descriptor $(, $argument)*) };
            if result == libc::EBADF && crate::answer::recognise(descriptor) {
                if let Some($handle) = table::lookup(descriptor) {
                    return number(|| $ours);
                }
            }
            result
        }
    )*};
}

numbered! {
    fn posix_fadvise(offset: i64, length: i64, advice: c_int)
        = |handle| file::advise(handle, length, advice);
    fn posix_fadvise64(offset: i64, length: i64, advice: c_int)
        = |handle| file::advise(handle, length, advice);
    fn posix_fallocate(offset: i64, length: i64) = |handle| allocate::allocate(handle, offset, length);
    fn posix_fallocate64(offset: i64, length: i64) = |handle| allocate::allocate(handle, offset, length);
}

fn end(descriptor: c_int) -> End {
    crate::hooks::known(descriptor).map_or(End::Kernel(descriptor), End::Ours)
}

/// After a call of the C library failed: whether one of its descriptors is Cairn's and was not in
/// the table yet.
fn either_missed(first: c_int, second: c_int) -> bool {
    let missed = [recognise_after_failure(first), recognise_after_failure(second)];
    missed[0] || missed[1]
}

/// As `copy_file_range(2)`. Copies through memory if a file is Cairn's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn copy_file_range(
    source: c_int,
    source_offset: *mut i64,
    target: c_int,
    target_offset: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    let ours = || table::is_ours(source) || table::is_ours(target);
    if !ours() {
        // SAFETY: the caller's own arguments.
        let result = unsafe {
            next!(copy_file_range: fn(c_int, *mut i64, c_int, *mut i64, size_t, c_uint) -> ssize_t)(
                source,
                source_offset,
                target,
                target_offset,
                length,
                flags,
            )
        };
        if result >= 0 || !either_missed(source, target) {
            return result;
        }
    }
    answer(|| {
        if flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // The kernel checks the descriptors before the offsets.
        for handle in [source, target].into_iter().filter_map(table::lookup) {
            description::opened(handle)?;
        }
        // SAFETY: the caller passes null or a valid offset for each.
        let mut offsets = unsafe { (given(source_offset)?, given(target_offset)?) };
        let starts = [
            copy::position(end(source), offsets.0.as_ref())?,
            copy::position(end(target), offsets.1.as_ref())?,
        ];
        copy::check::range(end(source), end(target), starts, length)?;
        let (from, to) = (end(source), end(target));
        let copied = copy::copy(from, offsets.0.as_mut(), to, offsets.1.as_mut(), length)?;
        for (place, offset) in [(source_offset, offsets.0), (target_offset, offsets.1)] {
            if let Some(offset) = offset.filter(|_| copied > 0) {
                // SAFETY: as above.
                unsafe { deliver(place, offset) }?;
            }
        }
        Ok(copied)
    })
}

unsafe fn send_file(
    symbol: &'static str,
    target: c_int,
    source: c_int,
    offset: *mut i64,
    length: size_t,
    real: impl FnOnce() -> ssize_t,
) -> ssize_t {
    if !table::is_ours(source) && !table::is_ours(target) {
        let result = real();
        if result >= 0 || !either_missed(source, target) {
            return result;
        }
    }
    answer_as(
        || symbol,
        || {
            // SAFETY: the caller passes null or a valid offset.
            let offset = unsafe { lent(offset) }?;
            copy::check::sendfile(end(source), end(target), offset.as_deref(), length)?;
            copy::copy(end(source), offset, end(target), None, length)
        },
    )
}

/// As `sendfile(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(
    target: c_int,
    source: c_int,
    offset: *mut i64,
    length: size_t,
) -> ssize_t {
    // SAFETY: the caller's own arguments.
    unsafe {
        send_file("sendfile", target, source, offset, length, || {
            next!(sendfile: fn(c_int, c_int, *mut i64, size_t) -> ssize_t)(
                target, source, offset, length,
            )
        })
    }
}

/// As `sendfile64(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(
    target: c_int,
    source: c_int,
    offset: *mut i64,
    length: size_t,
) -> ssize_t {
    // SAFETY: the caller's own arguments.
    unsafe {
        send_file("sendfile64", target, source, offset, length, || {
            next!(sendfile64: fn(c_int, c_int, *mut i64, size_t) -> ssize_t)(
                target, source, offset, length,
            )
        })
    }
}

/// Maximum number of bytes that one `splice` with a Cairn file moves. After a pipe gave some bytes,
/// the call must not wait for more.
const SPLICE_BYTES_MAX: size_t = 64 << 10;

/// As `splice(2)`. Copies through memory if a file is Cairn's; the flags are hints.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    source: c_int,
    source_offset: *mut i64,
    target: c_int,
    target_offset: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    if !table::is_ours(source) && !table::is_ours(target) {
        // SAFETY: the caller's own arguments.
        let result = unsafe {
            next!(splice: fn(c_int, *mut i64, c_int, *mut i64, size_t, c_uint) -> ssize_t)(
                source,
                source_offset,
                target,
                target_offset,
                length,
                flags,
            )
        };
        if result >= 0 || !either_missed(source, target) {
            return result;
        }
    }
    const KNOWN: c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    let length = length.min(SPLICE_BYTES_MAX);
    answer(|| {
        if length > 0 && flags & !KNOWN != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller passes null or a valid offset for each.
        let offsets = unsafe { (lent(source_offset)?, lent(target_offset)?) };
        let from = (end(source), offsets.0.as_deref());
        let to = (end(target), offsets.1.as_deref());
        copy::check::splice(from, to, length)?;
        copy::copy(end(source), offsets.0, end(target), offsets.1, length)
    })
}
