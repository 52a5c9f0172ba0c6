//! The table of Cairn's descriptors, shared by the threads of one process. The simulated kernel is
//! a list of numbers.
//!
//! Does not explore interleavings inside a call: each call on the table is one step.

use crate::stage::moment;
use crate::{explore, find};
use cairn_posix::HandleId;
use cairn_posix::task::table;
use std::sync::{Arc, Mutex, PoisonError};

/// First number that the simulated kernel returns; those of the test itself are lower.
const FIRST: i32 = 500;
/// A file that several threads have open.
const SHARED: HandleId = HandleId(9);

/// Kernel that returns the lowest free number.
#[derive(Default)]
struct Kernel(Mutex<Vec<bool>>);

impl Kernel {
    fn open(&self) -> i32 {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = used.iter().position(|used| !used).unwrap_or(used.len());
        match used.get_mut(free) {
            Some(place) => *place = true,
            None => used.push(true),
        }
        FIRST + free as i32
    }

    fn close(&self, number: i32) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used[(number - FIRST) as usize] = false;
    }
}

/// Returns the handle that was left, and whether this was its last number.
fn told(left: Option<table::Left>) -> Option<(HandleId, bool)> {
    left.map(|left| (left.handle, left.last))
}

type Close = fn(&Kernel, i32) -> Option<table::Left>;

fn open(kernel: &Kernel, handle: HandleId) -> i32 {
    let number = kernel.open();
    moment();
    assert_eq!(table::enter(number, handle), Ok(None), "the number was free");
    moment();
    number
}

fn close(kernel: &Kernel, number: i32) -> Option<table::Left> {
    let left = table::leave(number);
    moment();
    kernel.close(number);
    moment();
    table::closed(number);
    left
}

/// Frees the number before the table entry is removed.
fn close_too_early(kernel: &Kernel, number: i32) -> Option<table::Left> {
    kernel.close(number);
    moment();
    let left = table::leave(number);
    moment();
    table::closed(number);
    left
}

/// Opens a private file and the shared one, and closes both, twice.
fn use_descriptors(kernel: &Kernel, own: HandleId, close: Close) {
    for _ in 0..2 {
        let (mine, shared) = (open(kernel, own), open(kernel, SHARED));
        assert_eq!((table::lookup(mine), table::lookup(shared)), (Some(own), Some(SHARED)));
        let left = close(kernel, mine);
        assert_eq!(told(left), Some((own, true)));
        moment();
        assert_eq!(table::lookup(shared), Some(SHARED), "another number was closed");
        let left = close(kernel, shared);
        assert_eq!(told(left), Some((SHARED, false)));
    }
}

fn descriptors(close: Close) {
    let kernel = Arc::new(Kernel::default());
    // The last schedule may have ended in the middle.
    for number in FIRST..FIRST + 20 {
        drop(table::forget(number));
    }
    let kept = open(&kernel, SHARED);
    let threads: Vec<_> = (10..12)
        .map(|own| {
            let kernel = kernel.clone();
            shuttle::thread::spawn(move || use_descriptors(&kernel, HandleId(own), close))
        })
        .collect();
    for thread in threads {
        thread.join().expect("it ended");
    }
    let left = close(&kernel, kept);
    assert_eq!(told(left), Some((SHARED, true)));
    assert!(!table::holds(SHARED) && table::range(FIRST, FIRST + 20).next().is_none());
}

// This is one test, because the table is one per process.
#[test]
fn numbers_are_used_again_then_each_leads_to_its_file_and_closing_too_early_is_found() {
    explore(|| descriptors(close));
    find(|| descriptors(close_too_early));
}
