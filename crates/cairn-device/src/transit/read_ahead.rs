//! Reading ahead: bytes of the file that a program will ask for next, read while it works on those
//! before.
//!
//! Must stay true: what is handed out is what the file had at some time during the call that asks.
//! So whoever stores bytes forgets, before it returns, what was read of that range before; and
//! whoever reads ahead marks its slot before it looks for bytes on their way into the file. One of
//! the two sees the other.
//! Does not decide what will be asked for.

use core::ops::Range;
use core::time::Duration;

use cairn_core::Result;

use super::slot::{FILLING, FREE, KIND, READING, READY, SPOILED, Slot, TAKEN, WANTED, room_at};
use super::{CHECK_EVERY, SLOTS, Transit, W_STAGED, W_WRITTEN, WAITER_SLEEP};

/// Slots that hold what was read ahead, at most: the others are for writers.
const READ_SLOTS: usize = SLOTS / 2;
/// For how long somebody waits for a transfer that does not end, before it reads the bytes itself.
const PATIENCE: Duration = Duration::from_millis(50);
/// Looks at slots that change all the time, or say what no slot says, after which somebody reads
/// the bytes itself.
const ROUNDS: u32 = 1000;

/// Reads bytes of the file from an offset on to an address.
pub type Get<'a> = &'a dyn Fn(*mut u8, u64, usize) -> Result<()>;

impl Transit {
    /// Has a range read, as far as there are slots. Nothing is read that was before and is still
    /// there.
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

    /// Hands out bytes from `at` on that were read ahead, `most` at most, and says how many; 0 if
    /// none were. Waits for those that are being read.
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
                // Nobody has begun.
                WANTED => drop(slot.fetch(claim, get)),
                READING if waited >= PATIENCE => drop(slot.change(state, spoiled(state))),
                READING if round % CHECK_EVERY == 0 && self.is_bereft(state) => {
                    slot.bereave(state);
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

    /// Makes sure that nothing is handed out any more that was read of a range before.
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

    /// A slot to read into; none if there are too many already, or no memory.
    fn take_to_read(&self, claim: u64) -> Option<Slot<'_>> {
        let used = self.slots().filter(|slot| slot.kind() >= WANTED).count();
        let slot = match used < READ_SLOTS {
            true => self.take(claim)?,
            false => {
                // What a reader left that stopped or died; being refused makes it older, too.
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

    /// A slot of what was read ahead, for a writer.
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
    /// Whether it holds, or will, the byte at an offset of the file for readers.
    fn is_read_of(&self, at: u64) -> bool {
        matches!(self.kind(), WANTED | READING | READY | TAKEN) && self.range().contains(&at)
    }

    /// Reads what is wanted; false if it is no longer.
    pub(super) fn fetch(&self, claim: u64, get: Get) -> bool {
        if !self.change(WANTED, claim | READING) {
            return false;
        }
        let read = self.sound_range().map(|(at, length)| get(self.address(at), at, length));
        // Meanwhile the range may have been written to.
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
