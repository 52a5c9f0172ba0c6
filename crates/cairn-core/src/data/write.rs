//! Writing, first half: under the lock, plan what a write does and to which blocks.
//!
//! A plan reserves fresh blocks for holes and pins everything that will be written. Fresh blocks
//! become part of the file at commit (`commit.rs`), so a reader never sees a byte that was not
//! written.
//!
//! Invariant: no write of bytes at or past `written_end` of the inode was ever planned. So writing
//! there *fills* zeros, and the block's checksum follows by linearity. A block that is otherwise
//! overwritten in part is stale until it is sealed.
//!
//! Blocks that are in an image are not written to. At commit, fresh blocks replace them, and what
//! is not written is copied from them (a *redirect*). So a file never waits for the reader of the
//! image. The first writer to commit wins: one that finds other blocks at commit plans again.
//!
//! Does not move bytes, and does not zero what lies past the end of the file; `settle.rs` plans
//! that.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{ABSENT, Inode, MAPPED_TO_STORE, SETTLING, WANTS_SETTLE};
use crate::engine::run::{BlockRun, PinnedRun, Replaces};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::types::{Caller, HandleId, InodeId, Position};
use crate::process::handle::{APPEND, Handle, MAY_WRITE, WROTE};
use crate::process::pin::{PIN_APPEND, PIN_CONTESTED, PinRequest, RUNS_MAX};

mod commit;
pub(crate) mod lease;

pub use commit::Committed;
pub use lease::LeasedWrite;

/// Maximum number of bytes in one write plan.
pub const WRITE_BYTES_MAX: u64 = 16 << 20;

const EMPTY_RUN: PinnedRun =
    PinnedRun { file_block: 0, blocks: NO_BLOCKS, fresh: false, replaces: Replaces::NOTHING };
const NO_BLOCKS: BlockRun = BlockRun { tier: 0, first: 0, count: 0 };
/// An empty piece that fills zeros of a block that stays where it is.
pub(crate) const PIECE_IN_PLACE: WritePiece = WritePiece {
    tier: 0,
    block: 0,
    start: 0,
    length: 0,
    zero_before: 0,
    copy_from: None,
    copy_after: 0,
    zero_after: 0,
    kind: WriteKind::Fill,
};

/// What the caller does with one hugeblock of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A block nobody else sees. Copy and zero what the piece says, and store the checksum of the
    /// whole block, in which bytes that are neither written nor copied count as zeros.
    Fresh,
    /// The bytes replace zeros: hand their checksum term to [`WritePlan::fold`].
    Fill,
    /// The bytes replace anything. Store the checksum if the whole block is written, else nothing.
    Overwrite,
}

/// The part of a write that falls into one hugeblock.
#[derive(Clone, Copy, Debug)]
pub struct WritePiece {
    /// Tier of the block.
    pub tier: u8,
    /// Number of the block.
    pub block: u32,
    /// First byte within the block.
    pub start: u32,
    /// Length in bytes.
    pub length: u32,
    /// Bytes to zero at the start of the block.
    pub zero_before: u32,
    /// Tier and block from which the bytes before the piece, and `copy_after` bytes after it, are
    /// copied.
    pub copy_from: Option<(u8, u32)>,
    /// Bytes to copy after the piece.
    pub copy_after: u32,
    /// Bytes to zero behind the piece and the bytes copied after it.
    pub zero_after: u32,
    /// What to do with the block.
    pub kind: WriteKind,
}

/// A planned write, which must be committed or aborted.
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
    pin_ticket: u64,
    hugeblock_shift: u32,
    zero_from: u64,
    /// Offset in the file from which blocks hold zeros, or what counts as zeros.
    valid_end: u64,
    /// Image for which blocks are redirected; 0 if there is none.
    image: u64,
    /// The write continues the file in a fresh block: what follows it there becomes the tail.
    leaves_tail: bool,
    is_stored_to: bool,
    term: Option<(u8, u32, u32)>,
    run_count: usize,
    runs: [PinnedRun; RUNS_MAX],
    /// The write went to the cursor, so another one may follow it there.
    at_cursor: bool,
    /// The write stages in data of an absent file. It has no effect if absence has ended meanwhile.
    brings: bool,
}

impl WritePlan {
    /// Returns the parts, one per hugeblock, in file order.
    pub fn pieces(&self) -> impl Iterator<Item = WritePiece> {
        let block_bytes = 1u64 << self.hugeblock_shift;
        let end = self.offset + self.length;
        self.runs[..self.run_count].iter().flat_map(move |run| {
            (0..run.blocks.count).map(move |index| {
                let block_start = u64::from(run.file_block + index) << self.hugeblock_shift;
                let block_end = block_start + block_bytes;
                let from = self.offset.max(block_start);
                let to = end.min(block_end);
                let start = (from - block_start) as u32;
                let replaced = run.replaces.first();
                let is_copied = replaced.is_some();
                let copy_end = if is_copied { self.valid_end.min(block_end).max(to) } else { to };
                let zero_after =
                    if run.fresh && !self.leaves_tail { block_end - copy_end } else { 0 };
                let copies = start > 0 || copy_end > to;
                let old = |(tier, first): (u8, u32)| (tier, first + index);
                WritePiece {
                    tier: run.blocks.tier,
                    block: run.blocks.first + index,
                    start,
                    length: (to - from) as u32,
                    zero_before: if run.fresh && !is_copied { start } else { 0 },
                    copy_from: replaced.filter(|_| copies).map(old),
                    copy_after: (copy_end - to) as u32,
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

    /// Returns the offset in the file at which the bytes that the write stores or copies end.
    fn stored_end(&self) -> u64 {
        let end = self.offset + self.length;
        let last = self.runs[..self.run_count].last();
        match last.and_then(|run| run.replaces.first()) {
            Some(_) => end.max(self.valid_end.min(end.next_multiple_of(1 << self.hugeblock_shift))),
            None => end,
        }
    }

    /// Whether programs may store to the file through mappings meanwhile.
    pub fn is_stored_to(&self) -> bool {
        self.is_stored_to
    }

    /// Whether the write stages in data of an absent file. If a stager's write does not, the file
    /// was emptied since the stager opened it.
    pub fn brings(&self) -> bool {
        self.brings
    }

    /// Takes the checksum term of a `Fill` piece; there is at most one in a plan.
    pub fn fold(&mut self, piece: &WritePiece, term: u32) {
        self.term = Some((piece.tier, piece.block, term));
    }
}

impl Transaction<'_> {
    pub(crate) fn write_offset(&self, inode: Inode, handle: Handle, at: Position) -> u64 {
        let appends = handle.flags(self) & APPEND != 0 || at == Position::End;
        match at {
            Position::Again(offset) => offset,
            // Without a write in flight, all that was planned beyond the end has failed.
            _ if appends && !self.is_written(inode) => inode.size(self),
            _ if appends => {
                let places = self.places_in(inode.id).map(|pin| pin.place_end(self));
                places.fold(inode.size(self).max(inode.appended_end(self)), u64::max)
            }
            Position::At(offset) => offset,
            Position::Cursor | Position::End => handle.cursor(self),
        }
    }

    /// Marks pins that share blocks with this plan as contested. Returns whether there are any.
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
}

impl Microfs {
    /// Plans a write of up to `length` > 0 bytes.
    ///
    /// Errors: `NoSpace` if no byte of it fits (if a program is told so, `note_refused_write`);
    /// `FileTooLarge`; `Io` if blocks of the file are lost; `Busy` if too many writes of this
    /// process are in flight or the file's tail is being settled: try again; `Unsettled`: settle
    /// the tail first.
    pub fn plan_write(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
    ) -> Result<WritePlan> {
        let planned = self.plan_write_once(caller, handle, at, length);
        if planned.as_ref().err() == Some(&Error::NoSpace)
            && self.give_image_up_for_room(self.grows(handle, at)?)?
        {
            return self.plan_write(caller, handle, at, length);
        }
        match planned {
            Err(Error::NoSpace) if self.durable.is_some() && self.orphans() > 0 => {
                self.sync()?;
                while self.reclaim(Some(caller.slot))? {}
                self.plan_write_once(caller, handle, at, length)
            }
            result => result,
        }
    }

    /// Whether a write at this position has no byte that the file has already.
    fn grows(&self, handle: HandleId, at: Position) -> Result<bool> {
        let open = self.handle(handle)?;
        let size = self.attributes(open.inode)?.size;
        Ok(match at {
            Position::End => true,
            Position::Cursor => open.append || open.cursor >= size,
            Position::At(offset) => open.append || offset >= size,
            Position::Again(offset) => offset >= size,
        })
    }

    fn plan_write_once(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
    ) -> Result<WritePlan> {
        let (plan, may_begin) = self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, MAY_WRITE)?;
            // Only the stager has an absent file open for writing.
            let brings = inode.flags(tx) & ABSENT != 0;
            if !brings {
                inode.require_whole(tx)?;
            }
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
                pin_index,
                pin_ticket: 0,
                hugeblock_shift: shift,
                zero_from: inode.written_end(tx).max(inode.size(tx)),
                valid_end: 0,
                image: 0,
                leaves_tail: false,
                is_stored_to: inode.flags(tx) & MAPPED_TO_STORE != 0,
                term: None,
                run_count: 0,
                runs: [EMPTY_RUN; RUNS_MAX],
                at_cursor: at == Position::Cursor,
                brings,
            };
            collect_runs(tx, slot, inode, wanted_end, &mut plan)?;
            let end = offset + plan.length;
            let last_is_fresh = plan.runs[..plan.run_count].last().is_some_and(|run| run.fresh);
            plan.leaves_tail = last_is_fresh && offset == plan.zero_from;
            let appends = handle.flags(tx) & APPEND != 0;
            let contested = tx.contest(inode, offset, end);
            if mark_overwritten_stale(tx, inode, &plan) {
                tx.open_blocks(inode, caller.now);
            }
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
            handle.note_write(tx, inode, offset, end);
            if !brings {
                handle.add_flags(tx, WROTE);
            }
            Ok((plan, tx.may_change_in_place(inode)))
        })?;
        if !may_begin {
            self.sync().inspect_err(|_| {
                // If this fails, too, the plan is abandoned at the latest when the process ends.
                let _ = self.abort_write(caller, &plan);
            })?;
        }
        Ok(plan)
    }
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
    let redirects = tx.is_redirected(inode);
    let end_block = ((wanted_end - 1) >> shift) as u32 + 1;
    let mut block = (plan.offset >> shift) as u32;
    while block < end_block && plan.run_count < RUNS_MAX {
        let wanted = end_block - block;
        let (count, replaces) = match tx.stretch(map, block) {
            Stretch::Data(found) => {
                let found = BlockRun { count: found.count.min(wanted), ..found };
                let (in_image, count) = tx.first_in_image(found);
                if !in_image || !redirects {
                    let blocks = BlockRun { count, ..found };
                    let replaces = Replaces::NOTHING;
                    plan.runs[plan.run_count] =
                        PinnedRun { file_block: block, blocks, fresh: false, replaces };
                    plan.run_count += 1;
                    block += count;
                    continue;
                }
                if tx.is_written_since_before_cut(inode, block, block + count) {
                    // A write from before the cut may still store into these blocks.
                    match plan.run_count {
                        0 => return Err(Error::Busy),
                        _ => break,
                    }
                }
                plan.image = tx.image.map_or(0, |held| held.number);
                plan.valid_end = inode.tail(tx).unwrap_or(plan.zero_from);
                (count, Replaces::blocks(found.tier, found.first))
            }
            Stretch::Hole(count) => (wanted.min(count), Replaces::NOTHING),
        };
        let Some(blocks) = tx.allocate(slot, plan.handle, inode, count) else { break };
        if blocks.count == 0 {
            tx.mark_corrupt("empty extent");
            break;
        }
        plan.runs[plan.run_count] = PinnedRun { file_block: block, blocks, fresh: true, replaces };
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

/// Voids the checksums of blocks that are overwritten, until the bytes are there. Returns whether
/// there are such blocks.
fn mark_overwritten_stale(tx: &mut Transaction, inode: Inode, plan: &WritePlan) -> bool {
    let shift = plan.hugeblock_shift;
    let mut overwrites = false;
    for run in &plan.runs[..plan.run_count] {
        let run_start = plan.offset.max(u64::from(run.file_block) << shift);
        if !run.fresh && run_start < plan.zero_from {
            let written = ((plan.zero_from - 1) >> shift) + 1 - u64::from(run.file_block);
            let count = u64::from(run.blocks.count).min(written) as u32;
            tx.write_in_image(inode, BlockRun { count, ..run.blocks });
            tx.note_stale(inode, BlockRun { count, ..run.blocks });
            overwrites = true;
        }
    }
    overwrites
}
