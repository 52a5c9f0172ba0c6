//! Change bits: which blocks have other bytes than at the last cut of an image. Whoever copies one
//! image after another need not read the unchanged ones.
//!
//! ```text
//! page     words: interval | a bit for each block
//! ```
//! The *interval* of a page is the number of the newest image at the time a bit of the page was
//! last set. Bits of an earlier interval mean nothing, and are cleared before the next bit is set.
//! So a cut costs nothing here.
//!
//! Must stay true: a block's bit is set in the current interval before a byte of the file in it
//! changes, before the file is cut in the middle of it, and before it becomes part of a file. A
//! write behind the end of the file changes no byte of the file and sets no bit. So a reader of the
//! bits takes only blocks before the end that the file had as unchanged. A copier waits for writes
//! that were planned before the cut ([`Microfs::image_is_settled`]). A bit stays set even if its
//! transaction is undone: it only says that bytes may differ.
//!
//! Does not know what stores to mapped files change: nothing is known of a file that programs can
//! store to at either end of an interval.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::run::BlockRun;
use crate::engine::transaction::Transaction;
use crate::format::error::Result;
use crate::format::layout::{BLOCKS_PER_PAGE, IMAGE_COUNT, PAGE_WORDS, TierRegion};
use crate::format::types::InodeId;
use crate::space::pool::for_words;
use std::ops::Range;

/// Extents and blocks examined under one lock.
const EXTENT_BATCH: usize = 256;
const BLOCK_BATCH: u32 = 1 << 13;

/// Splits a run of blocks by page of bits. Yields the first word of the page, the first bit in it
/// and the number of bits.
fn parts(region: TierRegion, run: BlockRun) -> impl Iterator<Item = (usize, u32, u32)> {
    let mut block = run.first;
    std::iter::from_fn(move || {
        let first = block % BLOCKS_PER_PAGE;
        let count = (BLOCKS_PER_PAGE - first).min(run.end() - block);
        let page = region.changed + (block / BLOCKS_PER_PAGE) as usize * PAGE_WORDS;
        block += count;
        (count > 0).then_some((page, first, count))
    })
}

impl Transaction<'_> {
    /// Does the same as `note_change` for one block, whose bit is mostly set already.
    #[inline]
    pub(crate) fn note_change_of_one(&mut self, tier: u8, block: u32) {
        let changed = self.layout.tiers[usize::from(tier)].changed;
        let page = changed + (block / BLOCKS_PER_PAGE) as usize * PAGE_WORDS;
        let bit = block % BLOCKS_PER_PAGE;
        let word = self.get(page + 1 + (bit / u64::BITS) as usize);
        if word & 1 << (bit % u64::BITS) == 0 || self.get(page) != self.get(IMAGE_COUNT) {
            self.note_change(BlockRun { tier, first: block, count: 1 });
        }
    }

    /// Sets the bits of blocks whose bytes are about to change, or that become part of a file.
    pub(crate) fn note_change(&mut self, run: BlockRun) {
        let Some(region) = self.tier(run) else { return };
        let interval = self.get(IMAGE_COUNT);
        for (page, first, count) in parts(region, run) {
            if self.get(page) != interval {
                self.begin_interval(page, interval);
            }
            for_words(first, count, |word, mask| {
                let at = page + 1 + word;
                let old = self.get(at);
                if old & mask != mask {
                    self.keep_pages(at, 1);
                    self.set_unlogged(at, old | mask);
                }
            });
        }
    }

    /// Clears the bits of a page. After a death in the middle the page has the earlier interval, so
    /// the next caller clears them again.
    #[cold]
    fn begin_interval(&mut self, page: usize, interval: u64) {
        self.keep_pages(page, 1);
        (page + 1..page + PAGE_WORDS).for_each(|at| self.set_unlogged(at, 0));
        self.set_unlogged(page, interval);
    }

    /// Adds the blocks of a run at `file_block` that have not changed in `interval` to `found`.
    fn add_unchanged(
        &self,
        interval: u64,
        (file_block, run): (u32, BlockRun),
        found: &mut Vec<Range<u32>>,
    ) {
        let Some(region) = self.tier(run) else { return };
        let mut part_at = file_block;
        for (page, first, count) in parts(region, run) {
            for_words(first, count, |word, mask| {
                let is_of_it = self.get(page) == interval;
                let mut bits = if is_of_it { mask & !self.get(page + 1 + word) } else { mask };
                while bits != 0 {
                    let (bit, count) =
                        (bits.trailing_zeros(), (bits >> bits.trailing_zeros()).trailing_ones());
                    let from = part_at + (word as u32 * u64::BITS + bit - first);
                    add(found, from..from + count);
                    bits &= !(u64::MAX >> (u64::BITS - count) << bit);
                }
            });
            part_at += count;
        }
    }
}

impl Microfs {
    /// Fills `found`, in the view of an image, with the file's blocks that have the same bytes as
    /// at the cut of the previous image. This holds up to where the file ended then. The ranges are
    /// in order and neighbours are merged; holes are left out. Stores through mappings are not
    /// known. Errors: `ImageLost`.
    pub fn unchanged_blocks(&self, inode: InodeId, found: &mut Vec<Range<u32>>) -> Result<()> {
        found.clear();
        let mut next = Some(0);
        while let Some(file_block) = next {
            next = self.transact_unlogged(|tx| {
                let interval = tx.get(IMAGE_COUNT).wrapping_sub(1);
                let map = tx.inode(inode)?.map(tx);
                let (mut at, mut left) = (file_block, BLOCK_BATCH);
                for _ in 0..EXTENT_BATCH {
                    let run = match tx.stretch(map, at) {
                        Stretch::Data(run) => BlockRun { count: run.count.min(left), ..run },
                        Stretch::Hole(u32::MAX) => return Ok(None),
                        Stretch::Hole(count) => {
                            at = at.saturating_add(count);
                            continue;
                        }
                    };
                    tx.add_unchanged(interval, (at, run), found);
                    (at, left) = (at.saturating_add(run.count), left - run.count);
                    if left == 0 {
                        break;
                    }
                }
                Ok(Some(at))
            })?;
        }
        Ok(())
    }
}

/// Appends blocks to the ranges; merges them with the last one if they touch.
fn add(found: &mut Vec<Range<u32>>, blocks: Range<u32>) {
    match found.last_mut().filter(|last| last.end == blocks.start) {
        Some(last) => last.end = blocks.end,
        None => found.push(blocks),
    }
}
