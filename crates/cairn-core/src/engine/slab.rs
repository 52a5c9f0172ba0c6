//! Slabs: fixed-size records addressed by index, with a free list.
//!
//! Header of a slab, four words: records ever used (high-water mark), first free record, records in
//! use. Word 0 of a free record is the index of the next free one. Index 0 is never handed out: it
//! means "none". The other words of a record keep their values while it is free (generations rely
//! on this).

use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{SlabKind, SlabRegion};
use std::sync::atomic::{AtomicU64, Ordering};

const HIGH_WATER: usize = 0;
const FREE_FIRST: usize = 1;
const IN_USE: usize = 2;

/// A record taken from a slab.
pub(crate) struct Taken {
    pub index: u32,
    /// Whether the record was never used before: its words are all zero.
    pub pristine: bool,
}

/// Returns the word of the high-water mark in a slab's header, to be read without the lock.
#[inline]
pub(crate) fn marked(header: &[AtomicU64]) -> &AtomicU64 {
    &header[HIGH_WATER]
}

/// Returns the high-water mark: indices below it have been used. Takes no lock.
pub(crate) fn high_water(words: &[AtomicU64], region: &SlabRegion) -> usize {
    let raw = words[region.header + HIGH_WATER].load(Ordering::Relaxed);
    (raw.min(u64::from(region.capacity)) as usize).max(1)
}

impl Transaction<'_> {
    /// Takes a record. Its word 0 must be set by the caller.
    pub(crate) fn take(&mut self, kind: SlabKind, exhausted: Error) -> Result<Taken> {
        let region = *self.layout.slab(kind);
        let free = self.get(region.header + FREE_FIRST);
        let in_use = self.get(region.header + IN_USE);
        self.set(region.header + IN_USE, in_use.wrapping_add(1));
        if free != 0 {
            let at = self.record(kind, free as u32);
            let next = self.get(at);
            self.set(region.header + FREE_FIRST, next);
            return Ok(Taken { index: free as u32, pristine: false });
        }
        let index = self.get(region.header + HIGH_WATER).max(1);
        if index >= u64::from(region.capacity) {
            return Err(exhausted);
        }
        self.set(region.header + HIGH_WATER, index + 1);
        Ok(Taken { index: index as u32, pristine: true })
    }

    /// Frees a record.
    pub(crate) fn give_back(&mut self, kind: SlabKind, index: u32) {
        let header = self.layout.slab(kind).header;
        let at = self.record(kind, index);
        let next = self.get(header + FREE_FIRST);
        let in_use = self.get(header + IN_USE);
        self.gave_back = true;
        self.set(at, next);
        self.set(header + FREE_FIRST, u64::from(index));
        self.set(header + IN_USE, in_use.wrapping_sub(1));
    }

    /// Takes the record `index` without the free list. Returns false if there is no such record.
    /// Only while a namespace is rebuilt, before [`Transaction::rebuild_free_list`].
    pub(crate) fn claim_record(&mut self, kind: SlabKind, index: u32) -> bool {
        let region = *self.layout.slab(kind);
        if index == 0 || index >= region.capacity {
            return false;
        }
        let used = self.get(region.header + HIGH_WATER).max(u64::from(index) + 1);
        let in_use = self.get(region.header + IN_USE);
        self.set(region.header + HIGH_WATER, used);
        self.set(region.header + IN_USE, in_use.wrapping_add(1));
        true
    }

    /// Uncounts a claimed record that is free again.
    pub(crate) fn release_record(&mut self, kind: SlabKind) {
        let header = self.layout.slab(kind).header;
        let in_use = self.get(header + IN_USE);
        self.set(header + IN_USE, in_use.wrapping_sub(1));
    }

    /// Rebuilds the free list from `indices`, which are all records that are not in use.
    pub(crate) fn rebuild_free_list(&mut self, kind: SlabKind, indices: impl Iterator<Item = u32>) {
        let header = self.layout.slab(kind).header;
        let mut first = 0;
        for index in indices {
            let at = self.record(kind, index);
            self.set_unlogged(at, first);
            first = u64::from(index);
        }
        self.set(header + FREE_FIRST, first);
    }

    /// Returns the first word of a record. An index that was never handed out marks the transaction
    /// corrupt and gives record 0 of the slab, which nobody uses.
    pub(crate) fn record(&self, kind: SlabKind, index: u32) -> usize {
        self.find_record(kind, index).unwrap_or_else(|| {
            self.mark_corrupt("record index out of range");
            self.layout.slab(kind).first_word
        })
    }

    /// Returns the first word of a record, if `index` was ever handed out.
    #[inline]
    pub(crate) fn find_record(&self, kind: SlabKind, index: u32) -> Option<usize> {
        let region = self.layout.slab(kind);
        self.is_record(kind, index)
            .then(|| region.first_word + index as usize * region.record_words)
    }

    /// Prefetches the record `index`, which may be any number, into the cache.
    #[inline]
    pub(crate) fn prefetch_record(&self, kind: SlabKind, index: u32) {
        let region = self.layout.slab(kind);
        let at = region.first_word + index as usize * region.record_words;
        self.prefetch(at, region.record_words);
    }

    /// Whether `index` was ever handed out.
    pub(crate) fn is_record(&self, kind: SlabKind, index: u32) -> bool {
        let region = self.layout.slab(kind);
        let used = self.get(region.header + HIGH_WATER).min(u64::from(region.capacity));
        index != 0 && u64::from(index) < used
    }

    /// Returns one past the highest index ever handed out.
    pub(crate) fn records_end(&self, kind: SlabKind) -> u32 {
        let region = self.layout.slab(kind);
        self.get(region.header + HIGH_WATER).min(u64::from(region.capacity)) as u32
    }

    /// Returns the number of records in use.
    pub(crate) fn records_in_use(&self, kind: SlabKind) -> u64 {
        let region = self.layout.slab(kind);
        self.get(region.header + IN_USE).min(u64::from(region.capacity))
    }
}
