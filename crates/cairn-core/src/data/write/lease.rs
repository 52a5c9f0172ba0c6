//! Leases: writes that continue a file within its last block, without the lock.
//!
//! To plan and commit a small write costs more than its copy. So a process that continued a file at
//! the cursor of a description gets a *lease* on the rest of the file's last block. It may go on
//! there, and publishes how far it got in one word, the *state*:
//!
//! ```text
//! live (1 bit) | busy (1) | bytes published under the lease (30) | their checksum term (32)
//! ```
//! A write under the lease sets *busy*, moves its bytes and publishes them: it clears *busy* and
//! adds its bytes and their term. Anybody else who needs the file's data or attributes *recalls*
//! the lease, under the lock and on the holder's behalf: the recall clears *live* and makes the
//! published bytes part of the file. Both change the state in one step, so one of them is first:
//!
//! - A recall that meets a busy state turns the write in progress into an ordinary one: its pin,
//!   which the lease keeps for this, becomes active. The writer fails to publish, and commits under
//!   the lock.
//! - A recall that meets an idle state leaves nothing behind; the next write is planned under the
//!   lock.
//!
//! Must stay true:
//!
//! - A file has at most one lease. Whoever reads or changes anything of a file that a write
//!   changes, its cursor included, has recalled the lease in the same transaction. `Inode::size`
//!   checks that.
//! - Only its holder changes a *live* state, except for *live* itself. The words beside the state
//!   are changed before the step that makes them count. So the holder may die at any moment: the
//!   next recall, at the latest by the reaper, finds whole writes, and behind them bytes of the
//!   file's tail.
//! - Of the lease, a recall changes only *live*, and only this change survives an undo. If its
//!   transaction is undone, the next recall finds the same.
//! - A lease owns no block. Unless a write is in progress, it keeps no block from being freed.
//!
//! A process has a few leases, each with its pin. It remembers what they cover in private *seats*.
//! Whoever begins a write under a lease, or gives a lease, holds its seat meanwhile. So no state
//! starts over under a thread that still relies on the previous lease. Threads that write through
//! one description take turns. Beginning an image recalls all leases, and none are given on blocks
//! that are in it (image.rs). A durable namespace has no leases, because its log must record every
//! write.

use super::{EMPTY_RUN, PIECE_IN_PLACE, WritePiece, WritePlan};
use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{
    ABSENT, HAS_WAITING, Inode, LOST, MAPPED_TO_STORE, SETTLING, WANTS_SETTLE,
};
use crate::engine::lease::{
    BUSY, LIVE, Lease, PUBLISHED_MAX, PUBLISHED_SHIFT, Record, Seat, TakenSeat,
};
use crate::engine::run::{BlockRun, PinnedRun, Replaces};
use crate::engine::slot::{LEASE_WORDS, LEASES_PER_SLOT, Slot};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::types::{Caller, HandleId, InodeId, Timestamp};
use crate::process::handle::{APPEND, Handle};
use crate::process::pin::{PIN_APPEND, PIN_LEASED, Pin, PinRequest, RUNS_MAX};
use std::sync::atomic::Ordering;

/// Words of a record that are used without the lock.
const STATE: usize = 0;
const TIME: usize = 1;
const CLAIMED: usize = 2;
/// After a lease that was recalled unused, a description waits for the next one: twice as many
/// writes each time, at most 2 to the power of this.
const VAIN_MAX: u32 = 6;
/// A file with one of these flags gets no lease: a write to it does more than continue it.
const NO_LEASE: u32 = SETTLING | WANTS_SETTLE | HAS_WAITING | LOST | MAPPED_TO_STORE | ABSENT;
/// Number of tries at a lease that another thread uses, before the lock is taken instead.
const SPINS: u32 = 100;

fn published(state: u64) -> u64 {
    state >> PUBLISHED_SHIFT & PUBLISHED_MAX
}

/// A write in progress under a lease: its bytes are moved, then it is published or withdrawn.
#[derive(Clone, Copy, Debug)]
pub struct LeasedWrite {
    lease: Lease,
    /// State before the write.
    before: u64,
    length: u32,
    hugeblock_shift: u32,
}

impl LeasedWrite {
    fn offset(&self) -> u64 {
        self.lease.start + published(self.before)
    }

    /// Returns where the bytes go; they replace zeros.
    pub fn piece(&self) -> WritePiece {
        let BlockRun { tier, first, .. } = self.lease.run.blocks;
        WritePiece {
            tier,
            block: first,
            start: (self.offset() & ((1 << self.hugeblock_shift) - 1)) as u32,
            length: self.length,
            ..PIECE_IN_PLACE
        }
    }

    /// Returns the ordinary plan that the write became when the lease was recalled. Its bytes may
    /// be moved again.
    pub fn into_plan(self) -> WritePlan {
        let mut runs = [EMPTY_RUN; RUNS_MAX];
        runs[0] = self.lease.run;
        WritePlan {
            inode: self.lease.inode,
            offset: self.offset(),
            length: u64::from(self.length),
            handle: self.lease.handle,
            pin_index: self.lease.pin_index,
            pin_ticket: self.lease.pin_ticket,
            hugeblock_shift: self.hugeblock_shift,
            zero_from: self.offset(),
            valid_end: 0,
            image: 0,
            leaves_tail: false,
            is_stored_to: false,
            term: None,
            run_count: 1,
            runs,
            at_cursor: true,
            brings: false,
        }
    }
}

/// Outcome of trying to begin a write under a lease.
enum Claim {
    Begun(LeasedWrite),
    /// Another write under the lease is in progress.
    InUse,
    /// The lease has ended, or the write does not fit.
    Never,
}

impl Microfs {
    /// Begins a write of `length` bytes at the cursor without the lock, if this process has a lease
    /// for it. Returns `None`, with nothing done, otherwise: call `plan_write` then.
    pub fn begin_leased(
        &self,
        caller: &Caller,
        handle: HandleId,
        length: u64,
    ) -> Option<LeasedWrite> {
        let seat = &self.local().leases.seats[self.local().leases.seat_of(handle)?];
        for _ in 0..SPINS {
            match self.claim(seat, caller, handle, length) {
                Claim::Begun(write) => return Some(write),
                Claim::Never => return None,
                // Another thread writes through the same description; it will not take long.
                Claim::InUse => std::hint::spin_loop(),
            }
        }
        None
    }

    fn claim(&self, seat: &Seat, caller: &Caller, handle: HandleId, length: u64) -> Claim {
        let Ok(held) = seat.lease.try_lock() else { return Claim::InUse };
        let is_callers = |lease: &Lease| lease.handle == handle && lease.slot == caller.slot;
        let Some(lease) = held.filter(is_callers) else { return Claim::Never };
        let words = self.memory().words();
        let Some(record) = words.get(lease.record.at..).and_then(|words| words.get(..LEASE_WORDS))
        else {
            return Claim::Never;
        };
        let before = record[STATE].load(Ordering::Acquire);
        let hugeblock_shift = self.layout().hugeblock_shift;
        let end = (u64::from(lease.run.file_block) + 1) << hugeblock_shift;
        let left = end.saturating_sub(lease.start + published(before));
        if before & LIVE == 0 || !(1..=left).contains(&length) {
            return Claim::Never;
        }
        if before & BUSY != 0 {
            return Claim::InUse;
        }
        record[CLAIMED].store(length, Ordering::Relaxed);
        let busy = before | BUSY;
        let write = LeasedWrite { lease, before, length: length as u32, hugeblock_shift };
        match record[STATE].compare_exchange(before, busy, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Claim::Begun(write),
            Err(_) => Claim::Never,
        }
    }

    /// Publishes a write under a lease, with the checksum term of its bytes. Returns false if the
    /// lease was recalled meanwhile: the plan that the write became must be carried out.
    pub fn publish_leased(&self, caller: &Caller, write: &LeasedWrite, term: u32) -> bool {
        let length = u64::from(write.length) << PUBLISHED_SHIFT;
        self.memory().words()[write.lease.record.at + TIME]
            .store(caller.now.to_bits(), Ordering::Relaxed);
        self.end_leased(write, (write.before ^ u64::from(term)) + length)
    }

    /// Gives up a write under a lease. Returns false if the lease was recalled meanwhile: the plan
    /// that the write became must be given up.
    pub fn withdraw_leased(&self, write: &LeasedWrite) -> bool {
        self.end_leased(write, write.before)
    }

    fn end_leased(&self, write: &LeasedWrite, after: u64) -> bool {
        let state = &self.memory().words()[write.lease.record.at];
        let busy = write.before | BUSY;
        state.compare_exchange(busy, after, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns a seat for the lease that may follow this write; `None` if the write leaves too
    /// little room in its block.
    pub(super) fn lease_seat(&self, plan: &WritePlan) -> Option<TakenSeat<'_>> {
        let end = plan.offset + plan.length;
        let left = end.next_multiple_of(1 << plan.hugeblock_shift) - end;
        match plan.at_cursor && left >= plan.length {
            true => self.free_lease_seat(plan.handle),
            false => None,
        }
    }

    /// Returns a seat for a lease to `handle`; `None` where there are no leases, or if other
    /// threads use the seats.
    pub(crate) fn free_lease_seat(&self, handle: HandleId) -> Option<TakenSeat<'_>> {
        match self.layout().durable {
            true => None,
            false => self.local().leases.take_for(handle, self.memory().words()),
        }
    }
}

impl Transaction<'_> {
    /// Returns the inode `id`, after recalling the lease on it. Errors: as `inode`.
    pub(crate) fn recalled_inode(&mut self, id: InodeId) -> Result<Inode> {
        let inode = self.inode(id)?;
        self.recall(inode)?;
        Ok(inode)
    }

    /// Ends the lease on a file, if there is one, whoever holds it.
    pub(crate) fn recall(&mut self, inode: Inode) -> Result<()> {
        match inode.lease(self) {
            0 => Ok(()),
            number => self.recall_numbered(inode, number),
        }
    }

    /// Returns the number by which files know the lease with pin `pin_index` of `slot`; never 0.
    pub(crate) fn lease_number(&self, slot: Slot, pin_index: usize) -> u32 {
        slot.id.number() * LEASES_PER_SLOT as u32 + (pin_index % LEASES_PER_SLOT) as u32
    }

    #[cold]
    fn recall_numbered(&mut self, inode: Inode, number: u32) -> Result<()> {
        let slot = self.slot_numbered(number / LEASES_PER_SLOT as u32)?;
        let index = number as usize % LEASES_PER_SLOT;
        let (_, pin) = self.leased_pin(slot, index);
        let record = Record { at: slot.lease_at(index) };
        let shift = self.layout.hugeblock_shift;
        let run = pin
            .runs(self)
            .next()
            .filter(|_| pin.flags(self) == PIN_LEASED && pin.inode(self) == inode.id.0);
        let Some(run) = run else { return Err(Error::Corrupt { what: "lease of a file" }) };
        let state = self.clear_bits(record.at, LIVE);
        let claimed = if state & BUSY != 0 { record.claimed(self) } else { 0 };
        let start = record.start(self);
        let reached = start.saturating_add(published(state));
        let end = reached.saturating_add(claimed);
        if start >> shift != u64::from(run.file_block)
            || end.saturating_sub(1) >> shift != start >> shift
        {
            return Err(Error::Corrupt { what: "lease beyond its block" });
        }
        let handle = self.handle(HandleId(record.handle(self) as u32)).ok();
        inode.set_lease(self, 0);
        pin.set_flags(self, 0);
        if reached > start {
            let now = record.time(self);
            self.fold_checksum(run.blocks.tier, run.blocks.first, state as u32);
            self.log_write(handle, now, inode, (start, reached - start), None);
            self.grow_as_published(inode, handle, reached, now);
        }
        if claimed > 0 {
            self.begin_claimed(pin, inode, handle, (reached, claimed), run)?;
        }
        if let Some(handle) = handle {
            handle.set_cursor(self, end);
            self.count_vain_lease(handle, end == start);
        }
        Ok(())
    }

    fn grow_as_published(
        &mut self,
        inode: Inode,
        handle: Option<Handle>,
        end: u64,
        now: Timestamp,
    ) {
        inode.set_tail(self, end);
        inode.set_written_end(self, end);
        inode.set_size(self, end);
        if handle.is_some_and(|handle| handle.flags(self) & APPEND != 0) {
            inode.set_appended_end(self, end);
        }
        inode.next_version(self);
        inode.set_modified(self, now);
        // The file's names may have changed since.
        let changed = inode.changed(self).max(now);
        inode.set_changed(self, changed);
    }

    /// Turns a write in progress under a lease into an ordinary one.
    fn begin_claimed(
        &mut self,
        pin: Pin,
        inode: Inode,
        handle: Option<Handle>,
        (offset, length): (u64, u64),
        run: PinnedRun,
    ) -> Result<()> {
        let appends = handle.is_some_and(|handle| handle.flags(self) & APPEND != 0);
        let flags = if appends { PIN_APPEND } else { 0 };
        let layout = inode.layout(self);
        let runs = &[run];
        let request =
            PinRequest { inode: inode.id, offset, length, behind: 0, flags, layout, runs };
        self.begin_pin(pin, &request)?;
        inode.set_written_end(self, offset + length);
        Ok(())
    }

    /// Counts leases that were recalled before they were used; the description then waits for its
    /// next one.
    fn count_vain_lease(&mut self, handle: Handle, was_vain: bool) {
        let count = match was_vain {
            true => VAIN_MAX.min(handle.vain_leases(self) + 1),
            false => 0,
        };
        handle.set_vain_leases(self, count);
        handle.set_lease_after(self, if was_vain { 1 << count } else { 0 });
    }

    /// Gives the process a lease on the rest of the block in which a write from `offset` to `end`
    /// ended. Requires that the write continued the file, that nobody else has the file open for
    /// writing, and that the next write will fit, too. A file's first write gets no lease, because
    /// most files have only one.
    pub(crate) fn grant_lease(
        &mut self,
        seat: &mut TakenSeat,
        slot: Slot,
        handle: Handle,
        inode: Inode,
        (offset, end): (u64, u64),
    ) -> Result<Option<Lease>> {
        const SET_IDS: u32 = 0o6000;
        let wait = handle.lease_after(self);
        if wait > 0 {
            handle.set_lease_after(self, wait - 1);
            return Ok(None);
        }
        if handle.lacks(self) {
            // Each write must be checked.
            return Ok(None);
        }
        let is_alone =
            inode.writers(self) == 1 && inode.pins(self) == 0 && inode.flags(self) & NO_LEASE == 0;
        let continued = offset > 0
            && (inode.size(self), handle.cursor(self)) == (end, end)
            && inode.written_end(self) <= end
            && inode.tail(self) == Some(end);
        let left = end.next_multiple_of(self.layout.hugeblock_bytes) - end;
        if !is_alone || !continued || left < end - offset || inode.mode(self) & SET_IDS != 0 {
            return Ok(None);
        }
        let file_block = (end >> self.layout.hugeblock_shift) as u32;
        let Stretch::Data(found) = self.stretch(inode.map(self), file_block) else {
            return Ok(None);
        };
        if self.is_redirected(inode) && self.in_image(found.tier, found.first) {
            return Ok(None);
        }
        let (pin_index, pin) = self.leased_pin(slot, seat.index);
        if pin.flags(self) & PIN_LEASED != 0 {
            self.recalled_inode(InodeId(pin.inode(self)))?;
        }
        if pin.flags(self) != 0 {
            // A write under the previous lease is still in progress.
            return Ok(None);
        }
        seat.clear();
        let blocks = BlockRun { count: 1, ..found };
        let replaces = Replaces::NOTHING;
        let run = PinnedRun { file_block, blocks, fresh: false, replaces };
        let record = Record { at: slot.lease_at(seat.index) };
        record.set_start(self, end);
        record.set_handle(self, u64::from(handle.id.0));
        self.set(record.at, LIVE);
        let pin_ticket = self.keep_for_lease(pin, inode, run);
        let number = self.lease_number(slot, pin_index);
        inode.set_lease(self, number);
        let (handle, slot, inode) = (handle.id, slot.id, inode.id);
        let start = end;
        Ok(Some(Lease { handle, slot, inode, record, pin_index, pin_ticket, start, run }))
    }
}
