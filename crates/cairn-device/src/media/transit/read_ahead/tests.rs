//! Bytes read ahead are handed out once, and never after they were overwritten.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Barrier;

use cairn_platform::mapping::PAGE_BYTES;

use super::super::tests::{LENGTH, Place, in_a_child};
use super::*;
use crate::media::staging::STAGING_BYTES;

const ALL: core::ops::Range<u64> = 0..2 * STAGING_BYTES as u64;

impl Place {
    /// Returns the first byte that is handed out at an offset, and the number of bytes.
    fn take(&self, area: &Transit, at: u64, most: usize) -> (u8, usize) {
        let mut first = 0xee;
        // SAFETY: the area hands out readable bytes.
        let mut take = |address: *const u8, _| first = unsafe { address.read() };
        let count = area.hand_out(at, most, &|a, o, l| self.get(area, a, o, l), &mut take);
        (first, count)
    }

    fn fill(&self, offset: u64, byte: u8, length: usize) {
        self.put(vec![byte; length].as_mut_ptr(), offset, length).unwrap();
    }

    /// Number of refusals of another reader before it gets a slot; 100 if it never gets one.
    fn refusals(&self, area: &Transit) -> usize {
        let elsewhere = 32 << 20;
        let is_refused = |_: &u32| {
            area.want(elsewhere..elsewhere + 1);
            !self.kinds(area).contains(&WANTED)
        };
        (0..100).take_while(is_refused).count()
    }

    /// Reads what is wanted.
    fn serve(&self, area: &Transit) {
        area.serve(
            &|a, o, l| self.put(a, o, l),
            &|a, o, l| self.get(area, a, o, l),
            &AtomicBool::new(true),
        );
        area.word(super::super::W_SERVED).store(1, Ordering::Relaxed);
    }
}

#[test]
fn bytes_are_read_before_they_are_asked_for_and_handed_out_in_parts() {
    let place = Place::new();
    let area = place.unserved_area();
    place.fill(0, 1, STAGING_BYTES);
    place.fill(STAGING_BYTES as u64, 2, STAGING_BYTES);
    area.want(ALL);
    area.want(ALL);
    assert_eq!(place.kinds(&area)[..3], [WANTED, WANTED, FREE], "nothing is wanted twice");
    place.serve(&area);
    place.fill(0, 9, 2 * STAGING_BYTES);
    assert_eq!(place.take(&area, 0, 100), (1, 100));
    assert_eq!(place.take(&area, 100, 2 * STAGING_BYTES), (1, STAGING_BYTES - 100));
    assert_eq!(place.take(&area, STAGING_BYTES as u64, usize::MAX), (2, STAGING_BYTES));
    assert_eq!(place.take(&area, 0, 100), (0xee, 0));
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
}

#[test]
fn reader_does_itself_what_nobody_has_begun() {
    let place = Place::new();
    let area = place.unserved_area();
    place.fill(0, 3, LENGTH);
    area.want(0..LENGTH as u64);
    assert_eq!(place.take(&area, 1, LENGTH), (3, LENGTH - 1));
}

#[test]
fn nothing_is_wanted_where_nobody_serves_or_a_file_is_mapped() {
    let place = Place::new();
    let area = place.area();
    area.want(ALL);
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
    let area = place.unserved_area();
    area.want(ALL);
    area.settle_for_mapping(&|a, o, l| place.put(a, o, l)).unwrap();
    area.want(ALL);
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
}

#[test]
fn what_was_read_is_forgotten_when_a_part_of_it_is_written() {
    let place = Place::new();
    let area = place.unserved_area();
    area.want(ALL);
    place.serve(&area);
    area.forget(&(STAGING_BYTES as u64 - 1..STAGING_BYTES as u64));
    assert_eq!(place.kinds(&area)[..2], [FREE, READY]);
    area.want(0..1);
    area.forget(&ALL);
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
}

/// The write comes while the old bytes are being read, or handed out.
#[test]
fn what_is_being_read_or_handed_out_while_it_is_written_is_not_kept() {
    let place = Place::new();
    let area = place.unserved_area();
    area.want(0..LENGTH as u64);
    let slot = area.slots().next().unwrap();
    let late = |address, offset, length| {
        place.get(&area, address, offset, length)?;
        area.forget(&(0..1));
        Ok(())
    };
    assert!(slot.fetch(area.claim().unwrap(), &late));
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
    area.want(0..LENGTH as u64);
    let mut take = |_, _| area.forget(&(0..1));
    area.hand_out(0, 1, &|a, o, l| place.get(&area, a, o, l), &mut take);
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
}

#[test]
fn slot_of_a_reader_or_server_that_died_is_used_again() {
    let place = Place::new();
    let area = place.unserved_area();
    area.want(0..LENGTH as u64);
    in_a_child(|| {
        let end = |_: *mut u8, _, _| -> Result<()> {
            // SAFETY: ends this child.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            Ok(())
        };
        area.slots().next().unwrap().fetch(area.claim().unwrap(), &end);
    });
    assert_eq!(place.kinds(&area)[0], READING);
    assert_eq!(place.take(&area, 0, 1), (0xee, 0), "the reader goes to the file");
    area.forget(&ALL);
    let all = (0..SLOTS as u64)
        .all(|index| place.stage(&area, index * (LENGTH as u64 + 1), 1, LENGTH) == Ok(true));
    assert!(all);
}

#[test]
fn writers_come_before_what_was_read_ahead_and_leave_readers_no_more_than_half() {
    let place = Place::new();
    let area = place.unserved_area();
    area.want(0..(SLOTS * STAGING_BYTES) as u64);
    place.serve(&area);
    let count = |kind| place.kinds(&area).into_iter().filter(|one| *one == kind).count();
    assert_eq!(count(READY), READ_SLOTS);
    for index in 0..SLOTS as u64 {
        let offset = (20 << 20) + index * (LENGTH as u64 + 1);
        assert_eq!(place.stage(&area, offset, 1, LENGTH), Ok(true));
    }
    assert_eq!(count(READY), 0);
}

#[test]
fn what_nobody_fetches_gives_way_to_other_readers() {
    let place = Place::new();
    let area = place.unserved_area();
    area.want(0..(READ_SLOTS * STAGING_BYTES) as u64);
    place.serve(&area);
    assert!((1..100).contains(&place.refusals(&area)));
}

/// Mechanism: a slot whose reader or server had died counted as used, and only a writer that found
/// no other one took it.
///
/// Consequence: after the deaths of eight readers nothing was read ahead any more in a job that
/// only reads.
///
/// Fix: a reader that is refused takes such a slot.
#[test]
fn slots_of_readers_that_died_do_not_keep_others_from_reading_ahead() {
    let place = Place::new();
    let area = place.unserved_area();
    area.want(0..(READ_SLOTS * STAGING_BYTES) as u64);
    place.serve(&area);
    in_a_child(|| {
        let claim = area.claim().unwrap();
        assert!(area.slots().take(READ_SLOTS).all(|slot| slot.change(READY, claim | TAKEN)));
    });
    assert_eq!(place.kinds(&area)[..READ_SLOTS], [TAKEN; READ_SLOTS]);
    assert!((1..100).contains(&place.refusals(&area)));
}

#[test]
fn slot_that_claims_more_than_it_holds_is_not_handed_out() {
    let place = Place::new();
    let area = place.unserved_area();
    area.want(0..LENGTH as u64);
    place.serve(&area);
    let slot = area.slots().next().unwrap();
    slot.word(super::super::slot::S_LENGTH).store(STAGING_BYTES as u64 + 1, Ordering::Relaxed);
    assert_eq!(place.take(&area, 0, 1), (0xee, 0));
}

/// Mechanism: a slot without an owner whose state named one was checked again and again.
///
/// Consequence: a program hung in a read of a damaged store.
///
/// Fix: the reader goes to the file.
#[test]
fn slot_in_a_state_that_does_not_exist_does_not_hold_a_reader_up() {
    for kind in [WANTED, READY] {
        let place = Place::new();
        let area = place.unserved_area();
        area.want(0..LENGTH as u64);
        area.slots().next().unwrap().set(1 << 40 | kind);
        assert_eq!(place.take(&area, 0, 1), (0xee, 0));
    }
}

/// One process writes ever higher numbers, others read with read-ahead. No reader sees a number
/// that is lower than the last one written when it asked.
#[test]
fn readers_never_see_what_was_written_over_before_they_asked() {
    const ROUNDS: u64 = 2000;
    const PAGES: u64 = 4;
    let place = Place::new();
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let ready = Barrier::new(5);
    let number_at = |address: *const u8| {
        // SAFETY: the area hands out whole pages at page addresses.
        unsafe { address.cast::<u64>().read() }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                ready.wait();
                let area = place.area();
                let get = |a, o, l| place.get(&area, a, o, l);
                area.serve(&|a, o, l| place.put(a, o, l), &get, &stop);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let area = place.unserved_area();
                ready.wait();
                while !stop.load(Ordering::Relaxed) {
                    area.want(0..PAGES * PAGE_BYTES as u64);
                    for at in (0..PAGES).map(|page| page * PAGE_BYTES as u64) {
                        let before = written.load(Ordering::SeqCst);
                        let mut check = |address, _| {
                            let number = number_at(address);
                            assert!(number >= before, "{number} after {before}");
                        };
                        let get = |a, o, l| place.get(&area, a, o, l);
                        area.hand_out(at, PAGE_BYTES, &get, &mut check);
                    }
                }
            });
        }
        let area = place.unserved_area();
        ready.wait();
        for number in 1..=ROUNDS {
            let mut bytes = [number; PAGES as usize * PAGE_BYTES / 8];
            let length = size_of_val(&bytes);
            let put = |a, o, l| place.put(a, o, l);
            area.settle(0..length as u64, &put).unwrap();
            // SAFETY: the area gives room for `length` bytes.
            let mut fill = |to: *mut u8| unsafe { to.copy_from(bytes.as_ptr().cast(), length) };
            if area.stage(0, length, &put, &mut fill) != Ok(true) {
                place.put(bytes.as_mut_ptr().cast(), 0, length).unwrap();
            }
            area.forget(&(0..length as u64));
            written.store(number, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
