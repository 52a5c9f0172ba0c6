//! Settling: zeroing a file's tail, so that the file can grow over it.
//!
//! Invariant: bytes past the end of the file within its last block count as zeros, in checksums, too. Where they may not
//! be zeros the inode has a *tail*, which is settled before the file grows over it, while no write to the file is in
//! flight and none begins.

use crate::error::{Error, Result};
use crate::fs::Microfs;
use crate::inode::{ORPHAN, SETTLING, WANTS_SETTLE};
use crate::map::Stretch;
use crate::pin::{PIN_SETTLES, Pin, PinRequest};
use crate::types::{Caller, InodeId};

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

impl Microfs {
    /// Plans the zeroing of a file's tail; `None` if it has none. `Busy` while writes to it are in flight; no new
    /// ones begin meanwhile.
    pub fn plan_settle(&self, caller: &Caller, inode: InodeId) -> Result<Option<SettlePlan>> {
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
            let plan = SettlePlan { inode: inode.id, tier, block, from, tail, pin_index };
            Ok(Some(Some((plan, tx.may_change_in_place(inode)))))
        })?;
        let Some((plan, may_begin)) = planned.ok_or(Error::Busy)? else { return Ok(None) };
        if !may_begin {
            self.sync().inspect_err(|_| {
                // The plan is abandoned at the latest when the process ends.
                let _ = self.commit_settle(caller, &plan, false);
            })?;
        }
        Ok(Some(plan))
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
