//! State that `CLONE_FS` shares: the current directory, when it is one of ours, and the file mode
//! creation mask.
//!
//! Invariants:
//! - Threads share the state of their process, except a thread that called `unshare(CLONE_FS)` and
//!   the threads that it creates.
//! - A handle of this process references the directory while it is current.
//!
//! Does not change directories and does not look up which one is current; `files/cwd.rs` does.

use core::cell::Cell;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use cairn_core::{HandleId, InodeId, Microfs, SlotId};

use crate::kernel;
use crate::task::store_inodes;

/// The current directory has not been looked up yet.
const UNKNOWN: u32 = 0;
/// The current directory is not ours.
const FOREIGN: u32 = u32::MAX;
/// The mask has not been read yet.
const NOT_READ: u32 = u32::MAX;

/// A directory, and the identity of the stand-in that is the kernel's directory for it. One thread
/// may set it while others read it.
#[derive(Debug)]
pub(crate) struct StandIn {
    directory: AtomicU32,
    /// 0 for none.
    identity: AtomicU64,
}

impl StandIn {
    pub const fn none() -> StandIn {
        StandIn { directory: AtomicU32::new(UNKNOWN), identity: AtomicU64::new(0) }
    }

    pub fn set(&self, directory: InodeId, identity: u64) {
        self.identity.store(0, Ordering::Relaxed);
        self.directory.store(directory.0, Ordering::Release);
        self.identity.store(identity, Ordering::Release);
    }

    /// Returns the directory if this is the identity of its stand-in.
    pub fn directory_of(&self, identity: u64) -> Option<InodeId> {
        let is_it = || self.identity.load(Ordering::Acquire) == identity;
        let directory = is_it().then(|| InodeId(self.directory.load(Ordering::Acquire)))?;
        is_it().then_some(directory)
    }
}

/// Current directory and mask that some threads of a process share.
#[derive(Debug)]
pub(crate) struct FsContext {
    /// Current directory, or `UNKNOWN`, or `FOREIGN`.
    current: StandIn,
    /// Handle that keeps the directory in existence; 0 if none.
    handle: AtomicU32,
    umask: AtomicU32,
    /// Number of threads that use it. Not maintained for the process's own.
    users: AtomicU32,
    next: *mut FsContext,
}

// SAFETY: fields that are not atomic are written before other threads can see the value.
unsafe impl Sync for FsContext {}

static PROCESS: FsContext = FsContext::new();
/// Whether any thread has ever had a state of its own.
static SPLIT: AtomicBool = AtomicBool::new(false);
/// List of all states ever made other than the process's. Unused ones are used again.
static OTHERS: AtomicPtr<FsContext> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// State of this thread, if it is not its process's.
    static OWN: Cell<Option<&'static FsContext>> = const { Cell::new(None) };
}

/// Current directory, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Current {
    /// It has not been looked up yet.
    Unknown,
    /// It is not ours.
    Foreign,
    /// It is this one.
    Ours(InodeId),
}

impl FsContext {
    const fn new() -> FsContext {
        FsContext {
            current: StandIn::none(),
            handle: AtomicU32::new(0),
            umask: AtomicU32::new(NOT_READ),
            users: AtomicU32::new(0),
            next: ptr::null_mut(),
        }
    }

    #[inline]
    pub fn current(&self) -> Current {
        match self.inode() {
            UNKNOWN => Current::Unknown,
            FOREIGN => Current::Foreign,
            inode => Current::Ours(InodeId(inode)),
        }
    }

    /// Inode of the current directory, or `UNKNOWN`, or `FOREIGN`.
    #[inline]
    fn inode(&self) -> u32 {
        self.current.directory.load(Ordering::Relaxed)
    }

    /// Returns the current directory if this is the identity of its stand-in.
    pub fn directory_of(&self, stand_in: u64) -> Option<InodeId> {
        self.current.directory_of(stand_in)
    }

    /// Sets the current directory and the identity of its stand-in; `None` if it is not ours.
    pub fn set(&self, at: Option<(InodeId, u64)>) {
        let (directory, stand_in) = at.unwrap_or((InodeId(FOREIGN), 0));
        self.current.set(directory, stand_in);
    }

    /// Sets the handle that keeps the directory in existence, and returns the one before it.
    pub fn replace_handle(&self, handle: Option<HandleId>) -> Option<HandleId> {
        let before = self.handle.swap(handle.map_or(0, |handle| handle.0), Ordering::Relaxed);
        (before != 0).then_some(HandleId(before))
    }
}

/// Returns the state of this thread.
#[inline]
pub(crate) fn here() -> &'static FsContext {
    match is_split() {
        false => &PROCESS,
        true => OWN.get().unwrap_or(&PROCESS),
    }
}

/// Whether threads of this process may have different states.
#[inline]
pub(crate) fn is_split() -> bool {
    SPLIT.load(Ordering::Relaxed)
}

/// Whether no other thread can use the state of this one.
pub(crate) fn is_alone() -> bool {
    match is_split().then(|| OWN.get()).flatten() {
        Some(own) => own.users.load(Ordering::Acquire) == 1,
        None => kernel::has_threads() == Some(false),
    }
}

/// One use of a state; ends when dropped.
pub(crate) struct User(&'static FsContext);

impl Drop for User {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl User {
    /// Returns a state with one user, whose mask has not been read. It may carry a handle that
    /// nobody needs.
    pub fn of_unused() -> User {
        let user = unused();
        user.0.umask.store(NOT_READ, Ordering::Relaxed);
        user
    }

    pub fn state(&self) -> &'static FsContext {
        self.0
    }

    /// Gives this thread the state for itself, in place of its present one.
    pub fn split_off(self) {
        set_own(self);
        SPLIT.store(true, Ordering::Release);
    }
}

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

/// State for a thread that is being created.
pub struct Inherited(User);

/// Returns the state that a thread created by this one begins with ([`begin_with`]); none if that
/// is the process's.
pub fn of_new_thread() -> Option<Inherited> {
    let own = is_split().then(|| OWN.get()).flatten()?;
    own.users.fetch_add(1, Ordering::Relaxed);
    Some(Inherited(User(own)))
}

/// Sets the state of a new thread. The new thread calls this.
pub fn begin_with(inherited: Option<Inherited>) {
    if let Some(Inherited(user)) = inherited {
        set_own(user);
    }
}

/// Resets the use counts in a forked child, which has one thread.
pub(crate) fn forked() {
    if !is_split() {
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

/// Retains the current directories in a process with a new slot, a forked child whose creation was
/// not seen, and records this thread's.
pub(crate) fn retain(fs: &Microfs, slot: SlotId) {
    for own in all() {
        let handle = own.handle.load(Ordering::Relaxed);
        if handle != 0 && fs.retain(slot, HandleId(handle)).is_err() {
            own.handle.store(0, Ordering::Relaxed);
        }
    }
    let here = here();
    if !is_foreign() && here.handle.load(Ordering::Relaxed) != 0 {
        let inode = InodeId(here.inode());
        let at = store_inodes::stand_in().map(|stand_in| (inode, stand_in));
        // Without the record only a program that this process executes does not learn its
        // directory.
        let _ = fs.set_working_directory(slot, at);
    }
}

/// Whether `handle` keeps the current directory of this process, which still has one thread.
pub(crate) fn holds(handle: HandleId) -> bool {
    here().handle.load(Ordering::Relaxed) == handle.0
}

/// Whether the current directory is known not to be ours.
#[inline]
pub fn is_foreign() -> bool {
    here().inode() == FOREIGN
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
