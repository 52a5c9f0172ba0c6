//! The current directory, when it is one of ours, and the file mode creation mask: what `CLONE_FS` shares.
//!
//! The kernel's current directory is then a stand-in: an empty directory of the store that is removed at once, so
//! that an uncovered relative path fails with ENOENT. What identifies it, recorded in the process's slot, tells
//! children and executed programs where they are.
//! Invariants: the directory stays referenced by a handle of this process while it is current. Threads have their process's,
//! but for one that called `unshare(CLONE_FS)`, and those that it creates. The slot has one record: that of the thread which
//! forks or executes, which writes it before.

use core::cell::Cell;
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use cairn_core::{HandleId, InodeId, OpenOptions, SlotId};
use cairn_device::{namespace, sys};

use crate::error::{Errno, PathResult, Result};
use crate::mount::{self, Mount};
use crate::path::Place;
use crate::{configuration, kernel, names, placeholder};

/// It has not been looked at yet.
const UNKNOWN: u32 = 0;
/// It is not ours.
const FOREIGN: u32 = u32::MAX;
/// The mask has not been looked at yet.
const NOT_READ: u32 = u32::MAX;

/// Of a store: a link to the directory in which `cairn run` was started last.
pub const LAUNCH_LINK: &CStr = c"launched-from";

/// What some threads of a process share.
#[derive(Debug)]
pub struct Surroundings {
    /// Inode of the current directory, or one of the above.
    current: AtomicU32,
    /// Handle that keeps it in existence; 0 if none.
    handle: AtomicU32,
    umask: AtomicU32,
    /// The thread that has it to itself; 0 if several may have it.
    owner: AtomicU32,
    next: *mut Surroundings,
}

// SAFETY: what is not atomic is written before others can see it.
unsafe impl Sync for Surroundings {}

impl Surroundings {
    const fn new() -> Surroundings {
        Surroundings {
            current: AtomicU32::new(UNKNOWN),
            handle: AtomicU32::new(0),
            umask: AtomicU32::new(NOT_READ),
            owner: AtomicU32::new(0),
            next: ptr::null_mut(),
        }
    }
}

static PROCESS: Surroundings = Surroundings::new();
/// Whether a thread has had others than its process.
static SPLIT: AtomicBool = AtomicBool::new(false);
/// All others than the process's that were ever made; those whose thread has ended are used again.
static OTHERS: AtomicPtr<Surroundings> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Those of this thread, if they are not its process's.
    static OWN: Cell<Option<&'static Surroundings>> = const { Cell::new(None) };
}

#[inline]
fn here() -> &'static Surroundings {
    match SPLIT.load(Ordering::Relaxed) {
        false => &PROCESS,
        true => OWN.get().unwrap_or(&PROCESS),
    }
}

/// What a thread that this one creates is to begin with ([`begin_with`]); none if that is the process's.
pub fn of_new_thread() -> Option<&'static Surroundings> {
    if !SPLIT.load(Ordering::Relaxed) {
        return None;
    }
    OWN.get().inspect(|own| own.owner.store(0, Ordering::Relaxed))
}

/// To be called by a new thread.
pub fn begin_with(surroundings: Option<&'static Surroundings>) {
    if surroundings.is_some() {
        OWN.set(surroundings);
    }
}

/// After `unshare(CLONE_FS)`: from now on the calling thread has a current directory and a mask of its own. Errors: those of opening
/// the directory once more.
pub fn split() -> Result<()> {
    // The only thread has them to itself anyway.
    if kernel::is_single_threaded() {
        return Ok(());
    }
    let (directory, mask) = (inode(), umask());
    let own = unused();
    own.current.store(FOREIGN, Ordering::Relaxed);
    own.umask.store(mask, Ordering::Relaxed);
    OWN.set(Some(own));
    SPLIT.store(true, Ordering::Release);
    if let Some(directory) = directory {
        hold(mount::current()?, directory)?;
        own.current.store(directory.0, Ordering::Relaxed);
    }
    Ok(())
}

/// Surroundings for the calling thread, with a handle, if any, that nobody needs.
fn unused() -> &'static Surroundings {
    let (process, thread) = (sys::getpid(), sys::gettid());
    let mut next = OTHERS.load(Ordering::Acquire);
    // SAFETY: null, or one that was leaked below; what follows it does not change.
    while let Some(one) = unsafe { next.as_ref() } {
        let owner = one.owner.load(Ordering::Relaxed);
        let has_ended = owner != 0 && sys::tgkill(process, owner, 0).is_err();
        let take =
            || one.owner.compare_exchange(owner, thread, Ordering::AcqRel, Ordering::Relaxed);
        if has_ended && take().is_ok() {
            return one;
        }
        next = one.next;
    }
    let mut first = OTHERS.load(Ordering::Acquire);
    let new = Box::leak(Box::new(Surroundings::new()));
    new.owner = AtomicU32::new(thread);
    loop {
        new.next = first;
        match OTHERS.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return new,
            Err(now) => first = now,
        }
    }
}

/// In a forked child, whose only thread has another number than the one that it was made from.
pub(crate) fn forked() {
    if let Some(own) = SPLIT.load(Ordering::Relaxed).then(|| OWN.get()).flatten() {
        own.owner.store(sys::gettid(), Ordering::Relaxed);
    }
}

/// Writes down where this thread is for what it is about to fork or to execute.
pub(crate) fn record(mount: &Mount, slot: SlotId) {
    if SPLIT.load(Ordering::Relaxed) {
        let at = inode().filter(|_| here().handle.load(Ordering::Relaxed) != 0);
        let stand_in = || sys::fstatat(libc::AT_FDCWD, c".", 0).ok();
        let at = at.and_then(|inode| Some((inode, namespace::stand_in_id(&stand_in()?))));
        // Without it only the new program would not know.
        let _ = mount.fs().set_working_directory(slot, at);
    }
}

/// The file mode creation mask.
pub fn umask() -> u32 {
    match here().umask.load(Ordering::Relaxed) {
        NOT_READ => {
            let mask = kernel::umask();
            set_umask(mask);
            mask
        }
        mask => mask,
    }
}

/// Says that the application changed its file mode creation mask.
pub fn set_umask(mask: u32) {
    here().umask.store(mask & 0o777, Ordering::Relaxed);
}

/// Whether the current directory is known not to be ours.
#[inline]
pub fn is_foreign() -> bool {
    here().current.load(Ordering::Relaxed) == FOREIGN
}

/// The current directory, if it is ours.
pub fn inode() -> Option<InodeId> {
    match here().current.load(Ordering::Relaxed) {
        FOREIGN => None,
        UNKNOWN => learn(),
        inode => Some(InodeId(inode)),
    }
}

/// The kernel's current directory, if it is where that is for a directory of ours.
fn stand_in() -> Option<libc::stat> {
    let stat = sys::fstatat(libc::AT_FDCWD, c".", 0).ok()?;
    // It has no name any more.
    (Some(stat.st_dev) == placeholder::store_device() && stat.st_nlink <= 1).then_some(stat)
}

/// Whether the kernel is where it is for a directory of ours. Makes system calls and nothing else.
pub fn is_stand_in() -> bool {
    stand_in().is_some()
}

/// Takes the kernel from a stand-in to where the job was launched, so that it can write a core file. Makes system calls and nothing
/// else; where we are does not change.
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
    here().current.store(found.map_or(FOREIGN, |inode| inode.0), Ordering::Relaxed);
    found
}

fn find() -> Option<InodeId> {
    let stat = stand_in()?;
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
    let before = here().handle.swap(opened.handle.0, Ordering::Relaxed);
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
    forked();
    let handle = HandleId(here().handle.load(Ordering::Relaxed));
    if is_foreign() || handle.0 == 0 || mount.fs().retain(slot, handle).is_err() {
        return;
    }
    let Ok(stat) = sys::fstatat(libc::AT_FDCWD, c".", 0) else { return };
    let here = (InodeId(here().current.load(Ordering::Relaxed)), namespace::stand_in_id(&stat));
    // Without the record only a program that this process executes would not know.
    let _ = mount.fs().set_working_directory(slot, Some(here));
}

/// Whether `handle` is what keeps the current directory of this process, which has one thread yet.
pub(crate) fn holds(handle: HandleId) -> bool {
    here().handle.load(Ordering::Relaxed) == handle.0
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
    here().current.store(directory.0, Ordering::Relaxed);
    Ok(())
}

/// The kernel's current directory was changed to one that is not ours.
pub fn left() {
    let before = here().current.swap(FOREIGN, Ordering::Relaxed);
    if before == FOREIGN || before == UNKNOWN {
        return;
    }
    if let Some(mount) = mount::holder() {
        // The process has moved already; a stale record in its slot only keeps the directory longer.
        let _ = mount.fs().set_working_directory(mount.slot(), None);
        let _ = give_up(mount, here().handle.swap(0, Ordering::Relaxed));
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
