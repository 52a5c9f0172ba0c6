//! Upkeep of a namespace that every user of it shares: zeroing a tail, summing a stale block,
//! waiting for writes in flight.
//!
//! Does not decide when: writers settle before they grow a file over its tail; closers, the reaper
//! and the drain seal.

use core::ops::Range;
use core::time::Duration;

use cairn_core::{
    Caller, Error, ImageLoss, InodeId, Pack, Result, SmallFile, StaleBlock, Unpacking,
};
use cairn_platform::checksum;
use cairn_platform::{process, sys};

use crate::device::{self, Device};
use crate::store::namespace::Namespace;
use std::sync::Arc;

/// A thread that waits for writes in flight yields this often, then sleeps `WAIT` each time.
const YIELDS: usize = 1000;
const WAIT: Duration = Duration::from_micros(100);
/// Number of sleeps after which the thread checks that the process of those writes is alive.
const REAP_EVERY: usize = 500;
/// Rounds after which the thread gives up, some minutes: a write in flight ends only when the
/// device, which others use as well, has taken it.
const ROUNDS_MAX: usize = 1_000_000;
/// Rounds after which an image is not waited for any more, some seconds: a write that was planned
/// before its cut may be that of a stopped process.
const IMAGE_ROUNDS_MAX: usize = 20_000;

impl Namespace {
    /// Returns the device of tier `tier`. Errors: `Corrupt` if a damaged extent names a missing
    /// tier.
    pub fn tier(&self, tier: u8) -> Result<&dyn Device> {
        let device = self.tiers.get(usize::from(tier)).map(Arc::as_ref);
        device.ok_or(Error::Corrupt { what: "tier of a block" })
    }

    /// Repeats `act` while it returns `Busy` because of writes in flight. Errors: as `act`; `Busy`
    /// at once if this thread holds the lock, or if nothing changes for minutes.
    pub fn retry_while_busy<T>(&self, act: impl Fn() -> Result<T>) -> Result<T> {
        for round in 0..ROUNDS_MAX {
            match act() {
                Err(Error::Busy) if round < YIELDS => sys::sched_yield(),
                Err(Error::Busy) => {
                    if (round - YIELDS) % REAP_EVERY == 0 {
                        self.reap()?;
                    }
                    if round == IMAGE_ROUNDS_MAX {
                        self.fs.give_up_image(ImageLoss::Awaited)?;
                    }
                    // A sleep that is cut short does no harm.
                    let _ = sys::nanosleep(WAIT);
                }
                result => return result,
            }
        }
        Err(Error::Busy)
    }

    /// Frees what dead processes had, and what was sent and never received, as the agent does. For
    /// callers that have to wait for that.
    pub fn reap(&self) -> Result<()> {
        for (slot, identity) in self.fs.processes()? {
            if !process::is_alive(identity) {
                self.fs.reap(slot, identity, sys::now())?;
            }
        }
        self.reap_transfers()
    }

    /// As `reap`, but quick: only for processes that are gone, see `process::is_gone`.
    pub fn reap_gone(&self) -> Result<()> {
        for (slot, identity) in self.fs.processes()? {
            if process::is_gone(identity) {
                self.fs.reap(slot, identity, sys::now())?;
            }
        }
        Ok(())
    }

    /// Makes the bytes past the end of the file zeros, so that the file can grow over them.
    /// Errors: `Busy` if writes to the file stay in flight for minutes.
    pub fn settle(&self, caller: &Caller, inode: InodeId) -> Result<()> {
        let Some(plan) = self.retry_while_busy(|| self.fs.plan_settle(caller, inode))? else {
            return Ok(());
        };
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        let offset = u64::from(plan.block) * block_bytes + u64::from(plan.from);
        let length = block_bytes - u64::from(plan.from);
        let is_mapped = self.fs.is_mapped(inode);
        let copied = match plan.copy_from {
            Some(source) => self.copy_start(source, (plan.tier, plan.block), plan.from as usize),
            None => Ok(()),
        };
        let zeroed =
            copied.and_then(|()| self.tier(plan.tier)).and_then(|device| match is_mapped? {
                true if plan.copy_from.is_none() => device.zero_mapped(offset, length as usize),
                _ => device.zero(offset, length as usize),
            });
        self.fs.commit_settle(caller, &plan, zeroed.is_ok())?;
        zeroed
    }

    /// Copies the first bytes of a block to another block.
    fn copy_start(&self, source: (u8, u32), target: (u8, u32), length: usize) -> Result<()> {
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        let place = |(tier, block): (u8, u32)| {
            self.tier(tier).map(|device| (device, u64::from(block) * block_bytes))
        };
        device::copy(place(source)?, place(target)?, length).map(drop)
    }

    /// Packs small files into a block, or waits a moment for a process that does. Returns false if
    /// that had no effect because there are no small files. Errors: those of the tiers, if nothing
    /// was packed.
    pub fn pack(&self, caller: &Caller) -> Result<bool> {
        let Some((mut pack, first)) = self.fs.begin_pack(caller)? else {
            let was_packing = self.fs.is_packing()?;
            for _ in 0..YIELDS {
                if !was_packing || !self.fs.is_packing()? {
                    return Ok(was_packing);
                }
                sys::sched_yield();
            }
            return Ok(false);
        };
        let mut has_packed = false;
        let filled = self.fill(caller, &mut pack, first, &mut has_packed);
        let ended = self.fs.end_pack(caller, &pack, filled.is_ok());
        match has_packed {
            true => Ok(true),
            false => filled.and(ended).map(|()| false),
        }
    }

    fn fill(
        &self,
        caller: &Caller,
        pack: &mut Pack,
        first: SmallFile,
        has_packed: &mut bool,
    ) -> Result<()> {
        let place = |(tier, at): (u8, u64)| self.tier(tier).map(|device| (device, at));
        let mut next = Some(first);
        while let Some(file) = next {
            let target = place(self.fs.pack_target(pack, &file)?)?;
            let raw = device::copy(place(file.source)?, target, file.bytes as usize)?;
            let sum = self.sum_of_block(raw, file.bytes);
            *has_packed |= self.fs.put_in_pack(caller, pack, (&file, sum))?;
            next = self.fs.next_for_pack(pack)?;
        }
        Ok(())
    }

    /// Gives a file that is still packed its own block again. Errors: `NoSpace`; `Busy` if too many
    /// writes of this process are in flight; those of the tiers.
    pub fn unpack(&self, caller: &Caller, inode: InodeId) -> Result<()> {
        while let Some(plan) = self.fs.plan_unpacking(caller, inode)? {
            let unpacked = self.copy_unpacked(&plan);
            match unpacked.and_then(|()| self.fs.commit_unpacking(caller, &plan)) {
                Ok(true) => break,
                // It changed meanwhile.
                Ok(false) => {}
                Err(error) => return self.fs.abort_unpacking(caller, &plan).and(Err(error)),
            }
        }
        Ok(())
    }

    fn copy_unpacked(&self, plan: &Unpacking) -> Result<()> {
        let (file, (tier, block)) = (&plan.file, plan.target);
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        let (device, start) = (self.tier(tier)?, u64::from(block) * block_bytes);
        let source = (self.tier(file.source.0)?, file.source.1);
        let raw = device::copy(source, (device, start), file.bytes as usize)?;
        let rest = block_bytes - u64::from(file.bytes);
        device.zero(start + u64::from(file.bytes), rest as usize)?;
        // A damaged file stays damaged, so that its readers get an error.
        let sum = file.crc32c.unwrap_or_else(|| self.sum_of_block(raw, file.bytes));
        self.fs.store_checksum(tier, block, sum)
    }

    /// Returns the CRC32C of a block that begins with bytes of this raw checksum, followed by
    /// zeros.
    fn sum_of_block(&self, raw: u32, bytes: u32) -> u32 {
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        checksum::of_sparse_block(raw, block_bytes - u64::from(bytes), block_bytes)
    }

    /// Whether programs map copies of some tier.
    pub fn shows_copies(&self) -> bool {
        self.tiers.iter().any(|device| device.shows_copies())
    }

    /// Writes what programs have stored in a mapped range of a file to those tiers of which only
    /// copies are mapped.
    pub fn write_back(&self, inode: InodeId, range: Range<u64>) -> Result<()> {
        if !self.shows_copies() {
            return Ok(());
        }
        self.each_run(inode, range, |tier, place| {
            self.tier(tier)?.write_back(place.start, (place.end - place.start) as usize)
        })
    }

    /// Frees a bounded part of the memory for mappings of programs that have ended, while `goes_on`
    /// returns true. Errors: the first error of a part; the other parts were freed.
    pub fn evict_unmapped(&self, goes_on: &dyn Fn() -> bool) -> Result<()> {
        let tiers = self.tiers.iter().zip(0..);
        let ends = tiers
            .map(|(device, tier)| device.evict_unmapped(&|| self.mapped_ranges(tier), goes_on));
        ends.fold(Ok(()), Result::and)
    }

    /// Returns the ranges of a tier that hold blocks of mapped files, and an empty range for each
    /// mapped file. A file without blocks may be about to show those that it had. Errors: the
    /// blocks of a mapped file are unknown; nothing may be freed then.
    fn mapped_ranges(&self, tier: u8) -> Result<Vec<Range<u64>>> {
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        let mut ranges = Vec::new();
        for inode in self.fs.mapped_files()? {
            ranges.push(0..0);
            let placed = self.each_run(inode, 0..u64::MAX, |of, place| {
                if of == tier {
                    ranges.push(place.start..place.end.next_multiple_of(block_bytes));
                }
                Ok(())
            });
            match placed {
                // The file is gone since it was listed.
                Err(Error::NotFound) => {}
                placed => placed?,
            }
        }
        Ok(ranges)
    }

    /// Passes the places of the bytes of a file to `take`: a tier and a range of it.
    fn each_run(
        &self,
        inode: InodeId,
        range: Range<u64>,
        mut take: impl FnMut(u8, Range<u64>) -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let plan = self.fs.plan_of(inode, at, range.end - at)?;
            for run in plan.runs() {
                if let Some((tier, offset)) = run.source {
                    take(tier, offset..offset + run.bytes)?;
                }
            }
            match plan.length {
                0 => break,
                length => at += length,
            }
        }
        Ok(())
    }

    /// Returns the CRC32C of a block as it stands on its tier. Bytes that do not belong to the file
    /// count as zeros.
    pub fn block_checksum(&self, block: &StaleBlock) -> Result<u32> {
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        let offset = u64::from(block.block) * block_bytes;
        let of_data = self.tier(block.tier)?.checksum(offset, block.bytes as usize)?;
        let rest = block_bytes - u64::from(block.bytes);
        Ok(checksum::combine(of_data, checksum::zeros(rest), rest))
    }
}
