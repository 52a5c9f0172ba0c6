//! Transactions: changes under the lock that are undone as a whole unless committed.
//!
//! Before a word changes, its old value goes to the undo area, whose length is one atomic word that
//! is written before the change. The next owner of the lock after a death, and the drop of an
//! unfinished transaction, copy the old values back, newest first. So a transaction either happens
//! or does not, whatever kills the process.
//!
//! Invariant: between two transactions the undo length is 0. A word index from the segment may be
//! anything: reads outside the segment give 0, writes do nothing, and both mark the transaction
//! corrupt, so that it is rolled back and reported instead of committed.

use crate::engine::lease::Leases;
use crate::engine::name_cache::NameCache;
use crate::engine::shadow::{Held, ShadowHere};
use crate::engine::slab;
use crate::engine::tree::Absent;
use crate::format::error::{Error, Result};
use crate::format::layout::{
    self, Checksum, IMAGE, Layout, META_SUM, SLAB_HEADER_WORDS, SLAB_HEADERS, SLAB_KINDS,
    SlabRegion, UNDO_WORDS,
};
use crate::format::memory::Memory;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

const COUNT_BITS: u32 = 16;
const RANGE_WORDS_MAX: usize = (1 << COUNT_BITS) - 1;
/// Up to this many used words, the undo area has room for one more word and its footer.
const PLAIN_UNTIL: usize = UNDO_WORDS - 2;
/// Flags in the footer of an undo entry: only the low or the high half of the word is restored.
const LOW_HALF: u64 = 1 << 62;
const HIGH_HALF: u64 = 1 << 63;

/// A transaction. It holds the lock from `begin` to `commit`, or until it is dropped.
pub(crate) struct Transaction<'m> {
    pub memory: &'m dyn Memory,
    pub words: &'m [AtomicU64],
    pub layout: &'m Layout,
    pub checksum: Checksum,
    pub local: &'m Local,
    undo_used: usize,
    /// Limit of used undo words for the fast path of a change, which only saves the old value. 0
    /// turns it off: while an image is held, while the metadata have a checksum, and where undo is
    /// forgone.
    fast_path_limit: usize,
    /// Image that the namespace holds.
    pub image: Option<Held<'m>>,
    corrupt: Cell<Option<&'static str>>,
    /// Place where a name was last found to be absent, until a tree changes.
    pub absent: Cell<Option<Absent>>,
    /// Whether records were given back: the next ones taken may be the same.
    pub gave_back: bool,
    pub holds_lock: bool,
    /// The metadata have a checksum. The first change of a covered word removes it
    /// (`metadata_checksum.rs`).
    is_summed: bool,
}

/// State of a namespace that this process keeps for itself.
pub(crate) struct Local {
    backed: [Backed; SLAB_KINDS.len()],
    pub names: NameCache,
    pub leases: Leases,
    pub shadow: ShadowHere,
    /// Returns the memory node on which the calling thread runs.
    pub node: fn() -> u32,
}

/// How far a slab is backed in this process's mapping.
#[derive(Default)]
struct Backed {
    records: AtomicUsize,
    /// While the high-water mark is not beyond this, a transaction's reserve is backed.
    enough_until: AtomicU64,
}

impl Local {
    pub(crate) fn new() -> Local {
        Local {
            backed: Default::default(),
            names: NameCache::new(),
            leases: Leases::default(),
            shadow: ShadowHere::default(),
            node: || 0,
        }
    }

    /// Does in advance what a transaction must not do under the lock: back pages and allocate.
    #[inline]
    fn prepare(&self, memory: &dyn Memory, words: &[AtomicU64], layout: &Layout) -> Result<()> {
        const HEADERS_WORDS: usize = SLAB_KINDS.len() * SLAB_HEADER_WORDS;
        let headers: &[AtomicU64; HEADERS_WORDS] =
            words[SLAB_HEADERS..].first_chunk().expect("a segment is at least one page");
        for (kind, backed) in self.backed.iter().enumerate() {
            let marked = slab::marked(&headers[kind * SLAB_HEADER_WORDS..]).load(Ordering::Relaxed);
            if marked >= backed.enough_until.load(Ordering::Relaxed) {
                back_ahead(memory, &layout.slabs[kind], backed)?;
            }
        }
        if self.names.is_full() {
            self.names.grow();
        }
        Ok(())
    }
}

impl<'m> Transaction<'m> {
    /// Creates a transaction that has not begun. It must begin where it is: moving it would take
    /// longer than taking the lock.
    #[inline(always)]
    pub(crate) fn new(
        memory: &'m dyn Memory,
        layout: &'m Layout,
        checksum: Checksum,
        local: &'m Local,
    ) -> Transaction<'m> {
        Transaction {
            memory,
            words: memory.words(),
            layout,
            checksum,
            local,
            undo_used: 0,
            fast_path_limit: PLAIN_UNTIL,
            image: None,
            corrupt: Cell::new(None),
            absent: Cell::new(None),
            gave_back: false,
            holds_lock: false,
            is_summed: false,
        }
    }

    /// Backs the words that the transaction may need, takes the lock, and undoes what a dead owner
    /// left.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.local.prepare(self.memory, self.words, self.layout)?;
        self.lock()?;
        self.note_checksum();
        match self.words[IMAGE].load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => self.join_image(),
        }
    }

    /// Notes, once the lock is held, whether the metadata have a checksum.
    #[inline(always)]
    pub(crate) fn note_checksum(&mut self) {
        if self.words[META_SUM].load(Ordering::Relaxed) != 0 {
            self.is_summed = true;
            self.set_plain(false);
        }
    }

    /// Notes that the metadata have no checksum any more.
    pub(crate) fn note_no_checksum(&mut self) {
        self.is_summed = false;
        self.set_plain(self.image.is_none());
    }

    #[cold]
    pub(crate) fn undo_what_is_left(&mut self) -> Result<()> {
        self.undo_used = self.undo_length();
        self.roll_back();
        self.corruption().map_or(Ok(()), Err)
    }

    /// Turns undo off: changes are faster and cannot be undone. For a segment that is thrown away
    /// if anything fails.
    pub(crate) fn forgo_undo(&mut self) {
        self.fast_path_limit = 0;
    }

    /// Commits and releases the lock. If the segment turned out to be corrupt, returns the error
    /// instead, and the drop rolls back.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if let Some(what) = self.corrupt.get() {
            return Err(Error::Corrupt { what });
        }
        if self.undo_used != 0 {
            self.words[self.layout.undo].store(0, Ordering::Release);
        }
        self.holds_lock = false;
        self.memory.unlock();
        Ok(())
    }

    /// Commits what was changed so far, and keeps the lock.
    pub(crate) fn commit_and_go_on(&mut self) -> Result<()> {
        self.corruption().map_or(Ok(()), Err)?;
        self.undo_used = 0;
        self.words[self.layout.undo].store(0, Ordering::Release);
        Ok(())
    }

    /// Ends the transaction without releasing the lock; somebody else releases it. Nothing was
    /// changed.
    pub(crate) fn leave_locked(mut self) {
        self.holds_lock = false;
    }

    /// Returns the word at `at`.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> u64 {
        match self.words.get(at) {
            Some(word) => word.load(Ordering::Relaxed),
            None => {
                self.mark_corrupt("index outside the segment");
                0
            }
        }
    }

    /// Prefetches `count` words from `at` on into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize, count: usize) {
        self.memory.prefetch(at, count);
    }

    /// Changes the word at `at`.
    #[inline]
    pub(crate) fn set(&mut self, at: usize, value: u64) {
        let Some(word) = self.words.get(at) else {
            return self.mark_corrupt("index outside the segment");
        };
        let old = word.load(Ordering::Relaxed);
        if old == value {
            return;
        }
        if self.undo_used >= self.fast_path_limit {
            return self.set_slow_path(at, value);
        }
        // The same as `record_undo` for one word, which is nearly every change.
        let entry = self.layout.undo + 1 + self.undo_used;
        self.words[entry].store(old, Ordering::Relaxed);
        self.words[entry + 1].store((at as u64) << COUNT_BITS | 1, Ordering::Relaxed);
        self.publish_undo(2);
        word.store(value, Ordering::Relaxed);
    }

    /// Does the same as `set` off the fast path: while an image is held, while the metadata have a
    /// checksum, where undo is forgone, or when the undo area is full.
    #[cold]
    #[inline(never)]
    fn set_slow_path(&mut self, at: usize, value: u64) {
        if self.forgoes_undo() || self.record_undo(at, 1) {
            self.words[at].store(value, Ordering::Relaxed);
        }
    }

    fn forgoes_undo(&self) -> bool {
        self.fast_path_limit == 0 && self.image.is_none() && !self.is_summed
    }

    /// Turns the fast path of changes on, or off while an image is held. It stays off while the
    /// metadata have a checksum.
    pub(crate) fn set_plain(&mut self, is_plain: bool) {
        self.fast_path_limit = if is_plain && !self.is_summed { PLAIN_UNTIL } else { 0 };
    }

    /// Changes one half of the word at `at`, while others may change the other half without the
    /// lock.
    pub(crate) fn set_half(&mut self, at: usize, high: bool, value: u32) {
        if self.record_undo_of(at, 1, if high { HIGH_HALF } else { LOW_HALF }) {
            store_half(&self.words[at], high, value);
        }
    }

    /// Changes a word without undo. Nobody needs its old value, because the word that makes it
    /// reachable is changed by `set`. No image needs the old value either: the word is in none, or
    /// `keep_pages` has saved its page.
    pub(crate) fn set_unlogged(&mut self, at: usize, value: u64) {
        if self.is_summed {
            self.remove_checksum(at, 1);
        }
        match self.words.get(at) {
            Some(word) => word.store(value, Ordering::Relaxed),
            None => self.mark_corrupt("index outside the segment"),
        }
    }

    /// Changes words of a record that was just taken, except the first one, which says whether the
    /// record is free. While it is free, the other words belong to nobody. So their old values are
    /// saved only if the record may have been in use before this transaction.
    #[inline]
    pub(crate) fn set_fresh(&mut self, at: usize, values: &[u64]) {
        if self.gave_back {
            return (at..).zip(values).for_each(|(at, &value)| self.set(at, value));
        }
        match self.words.get(at..).and_then(|words| words.get(..values.len())) {
            Some(words) => {
                let pairs = words.iter().zip(values);
                pairs.for_each(|(word, &value)| word.store(value, Ordering::Relaxed));
            }
            None => self.mark_corrupt("index outside the segment"),
        }
    }

    /// Clears bits of a word that others change without the lock, and returns the word's old value.
    /// An undo of the transaction does not restore the bits.
    pub(crate) fn clear_bits(&self, at: usize, bits: u64) -> u64 {
        match self.words.get(at) {
            Some(word) => word.fetch_and(!bits, Ordering::AcqRel),
            None => {
                self.mark_corrupt("index outside the segment");
                0
            }
        }
    }

    /// Moves `count` words from `from` to `to`; the ranges may overlap.
    pub(crate) fn move_words(&mut self, from: usize, to: usize, count: usize) {
        if count == 0 || !self.record_undo(to, count) {
            return;
        }
        let Some(source) = from.checked_add(count).and_then(|end| self.words.get(from..end)) else {
            return self.mark_corrupt("index outside the segment");
        };
        let pairs = source.iter().zip(&self.words[to..to + count]);
        match from < to {
            true => pairs.rev().for_each(copy_word),
            false => pairs.for_each(copy_word),
        }
    }

    /// Whether another step of a batch fits: each step changes fewer words than half the undo area.
    pub(crate) fn has_room(&self) -> bool {
        self.undo_used < UNDO_WORDS / 2 && self.may_keep_more()
    }

    /// Returns the error to report if the segment proved inconsistent.
    pub(crate) fn corruption(&self) -> Option<Error> {
        self.corrupt.get().map(|what| Error::Corrupt { what })
    }

    /// Declares the segment inconsistent; the transaction can no longer commit.
    pub(crate) fn mark_corrupt(&self, what: &'static str) {
        if self.corrupt.get().is_none() {
            self.corrupt.set(Some(what));
        }
    }

    pub(crate) fn undo_length(&self) -> usize {
        self.words[self.layout.undo].load(Ordering::Relaxed) as usize
    }

    /// Saves `count` old words. The entry is complete before the length covers it, and the length
    /// is published before the caller changes anything.
    fn record_undo(&mut self, at: usize, count: usize) -> bool {
        self.record_undo_of(at, count, 0)
    }

    /// Does the same as `record_undo`; `half` says which half of the words is restored, 0 for both.
    fn record_undo_of(&mut self, at: usize, count: usize, half: u64) -> bool {
        let area = self.layout.undo + 1;
        let fits = self.undo_used + count < UNDO_WORDS - 1 && count <= RANGE_WORDS_MAX;
        if !fits || at.checked_add(count).is_none_or(|end| end > self.words.len()) {
            self.mark_corrupt("transaction larger than its undo area");
            return false;
        }
        if self.fast_path_limit == 0 {
            if self.is_summed {
                self.remove_checksum(at, count);
            }
            if self.forgoes_undo() {
                return true;
            }
            self.keep_pages(at, count);
        }
        let entry = &self.words[area + self.undo_used..][..=count];
        self.words[at..at + count].iter().zip(entry).for_each(copy_word);
        let footer = half | (at as u64) << COUNT_BITS | count as u64;
        entry[count].store(footer, Ordering::Relaxed);
        self.publish_undo(count + 1);
        true
    }

    /// Publishes the entry just written as part of the undo area, before anything it covers is
    /// changed.
    #[inline]
    fn publish_undo(&mut self, entry_words: usize) {
        self.undo_used += entry_words;
        self.words[self.layout.undo].store(self.undo_used as u64, Ordering::Release);
        fence(Ordering::Release);
    }

    fn roll_back(&mut self) {
        let area = self.layout.undo + 1;
        let mut used = self.undo_used;
        while used > 0 {
            let footer = match used < UNDO_WORDS {
                true => self.get(area + used - 1),
                false => 0,
            };
            let count = footer as usize & RANGE_WORDS_MAX;
            let at = ((footer & !(LOW_HALF | HIGH_HALF)) >> COUNT_BITS) as usize;
            // A word that never changes after formatting is never in a transaction.
            let plausible = count > 0
                && count < used
                && at >= layout::DYNAMIC_FIRST
                && at + count <= self.words.len();
            if !plausible {
                self.mark_corrupt("undo area");
                return;
            }
            for offset in 0..count {
                let old = self.get(area + used - 1 - count + offset);
                let word = &self.words[at + offset];
                match footer & (LOW_HALF | HIGH_HALF) {
                    LOW_HALF => store_half(word, false, old as u32),
                    HIGH_HALF => store_half(word, true, (old >> 32) as u32),
                    _ => word.store(old, Ordering::Relaxed),
                }
            }
            used -= count + 1;
            self.words[self.layout.undo].store(used as u64, Ordering::Release);
        }
        self.undo_used = 0;
    }
}

#[inline]
fn copy_word((from, to): (&AtomicU64, &AtomicU64)) {
    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Stores one half of a word and keeps the other half, even if others change that at the same time.
pub(crate) fn store_half(word: &AtomicU64, high: bool, value: u32) {
    let shift = if high { 32 } else { 0 };
    let keep = !(0xffff_ffff << shift);
    // The closure never gives up, so this cannot fail.
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
        Some(old & keep | u64::from(value) << shift)
    });
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.holds_lock {
            self.roll_back();
            self.memory.unlock();
        }
    }
}

/// Keeps `reserve` records beyond the high-water mark backed, in the segment and in this mapping.
#[cold]
fn back_ahead(memory: &dyn Memory, region: &SlabRegion, backed: &Backed) -> Result<()> {
    const STEP_WORDS_MIN: usize = 8 << 10;
    const STEP_WORDS_MAX: usize = 128 << 10;
    const MAPPED_AT_ONCE_WORDS: usize = 64 << 10;
    let (reserve, capacity) = (region.reserve as usize, region.capacity as usize);
    let high_water = slab::high_water(memory.words(), region);
    let needed = (high_water + reserve).min(capacity);
    let mut have = backed.records.load(Ordering::Relaxed);
    if have >= needed {
        return Ok(());
    }
    if have == 0 && high_water * region.record_words > MAPPED_AT_ONCE_WORDS {
        // Their first user backed these. Mapping all of them would delay a short-lived process.
        have = high_water;
    }
    let step_words = (high_water * region.record_words / 4).clamp(STEP_WORDS_MIN, STEP_WORDS_MAX);
    let target = (needed + step_words / region.record_words).min(capacity);
    memory.back(
        region.first_word + have * region.record_words,
        (target - have) * region.record_words,
    )?;
    backed.records.store(target, Ordering::Relaxed);
    let enough_until = if target == capacity { u64::MAX } else { (target - reserve) as u64 + 1 };
    backed.enough_until.store(enough_until, Ordering::Relaxed);
    Ok(())
}
