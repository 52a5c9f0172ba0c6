//! The object that says that a checkpoint is in the archive: its name and its bytes.
//!
//! Must stay true: the name tells checkpoints of one store apart, and those of different stores of one job.

use crate::manifest::Checkpoint;
use crate::sets::register;
use serde::{Deserialize, Serialize};

/// Format that this version writes, and the newest it reads.
pub const FORMAT: u32 = 1;
/// What the names of these objects begin with, after the job.
pub const STEM: &str = "cairn-checkpoint.";
/// Digits of a store's name in the name of the object.
const STORE_DIGITS: usize = 8;

/// A checkpoint in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of the object.
    pub format: u32,
    /// The job.
    pub job: String,
    /// The store that it is from.
    pub store: String,
    /// What it is made of; each file is an object beside this one, of the name of its path.
    #[serde(flatten)]
    pub checkpoint: Checkpoint,
}

impl Manifest {
    /// The name of the object, after the job.
    pub fn name(&self) -> String {
        let store: String = self.store.chars().take(STORE_DIGITS).collect();
        let step = self.checkpoint.name.step.map(|step| format!("{step}-")).unwrap_or_default();
        format!("{STEM}{step}{store}.{}.json", self.checkpoint.id)
    }

    /// Whether it is `known` of `store`. Its number may be another one: an agent that lost the register counts anew.
    pub fn is_of(&self, store: &str, known: &register::Checkpoint) -> bool {
        let Checkpoint { name, modified_ns, files, .. } = &self.checkpoint;
        let there = files.iter().map(|file| (&file.path, file.bytes));
        self.store == store
            && (name, *modified_ns) == (&known.name, known.modified_ns)
            && there.eq(known.files.iter().map(|member| (&member.path, member.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::CheckpointFile;
    use crate::path::FilePath;
    use crate::sets::{Family, Name};

    #[test]
    fn manifest_is_read_back_and_named_by_step_store_and_number() {
        let name = Name { family: Family(b"r.{step}".to_vec()), step: Some(300) };
        let path = FilePath::parse(b"r.300").expect("a path");
        let files = vec![CheckpointFile { path, bytes: 5, crc32c: 7 }];
        let checkpoint = Checkpoint { id: 3, name, modified_ns: 1_500_000_000, files };
        let store = "0123456789abcdef".to_string();
        let manifest = Manifest { format: FORMAT, job: "melt".into(), store, checkpoint };
        assert_eq!(manifest.name(), "cairn-checkpoint.300-01234567.3.json");
        let text = serde_json::to_string(&manifest).expect("is JSON");
        assert_eq!(serde_json::from_str::<Manifest>(&text).expect("reads"), manifest, "{text}");
    }
}
