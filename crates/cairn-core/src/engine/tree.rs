//! B+tree of 128-bit keys in 2 KiB nodes; the key is the whole entry.
//!
//! Names and extents are in such trees (NVMe-CR, section III-E keeps names in a B+tree). A node
//! that becomes empty is freed at once. Nodes are not merged otherwise, so an entry is removed
//! without touching siblings.
//!
//! ```text
//! word 0   entry count | level << 16      (level 0 = leaf)
//! word 2.. leaf:  (high, low) × 127       inner: (high, low, child) × 84
//! ```
//!
//! Invariant: keys ascend within a node; every key in child i of an inner node is >= key i and <
//! key i+1. Key 0 of an inner node counts as minus infinity and is never read.

use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::SlabKind;
use crate::format::types::InodeId;

/// A tree, identified by the word that holds its root node (0 = empty).
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    pub root_word: usize,
}

/// An entry, compared as one 128-bit number.
pub(crate) type Key = u128;

pub(crate) fn key(high: u64, low: u64) -> Key {
    Key::from(high) << 64 | Key::from(low)
}

pub(crate) fn high(key: Key) -> u64 {
    (key >> 64) as u64
}

pub(crate) fn low(key: Key) -> u64 {
    key as u64
}

const ENTRIES: usize = 2;
const LEAF_CAPACITY: usize = 127;
const INNER_CAPACITY: usize = 84;
const LEAF_STRIDE: usize = 2;
const INNER_STRIDE: usize = 3;
const DEPTH_MAX: usize = 16;

#[derive(Clone, Copy)]
struct Node {
    index: u32,
    at: usize,
    count: usize,
    level: usize,
}

impl Node {
    fn stride(&self) -> usize {
        if self.level == 0 { LEAF_STRIDE } else { INNER_STRIDE }
    }

    fn capacity(&self) -> usize {
        if self.level == 0 { LEAF_CAPACITY } else { INNER_CAPACITY }
    }

    fn entry(&self, position: usize) -> usize {
        self.at + ENTRIES + position * self.stride()
    }

    fn key(&self, tx: &Transaction, position: usize) -> Key {
        let at = self.entry(position);
        key(tx.get(at), tx.get(at + 1))
    }

    fn child(&self, tx: &Transaction, position: usize) -> u32 {
        tx.get(self.entry(position) + 2) as u32
    }

    fn set_count(&mut self, tx: &mut Transaction, count: usize) {
        tx.absent.set(None);
        self.count = count;
        tx.set(self.at, (self.level as u64) << 16 | count as u64);
    }

    /// Returns the number of entries <= `wanted`; key 0 of an inner node always counts.
    ///
    /// The branch on the comparison is intended: speculation then fetches the next key, and such
    /// fetches bound a tree that is larger than the cache (a branchless search measured 15 % slower
    /// at 100 000 names).
    fn upper_bound(&self, tx: &Transaction, wanted: Key) -> usize {
        let (mut from, mut to) = (usize::from(self.level > 0), self.count);
        while from < to {
            let middle = (from + to) / 2;
            match self.key(tx, middle) <= wanted {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }

    /// Returns the position of the child whose range holds `wanted`.
    fn child_for(&self, tx: &Transaction, wanted: Key) -> usize {
        self.upper_bound(tx, wanted).saturating_sub(1)
    }
}

/// A position in a leaf, in front of the entry that a search ended at. Keys between that entry and
/// the one before it in the leaf belong there.
#[derive(Clone, Copy)]
pub(crate) struct Gap {
    leaf: u32,
    position: usize,
}

/// Result of a search for a name that does not exist.
#[derive(Clone, Copy)]
pub(crate) struct Absent {
    pub(crate) directory: InodeId,
    /// Hash of the name; no other name of the directory has it.
    pub(crate) hash: u64,
    /// Place of the name in the tree.
    pub(crate) gap: Option<Gap>,
}

/// The nodes from the root to a leaf, with the position taken in each.
struct Path {
    steps: [(Node, usize); DEPTH_MAX],
    length: usize,
}

impl Tree {
    /// Returns the greatest entry <= `wanted`.
    pub(crate) fn floor(self, tx: &Transaction, wanted: Key) -> Option<Key> {
        let found = self.find_floor(tx, wanted)?;
        in_order(tx, found <= wanted, found)
    }

    fn find_floor(self, tx: &Transaction, wanted: Key) -> Option<Key> {
        let mut node = self.root(tx)?;
        let mut left_sibling = None;
        for _ in 0..DEPTH_MAX {
            if node.level == 0 {
                let bound = node.upper_bound(tx, wanted);
                if bound > 0 {
                    return Some(node.key(tx, bound - 1));
                }
                return self.last_below(tx, left_sibling?);
            }
            let position = node.child_for(tx, wanted);
            if position > 0 {
                left_sibling = Some((node, position - 1));
            }
            node = load_below(tx, &node, position)?;
        }
        None
    }

    /// Returns the smallest entry >= `wanted`.
    pub(crate) fn ceiling(self, tx: &Transaction, wanted: Key) -> Option<Key> {
        self.ceiling_and_gap(tx, wanted).map(|(found, _)| found)
    }

    /// Returns the smallest entry >= `wanted` and the gap in front of it.
    pub(crate) fn ceiling_and_gap(self, tx: &Transaction, wanted: Key) -> Option<(Key, Gap)> {
        let (found, gap) = self.find_ceiling(tx, wanted)?;
        Some((in_order(tx, found >= wanted, found)?, gap))
    }

    fn find_ceiling(self, tx: &Transaction, wanted: Key) -> Option<(Key, Gap)> {
        let mut node = self.root(tx)?;
        let mut right_sibling = None;
        for _ in 0..DEPTH_MAX {
            if node.level == 0 {
                let bound = match wanted {
                    0 => 0,
                    _ => node.upper_bound(tx, wanted - 1),
                };
                if bound < node.count {
                    return Some((node.key(tx, bound), Gap { leaf: node.index, position: bound }));
                }
                return self.first_below(tx, right_sibling?);
            }
            let position = node.child_for(tx, wanted);
            if position + 1 < node.count {
                right_sibling = Some((node, position + 1));
            }
            node = load_below(tx, &node, position)?;
        }
        None
    }

    /// Returns the entries from `from` on, in ascending order.
    pub(crate) fn ascend<'t, 'm>(self, tx: &'t Transaction<'m>, from: Key) -> Ascent<'t, 'm> {
        Ascent { tree: self, tx, leaf: None, position: 0, from: Some(from) }
    }

    /// Adds `entry`, which must be absent. Errors: `NoInodes` when no node is left.
    pub(crate) fn insert(self, tx: &mut Transaction, entry: Key) -> Result<()> {
        if tx.get(self.root_word) == 0 {
            let root = new_node(tx, 0)?;
            tx.set(self.root_word, u64::from(root.index));
        }
        let Some(path) = self.descend(tx, entry) else {
            return Ok(());
        };
        let (mut leaf, _) = path.steps[path.length - 1];
        let position = leaf.upper_bound(tx, entry);
        if leaf.count < LEAF_CAPACITY {
            insert_entry(tx, &mut leaf, position, entry, None);
            return Ok(());
        }
        self.insert_splitting(tx, &path, entry)
    }

    /// Adds `entry`, which must be absent, in `gap` if it belongs there. Returns false, with
    /// nothing done, otherwise. Precondition: no tree has changed since the gap was found in this
    /// tree.
    pub(crate) fn insert_into(self, tx: &mut Transaction, gap: Gap, entry: Key) -> bool {
        let Some(mut leaf) = load(tx, gap.leaf) else { return false };
        let inside = leaf.level == 0 && gap.position > 0 && gap.position < leaf.count;
        let fits = inside
            && leaf.count < LEAF_CAPACITY
            && leaf.key(tx, gap.position - 1) < entry
            && entry < leaf.key(tx, gap.position);
        if fits {
            insert_entry(tx, &mut leaf, gap.position, entry, None);
        }
        fits
    }

    /// Removes `entry`. Returns false if it is absent.
    pub(crate) fn remove(self, tx: &mut Transaction, entry: Key) -> bool {
        let Some(path) = self.descend(tx, entry) else {
            return false;
        };
        let (mut node, _) = path.steps[path.length - 1];
        let bound = node.upper_bound(tx, entry);
        if bound == 0 || node.key(tx, bound - 1) != entry {
            return false;
        }
        remove_entry(tx, &mut node, bound - 1);
        let mut depth = path.length - 1;
        while node.count == 0 {
            tx.give_back(SlabKind::Node, node.index);
            if depth == 0 {
                tx.set(self.root_word, 0);
                return true;
            }
            depth -= 1;
            let (parent, position) = path.steps[depth];
            node = parent;
            remove_entry(tx, &mut node, position);
        }
        self.lower_root(tx);
        true
    }

    /// Replaces `old`, which must be present, by `new`, which must sort to the same place among the
    /// entries. Done in place where the separators above allow it: a separator may be an earlier
    /// entry that lay between the two.
    pub(crate) fn replace(self, tx: &mut Transaction, old: Key, new: Key) -> Result<()> {
        let Some(path) = self.descend(tx, old) else {
            tx.mark_corrupt("entry to be replaced is not in its tree");
            return Ok(());
        };
        let fits = path.steps[..path.length - 1].iter().all(|(node, position)| {
            (*position == 0 || node.key(tx, *position) <= new)
                && (*position + 1 >= node.count || new < node.key(tx, *position + 1))
        });
        let (leaf, _) = path.steps[path.length - 1];
        let bound = leaf.upper_bound(tx, old);
        if bound == 0 || leaf.key(tx, bound - 1) != old {
            tx.mark_corrupt("entry to be replaced is not in its tree");
            return Ok(());
        }
        if !fits {
            self.remove(tx, old);
            return self.insert(tx, new);
        }
        let at = leaf.entry(bound - 1);
        tx.set(at, high(new));
        tx.set(at + 1, low(new));
        Ok(())
    }

    fn root(self, tx: &Transaction) -> Option<Node> {
        match tx.get(self.root_word) as u32 {
            0 => None,
            index => load(tx, index),
        }
    }

    fn descend(self, tx: &Transaction, wanted: Key) -> Option<Path> {
        let root = self.root(tx)?;
        let mut path = Path { steps: [(root, 0); DEPTH_MAX], length: 0 };
        let mut node = root;
        loop {
            let position = if node.level == 0 { 0 } else { node.child_for(tx, wanted) };
            path.steps[path.length] = (node, position);
            path.length += 1;
            if node.level == 0 {
                return Some(path);
            }
            if path.length == DEPTH_MAX {
                tx.mark_corrupt("tree deeper than its bound");
                return None;
            }
            node = load_below(tx, &node, position)?;
        }
    }

    fn last_below(self, tx: &Transaction, (node, position): (Node, usize)) -> Option<Key> {
        let mut node = load_below(tx, &node, position)?;
        while node.level > 0 {
            node = load_below(tx, &node, node.count - 1)?;
        }
        Some(node.key(tx, node.count - 1))
    }

    fn first_below(self, tx: &Transaction, (node, position): (Node, usize)) -> Option<(Key, Gap)> {
        let mut node = load_below(tx, &node, position)?;
        while node.level > 0 {
            node = load_below(tx, &node, 0)?;
        }
        Some((node.key(tx, 0), Gap { leaf: node.index, position: 0 }))
    }

    /// Splits full nodes from the leaf upwards until one has room.
    fn insert_splitting(self, tx: &mut Transaction, path: &Path, entry: Key) -> Result<()> {
        let (mut entry, mut child) = (entry, None);
        for depth in (0..path.length).rev() {
            let (mut node, _) = path.steps[depth];
            let position = node.upper_bound(tx, entry);
            if node.count < node.capacity() {
                insert_entry(tx, &mut node, position, entry, child);
                return Ok(());
            }
            let mut right = new_node(tx, node.level)?;
            // Ascending insertion (sequential extents) leaves full nodes behind; any other leaves
            // half-full ones.
            let keep = if position == node.count { node.count } else { node.count / 2 };
            let moved = node.count - keep;
            tx.move_words(node.entry(keep), right.entry(0), moved * node.stride());
            right.set_count(tx, moved);
            node.set_count(tx, keep);
            if position > keep || moved == 0 {
                insert_entry(tx, &mut right, position - keep, entry, child);
            } else {
                insert_entry(tx, &mut node, position, entry, child);
            }
            (entry, child) = (right.key(tx, 0), Some(right.index));
        }
        let (old_root, _) = path.steps[0];
        let mut root = new_node(tx, old_root.level + 1)?;
        insert_entry(tx, &mut root, 0, 0, Some(old_root.index));
        insert_entry(tx, &mut root, 1, entry, child);
        tx.set(self.root_word, u64::from(root.index));
        Ok(())
    }

    /// Replaces a root that has one child by that child.
    fn lower_root(self, tx: &mut Transaction) {
        for _ in 0..DEPTH_MAX {
            let Some(root) = self.root(tx) else { return };
            if root.level == 0 || root.count != 1 {
                return;
            }
            let child = root.child(tx, 0);
            tx.give_back(SlabKind::Node, root.index);
            tx.set(self.root_word, u64::from(child));
        }
    }
}

/// Iterator of [`Tree::ascend`]: one descent per leaf.
pub(crate) struct Ascent<'t, 'm> {
    tree: Tree,
    tx: &'t Transaction<'m>,
    leaf: Option<Node>,
    position: usize,
    /// Lower bound of the next entry; `None` behind the greatest of all keys.
    from: Option<Key>,
}

impl Iterator for Ascent<'_, '_> {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let from = self.from?;
        let found = match self.leaf.filter(|leaf| self.position < leaf.count) {
            Some(leaf) => {
                let found = leaf.key(self.tx, self.position);
                in_order(self.tx, found >= from, found)?
            }
            None => {
                let (found, gap) = self.tree.ceiling_and_gap(self.tx, from)?;
                self.leaf = load(self.tx, gap.leaf);
                self.position = gap.position;
                found
            }
        };
        self.position += 1;
        self.from = found.checked_add(1);
        Some(found)
    }
}

/// Returns `found`, unless it is on the wrong side of the wanted key: callers that walk along the
/// tree rely on progress.
#[inline]
fn in_order(tx: &Transaction, holds: bool, found: Key) -> Option<Key> {
    if !holds {
        tx.mark_corrupt("order of tree entries");
        return None;
    }
    Some(found)
}

/// Loads a node. An impossible header marks the transaction corrupt.
fn load(tx: &Transaction, index: u32) -> Option<Node> {
    let at = tx.record(SlabKind::Node, index);
    let header = tx.get(at);
    let node = Node { index, at, count: header as usize & 0xffff, level: (header >> 16) as usize };
    if node.level >= DEPTH_MAX || node.count > node.capacity() {
        tx.mark_corrupt("tree node header");
        return None;
    }
    Some(node)
}

/// Loads a child, which must be one level lower and not empty.
fn load_below(tx: &Transaction, node: &Node, position: usize) -> Option<Node> {
    if position >= node.count {
        tx.mark_corrupt("empty inner tree node");
        return None;
    }
    let child = load(tx, node.child(tx, position))?;
    if child.level + 1 != node.level || child.count == 0 {
        tx.mark_corrupt("tree levels");
        return None;
    }
    Some(child)
}

fn new_node(tx: &mut Transaction, level: usize) -> Result<Node> {
    let taken = tx.take(SlabKind::Node, Error::NoInodes)?;
    let at = tx.record(SlabKind::Node, taken.index);
    let mut node = Node { index: taken.index, at, count: 0, level };
    node.set_count(tx, 0);
    Ok(node)
}

fn insert_entry(
    tx: &mut Transaction,
    node: &mut Node,
    position: usize,
    entry: Key,
    child: Option<u32>,
) {
    let at = node.entry(position);
    tx.move_words(at, at + node.stride(), (node.count - position) * node.stride());
    tx.set(at, high(entry));
    tx.set(at + 1, low(entry));
    if let Some(child) = child {
        tx.set(at + 2, u64::from(child));
    }
    node.set_count(tx, node.count + 1);
}

fn remove_entry(tx: &mut Transaction, node: &mut Node, position: usize) {
    let at = node.entry(position);
    let behind = node.count - position - 1;
    tx.move_words(at + node.stride(), at, behind * node.stride());
    node.set_count(tx, node.count - 1);
}

#[cfg(test)]
mod tests;
