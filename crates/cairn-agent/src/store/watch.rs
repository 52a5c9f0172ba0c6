//! Detects changes of a namespace without taking part in it.
//!
//! The head of the operation log is one word, read without the lock: an idle namespace costs
//! nothing. Records are read only to tell operations that concern the drain (a close, a name,
//! attributes) from those that do not (writes). They never say *what* to do: the tree is compared
//! afresh, so an overrun log loses nothing.

use cairn_core::{LogRead, Operation};

use crate::model::error::Result;
use crate::store::volume::Volume;

/// A position in the log of one namespace.
pub struct Watch {
    cursor: u64,
    /// Whether nobody has looked yet: the first look at a namespace always finds it changed.
    fresh: bool,
}

impl Watch {
    /// Starts watching.
    pub fn new(volume: &Volume) -> Watch {
        Watch { cursor: volume.fs().log_head(), fresh: true }
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
        let read = read
            .map_err(volume.error("read the log of", &cairn_job::file::path::FilePath::root()))?;
        Ok(changed || read == LogRead::Overrun)
    }
}
