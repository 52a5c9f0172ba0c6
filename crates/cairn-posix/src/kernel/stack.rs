//! Room for our code, which needs more stack than the kernel's: callers may have little.
//!
//! Must stay true: who has little, or may have, is served on a stack of ours: small threads,
//! user-level threads, coroutines, and handlers on alternate stacks. Nothing unwinds from there. Of
//! a thread's stacks each has one user at a time: whoever comes while that waits, or is in a
//! callback of the application's, which may switch to other contexts, gets another one. A context
//! whose stack lies in that of its thread is taken for the thread. A stack that was left by a jump
//! is used again by a call from the same place, and else lost until the thread ends.

use core::cell::Cell;
use core::ffi::{c_long, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::kernel;

/// The first call of a process opens the store, which takes the most.
const NEEDED: usize = 192 << 10;
const STACK_BYTES: usize = 512 << 10;
/// Nobody may touch it: what is below belongs to others.
const GUARD_BYTES: usize = 4096;
/// What threads have of their stacks for other things, at most: thread-local variables and a guard.
const KEPT_BYTES: usize = 256 << 10;
/// Of the program's own thread, where its limit says nothing.
const UNLIMITED: usize = 8 << 20;

/// Where the program's own thread has room, until [`begin`] anybody.
static LOWEST: AtomicUsize = AtomicUsize::new(0);
static HIGHEST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Stacks of threads that have ended, for the next ones.
static SPARE: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
/// What has the stack of a thread that ends given back.
static AT_END: AtomicU32 = AtomicU32::new(0);

/// What is known of a thread.
struct Here {
    /// Where it has room on its own stack.
    low: Cell<usize>,
    high: Cell<usize>,
    /// The first of its stacks of ours; null: it has none.
    ours: Cell<*mut Stack>,
}

/// The beginning of a stack, behind its guard.
struct Stack {
    /// Another one of the thread.
    next: *mut Stack,
    /// Where its user came from; 0: it has none.
    from: usize,
}

thread_local! {
    /// Without a destructor: the key has one.
    static HERE: Here =
        const { Here { low: Cell::new(0), high: Cell::new(0), ours: Cell::new(ptr::null_mut()) } };
}

unsafe extern "C" {
    /// Where the stack of the program's own thread ends, says the dynamic linker.
    static __libc_stack_end: *const c_void;
}

/// To be called once, by the program's own thread. Without it all calls are served where they are
/// made.
pub fn begin() {
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: the destructor may run in any thread.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(give_back)) } != 0 {
        return;
    }
    AT_END.store(key, Ordering::Relaxed);
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: fills it if it succeeds.
    let limit = match unsafe { libc::getrlimit(libc::RLIMIT_STACK, limit.as_mut_ptr()) } {
        // SAFETY: it did.
        0 => unsafe { limit.assume_init() }.rlim_cur,
        _ => 0,
    };
    let bytes = usize::try_from(limit).map_or(UNLIMITED, |bytes| bytes.min(UNLIMITED));
    // SAFETY: the linker sets it before any of our code runs.
    let end = unsafe { __libc_stack_end }.addr();
    LOWEST.store(end - bytes.min(end) + NEEDED, Ordering::Relaxed);
    HIGHEST.store(end, Ordering::Relaxed);
}

/// Whether [`thread_begins`] is of any use.
pub fn asks_for_threads() -> bool {
    HIGHEST.load(Ordering::Relaxed) != usize::MAX
}

/// To be called by a thread that begins, with so many bytes of stack.
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

/// Runs `act`, which must not unwind, where it has room.
#[inline(always)]
pub fn with_room<R>(act: impl FnOnce() -> R) -> R {
    let marker = 0_u8;
    let top = (&raw const marker).addr();
    let main = LOWEST.load(Ordering::Relaxed)..HIGHEST.load(Ordering::Relaxed);
    let Some(stack) = (if main.contains(&top) { None } else { other_stack(top) }) else {
        return act();
    };
    let base = stack.wrapping_add(1).cast::<u8>();
    // SAFETY: it is ours, has no other user, and stays until it has none. What runs there does not
    // unwind.
    unsafe {
        let result = psm::on_stack(base, STACK_BYTES - size_of::<Stack>(), act);
        (*stack).from = 0;
        result
    }
}

/// Where to go on who stands at `top`, which has that user from now on; none: there.
#[inline(never)]
fn other_stack(top: usize) -> Option<*mut Stack> {
    HERE.with(|here| {
        if (here.low.get()..here.high.get()).contains(&top) {
            return None;
        }
        let (mut next, mut free) = (here.ours.get(), None);
        while !next.is_null() {
            // Who is in a call of ours.
            if (next.addr()..next.addr() + STACK_BYTES).contains(&top) {
                return None;
            }
            // SAFETY: stacks stay while their thread lives, and only it looks at them.
            let Stack { next: following, from } = unsafe { next.read() };
            // Whoever came from here has left it by a jump.
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

/// One more stack for this thread; none: there is no memory.
#[cold]
fn take(here: &Here) -> Option<*mut Stack> {
    let spare = SPARE.iter().map(|place| place.swap(0, Ordering::Acquire));
    let start = match spare.into_iter().find(|&start| start != 0) {
        Some(start) => start,
        None => map()?,
    };
    let stack = ptr::with_exposed_provenance_mut::<Stack>(start);
    // SAFETY: it is memory that nobody uses. Handlers that come meanwhile find the list as it was,
    // or as it will be.
    unsafe { stack.write(Stack { next: here.ours.get(), from: usize::MAX }) };
    here.ours.set(stack);
    // SAFETY: the key was made. If this fails the stacks stay when the thread ends.
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
    // SAFETY: it is that memory. Without a guard it is a stack all the same.
    let _ = unsafe { kernel::call(libc::SYS_mprotect, guard) };
    Some(start + GUARD_BYTES)
}

/// Gives back the stacks of a thread that ends, however it does, but for those that a context which
/// has moved to another thread may be on.
extern "C" fn give_back(_: *mut c_void) {
    let mut next = HERE.with(|here| here.ours.replace(ptr::null_mut()));
    while !next.is_null() {
        // SAFETY: the stacks of this thread are nobody else's.
        let Stack { next: following, from } = unsafe { next.read() };
        if from == 0 {
            let start = next.expose_provenance();
            let keep = |place: &AtomicUsize| {
                place.compare_exchange(0, start, Ordering::Release, Ordering::Relaxed).is_ok()
            };
            if !SPARE.iter().any(keep) {
                let all = [(start - GUARD_BYTES) as c_long, (GUARD_BYTES + STACK_BYTES) as c_long];
                // SAFETY: it is ours, and nobody stands on it.
                let _ = unsafe { kernel::call(libc::SYS_munmap, all) };
            }
        }
        next = following;
    }
}
