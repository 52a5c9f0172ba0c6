//! Writers that go on, writers and servers that die, overlapping ranges, and damaged areas.

use core::cell::Cell;
use core::sync::atomic::AtomicBool;
use std::sync::Barrier;

use super::super::slot::{FILLING, S_OFFSET};
use super::super::tests::{LENGTH, Place, in_a_child, unwanted};
use super::super::{SLOTS, W_MAGIC, W_PID_NAMESPACE};
use super::*;
use crate::media::staging::STAGING_BYTES;

#[test]
fn what_nobody_would_write_is_not_taken() {
    let place = Place::new();
    let area = place.area();
    assert_eq!(place.stage(&area, 0, 1, LENGTH), Ok(false));
    area.word(W_SERVED).store(1, Ordering::Relaxed);
    for index in 0..SLOTS as u64 {
        assert_eq!(place.stage(&area, index << 20, 1, LENGTH), Ok(true));
    }
    assert_eq!(place.stage(&area, 17 << 20, 1, LENGTH), Ok(false), "all slots are in use");
}

#[test]
fn settling_brings_a_range_to_the_file_and_leaves_the_rest() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 10, 1, LENGTH), Ok(true));
    assert_eq!(place.stage(&area, 1 << 20, 2, LENGTH), Ok(true));
    place.settle(&area, 10 + LENGTH as u64);
    assert_eq!((place.byte(10), place.byte(1 << 20)), (0, 0), "they only touch");
    place.settle(&area, 10 + LENGTH as u64 - 1);
    assert_eq!((place.byte(9), place.byte(10), place.byte(9 + LENGTH as u64)), (0, 1, 1));
    assert_eq!((place.byte(10 + LENGTH as u64), place.byte(1 << 20)), (0, 0));
    area.settle_all(&|a, o, l| place.put(a, o, l)).unwrap();
    assert_eq!(place.byte(1 << 20), 2);
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
}

#[test]
fn bytes_that_follow_join_what_is_staged_until_the_slot_is_full() {
    let place = Place::new();
    let area = place.unserved_area();
    let part = STAGING_BYTES / 4;
    for (index, byte) in [1, 2, 3, 4].into_iter().enumerate() {
        assert_eq!(place.stage(&area, 100 + (index * part) as u64, byte, part), Ok(true));
    }
    assert_eq!(place.kinds(&area)[..3], [STAGED, STAGED, FREE], "the fourth had no room");
    let calls = Cell::new(0);
    let counted = |address, offset, length| {
        calls.set(calls.get() + 1);
        place.put(address, offset, length)
    };
    area.settle_all(&counted).unwrap();
    assert_eq!(calls.get(), 2);
    let byte_of = |part: usize| place.byte((100 + part * STAGING_BYTES / 4) as u64);
    assert_eq!([0, 1, 2, 3].map(byte_of), [1, 2, 3, 4]);
    assert_eq!((place.byte(99), place.byte(100 + STAGING_BYTES as u64)), (0, 0));
}

#[test]
fn writer_that_dies_while_it_adds_to_a_slot_leaves_what_was_there() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 6, LENGTH), Ok(true));
    in_a_child(|| {
        area.grow(area.claim().unwrap(), LENGTH as u64, LENGTH).unwrap();
    });
    assert_eq!(place.kinds(&area)[0], GROWING);
    place.settle(&area, 0);
    assert_eq!((place.byte(LENGTH as u64 - 1), place.byte(LENGTH as u64)), (6, 0));
    assert_eq!(place.kinds(&area), [FREE; SLOTS]);
}

#[test]
fn writer_waits_for_a_slot_while_others_write() {
    let place = Place::new();
    let area = place.unserved_area();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serve = || place.area().serve(&|a, o, l| place.put(a, o, l), &unwanted, &stop);
        let server = scope.spawn(serve);
        let all = (0..4 * SLOTS as u64).all(|index| {
            // With gaps, so that each needs a slot.
            place.stage(&area, index * (LENGTH as u64 + 1), 1, LENGTH) == Ok(true)
        });
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap();
        assert!(all);
    });
}

#[test]
fn bytes_survive_a_writer_that_is_killed() {
    let place = Place::new();
    let area = place.unserved_area();
    in_a_child(|| assert_eq!(place.stage(&area, 5000, 7, LENGTH), Ok(true)));
    assert_eq!(place.byte(5000), 0);
    place.settle(&area, 5000);
    assert_eq!(place.byte(5000), 7);
}

#[test]
fn slot_whose_writer_died_while_it_filled_it_is_used_again_and_never_written() {
    let place = Place::new();
    let area = place.unserved_area();
    in_a_child(|| while area.take(area.claim().unwrap()).is_some() {});
    assert_eq!(place.kinds(&area), [FILLING; SLOTS]);
    area.settle_all(&|_, _, _| panic!("nothing was staged")).unwrap();
    assert_eq!(place.stage(&area, 0, 3, LENGTH), Ok(true));
    place.settle(&area, 0);
    assert_eq!(place.byte(0), 3);
}

#[test]
fn slot_whose_server_died_is_written_by_who_needs_it() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 4, LENGTH), Ok(true));
    in_a_child(|| {
        let end = |_: *mut u8, _, _| -> Result<()> {
            // SAFETY: ends this child.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            Ok(())
        };
        let _ = area.settle(0..1, &end);
    });
    assert_eq!(place.kinds(&area)[0], WRITING);
    place.settle(&area, 0);
    assert_eq!(place.byte(0), 4);
}

#[test]
fn write_to_a_file_that_was_mapped_is_there_when_it_returns() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    area.settle_for_mapping(&|a, o, l| place.put(a, o, l)).unwrap();
    assert_eq!(place.byte(0), 5);
    assert_eq!(place.stage(&place.area(), 0, 6, LENGTH), Ok(false), "the caller writes it");
}

#[test]
fn what_is_mapped_no_more_is_written_behind_again() {
    let place = Place::new();
    let area = place.unserved_area();
    let map = || area.settle_for_mapping(&|_, _, _| Ok(())).unwrap();
    map();
    let seen = area.mappings();
    map();
    area.nothing_is_mapped(seen);
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(false), "it was mapped once more");
    area.nothing_is_mapped(area.mappings());
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    area.nothing_is_mapped(seen);
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true), "who is late changes nothing");
}

#[test]
fn failure_is_told_to_whoever_flushes_or_writes_afterwards() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    assert_eq!(area.settle_all(&|_, _, _| Err(Error::NoSpace)), Err(Error::Io));
    assert_eq!(place.area().settle_all(&|_, _, _| Ok(())), Err(Error::Io));
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Err(Error::Io));
}

#[test]
fn who_may_not_write_that_far_leaves_it_to_others() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    let slot = area.slots().next().unwrap();
    let claim = area.claim().unwrap();
    for error in [Error::FileTooLarge, Error::Fault, Error::Busy] {
        assert_eq!(slot.write(STAGED, claim, &|_, _, _| Err(error)), Err(error));
    }
    place.settle(&area, 0);
    assert_eq!(place.byte(0), 5);
}

/// Mechanism: a server that could not write a slot tried again at once, and never checked whether
/// it had to end.
///
/// Consequence: an agent with a limit on file sizes kept its processors busy and could not end.
///
/// Fix: such a slot is skipped.
#[test]
fn server_that_may_not_write_that_far_ends_when_it_is_told() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    area.serve(&|_, _, _| Err(Error::FileTooLarge), &unwanted, &AtomicBool::new(true));
    place.settle(&area, 0);
    assert_eq!(place.byte(0), 5);
}

/// Mechanism: a server that had to end went on to take what programs staged.
///
/// Consequence: an agent could not end as long as a program wrote.
///
/// Fix: a server that has to end takes no more, and programs write for themselves.
#[test]
fn server_that_is_to_end_takes_no_more() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    let more = Cell::new(0);
    let goes_on = |address, offset, length| {
        let next = more.get() + 1;
        if next < 100 && place.stage(&place.area(), next << 20, 6, LENGTH)? {
            more.set(next);
        }
        place.put(address, offset, length)
    };
    area.serve(&goes_on, &unwanted, &AtomicBool::new(true));
    assert_eq!((more.get(), place.byte(0)), (0, 5));
}

/// Mechanism: a thread needs a descriptor to find out its identity, and a failure to do so was
/// remembered.
///
/// Consequence: a thread whose first call came while its process had no free descriptor never wrote
/// behind again, and after the death of the agent could not read what was staged.
///
/// Fix: only a success is remembered.
#[test]
fn thread_that_had_no_descriptor_left_claims_slots_when_it_has() {
    let place = Place::new();
    let area = place.unserved_area();
    let status = in_a_child(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` receives, and then describes, a limit of this child.
        let claims = unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            let none = libc::rlimit { rlim_cur: 0, ..limit };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none);
            let claims = area.claim();
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            [claims, area.claim()].map(|claim| claim.is_some())
        };
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(claims != [false, true])) };
    });
    assert_eq!(libc::WEXITSTATUS(status), 0);
}

/// Mechanism: a process that could neither write a slot itself nor tell whether others are alive
/// waited for others, who may be gone.
///
/// Consequence: after the death of the agent, a program with a limit on file sizes, or in another
/// pid namespace, hung in a read.
///
/// Fix: it gives up when nobody writes anything for long.
#[test]
fn who_cannot_write_a_slot_that_nobody_else_writes_gives_up() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    let refused = |_: *mut u8, _, _| Err(Error::FileTooLarge);
    assert_eq!(area.settle(0..1, &refused), Err(Error::Io));
    area.word(W_PID_NAMESPACE).fetch_add(1, Ordering::Relaxed);
    assert_eq!(area.settle_all(&|a, o, l| place.put(a, o, l)), Err(Error::Io));
    area.word(W_PID_NAMESPACE).fetch_sub(1, Ordering::Relaxed);
    place.settle(&area, 0);
    assert_eq!(place.byte(0), 5);
}

/// Mechanism: a slot was claimed for a process, which outlives a thread that is ended by an exec of
/// another thread.
///
/// Consequence: a process that needed what that thread was writing hung until the program after the
/// exec ended.
///
/// Fix: slots belong to threads.
#[test]
fn slot_of_a_thread_that_ended_before_its_process_is_written_by_who_needs_it() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 6, LENGTH), Ok(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let claim = area.claim().unwrap();
            assert!(area.slots().next().unwrap().change(STAGED, claim | WRITING));
        });
    });
    place.settle(&area, 0);
    assert_eq!(place.byte(0), 6);
}

/// As above, for the thread that lives on as the first one of the new program.
#[test]
fn slots_from_before_an_exec_are_given_up_when_the_area_is_opened() {
    let place = Place::new();
    let area = place.unserved_area();
    for offset in [0, 1 << 20] {
        assert_eq!(place.stage(&area, offset, 7, LENGTH), Ok(true));
    }
    let claim = area.claim().unwrap();
    let slots: Vec<_> = area.slots().collect();
    assert!(slots[0].change(STAGED, claim | WRITING));
    assert!(slots[1].change(STAGED, claim | FILLING));
    assert_eq!(place.kinds(&place.area())[..2], [STAGED, FREE]);
}

/// Mechanism: a slot that could not be written became free again.
///
/// Consequence: a read of its range returned the old bytes of the file as the ones written last.
///
/// Fix: it stays, and whoever needs its range gets an error.
#[test]
fn range_whose_bytes_are_lost_is_an_error_and_the_rest_is_not() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    assert!(!area.has_lost_writes());
    assert_eq!(area.settle(0..1, &|_, _, _| Err(Error::Io)), Err(Error::Io));
    assert!(place.area().has_lost_writes());
    assert_eq!(place.area().settle(9..10, &|_, _, _| Err(Error::NoSpace)), Err(Error::Io));
    place.settle(&area, LENGTH as u64);
}

/// Mechanism: a slot that could not be written kept that state although its bytes were still there.
///
/// Consequence: what was written just before a device went away remained an error even after the
/// device came back.
///
/// Fix: whoever needs it tries again.
#[test]
fn bytes_that_could_not_be_written_are_there_when_the_device_is_back() {
    let place = Place::new();
    let area = place.unserved_area();
    assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
    assert_eq!(area.settle(0..1, &|_, _, _| Err(Error::Io)), Err(Error::Io));
    place.settle(&area, 0);
    assert_eq!(place.byte(0), 5);
    assert!(area.has_lost_writes(), "who flushes is told");
}

#[test]
fn slot_that_claims_more_than_it_holds_is_an_error() {
    for (offset, length) in
        [(0, STAGING_BYTES as u64 + 1), (1, STAGING_BYTES as u64), (0, u64::MAX)]
    {
        let place = Place::new();
        let area = place.unserved_area();
        assert_eq!(place.stage(&area, 0, 5, LENGTH), Ok(true));
        let slot = area.slots().next().unwrap();
        slot.word(S_OFFSET).store(offset, Ordering::Relaxed);
        slot.word(S_LENGTH).store(length, Ordering::Relaxed);
        let settled = area.settle_all(&|_, _, _| panic!("{length} at {offset}"));
        assert_eq!(settled, Err(Error::Io));
    }
}

#[test]
fn area_that_is_damaged_is_refused() {
    let place = Place::new();
    place.area().word(W_MAGIC).store(1, Ordering::Relaxed);
    let error = Transit::open(&place.scratch.0, c"transit").unwrap_err();
    assert_eq!(error.errno, libc::EIO);
    let path = place.scratch.0.path().join("transit");
    std::fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
    let error = Transit::open(&place.scratch.0, c"transit").unwrap_err();
    assert_eq!(error.errno, libc::EIO);
}

/// Writers overwrite their own pages in random order while servers come and go: the last write
/// counts.
#[test]
fn last_write_of_many_counts_and_the_servers_leave_nothing() {
    const WRITERS: u64 = 3;
    const ROUNDS: u64 = 300;
    let place = Place::new();
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(WRITERS as usize + 2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                ready.wait();
                place.area().serve(&|a, o, l| place.put(a, o, l), &unwanted, &stop);
            });
        }
        let writers = (0..WRITERS).map(|writer| {
            let (place, ready) = (&place, &ready);
            scope.spawn(move || {
                let area = place.unserved_area();
                let mut last = [0; 8];
                ready.wait();
                for round in 0..ROUNDS {
                    let page = (round * 5 + round / 7) % 8;
                    let offset = (writer << 20) + page * LENGTH as u64;
                    let byte = (round % 250) as u8 + 1;
                    place.settle(&area, offset);
                    assert_eq!(place.byte(offset), last[page as usize]);
                    last[page as usize] = byte;
                    if place.stage(&area, offset, byte, LENGTH) != Ok(true) {
                        place.put([byte; LENGTH].as_mut_ptr(), offset, LENGTH).unwrap();
                    }
                }
                last
            })
        });
        let writers: Vec<_> = writers.collect();
        let last: Vec<[u8; 8]> = writers.into_iter().map(|one| one.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        place.area().settle_all(&|a, o, l| place.put(a, o, l)).unwrap();
        for (writer, last) in last.into_iter().enumerate() {
            for (page, byte) in last.into_iter().enumerate() {
                assert_eq!(place.byte(((writer as u64) << 20) + (page * LENGTH) as u64), byte);
            }
        }
    });
    assert_eq!(place.kinds(&place.area()), [FREE; SLOTS]);
}
