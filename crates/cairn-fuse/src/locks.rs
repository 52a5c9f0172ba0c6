//! Byte-range locks of programs that reach the store through the kernel.
//!
//! The kernel keeps them, on the lock file that preloaded programs use for the same file, so that
//! both kinds of programs exclude each other. A lock owner of the kernel has one descriptor of the
//! lock file per file that it locked; its locks are those of that open-file description. It is
//! closed when the owner closes any descriptor of the file, which ends its locks, as POSIX asks.
//!
//! Must stay true: who waits for a lock can be interrupted and killed.
//!
//! Weaker than a local file system: locks of `flock(2)` exclude programs below the mount, but no
//! preloaded ones. Locks are lost when the server is killed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairn_core::{HandleId, InodeId};
use cairn_posix::Errno;
use cairn_posix::descriptors::locks;
use cairn_posix::mount::Mount;

/// A range of bytes to be locked.
#[derive(Clone, Copy)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX` for the end of any file.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
}

impl Range {
    fn as_flock(&self) -> libc::flock {
        // SAFETY: plain integers, for which zero is a valid value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = self.kind as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = self.start.min(i64::MAX as u64) as i64;
        lock.l_len = match self.end {
            end if end >= i64::MAX as u64 => 0,
            end => (end - self.start.min(end)) as i64 + 1,
        };
        lock
    }

    fn of_flock(lock: &libc::flock) -> Range {
        let start = lock.l_start as u64;
        let end = match lock.l_len {
            0 => i64::MAX as u64,
            length => start + length as u64 - 1,
        };
        Range { start, end, kind: i32::from(lock.l_type) }
    }
}

/// Owner of locks on a file, as the kernel tells processes and descriptions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The file.
    pub inode: InodeId,
    /// The description through which it locks.
    pub opened: HandleId,
    /// The kernel's number for it.
    pub number: u64,
}

/// Descriptors of lock files, by file and number of the owner, with the last description through
/// which it locked.
type Owners = HashMap<(InodeId, u64), (Arc<OwnedFd>, HandleId)>;

/// The locks of all programs below a mount.
#[derive(Default)]
pub struct Locks(Mutex<Owners>);

impl Locks {
    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn descriptor(&self, mount: &Mount, owner: Owner) -> Result<Arc<OwnedFd>, Errno> {
        let mut owners = self.owners();
        let key = (owner.inode, owner.number);
        if let Some((known, opened)) = owners.get_mut(&key) {
            *opened = owner.opened;
            return Ok(known.clone());
        }
        let file = Arc::new(locks::open(mount, owner.inode)?);
        owners.insert(key, (file.clone(), owner.opened));
        Ok(file)
    }

    /// Locks or unlocks a range. Errors: `EAGAIN` if another owner has it.
    pub fn set(&self, mount: &Mount, owner: Owner, range: Range) -> Result<(), Errno> {
        let descriptor = self.descriptor(mount, owner)?;
        command(&descriptor, libc::F_OFD_SETLK, &mut range.as_flock())
    }

    /// Returns the lock that keeps `owner` from locking `range`, or `range` as unlocked.
    pub fn get(&self, mount: &Mount, owner: Owner, range: Range) -> Result<Range, Errno> {
        let descriptor = self.descriptor(mount, owner)?;
        let mut lock = range.as_flock();
        command(&descriptor, libc::F_OFD_GETLK, &mut lock)?;
        Ok(Range::of_flock(&lock))
    }

    /// Ends the locks of a process on a file, one of whose descriptors it closes.
    pub fn end(&self, inode: InodeId, number: u64) {
        self.owners().remove(&(inode, number));
    }

    /// Ends the locks that belong to a description that is closed.
    pub fn end_of(&self, opened: HandleId) {
        self.owners().retain(|_, (_, last)| *last != opened);
    }
}

fn command(descriptor: &OwnedFd, command: i32, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and `lock` is one that the command reads and writes.
    match unsafe { libc::fcntl(descriptor.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        -1 => Err(Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_kernel() {
        let range = |start, end| Range { start, end, kind: libc::F_WRLCK };
        for (start, end, length) in
            [(0, i64::MAX as u64, 0), (10, 10, 1), (0, 4095, 4096), (7, u64::MAX, 0)]
        {
            let lock = range(start, end).as_flock();
            assert_eq!((lock.l_start, lock.l_len), (start as i64, length));
            let back = Range::of_flock(&lock);
            assert_eq!((back.start, back.end), (start, end.min(i64::MAX as u64)));
        }
    }
}
