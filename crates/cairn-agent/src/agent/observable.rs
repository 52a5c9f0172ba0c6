//! What threads agree by: values under a lock, and a call when they have changed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Plain values, whole at any moment, so that a thread that panicked with the lock has left them
/// so.
#[derive(Default)]
pub(crate) struct Board<T> {
    values: Mutex<T>,
    wake: Condvar,
}

impl<T> Board<T> {
    /// One with these values.
    pub fn new(values: T) -> Board<T> {
        Board { values: Mutex::new(values), wake: Condvar::new() }
    }

    /// The values, locked.
    pub fn state(&self) -> MutexGuard<'_, T> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever waits that they changed.
    pub fn notify(&self) {
        self.wake.notify_all();
    }

    /// Waits for a change, at most so long.
    pub fn wait<'a>(&self, state: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        self.wake.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}
