//! Which torn files give their places to their last whole versions before a program resumes.
//!
//! Programs that write each checkpoint over the one before (`last.ckpt`) cannot go on from one that
//! they were killed in. On a disk they could not either, but the whole one is outside.
//!
//! Must stay true: a file is chosen only if nothing else depends on what it says. It stands alone:
//! no other file of its directory was being written, or is called like it, as the journals of
//! databases and the parts of one checkpoint are. Whether there is a whole version that is longer,
//! `repair.rs` finds: what was appended to, and what is changed in place, stays as it is.

use cairn_job::file::node::{Kind, Node, Tree};
use cairn_job::file::path;
use cairn_job::file::path::FilePath;
use std::collections::HashMap;

/// A file whose writer died or could not write everything.
#[derive(Debug, PartialEq, Eq)]
pub struct Torn {
    /// Its path.
    pub path: FilePath,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Chooses among the torn files of a namespace, which lies below `prefix`.
pub fn chosen(tree: &Tree, prefix: &FilePath) -> Vec<Torn> {
    let mut directories: HashMap<FilePath, Vec<(&[u8], &Node)>> = HashMap::new();
    for (path, node) in tree.iter().filter(|(_, node)| node.kind != Kind::Directory) {
        if let Some((parent, name)) = path.split() {
            directories.entry(parent).or_default().push((name, node));
        }
    }
    let mut torn = Vec::new();
    for (directory, files) in directories {
        let mut unclean = files.iter().filter(|(_, node)| node.unclean || node.open);
        let (Some((name, node)), None) = (unclean.next(), unclean.next()) else { continue };
        let path = directory.join(name);
        let is_alone = node.links == 1
            && !node.open
            && !files.iter().any(|(other, _)| other != name && belong_together(name, other));
        let is_aside = path.strip_prefix(prefix).is_some_and(|inner| path::is_aside(&inner));
        if is_alone && !is_aside {
            torn.push(Torn { path, bytes: node.bytes });
        }
    }
    torn.sort_by(|one, other| one.path.cmp(&other.path));
    torn
}

/// Whether two files of a directory are called alike: one name begins with the other, or they
/// differ only in what follows the last dot.
fn belong_together(one: &[u8], other: &[u8]) -> bool {
    let stem = |name: &[u8]| match name.iter().rposition(|byte| *byte == b'.') {
        Some(at) if at > 0 => name[..at].to_vec(),
        _ => name.to_vec(),
    };
    one.starts_with(other) || other.starts_with(one) || stem(one) == stem(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a directory, those that end with `!` torn.
    fn chosen_of(names: &[&str]) -> Vec<String> {
        let node =
            |unclean: bool| Node { bytes: 5, unclean, torn: unclean, ..Node::new(2, Kind::File) };
        let path = |name: &str| FilePath::parse(name.as_bytes()).expect("a path");
        let tree = names.iter().map(|name| match name.strip_suffix('!') {
            Some(torn) => (path(torn), node(true)),
            None => (path(name), node(false)),
        });
        chosen(&tree.collect(), &FilePath::root())
            .iter()
            .map(|torn| torn.path.to_string())
            .collect()
    }

    #[test]
    fn file_is_chosen_if_it_stands_alone() {
        assert_eq!(
            chosen_of(&["ck/last.ckpt!", "ck/last-v1.ckpt", "log!"]),
            ["ck/last.ckpt", "log"]
        );
        assert_eq!(chosen_of(&["state!"]), ["state"]);
    }

    #[test]
    fn databases_and_parts_of_checkpoints_are_never_chosen() {
        for beside in ["a.db-journal", "a.db-wal!", "a.index", "a", "b.db!"] {
            assert!(chosen_of(&["d/a.db!", &format!("d/{beside}")]).is_empty(), "{beside}");
        }
        assert!(chosen_of(&[".cairn-damaged/a!"]).is_empty());
    }
}
