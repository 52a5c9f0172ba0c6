//! Hard links to existing copies instead of further copies: for a file with several names in the
//! store, and for a file that an image shares with the persist directory or with the image before
//! it.
//!
//! Must stay true: only a copy that matches its entry gets another name, and only for a file of
//! that version with those attributes. A file with several names is never changed through one of
//! them (`destination.rs`).
//!
//! Does not copy where a file system has no hard links, except for files whose data the store does
//! not have.

use crate::drain::copy::{Place, Source, compare};
use crate::drain::meter::Meter;
use crate::model::error::{Error, Result};
use crate::model::path::FilePath;
use crate::persist::comparison::has_other_attributes;
use crate::persist::destination::Destination;
use crate::persist::manifest::{Copy, Entry, Manifest, State};
use crate::store::extended::Extended;
use crate::store::node::{Kind, Node};
use crate::store::read::Buffer;
use std::collections::HashSet;
use std::io;

/// Another directory with copies of files of the same store.
pub struct Elsewhere<'a> {
    /// The directory.
    pub destination: &'a Destination,
    /// Its manifest.
    pub manifest: &'a Manifest,
    /// Whether its files may be linked to. A directory that is meant to be kept gets copies of its
    /// own, because somebody may write to the files here.
    pub shares: bool,
    /// Files whose copies there may be older than the files.
    pub except: &'a HashSet<FilePath>,
}

/// Whether `entry` describes a copy of exactly `node`.
pub fn is_copy_of(entry: &Entry, node: &Node) -> bool {
    let is_copy = entry.kind == Kind::File && entry.state == State::Drained;
    let is_same = (entry.inode, entry.version) == (node.inode, node.version);
    let is_sound = !entry.detached && !entry.damaged;
    is_copy && is_same && is_sound && !has_other_attributes(node, entry)
}

/// Whether `entry` describes a copy of the file that `node` was, of that version or a later one.
/// Its attributes may be others: all names of a file have the same ones, and a later pass sets
/// them.
pub fn is_copy_of_file(entry: &Entry, node: &Node) -> bool {
    let is_copy = entry.kind == Kind::File && entry.state == State::Drained;
    let is_sound = !entry.detached && !entry.damaged;
    is_copy && is_sound && entry.inode == node.inode && entry.version >= node.version
}

impl Elsewhere<'_> {
    /// Returns the entry of a copy of exactly `node` at the same path here.
    pub fn entry(&self, path: &FilePath, node: &Node) -> Option<&Entry> {
        let entry = self.manifest.files.get(path).filter(|entry| is_copy_of(entry, node));
        entry.filter(|_| !self.except.contains(path))
    }

    /// Copies `source`, whose data the store does not have, from here to `place`. None if its copy
    /// is not here.
    pub fn copy(
        &self,
        place: Place<'_>,
        source: Source<'_>,
        buffer: &mut Buffer,
        meter: &Meter,
    ) -> Result<Option<Copy>> {
        let found = self.destination.look(source.path)?;
        let Some(entry) = self.entry(source.path, source.node) else { return Ok(None) };
        let Some(copy) = entry.copy().filter(|_| found.is_some_and(|found| entry.is_ours(&found)))
        else {
            return Ok(None);
        };
        let mut file = self.destination.open_file(source.path)?;
        let mut temporary = place.destination.create_temporary(source.path)?;
        let path = temporary.path().to_path_buf();
        io::copy(&mut file, &mut temporary.file).map_err(Error::file("write", &path))?;
        Extended::read(&file).give(&temporary.file);
        temporary.finish(copy.mode, Some(copy.mtime_ns))?;
        compare(&temporary.file, &path, (copy.bytes, copy.crc32c), buffer, meter)?;
        source.announce(place.journal, &copy, temporary.inode()?)?;
        temporary.publish()?;
        Ok(Some(copy))
    }
}

/// Links the copy at `other` in the directory `there`, described by `entry`, to the path of
/// `source`. None if the copy does not match its entry any more, or cannot have two names.
pub fn link(
    place: Place<'_>,
    source: Source<'_>,
    (there, other, entry): (&Destination, &FilePath, &Entry),
) -> Result<Option<Copy>> {
    let found = there.look(other)?.filter(|found| entry.is_ours(found));
    let Some((found, copy)) = found.zip(entry.copy()) else { return Ok(None) };
    let linked = place.destination.link_temporary(source.path, (there, other, &found))?;
    let Some(temporary) = linked else { return Ok(None) };
    source.require_image()?;
    source.announce(place.journal, &copy, found.inode)?;
    match source.is_new {
        true => temporary.publish_new()?,
        false => temporary.publish()?,
    }
    Ok(Some(copy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::path::FilePath;
    use crate::test_store::TestStore;

    /// Mechanism: the copy of a file's first name got the mode that a program set meanwhile, and
    /// then did not count as a copy of the file as the pass had seen it. Consequence: the second
    /// name got a copy of its own, and outside they were two files for good.
    #[test]
    fn copy_with_newer_attributes_is_one_of_the_file() {
        let store = TestStore::new();
        store.write("x", b"data", 0o644, 7);
        let tree = store.volume.tree().expect("reads");
        let path = FilePath::parse(b"x").expect("a path");
        let node = tree.get(&path).expect("is there");
        let drained = Entry { mode: node.mode ^ 0o44, ..node.entry(State::Drained) };
        assert!(is_copy_of_file(&drained, node) && !is_copy_of(&drained, node));
        for other in [
            Entry { version: node.version - 1, ..drained.clone() },
            Entry { inode: node.inode + 1, ..drained.clone() },
            Entry { damaged: true, ..drained.clone() },
            Entry { detached: true, ..drained.clone() },
            Entry { state: State::Unclean, ..drained.clone() },
        ] {
            assert!(!is_copy_of_file(&other, node));
        }
    }
}
