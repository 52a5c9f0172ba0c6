//! Read-ahead: bytes of the file that a program will ask for next are read while it works on the
//! ones before.
//!
//! Must stay true: bytes that are handed out were in the file at some time during the call that
//! asks. So a thread that stores bytes forgets, before its call returns, what was read of that
//! range before. A thread that reads ahead marks its slot before it looks for bytes in transit to
//! the file. One of the two sees the other.
//!
//! Does not decide what will be asked for.

use core::ops::Range;
use core::time::Duration;

use cairn_core::Result;

use super::slot::{FILLING, FREE, KIND, READING, READY, SPOILED, Slot, TAKEN, WANTED, room_at};
use super::{CHECK_EVERY, SLOTS, Transit, W_STAGED, W_WRITTEN, WAITER_SLEEP};

/// Most slots that hold bytes read ahead; the others are for writers.
const READ_SLOTS: usize = SLOTS / 2;
/// Time to wait for a transfer, after which a reader reads the bytes itself.
const PATIENCE: Duration = Duration::from_millis(50);
/// Number of looks at slots that change all the time, or have an invalid state, after which a
/// reader reads the bytes itself.
const ROUNDS: u32 = 1000;

/// Reads bytes of the file to an address. Arguments: address, offset, length.
pub type Get<'a> = &'a dyn Fn(*mut u8, u64, usize) -> Result<()>;

impl Transit {
    /// Requests a read-ahead of a range, as far as there are slots. Bytes that are already there
    /// are not read again.
    pub fn want(&self, range: Range<u64>) {
        if !self.is_served() {
            return;
        }
        let Some(claim) = self.claim() else { return };
        let mut at = range.start;
        while at < range.end {
            if let Some(known) = self.slots().find(|slot| slot.is_read_of(at)) {
                at = known.range().end.max(at + 1);
                continue;
            }
            let Some(slot) = self.take_to_read(claim) else { return };
            let length = room_at(at).min((range.end - at) as usize);
            slot.describe(at, length);
            slot.set(WANTED);
            if self.is_mapped() {
                // Somebody mapped the file just now, and may change it unseen.
                self.forget(&range);
                return;
            }
            self.signal(W_STAGED);
            at += length as u64;
        }
    }

    /// Hands out bytes from `at` on that were read ahead, at most `most`. Returns their
    /// number, which is 0 if none were. Waits for bytes that are being read.
    pub fn hand_out(
        &self,
        at: u64,
        most: usize,
        get: Get,
        take: &mut dyn FnMut(*const u8, usize),
    ) -> usize {
        let mut waited = Duration::ZERO;
        for round in 1..ROUNDS {
            let seen = self.load(W_WRITTEN);
            let Some(slot) = self.slots().find(|slot| slot.is_read_of(at)) else { return 0 };
            let Some(claim) = self.claim() else { return 0 };
            let state = slot.state();
            match state & KIND {
                READY if slot.change(READY, claim | TAKEN) => {
                    return slot.hand_out(at, most, claim, take);
                }
                // No server has begun to read it.
                WANTED => drop(slot.fetch(claim, get)),
                READING if waited >= PATIENCE => drop(slot.change(state, spoiled(state))),
                READING if round % CHECK_EVERY == 0 && self.owner_is_dead(state) => {
                    slot.reclaim_slot(state);
                }
                READING => {
                    self.sleep(W_WRITTEN, seen, WAITER_SLEEP);
                    waited += WAITER_SLEEP;
                }
                // Another reader has it.
                TAKEN => return 0,
                _ => {}
            }
        }
        0
    }

    /// Makes sure that bytes read of a range before are not handed out any more.
    pub fn forget(&self, range: &Range<u64>) {
        for slot in self.slots() {
            loop {
                let state = slot.state();
                let forgotten = match state & KIND {
                    WANTED | READY => FREE,
                    READING | TAKEN => spoiled(state),
                    _ => break,
                };
                if !slot.overlaps(range) || slot.change(state, forgotten) {
                    break;
                }
            }
        }
    }

    /// Returns a slot to read into; `None` if there are too many already, or no memory.
    fn take_to_read(&self, claim: u64) -> Option<Slot<'_>> {
        let used = self.slots().filter(|slot| slot.kind() >= WANTED).count();
        let slot = match used < READ_SLOTS {
            true => self.take(claim)?,
            false => {
                // Reuses what a stopped or dead reader left. A refused request makes it older, too,
                // because it draws a ticket.
                let now = self.next_ticket();
                let is_old = |slot: &Slot| now.saturating_sub(slot.ticket()) > SLOTS as u64;
                let may_take = |slot: &Slot| slot.kind() >= WANTED && is_old(slot);
                self.oldest_ready()
                    .filter(is_old)
                    .filter(|slot| slot.change(READY, claim | FILLING))
                    .or_else(|| self.take_bereft(claim, may_take))?
            }
        };
        self.backed(slot)
    }

    /// Takes a slot of bytes read ahead, for a writer.
    pub(super) fn take_from_readers(&self, claim: u64) -> Option<Slot<'_>> {
        self.oldest_ready().filter(|slot| slot.change(READY, claim | FILLING))
    }

    fn oldest_ready(&self) -> Option<Slot<'_>> {
        self.slots().filter(|slot| slot.state() == READY).min_by_key(Slot::ticket)
    }
}

fn spoiled(state: u64) -> u64 {
    state & !KIND | SPOILED
}

impl Slot<'_> {
    /// Whether it holds, or will hold, the byte at an offset of the file for readers.
    fn is_read_of(&self, at: u64) -> bool {
        matches!(self.kind(), WANTED | READING | READY | TAKEN) && self.range().contains(&at)
    }

    /// Reads a wanted slot. Returns false if it is not wanted any more.
    pub(super) fn fetch(&self, claim: u64, get: Get) -> bool {
        if !self.change(WANTED, claim | READING) {
            return false;
        }
        let read = self.sound_range().map(|(at, length)| get(self.address(at), at, length));
        // The range may have been written to meanwhile.
        if read != Some(Ok(())) || !self.change(claim | READING, READY) {
            self.set(FREE);
        }
        self.area.signal(W_WRITTEN);
        true
    }

    /// Hands out bytes of a slot that the caller has taken.
    fn hand_out(
        &self,
        at: u64,
        most: usize,
        claim: u64,
        take: &mut dyn FnMut(*const u8, usize),
    ) -> usize {
        let is_there = |(start, length): &(u64, usize)| {
            (*start..*start + *length as u64).contains(&at) && self.area.back(self).is_ok()
        };
        let mut count = 0;
        let mut is_used_up = true;
        if let Some((start, length)) = self.sound_range().filter(is_there) {
            let before = (at - start) as usize;
            count = most.min(length - before);
            take(self.address(start).wrapping_add(before), count);
            is_used_up = before + count == length;
        }
        if is_used_up || !self.change(claim | TAKEN, READY) {
            self.set(FREE);
            self.area.signal(W_WRITTEN);
        }
        count
    }
}

#[cfg(test)]
mod tests;
