//! A checkpoint in the persist directory: files that belong together and were all verified there.
//!
//! Must stay true: a checkpoint is in a manifest only while each of its files has the copy that it
//! names.

use super::Manifest;
use crate::checkpoint::name::Name;
use crate::checkpoint::sets::{self, register};
use crate::file::json_text::{read_checksum, write_checksum};
use crate::file::json_text::{read_number, read_time, write_time};
use crate::file::path::FilePath;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Files that belong together, each verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Store that has it, or had it last; empty if an earlier version wrote it.
    #[serde(default)]
    pub store: String,
    /// Its number in that store.
    #[serde(deserialize_with = "read_number")]
    pub id: u64,
    /// Its place in the order of all checkpoints, see [`super::order`].
    #[serde(default, deserialize_with = "read_number")]
    pub order: u64,
    /// Its name.
    #[serde(flatten)]
    pub name: Name,
    /// Last change of its files, nanoseconds since the epoch; in the file, seconds with nine
    /// decimals.
    #[serde(rename = "mtime", serialize_with = "write_time", deserialize_with = "read_time")]
    pub modified_ns: i64,
    /// Its files, in the order of their paths.
    pub files: Arc<[CheckpointFile]>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFile {
    /// Path below the persist directory.
    pub path: FilePath,
    /// Length.
    pub bytes: u64,
    /// CRC32C of the whole file.
    #[serde(serialize_with = "write_checksum", deserialize_with = "read_checksum")]
    pub crc32c: u32,
}

impl Checkpoint {
    /// Returns `known` as a checkpoint of the persist directory; None if one of its files has no
    /// copy there.
    pub fn of(known: &register::Checkpoint, manifest: &Manifest) -> Option<Checkpoint> {
        let file = |member: &sets::Member| {
            let copy = manifest.files.get(&member.path)?.copy()?;
            let (bytes, crc32c) = (copy.bytes, copy.crc32c);
            Some(CheckpointFile { path: member.path.clone(), bytes, crc32c })
        };
        Some(Checkpoint {
            store: manifest.store.clone(),
            id: known.id,
            order: 0,
            name: known.name.clone(),
            modified_ns: known.modified_ns,
            files: known.files.iter().map(file).collect::<Option<_>>()?,
        })
    }

    /// Whether this is what [`Checkpoint::of`] returns for `known`, but for its order.
    pub fn is_of(&self, known: &register::Checkpoint, manifest: &Manifest) -> bool {
        let paths = self.files.iter().map(|file| &file.path);
        (&self.store, self.id, &self.name, self.modified_ns)
            == (&manifest.store, known.id, &known.name, known.modified_ns)
            && paths.eq(known.files.iter().map(|member| &member.path))
            && self.is_whole(manifest)
    }

    /// Whether `manifest` has all its copies.
    pub fn is_whole(&self, manifest: &Manifest) -> bool {
        self.files.iter().all(|file| {
            let copy = manifest.files.get(&file.path).and_then(super::Entry::copy);
            copy.is_some_and(|copy| (copy.bytes, copy.crc32c) == (file.bytes, file.crc32c))
        })
    }

    /// Whether its files are a proper subset of those of `whole`: the others have left the store.
    pub fn is_rest_of(&self, whole: &Checkpoint) -> bool {
        let has = |file: &CheckpointFile| {
            let found = whole.files.binary_search_by(|known| known.path.cmp(&file.path));
            found.is_ok_and(|index| whole.files[index] == *file)
        };
        self.files.len() < whole.files.len() && self.files.iter().all(has)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }
}
