//! Data of absent files: which files are absent, their order, where their data are, and what was
//! staged in so far.
//!
//! Must stay true:
//! - Data count only after every byte was checked against the file's checksum.
//! - Copies are only read.
//!
//! `source.rs` finds the copy with the data of a file, `queue.rs` orders the files, `part.rs` holds
//! the data staged so far. The threads that stage files in are in `agent/stager.rs`.

pub(crate) mod part;
pub(crate) mod queue;
pub(crate) mod source;
pub(crate) mod standstill;

use cairn_core::InodeId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::model::error::Result;
use crate::model::protocol::{Bringing, Failed};
use crate::store::volume::Volume;
use cairn_job::file::node::Node;
use cairn_job::file::path::FilePath;
use queue::{Item, Key};

/// Maximum number of failures kept for the status.
const FAILED_MAX: usize = 1000;

/// Progress of staging.
#[derive(Debug, Default)]
pub struct StageState {
    /// Everything but the failures.
    pub(crate) told: Bringing,
    pub(crate) failed: BTreeMap<FileKey, Failed>,
    /// When a file was last staged in, nanoseconds since the epoch.
    pub(crate) returned: BTreeMap<FileKey, i64>,
    /// Number of files that somebody waits for and that find no room.
    pub(crate) short: Arc<AtomicUsize>,
}

/// Name of the namespace, and inode of the file.
pub(crate) type FileKey = (String, InodeId);

impl StageState {
    /// Returns the status; None if there was never anything to stage in.
    pub fn status(&self) -> Option<Bringing> {
        let failed = self.failed.values().cloned().collect();
        let status = Bringing { failed, ..self.told.clone() };
        (status != Bringing::default()).then_some(status)
    }

    pub(crate) fn fail(&mut self, volume: &Volume, inode: InodeId, failed: Failed) {
        if self.failed.len() < FAILED_MAX {
            self.failed.insert((volume.name().to_string(), inode), failed);
        }
    }

    pub(crate) fn forget(&mut self, volume: &Volume, inode: InodeId) {
        self.failed.remove(&(volume.name().to_string(), inode));
    }

    pub(crate) fn note_left(&mut self, left: Bringing, bytes_per_second: u64) {
        let Bringing { brought_files, brought_bytes, .. } = self.told;
        self.told = Bringing { brought_files, brought_bytes, bytes_per_second, ..left };
    }
}

/// Returns the queue item for this path of a namespace, if its file is absent.
pub(crate) fn item(number: usize, path: FilePath, node: &Node) -> Option<Item> {
    let absence = node.absence?;
    let key = Key { volume: number, inode: InodeId(node.inode) };
    Some(Item { key, path, bytes: node.bytes, crc32c: absence.crc32c, will_be_read: false })
}

pub(crate) fn is_absent(volume: &Volume, inode: InodeId) -> bool {
    volume.fs().absence(inode).is_ok_and(|absence| absence.is_some())
}

/// Whether somebody waits for a file and was not told yet that its data are not available.
pub(crate) fn is_waited_for(volume: &Volume, inode: InodeId) -> bool {
    let known = volume.fs().absence(inode).ok().flatten();
    known.is_some_and(|absence| absence.wanted && !absence.unavailable)
}

/// Returns the current path of a file that was at `known`; None if it has no name any more.
pub(crate) fn path_of(
    volume: &Volume,
    known: &FilePath,
    inode: InodeId,
) -> Result<Option<FilePath>> {
    let inner = known.strip_prefix(volume.prefix()).unwrap_or_else(|| known.clone());
    if volume.attributes(&inner).is_ok_and(|found| found.inode == inode) {
        return Ok(Some(known.clone()));
    }
    let mut tree = volume.tree()?.into_iter();
    Ok(tree.find(|(_, node)| node.inode == inode.0).map(|(path, _)| path))
}
