//! When an image of a job's store is due, nobody having asked for one.
//!
//! Must stay true: an image does not begin before the last one has ended, nor until so long after
//! that began as is said, and after one that came to nothing there is a pause as long as that took;
//! what arrived outside, or what a program had made durable in a file that it keeps open, is not
//! newer for long than what the newest image has, so that whoever goes on from the image loses
//! little. Whether anything was written since the last image is not asked: writes that continue one
//! another, and those to mapped files, leave no trace of their own, and what is as it was is not
//! copied again.

use crate::model::policy::Images;
use std::time::{Duration, Instant};

/// If the job says nothing, so often at least.
const EVERY: Duration = Duration::from_secs(600);
/// When there is something that a program wants to survive, so long after the last one began.
const SOON: Duration = Duration::from_secs(10);

/// What programs have wanted to survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Bytes that have arrived outside.
    pub arrived: u64,
    /// Calls that had bytes brought to where they survive.
    pub synced: u64,
}

/// The images that were taken.
pub struct Imaging {
    began: Instant,
    ended: Instant,
    came_to_nothing: bool,
    /// What the last one has: files that arrived until its end it may have, what was synced until
    /// its beginning.
    seen: Wishes,
}

impl Imaging {
    /// None was taken yet; the first is due as if one had been by now.
    pub fn new() -> Imaging {
        let (began, ended) = (Instant::now(), Instant::now());
        Imaging { began, ended, came_to_nothing: false, seen: Wishes::default() }
    }

    /// One was begun and has ended by now; `seen` counts as had by it.
    pub fn note(&mut self, began: Instant, seen: Wishes, came_to_nothing: bool) {
        *self = Imaging { began, ended: Instant::now(), came_to_nothing, seen };
    }

    /// Whether one is due at `now`, when there are these wishes. A job of which not all checkpoints
    /// are wanted there (`is_choosy`) has images only if it says how often: they have all files.
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
