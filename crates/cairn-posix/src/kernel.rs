//! System calls that only this crate and the interposer make; the common ones are those of
//! `cairn_device::sys`.
//!
//! Must stay true: made past the C library, because its names, `syscall` among them, may be Cairn's
//! own hooks.

pub mod address;
pub mod configuration;
pub mod gate;
pub mod latch;
pub mod stack;
use core::ffi::{CStr, c_void};
use std::ffi::CString;

use cairn_device::descriptor::Descriptor;
use cairn_device::directory;

pub use cairn_device::sys::{
    call, close, fcntl, fstat, fstatat, getpid, gettid, mmap, munmap, openat, read, write,
};

use crate::error::{Errno, Result};

/// Of a descriptor's number.
const DIGITS_MAX: usize = 10;

/// Calls the kernel; a macro because the arguments have many types and all become `c_long`.
macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {
        cairn_device::sys::call($number, [$($argument as libc::c_long),*]).map_err(Errno::from)
    };
}

/// The kernel's current directory, without the NUL; `ENOENT` if it was removed.
pub fn getcwd(buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes.
    let length = unsafe { call!(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) }?;
    // An unreachable directory is answered with a text that does not start with a slash.
    match length > 1 && buffer[0] == b'/' {
        true => Ok(length - 1),
        false => Err(Errno(libc::ENOENT)),
    }
}

/// The path of an open directory, without the NUL; `ENOENT` if it has none.
pub fn path_of(directory: i32, buffer: &mut [u8]) -> Result<usize> {
    let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    if directory < 0 {
        return Err(Errno(libc::EBADF));
    }
    let digits = directory.max(1).ilog10() as usize + 1;
    let first = name.len() - DIGITS_MAX - 1;
    let mut rest = directory;
    for place in name[first..first + digits].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| Errno(libc::EBADF))?;
    let length = cairn_device::sys::readlinkat(libc::AT_FDCWD, name, buffer)?;
    // What is no file has another text.
    match length < buffer.len() && buffer[0] == b'/' {
        true => Ok(length),
        false => Err(Errno(libc::ENOENT)),
    }
}

/// Changes the kernel's current directory.
pub fn fchdir(directory: i32) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { call!(libc::SYS_fchdir, directory) }.map(drop)
}

/// The file mode creation mask. Read from /proc where that tells, because asking the kernel means
/// changing it.
pub fn umask() -> u32 {
    if let Some(mask) = umask_from_proc() {
        return mask;
    }
    // For a moment other threads create files that only their owner can use: the safe side.
    let mask = set_umask(0o077);
    set_umask(mask);
    mask
}

fn set_umask(mask: u32) -> u32 {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { call!(libc::SYS_umask, mask) }.map_or(0, |mask| mask as u32)
}

fn umask_from_proc() -> Option<u32> {
    /// The line is the second, after the name of the program.
    const START_BYTES: usize = 128;
    let mut start = [0; START_BYTES];
    let status =
        openat(libc::AT_FDCWD, c"/proc/thread-self/status", libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let status = status.ok()?;
    let got = read(status, &mut start);
    let _ = close(status);
    // The program's name may be any bytes.
    let mut lines = start[..got.ok()?].split(|&byte| byte == b'\n');
    let digits = lines.find_map(|line| line.strip_prefix(b"Umask:\t"))?;
    u32::from_str_radix(core::str::from_utf8(digits).ok()?, 8).ok()
}

/// Whether this process has threads beside the calling one; `None` where /proc does not tell. One
/// that is on its way out, as for a moment after `pthread_join`, is none.
pub fn has_threads() -> Option<bool> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let all = Descriptor::open(libc::AT_FDCWD, c"/proc/self/task", flags, 0).ok()?;
    // A directory's links: its name, its `.`, and the `..` of each thread.
    if fstat(all.raw()).ok()?.st_nlink <= 3 {
        return Some(false);
    }
    let (own, mut has_others) = (gettid().to_string(), false);
    let mut look = |name: &CStr, _: u8| {
        let is_other = name.to_bytes()[0].is_ascii_digit() && name.to_bytes() != own.as_bytes();
        has_others |= is_other && is_going_on(all.raw(), name);
        !has_others
    };
    directory::list(all.raw(), &mut look).ok()?;
    Some(has_others)
}

/// Whether a thread, by its name in the directory of them, is there and not on its way out.
fn is_going_on(threads: i32, name: &CStr) -> bool {
    /// In the seventh field after the program's name, which may be any bytes in parentheses.
    const PF_EXITING: u64 = 4;
    let flags = || {
        let path = CString::new([name.to_bytes(), b"/stat"].concat()).ok()?;
        let line = told(threads, &path).ok()?;
        let fields = core::str::from_utf8(line.rsplit(|&byte| byte == b')').next()?).ok()?;
        fields.split_whitespace().nth(6)?.parse::<u64>().ok()
    };
    flags().is_some_and(|flags| flags & PF_EXITING == 0)
}

/// What a file of /proc tells, all of it.
pub fn told(directory: i32, path: &CStr) -> Result<Vec<u8>> {
    const PIECE_BYTES: usize = 4096;
    let file = Descriptor::open(directory, path, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let mut text = Vec::new();
    loop {
        let filled = text.len();
        text.resize(filled + PIECE_BYTES, 0);
        let got = read(file.raw(), &mut text[filled..])?;
        text.truncate(filled + got);
        if got == 0 {
            return Ok(text);
        }
    }
}

/// Closes, or marks close-on-exec, the descriptors `first..=last`.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    // SAFETY: takes no pointer; the application asked for these numbers.
    unsafe { call!(libc::SYS_close_range, first, last, flags) }.map(drop)
}

// Flags of `linux/memfd.h` since Linux 6.3: where `vm.memfd_noexec` is set, one without them cannot
// be executed, or made.
const MFD_NOEXEC_SEAL: u32 = 0x8;
const MFD_EXEC: u32 = 0x10;

/// An anonymous file, which is not to be executed.
pub fn memfd_create(name: &CStr, flags: u32) -> Result<i32> {
    memfd_create_with(name, flags, MFD_NOEXEC_SEAL)
}

/// An anonymous file that can be executed.
pub fn memfd_create_executable(name: &CStr) -> Result<i32> {
    memfd_create_with(name, 0, MFD_EXEC)
}

fn memfd_create_with(name: &CStr, flags: u32, newer: u32) -> Result<i32> {
    // SAFETY: `name` is NUL-terminated.
    let create = |flags: u32| unsafe { call!(libc::SYS_memfd_create, name.as_ptr(), flags) };
    let created = match create(flags | newer) {
        // An older kernel.
        Err(Errno(libc::EINVAL)) => create(flags),
        created => created,
    };
    created.map(|descriptor| descriptor as i32)
}

/// A pipe that an exec closes.
pub fn pipe() -> Result<[i32; 2]> {
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel writes two ints.
    unsafe { call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }?;
    Ok(ends)
}

/// Random bytes; fewer than asked for only at early boot.
pub fn getrandom(target: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `target.len()` bytes.
    unsafe { call!(libc::SYS_getrandom, target.as_mut_ptr(), target.len(), 0) }
}

/// Lets another thread run.
pub fn sched_yield() {
    // SAFETY: takes nothing and cannot fail.
    let _ = unsafe { call!(libc::SYS_sched_yield) };
}

/// Moves the cursor of a descriptor of the kernel.
pub fn lseek(descriptor: i32, offset: i64, whence: i32) -> Result<usize> {
    // SAFETY: takes no pointer.
    unsafe { call!(libc::SYS_lseek, descriptor, offset, whence) }
}

/// `fcntl` with a lock command; may wait.
pub fn lock(descriptor: i32, command: i32, lock: &mut libc::flock) -> Result<()> {
    let lock = core::ptr::from_mut(lock);
    // SAFETY: the lock commands take a `struct flock`, which the kernel reads and writes.
    gate::outside(|| unsafe { call!(libc::SYS_fcntl, descriptor, command, lock) }).map(drop)
}

/// Whether the handler of a signal ends a call that waits, instead of letting it go on
/// (`SA_RESTART`).
pub fn interrupts(signal: i32) -> bool {
    // As the kernel has it: handler, flags, restorer, mask.
    let mut action = [0_u64; 4];
    let nothing = core::ptr::null::<u64>();
    // SAFETY: the kernel writes one such structure into `action`; the mask has 8 bytes.
    let asked = unsafe {
        call!(libc::SYS_rt_sigaction, signal, nothing, action.as_mut_ptr(), size_of::<u64>())
    };
    asked.is_ok() && action[1] & libc::SA_RESTART as u64 == 0
}

/// Sends this thread a signal as if it came from where `info` says.
pub fn send_to_self(info: &libc::siginfo_t) {
    let (process, thread) = (cairn_device::sys::getpid(), cairn_device::sys::gettid());
    let info = core::ptr::from_ref(info);
    // SAFETY: the kernel reads one siginfo. It lets a process send itself anything.
    unsafe {
        let signal = (*info).si_signo;
        let _ = call!(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
    }
}

/// Maps a file or, with `descriptor` -1, anonymous memory.
///
/// # Safety
/// With `MAP_FIXED`, what is at `address` is replaced: it belongs to the caller and is not
/// referenced.
pub unsafe fn map(
    address: *mut c_void,
    length: usize,
    protection: i32,
    flags: i32,
    descriptor: i32,
    offset: u64,
) -> Result<*mut c_void> {
    // SAFETY: promised by the caller.
    unsafe { call!(libc::SYS_mmap, address, length, protection, flags, descriptor, offset) }
        .map(|address| address as *mut c_void)
}

/// Changes the protection of mapped memory.
///
/// # Safety
/// The range belongs to the caller, and is used only as the new protection permits.
pub unsafe fn protect(address: *mut c_void, length: usize, protection: i32) -> Result<()> {
    // SAFETY: promised by the caller.
    Ok(unsafe { cairn_device::sys::mprotect(address.cast(), length, protection) }?)
}

/// Moves mapped pages to `target`, whatever is there.
///
/// # Safety
/// Both ranges belong to the caller, and neither is referenced.
pub unsafe fn move_pages(start: *mut c_void, length: usize, target: *mut c_void) -> Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: promised by the caller.
    unsafe { call!(libc::SYS_mremap, start, length, length, flags, target) }.map(drop)
}

/// Keeps mapped pages in memory: those that are touched from now on, or all of them, which may take
/// long.
pub fn lock_pages(address: *const c_void, length: usize, on_fault: bool) -> Result<()> {
    // SAFETY: changes no byte.
    let ask = || unsafe { call!(libc::SYS_mlock2, address, length, on_fault) };
    gate::outside(ask).map(drop)
}

/// As `mlockall(2)`, of everything that is mapped.
pub fn lock_all_pages(flags: i32) -> Result<()> {
    // SAFETY: changes no byte.
    gate::outside(|| unsafe { call!(libc::SYS_mlockall, flags) }).map(drop)
}

/// As `munlockall(2)`.
pub fn unlock_all_pages() -> Result<()> {
    // SAFETY: changes no byte.
    unsafe { call!(libc::SYS_munlockall) }.map(drop)
}

/// As `msync(2)`; may wait.
///
/// # Safety
/// The range belongs to the caller.
pub unsafe fn msync(address: *mut c_void, length: usize, flags: i32) -> Result<()> {
    // SAFETY: writes back what is mapped there and changes nothing.
    gate::outside(|| unsafe { call!(libc::SYS_msync, address, length, flags) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn umask_is_read_without_being_changed() {
        let known = set_umask(0o027);
        let asked = (umask_from_proc(), umask());
        set_umask(known);
        assert_eq!(asked, (Some(0o027), 0o027));
    }
}
