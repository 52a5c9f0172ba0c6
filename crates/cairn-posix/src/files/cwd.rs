//! Current directory, when it is one of ours, and file mode creation mask: the state that
//! `CLONE_FS` shares.
//!
//! When the current directory is ours, the kernel's is a stand-in: an empty directory of the store
//! that is removed at once, so that a relative path that no hook catches fails with `ENOENT`. The
//! process's slot records the identity of the stand-in, from which children and executed programs
//! learn where they are.
//!
//! Invariants:
//! - A handle of this process references the directory while it is current.
//! - Threads share the state of their process, except a thread that called `unshare(CLONE_FS)` and
//!   the threads that it creates.
//! - The slot has one record: that of the thread that forks or executes, which writes it before.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use cairn_core::{HandleId, InodeId, OpenOptions, SlotId};
use cairn_device::store::namespace;
use cairn_platform::sys;

use crate::descriptors::placeholder;
use crate::error::{Errno, PathResult, Result};
use crate::files::names;
use crate::files::path::Place;
use crate::kernel;
use crate::kernel::configuration;
use crate::mount::{self, Mount};

/// The current directory has not been looked up yet.
const UNKNOWN: u32 = 0;
/// The current directory is not ours.
const FOREIGN: u32 = u32::MAX;
/// The mask has not been read yet.
const NOT_READ: u32 = u32::MAX;

/// Name of a link in the store to the directory in which `cairn run` was last started.
pub const LAUNCH_LINK: &CStr = c"launched-from";

/// Current directory and mask that some threads of a process share.
#[derive(Debug)]
struct FsContext {
    /// Inode of the current directory, or `UNKNOWN`, or `FOREIGN`.
    current: AtomicU32,
    /// Identity of its stand-in.
    stand_in: AtomicU64,
    /// Handle that keeps the directory in existence; 0 if none.
    handle: AtomicU32,
    umask: AtomicU32,
    /// Number of threads that use it. Not maintained for the process's own.
    users: AtomicU32,
    next: *mut FsContext,
}

// SAFETY: fields that are not atomic are written before other threads can see the value.
unsafe impl Sync for FsContext {}

impl FsContext {
    const fn new() -> FsContext {
        FsContext {
            current: AtomicU32::new(UNKNOWN),
            stand_in: AtomicU64::new(0),
            handle: AtomicU32::new(0),
            umask: AtomicU32::new(NOT_READ),
            users: AtomicU32::new(0),
            next: ptr::null_mut(),
        }
    }
}

static PROCESS: FsContext = FsContext::new();
/// Whether any thread has ever had a state of its own.
static SPLIT: AtomicBool = AtomicBool::new(false);
/// List of all states ever made other than the process's. Unused ones are used again.
static OTHERS: AtomicPtr<FsContext> = AtomicPtr::new(ptr::null_mut());

/// Recent moves into directories of ours, by any thread: the identity of the stand-in, and the
/// directory.
static MOVES: [Move; MOVES_KEPT] = [const { Move::new() }; MOVES_KEPT];
static MOVES_MADE: AtomicUsize = AtomicUsize::new(0);
/// Number of moves kept. Other threads make fewer while one is being separated from them.
const MOVES_KEPT: usize = 64;

struct Move {
    stand_in: AtomicU64,
    directory: AtomicU32,
}

impl Move {
    const fn new() -> Move {
        Move { stand_in: AtomicU64::new(0), directory: AtomicU32::new(0) }
    }
}

/// Records a move. To be called before the kernel's current directory changes.
fn note_move(stand_in: u64, directory: InodeId) {
    let at = &MOVES[MOVES_MADE.fetch_add(1, Ordering::Relaxed) % MOVES_KEPT];
    at.stand_in.store(0, Ordering::Relaxed);
    at.directory.store(directory.0, Ordering::Release);
    at.stand_in.store(stand_in, Ordering::Release);
}

/// Returns the directory that a stand-in is for: that of a recent move, or else the directory in
/// which `before` has been for longer.
fn stood_in_for(stand_in: u64, before: &FsContext) -> Option<InodeId> {
    let of = |(number, directory): (&AtomicU64, &AtomicU32)| {
        let is_it = || number.load(Ordering::Acquire) == stand_in;
        let directory = is_it().then(|| InodeId(directory.load(Ordering::Acquire)))?;
        is_it().then_some(directory)
    };
    let moves = MOVES.iter().map(|made| (&made.stand_in, &made.directory));
    moves.chain([(&before.stand_in, &before.current)]).find_map(of)
}

/// One use of a state; ends when dropped.
struct User(&'static FsContext);

impl Drop for User {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

thread_local! {
    /// State of this thread, if it is not its process's.
    static OWN: Cell<Option<&'static FsContext>> = const { Cell::new(None) };
}

/// Gives this thread the state of `user` in place of its present one. The use ends with the thread.
fn set_own(user: User) {
    /// Key of thread-specific data that holds a thread's state; 0 before it is made.
    static KEY: AtomicU32 = AtomicU32::new(0);
    extern "C" fn ended(own: *mut c_void) {
        // SAFETY: `set_own` stored a state, and states are never freed.
        drop(User(unsafe { &*own.cast::<FsContext>() }));
    }
    let own = user.0;
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut new: libc::pthread_key_t = 0;
        // SAFETY: the destructor may run in any thread.
        if unsafe { libc::pthread_key_create(&raw mut new, Some(ended)) } == 0 {
            // A real key of 0 counts as none here; the uses of its threads then never end.
            key = match KEY.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => new,
                Err(known) => known,
            };
        }
    }
    if key != 0 {
        // SAFETY: the key was made.
        unsafe { libc::pthread_setspecific(key, ptr::from_ref(own).cast()) };
    }
    core::mem::forget(user);
    if let Some(before) = OWN.replace(Some(own)) {
        drop(User(before));
    }
}

#[inline]
fn here() -> &'static FsContext {
    match SPLIT.load(Ordering::Relaxed) {
        false => &PROCESS,
        true => OWN.get().unwrap_or(&PROCESS),
    }
}

/// State for a thread that is being created.
pub struct Inherited(User);

/// Returns the state that a thread created by this one begins with ([`begin_with`]); none if that
/// is the process's.
pub fn of_new_thread() -> Option<Inherited> {
    let own = SPLIT.load(Ordering::Relaxed).then(|| OWN.get()).flatten()?;
    own.users.fetch_add(1, Ordering::Relaxed);
    Some(Inherited(User(own)))
}

/// Sets the state of a new thread. The new thread calls this.
pub fn begin_with(inherited: Option<Inherited>) {
    if let Some(Inherited(user)) = inherited {
        set_own(user);
    }
}

/// An `unshare(CLONE_FS)` in progress, with the state that the calling thread will have for itself.
#[must_use]
pub struct Split(User);

impl Split {
    /// Prepares the split before the kernel's part. `None`: no other thread shares the state.
    pub fn begin() -> Option<Split> {
        let is_alone = match SPLIT.load(Ordering::Relaxed).then(|| OWN.get()).flatten() {
            Some(own) => own.users.load(Ordering::Acquire) == 1,
            None => kernel::has_threads() == Some(false),
        };
        if is_alone {
            return None;
        }
        // A program that was executed in a directory of ours learns that here at the latest.
        let _ = inode();
        Some(Split(unused()))
    }

    /// Completes the split after the kernel's part. Asks the kernel for the current directory,
    /// because other threads may have changed the shared one meanwhile.
    pub fn end(self) {
        let own = self.0.0;
        let stand_in = stand_in_number();
        let directory = stand_in.and_then(|stand_in| stood_in_for(stand_in, here()));
        own.umask.store(NOT_READ, Ordering::Relaxed);
        own.set(directory, stand_in);
        match directory.and_then(|inode| Some((inode, mount::current().ok()?))) {
            // A directory that has been removed by then fails when it is used.
            Some((inode, mount)) => drop(hold(own, mount, inode)),
            None => let_go(own),
        }
        set_own(self.0);
        SPLIT.store(true, Ordering::Release);
    }
}

impl FsContext {
    fn set(&self, directory: Option<InodeId>, stand_in: Option<u64>) {
        self.stand_in.store(0, Ordering::Relaxed);
        self.current.store(directory.map_or(FOREIGN, |inode| inode.0), Ordering::Release);
        self.stand_in.store(directory.and(stand_in).unwrap_or(0), Ordering::Release);
    }
}

/// Returns a state with one user. It may carry a handle that nobody needs.
fn unused() -> User {
    let take = |one: &&FsContext| {
        let first = || one.users.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        !ptr::eq(*one, &raw const PROCESS) && first().is_ok()
    };
    if let Some(one) = all().find(take) {
        return User(one);
    }
    let mut first = OTHERS.load(Ordering::Acquire);
    let new = Box::leak(Box::new(FsContext::new()));
    new.users = AtomicU32::new(1);
    loop {
        new.next = first;
        match OTHERS.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return User(new),
            Err(now) => first = now,
        }
    }
}

/// Resets the use counts in a forked child, which has one thread.
pub(crate) fn forked() {
    if !SPLIT.load(Ordering::Relaxed) {
        return;
    }
    let own = OWN.get();
    for one in all() {
        let is_own = own.is_some_and(|own| ptr::eq(own, one));
        one.users.store(is_own.into(), Ordering::Relaxed);
    }
}

/// Returns all states of this process, used or not.
fn all() -> impl Iterator<Item = &'static FsContext> {
    let mut next = OTHERS.load(Ordering::Acquire);
    let others = core::iter::from_fn(move || {
        // SAFETY: null, or a state that was leaked; its `next` does not change.
        let one = unsafe { next.as_ref() }?;
        next = one.next;
        Some(one)
    });
    core::iter::once(&PROCESS).chain(others)
}

/// Records this thread's current directory for the process or program that it is about to fork or
/// execute.
pub(crate) fn record(mount: &Mount, slot: SlotId) {
    if SPLIT.load(Ordering::Relaxed) {
        let at = inode().and_then(|inode| Some((inode, stand_in_number()?)));
        // Without the record only the new program does not learn its directory.
        let _ = mount.fs().set_working_directory(slot, at);
    }
}

/// Returns the file mode creation mask.
pub fn umask() -> u32 {
    match here().umask.load(Ordering::Relaxed) {
        NOT_READ => {
            let (mask, known) = (kernel::umask(), &here().umask);
            // Another thread may have changed it meanwhile.
            match known.compare_exchange(NOT_READ, mask, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => mask,
                Err(newer) => newer,
            }
        }
        mask => mask,
    }
}

/// Records that the application changed its file mode creation mask.
pub fn set_umask(mask: u32) {
    here().umask.store(mask & 0o777, Ordering::Relaxed);
}

/// Whether the current directory is known not to be ours.
#[inline]
pub fn is_foreign() -> bool {
    here().current.load(Ordering::Relaxed) == FOREIGN
}

/// Returns the current directory, if it is ours.
pub fn inode() -> Option<InodeId> {
    match here().current.load(Ordering::Relaxed) {
        FOREIGN => None,
        UNKNOWN => learn(),
        inode => Some(InodeId(inode)),
    }
}

/// Returns the status of the kernel's current directory, if that is a stand-in.
fn stand_in() -> Option<libc::stat> {
    let stat = sys::fstatat(libc::AT_FDCWD, c".", 0).ok()?;
    // A stand-in has no name any more.
    (Some(stat.st_dev) == placeholder::store_device() && stat.st_nlink <= 1).then_some(stat)
}

/// Returns the identity of the stand-in, if the kernel's current directory is one.
fn stand_in_number() -> Option<u64> {
    stand_in().map(|stat| namespace::stand_in_id(&stat))
}

/// Whether the kernel's current directory is a stand-in. Makes system calls and nothing else.
pub fn is_stand_in() -> bool {
    stand_in().is_some()
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
    let (found, stand_in) = find().unzip();
    here().set(found, stand_in);
    found
}

fn find() -> Option<(InodeId, u64)> {
    let stand_in = stand_in_number()?;
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
    let before = own.handle.swap(opened.handle.0, Ordering::Relaxed);
    give_up(mount, before)
}

fn let_go(own: &FsContext) {
    if let Some(mount) = mount::holder() {
        let _ = give_up(mount, own.handle.swap(0, Ordering::Relaxed));
    }
}

fn give_up(mount: &Mount, handle: u32) -> Result<()> {
    match handle {
        0 => Ok(()),
        handle => Ok(mount.fs().release(mount.slot(), HandleId(handle), mount::now())?),
    }
}

/// Retains the current directories in a process with a new slot, a forked child whose creation was
/// not seen, and records this thread's.
pub(crate) fn retain(mount: &Mount, slot: SlotId) {
    for own in all() {
        let handle = own.handle.load(Ordering::Relaxed);
        if handle != 0 && mount.fs().retain(slot, HandleId(handle)).is_err() {
            own.handle.store(0, Ordering::Relaxed);
        }
    }
    let current = here();
    if !is_foreign() && current.handle.load(Ordering::Relaxed) != 0 {
        let inode = InodeId(current.current.load(Ordering::Relaxed));
        let at = stand_in_number().map(|stand_in| (inode, stand_in));
        // Without the record only a program that this process executes does not learn its
        // directory.
        let _ = mount.fs().set_working_directory(slot, at);
    }
}

/// Whether `handle` keeps the current directory of this process, which still has one thread.
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
    note_move(number, directory);
    let entered = kernel::fchdir(stand_in);
    let _ = sys::close(stand_in);
    entered?;
    note(mount, Some((directory, number)))?;
    hold(here(), mount, directory)?;
    here().set(Some(directory), Some(number));
    Ok(())
}

/// Records the current directory in the slot, unless each thread does so before it forks or
/// executes.
fn note(mount: &Mount, at: Option<(InodeId, u64)>) -> Result<()> {
    match SPLIT.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Ok(mount.fs().set_working_directory(mount.slot(), at)?),
    }
}

/// Handles a change of the kernel's current directory to one that is not ours.
pub fn left() {
    let before = here().current.load(Ordering::Relaxed);
    here().set(None, None);
    if before == FOREIGN || before == UNKNOWN {
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
