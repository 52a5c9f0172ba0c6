//! Telling our own calls of the kernel from others: where Syscall User Dispatch (`prctl(2)`) is on,
//! a call by an instruction outside of the C library reaches the kernel only while the thread's
//! selector allows that.
//!
//! Must stay true: the selector allows calls while an instruction of ours makes one, and for as
//! long as a thread was not armed.
//! Does not turn it on, nor handle what is caught; the interposer does.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Values of a selector, of `linux/prctl.h`.
pub const ALLOW: u8 = 0;
/// See `ALLOW`.
pub const BLOCK: u8 = 1;

/// Some thread of this process may be armed.
static IS_ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    static SELECTOR: AtomicU8 = const { AtomicU8::new(ALLOW) };
    /// What the selector is while no instruction of ours makes a call.
    static REST: Cell<u8> = const { Cell::new(ALLOW) };
}

/// From now on, threads may be armed; or no more.
pub fn set_on(is_on: bool) {
    IS_ON.store(is_on, Ordering::Release);
}

/// Whether threads may be armed.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Where the selector of this thread is, for as long as it lives.
pub fn selector() -> *mut u8 {
    SELECTOR.with(AtomicU8::as_ptr)
}

/// Whether calls of this thread are caught.
pub fn is_armed() -> bool {
    REST.get() == BLOCK
}

/// Calls of this thread are caught from now on, or no more.
pub fn set_armed(is_armed: bool) {
    REST.set(if is_armed { BLOCK } else { ALLOW });
    select(REST.get());
}

/// Sets the selector of this thread; what it was.
pub fn select(value: u8) -> u8 {
    SELECTOR.with(|selector| selector.swap(value, Ordering::Relaxed))
}

/// Sets the selector of this thread as it is while no instruction of ours makes a call; what it
/// was.
pub fn rest() -> u8 {
    select(REST.get())
}

/// Makes a call by an instruction of ours.
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
