//! The object that says that a checkpoint is in the archive: its name and its bytes.
//!
//! Must stay true: the name tells checkpoints of one store apart, and those of different stores of one job.

use crate::manifest::{CheckpointFile, read_mode, read_time, write_mode, write_time};
use crate::sets::{Name, register};
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
    /// Prefix below which the program found its files.
    pub mount: String,
    /// Its number in that store.
    pub id: u64,
    /// What it is called.
    #[serde(flatten)]
    pub name: Name,
    /// Last change of its files, seconds since 1970 with nine decimals.
    #[serde(rename = "mtime", serialize_with = "write_time", deserialize_with = "read_time")]
    pub modified_ns: i64,
    /// Its files, in the order of their paths; each is an object beside this one, of the name of its path.
    pub files: Vec<File>,
}

/// A file of a checkpoint, and what is kept of it beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path, length and checksum.
    #[serde(flatten)]
    pub content: CheckpointFile,
    /// Permission bits, octal digits.
    #[serde(serialize_with = "write_mode", deserialize_with = "read_mode")]
    pub mode: u32,
    /// Time of its last change, seconds since 1970 with nine decimals.
    #[serde(rename = "mtime", serialize_with = "write_time", deserialize_with = "read_time")]
    pub modified_ns: i64,
}

impl Manifest {
    /// The name of the object, after the job.
    pub fn object(&self) -> String {
        let store: String = self.store.chars().take(STORE_DIGITS).collect();
        let step = self.name.step.map(|step| format!("{step}-")).unwrap_or_default();
        format!("{STEM}{step}{store}.{}.json", self.id)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.content.bytes).sum()
    }

    /// Whether it is `known` of `store`. Its number may be another one: an agent that lost the register counts anew.
    pub fn is_of(&self, store: &str, known: &register::Checkpoint) -> bool {
        let there = self.files.iter().map(|file| (&file.content.path, file.content.bytes));
        self.store == store
            && (&self.name, self.modified_ns) == (&known.name, known.modified_ns)
            && there.eq(known.files.iter().map(|member| (&member.path, member.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::FilePath;
    use crate::sets::Family;

    #[test]
    fn manifest_is_read_back_and_named_by_step_store_and_number() {
        let name = Name { family: Family(b"r.{step}".to_vec()), step: Some(300) };
        let path = FilePath::parse(b"r.300").expect("a path");
        let content = CheckpointFile { path, bytes: 5, crc32c: 7 };
        let manifest = Manifest {
            format: FORMAT,
            job: "melt".into(),
            store: "0123456789abcdef".into(),
            mount: "/cairn".into(),
            id: 3,
            name,
            modified_ns: 1_500_000_000,
            files: vec![File { content, mode: 0o640, modified_ns: 1_400_000_000 }],
        };
        assert_eq!(manifest.object(), "cairn-checkpoint.300-01234567.3.json");
        let text = serde_json::to_string(&manifest).expect("is JSON");
        assert_eq!(serde_json::from_str::<Manifest>(&text).expect("reads"), manifest, "{text}");
    }
}
