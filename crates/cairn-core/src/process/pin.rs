//! Pins: writes between plan and commit.
//!
//! A pin records in the writer's slot which bytes of which file it is about to write, and which
//! blocks it reserved for that. Nobody else gets these blocks until the commit attaches them; if
//! the process dies, `reap` frees them. Blocks taken from a file while it has active pins wait in
//! an orphan until every pin of the file that could still write to them has ended; an epoch tells
//! which pins these are. A promotion (`promote.rs`) and the unpacking of a file (`pack.rs`) reserve
//! blocks in the same way, for no file.
//!
//! An append that must be planned again leaves a *waiting* pin: no blocks, only its place in the
//! file. So no other append is put there, and bytes appended behind it stay invisible until the
//! place is filled or given up.

use crate::engine::fields::fields;
use crate::engine::inode::{ABSENT, HAS_WAITING, Inode, MAYBE_STALE, ORPHAN, SETTLING};
use crate::engine::run::{BlockRun, PinnedRun, Replaces};
use crate::engine::slot::{LEASED_FIRST, Slot, WRITES_PER_SLOT};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{PIN_COUNT, PIN_EPOCH};
use crate::format::types::InodeId;
use crate::process::{PIN_WORDS, PINS_PER_SLOT};
use std::ops::Range;

/// Maximum number of runs in one plan.
pub(crate) const RUNS_MAX: usize = 4;

const RUNS_FIRST: usize = 8;
const _: () = assert!(RUNS_FIRST + 2 * RUNS_MAX <= PIN_WORDS);

pub(crate) const PIN_ACTIVE: u32 = 1;
pub(crate) const PIN_APPEND: u32 = 2;
/// The pin zeroes the tail of the file.
pub(crate) const PIN_SETTLES: u32 = 8;
/// Another writer touched the same blocks meanwhile: their checksums must be recomputed.
pub(crate) const PIN_CONTESTED: u32 = 4;
/// Not active: keeps the place of an append that must be planned again.
pub(crate) const PIN_WAITS: u32 = 16;
/// Not active: kept for a write under a lease.
pub(crate) const PIN_LEASED: u32 = 32;

const FRESH: u64 = 1 << 32;

/// A write in flight.
#[derive(Clone, Copy)]
pub(crate) struct Pin {
    pub at: usize,
}

fields!(Pin {
    flags, set_flags: low 0;
    inode, set_inode: low 1;
    offset, set_offset: word 2;
    length, set_length: low 3;
    // Of an append that is planned in parts: bytes of its place behind this part.
    behind, set_behind: high 3;
    epoch, set_epoch: word 4;
    layout, set_layout: word 5;
    run_count, set_run_count: word 6;
    // Count of the uses of this pin: tells the plan it was made for from earlier ones.
    ticket, set_ticket: word 7;
});

impl Pin {
    pub(crate) fn is_active(self, tx: &Transaction) -> bool {
        self.flags(tx) & PIN_ACTIVE != 0
    }

    /// Whether this is the active pin of the plan that got `ticket`.
    pub(crate) fn is_active_for(self, tx: &Transaction, ticket: u64) -> bool {
        self.is_active(tx) && self.ticket(tx) == ticket
    }

    /// Whether this pin keeps a place in `inode` at `offset`.
    pub(crate) fn keeps_place(self, tx: &Transaction, inode: InodeId, offset: u64) -> bool {
        self.flags(tx) & PIN_WAITS != 0 && self.inode(tx) == inode.0 && self.offset(tx) == offset
    }

    pub(crate) fn end(self, tx: &Transaction) -> u64 {
        self.offset(tx).saturating_add(u64::from(self.length(tx)))
    }

    /// End of the append's place, of which this pin may be a part.
    pub(crate) fn place_end(self, tx: &Transaction) -> u64 {
        self.end(tx).saturating_add(u64::from(self.behind(tx)))
    }

    pub(crate) fn runs(self, tx: &Transaction) -> impl Iterator<Item = PinnedRun> {
        let count = (self.run_count(tx) as usize).min(RUNS_MAX);
        (0..count).map(move |index| {
            let at = self.at + RUNS_FIRST + 2 * index;
            let key = tx.get(at);
            PinnedRun {
                file_block: key as u32,
                blocks: BlockRun::unpack(tx.get(at + 1)),
                fresh: key & FRESH != 0,
                replaces: Replaces::NOTHING,
            }
        })
    }

    fn put_run(self, tx: &mut Transaction, index: usize, run: &PinnedRun) {
        let at = self.at + RUNS_FIRST + 2 * index;
        tx.set_unlogged(at, u64::from(run.file_block) | if run.fresh { FRESH } else { 0 });
        tx.set_unlogged(at + 1, run.blocks.pack());
    }

    /// Ends the pin.
    pub(crate) fn clear(self, tx: &mut Transaction) {
        self.set_flags(tx, 0);
        let count = tx.get(PIN_COUNT);
        tx.set(PIN_COUNT, count.saturating_sub(1));
        if let Ok(inode) = tx.inode(InodeId(self.inode(tx))) {
            let pins = inode.pins(tx);
            inode.set_pins(tx, pins.saturating_sub(1));
        }
    }
}

/// Contents of a new pin.
pub(crate) struct PinRequest<'a> {
    pub inode: InodeId,
    pub offset: u64,
    pub length: u64,
    /// Bytes of an append's place behind this plan.
    pub behind: u64,
    /// `PIN_APPEND`, `PIN_CONTESTED`, `PIN_SETTLES`.
    pub flags: u32,
    pub layout: u64,
    pub runs: &'a [PinnedRun],
}

/// Blocks that are reserved for no file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    index: usize,
    ticket: u64,
}

impl Transaction<'_> {
    /// Reserves blocks that were just allocated, to copy bytes to them. Errors: `Busy` as
    /// `free_pin`.
    pub(crate) fn reserve(&mut self, slot: Slot, blocks: BlockRun) -> Result<Reservation> {
        const NOBODY: InodeId = InodeId(0);
        let (index, pin) = self.free_pin(slot)?;
        let request = PinRequest {
            inode: NOBODY,
            offset: 0,
            length: 0,
            behind: 0,
            flags: 0,
            layout: 0,
            runs: &[PinnedRun { file_block: 0, blocks, fresh: true, replaces: Replaces::NOTHING }],
        };
        Ok(Reservation { index, ticket: self.activate_pin(pin, &request)? })
    }

    /// Returns the pin of a reservation. Errors: `Invalid`: the reservation has ended.
    pub(crate) fn reserved(&self, slot: Slot, reservation: Reservation) -> Result<Pin> {
        let pin = Pin { at: slot.pin_at(reservation.index) };
        match pin.is_active_for(self, reservation.ticket) {
            true => Ok(pin),
            false => Err(Error::Invalid),
        }
    }

    /// Returns an unused pin of `slot` for a write, with its index. Errors: `Busy` when all are in
    /// use; they become free as writes commit.
    pub(crate) fn free_pin(&self, slot: Slot) -> Result<(usize, Pin)> {
        self.unused_pin(slot, WRITES_PER_SLOT)
    }

    /// Returns an unused pin of `slot` for zeroing a tail, with its index. Errors: `Busy` when all
    /// are in use; one becomes free when another settling ends.
    pub(crate) fn free_settling_pin(&self, slot: Slot) -> Result<(usize, Pin)> {
        self.unused_pin(slot, LEASED_FIRST)
    }

    /// Returns the pin of lease `index` of `slot`, and its number.
    pub(crate) fn leased_pin(&self, slot: Slot, index: usize) -> (usize, Pin) {
        let number = LEASED_FIRST + index;
        (number, Pin { at: slot.pin_at(number) })
    }

    fn unused_pin(&self, slot: Slot, count: usize) -> Result<(usize, Pin)> {
        (0..count)
            .map(|index| (index, Pin { at: slot.pin_at(index) }))
            .find(|(_, pin)| pin.flags(self) & (PIN_ACTIVE | PIN_WAITS) == 0)
            .ok_or(Error::Busy)
    }

    /// Takes the pin of `slot` that keeps the place of an append to be planned again; the pin can
    /// then be used again.
    pub(crate) fn take_waiting_pin(
        &mut self,
        slot: Slot,
        inode: Inode,
        offset: u64,
    ) -> Option<(usize, Pin)> {
        if inode.flags(self) & HAS_WAITING == 0 {
            return None;
        }
        let found = (0..PINS_PER_SLOT)
            .map(|index| (index, Pin { at: slot.pin_at(index) }))
            .find(|(_, pin)| pin.keeps_place(self, inode.id, offset))?;
        found.1.set_flags(self, 0);
        Some(found)
    }

    /// Fills a pin and returns its ticket. Its words are written without undo: they mean nothing
    /// until the flags say active.
    pub(crate) fn activate_pin(&mut self, pin: Pin, request: &PinRequest) -> Result<u64> {
        let ticket = pin.ticket(self).wrapping_add(1);
        self.begin_pin(pin, request)?;
        self.set_unlogged(pin.at + 7, ticket);
        Ok(ticket)
    }

    /// Does the same as `activate_pin` and keeps the ticket that the pin has.
    pub(crate) fn begin_pin(&mut self, pin: Pin, request: &PinRequest) -> Result<()> {
        let epoch = self.get(PIN_EPOCH);
        self.keep_pages(pin.at, PIN_WORDS);
        self.set_unlogged(pin.at + 1, u64::from(request.inode.0));
        self.set_unlogged(pin.at + 2, request.offset);
        self.set_unlogged(pin.at + 3, request.behind << 32 | request.length);
        self.set_unlogged(pin.at + 4, epoch);
        self.set_unlogged(pin.at + 5, request.layout);
        self.set_unlogged(pin.at + 6, request.runs.len() as u64);
        for (index, run) in request.runs.iter().enumerate() {
            pin.put_run(self, index, run);
        }
        pin.set_flags(self, PIN_ACTIVE | request.flags);
        let count = self.get(PIN_COUNT);
        self.set(PIN_COUNT, count.wrapping_add(1));
        // A reservation has no inode.
        if let Ok(inode) = self.inode(request.inode) {
            let pins = inode.pins(self);
            inode.set_pins(self, pins.wrapping_add(1));
        }
        Ok(())
    }

    /// Keeps a lease's pin for writes to a block of `inode`; returns its ticket.
    pub(crate) fn keep_for_lease(&mut self, pin: Pin, inode: Inode, run: PinnedRun) -> u64 {
        let ticket = pin.ticket(self).wrapping_add(1);
        pin.set_ticket(self, ticket);
        pin.set_inode(self, inode.id.0);
        pin.set_run_count(self, 1);
        self.set(pin.at + RUNS_FIRST, u64::from(run.file_block));
        self.set(pin.at + RUNS_FIRST + 1, run.blocks.pack());
        pin.set_flags(self, PIN_LEASED);
        ticket
    }

    /// Returns all active pins.
    pub(crate) fn pins(&self) -> impl Iterator<Item = Pin> {
        self.slots()
            .flat_map(|slot| (0..PINS_PER_SLOT).map(move |index| Pin { at: slot.pin_at(index) }))
            .filter(|pin| pin.is_active(self))
    }

    /// Returns the pins that occupy a place in a file: of writes in flight, and of appends that
    /// wait to be planned again.
    pub(crate) fn places_in(&self, inode: InodeId) -> impl Iterator<Item = Pin> {
        self.slots()
            .flat_map(|slot| (0..PINS_PER_SLOT).map(move |index| Pin { at: slot.pin_at(index) }))
            .filter(move |pin| {
                pin.flags(self) & (PIN_ACTIVE | PIN_WAITS) != 0 && pin.inode(self) == inode.0
            })
    }

    /// Returns the active pins of one file.
    pub(crate) fn pins_of(&self, inode: InodeId) -> impl Iterator<Item = Pin> {
        self.pins().filter(move |pin| pin.inode(self) == inode.0)
    }

    /// Starts a new pin epoch. Returns the one to stamp on blocks that leave a file now: every pin
    /// planned so far has an epoch <= it.
    pub(crate) fn next_pin_epoch(&mut self) -> u64 {
        let epoch = self.get(PIN_EPOCH);
        self.set(PIN_EPOCH, epoch.wrapping_add(1));
        epoch
    }

    /// Whether a write planned at or before `epoch` is still in flight.
    pub(crate) fn pinned_since(&self, epoch: u64) -> bool {
        self.get(PIN_COUNT) != 0 && self.pins().any(|pin| pin.epoch(self) <= epoch)
    }

    /// Gives up the unfinished writes of a dead process. Frees the blocks they reserved. Blocks
    /// that they were overwriting may hold anything, so their checksums must be recomputed.
    pub(crate) fn abandon_pins(&mut self, slot: Slot) -> Result<()> {
        for index in 0..PINS_PER_SLOT {
            let pin = Pin { at: slot.pin_at(index) };
            if pin.flags(self) & PIN_LEASED != 0 {
                let leased = self.inode(InodeId(pin.inode(self)))?;
                self.recall(leased)?;
            }
            if pin.is_active(self) {
                self.abandon_pin(slot, pin);
            } else if pin.flags(self) & PIN_WAITS != 0 {
                self.give_up_place(pin);
            }
        }
        Ok(())
    }

    /// Gives up one unfinished write.
    pub(crate) fn abandon_pin(&mut self, slot: Slot, pin: Pin) {
        self.drop_blocks(slot, pin);
        self.forget_write(pin, false);
    }

    /// Gives up a plan that must be made again. An append keeps its place.
    pub(crate) fn suspend_pin(&mut self, slot: Slot, pin: Pin) {
        self.drop_blocks(slot, pin);
        let appends = pin.flags(self) & PIN_APPEND != 0;
        self.forget_write(pin, appends);
    }

    /// Gives up the place of an append that was to be planned again.
    pub(crate) fn give_up_place(&mut self, pin: Pin) {
        let id = InodeId(pin.inode(self));
        pin.set_flags(self, 0);
        if let Ok(inode) = self.inode(id) {
            self.show_appended(inode);
        }
    }

    /// Frees the blocks that a pin reserved. Blocks that it was to overwrite may hold anything, so
    /// their checksums become void.
    pub(crate) fn drop_blocks(&mut self, slot: Slot, pin: Pin) {
        let mut runs = [None; RUNS_MAX];
        for (place, run) in runs.iter_mut().zip(pin.runs(self)) {
            *place = Some(run);
        }
        for run in runs.into_iter().flatten() {
            if run.fresh {
                self.free_blocks(Some(slot), run.blocks);
            } else if self.is_used(run.blocks.tier, run.blocks.first) {
                self.set_stale(run.blocks, true);
                if let Ok(inode) = self.inode(InodeId(pin.inode(self))) {
                    inode.add_flags(self, MAYBE_STALE);
                }
            }
        }
    }

    /// Ends a pin whose write failed, and updates its file. `keeps_place`: the pin waits for the
    /// write to be planned again.
    fn forget_write(&mut self, pin: Pin, keeps_place: bool) {
        let flags = pin.flags(self);
        let id = InodeId(pin.inode(self));
        pin.clear(self);
        let Ok(inode) = self.inode(id) else { return };
        if inode.flags(self) & ORPHAN != 0 {
            return;
        }
        if flags & PIN_SETTLES != 0 {
            inode.clear_flags(self, SETTLING);
        }
        // Staged-in data of an absent file are no change of it.
        if inode.flags(self) & ABSENT == 0 {
            inode.next_version(self);
        }
        if keeps_place {
            let place = pin.offset(self)..pin.place_end(self);
            self.keep_place(pin, inode, place);
        } else if flags & PIN_APPEND != 0 {
            // Appends behind this one waited for it.
            self.show_appended(inode);
        }
        // The write may have left bytes past the end.
        let end = inode.size(self).max(inode.appended_end(self));
        if inode.tail(self).is_none() {
            inode.set_tail(self, end);
        }
    }

    /// Makes a pin that has ended wait for the rest of its append to be planned.
    pub(crate) fn keep_place(&mut self, pin: Pin, inode: Inode, place: Range<u64>) {
        pin.set_offset(self, place.start);
        pin.set_length(self, (place.end - place.start) as u32);
        pin.set_behind(self, 0);
        pin.set_flags(self, PIN_APPEND | PIN_WAITS);
        inode.add_flags(self, HAS_WAITING);
    }

    /// Lets the file grow over the appends in front of which no bytes are missing any more.
    pub(crate) fn show_appended(&mut self, inode: Inode) {
        if inode.is_packed(self) {
            // The file in which the place was kept is gone; another file has its number.
            return;
        }
        let visible = self.visible_end(inode);
        if visible != inode.size(self) {
            inode.next_version(self);
            inode.set_size(self, visible);
        }
        let waits = inode.flags(self) & HAS_WAITING != 0;
        if waits && !self.places_in(inode.id).any(|pin| !pin.is_active(self)) {
            inode.clear_flags(self, HAS_WAITING);
        }
    }

    /// Whether a write to the file is in flight, or an append waits to be planned again.
    pub(crate) fn is_written(&self, inode: Inode) -> bool {
        inode.pins(self) != 0 || inode.flags(self) & HAS_WAITING != 0
    }

    /// End of the file. Appends become visible as a contiguous prefix.
    pub(crate) fn visible_end(&self, inode: Inode) -> u64 {
        let first_pending = match self.is_written(inode) {
            false => u64::MAX,
            true => {
                let appends =
                    self.places_in(inode.id).filter(|pin| pin.flags(self) & PIN_APPEND != 0);
                appends.map(|pin| pin.offset(self)).min().unwrap_or(u64::MAX)
            }
        };
        inode.size(self).max(inode.appended_end(self).min(first_pending))
    }
}
