//! Directory entries: a B+tree keyed by (directory, hash of the name), with the name in a chain of
//! records.
//!
//! ```text
//! tree entry   high: directory << 32 | hash 61..32     low: hash 31..0 << 32 | name record
//! name record  word 0: inode << 32 | probes << 16 | byte length     word 1: directory << 32 | next record     words 2-7: 48 bytes
//! continuation word 0: next record                     words 1-7: 56 bytes
//! ```
//! A name whose hash is taken by another name of the directory takes the next free hash, at most
//! [`PROBES`] further. So (directory, hash) is unique and serves as the position of a directory
//! stream, which stays valid while other names come and go. Targets of symbolic links and extended
//! attributes (extended.rs) are stored in the same chains, with directory 0.
//!
//! Invariant: a record in use as a name has its directory and an inode; any other record lacks one
//! of them. So a record itself says whether it still is what a cache remembers (name_cache.rs).

use crate::engine::name_cache::Place;
use crate::engine::transaction::Transaction;
use crate::engine::tree::{Absent, Key, Tree, high, key, low};
use crate::format::error::{Error, Result};
use crate::format::layout::{NAMES_ROOT, SlabKind};
use crate::format::text;
use crate::format::types::{InodeId, PATH_BYTES_MAX};

const NAMES: Tree = Tree { root_word: NAMES_ROOT };
const HASH_BITS: u32 = 62;
const PROBES: u64 = 8;
const FIRST_BYTES: usize = 48;
const MORE_BYTES: usize = 56;

/// A name found in a directory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub inode: InodeId,
    /// Position in the directory; never 0.
    pub hash: u64,
    record: u32,
}

/// Returns the 62-bit hash of a name, never 0 and far enough from the end to probe. On media: do
/// not change.
pub(crate) fn hash_name(name: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = name.len() as u64 ^ 0x6361_6972_6e66_7331;
    for word in text::words(name) {
        hash = (hash ^ word).wrapping_mul(MULTIPLIER);
        hash ^= hash >> 29;
    }
    hash = hash.wrapping_mul(MULTIPLIER);
    ((hash ^ hash >> 32) >> (64 - HASH_BITS)).clamp(1, (1 << HASH_BITS) - 1 - PROBES)
}

fn entry_key(directory: InodeId, hash: u64, record: u32) -> Key {
    key(u64::from(directory.0) << 32 | hash >> 32, hash << 32 | u64::from(record))
}

fn decode(directory: InodeId, found: Key) -> Option<(u64, u32)> {
    let owner = (high(found) >> 32) as u32;
    let hash = (high(found) & 0xffff_ffff) << 32 | low(found) >> 32;
    (owner == directory.0).then_some((hash, low(found) as u32))
}

impl Transaction<'_> {
    /// Returns the entry `name` of `directory`.
    #[inline(always)]
    pub(crate) fn find_name(&self, directory: InodeId, name: &[u8]) -> Option<Entry> {
        let hash = hash_name(name);
        let place = Place::new(directory, hash);
        self.recall_name(place, directory, hash, name)
            .or_else(|| self.search_name(place, directory, hash, name))
    }

    /// Searches the tree for the entry. Remembers an absent name, because most of them are created
    /// next.
    fn search_name(
        &self,
        place: Place,
        directory: InodeId,
        hash: u64,
        name: &[u8],
    ) -> Option<Entry> {
        let first = NAMES.ceiling_and_gap(self, entry_key(directory, hash, 0));
        let gap = first.map(|(_, gap)| gap);
        let mut next = first.and_then(|(found, _)| decode(directory, found));
        let is_free = next.is_none_or(|(found, _)| found != hash);
        while let Some((found, record)) = next.filter(|(found, _)| *found < hash + PROBES) {
            if self.text_equals(record, name) {
                let inode = self.named_inode(record);
                self.local.names.learn(place, record, inode);
                return Some(Entry { inode, hash: found, record });
            }
            next = NAMES
                .ceiling(self, entry_key(directory, found + 1, 0))
                .and_then(|found| decode(directory, found));
        }
        if is_free {
            self.absent.set(Some(Absent { directory, hash, gap }));
        }
        None
    }

    /// Returns the entry from the record where it was found before, if the record still holds it.
    #[inline(always)]
    fn recall_name(
        &self,
        place: Place,
        directory: InodeId,
        hash: u64,
        name: &[u8],
    ) -> Option<Entry> {
        let (record, likely_inode) = self.local.names.recall(place)?;
        self.prefetch_record(SlabKind::Inode, likely_inode.0);
        let at = self.find_record(SlabKind::Name, record)?;
        let (head, link) = (self.get(at), self.get(at + 1));
        let inode = InodeId((head >> 32) as u32);
        let holds = inode.0 != 0
            && (link >> 32) as u32 == directory.0
            && head as usize & 0xffff == name.len()
            && self.text_at_equals(at, name);
        holds.then_some(Entry { inode, hash: hash + (head >> 16 & 0xffff), record })
    }

    /// Returns the first entry of `directory` whose position is greater than `after`.
    pub(crate) fn next_name(&self, directory: InodeId, after: u64) -> Option<Entry> {
        let from = after.checked_add(1).filter(|&from| from < 1 << HASH_BITS)?;
        let (hash, record) =
            decode(directory, NAMES.ceiling(self, entry_key(directory, from, 0))?)?;
        Some(Entry { inode: self.named_inode(record), hash, record })
    }

    /// Returns the entries of `directory` whose positions are greater than `after`, in order, as
    /// many as fit into `batch`. Prefetches their names and inodes, so that these fetches overlap.
    pub(crate) fn next_names<'b>(
        &self,
        directory: InodeId,
        after: u64,
        batch: &'b mut [Entry],
    ) -> &'b [Entry] {
        let Some(from) = after.checked_add(1).filter(|&from| from < 1 << HASH_BITS) else {
            return &[];
        };
        let found = NAMES.ascend(self, entry_key(directory, from, 0));
        let mut count = 0;
        for (entry, found) in batch.iter_mut().zip(found) {
            let Some((hash, record)) = decode(directory, found) else { break };
            *entry = Entry { inode: InodeId(0), hash, record };
            self.prefetch_record(SlabKind::Name, record);
            count += 1;
        }
        for entry in &mut batch[..count] {
            entry.inode = self.named_inode(entry.record);
            self.prefetch_record(SlabKind::Inode, entry.inode.0);
        }
        &batch[..count]
    }

    /// Adds `name`, which must be absent. Errors: `Corrupt` if it is present; `NoSpace`;
    /// `NoInodes`.
    pub(crate) fn add_name(
        &mut self,
        directory: InodeId,
        name: &[u8],
        inode: InodeId,
    ) -> Result<()> {
        let wanted = hash_name(name);
        let absent = self.absent.take();
        let absent = absent.filter(|absent| (absent.directory, absent.hash) == (directory, wanted));
        let hash = match absent {
            Some(_) => wanted,
            None => self.free_hash(directory, wanted, name)?,
        };
        let record = self.store_text(name, inode)?;
        let at = self.record(SlabKind::Name, record);
        let (head, link) = (self.get(at), self.get(at + 1));
        self.set(at, head | (hash - wanted) << 16);
        self.set_fresh(at + 1, &[u64::from(directory.0) << 32 | link]);
        self.local.names.learn(Place::new(directory, wanted), record, inode);
        let entry = entry_key(directory, hash, record);
        match absent.and_then(|absent| absent.gap) {
            Some(gap) if NAMES.insert_into(self, gap, entry) => Ok(()),
            _ => NAMES.insert(self, entry),
        }
    }

    /// Returns the first hash from `wanted` on that no name of the directory has.
    fn free_hash(&self, directory: InodeId, wanted: u64, name: &[u8]) -> Result<u64> {
        for hash in wanted..wanted + PROBES {
            let found = NAMES
                .ceiling(self, entry_key(directory, hash, 0))
                .and_then(|found| decode(directory, found));
            match found {
                Some((taken, record)) if taken == hash => {
                    if self.text_equals(record, name) {
                        return Err(Error::Corrupt { what: "name given twice" });
                    }
                }
                _ => return Ok(hash),
            }
        }
        Err(Error::NoSpace)
    }

    /// Removes an entry that was just found.
    pub(crate) fn remove_name(&mut self, directory: InodeId, entry: Entry) {
        if !NAMES.remove(self, entry_key(directory, entry.hash, entry.record)) {
            self.mark_corrupt("directory entry without tree entry");
        }
        self.free_text(entry.record);
    }

    /// Makes an entry that was just found name another inode.
    pub(crate) fn redirect_name(&mut self, entry: Entry, inode: InodeId) {
        let at = self.record(SlabKind::Name, entry.record);
        let rest = self.get(at) & 0xffff_ffff;
        self.set(at, u64::from(inode.0) << 32 | rest);
    }

    /// Copies the entry's name to the front of `target` and returns its length.
    pub(crate) fn copy_name(&self, entry: Entry, target: &mut [u8]) -> usize {
        self.copy_text(entry.record, target)
    }

    fn named_inode(&self, record: u32) -> InodeId {
        InodeId((self.get(self.record(SlabKind::Name, record)) >> 32) as u32)
    }

    /// Stores a name, a link target or extended attributes. Returns the first record. `inode`: the
    /// inode that a name names.
    pub(crate) fn store_text(&mut self, text: &[u8], inode: InodeId) -> Result<u32> {
        let (head, rest) = text.split_at(text.len().min(FIRST_BYTES));
        let mut next = 0;
        for chunk in rest.chunks(MORE_BYTES).rev() {
            let record = self.take(SlabKind::Name, Error::NoInodes)?.index;
            let at = self.record(SlabKind::Name, record);
            self.set(at, u64::from(next));
            self.put_bytes(at + 1, chunk);
            next = record;
        }
        let record = self.take(SlabKind::Name, Error::NoInodes)?.index;
        let at = self.record(SlabKind::Name, record);
        self.set(at, u64::from(inode.0) << 32 | text.len() as u64);
        self.set_fresh(at + 1, &[u64::from(next)]);
        self.put_bytes(at + 2, head);
        Ok(record)
    }

    /// Returns the length of a stored text in bytes.
    pub(crate) fn text_length(&self, record: u32) -> usize {
        let length = (self.get(self.record(SlabKind::Name, record)) & 0xffff) as usize;
        if length > PATH_BYTES_MAX {
            self.mark_corrupt("name length");
        }
        length.min(PATH_BYTES_MAX)
    }

    /// Returns the number of records that a stored text takes.
    pub(crate) fn text_records(&self, record: u32) -> u64 {
        let more = self.text_length(record).saturating_sub(FIRST_BYTES);
        1 + more.div_ceil(MORE_BYTES) as u64
    }

    /// Returns the number of records that the name of an entry takes.
    pub(crate) fn name_records(&self, entry: Entry) -> u64 {
        self.text_records(entry.record)
    }

    /// Copies a stored text to the front of `target` and returns its length. Up to seven bytes
    /// behind it may change, too.
    pub(crate) fn copy_text(&self, record: u32, target: &mut [u8]) -> usize {
        let length = self.text_length(record).min(target.len());
        let mut at = 0;
        self.for_text_words(self.record(SlabKind::Name, record), length, |word, count| {
            let bytes = word.to_le_bytes();
            match target[at..].first_chunk_mut() {
                Some(whole) => *whole = bytes,
                None => target[at..at + count].copy_from_slice(&bytes[..count]),
            }
            at += count;
            true
        });
        length
    }

    fn text_equals(&self, record: u32, name: &[u8]) -> bool {
        self.text_length(record) == name.len()
            && self.text_at_equals(self.record(SlabKind::Name, record), name)
    }

    /// Whether the text that begins with the record at `at`, and is as long as `name`, equals
    /// `name`.
    fn text_at_equals(&self, at: usize, name: &[u8]) -> bool {
        let mut wanted = text::words(name);
        self.for_text_words(at, name.len(), |word, _| Some(word) == wanted.next())
    }

    /// Visits the text that begins with the record at `at`, word by word, each with the number of
    /// its bytes that belong to the text. Returns false if `visit` stopped it.
    fn for_text_words(
        &self,
        mut at: usize,
        length: usize,
        mut visit: impl FnMut(u64, usize) -> bool,
    ) -> bool {
        let mut next = self.get(at + 1) as u32;
        let mut left = length;
        let mut words = at + 2..at + 8;
        while left > 0 {
            let Some(word) = words.next() else {
                at = self.record(SlabKind::Name, next);
                next = self.get(at) as u32;
                words = at + 1..at + 8;
                continue;
            };
            let take = left.min(8);
            if !visit(self.get(word), take) {
                return false;
            }
            left -= take;
        }
        true
    }

    /// Frees the records of a stored text.
    pub(crate) fn free_text(&mut self, record: u32) {
        let mut left = self.text_length(record).saturating_sub(FIRST_BYTES);
        let mut next = self.get(self.record(SlabKind::Name, record) + 1) as u32;
        self.give_back(SlabKind::Name, record);
        while left > 0 {
            let following = self.get(self.record(SlabKind::Name, next)) as u32;
            self.give_back(SlabKind::Name, next);
            next = following;
            left = left.saturating_sub(MORE_BYTES);
        }
    }

    /// Stores bytes in a record that was just taken.
    fn put_bytes(&mut self, first: usize, bytes: &[u8]) {
        for (at, word) in (first..).zip(text::words(bytes)) {
            self.set_fresh(at, &[word]);
        }
    }
}
