//! A repair of checkpoints that is under way, or was cut off: `repair.json` in the store's
//! directory is there from before the first name changes until the last one has, and the register
//! knows of it.
//!
//! Must stay true: what the note names is part of no checkpoint as long as it is there, and nobody
//! drains it; what is being built to take the place of something damaged is seen by nobody who
//! looks at a tree. Moves nothing: `cairn run` does, before a program starts.

use crate::checkpoint::sets::Name;
use crate::model::error::{Error, Result};
use crate::model::format;
use crate::model::path::{ASIDE, FilePath};
use crate::model::store_file::{self, Outlives};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Name of the note in the store's directory.
pub const REPAIR_FILE: &str = "repair.json";
/// Format that this version writes, and the newest it reads.
pub const REPAIR_FORMAT: u32 = 1;
/// Longest note that is read.
const BYTES_MAX: usize = 1 << 30;
/// The directory in that one where content is built.
pub const NEW: &[u8] = b".cairn-building";

/// What is to be done to the checkpoints of a family. Paths are those of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// Format of the note.
    pub format: u32,
    /// Checkpoints that are set aside.
    pub aside: Vec<Name>,
    /// The checkpoint that programs go on from; none if there is none.
    pub goes_on: Option<Name>,
    /// The files of that one, in their order, if it is brought from outside.
    pub brought: Vec<FilePath>,
    /// In this order.
    pub moves: Vec<Move>,
}

/// A name that changes. It has when `to` names the inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// What is moved.
    pub inode: u32,
    /// Where it is before.
    pub from: FilePath,
    /// Where it is afterwards.
    pub to: FilePath,
    /// The damaged file, and the version of its data, that is there before and takes the other
    /// place; none if nothing is.
    pub replaces: Option<(u32, u64)>,
}

impl Repair {
    /// That of the store in `directory`, if there is one. Errors: `File`, `Json`, `Format` (written
    /// by a newer version).
    pub fn load(directory: &Path) -> Result<Option<Repair>> {
        let path = directory.join(REPAIR_FILE);
        let text = match store_file::read(&path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(Error::file("read", &path))?,
        };
        format::parse(&path, &text, REPAIR_FORMAT).map(Some)
    }

    /// Writes it down, durably.
    pub fn save(&self, directory: &Path) -> Result<()> {
        store_file::replace_json(&directory.join(REPAIR_FILE), self, Outlives::Node)
    }

    /// It is over: forgets it, durably.
    pub fn forget(directory: &Path) -> Result<()> {
        let path = directory.join(REPAIR_FILE);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let durable = removed.and_then(|()| File::open(directory)?.sync_all());
        durable.map_err(Error::file("remove", &path))
    }

    /// Where something is part of it, before or afterwards.
    pub fn places(&self) -> Places {
        let places = self.moves.iter().flat_map(|one| [one.from.clone(), one.to.clone()]);
        Places(places.collect())
    }
}

/// What a repair moves, with all that lies in it.
#[derive(Clone)]
pub struct Places(HashSet<FilePath>);

impl Places {
    /// Whether what is at `path` is part of it.
    pub fn have(&self, path: &FilePath) -> bool {
        let parents = std::iter::successors(Some(path.clone()), |path| Some(path.split()?.0));
        parents.into_iter().any(|place| self.0.contains(&place))
    }
}

/// Whether `path`, in its namespace, lies among what was set aside.
pub fn is_aside(path: &FilePath) -> bool {
    path.components().next() == Some(ASIDE)
}

/// Where content is built, in its namespace.
pub fn building_place() -> FilePath {
    FilePath::root().join(ASIDE).join(NEW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_store::{TestStore, path};

    fn note(from: &str, to: &str) -> Repair {
        let (from, to) = (path(from), path(to));
        let moves = vec![Move { inode: 7, from, to, replaces: Some((5, 2)) }];
        Repair { format: REPAIR_FORMAT, aside: Vec::new(), goes_on: None, brought: vec![], moves }
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
