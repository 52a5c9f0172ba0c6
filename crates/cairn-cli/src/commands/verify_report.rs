//! What `cairn verify` found.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Result of the command.
#[derive(Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Number of regular files examined.
    pub files: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Blocks compared with their checksums (of a store or a tier).
    pub checked_blocks: u64,
    /// Blocks without a checksum: a program is writing to them (of a store), or was when the node's
    /// memory was lost (of a tier).
    pub open_blocks: u64,
    /// Intact files whose writer died or could not write everything, or which lost a part (of a
    /// store).
    pub unclean_files: u64,
    /// Files whose data were not brought into the store yet, so that there is nothing to compare
    /// (of a store or a tier).
    pub absent_files: u64,
    /// Whether the manifests say that they are complete (of a persist directory).
    pub complete: Option<bool>,
    /// Damaged files; for a tier, damaged blocks of files.
    pub damaged: Vec<Damaged>,
    /// Jobs whose stores still have files with damaged copies, and the number of these files: they
    /// are drained again (of a persist directory).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub again: BTreeMap<String, u64>,
}

/// A damaged or missing file, or a damaged block of a file.
#[derive(Debug, Serialize)]
pub struct Damaged {
    pub path: String,
    pub reason: String,
}

impl VerifyReport {
    /// Number of files with any damage.
    pub fn damaged_files(&self) -> u64 {
        let paths: BTreeSet<&str> = self.damaged.iter().map(|one| one.path.as_str()).collect();
        paths.len() as u64
    }
}
