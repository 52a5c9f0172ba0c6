//! Lock between the threads of one process that a fork cannot leave locked.
//!
//! Invariant: the word holds the process generation in which the latch was taken. In a forked
//! child, where the owner does not exist, the latch counts as free. It is held only for rare, short
//! work, and waiting threads yield. A signal handler that interrupted the holder gets an error
//! instead of waiting for itself.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cairn_platform::process;

use crate::error::{Errno, Result};
use crate::kernel;

/// A latch, free or held.
pub struct Latch {
    /// Generation of the process that holds it; 0 if free.
    generation: AtomicU64,
    /// `pthread_self` of the thread that holds it.
    holder: AtomicUsize,
}

/// A held latch; dropping it frees the latch.
pub struct Held<'a>(&'a Latch);

impl Latch {
    /// Returns a free latch.
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
