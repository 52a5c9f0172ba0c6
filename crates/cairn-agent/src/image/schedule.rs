//! Decides when an image of a job's store is due without a request.
//!
//! Must stay true:
//! - An image begins only after the last one has ended, and a whole period after the last one
//!   began.
//! - After a failed image there is a pause at least as long as the failed image took.
//! - Data that arrived in the persist directory, or that a program made durable in a file it keeps
//!   open, are soon in an image too, so a restart from the image loses little.
//!
//! Whether anything was written since the last image is not checked: writes that continue one
//! another, and stores to mapped files, leave no trace of their own. Unchanged data are not copied
//! again.

use crate::model::policy::Images;
use std::time::{Duration, Instant};

/// Default period of images.
const EVERY: Duration = Duration::from_secs(600);
/// Default period while there are new data that programs want to survive.
const SOON: Duration = Duration::from_secs(10);

/// Counts of data that programs want to survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Bytes that have arrived in the persist directory.
    pub arrived: u64,
    /// Number of calls that made bytes durable.
    pub synced: u64,
}

/// The last image: its times and its result.
pub struct Imaging {
    began: Instant,
    ended: Instant,
    came_to_nothing: bool,
    /// Wishes covered by the last image: bytes that arrived until its end, and syncs until its
    /// beginning.
    seen: Wishes,
}

impl Imaging {
    /// Returns a schedule without images. The first image is due as if one had just been taken.
    pub fn new() -> Imaging {
        let (began, ended) = (Instant::now(), Instant::now());
        Imaging { began, ended, came_to_nothing: false, seen: Wishes::default() }
    }

    /// Records an image that began at `began` and has just ended. `seen` counts as covered by it.
    pub fn note(&mut self, began: Instant, seen: Wishes, came_to_nothing: bool) {
        *self = Imaging { began, ended: Instant::now(), came_to_nothing, seen };
    }

    /// Whether an image is due at `now` with these wishes. An image contains all files, so a job
    /// that drains only some checkpoints (`is_choosy`) gets images only if it sets a period.
    pub fn is_due(&self, images: Images, wishes: Wishes, is_choosy: bool, now: Instant) -> bool {
        let period = match images {
            Images::Never => return false,
            Images::Every(seconds) => Duration::from_secs(seconds),
            Images::Auto if is_choosy => return false,
            Images::Auto if wishes != self.seen => SOON,
            Images::Auto => EVERY,
        };
        let pause = match self.came_to_nothing {
            true => period.max(self.ended.duration_since(self.began)),
            false => Duration::ZERO,
        };
        now >= self.ended + pause && now.duration_since(self.began) >= period
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_due_some_time_after_the_last_began_and_when_that_has_ended() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let none = Wishes { arrived: 1, synced: 1 };
        let (arrived, synced) = (Wishes { arrived: 2, ..none }, Wishes { synced: 2, ..none });
        let came_to = |came_to_nothing, took| {
            let ended = now + seconds(took);
            Imaging { began: now, ended, came_to_nothing, seen: none }
        };
        let (taken, lost) = (|took| came_to(false, took), |took| came_to(true, took));
        let is_due = |taken: Imaging, images, wishes, after| {
            let is_due = |after| taken.is_due(images, wishes, false, now + seconds(after));
            assert_eq!((is_due(after - 1), is_due(after)), (false, true), "{images:?} {wishes:?}");
        };
        is_due(taken(0), Images::Auto, none, 600);
        is_due(taken(0), Images::Auto, arrived, 10);
        is_due(taken(0), Images::Auto, synced, 10);
        is_due(taken(100), Images::Auto, arrived, 100);
        is_due(taken(800), Images::Auto, none, 800);
        is_due(taken(0), Images::Every(30), none, 30);
        is_due(taken(100), Images::Every(30), arrived, 100);
        is_due(lost(1), Images::Auto, arrived, 11);
        is_due(lost(100), Images::Auto, arrived, 200);
        let later = now + seconds(1 << 20);
        assert!(!taken(0).is_due(Images::Never, arrived, false, later));
        assert!(!taken(0).is_due(Images::Auto, arrived, true, later));
        assert!(taken(0).is_due(Images::Every(30), none, true, later));
    }
}
