//! What programs said of their checkpoints and files (`cairn.h`), for people and their scripts.

use crate::error::Result;
use crate::store::OpenStore;
use cairn_agent::checkpoint::sets::marks;
use cairn_device::notes::Note;
use serde::{Deserialize, Serialize};

/// The notes of a job, oldest first.
pub struct Notes(Vec<Note>);

/// A checkpoint that programs announced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its name; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// Its step.
    pub step: u64,
    /// Processes that said they begin it, and that they are done.
    pub begun: usize,
    pub ended: usize,
    /// When the first and the last of them said something, nanoseconds since the epoch.
    pub began_ns: i64,
    pub time_ns: i64,
}

impl Notes {
    /// The notes of the job of a store. Errors: they cannot be read.
    pub fn of(store: &OpenStore) -> Result<Notes> {
        Ok(Notes(marks::read(store.directory())?))
    }

    /// The hints that hold for a file, by its path as the program sees it.
    pub fn hints(&self, path: &[u8]) -> Vec<&'static str> {
        marks::hints(&self.0, path)
    }

    /// The checkpoints that were announced, in the order of their first marks.
    pub fn checkpoints(&self) -> Vec<Checkpoint> {
        let plain = |mark: marks::Mark| Checkpoint {
            name: mark.name.family.to_string(),
            step: mark.name.step.unwrap_or(0),
            begun: mark.begun,
            ended: mark.ended,
            began_ns: mark.first_ns,
            time_ns: mark.last_ns,
        };
        marks::marks(&self.0).into_iter().map(plain).collect()
    }
}
