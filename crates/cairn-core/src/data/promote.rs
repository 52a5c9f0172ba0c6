//! Promotion: blocks that were read on a slower tier move to a faster one that has room, so that
//! the next read finds them there.
//!
//! A reader leaves a note in shared memory. The promoter (the agent) takes it, plans, copies
//! outside the lock and commits. The blocks change places only if nothing was written to the file,
//! and nothing moved in it, since the plan.
//!
//! Must stay true: nobody waits for a promotion, and it waits for nobody: its pin reserves blocks,
//! but is not one of the file's pins. Each tier keeps a share for writes. Only blocks with a
//! checksum are promoted, and the copy is compared with it. Metadata are not durable: a file there
//! would lose bytes with the memory that had been safe before.
//!
//! Does not decide when to promote. Notes may be lost or mixed up, which costs a transfer and never
//! a wrong byte.

use crate::data::map::Stretch;
use crate::data::quiet::Quiet;
use crate::data::read::ReadPlan;
use crate::engine::fs::Microfs;
use crate::engine::inode::Inode;
use crate::engine::run::BlockRun;
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{PROMOTED, PROMOTES, READ_NOTES, READ_PLACES, READS_NOTED};
use crate::format::types::{Caller, InodeId};
use crate::process::pin::Reservation;
use crate::space::pool::WITHHELD;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of bytes in one promotion, unless a block is larger.
const PROMOTION_BYTES_MAX: u64 = 1 << 20;
/// Share of a tier that is left to writes: one part in this many.
const RESERVE_SHARE: u32 = 4;
/// Extents examined under one lock.
const SCAN_BATCH: usize = 256;

/// Blocks that are to move to a faster tier.
#[derive(Debug)]
pub struct Promotion {
    /// The file.
    pub inode: InodeId,
    /// First of the blocks in the file, in hugeblocks.
    pub file_block: u32,
    /// Number of blocks.
    pub count: u32,
    /// Bytes of them that belong to the file; the copy has zeros behind them in the last block.
    pub bytes: u64,
    /// Tier and first block to copy from.
    pub from: (u8, u32),
    /// Tier and first block to copy to.
    pub to: (u8, u32),
    reservation: Reservation,
    quiet: Quiet,
}

/// Result of a scan of a file.
enum Found {
    Blocks(Promotion),
    /// Nothing to promote before this file block.
    Nothing {
        before: u32,
    },
}

impl Microfs {
    /// Sets whether readers leave notes. Errors: `Invalid`: metadata are durable.
    pub fn promote_reads(&self, promotes: bool) -> Result<()> {
        if self.layout().durable {
            return Err(Error::Invalid);
        }
        self.note_word(PROMOTES).store(u64::from(promotes), Ordering::Relaxed);
        Ok(())
    }

    /// Leaves a note of what a plan reads on tiers slower than the first, if notes are wanted.
    /// Takes no lock.
    pub fn note_read(&self, plan: &ReadPlan) {
        let is_slower = plan.runs().iter().any(|run| run.source.is_some_and(|(tier, _)| tier > 0));
        if !is_slower || self.note_word(PROMOTES).load(Ordering::Relaxed) == 0 {
            return;
        }
        let block = |byte: u64| (byte >> self.layout().hugeblock_shift) as u32;
        let (mut first, mut end) =
            (block(plan.offset), block(plan.offset + plan.length - 1).saturating_add(1));
        let (key, known_end) = self.read_note(plan.inode.0 as usize % READ_PLACES);
        let known = key.load(Ordering::Relaxed);
        if known >> 32 == u64::from(plan.inode.0) {
            first = first.min(known as u32);
            end = end.max(known_end.load(Ordering::Relaxed) as u32);
        }
        known_end.store(u64::from(end), Ordering::Relaxed);
        key.store(u64::from(plan.inode.0) << 32 | u64::from(first), Ordering::Relaxed);
        self.note_word(READS_NOTED).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of notes ever left. It changes when somebody reads on a slower tier.
    pub fn reads_noted(&self) -> u64 {
        self.note_word(READS_NOTED).load(Ordering::Relaxed)
    }

    /// Takes a note: file blocks that were read, and perhaps their file.
    pub fn take_read_note(&self) -> Option<(InodeId, Range<u32>)> {
        (0..READ_PLACES).find_map(|place| {
            let (key, end) = self.read_note(place);
            let key = match key.load(Ordering::Relaxed) {
                0 => 0,
                _ => key.swap(0, Ordering::Relaxed),
            };
            let blocks = key as u32..end.load(Ordering::Relaxed) as u32;
            (key != 0 && !blocks.is_empty()).then_some((InodeId((key >> 32) as u32), blocks))
        })
    }

    fn note_word(&self, word: usize) -> &AtomicU64 {
        &self.memory().words()[word]
    }

    fn read_note(&self, place: usize) -> (&AtomicU64, &AtomicU64) {
        let at = READ_NOTES + 2 * place;
        (self.note_word(at), self.note_word(at + 1))
    }

    /// Plans to move the first of these file blocks that are on a slower tier than one with room.
    /// Returns `None` if there are none, or if somebody writes to the file. Errors: `NoSpace`: no
    /// faster tier has room; `Invalid`: metadata are durable.
    pub fn plan_promotion(
        &self,
        caller: &Caller,
        inode: InodeId,
        blocks: Range<u32>,
    ) -> Result<Option<Promotion>> {
        if self.layout().durable {
            return Err(Error::Invalid);
        }
        let mut rest = blocks;
        while !rest.is_empty() {
            let found = self.transact(|tx| {
                let slot = tx.slot(caller.slot)?;
                let Ok(inode) = tx.recalled_inode(inode) else { return Ok(None) };
                let Some(quiet) = Quiet::of(tx, inode) else { return Ok(None) };
                tx.find_to_promote(slot, inode, quiet, rest.clone()).map(Some)
            })?;
            match found {
                None => break,
                Some(Found::Blocks(promotion)) => return Ok(Some(promotion)),
                Some(Found::Nothing { before }) => rest.start = before,
            }
        }
        Ok(None)
    }

    /// Replaces the blocks of the file with those that they were copied to, whose checksums are
    /// stored. Returns false, with nothing done, if the file changed. Unless this fails, the
    /// promotion is over.
    pub fn commit_promotion(&self, caller: &Caller, promotion: &Promotion) -> Result<bool> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = tx.reserved(slot, promotion.reservation)?;
            let found = tx.recalled_inode(promotion.inode).ok();
            let unchanged = |inode: &Inode| Quiet::of(tx, *inode) == Some(promotion.quiet);
            let Some(inode) = found.filter(unchanged) else {
                tx.abandon_pin(slot, pin);
                return Ok(false);
            };
            let (tier, first) = promotion.to;
            let blocks = BlockRun { tier, first, count: promotion.count };
            pin.clear(tx);
            inode.note_move(tx);
            tx.replace_blocks(inode, promotion.file_block, blocks)?;
            let counter = PROMOTED + usize::from(promotion.from.0);
            let promoted = tx.get(counter);
            tx.set(counter, promoted.wrapping_add(u64::from(promotion.count)));
            Ok(true)
        })
    }

    /// Gives up a promotion whose copy failed.
    pub fn abort_promotion(&self, caller: &Caller, promotion: &Promotion) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = tx.reserved(slot, promotion.reservation)?;
            tx.abandon_pin(slot, pin);
            Ok(())
        })
    }
}

impl Transaction<'_> {
    /// Scans a bounded number of extents for blocks to promote, and begins to promote the first
    /// ones.
    fn find_to_promote(
        &mut self,
        slot: Slot,
        inode: Inode,
        quiet: Quiet,
        blocks: Range<u32>,
    ) -> Result<Found> {
        let map = inode.map(self);
        let mut at = blocks.start;
        for _ in 0..SCAN_BATCH {
            if at >= blocks.end {
                break;
            }
            let count = match self.stretch(map, at) {
                Stretch::Hole(count) => count,
                Stretch::Data(run) => {
                    let run = BlockRun { count: run.count.min(blocks.end - at), ..run };
                    match self.to_promote(run) {
                        (0, Some(run)) => {
                            let promotion = self.begin_promotion(slot, inode, quiet, (at, run))?;
                            return Ok(Found::Blocks(promotion));
                        }
                        (skipped, _) => skipped,
                    }
                }
            };
            at = at.saturating_add(count.max(1));
        }
        Ok(Found::Nothing { before: at })
    }

    /// Returns the number of blocks of a run to skip, and the run behind them that can be promoted,
    /// if any.
    fn to_promote(&self, run: BlockRun) -> (u32, Option<BlockRun>) {
        if run.tier == 0 {
            return (run.count, None);
        }
        let is_stale = |index: &u32| self.is_stale(run.tier, run.first + index);
        let stale = (0..run.count).take_while(is_stale).count() as u32;
        let most = (PROMOTION_BYTES_MAX / self.layout.hugeblock_bytes).max(1) as u32;
        let sealed = (stale..run.count).take(most as usize).take_while(|index| !is_stale(index));
        let count = sealed.count() as u32;
        (stale, (count > 0).then_some(BlockRun { count, ..run }))
    }

    /// Reserves blocks on a faster tier for the run of blocks at `file_block`.
    fn begin_promotion(
        &mut self,
        slot: Slot,
        inode: Inode,
        quiet: Quiet,
        (file_block, run): (u32, BlockRun),
    ) -> Result<Promotion> {
        let found = (0..run.tier).find_map(|tier| {
            let count = run.count.min(self.room_to_promote(tier));
            (count > 0).then(|| self.next_stretch(tier, count)).flatten()
        });
        let blocks = found.ok_or(Error::NoSpace)?;
        self.mark_used(blocks);
        let start = u64::from(file_block) << self.layout.hugeblock_shift;
        let length = u64::from(blocks.count) << self.layout.hugeblock_shift;
        Ok(Promotion {
            inode: inode.id,
            file_block,
            count: blocks.count,
            bytes: inode.size(self).saturating_sub(start).min(length),
            from: (run.tier, run.first),
            to: (blocks.tier, blocks.first),
            reservation: self.reserve(slot, blocks)?,
            quiet,
        })
    }

    /// Returns the number of free blocks of a tier beyond those that are left to writes.
    fn room_to_promote(&self, tier: u8) -> u32 {
        let region = self.layout.tiers[usize::from(tier)];
        let barred: u64 =
            self.layout.parts(tier).map(|part| self.get(part.counters + WITHHELD)).sum();
        let kept = u64::from(region.blocks.div_ceil(RESERVE_SHARE)) + barred;
        let taken = self.get(region.counters).saturating_add(kept);
        u64::from(region.blocks).saturating_sub(taken) as u32
    }
}
