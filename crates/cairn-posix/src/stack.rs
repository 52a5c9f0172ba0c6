//! Room for our code, which needs more stack than the kernel's: callers may have little.
//!
//! Must stay true: who has little, or may have, is served on a stack of ours, one for each thread: small threads, user-level threads,
//! coroutines, and handlers on alternate stacks. Nothing unwinds from there, and no handler runs there but in a wait.
//! Who leaves a wait by a switch to another context, instead of a jump, and comes back, is not served: the other one has the stack
//! meanwhile. A context whose stack lies in that of its thread is taken for the thread.

use core::cell::Cell;
use core::ffi::{c_long, c_void};
use core::mem::MaybeUninit;
use core::ops::Range;
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
    /// Where its stack of ours begins, behind its guard; 0: it has none.
    ours: Cell<usize>,
}

thread_local! {
    /// Without a destructor: the key has one.
    static HERE: Here =
        const { Here { low: Cell::new(0), high: Cell::new(0), ours: Cell::new(0) } };
}

unsafe extern "C" {
    /// Where the stack of the program's own thread ends, says the dynamic linker.
    static __libc_stack_end: *const c_void;
}

/// To be called once, by the program's own thread. Without it all calls are served where they are made.
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
    match if main.contains(&top) { None } else { other_stack(top) } {
        None => act(),
        // SAFETY: it is ours, and nobody stands on it. What runs there does not unwind.
        Some(stack) => unsafe { psm::on_stack(stack, STACK_BYTES, act) },
    }
}

/// Where to go on who stands at `top`; none: there.
#[inline(never)]
fn other_stack(top: usize) -> Option<*mut u8> {
    HERE.with(|here| {
        let ours = here.ours.get();
        let has = |stack: Range<usize>| stack.contains(&top);
        // On ours is who is in a call of ours, or in a handler that was run in the midst of one.
        if has(here.low.get()..here.high.get()) || ours != 0 && has(ours..ours + STACK_BYTES) {
            return None;
        }
        // Else nobody is: who was has left it, by a jump if not otherwise.
        let start = if ours == 0 { take(here)? } else { ours };
        Some(core::ptr::with_exposed_provenance_mut(start))
    })
}

/// A stack for this thread; none: there is no memory.
#[cold]
fn take(here: &Here) -> Option<usize> {
    let spare = SPARE.iter().map(|place| place.swap(0, Ordering::Acquire));
    let start = match spare.into_iter().find(|&start| start != 0) {
        Some(start) => start,
        None => map()?,
    };
    here.ours.set(start);
    let given = core::ptr::with_exposed_provenance::<c_void>(start);
    // SAFETY: the key was made. If this fails the stack stays when the thread ends.
    unsafe { libc::pthread_setspecific(AT_END.load(Ordering::Relaxed), given) };
    Some(start)
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

/// Gives back the stack of a thread that ends, however it does.
extern "C" fn give_back(stack: *mut c_void) {
    HERE.with(|here| here.ours.set(0));
    let start = stack.expose_provenance();
    let keep = |place: &AtomicUsize| {
        place.compare_exchange(0, start, Ordering::Release, Ordering::Relaxed).is_ok()
    };
    if !SPARE.iter().any(keep) {
        let all = [(start - GUARD_BYTES) as c_long, (GUARD_BYTES + STACK_BYTES) as c_long];
        // SAFETY: it is ours, and nobody stands on it.
        let _ = unsafe { kernel::call(libc::SYS_munmap, all) };
    }
}
