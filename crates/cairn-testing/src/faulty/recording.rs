//! Recording of a run's effects on the media. Its replay gives every crash point of the run.

use super::disk::{Disk, Effect};
use super::image::Image;
use super::survivors::Survivors;

/// Every effect of a run since recording began.
pub struct Recording {
    base: Disk,
    effects: Vec<Effect>,
}

impl Recording {
    pub(super) fn new(base: Disk) -> Recording {
        Recording { base, effects: Vec::new() }
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Starts a replay before the first operation.
    pub fn replay(&self) -> Replay<'_> {
        Replay { disk: self.base.clone(), left: self.effects.iter(), operations: 0 }
    }
}

/// The media after some operations of a recorded run.
pub struct Replay<'a> {
    disk: Disk,
    left: std::slice::Iter<'a, Effect>,
    operations: u64,
}

impl Replay<'_> {
    /// Advances by one operation. Returns false if none is left.
    pub fn advance(&mut self) -> bool {
        for effect in self.left.by_ref() {
            self.disk.apply(effect);
            if effect.is_operation() {
                self.operations += 1;
                return true;
            }
        }
        false
    }

    /// Number of writes and flushes so far.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Number of sectors of each write since the last flush, in order.
    pub fn pending(&self) -> Vec<usize> {
        self.disk.pending()
    }

    /// Returns what is on the media if the power fails now.
    pub fn image(&self, survivors: &Survivors) -> Image {
        self.disk.image(survivors)
    }
}
