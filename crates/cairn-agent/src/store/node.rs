//! What a store has, by path: names, and what is known of what they name.

use crate::model::path::FilePath;
use crate::store::extended::Extended;
use cairn_core::Absence;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// A name in the store and what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The inode's number.
    pub inode: u32,
    /// What it is.
    pub kind: Kind,
    /// Length of a regular file, 0 for anything else.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Last change of the data, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// How many names it has, one and more of a regular file.
    pub links: u32,
    /// A directory that got its name by `rename`, with all that is in it.
    pub renamed: bool,
    /// Version of the data.
    pub version: u64,
    /// The last writer died, or could not write all.
    pub unclean: bool,
    /// It was unclean since it was last emptied.
    pub torn: bool,
    /// Somebody may write to it.
    pub open: bool,
    /// This version was drained and verified, to wherever the store drained then.
    pub drained: bool,
    /// The data are still where they were drained to.
    pub absence: Option<Absence>,
    /// Target of a symbolic link, else empty.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub extended: Extended,
}

/// Everything in a store, by path.
pub type Tree = BTreeMap<FilePath, Node>;
