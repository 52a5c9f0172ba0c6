//! Write-behind: a write to a tier in a file returns when its bytes are staged in shared memory,
//! where they survive the program. The agent writes them to the file while the program goes on. A
//! process that cannot wait for the agent does that itself.
//!
//! Must stay true: the file has old bytes in a range that is staged or being written, so nobody
//! accesses the file there before `settle`. A thread that writes a slot is in a system call that
//! ends before the thread is gone; so the slot of a dead writer can be written again.
//!
//! Does not order two writes to one range that are made at the same time.

use core::ops::Range;
use core::sync::atomic::Ordering;

use cairn_core::{Error, Result};

use super::slot::{FREE, GROWING, LOST, S_LENGTH, STAGED, Slot, WRITING, room_at};
use super::{
    CHECK_EVERY, Transit, W_FAILED, W_MAPPED, W_SERVED, W_STAGED, W_TICKETS, W_WRITTEN,
    WAITER_SLEEP,
};

/// Number of yields of a waiting thread before it sleeps.
const YIELDS: u32 = 20;
/// Rounds in which nobody has written anything, after which a program does not wait for a slot any
/// longer.
const IDLE_ROUNDS: u32 = 25;
/// Rounds in which nobody has written anything, half a minute at least, after which a process that
/// may not write itself gives up.
const PATIENCE: u32 = if cfg!(test) { 100 } else { 30_000 };

/// Writes bytes at an address to an offset of the file. May change the bytes around them in the
/// slot. Errors: `FileTooLarge`, `Fault` or `Busy` if only this process cannot write them; after
/// any other error the bytes are lost.
pub type Put<'a> = &'a dyn Fn(*mut u8, u64, usize) -> Result<()>;

/// Result of an attempt to advance a slot that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Another thread writes it.
    Waits,
    /// This process may not write it.
    Stuck,
    Wrote,
}

impl Transit {
    /// Stages `length` bytes for `offset` of the file, at most `STAGING_BYTES` less the offset
    /// within a page. `fill` writes them to the given address. Returns false, and stages nothing,
    /// if the caller has to write them itself. Errors: `Io` if bytes that were staged earlier are
    /// lost.
    pub fn stage(
        &self,
        offset: u64,
        length: usize,
        put: Put,
        fill: &mut impl FnMut(*mut u8),
    ) -> Result<bool> {
        self.check()?;
        let Some(claim) = self.claim().filter(|_| self.is_served()) else { return Ok(false) };
        if let Some((slot, before)) = self.grow(claim, offset, length) {
            fill(slot.address(offset - before as u64).wrapping_add(before));
            slot.word(S_LENGTH).store((before + length) as u64, Ordering::Relaxed);
            slot.set(STAGED);
        } else {
            let Some(slot) = self.take_in_time(claim) else { return Ok(false) };
            fill(slot.address(offset));
            slot.describe(offset, length);
            slot.set(STAGED);
        }
        if self.is_mapped() {
            // Somebody mapped the file just now.
            self.settle(offset..offset + length as u64, put)?;
        }
        self.signal(W_STAGED);
        Ok(true)
    }

    /// Waits until the file has everything that was staged for a range. Errors: `Io` if it is lost,
    /// or if this process may not write it and nobody else does.
    pub fn settle(&self, range: Range<u64>, put: Put) -> Result<()> {
        self.wait_until_written(put, |slot| slot.overlaps(&range))
    }

    /// Waits until the file has everything that was staged before. Errors: as `settle`, for any of
    /// it.
    pub fn settle_all(&self, put: Put) -> Result<()> {
        let limit = self.load(W_TICKETS);
        self.wait_until_written(put, |slot| slot.ticket() < limit)?;
        self.check()
    }

    /// Makes every later write be in the file when it returns, and ends read-ahead. For files that
    /// are mapped.
    pub fn settle_for_mapping(&self, put: Put) -> Result<()> {
        self.word(W_MAPPED).fetch_add(1, Ordering::SeqCst);
        self.forget(&(0..u64::MAX));
        self.settle_all(put)
    }

    /// Whether bytes that were staged are lost.
    pub fn has_lost_writes(&self) -> bool {
        self.load(W_FAILED) != 0
    }

    /// Records that bytes are lost which were in the file when their write returned.
    pub fn lose(&self) {
        self.word(W_FAILED).store(1, Ordering::SeqCst);
    }

    fn check(&self) -> Result<()> {
        if self.has_lost_writes() { Err(Error::Io) } else { Ok(()) }
    }

    /// Takes the staged slot that ends where a range begins, if it has room for the range. Returns
    /// it with the number of bytes that it holds; this thread owns it.
    fn grow(&self, claim: u64, offset: u64, length: usize) -> Option<(Slot<'_>, usize)> {
        let before = |slot: &Slot| {
            let (start, before) = slot.sound_range()?;
            let follows = start + before as u64 == offset;
            (follows && length <= room_at(start) - before).then_some(before)
        };
        let may_grow = |slot: &Slot| slot.state() == STAGED && before(slot).is_some();
        let slot = self.slots().find(may_grow)?;
        if !slot.change(STAGED, claim | GROWING) {
            return None;
        }
        // It may have got another range meanwhile.
        match before(&slot).filter(|_| self.back(&slot).is_ok()) {
            Some(before) => Some((slot, before)),
            None => {
                slot.set(STAGED);
                None
            }
        }
    }

    /// Takes a slot as soon as there is one: the device gets no more work at a time than its
    /// servers give it. Returns `None` if nobody serves it any more, or if there is no memory.
    fn take_in_time(&self, claim: u64) -> Option<Slot<'_>> {
        let mut idle = 0;
        while idle < IDLE_ROUNDS {
            let seen = self.load(W_WRITTEN);
            if let Some(slot) = self.take(claim).or_else(|| self.take_from_readers(claim)) {
                return self.backed(slot);
            }
            self.sleep(W_WRITTEN, seen, WAITER_SLEEP);
            idle = if self.load(W_WRITTEN) == seen { idle + 1 } else { 0 };
        }
        self.word(W_SERVED).store(0, Ordering::Relaxed);
        None
    }

    /// Waits for the slots that `concerns` accepts, and writes those that nobody writes.
    fn wait_until_written(&self, put: Put, concerns: impl Fn(&Slot) -> bool) -> Result<()> {
        let is_pending =
            |slot: &Slot| matches!(slot.kind(), STAGED | WRITING | GROWING) && concerns(slot);
        let (mut stuck, mut before) = (0, 0);
        for round in 1.. {
            let seen = self.load(W_WRITTEN);
            // Usually nothing is pending.
            let mut pending = self.slots().filter(is_pending).peekable();
            if pending.peek().is_none() {
                break;
            }
            let mut step = Step::Waits;
            for slot in pending {
                step = step.max(self.advance(&slot, put, round % CHECK_EVERY == 0)?);
            }
            stuck = match step {
                Step::Stuck if seen == before => stuck + 1,
                _ => 0,
            };
            before = seen;
            match round {
                _ if stuck == PATIENCE => return Err(Error::Io),
                _ if step == Step::Wrote => {}
                0..YIELDS => std::thread::yield_now(),
                _ => self.sleep(W_WRITTEN, seen, WAITER_SLEEP),
            }
        }
        Ok(())
    }

    /// Does what can be done for a slot that is waited for. With `looks`, also checks that its
    /// writer exists. A slot that could not be written is tried again: the device may be back.
    /// Errors: `Io` if it is lost.
    fn advance(&self, slot: &Slot, put: Put, looks: bool) -> Result<Step> {
        let Some(claim) = self.claim() else { return Ok(Step::Stuck) };
        let state = slot.state();
        if looks && self.owner_is_dead(state) {
            slot.reclaim_slot(state);
        }
        let state = slot.state();
        let is_ours = matches!(state, STAGED | LOST);
        match is_ours.then(|| slot.write(state, claim, put)) {
            Some(Ok(true)) => Ok(Step::Wrote),
            Some(Err(Error::Io)) => Err(Error::Io),
            Some(Err(_)) => Ok(Step::Stuck),
            Some(Ok(false)) | None => Ok(Step::Waits),
        }
    }
}

impl Slot<'_> {
    /// Writes the slot to the file if it is still in `state`, staged or lost. Returns whether it
    /// did. Errors: `Io` if it could not be written; other errors if only this process cannot.
    pub(super) fn write(&self, state: u64, claim: u64, put: Put) -> Result<bool> {
        if !self.change(state, claim | WRITING) {
            return Ok(false);
        }
        let range = self.sound_range();
        let written =
            range.map_or(Err(Error::Io), |(at, length)| put(self.address(at), at, length));
        match written {
            Err(error @ (Error::FileTooLarge | Error::Fault | Error::Busy)) => {
                self.set(state);
                return Err(error);
            }
            Err(_) => {
                self.area.lose();
                self.set(LOST);
            }
            Ok(()) => self.set(FREE),
        }
        self.area.signal(W_WRITTEN);
        written.map(|()| true).map_err(|_| Error::Io)
    }
}

#[cfg(test)]
mod tests;
