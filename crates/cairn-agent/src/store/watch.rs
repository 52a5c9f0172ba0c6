//! Noticing that something happened in a namespace, without taking part in it.
//!
//! The head of the operation log is one word, read without the lock: an idle namespace costs
//! nothing. Records are read only to tell what concerns the drain (a close, a name, attributes)
//! from what does not (writes). They are never needed to know *what* to do: the tree is compared
//! afresh, so an overrun log loses nothing.

use crate::model::error::Result;
use crate::store::volume::Volume;
use cairn_core::{LogRead, Operation};

/// A place in the log of one namespace.
pub struct Watch {
    cursor: u64,
    /// The first look at a namespace always finds it changed.
    fresh: bool,
}

impl Watch {
    /// Starts watching.
    pub fn new(volume: &Volume) -> Watch {
        Watch { cursor: volume.fs().log_head(), fresh: true }
    }

    /// Starts watching a namespace that was just looked at.
    pub fn since_now(volume: &Volume) -> Watch {
        Watch { fresh: false, ..Watch::new(volume) }
    }

    /// Whether the namespace must be looked at again.
    pub fn has_changed(&mut self, volume: &Volume) -> Result<bool> {
        let mut changed = std::mem::take(&mut self.fresh);
        if volume.fs().log_head() == self.cursor {
            return Ok(changed);
        }
        let read = volume.fs().read_log(&mut self.cursor, &mut |record| {
            changed |= !matches!(
                record.operation,
                Operation::Write | Operation::Strides | Operation::Replace | Operation::Drained
            );
        });
        let read =
            read.map_err(volume.error("read the log of", &crate::model::path::FilePath::root()))?;
        Ok(changed || read == LogRead::Overrun)
    }
}
