//! A lock between the threads of one process that a fork cannot leave locked.
//!
//! Invariant: the word names the process generation in which it was locked; in a forked child, where the owner
//! does not exist, it counts as free. Held only for rare, short work; waiting threads yield.

use core::sync::atomic::{AtomicU64, Ordering};

use cairn_device::process;

use crate::kernel;

/// The lock.
pub struct Latch(AtomicU64);

/// Held until dropped.
pub struct Held<'a>(&'a Latch);

impl Latch {
    /// A free latch.
    pub const fn new() -> Latch {
        Latch(AtomicU64::new(0))
    }

    /// Waits until the latch is free and takes it.
    pub fn hold(&self) -> Held<'_> {
        let mine = process::generation();
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen != mine
                && self.0.compare_exchange(seen, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Held(self);
            }
            kernel::sched_yield();
        }
    }
}

impl Default for Latch {
    fn default() -> Latch {
        Latch::new()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}
