//! The current directory, when it is one of ours.
//!
//! The kernel's current directory is then a stand-in: an empty directory of the store that is removed at once, so
//! that an uncovered relative path fails with ENOENT. What identifies it, recorded in the process's slot, tells
//! children and executed programs where they are.
//! Invariant: the directory stays referenced by a handle of this process while it is current.

use core::sync::atomic::{AtomicU32, Ordering};

use cairn_core::{HandleId, InodeId, OpenOptions, SlotId};
use cairn_device::{namespace, sys};

use crate::error::{Errno, PathResult, Result};
use crate::mount::{self, Mount};
use crate::path::Place;
use crate::{kernel, names, placeholder};

/// It has not been looked at yet.
const UNKNOWN: u32 = 0;
/// It is not ours.
const FOREIGN: u32 = u32::MAX;

/// Inode of the current directory, or one of the above.
static CURRENT: AtomicU32 = AtomicU32::new(UNKNOWN);
/// Handle that keeps it in existence; 0 if none.
static HANDLE: AtomicU32 = AtomicU32::new(0);

/// Whether the current directory is known not to be ours.
#[inline]
pub fn is_foreign() -> bool {
    CURRENT.load(Ordering::Relaxed) == FOREIGN
}

/// The current directory, if it is ours.
pub fn inode() -> Option<InodeId> {
    match CURRENT.load(Ordering::Relaxed) {
        FOREIGN => None,
        UNKNOWN => learn(),
        inode => Some(InodeId(inode)),
    }
}

#[cold]
fn learn() -> Option<InodeId> {
    let found = find();
    CURRENT.store(found.map_or(FOREIGN, |inode| inode.0), Ordering::Relaxed);
    found
}

fn find() -> Option<InodeId> {
    let stat = sys::fstatat(libc::AT_FDCWD, c".", 0).ok()?;
    // A stand-in has no name any more.
    if Some(stat.st_dev) != placeholder::store_device() || stat.st_nlink > 1 {
        return None;
    }
    let mount = mount::current().ok()?;
    let stand_in = namespace::stand_in_id(&stat);
    let inode = mount.fs().working_directory(mount.slot(), stand_in).ok()??;
    hold(mount, inode).ok()?;
    Some(inode)
}

/// Takes a handle on `directory`, and gives up the one on the previous current directory.
fn hold(mount: &Mount, directory: InodeId) -> Result<()> {
    let options = OpenOptions { path_only: true, directory: true, ..OpenOptions::default() };
    let caller = mount.caller();
    let opened = mount.fs().open_file(&caller, directory, b"", options, 0)?;
    let before = HANDLE.swap(opened.handle.0, Ordering::Relaxed);
    give_up(mount, before)
}

fn give_up(mount: &Mount, handle: u32) -> Result<()> {
    match handle {
        0 => Ok(()),
        handle => Ok(mount.fs().release(mount.slot(), HandleId(handle), mount::now())?),
    }
}

/// In a forked child whose creation was not seen: records the current directory it has, and holds on to it.
pub(crate) fn retain(mount: &Mount, slot: SlotId) {
    let handle = HandleId(HANDLE.load(Ordering::Relaxed));
    if is_foreign() || handle.0 == 0 || mount.fs().retain(slot, handle).is_err() {
        return;
    }
    let Ok(stat) = sys::fstatat(libc::AT_FDCWD, c".", 0) else { return };
    let here = (InodeId(CURRENT.load(Ordering::Relaxed)), namespace::stand_in_id(&stat));
    // Without the record only a program that this process executes would not know.
    let _ = mount.fs().set_working_directory(slot, Some(here));
}

/// Whether `handle` is what keeps the current directory.
pub(crate) fn holds(handle: HandleId) -> bool {
    HANDLE.load(Ordering::Relaxed) == handle.0
}

/// As `chdir(2)` into a directory of ours.
pub fn enter(place: &Place) -> PathResult<()> {
    let mount = mount::current()?;
    let caller = mount.caller();
    let found = mount.fs().stat(&caller, place.base, place.path, true);
    let found = mount.at(place, true, found)?;
    if !found.is_directory() {
        return Err(Errno(libc::ENOTDIR).into());
    }
    mount.fs().access(&caller, found.inode, b"", libc::X_OK as u32, true)?;
    Ok(become_current(mount, found.inode)?)
}

fn become_current(mount: &Mount, directory: InodeId) -> Result<()> {
    let (stand_in, number) = mount.stand_in()?;
    let entered = kernel::fchdir(stand_in);
    let _ = sys::close(stand_in);
    entered?;
    mount.fs().set_working_directory(mount.slot(), Some((directory, number)))?;
    hold(mount, directory)?;
    CURRENT.store(directory.0, Ordering::Relaxed);
    Ok(())
}

/// The kernel's current directory was changed to one that is not ours.
pub fn left() {
    let before = CURRENT.swap(FOREIGN, Ordering::Relaxed);
    if before == FOREIGN || before == UNKNOWN {
        return;
    }
    if let Some(mount) = mount::holder() {
        // The process has moved already; a stale record in its slot only keeps the directory longer.
        let _ = mount.fs().set_working_directory(mount.slot(), None);
        let _ = give_up(mount, HANDLE.swap(0, Ordering::Relaxed));
    }
}

/// Absolute path of the current directory, if it is ours. Errors: `ENOENT` if it was removed.
pub fn path() -> Option<Result<Vec<u8>>> {
    inode().map(names::absolute)
}

/// As `fchdir(2)` into a directory of ours.
pub fn enter_descriptor(descriptor: i32) -> Result<()> {
    let mount = mount::current()?;
    let directory = mount.directory_of(descriptor)?;
    mount.fs().access(&mount.caller(), directory, b"", libc::X_OK as u32, true)?;
    become_current(mount, directory)
}
