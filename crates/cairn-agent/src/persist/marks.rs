//! How far the copies of large files have got, so that an agent that takes the place of one that
//! was killed goes on there: `drain.json` in the store's directory.
//!
//! Must stay true: a mark is set only after what it speaks of was made durable; it counts only for
//! the same version of the same file and for the same temporary file, which is never the copy
//! before all of it was read back and compared with the checksum that the mark begins; whoever ends
//! a copy, one way or another, takes its mark away. Marks go with the store: without it there is
//! nothing to go on with.

use crate::model::error::Result;
use crate::model::path::FilePath;
use crate::model::store_file::{self, Outlives};
use crate::persist::destination::{Destination, Temporary};
use crate::store::node::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name of the file in the store's directory.
pub const MARKS_FILE: &str = "drain.json";
/// More is not ours: there are as many marks as copying threads.
const MARKS_BYTES_MAX: usize = 1 << 20;
/// Bytes of a copy between two marks, at least: each waits for the device, with all that it has
/// cached.
pub const MARK_BYTES: u64 = 32 << 20;
/// Time between them, at least.
pub const MARK_EVERY: Duration = Duration::from_millis(500);

/// How far a copy has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The file in the store.
    pub inode: u32,
    /// Its version.
    pub version: u64,
    /// Its length.
    pub bytes: u64,
    /// Inode of the temporary file.
    pub temporary: u64,
    /// So many bytes from the beginning are there, durably.
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
    /// Those that an agent of the store in `store` left. What cannot be read is nothing: copies
    /// begin anew.
    pub fn open(store: &Path) -> Marks {
        let path = store.join(MARKS_FILE);
        let text = store_file::read(&path, MARKS_BYTES_MAX).unwrap_or_default();
        let marks: Vec<(FilePath, Mark)> = serde_json::from_slice(&text).unwrap_or_default();
        Marks { path, marks: Mutex::new(marks.into_iter().collect()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<FilePath, Mark>> {
        // Whoever panicked had set or taken a mark, or not.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the marks of files that are still what they were; the temporary files that they speak
    /// of.
    pub fn retain<'a>(
        &self,
        destination: &Destination,
        find: impl Fn(&FilePath) -> Option<&'a Node>,
    ) -> Vec<FilePath> {
        let mut marks = self.lock();
        marks.retain(|path, mark| find(path).is_some_and(|node| mark.is_of(node)));
        marks.keys().filter_map(|path| destination.temporary_path(path)).collect()
    }

    /// The temporary file of `path` and how far it has got, if that can be gone on with.
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

    /// Sets the mark of `path`. One that cannot be written is none for the next agent, which costs
    /// it time.
    pub fn set(&self, path: &FilePath, mark: Mark) {
        let mut marks = self.lock();
        marks.insert(path.clone(), mark);
        let _ = self.write(&marks);
    }

    /// Takes the mark of `path` away.
    pub fn forget(&self, path: &FilePath) {
        let mut marks = self.lock();
        if marks.remove(path).is_some() {
            // One that stays speaks of a temporary file that is not there.
            let _ = self.write(&marks);
        }
    }

    /// Replaces the file. It outlives this process, and need not outlive the node.
    fn write(&self, marks: &BTreeMap<FilePath, Mark>) -> Result<()> {
        let list: Vec<_> = marks.iter().collect();
        store_file::replace_json(&self.path, &list, Outlives::Process)
    }
}
