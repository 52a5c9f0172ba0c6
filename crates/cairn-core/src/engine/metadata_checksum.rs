//! Metadata checksum: one checksum over the metadata of a namespace that nobody is changing. It
//! detects a memory fault before that leads to missing or wrong files.
//!
//! Must stay true: the first transaction that changes a covered word removes the checksum first,
//! and is the only one to pay for that. Only the process that makes the checksum uses the namespace
//! at that time, so nothing changes without a transaction.
//!
//! Covered: names, inodes, trees, used bitmaps, block checksums, and the roots and counters of
//! these. Not covered: processes, open files, writes in flight, notes and claims, the log, the undo
//! area, and the header, which has a checksum of its own.
//!
//! Does not say what is damaged, and does not repair it.

use crate::engine::fs::Microfs;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{
    EXTENDED_ROOT, Layout, META_SUM, NAMES_ROOT, PAGE_WORDS, PART_COUNTERS, PIN_COUNT,
    SLAB_HEADERS, SlabKind, TIER_COUNTERS, TIER_COUNTERS_END,
};
use crate::format::types::SlotId;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// In the checksum's word, above the checksum: there is one.
const SUMMED: u64 = 1 << 32;

/// Kinds of covered records.
const KINDS: [SlabKind; 3] = [SlabKind::Inode, SlabKind::Name, SlabKind::Node];

/// Returns the covered counters in page 0. The words between them count processes and work in
/// progress.
fn counters() -> [Range<usize>; 4] {
    [
        SLAB_HEADERS + KINDS[0] as usize * crate::format::layout::SLAB_HEADER_WORDS..PIN_COUNT + 1,
        EXTENDED_ROOT..EXTENDED_ROOT + 1,
        TIER_COUNTERS..TIER_COUNTERS_END,
        PART_COUNTERS..PAGE_WORDS,
    ]
}

const _: () = assert!(NAMES_ROOT < PIN_COUNT);

impl Layout {
    /// Whether the checksum covers a word.
    fn is_summed_word(&self, at: usize) -> bool {
        counters().iter().any(|range| range.contains(&at))
            || self.tiers.iter().any(|tier| {
                let checksums = (tier.blocks as usize).div_ceil(2);
                (tier.used..tier.dirty).contains(&at)
                    || (tier.checksums..tier.checksums + checksums).contains(&at)
            })
            || KINDS.iter().any(|&kind| {
                let region = self.slab(kind);
                let words = region.record_words * region.capacity as usize;
                (region.first_word..region.first_word + words).contains(&at)
            })
    }
}

impl Transaction<'_> {
    /// Removes the checksum if it covers one of the `count` words from `at` on, which are about to
    /// change.
    #[cold]
    pub(crate) fn remove_checksum(&mut self, at: usize, count: usize) {
        if (at..at.saturating_add(count)).any(|at| self.layout.is_summed_word(at)) {
            self.words[META_SUM].store(0, Ordering::Release);
            self.note_no_checksum();
        }
    }

    /// Computes the checksum of the metadata as they are.
    fn sum(&self) -> u64 {
        let mut sum = Sum { tx: self, crc: 0 };
        counters().into_iter().for_each(|range| sum.add(range));
        for tier in self.layout.tiers {
            sum.add(tier.used..tier.dirty);
            // Checksums of free blocks have no meaning.
            for word in (0..(tier.blocks as usize).div_ceil(64))
                .filter(|word| self.get(tier.used + word) != 0)
            {
                let first = tier.checksums + word * 32;
                sum.add(
                    first..(first + 32).min(tier.checksums + (tier.blocks as usize).div_ceil(2)),
                );
            }
        }
        for kind in KINDS {
            let region = self.layout.slab(kind);
            let words = region.record_words * self.records_end(kind) as usize;
            sum.add(region.first_word..region.first_word + words);
        }
        SUMMED | u64::from(sum.crc)
    }
}

/// Running checksum over words, in order.
struct Sum<'a, 'm> {
    tx: &'a Transaction<'m>,
    crc: u32,
}

impl Sum<'_, '_> {
    fn add(&mut self, range: Range<usize>) {
        let mut bytes = [0; PAGE_WORDS * size_of::<u64>()];
        for first in range.clone().step_by(PAGE_WORDS) {
            let words = first..range.end.min(first + PAGE_WORDS);
            let count = words.len();
            for (to, at) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
                to.copy_from_slice(&self.tx.get(at).to_le_bytes());
            }
            self.crc = (self.tx.checksum)(self.crc, &bytes[..count * size_of::<u64>()]);
        }
    }
}

impl Microfs {
    /// Makes the checksum if nobody but the process in `slot` (or nobody at all) uses the namespace
    /// and no write is in flight. An existing checksum stays.
    pub fn sum_metadata(&self, slot: Option<SlotId>) -> Result<()> {
        if self.has_metadata_sum() {
            return Ok(());
        }
        self.transact_unlogged(|tx| {
            let has_others = tx.slots().any(|used| Some(used.id) != slot);
            if !has_others && tx.get(PIN_COUNT) == 0 {
                let sum = tx.sum();
                tx.words[META_SUM].store(sum, Ordering::Release);
            }
            Ok(())
        })
    }

    /// Whether the metadata have a checksum. Takes no lock.
    pub fn has_metadata_sum(&self) -> bool {
        self.memory().words()[META_SUM].load(Ordering::Acquire) & SUMMED != 0
    }

    /// Compares the metadata with their checksum, if there is one. Errors: `Corrupt`: they changed
    /// without a transaction.
    pub fn check_metadata(&self) -> Result<()> {
        if !self.has_metadata_sum() {
            return Ok(());
        }
        self.transact_unlogged(|tx| match tx.get(META_SUM) {
            sum if sum & SUMMED == 0 || sum == tx.sum() => Ok(()),
            _ => Err(Error::Corrupt {
                what: "it differs from its checksum, as after a fault of the memory",
            }),
        })
    }
}
