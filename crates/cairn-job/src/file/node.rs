//! Names of a store by path, with the attributes of the files they lead to.

use cairn_core::Absence;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::file::extended::Extended;
use crate::file::path::FilePath;

/// Kind of a file.
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

/// A name in the store, with the attributes of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Inode number.
    pub inode: u32,
    /// Kind of file.
    pub kind: Kind,
    /// Length of a regular file; 0 for anything else.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// When its data were last written, or a directory got its name or an entry changed,
    /// nanoseconds since the epoch: by our own clock, also where the program has set a modification
    /// time.
    pub written_ns: i64,
    /// Number of hard links of a regular file; at least 1.
    pub links: u32,
    /// Whether it is a directory that got its name by `rename`, with its content.
    pub renamed: bool,
    /// Version of the data.
    pub version: u64,
    /// Whether the last writer died, or could not write everything.
    pub unclean: bool,
    /// Whether it was unclean at any time since it was last emptied.
    pub torn: bool,
    /// Whether somebody may write to it.
    pub open: bool,
    /// Whether this version was drained and verified, to the persist directory of that time.
    pub drained: bool,
    /// Set if the data are still only where they were drained to.
    pub absence: Option<Absence>,
    /// Target of a symbolic link; else empty.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub extended: Extended,
}

impl Node {
    /// Returns an empty file, directory or link with one name, closed in order and never drained.
    pub fn new(inode: u32, kind: Kind) -> Node {
        Node {
            inode,
            kind,
            bytes: 0,
            mode: 0o644,
            mtime_ns: 0,
            written_ns: 0,
            links: 1,
            renamed: false,
            version: 1,
            unclean: false,
            torn: false,
            open: false,
            drained: false,
            absence: None,
            target: Vec::new(),
            extended: Extended::default(),
        }
    }
}

/// All names of a store, by path.
pub type Tree = BTreeMap<FilePath, Node>;
