//! A lock between the threads of one process that a fork cannot leave locked.
//!
//! Invariant: the word names the process generation in which it was locked; in a forked child,
//! where the owner does not exist, it counts as free. Held only for rare, short work; waiting
//! threads yield. A signal handler that interrupted the holder is told so instead of waiting for
//! itself.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairn_device::process;

use crate::error::{Errno, Result};
use crate::kernel;

/// The lock.
pub struct Latch {
    /// Generation of the process in which it is held; 0 if free.
    generation: AtomicU64,
    /// Thread that holds it.
    holder: AtomicUsize,
}

/// Held until dropped.
pub struct Held<'a>(&'a Latch);

impl Latch {
    /// A free latch.
    pub const fn new() -> Latch {
        Latch { generation: AtomicU64::new(0), holder: AtomicUsize::new(0) }
    }

    /// Waits until the latch is free and takes it. Errors: `EDEADLK` if this thread holds it.
    pub fn hold(&self) -> Result<Held<'_>> {
        let mine = process::generation();
        // SAFETY: takes nothing and cannot fail.
        let me = unsafe { libc::pthread_self() } as usize;
        loop {
            let seen = self.generation.load(Ordering::Relaxed);
            if seen != mine {
                let taken = self.generation.compare_exchange(
                    seen,
                    mine,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                );
                if taken.is_ok() {
                    self.holder.store(me, Ordering::Relaxed);
                    return Ok(Held(self));
                }
            } else if self.holder.load(Ordering::Relaxed) == me {
                return Err(Errno(libc::EDEADLK));
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
        self.0.holder.store(0, Ordering::Relaxed);
        self.0.generation.store(0, Ordering::Release);
    }
}
