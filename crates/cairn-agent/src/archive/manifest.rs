//! Manifest object of a checkpoint in the archive: its name and its content. Its presence says that
//! the checkpoint is there.
//!
//! Invariant: names of manifest objects differ for checkpoints of one store, and for different
//! stores of one job.

use cairn_job::checkpoint::name::Name;
use cairn_job::checkpoint::sets::{Member, register};
use cairn_job::file::json_text::{read_mode, read_number, read_time, write_mode, write_time};
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::CheckpointFile;
use serde::{Deserialize, Serialize};

/// Format that this version writes, and the newest it reads.
pub const FORMAT: u32 = 1;
/// Prefix of the names of manifest objects, after the job.
pub const STEM: &str = "cairn-checkpoint.";
/// Name of an object, after the job, that marks a job's directory. It tells this job's objects from
/// those of a job with a shorter prefix.
pub const MARK: &str = "cairn-archive";
/// Number of digits of the store's name in the name of a manifest object.
const STORE_DIGITS: usize = 8;

/// A checkpoint in the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of the object.
    pub format: u32,
    /// Name of the job.
    pub job: String,
    /// Store that the checkpoint is from.
    pub store: String,
    /// Mount prefix of the program's files.
    pub mount: String,
    /// Id of the checkpoint; unique in that store.
    #[serde(deserialize_with = "read_number")]
    pub id: u64,
    /// Position in the order of all checkpoints, see [`cairn_job::outside::manifest::order`].
    /// Checkpoints of one store may share a position; they are then ordered by their ids.
    #[serde(default, deserialize_with = "read_number")]
    pub order: u64,
    /// Name of the checkpoint.
    #[serde(flatten)]
    pub name: Name,
    /// Time of the last change of its files, seconds since 1970 with nine decimals.
    #[serde(rename = "mtime", serialize_with = "write_time", deserialize_with = "read_time")]
    pub modified_ns: i64,
    /// Files of the checkpoint, ordered by path. Each is an object beside this one, named by its
    /// path.
    pub files: Vec<File>,
}

/// A file of a checkpoint, and the attributes that are kept with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Path, length and checksum.
    #[serde(flatten)]
    pub content: CheckpointFile,
    /// Permission bits, as octal digits.
    #[serde(serialize_with = "write_mode", deserialize_with = "read_mode")]
    pub mode: u32,
    /// Time of the file's last change, seconds since 1970 with nine decimals.
    #[serde(rename = "mtime", serialize_with = "write_time", deserialize_with = "read_time")]
    pub modified_ns: i64,
}

impl Manifest {
    /// Returns the name of the manifest object, after the job.
    pub fn object(&self) -> String {
        let store: String = self.store.chars().take(STORE_DIGITS).collect();
        let step = self.name.step.as_ref().map(|step| format!("{step}-")).unwrap_or_default();
        format!("{STEM}{step}{store}.{}.json", self.id)
    }

    /// Returns the total size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.content.bytes).fold(0, u64::saturating_add)
    }

    /// Whether this manifest covers `known` of `store`: it is the same checkpoint, or was before
    /// the store dropped some of its files. The ids may differ: an agent that lost the register
    /// starts to count anew.
    pub fn has(&self, store: &str, known: &register::Checkpoint) -> bool {
        if (self.store.as_str(), &self.name) != (store, &known.name) {
            return false;
        }
        let is_there = |member: &Member| {
            self.file(&member.path).is_some_and(|file| file.content.bytes == member.bytes)
        };
        let is_of_time = || {
            let there = known.files.iter().filter_map(|member| self.file(&member.path));
            let is_rest = known.files.len() < self.files.len();
            let newest_ns = there.map(|file| file.modified_ns).max().filter(|_| is_rest);
            [Some(self.modified_ns), newest_ns].contains(&Some(known.modified_ns))
        };
        is_of_time() && known.files.iter().all(is_there)
    }

    /// Whether this is a remainder of `whole`: the store had dropped some of its files.
    pub fn is_rest_of(&self, whole: &Manifest) -> bool {
        let is_there = |file: &File| {
            whole.file(&file.content.path).is_some_and(|there| there.content == file.content)
        };
        self.store == whole.store
            && self.name == whole.name
            && self.modified_ns <= whole.modified_ns
            && self.files.len() < whole.files.len()
            && self.files.iter().all(is_there)
    }

    /// Returns the entry of a file.
    pub(super) fn file(&self, path: &FilePath) -> Option<&File> {
        let found = self.files.binary_search_by(|file| file.content.path.cmp(path));
        found.ok().map(|index| &self.files[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::checkpoint::name::Family;
    use cairn_job::checkpoint::sets::register::Level;

    #[test]
    fn manifest_is_read_back_and_named_by_step_store_and_number() {
        let name = Name { family: Family(b"r.{step}".to_vec()), step: Some(300.into()) };
        let path = FilePath::parse(b"r.300").expect("a path");
        let content = CheckpointFile { path, bytes: 5, crc32c: 7 };
        let manifest = Manifest {
            format: FORMAT,
            job: "melt".into(),
            store: "0123456789abcdef".into(),
            mount: "/cairn".into(),
            id: 3,
            order: 2,
            name,
            modified_ns: 1_500_000_000,
            files: vec![File { content, mode: 0o640, modified_ns: 1_400_000_000 }],
        };
        assert_eq!(manifest.object(), "cairn-checkpoint.300-01234567.3.json");
        let text = serde_json::to_string(&manifest).expect("is JSON");
        assert_eq!(serde_json::from_str::<Manifest>(&text).expect("reads"), manifest, "{text}");
    }

    #[test]
    fn rest_of_a_checkpoint_is_there_with_it_and_one_that_was_written_again_is_not() {
        let path = |text: &str| FilePath::parse(text.as_bytes()).expect("a path");
        let name = Name { family: Family(b"ckpt-{step}".to_vec()), step: Some(1.into()) };
        let manifest = |id, files: &[(&str, u32)]| {
            let file = |(name, crc32c): &(&str, u32)| {
                let content = CheckpointFile { path: path(name), bytes: 5, crc32c: *crc32c };
                File { content, mode: 0o640, modified_ns: if *name == "a" { 7 } else { 5 } }
            };
            Manifest {
                format: FORMAT,
                job: "melt".into(),
                store: "s".into(),
                mount: "/cairn".into(),
                id,
                order: 1,
                name: name.clone(),
                modified_ns: 7,
                files: files.iter().map(file).collect(),
            }
        };
        let known = |files: &[&str], modified_ns| {
            let member = |name: &&str| Member { path: path(name), inode: 1, version: 1, bytes: 5 };
            let (wanted, level, completed_ns) = (Level::Node, Level::Node, 9);
            let (name, files) = (name.clone(), files.iter().map(member).collect());
            let (id, ordinal) = (4, 4);
            register::Checkpoint {
                id,
                name,
                ordinal,
                completed_ns,
                modified_ns,
                wanted,
                level,
                files,
            }
        };
        let whole = manifest(9, &[("a", 1), ("b", 2)]);
        for (files, modified_ns, is_there) in [
            (&["a", "b"][..], 7, true),
            (&["a", "b"], 6, false),
            (&["a"], 7, true),
            (&["b"], 5, true),
            (&["b"], 4, false),
            (&["b"], 6, false),
            (&["b", "c"], 7, false),
            (&["c"], 7, false),
        ] {
            let found = whole.has("s", &known(files, modified_ns));
            assert_eq!(found, is_there, "{files:?} {modified_ns}");
        }
        assert!(!whole.has("another", &known(&["b"], 7)));
        assert!(manifest(10, &[("b", 2)]).is_rest_of(&whole));
        assert!(!manifest(10, &[("b", 3)]).is_rest_of(&whole) && !whole.is_rest_of(&whole));
    }
}
