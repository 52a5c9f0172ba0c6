//! Work on a namespace that every user of it shares: zeroing a tail, summing a stale block, reaping the dead.
//!
//! Does not decide when; writers settle before they grow a file over its tail, closers, the reaper and the drain
//! seal.

use cairn_core::{Caller, Error, InodeId, Result, StaleBlock};

use crate::checksum;
use crate::device::Device;
use crate::namespace::Namespace;
use crate::{process, sys};

/// Times a thread lets others run while their writes to the file are in flight.
const YIELDS_MAX: usize = 100_000;
/// After so many of them it looks whether whose writes they are still lives.
const REAP_EVERY: usize = 5_000;

impl Namespace {
    /// The device of tier `tier`. Errors: `Corrupt` if a damaged extent names a tier that is not there.
    pub fn tier(&self, tier: u8) -> Result<&dyn Device> {
        let device = self.tiers.get(usize::from(tier)).map(Box::as_ref);
        device.ok_or(Error::Corrupt { what: "tier of a block" })
    }

    /// Gives up what processes that are dead had, as the agent does. For who has to wait for that.
    pub fn reap(&self) -> Result<()> {
        for (slot, identity) in self.fs.processes()? {
            if !process::is_alive(identity) {
                self.fs.reap(slot, identity, sys::now())?;
            }
        }
        Ok(())
    }

    /// Makes the bytes past the end of the file zeros, so that the file can grow over them.
    /// Errors: `Busy` if writes to the file stay in flight.
    pub fn settle(&self, caller: &Caller, inode: InodeId) -> Result<()> {
        for round in 1..=YIELDS_MAX {
            match self.fs.plan_settle(caller, inode) {
                Ok(None) => return Ok(()),
                Ok(Some(plan)) => {
                    let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
                    let offset = u64::from(plan.block) * block_bytes + u64::from(plan.from);
                    let length = block_bytes - u64::from(plan.from);
                    let zeroed = self
                        .tier(plan.tier)
                        .and_then(|device| device.zero(offset, length as usize));
                    self.fs.commit_settle(caller, &plan, zeroed.is_ok())?;
                    return zeroed;
                }
                Err(Error::Busy) if round % REAP_EVERY == 0 => self.reap()?,
                Err(Error::Busy) => sys::sched_yield(),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy)
    }

    /// CRC32C of a block as it stands on its tier; what does not belong to the file counts as zeros.
    pub fn block_checksum(&self, block: &StaleBlock) -> Result<u32> {
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        let offset = u64::from(block.block) * block_bytes;
        let of_data = self.tier(block.tier)?.checksum(offset, block.bytes as usize)?;
        let rest = block_bytes - u64::from(block.bytes);
        Ok(checksum::combine(of_data, checksum::zeros(rest), rest))
    }
}
