//! Note of a repair of damaged or unfinished checkpoints: `repair.json` in the store's directory.
//! It exists from before the first rename until the last one is done and the register knows of the
//! result, also when the repair was interrupted.
//!
//! Must stay true: while the note exists, the files it names are part of no checkpoint and are not
//! drained. Replacements under construction are invisible to code that reads a tree. Moves nothing;
//! `cairn run` does, before a program starts.

use crate::model::error::{Error, Result};
use crate::model::format;
use crate::model::store_file::{self, MustSurvive};
use cairn_job::checkpoint::name::Name;
use cairn_job::file::path::FilePath;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Name of the note in the store's directory.
pub const REPAIR_FILE: &str = "repair.json";
/// Format that this version writes, and the newest it reads.
pub const REPAIR_FORMAT: u32 = 1;
/// Maximum size of a note, bytes.
const BYTES_MAX: usize = 1 << 30;

/// Planned repair of the checkpoints of a family. Paths are those of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Format of the note.
    pub format: u32,
    /// Checkpoints that are quarantined.
    pub aside: Vec<Name>,
    /// Whether these are not damaged, but were never finished.
    #[serde(default)]
    pub unfinished: bool,
    /// Checkpoint from which programs restart; None if there is none.
    pub goes_on: Option<Name>,
    /// Files of that checkpoint, in their order, if it is brought from outside the store.
    pub brought: Vec<FilePath>,
    /// Renames, in the order in which they are done.
    pub moves: Vec<Move>,
}

/// A rename. It is done when `to` names the inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Inode that is renamed.
    pub inode: u32,
    /// Path before.
    pub from: FilePath,
    /// Path afterwards.
    pub to: FilePath,
    /// Inode and data version of the damaged file at `to`, which takes the path `from`; None if
    /// there is no such file.
    pub replaces: Option<(u32, u64)>,
}

impl Repair {
    /// Loads the note of the store in `directory`. Returns None if there is none. Errors: `File`,
    /// `Json`, `Format` (written by a newer version).
    pub fn load(directory: &Path) -> Result<Option<Repair>> {
        let path = directory.join(REPAIR_FILE);
        let text = match store_file::read(&path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(Error::file("read", &path))?,
        };
        format::parse(&path, &text, REPAIR_FORMAT).map(Some)
    }

    /// Writes the note durably.
    pub fn save(&self, directory: &Path) -> Result<()> {
        store_file::replace_json(&directory.join(REPAIR_FILE), self, MustSurvive::Node)
    }

    /// Removes the note durably, when the repair is over.
    pub fn forget(directory: &Path) -> Result<()> {
        let path = directory.join(REPAIR_FILE);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let durable = removed.and_then(|()| File::open(directory)?.sync_all());
        durable.map_err(Error::file("remove", &path))
    }

    /// Returns the paths before and after all renames.
    pub fn places(&self) -> Places {
        let places = self.moves.iter().flat_map(|one| [one.from.clone(), one.to.clone()]);
        Places(places.collect())
    }
}

/// Paths of a repair, with everything below them.
#[derive(Clone)]
pub struct Places(HashSet<FilePath>);

impl Places {
    /// Whether the file at `path` is part of the repair.
    pub fn have(&self, path: &FilePath) -> bool {
        let parents = std::iter::successors(Some(path.clone()), |path| Some(path.split()?.0));
        parents.into_iter().any(|place| self.0.contains(&place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_store::{TestStore, path};

    fn note(from: &str, to: &str) -> Repair {
        let (from, to) = (path(from), path(to));
        let moves = vec![Move { inode: 7, from, to, replaces: Some((5, 2)) }];
        Repair {
            format: REPAIR_FORMAT,
            aside: Vec::new(),
            unfinished: false,
            goes_on: None,
            brought: vec![],
            moves,
        }
    }

    #[test]
    fn note_is_read_back_until_it_is_forgotten_and_a_newer_one_is_refused() {
        let store = TestStore::new();
        assert_eq!(Repair::load(&store.path).expect("there is none"), None);
        let mut repair = note("ckpt-1", ".cairn-damaged/ckpt-1");
        repair.save(&store.path).expect("saves");
        assert_eq!(Repair::load(&store.path).expect("loads"), Some(repair.clone()));
        repair.format = REPAIR_FORMAT + 1;
        repair.save(&store.path).expect("saves");
        assert!(matches!(Repair::load(&store.path), Err(Error::Format { .. })));
        Repair::forget(&store.path).expect("forgets");
        Repair::forget(&store.path).expect("there is nothing to forget");
        assert_eq!(Repair::load(&store.path).expect("there is none"), None);
    }

    #[test]
    fn directory_is_touched_with_all_in_it_and_no_other_that_begins_alike() {
        let places = note("ckpt-1", ".cairn-damaged/ckpt-1").places();
        for touched in ["ckpt-1", "ckpt-1/a", ".cairn-damaged/ckpt-1/a"] {
            assert!(places.have(&path(touched)), "{touched}");
        }
        for other in ["ckpt-10/a", "ckpt-2/a", "a/ckpt-1", ".cairn-damaged/ckpt-10/a"] {
            assert!(!places.have(&path(other)), "{other}");
        }
    }
}
