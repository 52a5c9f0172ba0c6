//! The current directory, when it is one of ours: which one it is, and changing it.
//!
//! When the current directory is ours, the kernel's is a stand-in: an empty directory of the store
//! that is removed at once, so that a relative path that no hook catches fails with `ENOENT`. The
//! process's slot records the identity of the stand-in, from which children and executed programs
//! learn where they are.
//!
//! Invariant: the slot has one record: that of the thread that forks or executes, which writes it
//! before.
//!
//! Does not keep the current directory of each thread; `task/fs_context.rs` does.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use cairn_core::{HandleId, InodeId, OpenOptions, SlotId};
use cairn_platform::sys;

use crate::error::{Errno, PathResult, Result};
use crate::files::names;
use crate::files::place::Place;
use crate::kernel;
use crate::kernel::configuration;
use crate::mount::{self, Mount};
use crate::task::fs_context::{self, Current, FsContext, StandIn, User, here};
use crate::task::store_inodes;

/// Name of a link in the store to the directory in which `cairn run` was last started.
pub const LAUNCH_LINK: &CStr = c"launched-from";

/// Recent moves into directories of ours, by any thread.
static MOVES: [StandIn; MOVES_KEPT] = [const { StandIn::none() }; MOVES_KEPT];
static MOVES_MADE: AtomicUsize = AtomicUsize::new(0);
/// Number of moves kept. Other threads make fewer while one is being separated from them.
const MOVES_KEPT: usize = 64;

/// Records a move. To be called before the kernel's current directory changes.
fn note_move(stand_in: u64, directory: InodeId) {
    let at = &MOVES[MOVES_MADE.fetch_add(1, Ordering::Relaxed) % MOVES_KEPT];
    at.set(directory, stand_in);
}

/// Returns the directory that a stand-in is for: that of a recent move, or else the directory in
/// which `before` has been for longer.
fn stood_in_for(stand_in: u64, before: &FsContext) -> Option<InodeId> {
    let moved = MOVES.iter().find_map(|made| made.directory_of(stand_in));
    moved.or_else(|| before.directory_of(stand_in))
}

/// An `unshare(CLONE_FS)` in progress, with the state that the calling thread will have for itself.
#[must_use]
pub struct Split(User);

impl Split {
    /// Prepares the split before the kernel's part. `None`: no other thread shares the state.
    pub fn begin() -> Option<Split> {
        if fs_context::is_alone() {
            return None;
        }
        // A program that was executed in a directory of ours learns that here at the latest.
        let _ = inode();
        Some(Split(User::of_unused()))
    }

    /// Completes the split after the kernel's part. Asks the kernel for the current directory,
    /// because other threads may have changed the shared one meanwhile.
    pub fn end(self) {
        let own = self.0.state();
        let at = store_inodes::stand_in()
            .and_then(|stand_in| Some((stood_in_for(stand_in, here())?, stand_in)));
        own.set(at);
        match at.and_then(|(inode, _)| Some((inode, mount::current().ok()?))) {
            // A directory that has been removed by then fails when it is used.
            Some((inode, mount)) => drop(hold(own, mount, inode)),
            None => let_go(own),
        }
        self.0.split_off();
    }
}

/// Records this thread's current directory for the process or program that it is about to fork or
/// execute.
pub(crate) fn record(mount: &Mount, slot: SlotId) {
    if fs_context::is_split() {
        let at = inode().and_then(|inode| Some((inode, store_inodes::stand_in()?)));
        // Without the record only the new program does not learn its directory.
        let _ = mount.fs().set_working_directory(slot, at);
    }
}

/// Returns the current directory, if it is ours.
pub fn inode() -> Option<InodeId> {
    match here().current() {
        Current::Foreign => None,
        Current::Unknown => learn(),
        Current::Ours(inode) => Some(inode),
    }
}

/// Whether the kernel's current directory is a stand-in. Makes system calls and nothing else.
pub fn is_stand_in() -> bool {
    store_inodes::stand_in().is_some()
}

/// Moves the kernel's current directory from a stand-in to where the job was launched, so that the
/// kernel can write a core file. Makes system calls and nothing else; our current directory does
/// not change.
pub fn move_to_launch_directory() {
    let Some(configuration) = configuration::get().filter(|_| is_stand_in()) else { return };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let at = |base, path| sys::openat(base, path, flags, 0);
    let Ok(store) = at(libc::AT_FDCWD, configuration.store_path()) else { return };
    if let Ok(directory) = at(store, LAUNCH_LINK) {
        let _ = kernel::fchdir(directory);
        let _ = sys::close(directory);
    }
    let _ = sys::close(store);
}

#[cold]
fn learn() -> Option<InodeId> {
    let found = find();
    here().set(found);
    found.map(|(inode, _)| inode)
}

fn find() -> Option<(InodeId, u64)> {
    let stand_in = store_inodes::stand_in()?;
    let mount = mount::current().ok()?;
    let inode = mount.fs().working_directory(mount.slot(), stand_in).ok()??;
    hold(here(), mount, inode).ok()?;
    Some((inode, stand_in))
}

/// Opens a handle on `directory` for `own`, and releases the one on the previous directory.
fn hold(own: &FsContext, mount: &Mount, directory: InodeId) -> Result<()> {
    let options = OpenOptions { path_only: true, directory: true, ..OpenOptions::default() };
    let caller = mount.caller();
    let opened = mount.fs().open_file(&caller, directory, b"", options, 0)?;
    give_up(mount, own.replace_handle(Some(opened.handle)))
}

fn let_go(own: &FsContext) {
    if let Some(mount) = mount::holder() {
        let _ = give_up(mount, own.replace_handle(None));
    }
}

fn give_up(mount: &Mount, handle: Option<HandleId>) -> Result<()> {
    match handle {
        None => Ok(()),
        Some(handle) => Ok(mount.fs().release(mount.slot(), handle, mount::now())?),
    }
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
    note_move(number, directory);
    let entered = kernel::fchdir(stand_in);
    let _ = sys::close(stand_in);
    entered?;
    note(mount, Some((directory, number)))?;
    hold(here(), mount, directory)?;
    here().set(Some((directory, number)));
    Ok(())
}

/// Records the current directory in the slot, unless each thread does so before it forks or
/// executes.
fn note(mount: &Mount, at: Option<(InodeId, u64)>) -> Result<()> {
    match fs_context::is_split() {
        true => Ok(()),
        false => Ok(mount.fs().set_working_directory(mount.slot(), at)?),
    }
}

/// Handles a change of the kernel's current directory to one that is not ours.
pub fn left() {
    let before = here().current();
    here().set(None);
    if !matches!(before, Current::Ours(_)) {
        return;
    }
    if let Some(mount) = mount::holder() {
        // The process has moved already; a stale record in its slot only keeps the directory
        // longer.
        let _ = note(mount, None);
        let_go(here());
    }
}

/// Returns the absolute path of the current directory, if it is ours. Errors: `ENOENT` if it was
/// removed.
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
