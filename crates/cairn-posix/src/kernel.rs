//! System calls that only this crate and the interposer make. The common ones are in
//! `cairn_platform::sys`.
//!
//! Must stay true: every call goes past the C library, because the library's names, `syscall`
//! included, may be Cairn's own hooks.

pub mod address;
pub mod calls;
pub mod configuration;
pub mod gate;
pub mod latch;
pub(crate) mod launcher;
pub mod stack;
use core::ffi::{CStr, c_void};
use std::ffi::CString;

use cairn_device::directory;
use cairn_platform::descriptor::Descriptor;

pub use cairn_platform::sys::{
    call, close, fcntl, fstat, fstatat, getpid, gettid, mmap, munmap, openat, read, write,
};

use crate::error::{Errno, Result};

/// Most decimal digits of a descriptor number.
const DIGITS_MAX: usize = 10;

/// Makes a system call. A macro, because the arguments have many types and all become `c_long`.
macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {
        cairn_platform::sys::call($number, [$($argument as libc::c_long),*]).map_err(Errno::from)
    };
}

/// Writes the kernel's current directory to `buffer` and returns its length without the NUL.
/// Errors: `ENOENT` if the directory was removed or cannot be reached from the root.
pub fn getcwd(buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes.
    let length = unsafe { call!(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) }?;
    // For an unreachable directory the kernel returns a text that does not start with a slash.
    match length > 1 && buffer[0] == b'/' {
        true => Ok(length - 1),
        false => Err(Errno(libc::ENOENT)),
    }
}

/// Writes the path of an open directory to `buffer` and returns its length without the NUL. Errors:
/// `ENOENT` if it has no path; `EBADF` for a negative descriptor.
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
    let length = cairn_platform::sys::readlinkat(libc::AT_FDCWD, name, buffer)?;
    // The link of an object other than a file does not start with a slash.
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

/// Returns the file mode creation mask. Reads it from /proc where possible, because asking the
/// kernel for the mask means changing it.
pub fn umask() -> u32 {
    if let Some(mask) = umask_from_proc() {
        return mask;
    }
    // For a moment, files that other threads create are accessible to their owner only. That is the
    // safe side.
    let mask = set_umask(0o077);
    set_umask(mask);
    mask
}

fn set_umask(mask: u32) -> u32 {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { call!(libc::SYS_umask, mask) }.map_or(0, |mask| mask as u32)
}

fn umask_from_proc() -> Option<u32> {
    /// Bytes read from the status file; `Umask:` is its second line, after the program's name.
    const START_BYTES: usize = 128;
    let mut start = [0; START_BYTES];
    let status =
        openat(libc::AT_FDCWD, c"/proc/thread-self/status", libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let status = status.ok()?;
    let got = read(status, &mut start);
    let _ = close(status);
    // The program's name may contain any bytes, so only the lines are split as bytes.
    let mut lines = start[..got.ok()?].split(|&byte| byte == b'\n');
    let digits = lines.find_map(|line| line.strip_prefix(b"Umask:\t"))?;
    u32::from_str_radix(core::str::from_utf8(digits).ok()?, 8).ok()
}

/// Whether this process has threads besides the calling one; `None` if /proc does not say. A thread
/// that is exiting, as it is for a moment after `pthread_join`, does not count.
pub fn has_threads() -> Option<bool> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let all = Descriptor::open(libc::AT_FDCWD, c"/proc/self/task", flags, 0).ok()?;
    // A directory has one link for its name, one for `.`, and one for the `..` of each thread.
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

/// Whether the thread `name` in the directory `threads` exists and is not exiting.
fn is_going_on(threads: i32, name: &CStr) -> bool {
    /// Bit in the seventh field after the program's name. The name may contain any bytes and stands
    /// in parentheses.
    const PF_EXITING: u64 = 4;
    let flags = || {
        let path = CString::new([name.to_bytes(), b"/stat"].concat()).ok()?;
        let line = told(threads, &path).ok()?;
        let fields = core::str::from_utf8(line.rsplit(|&byte| byte == b')').next()?).ok()?;
        fields.split_whitespace().nth(6)?.parse::<u64>().ok()
    };
    flags().is_some_and(|flags| flags & PF_EXITING == 0)
}

/// Reads the whole of a file in /proc.
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

/// Closes the descriptors `first..=last`, or marks them close-on-exec, as `flags` says.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    // SAFETY: takes no pointer; the application asked for these descriptor numbers.
    unsafe { call!(libc::SYS_close_range, first, last, flags) }.map(drop)
}

// Flags of `linux/memfd.h` since Linux 6.3. Where `vm.memfd_noexec` is set, a file created without
// one of them cannot be executed, or cannot be created at all.
const MFD_NOEXEC_SEAL: u32 = 0x8;
const MFD_EXEC: u32 = 0x10;

/// Creates an anonymous file that cannot be executed and returns its descriptor.
pub fn memfd_create(name: &CStr, flags: u32) -> Result<i32> {
    memfd_create_with(name, flags, MFD_NOEXEC_SEAL)
}

/// Creates an anonymous file that can be executed and returns its descriptor.
pub fn memfd_create_executable(name: &CStr) -> Result<i32> {
    memfd_create_with(name, 0, MFD_EXEC)
}

fn memfd_create_with(name: &CStr, flags: u32, newer: u32) -> Result<i32> {
    // SAFETY: `name` is NUL-terminated.
    let create = |flags: u32| unsafe { call!(libc::SYS_memfd_create, name.as_ptr(), flags) };
    let created = match create(flags | newer) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno(libc::EINVAL)) => create(flags),
        created => created,
    };
    created.map(|descriptor| descriptor as i32)
}

/// Creates a pipe with close-on-exec set and returns its read and write ends.
pub fn pipe() -> Result<[i32; 2]> {
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel writes two ints.
    unsafe { call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) }?;
    Ok(ends)
}

/// Fills `target` with random bytes and returns their number, which is smaller than asked for only
/// at early boot.
pub fn getrandom(target: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `target.len()` bytes.
    unsafe { call!(libc::SYS_getrandom, target.as_mut_ptr(), target.len(), 0) }
}

/// Lets another thread run.
pub fn sched_yield() {
    // SAFETY: takes nothing and cannot fail.
    let _ = unsafe { call!(libc::SYS_sched_yield) };
}

/// Moves the cursor of a kernel descriptor and returns the new offset.
pub fn lseek(descriptor: i32, offset: i64, whence: i32) -> Result<usize> {
    // SAFETY: takes no pointer.
    unsafe { call!(libc::SYS_lseek, descriptor, offset, whence) }
}

/// `fcntl` with a lock command; may block.
pub fn lock(descriptor: i32, command: i32, lock: &mut libc::flock) -> Result<()> {
    let lock = core::ptr::from_mut(lock);
    // SAFETY: the lock commands take a `struct flock`, which the kernel reads and writes.
    gate::outside(|| unsafe { call!(libc::SYS_fcntl, descriptor, command, lock) }).map(drop)
}

/// Whether the handler of `signal` ends a blocking call with `EINTR` instead of letting it restart
/// (`SA_RESTART`).
pub fn interrupts(signal: i32) -> bool {
    // The kernel's `struct sigaction`: handler, flags, restorer, mask.
    let mut action = [0_u64; 4];
    let nothing = core::ptr::null::<u64>();
    // SAFETY: the kernel writes one such structure into `action`; the mask has 8 bytes.
    let asked = unsafe {
        call!(libc::SYS_rt_sigaction, signal, nothing, action.as_mut_ptr(), size_of::<u64>())
    };
    asked.is_ok() && action[1] & libc::SA_RESTART as u64 == 0
}

/// Sends this thread the signal that `info` describes, with the original sender in it.
pub fn send_to_self(info: &libc::siginfo_t) {
    let (process, thread) = (cairn_platform::sys::getpid(), cairn_platform::sys::gettid());
    let info = core::ptr::from_ref(info);
    // SAFETY: the kernel reads one siginfo. It lets a process send any siginfo to itself.
    unsafe {
        let signal = (*info).si_signo;
        let _ = call!(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
    }
}

/// Maps a file, or anonymous memory if `descriptor` is -1.
///
/// # Safety
/// `MAP_FIXED` replaces what is mapped at `address`: that range must belong to the caller, and
/// nothing may refer to it.
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
/// The range must belong to the caller and be used only as the new protection permits.
pub unsafe fn protect(address: *mut c_void, length: usize, protection: i32) -> Result<()> {
    // SAFETY: promised by the caller.
    Ok(unsafe { cairn_platform::sys::mprotect(address.cast(), length, protection) }?)
}

/// Moves mapped pages to `target` and replaces what is mapped there.
///
/// # Safety
/// Both ranges must belong to the caller, and nothing may refer to either.
pub unsafe fn move_pages(start: *mut c_void, length: usize, target: *mut c_void) -> Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: promised by the caller.
    unsafe { call!(libc::SYS_mremap, start, length, length, flags, target) }.map(drop)
}

/// Locks mapped pages in memory. `on_fault`: only pages that are touched from now on; otherwise all
/// of them, which may take long.
pub fn lock_pages(address: *const c_void, length: usize, on_fault: bool) -> Result<()> {
    // SAFETY: changes no byte of memory.
    let ask = || unsafe { call!(libc::SYS_mlock2, address, length, on_fault) };
    gate::outside(ask).map(drop)
}

/// As `mlockall(2)`, for everything that is mapped.
pub fn lock_all_pages(flags: i32) -> Result<()> {
    // SAFETY: changes no byte of memory.
    gate::outside(|| unsafe { call!(libc::SYS_mlockall, flags) }).map(drop)
}

/// As `munlockall(2)`.
pub fn unlock_all_pages() -> Result<()> {
    // SAFETY: changes no byte of memory.
    unsafe { call!(libc::SYS_munlockall) }.map(drop)
}

/// As `msync(2)`; may block.
///
/// # Safety
/// The range must belong to the caller.
pub unsafe fn msync(address: *mut c_void, length: usize, flags: i32) -> Result<()> {
    // SAFETY: writes mapped pages back and changes none.
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
