//! Stacks for Cairn's code, which needs more stack than a system call does. Callers may have
//! little.
//!
//! Must stay true:
//! - A caller that has, or may have, too little stack is served on a stack of ours. Such callers
//!   are small threads, user-level threads, coroutines, and handlers on alternate signal stacks.
//! - Nothing unwinds from a stack of ours.
//! - Each stack of ours has one user at a time. Its user may wait, or run a callback of the
//!   application, which may switch to other contexts. A call from another context meanwhile gets
//!   another stack.
//! - A context whose stack lies within its thread's stack is taken for the thread.
//! - A stack that its user left by a jump is used again by a call from the same place. Otherwise it
//!   is lost until the thread ends.

use core::cell::Cell;
use core::ffi::{c_long, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::kernel;

/// Stack that a call needs, in bytes. The first call of a process needs the most: it opens the
/// store.
const NEEDED: usize = 192 << 10;
const STACK_BYTES: usize = 512 << 10;
/// Size of the guard below each stack. It is inaccessible, because the memory below belongs to
/// others.
const GUARD_BYTES: usize = 4096;
/// Most bytes of a thread's stack that hold other things: thread-local variables and a guard.
const KEPT_BYTES: usize = 256 << 10;
/// Assumed stack size of the main thread if its limit is unlimited.
const UNLIMITED: usize = 8 << 20;

/// Addresses at which the main thread has enough stack: from here up to `HIGHEST`. Until [`begin`]
/// the range covers every address of every thread.
static LOWEST: AtomicUsize = AtomicUsize::new(0);
static HIGHEST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Stacks of threads that have ended, for reuse.
static SPARE: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
/// Key of thread-specific data whose destructor gives back the stacks of a thread that ends.
static AT_END: AtomicU32 = AtomicU32::new(0);

/// Stack state of a thread.
struct Here {
    /// Start of the addresses at which the thread has enough room on its own stack.
    low: Cell<usize>,
    high: Cell<usize>,
    /// List of the thread's stacks of ours; null if it has none.
    ours: Cell<*mut Stack>,
}

/// Header at the low end of a stack, directly above its guard.
struct Stack {
    /// Next stack of the same thread.
    next: *mut Stack,
    /// Stack address that the current user came from; 0 if the stack is free.
    from: usize,
}

thread_local! {
    /// Has no destructor; that of the `AT_END` key does the work.
    static HERE: Here =
        const { Here { low: Cell::new(0), high: Cell::new(0), ours: Cell::new(ptr::null_mut()) } };
}

unsafe extern "C" {
    /// End of the main thread's stack, set by the dynamic linker.
    static __libc_stack_end: *const c_void;
}

/// Starts the use of separate stacks. The main thread calls this once. Without it every call runs
/// on its caller's stack.
pub fn begin() {
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: the destructor may run in any thread.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } != 0 {
        return;
    }
    AT_END.store(key, Ordering::Relaxed);
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: fills the structure if it succeeds.
    let limit = match unsafe { libc::getrlimit(libc::RLIMIT_STACK, limit.as_mut_ptr()) } {
        // SAFETY: `getrlimit` succeeded and filled it.
        0 => unsafe { limit.assume_init() }.rlim_cur,
        _ => 0,
    };
    let bytes = usize::try_from(limit).map_or(UNLIMITED, |bytes| bytes.min(UNLIMITED));
    // SAFETY: the dynamic linker sets it before any of our code runs.
    let end = unsafe { __libc_stack_end }.addr();
    LOWEST.store(end - bytes.min(end) + NEEDED, Ordering::Relaxed);
    HIGHEST.store(end, Ordering::Relaxed);
}

/// Whether threads have to call [`thread_begins`].
pub fn asks_for_threads() -> bool {
    HIGHEST.load(Ordering::Relaxed) != usize::MAX
}

/// Records the room on a new thread's stack of `stack_bytes` bytes. The new thread calls this.
pub fn thread_begins(stack_bytes: usize) {
    let marker = 0_u8;
    let top = (&raw const marker).addr();
    if stack_bytes > KEPT_BYTES + NEEDED {
        HERE.with(|here| {
            here.low.set(top.saturating_sub(stack_bytes) + KEPT_BYTES + NEEDED);
            here.high.set(top);
        });
    }
}

/// Runs `act`, which must not unwind, on a stack with enough room.
#[inline(always)]
pub fn with_room<R>(act: impl FnOnce() -> R) -> R {
    let marker = 0_u8;
    let top = (&raw const marker).addr();
    let main = LOWEST.load(Ordering::Relaxed)..HIGHEST.load(Ordering::Relaxed);
    let Some(stack) = (if main.contains(&top) { None } else { other_stack(top) }) else {
        return act();
    };
    let base = stack.wrapping_add(1).cast::<u8>();
    // SAFETY: the stack is ours, has no other user, and stays mapped while it has one. `act` does
    // not unwind.
    unsafe {
        let result = psm::on_stack(base, STACK_BYTES - size_of::<Stack>(), act);
        (*stack).from = 0;
        result
    }
}

/// Returns a stack for a caller whose stack pointer is `top` and makes the caller its user. Returns
/// none if the caller can stay where it is.
#[inline(never)]
fn other_stack(top: usize) -> Option<*mut Stack> {
    HERE.with(|here| {
        if (here.low.get()..here.high.get()).contains(&top) {
            return None;
        }
        let (mut next, mut free) = (here.ours.get(), None);
        while !next.is_null() {
            // The caller is already on a stack of ours.
            if (next.addr()..next.addr() + STACK_BYTES).contains(&top) {
                return None;
            }
            // SAFETY: stacks stay mapped while their thread lives, and only that thread reads them.
            let Stack { next: following, from } = unsafe { next.read() };
            // The user that came from this same address has left the stack by a jump.
            if from == 0 || from == top {
                free = Some(next);
            }
            next = following;
        }
        let stack = match free {
            Some(stack) => stack,
            None => take(here)?,
        };
        // SAFETY: as above.
        unsafe { (*stack).from = top };
        Some(stack)
    })
}

/// Adds a stack to this thread; none if there is no memory.
#[cold]
fn take(here: &Here) -> Option<*mut Stack> {
    let spare = SPARE.iter().map(|place| place.swap(0, Ordering::Acquire));
    let start = match spare.into_iter().find(|&start| start != 0) {
        Some(start) => start,
        None => map()?,
    };
    let stack = ptr::with_exposed_provenance_mut::<Stack>(start);
    // SAFETY: nobody uses this memory. A signal handler that interrupts here finds the list as it
    // was or as it will be.
    unsafe { stack.write(Stack { next: here.ours.get(), from: usize::MAX }) };
    here.ours.set(stack);
    // SAFETY: the key exists. If this call fails, the stacks stay allocated when the thread ends.
    unsafe { libc::pthread_setspecific(AT_END.load(Ordering::Relaxed), stack.cast()) };
    Some(stack)
}

fn map() -> Option<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let bytes = (GUARD_BYTES + STACK_BYTES) as c_long;
    let arguments = [0, bytes, protection.into(), flags.into(), -1, 0];
    // SAFETY: asks for new memory.
    let start = unsafe { kernel::call(libc::SYS_mmap, arguments) }.ok()?;
    let guard = [start as c_long, GUARD_BYTES as c_long, libc::PROT_NONE.into()];
    // SAFETY: the guard is part of the new mapping. If this fails, the stack works without a guard.
    let _ = unsafe { kernel::call(libc::SYS_mprotect, guard) };
    Some(start + GUARD_BYTES)
}

/// Gives back the stacks of a thread, however it ends. Keeps those still in use: a context that has
/// moved to another thread may be on them.
extern "C" fn give_back(_: *mut c_void) {
    let mut next = HERE.with(|here| here.ours.replace(ptr::null_mut()));
    while !next.is_null() {
        // SAFETY: the stacks of this thread have no other owner.
        let Stack { next: following, from } = unsafe { next.read() };
        if from == 0 {
            let start = next.expose_provenance();
            let keep = |place: &AtomicUsize| {
                place.compare_exchange(0, start, Ordering::Release, Ordering::Relaxed).is_ok()
            };
            if !SPARE.iter().any(keep) {
                let all = [(start - GUARD_BYTES) as c_long, (GUARD_BYTES + STACK_BYTES) as c_long];
                // SAFETY: the mapping is ours, and nobody is on it.
                let _ = unsafe { kernel::call(libc::SYS_munmap, all) };
            }
        }
        next = following;
    }
}
