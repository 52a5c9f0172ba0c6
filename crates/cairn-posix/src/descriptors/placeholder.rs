//! Placeholder descriptors: kernel descriptors that stand for open files of ours.
//!
//! Each open-file description has a socket inode in the store, `handles/<namespace>.<number>`. A
//! descriptor of ours is an `O_PATH` descriptor of that inode. So numbers, dup, fork, exec and
//! descriptor passing behave as in the kernel, and a call that nobody intercepted fails with
//! `EBADF` instead of reaching the wrong object. The inode number tells which description an
//! unknown descriptor belongs to. Placeholder files stay when their description is closed.
//!
//! Invariant: a parked descriptor refers to the placeholder of the handle it is parked for.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use cairn_core::HandleId;
use cairn_device::directory;
use cairn_platform::sys;

use crate::descriptors::table::{self, Left};
use crate::descriptors::{fd_passing, locks, readers};
use crate::error::{Errno, Result};
use crate::kernel::configuration;
use crate::mount::{self, Mount};

/// Most placeholders kept open for reuse: the next open of the handle is then one `dup`.
const PARKED_MAX: usize = 64;
/// Most numbers that Cairn uses itself: parked ones, those of the store, and locks. Further locks
/// are not protected from the application.
const INTERNAL_MAX: usize = PARKED_MAX + 192;
/// Lowest number for parked descriptors, if the limit on open files allows.
const HIGH_NUMBER: u64 = 512;

/// Limit on open files below which nothing is parked: the application needs the numbers.
const LIMIT_MIN: u64 = 512;

/// Parked placeholders, packed by [`Parked::pack`]. A handle's place is its number modulo the
/// length. 0 means free, or taken by another thread at this moment.
static PARKED: [AtomicU64; PARKED_MAX] = [const { AtomicU64::new(0) }; PARKED_MAX];
/// Lowest number that Cairn itself uses in this process.
static INTERNAL_FLOOR: AtomicI32 = AtomicI32::new(i32::MAX);
/// `st_dev` of the store; 0 before it is known.
static STORE_DEVICE: AtomicU64 = AtomicU64::new(0);

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
            release_displaced(mount, displaced);
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
            INTERNAL_FLOOR.fetch_min(high, Ordering::Relaxed);
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
            is_placeholder(stat.st_mode, stat.st_dev) && stat.st_ino as u32 == parked.inode
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

/// Whether these are the attributes of a placeholder of our store.
#[inline]
pub fn is_placeholder(mode: u32, device: u64) -> bool {
    mode & libc::S_IFMT == libc::S_IFSOCK && store_device() == Some(device)
}

/// `st_dev` of the store's file system; none if this process has no mount.
pub fn store_device() -> Option<u64> {
    match STORE_DEVICE.load(Ordering::Relaxed) {
        0 => learn_store_device(),
        known => Some(known),
    }
}

#[cold]
fn learn_store_device() -> Option<u64> {
    let device = sys::fstatat(libc::AT_FDCWD, configuration::get()?.store_path(), 0).ok()?.st_dev;
    STORE_DEVICE.store(device, Ordering::Relaxed);
    Some(device)
}

/// Whether `descriptor` looks like a placeholder of ours. Makes system calls and nothing else.
pub fn may_be_ours(descriptor: i32) -> bool {
    sys::fstat(descriptor).is_ok_and(|stat| is_placeholder(stat.st_mode, stat.st_dev))
}

/// Whether `descriptor`, which is not in the table, is a placeholder or a token of ours that was
/// inherited, or received from another process. If so, enters it; the call that failed on it can be
/// tried again.
#[cold]
pub fn classify(descriptor: i32) -> bool {
    if configuration::get().is_none() || table::is_closing(descriptor) {
        return false;
    }
    let Ok(stat) = sys::fstat(descriptor) else { return false };
    if fd_passing::is_token(stat.st_mode, stat.st_dev) {
        let taken =
            mount::current().and_then(|mount| fd_passing::take(mount, descriptor, stat.st_ino));
        return taken.is_ok();
    }
    is_placeholder(stat.st_mode, stat.st_dev) && recognise(descriptor, stat.st_ino).is_ok()
}

fn recognise(descriptor: i32, placeholder: u64) -> Result<()> {
    let mount = mount::current()?;
    if table::is_ours(descriptor) {
        // Attaching has entered it.
        return Ok(());
    }
    let found = mount.fs().handle_by_placeholder(placeholder)?;
    let handle = found.ok_or(Errno(libc::EBADF))?;
    table::refer(handle, || Ok(mount.fs().retain(mount.slot(), handle)?))?;
    release_displaced(mount, table::put(descriptor, handle)?);
    // If another thread closed the number meanwhile, it may refer to something else by now.
    if sys::fstat(descriptor).map(|stat| stat.st_ino) != Ok(placeholder) {
        release_displaced(mount, table::forget(descriptor));
        return Err(Errno(libc::EBADF));
    }
    Ok(())
}

/// Calls `visit` for each descriptor of this process that is a placeholder of an open handle.
pub(crate) fn for_each_inherited(
    mount: &Mount,
    mut visit: impl FnMut(i32, HandleId) -> bool,
) -> Result<()> {
    let mut outcome = Ok(());
    for_each(|descriptor, placeholder| {
        match mount.fs().handle_by_placeholder(placeholder) {
            Ok(Some(handle)) => {
                visit(descriptor, handle);
            }
            Ok(None) => {}
            Err(failure) => outcome = Err(failure.into()),
        }
        outcome.is_ok()
    })?;
    outcome
}

/// Whether any descriptor of this process is a placeholder.
pub(crate) fn is_any_inherited() -> bool {
    let mut is_any = false;
    let listed = for_each(|_, _| {
        is_any = true;
        false
    });
    listed.is_ok() && is_any
}

/// Calls `visit` with each descriptor of this process that is a placeholder, and its inode number,
/// until it returns false.
fn for_each(mut visit: impl FnMut(i32, u64) -> bool) -> Result<()> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let listing = sys::openat(libc::AT_FDCWD, c"/proc/self/fd", flags, 0)?;
    let listed = directory::list(listing, &mut |name, _| {
        let number = name.to_str().ok().and_then(|digits| digits.parse().ok());
        let Some(descriptor) = number else { return true };
        let Ok(stat) = sys::fstat(descriptor) else { return true };
        !is_placeholder(stat.st_mode, stat.st_dev) || visit(descriptor, stat.st_ino)
    });
    let _ = sys::close(listing);
    Ok(listed?)
}

fn release_displaced(mount: &Mount, displaced: Option<Left>) {
    if let Some(Left { handle, last: true, .. }) = displaced {
        // The close of that number was not seen, so an error cannot be reported.
        let _ = mount.fs().release(mount.slot(), handle, mount::now());
    }
}

/// Lowers the bound below which no number of Cairn's own lies to `descriptor`.
pub(crate) fn note_internal(descriptor: i32) {
    INTERNAL_FLOOR.fetch_min(descriptor, Ordering::Relaxed);
}

/// Whether Cairn itself uses this number. The application must not close or replace it.
#[inline]
pub fn is_internal(descriptor: i32) -> bool {
    descriptor >= INTERNAL_FLOOR.load(Ordering::Relaxed) && is_internal_slow(descriptor)
}

#[cold]
fn is_internal_slow(descriptor: i32) -> bool {
    internal_numbers().any(|internal| internal == descriptor as u32)
}

/// Returns the numbers that Cairn itself uses, in ascending order.
pub(crate) fn internal_numbers() -> impl Iterator<Item = u32> {
    let mut numbers = [u32::MAX; INTERNAL_MAX];
    let parked = PARKED.iter().filter_map(|place| Parked::unpack(place.load(Ordering::Relaxed)));
    let mut count = 0;
    let mut note = |number: u32| {
        if number != u32::MAX && count < INTERNAL_MAX {
            numbers[count] = number;
            count += 1;
        }
    };
    parked.for_each(|parked| note(u32::from(parked.descriptor)));
    if let Some(mount) = mount::attached() {
        mount.internal_descriptors(&mut |descriptor| note(descriptor as u32));
    }
    locks::for_each_descriptor(&mut |descriptor| note(descriptor as u32));
    readers::for_each_descriptor(&mut |descriptor| note(descriptor as u32));
    numbers[..count].sort_unstable();
    numbers.into_iter().take(count)
}

/// Gives up a parked descriptor because the application wants its number. Returns false if Cairn
/// needs the number.
pub fn vacate(descriptor: i32) -> bool {
    for place in &PARKED {
        let word = place.load(Ordering::Relaxed);
        if Parked::unpack(word).is_some_and(|parked| parked.number() == descriptor)
            && place.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            return sys::close(descriptor).is_ok();
        }
    }
    !is_internal(descriptor)
}
