//! The steps that turn the persist directory from one cut of a store to the next.
//!
//! Must stay true: each step can be carried out again: it looks whether it is done already. So a
//! turn that was cut off is finished by carrying out all of its steps once more.
//!
//! Does not decide which steps are needed (`drain/sequence.rs`) nor when (`ledger.rs`).

use crate::file::extended::Extended;
use crate::file::path::FilePath;
use crate::outside::manifest::Entry;
use serde::{Deserialize, Serialize};

/// What becomes of the copy that a new one replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It is removed.
    #[default]
    Gone,
    /// It is the last whole version of the file: it goes to the directory for these.
    Whole,
    /// A later copy of the file will be made from it.
    Spare,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub enum Step {
    /// Removes our copy, or a directory if it is empty.
    Remove {
        /// Its path.
        path: FilePath,
    },
    /// Says something else of a copy that stays as it is.
    Entry {
        /// Its path.
        path: FilePath,
        /// Its entry.
        entry: Entry,
    },
    /// Drops the entry of something that is not there.
    Forget {
        /// Its path.
        path: FilePath,
    },
    /// Makes a directory.
    Directory {
        /// Its path.
        path: FilePath,
        /// Its entry.
        entry: Entry,
        /// Its extended attributes.
        #[serde(default, skip_serializing_if = "Extended::is_empty")]
        extended: Extended,
    },
    /// Renames a copy.
    Rename {
        /// Its present path.
        from: FilePath,
        /// Its next path.
        path: FilePath,
        /// Its inode in the persist directory; 0 if it is not ours any more.
        inode: u64,
        /// What becomes of the copy that has the name.
        #[serde(default)]
        fate: Fate,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Its path.
        path: FilePath,
        /// Its entry, with the target.
        entry: Entry,
    },
    /// Gives a verified copy its name.
    Place {
        /// Path of the copy.
        path: FilePath,
        /// Its entry.
        entry: Entry,
        /// Its inode in the persist directory.
        inode: u64,
        /// What becomes of the copy that has the name.
        fate: Fate,
    },
    /// Gives a copy another name.
    Link {
        /// A path of the copy.
        from: FilePath,
        /// Its further path.
        path: FilePath,
        /// The entry of that path.
        entry: Entry,
        /// What becomes of the copy that has the name.
        #[serde(default)]
        fate: Fate,
    },
    /// Sets mode, time and extended attributes of a copy.
    Attributes {
        /// Its path.
        path: FilePath,
        /// Permission bits.
        mode: u32,
        /// Modification time, nanoseconds since the epoch.
        mtime_ns: i64,
        /// Extended attributes.
        #[serde(default, skip_serializing_if = "Extended::is_empty")]
        extended: Extended,
    },
    /// Removes the last whole version of a file: a whole one has its name again, or it is not
    /// needed any more.
    Release {
        /// Path of the file.
        path: FilePath,
    },
}

impl Step {
    /// Whether it changes the manifest alone, so that it needs no journal.
    pub fn is_of_manifest(&self) -> bool {
        matches!(self, Step::Entry { .. } | Step::Forget { .. })
    }

    /// Returns the path that changes.
    pub fn path(&self) -> &FilePath {
        match self {
            Step::Remove { path }
            | Step::Entry { path, .. }
            | Step::Forget { path }
            | Step::Directory { path, .. }
            | Step::Rename { path, .. }
            | Step::Symlink { path, .. }
            | Step::Place { path, .. }
            | Step::Link { path, .. }
            | Step::Attributes { path, .. }
            | Step::Release { path } => path,
        }
    }
}
