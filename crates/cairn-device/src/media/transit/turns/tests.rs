//! Writers that meet and writers that do not, one that dies in its turn, and more of them than
//! seats.

use core::sync::atomic::AtomicBool;
use std::sync::Barrier;

use cairn_core::Error;

use super::super::tests::{Place, in_a_child};
use super::*;

const PAGE: u64 = PAGE_BYTES as u64;

#[test]
fn thread_has_one_turn_at_a_time() {
    let place = Place::new();
    let area = place.area();
    let turn = area.turn(&(0..PAGE)).unwrap();
    assert_eq!(area.turn(&(8 * PAGE..9 * PAGE)).err(), Some(Error::Busy));
    drop(turn);
    assert!(area.turn(&(0..PAGE)).is_ok());
}

#[test]
fn who_writes_elsewhere_does_not_wait() {
    let place = Place::new();
    let area = place.area();
    let _turn = area.turn(&(PAGE..3 * PAGE)).unwrap();
    std::thread::scope(|scope| {
        for pages in [0..PAGE, 3 * PAGE..9 * PAGE] {
            let area = place.area();
            scope.spawn(move || area.turn(&pages).map(drop)).join().unwrap().unwrap();
        }
    });
}

/// Another thread asks for a turn at the third and fourth page, and has to wait for `end`.
fn expect_to_wait(place: &Place, end: impl FnOnce()) {
    let area = place.area();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let area = place.area();
            let _turn = area.turn(&(2 * PAGE..4 * PAGE)).unwrap();
            assert!(is_over.load(Ordering::SeqCst), "it had its turn too early");
        });
        let read = |seat: &Seat, word| seat.word(word).load(Ordering::SeqCst);
        let waits = |seat: Seat| read(&seat, S_END) == 4 * PAGE && read(&seat, S_TICKET) != 0;
        while !area.seats().any(waits) && !waiter.is_finished() {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::SeqCst);
        end();
        waiter.join().unwrap();
    });
}

#[test]
fn who_writes_to_the_same_page_waits() {
    let place = Place::new();
    let area = place.area();
    let turn = area.turn(&(PAGE..3 * PAGE)).unwrap();
    expect_to_wait(&place, || drop(turn));
}

#[test]
fn who_may_have_an_earlier_ticket_is_waited_for_until_it_says_which() {
    let place = Place::new();
    let area = place.area();
    let turn = area.turn(&(PAGE..3 * PAGE)).unwrap();
    let ticket = turn.seat.word(S_TICKET);
    ticket.store(0, Ordering::SeqCst);
    expect_to_wait(&place, || ticket.store(u64::MAX, Ordering::SeqCst));
    drop(turn);
}

#[test]
fn turn_of_a_dead_writer_is_over() {
    let place = Place::new();
    let area = place.area();
    in_a_child(|| core::mem::forget(area.turn(&(0..PAGE))));
    assert_eq!(area.seats().next().unwrap().word(S_END).load(Ordering::SeqCst), PAGE);
    assert!(area.turn(&(0..PAGE)).is_ok());
}

/// More writers than there are seats count in words of pages that only their turns protect.
#[test]
fn writers_that_take_turns_lose_no_increment() {
    const WRITERS: u64 = SEATS as u64 + 8;
    const ROUNDS: u64 = 200;
    let place = Place::new();
    let counters = [const { AtomicU64::new(0) }; 3];
    let ready = Barrier::new(WRITERS as usize);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (place, counters, ready) = (&place, &counters, &ready);
            scope.spawn(move || {
                let area = place.area();
                ready.wait();
                for round in 0..ROUNDS {
                    let first = (writer + round) % 2;
                    let _turn = area.turn(&(first * PAGE..(first + 2) * PAGE)).unwrap();
                    for counter in &counters[first as usize..first as usize + 2] {
                        let value = counter.load(Ordering::Relaxed);
                        std::thread::yield_now();
                        counter.store(value + 1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let counted = counters.each_ref().map(|counter| counter.load(Ordering::Relaxed));
    let half = WRITERS * ROUNDS / 2;
    assert_eq!(counted, [half, 2 * half, half]);
}
