//! Distinguishes our own system calls from others under Syscall User Dispatch (`prctl(2)`). Where
//! that is on, a call by an instruction outside the C library reaches the kernel only while the
//! thread's selector allows it.
//!
//! Invariant: the selector allows calls while an instruction of ours makes one, and on a thread
//! that is not armed.
//!
//! Does not turn the dispatch on and does not handle caught calls; the interposer does.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Selector value that lets calls reach the kernel, of `linux/prctl.h`.
pub const ALLOW: u8 = 0;
/// Selector value that has calls caught, of `linux/prctl.h`.
pub const BLOCK: u8 = 1;

/// Whether some thread of this process may be armed.
static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SELECTOR: AtomicU8 = const { AtomicU8::new(ALLOW) };
    /// Selector value while no instruction of ours makes a call.
    static REST: Cell<u8> = const { Cell::new(ALLOW) };
}

/// Sets whether threads of this process may be armed.
pub fn set_on(is_on: bool) {
    IS_ON.store(is_on, Ordering::Release);
}

/// Whether threads of this process may be armed.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns the address of this thread's selector, valid until the thread ends.
pub fn selector() -> *mut u8 {
    SELECTOR.with(AtomicU8::as_ptr)
}

/// Whether calls of this thread are caught.
pub fn is_armed() -> bool {
    REST.get() == BLOCK
}

/// Sets whether calls of this thread are caught.
pub fn set_armed(is_armed: bool) {
    REST.set(if is_armed { BLOCK } else { ALLOW });
    select(REST.get());
}

/// Sets the selector of this thread. Returns its previous value.
pub fn select(value: u8) -> u8 {
    SELECTOR.with(|selector| selector.swap(value, Ordering::Relaxed))
}

/// Sets the selector of this thread to its value outside calls of ours. Returns its previous value.
pub fn rest() -> u8 {
    select(REST.get())
}

/// Runs `enter`, which makes a system call by an instruction of ours, with the selector set to
/// allow it.
#[inline]
pub fn allowed<R>(enter: impl FnOnce() -> R) -> R {
    if !is_on() {
        return enter();
    }
    select(ALLOW);
    let result = enter();
    select(REST.get());
    result
}
