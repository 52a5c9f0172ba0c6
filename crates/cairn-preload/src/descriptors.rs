//! Descriptors: closing, duplicating, flags, locks, device control.

use cairn_posix::descriptors::description;
use core::ffi::{c_int, c_uint, c_ulong, c_void};

use cairn_posix::descriptors::{descriptor, internal, locks};
use cairn_posix::files::file;
use cairn_posix::kernel::configuration;
use cairn_posix::task::table;
use cairn_posix::{Errno, HandleId, Result, kernel};
use libc::off_t;

use crate::answer::{answer, answer_as, deliver, given, set_errno};
use crate::streams;

fn close_number(symbol: &'static str, number: c_int, real: impl FnOnce(c_int) -> c_int) -> c_int {
    if table::is_ours(number) {
        streams::about_to_change(number);
        let result = answer_as(|| symbol, || description::close(number));
        streams::descriptor_changed(number);
        return result;
    }
    if internal::is_internal(number) {
        // The application never opened this number.
        set_errno(libc::EBADF);
        return -1;
    }
    real(number)
}

/// As `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(number: c_int) -> c_int {
    // SAFETY: the caller's own argument.
    close_number("close", number, |number| unsafe { next!(close: fn(c_int) -> c_int)(number) })
}

/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __close(number: c_int) -> c_int {
    // SAFETY: the caller's own argument.
    close_number("__close", number, |number| unsafe { next!(__close: fn(c_int) -> c_int)(number) })
}

fn close_all(first: c_uint, last: c_uint) -> Result<()> {
    for standard in 0..=2 {
        // Buffered output for a foreign file is left to the C library.
        if (first..=last).contains(&standard) && table::is_ours(standard as c_int) {
            streams::about_to_change(standard as c_int);
        }
    }
    let result = descriptor::close_range(first, last);
    for standard in 0..=2 {
        streams::descriptor_changed(standard);
    }
    result
}

/// As `close_range(2)`. Goes straight to the kernel only if the table holds no descriptor, or for
/// flags that close nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE as c_int;
    let unshares = flags & UNSHARE != 0 && configuration::get().is_some();
    // Without a descriptor table of its own, the thread would close our descriptors for all
    // threads.
    if unshares && kernel::has_threads() == Some(true) {
        return answer(|| Err::<(), _>(Errno(libc::EINVAL)));
    }
    if flags & !UNSHARE == 0 && table::in_use() {
        return answer(|| {
            if unshares {
                kernel::close_range(c_uint::MAX, c_uint::MAX, flags as c_uint)?;
            }
            close_all(first, last)
        });
    }
    // SAFETY: the caller's own arguments. With CLOSE_RANGE_CLOEXEC nothing changes before exec, and
    // Cairn's internal descriptors are close-on-exec already.
    unsafe { next!(close_range: fn(c_uint, c_uint, c_int) -> c_int)(first, last, flags) }
}

/// As `closefrom(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    if table::in_use() {
        let _: c_int = answer(|| close_all(first.max(0) as c_uint, c_uint::MAX));
        return;
    }
    // SAFETY: the caller's own argument.
    unsafe { next!(closefrom: fn(c_int) -> ())(first) };
}

/// As `dup(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(number: c_int) -> c_int {
    let duplicate = if table::is_ours(number) {
        answer(|| descriptor::duplicate(number, 0, false))
    } else {
        // SAFETY: the caller's own argument.
        let duplicate = unsafe { next!(dup: fn(c_int) -> c_int)(number) };
        descriptor::claimed(duplicate);
        duplicate
    };
    streams::descriptor_changed(duplicate);
    duplicate
}

unsafe fn duplicate_to(
    symbol: &'static str,
    from: c_int,
    to: c_int,
    flags: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    if !table::is_ours(from) && !table::is_ours(to) && !internal::is_internal(to) {
        return real();
    }
    streams::about_to_change(to);
    let result = answer_as(|| symbol, || descriptor::duplicate_to(from, to, flags));
    streams::descriptor_changed(to);
    result
}

/// As `dup2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    if from == to && table::is_ours(from) {
        return to;
    }
    // SAFETY: the caller's own arguments.
    unsafe {
        duplicate_to("dup2", from, to, 0, || next!(dup2: fn(c_int, c_int) -> c_int)(from, to))
    }
}

/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { dup2(from, to) }
}

/// As `dup3(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe {
        duplicate_to("dup3", from, to, flags, || {
            next!(dup3: fn(c_int, c_int, c_int) -> c_int)(from, to, flags)
        })
    }
}

/// Serves `fcntl` for a Cairn file.
unsafe fn control(
    number: c_int,
    handle: HandleId,
    command: c_int,
    argument: usize,
) -> Result<c_int> {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let lowest = c_int::try_from(argument).map_err(|_| Errno(libc::EINVAL))?;
            descriptor::duplicate(number, lowest, command == libc::F_DUPFD_CLOEXEC)
        }
        // The kernel keeps these flags for the placeholder.
        libc::F_GETFD | libc::F_SETFD => {
            Ok(cairn_posix::kernel::fcntl(number, command, argument as i64)?)
        }
        libc::F_GETFL => file::status_flags(handle),
        libc::F_SETFL => file::set_status_flags(handle, argument as c_int).map(|()| 0),
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            description::opened(handle)?;
            // SAFETY: these commands take a pointer to a lock; null gives EFAULT.
            let lock = unsafe { given(argument as *const libc::flock) }?;
            let mut lock = lock.ok_or(Errno(libc::EFAULT))?;
            locks::lock_range(number, command, &mut lock)?;
            if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
                // SAFETY: the caller's lock, which these commands change.
                unsafe { deliver(argument as *mut libc::flock, lock) }?;
            }
            Ok(0)
        }
        _ => description::opened(handle).and(Err(Errno(libc::EINVAL))),
    }
}

macro_rules! controls {
    ($(fn $name:ident;)*) => {$(
        /// As `fcntl(2)`. The variable argument is passed in the register of the third parameter.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(number: c_int, command: c_int, argument: usize) -> c_int {
            if table::lookup(number).is_none() {
                let real = || next!($name: fn(c_int, c_int, usize) -> c_int);
                // SAFETY: the caller's own arguments.
                let result = unsafe { real()(number, command, argument) };
                // On an unknown placeholder the kernel's F_GETFL succeeds; `O_PATH` shows that it
                // may be one.
                let missed = match command {
                    libc::F_GETFL => {
                        result >= 0 && result & libc::O_PATH != 0 && crate::answer::recognise(number)
                    }
                    _ => result == -1 && crate::answer::recognise_after_failure(number),
                };
                if !missed {
                    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                        crate::open::opened(result);
                    }
                    return result;
                }
            }
            let result = answer(|| {
                let handle = table::lookup(number).ok_or(Errno(libc::EBADF))?;
                // SAFETY: the caller's own arguments.
                unsafe { control(number, handle, command, argument) }
            });
            if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                streams::descriptor_changed(result);
            }
            result
        }
    )*};
}

controls! {
    fn fcntl;
    fn fcntl64;
    fn __fcntl;
}

descriptor_hooks! {
    fn flock(descriptor: c_int, operation: c_int) -> c_int
        = |_handle| locks::lock_whole(descriptor, operation);
    fn lockf(descriptor: c_int, command: c_int, length: off_t) -> c_int
        = |_handle| locks::lock_section(descriptor, command, length);
    fn lockf64(descriptor: c_int, command: c_int, length: off_t) -> c_int
        = |_handle| locks::lock_section(descriptor, command, length);
    fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int
        // SAFETY: the caller passes what the request demands.
        = |handle| unsafe { device_control(descriptor, handle, request, argument) };
}

/// `ioctl` that makes equal ranges of two files share their blocks.
const FIDEDUPERANGE: c_ulong = 0xc018_9436;

unsafe fn device_control(
    number: c_int,
    handle: HandleId,
    request: c_ulong,
    argument: *mut c_void,
) -> Result<()> {
    description::opened(handle)?;
    match request {
        libc::FIONREAD => {
            let ahead = description::bytes_ahead(handle)? as c_int;
            // SAFETY: the request demands room for an int.
            unsafe { deliver(argument.cast::<c_int>(), ahead) }
        }
        libc::FIOCLEX | libc::FIONCLEX => {
            let flags = if request == libc::FIOCLEX { libc::FD_CLOEXEC } else { 0 };
            cairn_posix::kernel::fcntl(number, libc::F_SETFD, i64::from(flags))?;
            Ok(())
        }
        libc::FIONBIO => {
            // SAFETY: the request demands an int.
            let wanted = unsafe { given(argument.cast::<c_int>()) }?.ok_or(Errno(libc::EFAULT))?;
            let wanted = wanted != 0;
            let flags = file::status_flags(handle)? & !libc::O_NONBLOCK;
            file::set_status_flags(handle, if wanted { flags | libc::O_NONBLOCK } else { flags })
        }
        // Cairn files do not share blocks. Programs fall back to copying.
        libc::FICLONE | libc::FICLONERANGE | FIDEDUPERANGE => Err(Errno(libc::EOPNOTSUPP)),
        _ => Err(Errno(libc::ENOTTY)),
    }
}

/// As `isatty(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn isatty(number: c_int) -> c_int {
    if !table::is_ours(number) {
        // SAFETY: the caller's own argument.
        let result = unsafe { next!(isatty: fn(c_int) -> c_int)(number) };
        if result != 0 || !crate::answer::recognise_after_failure(number) {
            return result;
        }
    }
    let _: c_int = answer(|| {
        description::opened(table::lookup(number).ok_or(Errno(libc::EBADF))?)?;
        Err::<(), _>(Errno(libc::ENOTTY))
    });
    0
}
