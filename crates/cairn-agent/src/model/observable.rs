//! Values under a lock, and a condition variable that announces their changes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Values that threads share. Each change leaves them consistent, so the values stay usable after a
/// thread panicked while it held the lock.
#[derive(Default)]
pub(crate) struct Observable<T> {
    values: Mutex<T>,
    wake: Condvar,
}

impl<T> Observable<T> {
    /// Returns a board with these initial values.
    pub fn new(values: T) -> Observable<T> {
        Observable { values: Mutex::new(values), wake: Condvar::new() }
    }

    /// Locks and returns the values.
    pub fn state(&self) -> MutexGuard<'_, T> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiting threads.
    pub fn notify(&self) {
        self.wake.notify_all();
    }

    /// Waits for a change for at most `timeout`.
    pub fn wait<'a>(&self, state: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        self.wake.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}
