//! Notes of programs about their checkpoints and files (`cairn.h`), for people and their scripts.

use cairn_agent::store::notes;
use cairn_device::store::notes::Note;
use cairn_job::checkpoint::sets::marks;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::store::OpenStore;

/// Notes of a job, oldest first.
pub struct Notes(Vec<Note>);

/// A checkpoint that programs announced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Its step.
    pub step: u64,
    /// Number of processes that announced its begin, and its end.
    pub begun: usize,
    pub ended: usize,
    /// Time of the first and of the last announcement, in nanoseconds since the epoch.
    pub began_ns: i64,
    pub time_ns: i64,
}

impl Notes {
    /// Reads the notes of the job of a store. Errors: they cannot be read.
    pub fn of(store: &OpenStore) -> Result<Notes> {
        Ok(Notes(notes::read(store.directory())?))
    }

    /// Returns the hints that apply to a file, by its path as the program sees it.
    pub fn hints(&self, path: &[u8]) -> Vec<&'static str> {
        marks::hints(&self.0, path)
    }

    /// Returns the announced checkpoints, in the order of their first marks.
    pub fn checkpoints(&self) -> Vec<Checkpoint> {
        let plain = |mark: marks::Mark| Checkpoint {
            name: mark.name.family.to_string(),
            step: mark.name.step.and_then(|step| step.whole_number()).unwrap_or(0),
            begun: mark.begun,
            ended: mark.ended,
            began_ns: mark.first_ns,
            time_ns: mark.last_ns,
        };
        marks::marks(&self.0).into_iter().map(plain).collect()
    }
}
