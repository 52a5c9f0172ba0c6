//! Delays between attempts that fail.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// How long to wait before the next attempt: twice as long after each one that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff(Duration);

impl Backoff {
    /// Returns the delay after a first failure.
    pub fn first() -> Backoff {
        Backoff(FIRST)
    }

    /// Returns the delay after another failure.
    pub fn grown(self) -> Backoff {
        Backoff((self.0 * 2).min(LONGEST))
    }

    /// Returns the delay.
    pub fn delay(self) -> Duration {
        self.0
    }
}
