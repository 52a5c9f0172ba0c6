//! System calls with checked results, made without the C library.
//!
//! Must stay true: no function here calls a function of the C library that Cairn's interposer
//! exports; `syscall` is one of those. The kernel's own structures equal libc's on the 64-bit
//! targets that we support.
//!
//! Does not retry, log or interpret: the caller gets the kernel's answer as `Errno`.

use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_core::{Error, Timestamp};

use crate::dispatch;

/// An error number of the kernel, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// Result of a system call.
pub type SysResult<T> = Result<T, Errno>;

impl From<Errno> for Error {
    /// Returns the core's error for a failure of the storage underneath it. An errno without a
    /// counterpart becomes `Io`: the application must not see, say, `EBADF` because a descriptor of
    /// *ours* went away.
    fn from(errno: Errno) -> Error {
        match errno.0 {
            libc::ENOSPC | libc::EDQUOT | libc::ENOMEM => Error::NoSpace,
            libc::EFBIG => Error::FileTooLarge,
            libc::EFAULT => Error::Fault,
            libc::EAGAIN | libc::EBUSY => Error::Busy,
            _ => Error::Io,
        }
    }
}

/// Converts a path to a C string. Errors: `EINVAL` if it contains a NUL.
pub fn c_path(path: &Path) -> SysResult<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno(libc::EINVAL))
}

/// Calls the kernel; a macro because the arguments have many types and all become `c_long`.
macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {
        call($number, [$($argument as libc::c_long),*])
    };
}

/// Calls the kernel with up to six arguments.
///
/// # Safety
/// The arguments satisfy the requirements of the call with this number.
pub unsafe fn call<const COUNT: usize>(
    number: libc::c_long,
    arguments: [libc::c_long; COUNT],
) -> SysResult<usize> {
    const { assert!(COUNT <= 6, "the kernel takes six arguments") };
    let mut all = [0; 6];
    all[..COUNT].copy_from_slice(&arguments);
    // SAFETY: promised by the caller; the kernel ignores arguments that the call does not take.
    let result = unsafe { enter(number, all) };
    // The kernel's errors are the last page of numbers.
    match result {
        -4095..=-1 => Err(Errno(-result as i32)),
        result => Ok(result as usize),
    }
}

/// # Safety
/// As for [`call()`].
#[inline]
unsafe fn enter(number: libc::c_long, arguments: [libc::c_long; 6]) -> libc::c_long {
    // SAFETY: promised by the caller.
    dispatch::allowed(|| unsafe { instruction(number, arguments) })
}

/// # Safety
/// As for [`call()`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn instruction(number: libc::c_long, arguments: [libc::c_long; 6]) -> libc::c_long {
    let result;
    // SAFETY: the kernel's convention: it changes rax, rcx and r11, and only memory that the caller
    // answers for.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
/// As for [`call()`].
#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn instruction(number: libc::c_long, arguments: [libc::c_long; 6]) -> libc::c_long {
    let result;
    // SAFETY: the kernel's convention: it changes x0, and only memory that the caller answers for.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    result
}

/// Opens `path` relative to `directory` (`AT_FDCWD` for the working directory).
pub fn openat(directory: i32, path: &CStr, flags: i32, mode: u32) -> SysResult<i32> {
    // SAFETY: `path` is a NUL-terminated string that outlives the call; nothing else is a pointer.
    unsafe { call!(libc::SYS_openat, directory, path.as_ptr(), flags, mode) }.map(|fd| fd as i32)
}

/// Closes `descriptor`. The number is free afterwards, even after an error.
pub fn close(descriptor: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed; the caller owns the number.
    unsafe { call!(libc::SYS_close, descriptor) }.map(drop)
}

/// Closes the descriptors from `first` to `last`, those that are open. Errors: `ENOSYS` before
/// Linux 5.9.
///
/// # Safety
/// Nothing in the process uses one of these numbers afterwards.
pub unsafe fn close_range(first: u32, last: u32) -> SysResult<()> {
    // SAFETY: no pointers are passed; the caller answers for the numbers.
    unsafe { call!(libc::SYS_close_range, first, last, 0) }.map(drop)
}

/// Attributes of an open descriptor.
pub fn fstat(descriptor: i32) -> SysResult<libc::stat> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one `struct stat`, whose layout is libc's, into `stat`.
    unsafe { call!(libc::SYS_fstat, descriptor, stat.as_mut_ptr()) }?;
    // SAFETY: zero-initialised plain integers, then filled by the kernel.
    Ok(unsafe { stat.assume_init() })
}

/// Attributes of `path` relative to `directory`; `flags` is `AT_SYMLINK_NOFOLLOW` or 0.
pub fn fstatat(directory: i32, path: &CStr, flags: i32) -> SysResult<libc::stat> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `path` is NUL-terminated; the kernel writes one `struct stat` into `stat`.
    unsafe { call!(libc::SYS_newfstatat, directory, path.as_ptr(), stat.as_mut_ptr(), flags) }?;
    // SAFETY: zero-initialised plain integers, then filled by the kernel.
    Ok(unsafe { stat.assume_init() })
}

/// Attributes of `path` itself; a symbolic link is not followed.
pub fn lstat(path: &CStr) -> SysResult<libc::stat> {
    fstatat(libc::AT_FDCWD, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// State of the file system that holds `path`.
pub fn statfs(path: &CStr) -> SysResult<libc::statfs> {
    // SAFETY: `path` is NUL-terminated; the kernel writes one `struct statfs` into `state`.
    state_of(|state| unsafe { call!(libc::SYS_statfs, path.as_ptr(), state) })
}

/// State of the file system that holds an open file.
pub fn fstatfs(descriptor: i32) -> SysResult<libc::statfs> {
    // SAFETY: the kernel writes one `struct statfs` into `state`.
    state_of(|state| unsafe { call!(libc::SYS_fstatfs, descriptor, state) })
}

fn state_of(ask: impl FnOnce(*mut libc::statfs) -> SysResult<usize>) -> SysResult<libc::statfs> {
    let mut state = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    ask(state.as_mut_ptr())?;
    // SAFETY: zero-initialised plain integers, then filled by the kernel.
    Ok(unsafe { state.assume_init() })
}

/// Sets the size of a file.
pub fn ftruncate(descriptor: i32, bytes: u64) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_ftruncate, descriptor, bytes) }.map(drop)
}

/// Allocates (mode 0) or punches (`FALLOC_FL_*`) a range of a file.
pub fn fallocate(descriptor: i32, mode: i32, offset: u64, bytes: u64) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_fallocate, descriptor, mode, offset, bytes) }.map(drop)
}

/// Waits until a file's data, and the metadata needed to find it, is on its device.
pub fn fdatasync(descriptor: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_fdatasync, descriptor) }.map(drop)
}

/// Waits until a file or directory is on its device.
pub fn fsync(descriptor: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_fsync, descriptor) }.map(drop)
}

/// Advises the kernel how an open file, all of it, will be used (`POSIX_FADV_*`).
pub fn fadvise(descriptor: i32, advice: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_fadvise64, descriptor, 0, 0, advice) }.map(drop)
}

/// Maps `bytes` of a file (or anonymous memory with `descriptor` -1) at an address of the kernel's
/// choice; `MAP_FIXED` is refused.
pub fn mmap(
    bytes: usize,
    protection: i32,
    flags: i32,
    descriptor: i32,
    offset: u64,
) -> SysResult<*mut u8> {
    assert!(flags & libc::MAP_FIXED == 0, "a fixed mapping could replace memory in use");
    // SAFETY: without MAP_FIXED a mapping never replaces an existing one.
    unsafe { call!(libc::SYS_mmap, 0, bytes, protection, flags, descriptor, offset) }
        .map(|address| address as *mut u8)
}

/// Removes a mapping.
///
/// # Safety
/// The range is a mapping of the caller's to which no reference remains.
pub unsafe fn munmap(address: *mut u8, bytes: usize) -> SysResult<()> {
    // SAFETY: the caller gives up the range.
    unsafe { call!(libc::SYS_munmap, address, bytes) }.map(drop)
}

/// Makes a mapping longer. The kernel may move it.
///
/// # Safety
/// The range is a mapping of the caller's to which no reference remains.
pub unsafe fn grow(address: *mut u8, bytes: usize, new_bytes: usize) -> SysResult<*mut u8> {
    // SAFETY: promised by the caller.
    unsafe { call!(libc::SYS_mremap, address, bytes, new_bytes, libc::MREMAP_MAYMOVE) }
        .map(|address| address as *mut u8)
}

/// Changes the protection of mapped memory.
///
/// # Safety
/// The range belongs to the caller, and is used only as the new protection permits.
pub unsafe fn mprotect(address: *mut u8, bytes: usize, protection: i32) -> SysResult<()> {
    // SAFETY: promised by the caller.
    unsafe { call!(libc::SYS_mprotect, address, bytes, protection) }.map(drop)
}

/// Unlocks the pages of a range, so that the kernel may evict them again.
///
/// # Safety
/// The range belongs to the caller: others may have locked other memory.
pub unsafe fn munlock(address: *mut u8, bytes: usize) -> SysResult<()> {
    // SAFETY: changes no byte.
    unsafe { call!(libc::SYS_munlock, address, bytes) }.map(drop)
}

/// Advises the kernel about a range.
///
/// # Safety
/// The range belongs to the caller and `advice` does not discard data that is still referenced.
pub unsafe fn madvise(address: *mut u8, bytes: usize, advice: i32) -> SysResult<()> {
    // SAFETY: the caller vouches for range and advice.
    unsafe { call!(libc::SYS_madvise, address, bytes, advice) }.map(drop)
}

/// Chooses the memory nodes, given as bits, for the pages of a mapping that do not exist yet
/// (`MPOL_*`). For a file in memory the choice holds for all its mappings.
///
/// # Safety
/// The range belongs to the caller.
pub unsafe fn mbind(address: *mut u8, bytes: usize, mode: i32, nodes: u64) -> SysResult<()> {
    // The kernel uses one bit less than this count.
    let count = u64::BITS + 1;
    // SAFETY: the caller vouches for the range; the mask is one word on this stack, and lives for
    // the call.
    unsafe { call!(libc::SYS_mbind, address, bytes, mode, &raw const nodes, count, 0) }.map(drop)
}

/// Reads at `offset` into memory that the kernel checks: a bad address is `EFAULT`.
///
/// # Safety
/// No Rust reference to the `length` bytes at `target` is alive.
pub unsafe fn pread_raw(
    descriptor: i32,
    target: *mut u8,
    length: usize,
    offset: u64,
) -> SysResult<usize> {
    // SAFETY: the caller vouches that the target is not referenced; the kernel checks access.
    unsafe { call!(libc::SYS_pread64, descriptor, target, length, offset) }
}

/// Writes at `offset` from memory that the kernel checks: a bad address is `EFAULT`.
///
/// # Safety
/// Reads memory only through the kernel. It is unsafe for symmetry of intent: `source` is not a
/// slice, and others may change it during the call.
pub unsafe fn pwrite_raw(
    descriptor: i32,
    source: *const u8,
    length: usize,
    offset: u64,
) -> SysResult<usize> {
    // SAFETY: the kernel checks that the source is readable and only reads it.
    unsafe { call!(libc::SYS_pwrite64, descriptor, source, length, offset) }
}

/// Reads from the descriptor's own offset.
pub fn read(descriptor: i32, target: &mut [u8]) -> SysResult<usize> {
    // SAFETY: the kernel writes at most `target.len()` bytes into the exclusive slice.
    unsafe { call!(libc::SYS_read, descriptor, target.as_mut_ptr(), target.len()) }
}

/// Writes at the descriptor's own offset.
pub fn write(descriptor: i32, source: &[u8]) -> SysResult<usize> {
    // SAFETY: the kernel reads at most `source.len()` bytes of the slice.
    unsafe { call!(libc::SYS_write, descriptor, source.as_ptr(), source.len()) }
}

/// Returns the descriptor's own offset.
pub fn position(descriptor: i32) -> SysResult<u64> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_lseek, descriptor, 0, libc::SEEK_CUR) }.map(|offset| offset as u64)
}

/// Returns the offset of the next data at or behind `offset` that is not in a hole; the bytes there
/// may be zeros. `None` if only a hole follows. Moves the descriptor's own offset.
pub fn next_data(descriptor: i32, offset: u64) -> SysResult<Option<u64>> {
    // SAFETY: no pointers are passed.
    match unsafe { call!(libc::SYS_lseek, descriptor, offset, libc::SEEK_DATA) } {
        Ok(found) => Ok(Some(found as u64)),
        Err(Errno(libc::ENXIO)) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the process that made the socket pair, or connected the socket, of which this is an end.
pub fn socket_peer(descriptor: i32) -> SysResult<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `length` bytes into `peer`, and the length; both live for
    // the call.
    unsafe {
        call!(libc::SYS_getsockopt, descriptor, level, option, &raw mut peer, &raw mut length)
    }?;
    match u32::try_from(peer.pid) {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err(Errno(libc::ESRCH)),
    }
}

/// Lowest free duplicate of `descriptor`, inherited over exec.
pub fn dup(descriptor: i32) -> SysResult<i32> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_dup, descriptor) }.map(|fd| fd as i32)
}

/// Makes `to` a duplicate of `from`; `flags` is `O_CLOEXEC` or 0. Replaces what `to` was.
pub fn dup3(from: i32, to: i32, flags: i32) -> SysResult<i32> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_dup3, from, to, flags) }.map(|fd| fd as i32)
}

/// `fcntl` with an integer argument (never a lock pointer).
pub fn fcntl(descriptor: i32, command: i32, argument: i64) -> SysResult<i32> {
    assert!(
        !matches!(command, libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW)
            && !matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW),
        "lock commands take a pointer"
    );
    // SAFETY: the commands that take a pointer were excluded above.
    unsafe { call!(libc::SYS_fcntl, descriptor, command, argument) }.map(|value| value as i32)
}

/// Sets the permission bits of an open file.
pub fn fchmod(descriptor: i32, mode: u32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_fchmod, descriptor, mode) }.map(drop)
}

/// Sets the permission bits of `path`.
pub fn fchmodat(directory: i32, path: &CStr, mode: u32) -> SysResult<()> {
    // SAFETY: `path` is NUL-terminated.
    unsafe { call!(libc::SYS_fchmodat, directory, path.as_ptr(), mode) }.map(drop)
}

/// Whether the caller may use `path` in the ways of `mask` (`W_OK` and the like).
pub fn faccessat(directory: i32, path: &CStr, mask: i32) -> SysResult<()> {
    // SAFETY: `path` is NUL-terminated.
    unsafe { call!(libc::SYS_faccessat, directory, path.as_ptr(), mask) }.map(drop)
}

/// Creates a directory.
pub fn mkdirat(directory: i32, path: &CStr, mode: u32) -> SysResult<()> {
    // SAFETY: `path` is NUL-terminated.
    unsafe { call!(libc::SYS_mkdirat, directory, path.as_ptr(), mode) }.map(drop)
}

/// Creates a file of the type in `mode` (no device nodes: the device number is 0).
pub fn mknodat(directory: i32, path: &CStr, mode: u32) -> SysResult<()> {
    // SAFETY: `path` is NUL-terminated.
    unsafe { call!(libc::SYS_mknodat, directory, path.as_ptr(), mode, 0) }.map(drop)
}

/// Removes a name; `flags` is `AT_REMOVEDIR` for directories, else 0.
pub fn unlinkat(directory: i32, path: &CStr, flags: i32) -> SysResult<()> {
    // SAFETY: `path` is NUL-terminated.
    unsafe { call!(libc::SYS_unlinkat, directory, path.as_ptr(), flags) }.map(drop)
}

/// Renames within or between directories; `flags` is `RENAME_NOREPLACE` or `RENAME_EXCHANGE` or 0.
pub fn renameat2(from: (i32, &CStr), to: (i32, &CStr), flags: u32) -> SysResult<()> {
    // SAFETY: both paths are NUL-terminated.
    unsafe { call!(libc::SYS_renameat2, from.0, from.1.as_ptr(), to.0, to.1.as_ptr(), flags) }
        .map(drop)
}

/// Makes a hard link.
pub fn linkat(from: (i32, &CStr), to: (i32, &CStr), flags: i32) -> SysResult<()> {
    // SAFETY: both paths are NUL-terminated.
    unsafe { call!(libc::SYS_linkat, from.0, from.1.as_ptr(), to.0, to.1.as_ptr(), flags) }
        .map(drop)
}

/// Makes a symbolic link at `path` that contains `target`.
pub fn symlinkat(target: &CStr, directory: i32, path: &CStr) -> SysResult<()> {
    // SAFETY: both strings are NUL-terminated.
    unsafe { call!(libc::SYS_symlinkat, target.as_ptr(), directory, path.as_ptr()) }.map(drop)
}

/// Reads the contents of a symbolic link, at most `target.len()` bytes. Returns their number.
pub fn readlinkat(directory: i32, path: &CStr, target: &mut [u8]) -> SysResult<usize> {
    // SAFETY: `path` is NUL-terminated and the kernel writes at most `target.len()` bytes.
    unsafe {
        call!(libc::SYS_readlinkat, directory, path.as_ptr(), target.as_mut_ptr(), target.len())
    }
}

/// Advisory lock on the open file; `operation` is `LOCK_EX | LOCK_NB` and the like.
pub fn flock(descriptor: i32, operation: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_flock, descriptor, operation) }.map(drop)
}

/// Locks the first byte of an open file for reading, as long as any process has that open file.
/// Errors: another open file has it locked for writing (`EAGAIN`).
pub fn lock_first_byte(descriptor: i32) -> SysResult<()> {
    first_byte(descriptor, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
}

/// Whether another open file has locked the first byte.
pub fn is_first_byte_locked(descriptor: i32) -> SysResult<bool> {
    let found = first_byte(descriptor, libc::F_OFD_GETLK, libc::F_WRLCK)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

fn first_byte(descriptor: i32, command: i32, kind: i32) -> SysResult<libc::flock> {
    // SAFETY: plain integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_len) = (kind as i16, libc::SEEK_SET as i16, 1);
    // SAFETY: the kernel reads and writes one `struct flock`, which lives for the call.
    unsafe { call!(libc::SYS_fcntl, descriptor, command, &raw mut lock) }?;
    Ok(lock)
}

// Requests of block devices (linux/fs.h), as on all architectures with the generic encoding.
const BLKROGET: u32 = 0x125e;
const BLKSSZGET: u32 = 0x1268;
const BLKDISCARD: u32 = 0x1277;
const BLKGETSIZE64: u32 = 0x8008_1272;

/// Returns the size of a block device in bytes.
pub fn block_device_bytes(descriptor: i32) -> SysResult<u64> {
    let mut bytes = 0_u64;
    // SAFETY: this request writes one u64.
    unsafe { call!(libc::SYS_ioctl, descriptor, BLKGETSIZE64, &raw mut bytes) }?;
    Ok(bytes)
}

/// Returns the unit in which a block device transfers, in bytes.
pub fn block_device_sector(descriptor: i32) -> SysResult<u64> {
    let mut bytes = 0_i32;
    // SAFETY: this request writes one int.
    unsafe { call!(libc::SYS_ioctl, descriptor, BLKSSZGET, &raw mut bytes) }?;
    u64::try_from(bytes).map_err(|_| Errno(libc::EIO))
}

/// Whether a block device is read-only.
pub fn is_block_device_read_only(descriptor: i32) -> SysResult<bool> {
    let mut flag = 0_i32;
    // SAFETY: this request writes one int.
    unsafe { call!(libc::SYS_ioctl, descriptor, BLKROGET, &raw mut flag) }?;
    Ok(flag != 0)
}

/// Tells a block device that the content of a range is not needed any more. It is undefined
/// afterwards.
pub fn block_device_discard(descriptor: i32, offset: u64, bytes: u64) -> SysResult<()> {
    let range = [offset, bytes];
    // SAFETY: this request reads two u64.
    unsafe { call!(libc::SYS_ioctl, descriptor, BLKDISCARD, range.as_ptr()) }.map(drop)
}

/// Reads the next batch of raw directory entries (`linux_dirent64`); returns 0 at the end.
pub fn getdents64(descriptor: i32, target: &mut [u8]) -> SysResult<usize> {
    // SAFETY: the kernel writes at most `target.len()` bytes.
    unsafe { call!(libc::SYS_getdents64, descriptor, target.as_mut_ptr(), target.len()) }
}

/// Sleeps while `*word == expected`, at most `timeout`. `ETIMEDOUT`, `EINTR`, `EAGAIN` are normal.
/// The futex is shared between processes.
///
/// # Safety
/// `word` points to four mapped, 4-aligned bytes.
pub unsafe fn futex_wait(
    word: *const AtomicU32,
    expected: u32,
    timeout: Duration,
) -> SysResult<()> {
    let limit = libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: the caller vouches for `word`; `limit` lives on this stack for the call.
    unsafe { call!(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, &raw const limit, 0, 0) }
        .map(drop)
}

/// Wakes at most `count` sleepers on a futex shared between processes.
///
/// # Safety
/// `word` points to four mapped, 4-aligned bytes.
pub unsafe fn futex_wake(word: *const AtomicU32, count: i32) -> SysResult<usize> {
    // SAFETY: the caller vouches for `word`; FUTEX_WAKE does not touch its contents.
    unsafe { call!(libc::SYS_futex, word, libc::FUTEX_WAKE, count, 0, 0, 0) }
}

/// The calling thread's registered robust list, as an address (0: none).
pub fn get_robust_list() -> SysResult<usize> {
    let mut head: usize = 0;
    let mut length: usize = 0;
    // SAFETY: the kernel writes one word to each of the two locals; pid 0 is the caller.
    unsafe { call!(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) }?;
    Ok(head)
}

/// Registers a robust list for the calling thread.
///
/// # Safety
/// `head` points to a valid `struct robust_list_head` that lives as long as the thread.
pub unsafe fn set_robust_list(head: *mut u8, length: usize) -> SysResult<()> {
    // SAFETY: the caller vouches for the list.
    unsafe { call!(libc::SYS_set_robust_list, head, length) }.map(drop)
}

/// Sends `signal` (0: only checks) to a process.
pub fn kill(pid: u32, signal: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_kill, pid, signal) }.map(drop)
}

/// Sends `signal` (0: only checks) to whichever thread has this id.
pub fn tkill(tid: u32, signal: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_tkill, tid, signal) }.map(drop)
}

/// Sends `signal` to one thread of a process.
pub fn tgkill(pid: u32, tid: u32, signal: i32) -> SysResult<()> {
    // SAFETY: no pointers are passed.
    unsafe { call!(libc::SYS_tgkill, pid, tid, signal) }.map(drop)
}

/// The calling process.
pub fn getpid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { enter(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The parent of the calling process.
pub fn getppid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { enter(libc::SYS_getppid, [0; 6]) as u32 }
}

/// The calling thread.
pub fn gettid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { enter(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Real group of the caller.
pub fn getgid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { enter(libc::SYS_getgid, [0; 6]) as u32 }
}

/// Effective user of the caller.
pub fn geteuid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { enter(libc::SYS_geteuid, [0; 6]) as u32 }
}

/// Supplementary groups of the caller.
pub fn getgroups() -> Vec<u32> {
    let mut groups = Vec::new();
    loop {
        let room = groups.len();
        // SAFETY: the kernel stores at most as many groups as there is room for. Without room it
        // returns their number.
        let count = unsafe {
            enter(libc::SYS_getgroups, [room as i64, groups.as_mut_ptr() as i64, 0, 0, 0, 0])
        };
        match usize::try_from(count) {
            Ok(count) if room > 0 || count == 0 => {
                groups.truncate(count);
                return groups;
            }
            // This is the number of groups; or there are more of them now, which is an error.
            Ok(count) => groups.resize(count, 0),
            Err(_) => groups.clear(),
        }
    }
}

/// Real user of the caller.
pub fn getuid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { enter(libc::SYS_getuid, [0; 6]) as u32 }
}

/// Effective group of the caller.
pub fn getegid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { enter(libc::SYS_getegid, [0; 6]) as u32 }
}

/// Lets another thread run.
pub fn sched_yield() {
    // SAFETY: takes no arguments and cannot fail on Linux.
    let _ = unsafe { call!(libc::SYS_sched_yield) };
}

/// Sleeps. A signal ends the sleep early (`EINTR`).
pub fn nanosleep(duration: Duration) -> SysResult<()> {
    let request = libc::timespec {
        tv_sec: duration.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    };
    // SAFETY: `request` lives for the call; no remainder is asked for.
    unsafe { call!(libc::SYS_nanosleep, &raw const request, 0) }.map(drop)
}

/// Returns a descriptor that becomes readable at every interval. A `read` of it waits. Whether a
/// signal handler interrupts that `read` depends on how the handler was installed (`SA_RESTART`);
/// calls with their own time limit do not have that property.
pub fn ticker(every: Duration) -> SysResult<i32> {
    let flags = libc::TFD_CLOEXEC;
    // SAFETY: no pointers are passed.
    let ticker = unsafe { call!(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, flags) }? as i32;
    let interval = libc::timespec {
        tv_sec: every.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: i64::from(every.subsec_nanos()),
    };
    let timing = libc::itimerspec { it_interval: interval, it_value: interval };
    // SAFETY: `timing` lives for the call; the old setting is not asked for.
    let set = unsafe { call!(libc::SYS_timerfd_settime, ticker, 0, &raw const timing, 0) };
    match set {
        Ok(_) => Ok(ticker),
        Err(errno) => {
            let _ = close(ticker);
            Err(errno)
        }
    }
}

/// Returns milliseconds of a clock that all processes of the machine share and that never goes
/// back. The number wraps around after 49 days.
pub fn monotonic_ms() -> u32 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one timespec; it is served by the vDSO and never hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1000).wrapping_add(time.tv_nsec as u64 / 1_000_000) as u32
}

/// Soft limit of a resource (`RLIMIT_*`); `u64::MAX` where it is unlimited.
pub fn soft_limit(resource: u32) -> SysResult<u64> {
    let mut limit = [0_u64; 2];
    // SAFETY: `struct rlimit64` is two u64; nothing is set because the new limit is null.
    unsafe { call!(libc::SYS_prlimit64, 0, resource, 0, limit.as_mut_ptr()) }?;
    Ok(limit[0])
}

/// Mounts a file system of `kind` at `target` with mount `data`.
pub fn mount(kind: &CStr, target: &CStr, flags: u64, data: &CStr) -> SysResult<()> {
    // SAFETY: all strings are NUL-terminated and outlive the call.
    unsafe {
        call!(libc::SYS_mount, kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr())
    }
    .map(drop)
}

/// Unmounts the file system at `target`.
pub fn umount2(target: &CStr, flags: i32) -> SysResult<()> {
    // SAFETY: `target` is NUL-terminated.
    unsafe { call!(libc::SYS_umount2, target.as_ptr(), flags) }.map(drop)
}

/// Returns sixteen random bytes, which nobody else has.
pub fn random() -> SysResult<[u8; 16]> {
    let mut bytes = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes; so few are never a partial result.
    unsafe { call!(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) }?;
    Ok(bytes)
}

/// Returns the time since the machine started, which is the same for all processes.
pub fn uptime() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Wall-clock time.
pub fn now() -> Timestamp {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one timespec; it is served by the vDSO and never hooked.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    Timestamp::from_parts(time.tv_sec, time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_file_gives_the_kernels_errno() {
        let result = openat(libc::AT_FDCWD, c"/nonexistent/file", libc::O_RDONLY, 0);
        assert_eq!(result, Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn bad_source_address_is_efault_not_a_crash() {
        let file = openat(libc::AT_FDCWD, c"/tmp", libc::O_TMPFILE | libc::O_RDWR, 0o600).unwrap();
        // SAFETY: the kernel refuses the address; nothing is dereferenced here.
        let result = unsafe { pwrite_raw(file, core::ptr::null(), 8, 0) };
        close(file).unwrap();
        assert_eq!(result, Err(Errno(libc::EFAULT)));
    }

    #[test]
    fn limits_of_this_process_are_readable() {
        assert!(soft_limit(libc::RLIMIT_NOFILE).unwrap() > 3);
    }
}
