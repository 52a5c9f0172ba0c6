//! Reading, writing and truncating: plan under the lock, let the caller move the bytes, commit under the lock.
//!
//! A read plan names the blocks; the reader checks afterwards that they did not move. A write plan reserves fresh
//! blocks for holes and pins everything it will write; fresh blocks become part of the file at commit, so a
//! reader never sees a byte that was not written. If somebody else filled the same hole or moved the file's blocks
//! meanwhile, the commit says `Replan`.
//!
//! Invariants: bytes past the end of the file within its last block are zero; bytes at or past `written_end` of the
//! inode were never planned to be written, so writing them *fills* zeros and the block's checksum follows by
//! linearity; a block that is otherwise overwritten in part is stale until it is sealed.

use crate::error::{Error, Result};
use crate::fs::Microfs;
use crate::handle::{APPEND, Handle, MAY_READ, MAY_WRITE, WROTE};
use crate::inode::{Inode, UNCLEAN};
use crate::map::{Extent, Stretch};
use crate::oplog::Operation;
use crate::pin::{PIN_APPEND, PIN_CONTESTED, Pin, PinRequest, PinnedRun, RUNS_MAX};
use crate::pool::BlockRun;
use crate::process::Slot;
use crate::transaction::Transaction;
use crate::types::{Caller, HandleId, InodeId};
use std::sync::atomic::{Ordering, fence};

/// Bytes one write plan covers at most.
pub const WRITE_BYTES_MAX: u64 = 16 << 20;
/// Runs one read plan consists of at most.
const READ_RUNS_MAX: usize = 16;

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
    /// A block nobody else sees: zero what is not written, store the checksum of the whole block.
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
    pin_index: usize,
    hugeblock_shift: u32,
    zero_from: u64,
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
                let from = self.offset.max(block_start);
                let to = end.min(block_start + block_bytes);
                WritePiece {
                    tier: run.blocks.tier,
                    block: run.blocks.first + index,
                    start: (from - block_start) as u32,
                    length: (to - from) as u32,
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
    /// It is part of the file.
    Done,
    /// The file changed underneath: plan again at `Position::Again(plan.offset)` and transfer again.
    Replan,
}

/// One step of a truncation.
#[derive(Debug)]
pub enum Truncation {
    /// The file has its new size.
    Done,
    /// A bounded part was done; call again.
    More,
    /// The last block must be copied first; then `commit_truncate`.
    Copy(TruncatePlan),
}

/// The copy a truncation into the middle of a block needs: keep the first bytes, zero the rest.
#[derive(Debug)]
pub struct TruncatePlan {
    /// The file.
    pub inode: InodeId,
    /// Its new size.
    pub size: u64,
    /// Tier and block to copy from.
    pub from: (u8, u32),
    /// Tier and block to copy to.
    pub to: (u8, u32),
    /// Bytes to copy; the rest of the block becomes zero.
    pub keep_bytes: u32,
    pin_index: usize,
    version: u64,
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
        inode.clear_flags(self, UNCLEAN);
        self.finish_truncate(inode, 0, caller);
        Ok(())
    }

    fn finish_truncate(&mut self, inode: Inode, size: u64, caller: &Caller) {
        if size < inode.size(self) {
            inode.set_written_end(self, size);
        }
        let appended = inode.appended_end(self);
        inode.set_appended_end(self, appended.min(size));
        inode.set_size(self, size);
        inode.touch_data(self, caller.now);
        self.log(Operation::Truncate, caller.now, &[u64::from(inode.id.0), size], &[]);
    }

    fn write_offset(&self, inode: Inode, handle: Handle, at: Position) -> u64 {
        let appends = handle.flags(self) & APPEND != 0;
        match at {
            Position::Again(offset) => offset,
            // Without a write in flight, what was planned beyond the end came to nothing.
            _ if appends && inode.pins(self) == 0 => inode.size(self),
            _ if appends => inode.size(self).max(inode.written_end(self)),
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

    /// Size of the file once `pin` is committed: appends become visible as a contiguous prefix.
    fn size_after(&mut self, inode: Inode, pin: Pin, end: u64) -> u64 {
        let size = inode.size(self);
        if pin.flags(self) & PIN_APPEND == 0 {
            return size.max(end);
        }
        let appended = inode.appended_end(self).max(end);
        inode.set_appended_end(self, appended);
        let first_pending = match inode.pins(self) > 1 {
            true => self
                .pins_of(inode.id)
                .filter(|other| other.at != pin.at && other.flags(self) & PIN_APPEND != 0)
                .map(|other| other.offset(self))
                .min()
                .unwrap_or(u64::MAX),
            false => u64::MAX,
        };
        size.max(appended.min(first_pending))
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
    /// Errors: `NoSpace` if no byte of it fits, `FileTooLarge`, `Busy` if too many writes of this process are in
    /// flight.
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
            let (pin_index, pin) = tx.free_pin(slot)?;
            let offset = tx.write_offset(inode, handle, at);
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
                pin_index,
                hugeblock_shift: shift,
                zero_from: inode.written_end(tx).max(inode.size(tx)),
                term: None,
                run_count: 0,
                runs: [EMPTY_RUN; RUNS_MAX],
            };
            collect_runs(tx, slot, inode, wanted_end, &mut plan)?;
            let end = offset + plan.length;
            let contested = tx.contest(inode, offset, end);
            mark_overwritten_stale(tx, inode, &plan);
            tx.activate_pin(
                pin,
                &PinRequest {
                    inode: inode.id,
                    offset,
                    length: plan.length,
                    append: handle.flags(tx) & APPEND != 0,
                    contested,
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
            let word = &self.memory().words()[at];
            let shift = 32 * (block % 2);
            let keep = !(0xffff_ffff << shift);
            // The closure never gives up, so this cannot fail.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(old & keep | u64::from(crc32c) << shift)
            });
        }
        Ok(())
    }

    /// Makes a transferred write part of the file.
    pub fn commit_write(&self, caller: &Caller, plan: &WritePlan) -> Result<Committed> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            let inode = tx.inode(plan.inode)?;
            if !pin.is_active(tx) || pin.inode(tx) != plan.inode.0 {
                return Err(Error::Invalid);
            }
            if !tx.still_holds(inode, pin) {
                tx.abandon_pin(slot, pin);
                return Ok(Committed::Replan);
            }
            let range = (plan.offset, plan.length);
            let handle = tx.handle(plan.handle).ok();
            let mut logged = false;
            for run in &plan.runs[..plan.run_count] {
                if run.fresh {
                    tx.attach(inode, Extent { file_block: run.file_block, blocks: run.blocks })?;
                    let part = if logged { (plan.offset + plan.length, 0) } else { range };
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
            let size = tx.size_after(inode, pin, plan.offset + plan.length);
            inode.set_size(tx, size);
            inode.touch_data(tx, caller.now);
            pin.clear(tx);
            Ok(Committed::Done)
        })
    }

    /// Gives up a write whose transfer failed; a cursor it moved goes back if nobody else moved it since.
    pub fn abort_write(&self, caller: &Caller, plan: &WritePlan) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            if pin.is_active(tx) {
                tx.abandon_pin(slot, pin);
            }
            if let Ok(handle) = tx.handle(plan.handle) {
                if handle.cursor(tx) == plan.offset + plan.length {
                    handle.set_cursor(tx, plan.offset);
                }
            }
            Ok(())
        })
    }

    /// Gives a regular file a new size, one bounded step at a time. The caller has checked the right to write.
    pub fn truncate(&self, caller: &Caller, inode: InodeId, size: u64) -> Result<Truncation> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.inode(inode)?;
            let shift = tx.layout.hugeblock_shift;
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
            if size >= inode.size(tx) {
                tx.finish_truncate(inode, size, caller);
                return Ok(Truncation::Done);
            }
            if size == 0 {
                tx.truncate_to_zero(inode, caller, slot)?;
                return Ok(Truncation::Done);
            }
            let keep_bytes = (size & (tx.layout.hugeblock_bytes - 1)) as u32;
            let first_gone = size.div_ceil(tx.layout.hugeblock_bytes) as u32;
            let (lowest, more) = tx.cut_extents(inode, first_gone, caller, slot)?;
            if more {
                tx.finish_truncate(inode, u64::from(lowest) << shift, caller);
                return Ok(Truncation::More);
            }
            let tail = tx.stretch(inode.map(tx), (size >> shift) as u32);
            match tail {
                Stretch::Data(block) if keep_bytes > 0 => {
                    // Until the copy is committed the file ends with the block.
                    let block_end = u64::from(first_gone) << shift;
                    if block_end < inode.size(tx) {
                        tx.finish_truncate(inode, block_end, caller);
                    }
                    let plan = plan_tail_copy(tx, slot, inode, size, block)?;
                    Ok(Truncation::Copy(plan))
                }
                _ => {
                    tx.finish_truncate(inode, size, caller);
                    Ok(Truncation::Done)
                }
            }
        })
    }

    /// Puts the copied last block in place; `checksum` is its CRC32C. After `Replan` call `truncate` again.
    pub fn commit_truncate(
        &self,
        caller: &Caller,
        plan: &TruncatePlan,
        checksum: u32,
    ) -> Result<Committed> {
        self.store_checksum(plan.to.0, plan.to.1, checksum)?;
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.inode(plan.inode)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            let unchanged = pin.is_active(tx)
                && inode.layout(tx) == pin.layout(tx)
                && inode.version(tx) == plan.version;
            let file_block = (plan.size >> tx.layout.hugeblock_shift) as u32;
            if !unchanged {
                tx.abandon_pin(slot, pin);
                return Ok(Committed::Replan);
            }
            let Some(old) = tx.detach_last_of_extent(inode, file_block) else {
                tx.abandon_pin(slot, pin);
                return Ok(Committed::Replan);
            };
            let (tier, first) = plan.to;
            let fresh = BlockRun { tier, first, count: 1 };
            pin.clear(tx);
            tx.dispose_block(inode, file_block, old, caller, slot)?;
            tx.attach(inode, Extent { file_block, blocks: fresh })?;
            tx.finish_truncate(inode, plan.size, caller);
            Ok(Committed::Done)
        })
    }

    /// Gives up a truncation whose copy failed; the file keeps a size within the same block.
    pub fn abort_truncate(&self, caller: &Caller, plan: &TruncatePlan) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            if pin.is_active(tx) {
                tx.abandon_pin(slot, pin);
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
            let filled = ((plan.zero_from - 1) >> shift) as u32 + 1;
            let count = run.blocks.count.min(filled - run.file_block);
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

fn plan_tail_copy(
    tx: &mut Transaction,
    slot: Slot,
    inode: Inode,
    size: u64,
    tail: BlockRun,
) -> Result<TruncatePlan> {
    let (pin_index, pin) = tx.free_pin(slot)?;
    let fresh = tx.allocate(slot, 1).ok_or(Error::NoSpace)?;
    let file_block = (size >> tx.layout.hugeblock_shift) as u32;
    let runs = [PinnedRun { file_block, blocks: fresh, fresh: true }];
    let layout = inode.layout(tx);
    tx.activate_pin(
        pin,
        &PinRequest {
            inode: inode.id,
            offset: size,
            length: 0,
            append: false,
            contested: false,
            layout,
            runs: &runs,
        },
    )?;
    Ok(TruncatePlan {
        inode: inode.id,
        size,
        from: (tail.tier, tail.first),
        to: (fresh.tier, fresh.first),
        keep_bytes: (size & (tx.layout.hugeblock_bytes - 1)) as u32,
        pin_index,
        version: inode.version(tx),
    })
}
