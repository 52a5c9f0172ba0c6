//! When an image of a job's store is due, nobody having asked for one.
//!
//! Must stay true: images take no more than a part of the time; what arrived outside is not newer for long than what the newest image
//! has, so that whoever goes on from the image loses little.
//! Whether anything was written since the last image is not asked: writes that continue one another, and those to mapped files, leave no
//! trace of their own, and what is as it was is not copied again.

use crate::policy::Images;
use std::time::{Duration, Instant};

/// If the job says nothing, so often at least.
const EVERY: Duration = Duration::from_secs(600);
/// When a file has arrived outside, so long after the last one.
const SOON: Duration = Duration::from_secs(10);
/// Pauses are so many times as long as images take.
const REST: u32 = 4;

/// The images that were taken.
pub struct Imaging {
    began: Instant,
    ended: Instant,
    /// What had arrived outside when the last one ended, bytes.
    arrived: u64,
}

impl Imaging {
    /// None was taken yet; the first is due as if one had been by now.
    pub fn new() -> Imaging {
        Imaging { began: Instant::now(), ended: Instant::now(), arrived: 0 }
    }

    /// One was begun and has ended by now, when `arrived` bytes were outside, those of it included.
    pub fn note(&mut self, began: Instant, arrived: u64) {
        *self = Imaging { began, ended: Instant::now(), arrived };
    }

    /// Whether one is due at `now`, when `arrived` bytes have been copied out. A job of which not all checkpoints are wanted there
    /// (`is_choosy`) has images only if it says how often: they have all files.
    pub fn is_due(&self, images: Images, arrived: u64, is_choosy: bool, now: Instant) -> bool {
        let took = self.ended.duration_since(self.began);
        let pause = match images {
            Images::Never => return false,
            Images::Every(seconds) => Duration::from_secs(seconds).max(took),
            Images::Auto if is_choosy => return false,
            Images::Auto if arrived > self.arrived => SOON.max(took * REST),
            Images::Auto => EVERY.max(took * REST),
        };
        now.duration_since(self.ended) >= pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_follow_what_arrives_and_take_a_part_of_the_time() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let taken = |took| Imaging { began: now, ended: now + seconds(took), arrived: 1 };
        let is_due = |taken: Imaging, images, arrived, after| {
            let is_due = |after| taken.is_due(images, arrived, false, taken.ended + seconds(after));
            assert_eq!((is_due(after - 1), is_due(after)), (false, true), "{images:?} {arrived}");
        };
        is_due(taken(0), Images::Auto, 1, 600);
        is_due(taken(0), Images::Auto, 2, 10);
        is_due(taken(100), Images::Auto, 2, 400);
        is_due(taken(200), Images::Auto, 1, 800);
        is_due(taken(0), Images::Every(30), 1, 30);
        is_due(taken(100), Images::Every(30), 2, 100);
        let later = now + seconds(1 << 20);
        assert!(!taken(0).is_due(Images::Never, 2, false, later));
        assert!(!taken(0).is_due(Images::Auto, 2, true, later));
        assert!(taken(0).is_due(Images::Every(30), 1, true, later));
    }
}
