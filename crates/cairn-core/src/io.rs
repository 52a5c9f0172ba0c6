//! Reading, writing and truncating: plan under the lock, let the caller move the bytes, commit under the lock.
//!
//! A read plan names the blocks; the reader checks afterwards that they did not move. A write plan reserves fresh
//! blocks for holes and pins everything it will write; fresh blocks become part of the file at commit, so a
//! reader never sees a byte that was not written. If somebody else filled the same hole or moved the file's blocks
//! meanwhile, the commit says `Replan`.
//!
//! Invariants: bytes past the end of the file within its last block count as zeros, in checksums, too; where they may
//! not be zeros the inode has a *tail*, which is settled (zeroed) before the file grows over it. Bytes at or past
//! `written_end` of the inode were never planned to be written, so writing them *fills* zeros and the block's
//! checksum follows by linearity; a block that is otherwise overwritten in part is stale until it is sealed.

use crate::error::{Error, Result};
use crate::fs::Microfs;
use crate::handle::{APPEND, Handle, MAY_READ, MAY_WRITE, WROTE};
use crate::inode::{Inode, ORPHAN, SETTLING, UNCLEAN, WANTS_SETTLE};
use crate::map::{Extent, Stretch};
use crate::oplog::Operation;
use crate::pin::{PIN_APPEND, PIN_CONTESTED, PIN_SETTLES, Pin, PinRequest, PinnedRun, RUNS_MAX};
use crate::pool::BlockRun;
use crate::process::Slot;
use crate::transaction::{Transaction, store_half};
use crate::types::{Caller, HandleId, InodeId};
use std::sync::atomic::{Ordering, fence};

/// Bytes one write plan covers at most.
pub const WRITE_BYTES_MAX: u64 = 16 << 20;
/// Runs one read plan consists of at most.
const READ_RUNS_MAX: usize = 8;

/// Where a read or write happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// At the shared cursor, which is moved past it at once.
    Cursor,
    /// At this offset; a write through an appending handle goes to the end all the same, as in Linux.
    At(u64),
    /// Exactly here: the repetition of a plan that could not be committed.
    Again(u64),
}

/// Part of a read: so many bytes from a tier, or zeros.
#[derive(Clone, Copy, Debug)]
pub struct ReadRun {
    /// Length in bytes.
    pub bytes: u64,
    /// Tier and byte offset on it; `None` for zeros.
    pub source: Option<(u8, u64)>,
}

/// Where the bytes of a read are.
#[derive(Clone, Copy, Debug)]
pub struct ReadPlan {
    /// The file.
    pub inode: InodeId,
    /// First byte.
    pub offset: u64,
    /// Bytes covered; fewer than asked at the end of the file, or when the file is scattered. 0 at the end.
    pub length: u64,
    moves_word: usize,
    moves: u64,
    run_count: usize,
    runs: [ReadRun; READ_RUNS_MAX],
}

impl ReadPlan {
    /// The parts, in file order.
    pub fn runs(&self) -> &[ReadRun] {
        &self.runs[..self.run_count]
    }
}

/// What the caller does with one hugeblock of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A block nobody else sees: zero what the piece says, store the checksum of the whole block, taking all that
    /// is not written for zeros.
    Fresh,
    /// Zeros are written over: hand the checksum term to [`WritePlan::fold`].
    Fill,
    /// Anything is written over: store the checksum if the whole block is, else nothing.
    Overwrite,
}

/// The part of a write that falls into one hugeblock.
#[derive(Clone, Copy, Debug)]
pub struct WritePiece {
    /// Tier of the block.
    pub tier: u8,
    /// The block.
    pub block: u32,
    /// First byte within the block.
    pub start: u32,
    /// Bytes.
    pub length: u32,
    /// Bytes to zero at the start of the block.
    pub zero_before: u32,
    /// Bytes to zero after the piece.
    pub zero_after: u32,
    /// What to do.
    pub kind: WriteKind,
}

/// A write that was planned and must be committed or aborted.
#[derive(Debug)]
pub struct WritePlan {
    /// The file.
    pub inode: InodeId,
    /// First byte.
    pub offset: u64,
    /// Bytes covered; may be fewer than asked.
    pub length: u64,
    handle: HandleId,
    opening: u32,
    pin_index: usize,
    pin_ticket: u64,
    hugeblock_shift: u32,
    zero_from: u64,
    /// The write continues the file in a fresh block: what follows it there becomes the tail.
    leaves_tail: bool,
    term: Option<(u8, u32, u32)>,
    run_count: usize,
    runs: [PinnedRun; RUNS_MAX],
}

impl WritePlan {
    /// The parts, one per hugeblock, in file order.
    pub fn pieces(&self) -> impl Iterator<Item = WritePiece> {
        let block_bytes = 1u64 << self.hugeblock_shift;
        let end = self.offset + self.length;
        self.runs[..self.run_count].iter().flat_map(move |run| {
            (0..run.blocks.count).map(move |index| {
                let block_start = u64::from(run.file_block + index) << self.hugeblock_shift;
                let block_end = block_start + block_bytes;
                let from = self.offset.max(block_start);
                let to = end.min(block_end);
                let zero_after = if run.fresh && !self.leaves_tail { block_end - to } else { 0 };
                WritePiece {
                    tier: run.blocks.tier,
                    block: run.blocks.first + index,
                    start: (from - block_start) as u32,
                    length: (to - from) as u32,
                    zero_before: if run.fresh { (from - block_start) as u32 } else { 0 },
                    zero_after: zero_after as u32,
                    kind: if run.fresh {
                        WriteKind::Fresh
                    } else if from >= self.zero_from {
                        WriteKind::Fill
                    } else {
                        WriteKind::Overwrite
                    },
                }
            })
        })
    }

    /// Takes the checksum term of a `Fill` piece; there is at most one in a plan.
    pub fn fold(&mut self, piece: &WritePiece, term: u32) {
        self.term = Some((piece.tier, piece.block, term));
    }
}

/// What became of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It is part of the file. If it repeated a longer append that gave `Replan`, go on at `Position::Again` where this
    /// part ends, or call `abort_write`.
    Done,
    /// The file changed underneath: plan again at `Position::Again(plan.offset)` and transfer again, or give the
    /// write up with `abort_write`. An append keeps its place until then.
    Replan,
}

/// One step of a truncation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// The file has its new size.
    Done,
    /// A bounded part was done; call again.
    More,
}

/// The bytes to zero so that a file can grow over its tail.
#[derive(Debug)]
pub struct SettlePlan {
    /// The file.
    pub inode: InodeId,
    /// Tier of the last block.
    pub tier: u8,
    /// The last block.
    pub block: u32,
    /// First byte to zero; all after it in the block, too.
    pub from: u32,
    tail: u64,
    pin_index: usize,
}

impl Transaction<'_> {
    /// Empties a regular file.
    pub(crate) fn truncate_to_zero(
        &mut self,
        inode: Inode,
        caller: &Caller,
        slot: Slot,
    ) -> Result<()> {
        self.cut_all(inode, caller, slot)?;
        inode.clear_tail(self);
        inode.clear_flags(self, UNCLEAN);
        self.finish_truncate(inode, 0, caller);
        Ok(())
    }

    fn finish_truncate(&mut self, inode: Inode, size: u64, caller: &Caller) {
        let appended = inode.appended_end(self);
        if size < inode.size(self).max(appended) {
            inode.set_written_end(self, size);
        }
        inode.set_appended_end(self, appended.min(size));
        inode.set_size(self, size);
        inode.touch_data(self, caller);
        self.log(Operation::Truncate, caller.now, &[u64::from(inode.id.0), size], &[]);
    }

    pub(crate) fn write_offset(&self, inode: Inode, handle: Handle, at: Position) -> u64 {
        let appends = handle.flags(self) & APPEND != 0;
        match at {
            Position::Again(offset) => offset,
            // Without a write in flight, what was planned beyond the end came to nothing.
            _ if appends && !self.is_written(inode) => inode.size(self),
            _ if appends => {
                let places = self.places_in(inode.id).map(|pin| pin.place_end(self));
                places.fold(inode.size(self).max(inode.appended_end(self)), u64::max)
            }
            Position::At(offset) => offset,
            Position::Cursor => handle.cursor(self),
        }
    }

    /// Marks this plan and the pins whose blocks it shares as contested.
    fn contest(&mut self, inode: Inode, offset: u64, end: u64) -> bool {
        if inode.pins(self) == 0 {
            return false;
        }
        let block = |byte: u64| byte >> self.layout.hugeblock_shift;
        let (first, last) = (block(offset), block(end - 1));
        let mut others = [None; 64];
        let overlapping = self.pins_of(inode.id).filter(|pin| {
            block(pin.offset(self)) <= last && block(pin.end(self).saturating_sub(1)) >= first
        });
        for (place, pin) in others.iter_mut().zip(overlapping) {
            *place = Some(pin);
        }
        let mut contested = false;
        for pin in others.into_iter().flatten() {
            let flags = pin.flags(self);
            pin.set_flags(self, flags | PIN_CONTESTED);
            contested = true;
        }
        contested
    }

    /// Whether the blocks of a pin are still where the plan found them.
    fn still_holds(&self, inode: Inode, pin: Pin) -> bool {
        let map = inode.map(self);
        inode.layout(self) == pin.layout(self)
            || pin.runs(self).all(|run| match self.stretch(map, run.file_block) {
                Stretch::Hole(count) => run.fresh && count >= run.blocks.count,
                Stretch::Data(found) => {
                    !run.fresh
                        && found.tier == run.blocks.tier
                        && found.first == run.blocks.first
                        && found.count >= run.blocks.count
                }
            })
    }

    /// The open description a plan was made through, if it is still open.
    fn planned_handle(&self, plan: &WritePlan) -> Option<Handle> {
        self.handle(plan.handle).ok().filter(|handle| handle.opening(self) == plan.opening)
    }

    /// What a write does to the tail: it reaches over it, moves it, or leaves one.
    fn move_tail(&mut self, inode: Inode, plan: &WritePlan) {
        let end = plan.offset + plan.length;
        if plan.leaves_tail {
            return inode.set_tail(self, end);
        }
        let Some(tail) = inode.tail(self).filter(|&tail| end > tail) else { return };
        let same_block = tail >> plan.hugeblock_shift == (end - 1) >> plan.hugeblock_shift;
        match same_block {
            true => inode.set_tail(self, end),
            false => inode.clear_tail(self),
        }
    }
}

impl Microfs {
    /// Plans a read of up to `length` bytes.
    pub fn plan_read(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
    ) -> Result<ReadPlan> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, MAY_READ)?;
            if !inode.is_regular(tx) {
                return Err(Error::IsDirectory);
            }
            let offset = match at {
                Position::Cursor => handle.cursor(tx),
                Position::At(offset) | Position::Again(offset) => offset,
            };
            let mut plan = ReadPlan {
                inode: inode.id,
                offset,
                length: 0,
                moves_word: inode.at + 6,
                moves: u64::from(inode.moves(tx)),
                run_count: 0,
                runs: [ReadRun { bytes: 0, source: None }; READ_RUNS_MAX],
            };
            let end = inode.size(tx).min(offset.saturating_add(length));
            plan_runs(tx, inode, end, &mut plan);
            if at == Position::Cursor {
                handle.set_cursor(tx, offset + plan.length);
            }
            // As `relatime`: only the first read after a change is recorded.
            if plan.length > 0 && inode.accessed(tx) <= inode.modified(tx) {
                inode.set_accessed(tx, caller.now.0);
            }
            Ok(plan)
        })
    }

    /// Whether the bytes just copied by `plan` were the file's: false if its blocks moved meanwhile.
    pub fn read_is_valid(&self, plan: &ReadPlan) -> bool {
        fence(Ordering::Acquire);
        let layout = self.memory().words()[plan.moves_word].load(Ordering::Relaxed);
        layout >> 32 == plan.moves
    }

    /// Plans a write of up to `length` > 0 bytes.
    /// Errors: `NoSpace` if no byte of it fits; `FileTooLarge`; `Busy` if too many writes of this process are in
    /// flight or the file's tail is being settled: try again; `Unsettled`: settle the tail first.
    pub fn plan_write(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
    ) -> Result<WritePlan> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, MAY_WRITE)?;
            let waiting = match at {
                Position::Again(offset) => tx.take_waiting_pin(slot, inode, offset),
                _ => None,
            };
            let (pin_index, pin) = match waiting {
                Some(waiting) => waiting,
                None => tx.free_pin(slot)?,
            };
            let place_end = waiting.map_or(0, |(_, pin)| pin.place_end(tx));
            if inode.flags(tx) & (SETTLING | WANTS_SETTLE) != 0 {
                if inode.pins(tx) != 0 {
                    return Err(Error::Busy);
                }
                inode.clear_flags(tx, WANTS_SETTLE);
            }
            let offset = tx.write_offset(inode, handle, at);
            if inode.tail(tx).is_some_and(|tail| offset > tail) {
                return Err(Error::Unsettled);
            }
            let shift = tx.layout.hugeblock_shift;
            let file_end_max = (u64::from(u32::MAX)) << shift;
            let wanted_end = offset
                .checked_add(length.min(WRITE_BYTES_MAX))
                .filter(|&end| end <= file_end_max && length > 0)
                .ok_or(Error::FileTooLarge)?;
            let mut plan = WritePlan {
                inode: inode.id,
                offset,
                length: 0,
                handle: handle.id,
                opening: handle.opening(tx),
                pin_index,
                pin_ticket: 0,
                hugeblock_shift: shift,
                zero_from: inode.written_end(tx).max(inode.size(tx)),
                leaves_tail: false,
                term: None,
                run_count: 0,
                runs: [EMPTY_RUN; RUNS_MAX],
            };
            collect_runs(tx, slot, inode, wanted_end, &mut plan)?;
            let end = offset + plan.length;
            let last_is_fresh = plan.runs[..plan.run_count].last().is_some_and(|run| run.fresh);
            plan.leaves_tail = last_is_fresh && offset == plan.zero_from;
            let appends = handle.flags(tx) & APPEND != 0;
            let contested = tx.contest(inode, offset, end);
            mark_overwritten_stale(tx, inode, &plan);
            plan.pin_ticket = tx.activate_pin(
                pin,
                &PinRequest {
                    inode: inode.id,
                    offset,
                    length: plan.length,
                    behind: place_end.saturating_sub(end),
                    flags: if appends { PIN_APPEND } else { 0 }
                        | if contested { PIN_CONTESTED } else { 0 },
                    layout: inode.layout(tx),
                    runs: &plan.runs[..plan.run_count],
                },
            )?;
            if end > inode.written_end(tx) {
                inode.set_written_end(tx, end);
            }
            if at == Position::Cursor {
                handle.set_cursor(tx, end);
            }
            handle.add_flags(tx, WROTE);
            Ok(plan)
        })
    }

    /// Stores the checksum of a block of the caller's own plan; takes no lock.
    /// Errors: `NoSpace` if the table's page cannot be had.
    pub fn store_checksum(&self, tier: u8, block: u32, crc32c: u32) -> Result<()> {
        let region = self.layout().tiers.get(tier as usize).ok_or(Error::Invalid)?;
        if block < region.blocks {
            let at = region.checksums + block as usize / 2;
            self.back_checksum(tier, at)?;
            store_half(&self.memory().words()[at], block % 2 == 1, crc32c);
        }
        Ok(())
    }

    /// Makes a transferred write part of the file.
    pub fn commit_write(&self, caller: &Caller, plan: &WritePlan) -> Result<Committed> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            let inode = tx.inode(plan.inode)?;
            if !pin.is_active_for(tx, plan.pin_ticket) {
                return Err(Error::Invalid);
            }
            if inode.flags(tx) & ORPHAN != 0 {
                // Deleted and closed meanwhile: nobody will read it.
                tx.abandon_pin(slot, pin);
                return Ok(Committed::Done);
            }
            let end = plan.offset + plan.length;
            // Somebody wrote or cut beyond: what this plan left unzeroed, or what was cut off, would show.
            let reach = inode.written_end(tx).max(inode.size(tx));
            let was_cut = pin.layout(tx) >> 32 != u64::from(inode.moves(tx));
            let overtaken = plan.leaves_tail && reach != end
                || inode.tail(tx).is_some_and(|tail| plan.offset > tail || was_cut && end > tail);
            if overtaken || !tx.still_holds(inode, pin) {
                tx.suspend_pin(slot, pin);
                return Ok(Committed::Replan);
            }
            let range = (plan.offset, plan.length);
            let handle = tx.planned_handle(plan);
            let mut logged = false;
            for run in &plan.runs[..plan.run_count] {
                if run.fresh {
                    tx.attach(inode, Extent { file_block: run.file_block, blocks: run.blocks })?;
                    let part = if logged { (end, 0) } else { range };
                    let added = Some((run.file_block, run.blocks));
                    tx.log_write(handle, caller.now, inode.id, part, added);
                    logged = true;
                }
            }
            if logged {
                inode.note_add(tx);
            } else {
                tx.log_write(handle, caller.now, inode.id, range, None);
            }
            if pin.flags(tx) & PIN_CONTESTED == 0 {
                mark_rewritten_sealed(tx, plan);
            }
            if let Some((tier, block, term)) = plan.term {
                tx.fold_checksum(tier, block, term);
            }
            tx.move_tail(inode, plan);
            let appended = pin.flags(tx) & PIN_APPEND != 0;
            pin.clear(tx);
            if appended {
                let place_end = pin.place_end(tx);
                if place_end > end {
                    tx.keep_place(pin, inode, end..place_end);
                }
                let furthest = inode.appended_end(tx).max(end);
                inode.set_appended_end(tx, furthest);
                tx.show_appended(inode);
            } else if end > inode.size(tx) {
                inode.set_size(tx, end);
            }
            inode.touch_data(tx, caller);
            Ok(Committed::Done)
        })
    }

    /// Gives up a write whose transfer failed, or which is not planned again after `Replan`; a cursor it moved goes
    /// back if nobody else moved it since.
    pub fn abort_write(&self, caller: &Caller, plan: &WritePlan) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            if pin.is_active_for(tx, plan.pin_ticket) {
                tx.abandon_pin(slot, pin);
            } else if [plan.offset, plan.offset + plan.length]
                .into_iter()
                .any(|offset| pin.keeps_place(tx, plan.inode, offset))
            {
                tx.give_up_place(pin);
            }
            if let Some(handle) = tx.planned_handle(plan) {
                if handle.cursor(tx) == plan.offset + plan.length {
                    handle.set_cursor(tx, plan.offset);
                }
            }
            Ok(())
        })
    }

    /// Gives a regular file a new size, one bounded step at a time. The caller has checked the right to write.
    /// Errors: `Unsettled`: settle the tail first.
    pub fn truncate(&self, caller: &Caller, inode: InodeId, size: u64) -> Result<Truncation> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.inode(inode)?;
            let shift = tx.layout.hugeblock_shift;
            if inode.flags(tx) & ORPHAN != 0 {
                return Err(Error::NotFound);
            }
            if !inode.is_regular(tx) {
                return Err(if inode.is_directory(tx) {
                    Error::IsDirectory
                } else {
                    Error::Invalid
                });
            }
            if size > u64::from(u32::MAX) << shift {
                return Err(Error::FileTooLarge);
            }
            if size == 0 {
                tx.truncate_to_zero(inode, caller, slot)?;
                return Ok(Truncation::Done);
            }
            // Appends that wait for an earlier one are cut, too.
            if size >= inode.size(tx).max(inode.appended_end(tx)) {
                if inode.tail(tx).is_some_and(|tail| size > tail) {
                    return Err(Error::Unsettled);
                }
                tx.finish_truncate(inode, size, caller);
                return Ok(Truncation::Done);
            }
            let first_gone = size.div_ceil(tx.layout.hugeblock_bytes) as u32;
            let (lowest, more) = tx.cut_extents(inode, first_gone, caller, slot)?;
            if more {
                inode.clear_tail(tx);
                tx.finish_truncate(inode, u64::from(lowest) << shift, caller);
                return Ok(Truncation::More);
            }
            match tx.stretch(inode.map(tx), (size >> shift) as u32) {
                Stretch::Data(block) if size & (tx.layout.hugeblock_bytes - 1) != 0 => {
                    inode.set_tail(tx, size);
                    inode.note_move(tx);
                    tx.note_stale(inode, BlockRun { count: 1, ..block });
                }
                _ => inode.clear_tail(tx),
            }
            tx.finish_truncate(inode, size, caller);
            Ok(Truncation::Done)
        })
    }

    /// Plans the zeroing of a file's tail; `None` if it has none. `Busy` while writes to it are in flight; no new
    /// ones begin meanwhile.
    pub fn plan_settle(&self, caller: &Caller, inode: InodeId) -> Result<Option<SettlePlan>> {
        let planned = self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.inode(inode)?;
            if inode.flags(tx) & ORPHAN != 0 {
                return Err(Error::NotFound);
            }
            let Some(tail) = inode.tail(tx) else { return Ok(Some(None)) };
            if inode.pins(tx) != 0 {
                inode.add_flags(tx, WANTS_SETTLE);
                return Ok(None);
            }
            let file_block = (tail >> tx.layout.hugeblock_shift) as u32;
            let Stretch::Data(run) = tx.stretch(inode.map(tx), file_block) else {
                inode.clear_tail(tx);
                return Ok(Some(None));
            };
            let (pin_index, pin) = tx.free_pin(slot)?;
            tx.activate_pin(
                pin,
                &PinRequest {
                    inode: inode.id,
                    offset: tail,
                    length: 0,
                    behind: 0,
                    flags: PIN_SETTLES,
                    layout: inode.layout(tx),
                    runs: &[],
                },
            )?;
            inode.clear_flags(tx, WANTS_SETTLE);
            inode.add_flags(tx, SETTLING);
            let from = (tail & (tx.layout.hugeblock_bytes - 1)) as u32;
            let (tier, block) = (run.tier, run.first);
            Ok(Some(Some(SettlePlan { inode: inode.id, tier, block, from, tail, pin_index })))
        })?;
        planned.ok_or(Error::Busy)
    }

    /// The tail was zeroed, or that failed. Nothing more if the file was cut meanwhile: it has another tail then.
    pub fn commit_settle(&self, caller: &Caller, plan: &SettlePlan, zeroed: bool) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            let inode = tx.inode(plan.inode)?;
            let unchanged = inode.layout(tx) == pin.layout(tx) && inode.tail(tx) == Some(plan.tail);
            pin.clear(tx);
            if inode.flags(tx) & ORPHAN != 0 {
                return Ok(());
            }
            inode.clear_flags(tx, SETTLING);
            if zeroed && unchanged {
                inode.clear_tail(tx);
            }
            Ok(())
        })
    }
}

const EMPTY_RUN: PinnedRun =
    PinnedRun { file_block: 0, blocks: BlockRun { tier: 0, first: 0, count: 0 }, fresh: false };

fn plan_runs(tx: &Transaction, inode: Inode, end: u64, plan: &mut ReadPlan) {
    let shift = tx.layout.hugeblock_shift;
    let map = inode.map(tx);
    let mut at = plan.offset;
    while at < end && plan.run_count < READ_RUNS_MAX {
        let block = (at >> shift) as u32;
        let inside = at & (tx.layout.hugeblock_bytes - 1);
        let (count, source) = match tx.stretch(map, block) {
            Stretch::Data(run) => {
                let offset = (u64::from(run.first) << shift) + inside;
                (run.count, Some((run.tier, offset)))
            }
            Stretch::Hole(count) => (count, None),
        };
        let bytes = ((u64::from(count) << shift) - inside).min(end - at);
        if bytes == 0 {
            tx.mark_corrupt("empty extent");
            break;
        }
        plan.runs[plan.run_count] = ReadRun { bytes, source };
        plan.run_count += 1;
        at += bytes;
    }
    plan.length = at.saturating_sub(plan.offset);
}

/// Finds or reserves the blocks from `plan.offset` to `wanted_end`, as far as runs and space go.
fn collect_runs(
    tx: &mut Transaction,
    slot: Slot,
    inode: Inode,
    wanted_end: u64,
    plan: &mut WritePlan,
) -> Result<()> {
    let shift = plan.hugeblock_shift;
    let map = inode.map(tx);
    let end_block = ((wanted_end - 1) >> shift) as u32 + 1;
    let mut block = (plan.offset >> shift) as u32;
    while block < end_block && plan.run_count < RUNS_MAX {
        let wanted = end_block - block;
        let (blocks, fresh) = match tx.stretch(map, block) {
            Stretch::Data(found) => (BlockRun { count: found.count.min(wanted), ..found }, false),
            Stretch::Hole(count) => match tx.allocate(slot, wanted.min(count)) {
                Some(run) => (run, true),
                None => break,
            },
        };
        if blocks.count == 0 {
            tx.mark_corrupt("empty extent");
            break;
        }
        plan.runs[plan.run_count] = PinnedRun { file_block: block, blocks, fresh };
        plan.run_count += 1;
        block += blocks.count;
    }
    let reached = (u64::from(block) << shift).min(wanted_end);
    plan.length = reached.saturating_sub(plan.offset);
    match plan.length {
        0 => Err(Error::NoSpace),
        _ => Ok(()),
    }
}

/// Until the bytes are there, the checksum of an overwritten block is void.
fn mark_overwritten_stale(tx: &mut Transaction, inode: Inode, plan: &WritePlan) {
    let shift = plan.hugeblock_shift;
    for run in &plan.runs[..plan.run_count] {
        let run_start = plan.offset.max(u64::from(run.file_block) << shift);
        if !run.fresh && run_start < plan.zero_from {
            let written = ((plan.zero_from - 1) >> shift) + 1 - u64::from(run.file_block);
            let count = u64::from(run.blocks.count).min(written) as u32;
            tx.note_stale(inode, BlockRun { count, ..run.blocks });
        }
    }
}

/// Blocks that were overwritten as a whole have a checksum again.
fn mark_rewritten_sealed(tx: &mut Transaction, plan: &WritePlan) {
    let shift = plan.hugeblock_shift;
    let first_whole = plan.offset.div_ceil(1 << shift) as u32;
    let end_whole = ((plan.offset + plan.length) >> shift) as u32;
    for run in plan.runs[..plan.run_count].iter().filter(|run| !run.fresh) {
        let from = run.file_block.max(first_whole);
        let to = (run.file_block + run.blocks.count).min(end_whole);
        if from < to {
            let first = run.blocks.first + (from - run.file_block);
            tx.set_stale(BlockRun { first, count: to - from, ..run.blocks }, false);
        }
    }
}
