//! Hugeblock pools: one bitmap per tier, and per process the runs it freed last.
//!
//! The bitmap alone is authoritative. Each process slot keeps a small ring of *warm runs*: blocks
//! that it freed most recently and therefore has mapped and cached. They are handed out first
//! (DESIGN decision 13). A run in a ring is a hint: blocks that are no longer free are skipped.
//! When the ring is empty, a stretch is taken from the circular cursor of the tier and put into the
//! ring. So processes allocate apart from each other, and so do the descriptions of one process
//! (streams.rs). On a tier with several parts, each part has a cursor (parts.rs). While an image is
//! held, blocks that are in it are not handed out, free or not (image.rs).

use crate::engine::inode::Inode;
use crate::engine::run::{BlockRun, RUN_BLOCKS_MAX};
use crate::engine::slot::{Slot, WARM_RUNS};
use crate::engine::transaction::Transaction;
use crate::format::layout::{CHECKSUMS_PER_PAGE, SlabKind, TierRegion};
use crate::format::types::{HandleId, TIERS_MAX};
use crate::space::parts::Part;

/// Number of blocks taken from the circular cursor at a time.
pub(crate) const STRETCH_BLOCKS: u32 = 256;
/// The same on a durable tier, where each stretch costs a record; but at most this share of the
/// tier, unless that is less than in memory.
const DURABLE_STRETCH_BLOCKS: u32 = 8192;
const DURABLE_STRETCH_SHARE: u32 = 64;
/// Words behind the number of used blocks: the cursor; the end of the blocks ever handed out; and
/// the number of blocks at the end that are not handed out for now.
const CURSOR: usize = 1;
pub(crate) const TOUCHED: usize = 2;
pub(crate) const WITHHELD: usize = 3;
/// Bitmap words examined for one hint before it is dropped.
const HINT_SCAN_WORDS: u32 = 64;

/// Calls `visit(word index in bitmap, mask)` for the words that `first..first + count` touches.
pub(crate) fn for_words(first: u32, count: u32, mut visit: impl FnMut(usize, u64)) {
    let (mut block, end) = (first, first + count);
    while block < end {
        let offset = block % 64;
        let take = (64 - offset).min(end - block);
        visit(block as usize / 64, (u64::MAX >> (64 - take)) << offset);
        block += take;
    }
}

fn dirty_words(region: &TierRegion) -> usize {
    (region.blocks as usize).div_ceil(CHECKSUMS_PER_PAGE).div_ceil(64)
}

impl Transaction<'_> {
    pub(crate) fn tier(&self, run: BlockRun) -> Option<TierRegion> {
        let tier = self.layout.tiers.get(run.tier as usize).copied();
        match tier {
            Some(tier)
                if run.count <= RUN_BLOCKS_MAX
                    && run.first.checked_add(run.count).is_some_and(|end| end <= tier.blocks) =>
            {
                Some(tier)
            }
            _ => {
                self.mark_corrupt("block run outside its tier");
                None
            }
        }
    }

    /// Takes up to `wanted` consecutive free blocks from the first tier that has any, for a write
    /// of `inode` through `handle`.
    pub(crate) fn allocate(
        &mut self,
        slot: Slot,
        handle: HandleId,
        inode: Inode,
        wanted: u32,
    ) -> Option<BlockRun> {
        self.allocate_in_stream(slot, handle, inode, wanted.min(RUN_BLOCKS_MAX))
    }

    /// Does the same with the blocks that the descriptions of a process share.
    pub(crate) fn allocate_shared(&mut self, slot: Slot, wanted: u32) -> Option<BlockRun> {
        self.find_shared(slot, wanted).inspect(|&found| self.mark_used(found))
    }

    /// Takes up to `wanted` consecutive free blocks out of those that the descriptions of a process
    /// share. Does not mark them as used.
    pub(crate) fn find_shared(&mut self, slot: Slot, wanted: u32) -> Option<BlockRun> {
        (0..TIERS_MAX as u8).find_map(|tier| self.find_on(slot, tier, wanted))
    }

    pub(crate) fn is_full(&self, region: &TierRegion) -> bool {
        self.get(region.counters) >= u64::from(region.blocks)
    }

    fn find_on(&mut self, slot: Slot, tier: u8, wanted: u32) -> Option<BlockRun> {
        let region = self.layout.tiers[tier as usize];
        if self.is_full(&region) {
            return None;
        }
        let mut parts = self.preferred_parts(tier);
        parts.find_map(|part| self.find_in(slot, tier, part, wanted))
    }

    fn find_in(&mut self, slot: Slot, tier: u8, part: Part, wanted: u32) -> Option<BlockRun> {
        if self.get(part.counters) >= u64::from(part.blocks) {
            return None;
        }
        for _ in 0..=WARM_RUNS {
            let Some(hint) = slot.pop_warm(self, tier, part) else { break };
            let hint = part.overlap(hint);
            if let Some(found) = self.free_part(hint, wanted) {
                if found.end() < hint.end() {
                    let rest =
                        BlockRun { first: found.end(), count: hint.end() - found.end(), ..hint };
                    slot.push_warm(self, rest);
                }
                return Some(found);
            }
        }
        let region = self.layout.tiers[tier as usize];
        let length = self.stretch_blocks(&region).max(wanted);
        let stretch = self.next_stretch_in(tier, part, length)?;
        let found = BlockRun { count: stretch.count.min(wanted), ..stretch };
        if found.count < stretch.count {
            let rest =
                BlockRun { first: found.end(), count: stretch.count - found.count, ..stretch };
            slot.push_warm(self, rest);
        }
        Some(found)
    }

    /// Frees blocks and remembers them as warm for `slot`.
    pub(crate) fn free_blocks(&mut self, slot: Option<Slot>, run: BlockRun) {
        let Some(region) = self.tier(run) else { return };
        let mut twice = false;
        for_words(run.first, run.count, |word, mask| {
            let used = self.get(region.used + word);
            twice |= used & mask != mask;
            self.set(region.used + word, used & !mask);
            let full = self.get(region.full + word / 64);
            self.set(region.full + word / 64, full & !(1 << (word % 64)));
            let stale = self.get(region.stale + word);
            self.set(region.stale + word, stale & !mask);
        });
        if twice {
            self.mark_corrupt("block freed twice");
        }
        let used_blocks = self.get(region.counters);
        self.set(region.counters, used_blocks.wrapping_sub(u64::from(run.count)));
        self.count_in_parts(run, false);
        if let Some(slot) = slot {
            slot.push_warm(self, run);
        }
    }

    /// Marks the checksums of blocks as void (must be recomputed) or as valid.
    pub(crate) fn set_stale(&mut self, run: BlockRun, is_stale: bool) {
        let Some(region) = self.tier(run) else { return };
        for_words(run.first, run.count, |word, mask| {
            let old = self.get(region.stale + word);
            self.set(region.stale + word, if is_stale { old | mask } else { old & !mask });
        });
    }

    /// Whether the block's checksum must be recomputed.
    pub(crate) fn is_stale(&self, tier: u8, block: u32) -> bool {
        let run = BlockRun { tier, first: block, count: 1 };
        self.tier(run).is_none_or(|region| {
            self.get(region.stale + block as usize / 64) & 1 << (block % 64) != 0
        })
    }

    /// Whether the block is in use according to the bitmap.
    pub(crate) fn is_used(&self, tier: u8, block: u32) -> bool {
        let run = BlockRun { tier, first: block, count: 1 };
        self.tier(run).is_some_and(|region| {
            self.get(region.used + block as usize / 64) & 1 << (block % 64) != 0
        })
    }

    /// Returns a word of the bitmap of blocks that must not be handed out: in use, or in the image
    /// that is held.
    #[inline]
    fn taken_word(&self, region: &TierRegion, word: usize) -> u64 {
        let used = self.get(region.used + word);
        match self.image {
            None => used,
            Some(_) => used | self.word_at_cut(region.used + word),
        }
    }

    /// Returns the checksum of a block; meaningful only if the block is used and not stale.
    pub(crate) fn checksum(&self, tier: u8, block: u32) -> u32 {
        let run = BlockRun { tier, first: block, count: 1 };
        self.tier(run).map_or(0, |region| {
            (self.get(region.checksums + block as usize / 2) >> (32 * (block % 2))) as u32
        })
    }

    /// Adds the checksum term of bytes that were written over zeros. CRC32C is linear, so this is
    /// an exclusive or.
    pub(crate) fn fold_checksum(&mut self, tier: u8, block: u32, term: u32) {
        let run = BlockRun { tier, first: block, count: 1 };
        if let Some(region) = self.tier(run) {
            let at = region.checksums + block as usize / 2;
            let old = self.checksum(tier, block);
            // The owner of the neighbouring block stores its checksum without the lock.
            self.set_half(at, block % 2 == 1, old ^ term);
            self.mark_checksums_dirty(run);
        }
    }

    /// Notes that the checksums of these blocks differ from those on the media.
    pub(crate) fn mark_checksums_dirty(&mut self, run: BlockRun) {
        if !self.layout.durable || run.count == 0 {
            return;
        }
        let Some(region) = self.tier(run) else { return };
        let page = |block: u32| block / CHECKSUMS_PER_PAGE as u32;
        let (first, last) = (page(run.first), page(run.end() - 1));
        for_words(first, last - first + 1, |word, mask| {
            let old = self.get(region.dirty + word);
            self.set(region.dirty + word, old | mask);
        });
    }

    /// Notes that it is unknown which checksums are on the media.
    pub(crate) fn mark_all_checksums_dirty(&mut self) {
        for region in self.layout.tiers {
            for word in 0..dirty_words(&region) {
                self.set(region.dirty + word, u64::MAX);
            }
        }
    }

    /// Whether a block in use has its checksum in this page.
    fn page_is_used(&self, region: &TierRegion, page: usize) -> bool {
        const WORDS: usize = CHECKSUMS_PER_PAGE / 64;
        let end = (region.blocks as usize).div_ceil(64).min((page + 1) * WORDS);
        (page * WORDS..end).any(|word| self.get(region.used + word) != 0)
    }

    /// Moves the pages of checksums that differ from the media, each with its tier, into `pages`,
    /// which has room for all.
    pub(crate) fn take_dirty_checksums(&mut self, pages: &mut Vec<(u8, usize)>) {
        for (tier, region) in (0..).zip(self.layout.tiers) {
            let count = (region.blocks as usize).div_ceil(CHECKSUMS_PER_PAGE);
            for word in 0..dirty_words(&region) {
                let mut bits = self.get(region.dirty + word);
                if bits != 0 {
                    self.set(region.dirty + word, 0);
                }
                while bits != 0 {
                    let page = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    if page < count && self.page_is_used(&region, page) {
                        pages.push((tier, page));
                    }
                }
            }
        }
    }

    pub(crate) fn mark_used(&mut self, run: BlockRun) {
        let Some(region) = self.tier(run) else { return };
        for_words(run.first, run.count, |word, mask| {
            let used = self.get(region.used + word) | mask;
            self.set(region.used + word, used);
            if used == u64::MAX {
                let full = self.get(region.full + word / 64);
                self.set(region.full + word / 64, full | 1 << (word % 64));
            }
        });
        let used_blocks = self.get(region.counters);
        self.set(region.counters, used_blocks + u64::from(run.count));
        self.count_in_parts(run, true);
    }

    /// Returns the first free stretch within `hint`, at most `wanted` blocks.
    pub(crate) fn free_part(&self, hint: BlockRun, wanted: u32) -> Option<BlockRun> {
        let region = self.layout.tiers.get(hint.tier as usize)?;
        let end = hint.first.saturating_add(hint.count).min(region.blocks);
        let scan_end = end.min(hint.first.saturating_add(HINT_SCAN_WORDS * 64));
        let is_free =
            |block: &u32| self.taken_word(region, *block as usize / 64) & 1 << (block % 64) == 0;
        let first = (hint.first..scan_end).find(is_free)?;
        let count = self.free_length(region, first, end, wanted);
        Some(BlockRun { tier: hint.tier, first, count })
    }

    /// Returns the number of free blocks from `first` on, at most `wanted`, not past `end`.
    fn free_length(&self, region: &TierRegion, first: u32, end: u32, wanted: u32) -> u32 {
        let limit = end.min(first.saturating_add(wanted));
        let mut block = first;
        while block < limit {
            let used = self.taken_word(region, block as usize / 64) >> (block % 64);
            let free_here = used.trailing_zeros().min(64 - block % 64);
            block += free_here;
            if used != 0 {
                break;
            }
        }
        block.min(limit) - first
    }

    /// Returns the length of a stretch that the descriptions of a process share.
    pub(crate) fn stretch_blocks(&self, region: &TierRegion) -> u32 {
        match self.layout.durable {
            true => {
                let share = region.blocks / DURABLE_STRETCH_SHARE;
                share.clamp(STRETCH_BLOCKS, DURABLE_STRETCH_BLOCKS)
            }
            false => STRETCH_BLOCKS,
        }
    }

    /// Returns the number of free blocks that are set apart for single descriptions and, on a
    /// durable tier, for processes. In memory the latter do not count: another process's share is
    /// better than a page that was never touched.
    fn blocks_set_apart(&self, region: &TierRegion) -> u32 {
        let shared = match self.layout.durable {
            true => self.stretch_blocks(region) * self.records_in_use(SlabKind::Slot) as u32,
            false => 0,
        };
        shared.saturating_add(self.blocks_in_streams())
    }

    /// Returns the next free stretch of up to `wanted` blocks of a tier.
    pub(crate) fn next_stretch(&mut self, tier: u8, wanted: u32) -> Option<BlockRun> {
        self.preferred_parts(tier).find_map(|part| self.next_stretch_in(tier, part, wanted))
    }

    /// Returns the next free stretch of up to `wanted` blocks behind the part's cursor, and moves
    /// the cursor past it. The cursor stays within blocks that were used before, whose memory
    /// exists already, as long as an eighth of them is free.
    fn next_stretch_in(&mut self, tier: u8, part: Part, wanted: u32) -> Option<BlockRun> {
        let region = self.layout.tiers[tier as usize];
        let distance = |at: usize| (self.get(part.counters + at) as u32).min(part.blocks);
        let (cursor, touched) = (distance(CURSOR), distance(TOUCHED));
        let used = (self.get(part.counters) as u32).min(touched);
        let most = touched.max(part.blocks - distance(WITHHELD));
        let (free, needed) = (touched - used, wanted.max(touched / 8));
        let is_free = || free.saturating_sub(self.blocks_set_apart(&region)) >= needed;
        let roomy = free >= needed && is_free();
        let start = if roomy || touched == most { cursor } else { touched };
        let end = if roomy { touched } else { most };
        let (start, end, most) = (part.first + start, part.first + end, part.first + most);
        let first = self
            .first_free(&region, start, end)
            .or_else(|| self.first_free(&region, part.first, start.min(end)))
            .or_else(|| self.first_free(&region, part.first, most))?;
        let count = self.free_length(&region, first, most, wanted);
        let after = first + count - part.first;
        self.set(part.counters + CURSOR, u64::from(after));
        self.set(part.counters + TOUCHED, u64::from(touched.max(after)));
        Some(BlockRun { tier, first, count })
    }

    fn first_free(&self, region: &TierRegion, from: u32, to: u32) -> Option<u32> {
        let mut block = from;
        while block < to {
            let word = block as usize / 64;
            // Skip up to 64 full words at a time by the summary.
            let skip = (self.get(region.full + word / 64) >> (word % 64)).trailing_ones();
            if skip > 0 {
                block = (block / 64 + skip.min(64 - word as u32 % 64)) * 64;
                continue;
            }
            let free = !self.taken_word(region, word) & u64::MAX << (block % 64);
            if free != 0 {
                let found = block / 64 * 64 + free.trailing_zeros();
                return (found < to).then_some(found);
            }
            block = (block / 64 + 1) * 64;
        }
        None
    }
}
