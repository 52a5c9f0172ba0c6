//! Lock files of a store: who has the store, and who shares it.
//!
//! Must stay true: a lock ends with the process that holds it, however that process ends. A lock on
//! a file whose store was removed excludes nobody.

use crate::model::error::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Takes the lock file `name` in `directory` for as long as the returned file is open. None if
/// another process holds it or others share it.
pub fn try_lock(directory: &Path, name: &str) -> Result<Option<File>> {
    let lock = try_lock_beside(directory, name)?;
    Ok(lock.filter(|lock| !is_shared(lock)))
}

/// Like `try_lock`, but succeeds also while others share the lock.
pub fn try_lock_beside(directory: &Path, name: &str) -> Result<Option<File>> {
    let path = directory.join(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .map_err(Error::file("open", &path))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(Error::file("lock", &path)(errno)),
        }
        let file = File::from(file);
        // A lock on a removed file must not keep others out of a new store of the same name.
        if file.metadata().map_err(Error::file("look at", &path))?.nlink() > 0 {
            return Ok(Some(file));
        }
    }
}

/// Marks a lock that the caller holds as held for a run, not by a tool that only looks.
pub fn mark_as_run(lock: &File) -> std::io::Result<()> {
    set_share(lock, libc::F_RDLCK)
}

/// Whether a run holds or shares the lock `name`.
pub fn has_run(directory: &Path, name: &str) -> Result<bool> {
    let path = directory.join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(file) => Ok(is_shared(&File::from(file))),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Error::file("open", &path)(errno)),
    }
}

/// Shares a lock that the caller holds: others may take and share it, too.
pub fn share(lock: &File) -> std::io::Result<()> {
    mark_as_run(lock)?;
    Ok(rustix::fs::flock(lock, rustix::fs::FlockOperation::Unlock)?)
}

/// Waits for the lock that the caller shares, takes it alone, and ends its own share.
pub fn take_back(lock: &File) -> std::io::Result<()> {
    rustix::io::retry_on_intr(|| {
        rustix::fs::flock(lock, rustix::fs::FlockOperation::LockExclusive)
    })?;
    set_share(lock, libc::F_UNLCK)
}

/// Whether another process shares the lock.
pub fn is_shared(lock: &File) -> bool {
    let mut conflict = whole_file(libc::F_WRLCK);
    // SAFETY: the request reads and fills one such structure, which lives for the call.
    let answer = unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_OFD_GETLK, &raw mut conflict) };
    answer == 0 && i32::from(conflict.l_type) != libc::F_UNLCK
}

/// Sharing is an OFD record lock on the same file. Like the `flock`, it belongs to the open file
/// description.
fn set_share(lock: &File, kind: i32) -> std::io::Result<()> {
    let range = whole_file(kind);
    // SAFETY: the request reads one such structure, which lives for the call.
    match unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn whole_file(kind: i32) -> libc::flock {
    // SAFETY: plain data, for which zero is a value: the whole file.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range
}

/// Whether some process holds or shares the lock file `name`. The check itself holds the lock for
/// an instant.
pub fn is_locked(directory: &Path, name: &str) -> Result<bool> {
    let path = directory.join(name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(file) => {
            let file = File::from(file);
            let operation = rustix::fs::FlockOperation::NonBlockingLockShared;
            let is_held = rustix::fs::flock(&file, operation) == Err(Errno::WOULDBLOCK);
            Ok(is_held || is_shared(&file))
        }
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Error::file("open", &path)(errno)),
    }
}
