//! Marks of how far the copies of large files have come, so that the agent after a killed one
//! continues there: `drain.json` in the store's directory.
//!
//! Must stay true: a mark is set only after the bytes it covers are durable. It counts only for the
//! same version of the same file and for the same temporary file. That file never becomes the copy
//! before all of it was read back and compared with the checksum that the mark begins. Whoever ends
//! a copy, successfully or not, removes its mark. Marks are lost with the store: without the store
//! there is nothing to continue.

use crate::model::error::Result;
use crate::model::store_file::{self, MustSurvive};
use crate::persist::destination::{Destination, Temporary};
use cairn_job::file::node::Node;
use cairn_job::file::path::FilePath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name of the file in the store's directory.
pub const MARKS_FILE: &str = "drain.json";
/// Longest file that is read. A longer one is not ours: there are only as many marks as copying
/// threads.
const MARKS_BYTES_MAX: usize = 1 << 20;
/// Smallest number of bytes between two marks of a copy. Each mark waits until the device has
/// flushed its cache.
pub const MARK_BYTES: u64 = 32 << 20;
/// Shortest time between two marks.
pub const MARK_EVERY: Duration = Duration::from_millis(500);

/// How far a copy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Inode of the file in the store.
    pub inode: u32,
    /// Its version.
    pub version: u64,
    /// Its length.
    pub bytes: u64,
    /// Inode of the temporary file.
    pub temporary: u64,
    /// Number of bytes from the beginning that are durable.
    pub offset: u64,
    /// Their CRC32C, as read from the store.
    pub crc32c: u32,
}

impl Mark {
    fn is_of(&self, node: &Node) -> bool {
        (self.inode, self.version, self.bytes) == (node.inode, node.version, node.bytes)
    }
}

/// The marks of one store.
pub struct Marks {
    path: PathBuf,
    marks: Mutex<BTreeMap<FilePath, Mark>>,
}

impl Marks {
    /// Loads the marks that an agent of the store in `store` left. If they cannot be read, copies
    /// begin anew.
    pub fn open(store: &Path) -> Marks {
        let path = store.join(MARKS_FILE);
        let text = store_file::read(&path, MARKS_BYTES_MAX).unwrap_or_default();
        let marks: Vec<(FilePath, Mark)> = serde_json::from_slice(&text).unwrap_or_default();
        Marks { path, marks: Mutex::new(marks.into_iter().collect()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FilePath, Mark>> {
        // A thread that panicked had changed a mark or not: both states are valid.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps only the marks of files that have not changed. Returns these files.
    pub fn retain<'a>(&self, find: impl Fn(&FilePath) -> Option<&'a Node>) -> Vec<FilePath> {
        let mut marks = self.lock();
        marks.retain(|path, mark| find(path).is_some_and(|node| mark.is_of(node)));
        marks.keys().cloned().collect()
    }

    /// Returns the temporary file of `path` and its mark, if the copy can be continued.
    pub fn resume(
        &self,
        destination: &Destination,
        path: &FilePath,
        node: &Node,
    ) -> Option<(Temporary, Mark)> {
        let mark = self.lock().get(path).copied().filter(|mark| mark.is_of(node))?;
        let temporary = destination.reopen_temporary(path).ok()??;
        let metadata = temporary.file.metadata().ok()?;
        let is_it = temporary.inode().ok()? == mark.temporary && metadata.len() >= mark.offset;
        is_it.then_some((temporary, mark))
    }

    /// Sets the mark of `path`. If it cannot be written, the next agent starts the copy over.
    pub fn set(&self, path: &FilePath, mark: Mark) {
        let mut marks = self.lock();
        marks.insert(path.clone(), mark);
        let _ = self.write(&marks);
    }

    /// Removes the mark of `path`.
    pub fn forget(&self, path: &FilePath) {
        let mut marks = self.lock();
        if marks.remove(path).is_some() {
            // A mark that stays refers to a temporary file that does not exist any more.
            let _ = self.write(&marks);
        }
    }

    /// Replaces the file. It survives this process, and need not survive the node.
    fn write(&self, marks: &BTreeMap<FilePath, Mark>) -> Result<()> {
        let list: Vec<_> = marks.iter().collect();
        store_file::replace_json(&self.path, &list, MustSurvive::Process)
    }
}
