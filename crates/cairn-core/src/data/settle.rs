//! Settling: a file's tail is zeroed, so that the file can grow over it.
//!
//! Invariant: bytes past the end of the file within its last block count as zeros, also in
//! checksums. Where they may not be zeros the inode has a *tail*. It is settled before the file
//! grows over it, while no write to the file is in flight and none begins. A last block that is in
//! an image is not zeroed: a copy of it with zeros there replaces it (image.rs).

use crate::data::map::{Extent, Replaced, Stretch};
use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, ORPHAN, SETTLING, WANTS_SETTLE};
use crate::engine::run::{BlockRun, PinnedRun, Replaces};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::types::{Caller, InodeId};
use crate::process::pin::{PIN_SETTLES, Pin, PinRequest};

/// Bytes to zero so that a file can grow over its tail.
#[derive(Debug)]
pub struct SettlePlan {
    /// The file.
    pub inode: InodeId,
    /// Tier of the last block.
    pub tier: u8,
    /// The last block.
    pub block: u32,
    /// First byte to zero in the block; all bytes after it are zeroed, too.
    pub from: u32,
    /// Tier and block from which the bytes before `from` are copied; `None` to zero in place.
    pub copy_from: Option<(u8, u32)>,
    tail: u64,
    pin_index: usize,
    image: u64,
}

impl Microfs {
    /// Plans the zeroing of a file's tail; `None` if it has none. Errors: `Busy` while writes to
    /// the file are in flight; no new ones begin meanwhile.
    pub fn plan_settle(&self, caller: &Caller, inode: InodeId) -> Result<Option<SettlePlan>> {
        let planned = self.plan_settle_once(caller, inode);
        let has_no_room = planned.as_ref().err() == Some(&Error::NoSpace);
        match has_no_room && self.give_image_up_for_room(false)? {
            true => self.plan_settle_once(caller, inode),
            false => planned,
        }
    }

    fn plan_settle_once(&self, caller: &Caller, inode: InodeId) -> Result<Option<SettlePlan>> {
        let planned = self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.recalled_inode(inode)?;
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
            let (pin_index, pin) = tx.free_settling_pin(slot)?;
            let is_redirected = tx.is_redirected(inode) && tx.in_image(run.tier, run.first);
            let fresh = match is_redirected {
                true => Some(tx.allocate_shared(slot, 1).ok_or(Error::NoSpace)?),
                false => None,
            };
            let replaces = Replaces::NOTHING;
            let fresh_run = |blocks| PinnedRun { file_block, blocks, fresh: true, replaces };
            let runs = fresh.map(fresh_run);
            tx.activate_pin(
                pin,
                &PinRequest {
                    inode: inode.id,
                    offset: tail,
                    length: 0,
                    behind: 0,
                    flags: PIN_SETTLES,
                    layout: inode.layout(tx),
                    runs: runs.as_slice(),
                },
            )?;
            inode.clear_flags(tx, WANTS_SETTLE);
            inode.add_flags(tx, SETTLING);
            let from = (tail & (tx.layout.hugeblock_bytes - 1)) as u32;
            let BlockRun { tier, first: block, .. } = fresh.unwrap_or(run);
            let copy_from = fresh.map(|_| (run.tier, run.first));
            let image = tx.image.filter(|_| is_redirected).map_or(0, |held| held.number);
            let inode_id = inode.id;
            let plan = SettlePlan {
                inode: inode_id,
                tier,
                block,
                from,
                copy_from,
                tail,
                pin_index,
                image,
            };
            Ok(Some(Some((plan, tx.may_change_in_place(inode)))))
        })?;
        let Some((plan, may_begin)) = planned.ok_or(Error::Busy)? else { return Ok(None) };
        if plan.copy_from.is_some() {
            // Backs the page of the checksum table that the commit writes to.
            self.store_checksum(plan.tier, plan.block, 0).inspect_err(|_| {
                let _ = self.commit_settle(caller, &plan, false);
            })?;
        }
        if !may_begin {
            self.sync().inspect_err(|_| {
                // If this fails, too, the plan is abandoned at the latest when the process ends.
                let _ = self.commit_settle(caller, &plan, false);
            })?;
        }
        Ok(Some(plan))
    }

    /// Ends a settling: the tail was zeroed, or that failed. The tail stays if the file was cut
    /// meanwhile, because then it is another tail.
    pub fn commit_settle(&self, caller: &Caller, plan: &SettlePlan, zeroed: bool) -> Result<()> {
        let done = self.commit_settled(caller, plan, zeroed);
        match self.goes_on_without_image(plan.image, &done) {
            true => self.commit_settled(caller, plan, zeroed),
            false => done,
        }
    }

    fn commit_settled(&self, caller: &Caller, plan: &SettlePlan, zeroed: bool) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = Pin { at: slot.pin_at(plan.pin_index) };
            let inode = tx.inode(plan.inode)?;
            let unchanged = inode.layout(tx) == pin.layout(tx)
                && inode.tail(tx) == Some(plan.tail)
                && tx.still_redirects(inode, plan.image);
            let is_orphan = inode.flags(tx) & ORPHAN != 0;
            let done = zeroed && unchanged && !is_orphan;
            if done && plan.copy_from.is_some() {
                tx.take_settled(inode, plan, (caller, slot))?;
            } else {
                tx.drop_blocks(slot, pin);
            }
            pin.clear(tx);
            if is_orphan {
                return Ok(());
            }
            inode.clear_flags(tx, SETTLING);
            if done {
                inode.clear_tail(tx);
            }
            Ok(())
        })
    }
}

impl Transaction<'_> {
    /// Replaces the last block with the copy. The bytes behind the end count as zeros in both, so
    /// the copy takes over the checksum.
    fn take_settled(
        &mut self,
        inode: Inode,
        plan: &SettlePlan,
        who: (&Caller, Slot),
    ) -> Result<()> {
        let file_block = (plan.tail >> self.layout.hugeblock_shift) as u32;
        let Stretch::Data(old) = self.stretch(inode.map(self), file_block) else {
            return Err(Error::Corrupt { what: "last block of a file" });
        };
        let blocks = BlockRun { tier: plan.tier, first: plan.block, count: 1 };
        let checksum = self.checksum(old.tier, old.first) ^ self.checksum(plan.tier, plan.block);
        self.fold_checksum(plan.tier, plan.block, checksum);
        if self.is_stale(old.tier, old.first) {
            self.note_stale(inode, blocks);
        }
        let added = Extent { file_block, blocks };
        self.mark_checksums_dirty(blocks);
        self.note_change(blocks);
        self.redirect(&mut Replaced::of(inode), added, who)?;
        let now = inode.modified(self);
        self.log_replacement(now, inode, (0, 0), added);
        Ok(())
    }
}
