//! Pins: writes between plan and commit.
//!
//! A pin records in the writer's slot which bytes of which file it is about to write, and which blocks it
//! reserved for that. The blocks are nobody else's until the commit attaches them; if the process dies, `reap`
//! frees them. Blocks taken from a file while pins are active wait in an orphan until every pin that
//! could still write to them is gone, which an epoch tells.

use crate::error::{Error, Result};
use crate::fields::fields;
use crate::inode::{Inode, MAYBE_STALE, SETTLING};
use crate::layout::{PIN_COUNT, PIN_EPOCH};
use crate::pool::BlockRun;
use crate::process::Slot;
use crate::transaction::Transaction;
use crate::types::InodeId;

/// Concurrent writes of one process.
pub(crate) const PINS_PER_SLOT: usize = 8;
/// Runs one plan may consist of.
pub(crate) const RUNS_MAX: usize = 4;
pub(crate) const PIN_WORDS: usize = 16;
const RUNS_FIRST: usize = 8;
const _: () = assert!(RUNS_FIRST + 2 * RUNS_MAX <= PIN_WORDS);

pub(crate) const PIN_ACTIVE: u32 = 1;
pub(crate) const PIN_APPEND: u32 = 2;
/// Zeroes the tail of the file.
pub(crate) const PIN_SETTLES: u32 = 8;
/// Another writer touched the same blocks meanwhile: their checksums must be recomputed.
pub(crate) const PIN_CONTESTED: u32 = 4;

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
    length, set_length: word 3;
    epoch, set_epoch: word 4;
    layout, set_layout: word 5;
    run_count, set_run_count: word 6;
});

/// Blocks of a file that a plan writes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedRun {
    pub file_block: u32,
    pub blocks: BlockRun,
    /// Reserved by this plan, not yet part of the file.
    pub fresh: bool,
}

impl Pin {
    pub(crate) fn is_active(self, tx: &Transaction) -> bool {
        self.flags(tx) & PIN_ACTIVE != 0
    }

    pub(crate) fn end(self, tx: &Transaction) -> u64 {
        self.offset(tx).saturating_add(self.length(tx))
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

/// What a new pin covers.
pub(crate) struct PinRequest<'a> {
    pub inode: InodeId,
    pub offset: u64,
    pub length: u64,
    /// `PIN_APPEND`, `PIN_CONTESTED`, `PIN_SETTLES`.
    pub flags: u32,
    pub layout: u64,
    pub runs: &'a [PinnedRun],
}

impl Transaction<'_> {
    /// A pin of `slot` that is not in use. Errors: `Busy` when all are; they become free as writes commit.
    pub(crate) fn free_pin(&self, slot: Slot) -> Result<(usize, Pin)> {
        (0..PINS_PER_SLOT)
            .map(|index| (index, Pin { at: slot.pin_at(index) }))
            .find(|(_, pin)| !pin.is_active(self))
            .ok_or(Error::Busy)
    }

    /// Fills a pin. Its words are written unlogged: they mean nothing until the flags say active.
    pub(crate) fn activate_pin(&mut self, pin: Pin, request: &PinRequest) -> Result<()> {
        let epoch = self.get(PIN_EPOCH);
        self.set_unlogged(pin.at + 1, u64::from(request.inode.0));
        self.set_unlogged(pin.at + 2, request.offset);
        self.set_unlogged(pin.at + 3, request.length);
        self.set_unlogged(pin.at + 4, epoch);
        self.set_unlogged(pin.at + 5, request.layout);
        self.set_unlogged(pin.at + 6, request.runs.len() as u64);
        for (index, run) in request.runs.iter().enumerate() {
            pin.put_run(self, index, run);
        }
        pin.set_flags(self, PIN_ACTIVE | request.flags);
        let count = self.get(PIN_COUNT);
        self.set(PIN_COUNT, count + 1);
        let inode = self.inode(request.inode)?;
        let pins = inode.pins(self);
        inode.set_pins(self, pins + 1);
        Ok(())
    }

    /// All active pins.
    pub(crate) fn pins(&self) -> impl Iterator<Item = Pin> {
        self.slots()
            .flat_map(|slot| (0..PINS_PER_SLOT).map(move |index| Pin { at: slot.pin_at(index) }))
            .filter(|pin| pin.is_active(self))
    }

    /// Active pins of one file.
    pub(crate) fn pins_of(&self, inode: InodeId) -> impl Iterator<Item = Pin> {
        self.pins().filter(move |pin| pin.inode(self) == inode.0)
    }

    /// Epoch to stamp on blocks that leave a file now; every pin planned so far has an epoch <= it.
    pub(crate) fn next_pin_epoch(&mut self) -> u64 {
        let epoch = self.get(PIN_EPOCH);
        self.set(PIN_EPOCH, epoch + 1);
        epoch
    }

    /// Whether some write planned at or before `epoch` is still in flight.
    pub(crate) fn pinned_since(&self, epoch: u64) -> bool {
        self.get(PIN_COUNT) != 0 && self.pins().any(|pin| pin.epoch(self) <= epoch)
    }

    /// Gives up the unfinished writes of a dead process. What it reserved is freed; what it was overwriting
    /// may hold anything, so its checksums must be recomputed.
    pub(crate) fn abandon_pins(&mut self, slot: Slot) -> Result<()> {
        for index in 0..PINS_PER_SLOT {
            let pin = Pin { at: slot.pin_at(index) };
            if pin.is_active(self) {
                self.abandon_pin(slot, pin);
            }
        }
        Ok(())
    }

    /// Gives up one unfinished write.
    pub(crate) fn abandon_pin(&mut self, slot: Slot, pin: Pin) {
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
        self.forget_write(pin);
    }

    /// Ends a pin that came to nothing, as far as the file it was for can tell.
    fn forget_write(&mut self, pin: Pin) {
        let flags = pin.flags(self);
        let id = InodeId(pin.inode(self));
        pin.clear(self);
        let Ok(inode) = self.inode(id) else { return };
        if flags & PIN_SETTLES != 0 {
            inode.clear_flags(self, SETTLING);
        }
        if flags & PIN_APPEND != 0 {
            // Appends behind this one were waiting for it.
            let visible = self.visible_end(inode);
            inode.set_size(self, visible);
        }
        // It may have left bytes past the end.
        let end = inode.size(self).max(inode.appended_end(self));
        if inode.tail(self).is_none() {
            inode.set_tail(self, end);
        }
    }

    /// End of the file: appends become visible as a contiguous prefix.
    pub(crate) fn visible_end(&self, inode: Inode) -> u64 {
        let first_pending = match inode.pins(self) {
            0 => u64::MAX,
            _ => self
                .pins_of(inode.id)
                .filter(|pin| pin.flags(self) & PIN_APPEND != 0)
                .map(|pin| pin.offset(self))
                .min()
                .unwrap_or(u64::MAX),
        };
        inode.size(self).max(inode.appended_end(self).min(first_pending))
    }
}
