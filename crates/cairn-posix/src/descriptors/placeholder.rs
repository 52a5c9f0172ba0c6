//! Placeholder descriptors: kernel descriptors that stand for open files of ours.
//!
//! Each open-file description has a socket inode in the store, `handles/<namespace>.<number>`. A
//! descriptor of ours is an `O_PATH` descriptor of that inode. So numbers, dup, fork, exec and
//! descriptor passing behave as in the kernel, and a call that nobody intercepted fails with
//! `EBADF` instead of reaching the wrong object. The inode number tells which description an
//! unknown descriptor belongs to. Placeholder files stay when their description is closed.
//!
//! Invariant: a parked descriptor refers to the placeholder of the handle it is parked for.

use core::sync::atomic::{AtomicU64, Ordering};

use cairn_core::HandleId;
use cairn_platform::sys;

use crate::descriptors::upkeep;
use crate::error::Result;
use crate::mount::Mount;
use crate::task::{internal_floor, store_inodes, table};

/// Most placeholders kept open for reuse: the next open of the handle is then one `dup`.
pub(super) const PARKED_MAX: usize = 64;
/// Lowest number for parked descriptors, if the limit on open files allows.
const HIGH_NUMBER: u64 = 512;

/// Limit on open files below which nothing is parked: the application needs the numbers.
const LIMIT_MIN: u64 = 512;

/// Parked placeholders, packed by [`Parked::pack`]. A handle's place is its number modulo the
/// length. 0 means free, or taken by another thread at this moment.
static PARKED: [AtomicU64; PARKED_MAX] = [const { AtomicU64::new(0) }; PARKED_MAX];
/// A placeholder kept open for reuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parked {
    handle: u16,
    descriptor: u16,
    /// Low half of its inode number. Shows in a forked child whether the descriptor is still the
    /// same.
    inode: u32,
}

impl Parked {
    fn pack(self) -> u64 {
        u64::from(self.inode) << 32 | u64::from(self.handle) << 16 | u64::from(self.descriptor)
    }

    fn unpack(word: u64) -> Option<Parked> {
        let parked = Parked {
            handle: (word >> 16) as u16,
            descriptor: word as u16,
            inode: (word >> 32) as u32,
        };
        (word != 0).then_some(parked)
    }

    fn number(self) -> i32 {
        i32::from(self.descriptor)
    }

    fn is_of(self, handle: HandleId) -> bool {
        u32::from(self.handle) == handle.number()
    }
}

/// Assigns `handle` the lowest free descriptor number and enters it. Errors: `EMFILE`, `ENFILE` and
/// those of creating the placeholder; the handle then stays open.
pub fn open(mount: &Mount, handle: HandleId, close_on_exec: bool) -> Result<i32> {
    let place = &PARKED[handle.number() as usize % PARKED_MAX];
    let parked = Parked::unpack(place.swap(0, Ordering::Acquire));
    let descriptor = if let Some(parked) = parked.filter(|parked| parked.is_of(handle)) {
        // Same result as F_DUPFD from 0 on, but faster.
        let duplicate = match close_on_exec {
            true => sys::fcntl(parked.number(), libc::F_DUPFD_CLOEXEC, 0),
            false => sys::dup(parked.number()),
        };
        put_back(place, parked);
        duplicate?
    } else {
        if let Some(other) = parked {
            let _ = sys::close(other.number());
        }
        let (descriptor, inode) = open_file(mount, handle, close_on_exec)?;
        park(place, handle, descriptor, inode);
        descriptor
    };
    match table::enter(descriptor, handle) {
        Ok(displaced) => {
            upkeep::release_displaced(mount, displaced);
            Ok(descriptor)
        }
        Err(errno) => {
            let _ = sys::close(descriptor);
            Err(errno)
        }
    }
}

fn put_back(place: &AtomicU64, parked: Parked) {
    if place.compare_exchange(0, parked.pack(), Ordering::Release, Ordering::Relaxed).is_err() {
        // Another thread parked one meanwhile.
        let _ = sys::close(parked.number());
    }
}

#[cold]
fn park(place: &AtomicU64, handle: HandleId, descriptor: i32, inode: u64) {
    let limit = sys::soft_limit(libc::RLIMIT_NOFILE).unwrap_or(0);
    if limit < LIMIT_MIN {
        return;
    }
    let lowest = HIGH_NUMBER.min(limit - limit / 4);
    // Without a free high number the next open of this handle only costs a little more.
    let Ok(high) = sys::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, lowest as i64) else { return };
    match (u16::try_from(handle.number()), u16::try_from(high)) {
        (Ok(handle), Ok(descriptor)) => {
            internal_floor::note(high);
            put_back(place, Parked { handle, descriptor, inode: inode as u32 });
        }
        _ => {
            let _ = sys::close(high);
        }
    }
}

/// Clears stale places in a child just forked. The child's descriptors are those that its parent
/// had a moment before its memory was copied, so one that another thread parked meanwhile is
/// missing, or is something else.
pub(crate) fn forked() {
    for place in &PARKED {
        let Some(parked) = Parked::unpack(place.load(Ordering::Relaxed)) else { continue };
        let is_there = sys::fstat(parked.number()).is_ok_and(|stat| {
            store_inodes::is_placeholder(stat.st_mode, stat.st_dev)
                && stat.st_ino as u32 == parked.inode
        });
        if !is_there {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// Opens the placeholder file of `handle` and records its inode in the handle. Returns its
/// descriptor and inode number.
#[cold]
fn open_file(mount: &Mount, handle: HandleId, close_on_exec: bool) -> Result<(i32, u64)> {
    let (descriptor, inode) = mount.placeholder(handle)?;
    let introduced = introduce(mount, handle, inode).and_then(|()| match close_on_exec {
        true => Ok(0),
        false => Ok(sys::fcntl(descriptor, libc::F_SETFD, 0)?),
    });
    match introduced {
        Ok(_) => Ok((descriptor, inode)),
        Err(errno) => {
            let _ = sys::close(descriptor);
            Err(errno)
        }
    }
}

/// Replaces `descriptor` by the placeholder of `handle` and keeps its close-on-exec flag.
pub(crate) fn replace(mount: &Mount, handle: HandleId, descriptor: i32) -> Result<()> {
    let flags = sys::fcntl(descriptor, libc::F_GETFD, 0)?;
    let close_on_exec = if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    let (placeholder, _) = open_file(mount, handle, true)?;
    let replaced = sys::dup3(placeholder, descriptor, close_on_exec);
    let _ = sys::close(placeholder);
    Ok(replaced.map(drop)?)
}

fn introduce(mount: &Mount, handle: HandleId, inode: u64) -> Result<()> {
    if mount.fs().handle(handle)?.placeholder != inode {
        mount.fs().set_placeholder(handle, inode)?;
    }
    Ok(())
}

/// Calls `visit` with the number of each parked placeholder.
pub(super) fn for_each_parked(visit: &mut dyn FnMut(i32)) {
    let parked = PARKED.iter().filter_map(|place| Parked::unpack(place.load(Ordering::Relaxed)));
    parked.for_each(|parked| visit(parked.number()));
}

/// Closes a parked placeholder because the application wants its number. Returns whether that was
/// done; `None` if the number is not of a parked one.
pub(super) fn unpark(descriptor: i32) -> Option<bool> {
    let place = PARKED.iter().find(|place| {
        let word = place.load(Ordering::Relaxed);
        Parked::unpack(word).is_some_and(|parked| parked.number() == descriptor)
            && place.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    place.map(|_| sys::close(descriptor).is_ok())
}
