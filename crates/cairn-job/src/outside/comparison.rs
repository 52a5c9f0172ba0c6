//! Compares a file of the store with its entry in the manifest, and builds new entries.

use crate::file::extended::Carried;
use crate::file::node::{Kind, Node};
use crate::outside::manifest::{Copy, Entry, State};

impl Node {
    /// Returns the manifest entry of the file's present state, without a copy.
    pub fn entry(&self, state: State) -> Entry {
        Entry {
            kind: self.kind,
            state,
            inode: self.inode,
            version: self.version,
            bytes: self.bytes,
            crc32c: None,
            mode: self.mode,
            mtime_ns: self.mtime_ns,
            extended: None,
            earlier: None,
            target: None,
            reason: None,
            detached: false,
            unclosed: self.open || self.unclean,
            damaged: false,
            torn: self.torn,
        }
    }

    /// Returns the manifest entry of the file once `copy` has its name.
    pub fn drained_entry(&self, copy: Copy) -> Entry {
        let mut entry = self.entry(State::Drained);
        entry.set_copy(copy);
        entry
    }
}

/// Whether the copy of `entry` holds the data of the absent file `node`.
pub fn holds_data_of(entry: &Entry, node: &Node) -> bool {
    let data = node.absence.map(|absence| (node.bytes, absence.crc32c));
    data.is_some() && entry.copy().map(|copy| (copy.bytes, copy.crc32c)) == data
}

/// Whether `entry` describes a copy with the bytes of `node`, whatever its attributes are.
pub fn has_bytes_of(entry: &Entry, node: &Node) -> bool {
    let is_copy = entry.kind == Kind::File && entry.state == State::Drained;
    let is_same = (entry.inode, entry.version) == (node.inode, node.version);
    is_copy && is_same && !entry.detached && !entry.damaged
}

/// Whether mode, modification time or extended attributes of `node` differ from `entry`.
pub fn has_other_attributes(node: &Node, entry: &Entry) -> bool {
    node.mode != entry.mode
        || node.mtime_ns != entry.mtime_ns
        || has_other_extended(node, entry.extended)
}

/// Whether extended attributes of `node` differ from those that a copy got (`carried`).
pub fn has_other_extended(node: &Node, carried: Option<Carried>) -> bool {
    let kept = carried.is_none_or(|carried| carried.kept);
    node.extended.carried(kept) != carried
}
