//! Detects a standstill of staging: somebody waits for a file that no thread has taken, because all
//! threads hang in other copies.
//!
//! Has no clock, and starts no threads.

use std::time::{Duration, Instant};

/// Time without progress that counts as a standstill.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Progress of staging: bytes read, and number of files taken by threads.
pub type Progress = (u64, u64);

/// Last progress seen, and since when.
#[derive(Debug, Default)]
pub struct Standstill {
    seen: Option<(Progress, Instant)>,
}

impl Standstill {
    /// Whether there was no progress for `STANDSTILL`, during which somebody always waited for a
    /// file that no thread has (`is_awaited`). True once per such period.
    pub fn look(&mut self, progress: Progress, is_awaited: bool, now: Instant) -> bool {
        if !is_awaited {
            self.seen = None;
            return false;
        }
        let (seen, since) = *self.seen.get_or_insert((progress, now));
        let is_over = now.saturating_duration_since(since) >= STANDSTILL;
        if seen != progress || is_over {
            self.seen = Some((progress, now));
        }
        seen == progress && is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standstill_is_when_nothing_gets_on_as_long_as_somebody_waits() {
        let (mut standstill, began) = (Standstill::default(), Instant::now());
        let mut looks = |progress, is_awaited, tenths: u32| {
            standstill.look((progress, 0), is_awaited, began + STANDSTILL / 10 * tenths)
        };
        assert!(!looks(1, false, 0));
        assert!(!looks(1, true, 90), "nobody waited before");
        assert!(!looks(1, true, 99));
        assert!(looks(1, true, 100));
        assert!(!looks(1, true, 101), "that was seen");
        assert!(looks(1, true, 110));
        assert!(!looks(2, true, 120), "something got on");
        assert!(!looks(2, true, 129));
        assert!(!looks(2, false, 129));
        assert!(!looks(2, true, 130), "others wait");
        assert!(looks(2, true, 140));
    }
}
