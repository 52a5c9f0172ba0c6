//! Writing, second half: the bytes are in place and become part of the file, or are given up.
//!
//! If somebody else filled the same hole or moved the file's blocks since the plan, the commit
//! returns `Replan`. The description that the plan was made through may be closed by then; the
//! commit does not update it in that case.
//!
//! Does not decide how often to plan again; the caller does.

use super::WritePlan;
use crate::data::map::{Extent, Replaced, Stretch};
use crate::engine::fs::Microfs;
use crate::engine::inode::{ABSENT, Inode, MAPPED_TO_STORE, ORPHAN};
use crate::engine::lease::keep_lease;
use crate::engine::run::{BlockRun, PinnedRun};
use crate::engine::transaction::{Transaction, store_half};
use crate::format::error::{Error, Result};
use crate::format::types::Caller;
use crate::process::pin::{PIN_APPEND, PIN_CONTESTED, Pin};

/// Outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The write is part of the file. If it repeated a longer append that gave `Replan`, go on at
    /// `Position::Again` where this part ends, or call `abort_write`.
    Done,
    /// The file changed since the plan. Plan again at `Position::Again(plan.offset)` and transfer
    /// again, or give the write up with `abort_write`. An append keeps its place until then.
    Replan,
}

impl Transaction<'_> {
    /// Whether the blocks of a plan are still where it found them.
    fn still_holds(&self, inode: Inode, pin: Pin, runs: &[PinnedRun]) -> bool {
        let map = inode.map(self);
        inode.layout(self) == pin.layout(self)
            || runs.iter().all(|run| {
                let in_place = (!run.fresh).then_some((run.blocks.tier, run.blocks.first));
                match (self.stretch(map, run.file_block), run.replaces.first().or(in_place)) {
                    (Stretch::Hole(count), None) => count >= run.blocks.count,
                    (Stretch::Data(found), Some(known)) => {
                        (found.tier, found.first) == known && found.count >= run.blocks.count
                    }
                    _ => false,
                }
            })
    }

    /// Whether the blocks that are to be replaced are still in the image, and the file's writes
    /// still redirected.
    pub(crate) fn still_redirects(&self, inode: Inode, image: u64) -> bool {
        image == 0
            || self.image.is_some_and(|held| held.number == image) && self.is_redirected(inode)
    }

    /// Updates the tail after a write: the write passes over it, moves it, or leaves one.
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
    /// Stores the checksum of a block of the caller's own plan; takes no lock. Errors: `Invalid` if
    /// there is no such tier; `NoSpace` if the table's page cannot be backed.
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
        let mut seat = self.lease_seat(plan);
        let mut lease = None;
        let committed = self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            let inode = tx.recalled_inode(plan.inode)?;
            if !pin.is_active_for(tx, plan.pin_ticket) {
                return Err(Error::Invalid);
            }
            let flags = inode.flags(tx);
            if flags & ORPHAN != 0 || plan.brings && flags & ABSENT == 0 {
                // Deleted and closed meanwhile: nobody will read it. Or emptied: the staged-in data
                // belong to nobody.
                tx.abandon_pin(slot, pin);
                return Ok(Committed::Done);
            }
            let end = plan.offset + plan.length;
            // Somebody wrote or cut beyond the plan: what it left unzeroed, or what was cut off,
            // would show.
            let reach = inode.written_end(tx).max(inode.size(tx));
            let was_cut = pin.layout(tx) >> 32 != u64::from(inode.moves(tx));
            let stored_end = plan.stored_end();
            let overtaken = plan.leaves_tail && reach != end
                || inode
                    .tail(tx)
                    .is_some_and(|tail| plan.offset > tail || was_cut && stored_end > tail);
            let runs = &plan.runs[..plan.run_count];
            if overtaken
                || !tx.still_redirects(inode, plan.image)
                || !tx.still_holds(inode, pin, runs)
            {
                tx.suspend_pin(slot, pin);
                return Ok(Committed::Replan);
            }
            tx.open_stale_last_block(inode, caller.now);
            if let Some((tier, block, term)) = plan.term {
                tx.fold_checksum(tier, block, term);
            }
            let handle = tx.handle(plan.handle).ok();
            runs.iter().for_each(|run| tx.mark_checksums_dirty(run.blocks));
            let mut fresh = runs.iter().filter(|run| run.fresh).peekable();
            match fresh.peek() {
                Some(_) => inode.note_add(tx),
                None => tx.log_write(handle, caller.now, inode, (plan.offset, plan.length), None),
            }
            // The log may break off behind any of its records. So each covers only bytes whose
            // blocks are recorded by then.
            let mut from = plan.offset;
            let mut replaced = Replaced::of(inode);
            while let Some(run) = fresh.next() {
                let next = fresh.peek().map(|next| u64::from(next.file_block));
                let to = next.map_or(end, |block| block << tx.layout.hugeblock_shift);
                let added = Extent { file_block: run.file_block, blocks: run.blocks };
                let written = (from, to - from);
                tx.note_change(run.blocks);
                if run.replaces.first().is_some() {
                    tx.redirect(&mut replaced, added, (caller, slot))?;
                    tx.log_replacement(caller.now, inode, written, added);
                } else {
                    tx.attach(inode, added)?;
                    tx.log_write(handle, caller.now, inode, written, Some(added));
                }
                from = to;
            }
            let is_stored_to = inode.flags(tx) & MAPPED_TO_STORE != 0;
            if pin.flags(tx) & PIN_CONTESTED == 0 && !is_stored_to {
                mark_rewritten_sealed(tx, plan);
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
            tx.leave_tail_to_stores(inode);
            if !plan.brings {
                inode.touch_data(tx, caller);
            }
            if let Some((seat, handle)) = seat.as_mut().zip(handle) {
                lease = tx.grant_lease(seat, slot, handle, inode, (plan.offset, end))?;
            }
            Ok(Committed::Done)
        });
        if self.goes_on_without_image(plan.image, &committed) {
            drop(seat);
            return self.commit_write(caller, plan);
        }
        keep_lease(seat, lease);
        committed
    }

    /// Gives up a write whose transfer failed, or which is not planned again after `Replan`. A
    /// cursor that it moved goes back, unless somebody else has moved it since.
    pub fn abort_write(&self, caller: &Caller, plan: &WritePlan) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            if let Ok(inode) = tx.inode(plan.inode) {
                tx.recall(inode)?;
            }
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            if pin.is_active_for(tx, plan.pin_ticket) {
                tx.abandon_pin(slot, pin);
            } else if [plan.offset, plan.offset + plan.length]
                .into_iter()
                .any(|offset| pin.keeps_place(tx, plan.inode, offset))
            {
                tx.give_up_place(pin);
            }
            if let Ok(handle) = tx.handle(plan.handle) {
                if handle.cursor(tx) == plan.offset + plan.length {
                    handle.set_cursor(tx, plan.offset);
                }
            }
            Ok(())
        })
    }
}

/// Makes the checksums of blocks valid that were overwritten as a whole.
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
