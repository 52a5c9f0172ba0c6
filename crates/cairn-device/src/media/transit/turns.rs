//! Turns of writers to a device: each page has one writer at a time. So that writer may read the
//! rest of the page around the bytes that it is going to write.
//!
//! A writer takes a seat, records its pages there, then draws a ticket. It waits for writers with
//! an earlier ticket whose pages overlap its own (Lamport's bakery).
//!
//! Must stay true: pages are recorded before a ticket is drawn, so whoever draws later sees them. A
//! lock holds a seat. The kernel takes it from a thread that dies, whatever its pid namespace, and
//! not before the transfer of that thread has ended.
//!
//! Does not order writes to the same bytes that are made at the same time.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use cairn_core::Result;
use cairn_platform::mapping::PAGE_BYTES;

use super::{CHECK_EVERY, SLOT_WORDS, SLOTS, Transit, W_SLOTS, W_WRITTEN, WAITER_SLEEP};
use crate::memory::lock::{LOCK_WORDS, RobustLock};

/// Most writers at a time; others wait.
const SEATS: usize = 24;
const W_SEATS: usize = W_SLOTS + SLOTS * SLOT_WORDS;

// Words of a seat, behind its lock.
const S_FIRST: usize = LOCK_WORDS;
const S_END: usize = LOCK_WORDS + 1;
/// 0: not drawn yet.
const S_TICKET: usize = LOCK_WORDS + 2;
const SEAT_WORDS: usize = LOCK_WORDS + 4;

const _: () = assert!((W_SEATS + SEATS * SEAT_WORDS) * size_of::<u64>() <= PAGE_BYTES);

/// Number of yields of a waiting thread before it sleeps.
const YIELDS: u32 = 20;

/// The exclusive right to write a range. Ends on drop.
pub struct Turn<'a> {
    seat: Seat<'a>,
}

struct Seat<'a> {
    area: &'a Transit,
    index: usize,
}

impl Transit {
    /// Waits until nobody else writes to any of these `pages`, which are at least one. Errors:
    /// `Busy` if this thread has a turn, or holds the lock of a namespace.
    pub fn turn(&self, pages: &Range<u64>) -> Result<Turn<'_>> {
        let turn = Turn { seat: self.take_seat()? };
        let ticket = turn.seat.draw(pages);
        for round in 1.. {
            let seen = self.load(W_WRITTEN);
            let looks = round % CHECK_EVERY == 0;
            let is_before = |other: &Seat| {
                other.index != turn.seat.index && other.is_before(ticket, pages, looks)
            };
            if !self.seats().any(|other| is_before(&other)) {
                break;
            }
            self.wait_for_writers(round, seen);
        }
        Ok(turn)
    }

    fn take_seat(&self) -> Result<Seat<'_>> {
        let mut round = 0;
        loop {
            let seen = self.load(W_WRITTEN);
            for seat in self.seats() {
                if seat.lock().try_lock()? {
                    return Ok(seat);
                }
            }
            self.wait_for_writers(round, seen);
            round += 1;
        }
    }

    fn wait_for_writers(&self, round: u32, seen: u64) {
        match round < YIELDS {
            true => std::thread::yield_now(),
            false => self.sleep(W_WRITTEN, seen, WAITER_SLEEP),
        }
    }

    fn seats(&self) -> impl Iterator<Item = Seat<'_>> {
        (0..SEATS).map(|index| Seat { area: self, index })
    }
}

impl<'a> Seat<'a> {
    fn word(&self, word: usize) -> &'a AtomicU64 {
        self.area.word(W_SEATS + self.index * SEAT_WORDS + word)
    }

    fn lock(&self) -> RobustLock<'a> {
        RobustLock::new(&self.area.words()[W_SEATS + self.index * SEAT_WORDS..])
    }

    /// Records the pages for which the seat is taken, and draws its ticket.
    fn draw(&self, pages: &Range<u64>) -> u64 {
        self.word(S_TICKET).store(0, Ordering::SeqCst);
        self.word(S_FIRST).store(pages.start, Ordering::SeqCst);
        self.word(S_END).store(pages.end, Ordering::SeqCst);
        let ticket = self.area.next_ticket() + 1;
        self.word(S_TICKET).store(ticket, Ordering::SeqCst);
        ticket
    }

    /// Whether the seat has a writer whose turn at some of these pages comes, or may come, before
    /// that of `ticket`. With `looks`, also checks that the writer exists.
    fn is_before(&self, ticket: u64, pages: &Range<u64>, looks: bool) -> bool {
        let read = |word| self.word(word).load(Ordering::SeqCst);
        let meets = read(S_FIRST) < pages.end && pages.start < read(S_END);
        let is_earlier = read(S_TICKET) < ticket;
        meets && is_earlier && self.lock().is_held(looks)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.seat.word(S_END).store(0, Ordering::SeqCst);
        self.seat.lock().unlock();
        self.seat.area.signal(W_WRITTEN);
    }
}

#[cfg(test)]
mod tests;
