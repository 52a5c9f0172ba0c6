//! Which blocks of files have other bytes than they had at the last cut of an image, so that who
//! copies one image after another need not read what is the same.
//!
//! ```text
//! page     words: interval | a bit for each block
//! ```
//! The *interval* of a page is the number of the image that was last begun when a bit of it was
//! set: bits of an earlier one mean nothing any more, and are cleared before the next one is set.
//! So a cut costs nothing here.
//!
//! Must stay true: before a byte of a file changes, a block with its end in the middle of it is cut
//! off, or a block becomes part of the file, the block's bit is set in that interval. What is
//! written behind the end changes no byte of the file, and sets no bit: whoever goes by the bits
//! takes as unchanged only what is before the end that the file had. Whoever copies waits for
//! writes that were planned before the cut ([`Microfs::image_is_settled`]). A bit stays set though
//! its transaction be undone: it says no more than that bytes may be others.
//! Does not know what stores to mapped files change: of a file that programs can store to at either
//! end of an interval nothing is known.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::transaction::Transaction;
use crate::format::error::Result;
use crate::format::layout::{IMAGE_COUNT, PAGE_WORDS, TierRegion};
use crate::format::types::InodeId;
use crate::space::pool::{BlockRun, for_words};
use std::ops::Range;

const BLOCKS_PER_PAGE: u32 = (PAGE_WORDS as u32 - 1) * u64::BITS;
/// Extents and blocks looked at under one lock.
const EXTENT_BATCH: usize = 256;
const BLOCK_BATCH: u32 = 1 << 13;

/// Words for the bits of so many blocks.
pub(crate) fn changed_words(blocks: u32) -> usize {
    blocks.div_ceil(BLOCKS_PER_PAGE) as usize * PAGE_WORDS
}

/// The parts of a run of blocks in a page each: where that page is, the first bit in it, how many
/// there are.
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
    /// The same as `note_change`, of one block, of which it was mostly noted before.
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

    /// Bytes of these blocks are about to change, or the blocks become part of a file.
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

    /// Clears the bits of a page. A death in the middle leaves the earlier interval, and the next
    /// one clears them again.
    #[cold]
    fn begin_interval(&mut self, page: usize, interval: u64) {
        self.keep_pages(page, 1);
        (page + 1..page + PAGE_WORDS).for_each(|at| self.set_unlogged(at, 0));
        self.set_unlogged(page, interval);
    }

    /// Adds those of a run at `file_block` that have not changed in `interval` to `found`.
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
    /// Of the view of an image: puts the blocks of a file whose bytes are those that they had at
    /// the cut of the image before, up to where the file ended then, into `found`, in order and
    /// neighbours together. Holes are not among them. Nothing is known of stores by mappings.
    /// Errors: `ImageLost`.
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

/// Adds blocks behind those that are there.
fn add(found: &mut Vec<Range<u32>>, blocks: Range<u32>) {
    match found.last_mut().filter(|last| last.end == blocks.start) {
        Some(last) => last.end = blocks.end,
        None => found.push(blocks),
    }
}
