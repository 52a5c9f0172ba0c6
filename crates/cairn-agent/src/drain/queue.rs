//! Queue of files to copy: in the order of the plan or, once time is short, newest first. A large
//! file is handed out alone, small ones in batches.

use crate::drain::meter::Meter;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A file longer than this is copied alone.
const SMALL_BYTES: u64 = 256 << 10;
/// Limits of a batch of small files, in files and bytes. A batch also holds no more bytes than the
/// drain's rate admits in a second: its files get their names only when all are copied.
const TOGETHER_FILES: usize = 64;
const TOGETHER_BYTES: u64 = 4 << 20;

/// An element of the queue.
pub trait Item {
    /// Time of the last change, nanoseconds since the epoch.
    fn modified_ns(&self) -> i64;
    /// Number of bytes to copy.
    fn bytes(&self) -> u64;
}

/// Items in the order of the plan, each handed out once.
pub struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
}

struct Waiting<T> {
    items: VecDeque<T>,
    is_newest_first: bool,
}

impl<T: Item> Queue<T> {
    /// Returns a queue of all `items`.
    pub fn new(items: impl IntoIterator<Item = T>) -> Queue<T> {
        let items = items.into_iter().collect();
        Queue { waiting: Mutex::new(Waiting { items, is_newest_first: false }) }
    }

    /// Takes the next item or batch; empty if nothing is left.
    pub fn take(&self, meter: &Meter) -> Vec<T> {
        // A thread that panicked had taken its item or not: both states are valid.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if meter.pace.is_hurrying() && !waiting.is_newest_first {
            let newest_first = |item: &T| std::cmp::Reverse(item.modified_ns());
            waiting.items.make_contiguous().sort_by_key(newest_first);
            waiting.is_newest_first = true;
        }
        let rate_bytes = meter.pace.policy().rate_bytes;
        let bytes_max = rate_bytes.map_or(TOGETHER_BYTES, |rate| rate.min(TOGETHER_BYTES));
        let mut taken = Vec::new();
        let mut bytes = 0;
        while let Some(item) = waiting.items.front() {
            let is_small = item.bytes() <= SMALL_BYTES;
            bytes += item.bytes();
            let fits = is_small && taken.len() < TOGETHER_FILES && bytes <= bytes_max;
            if !taken.is_empty() && !fits {
                break;
            }
            taken.extend(waiting.items.pop_front());
            if !is_small {
                break;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::policy::DrainPolicy;

    /// An item whose number is both its time of change and its length.
    impl Item for u64 {
        fn modified_ns(&self) -> i64 {
            *self as i64
        }

        fn bytes(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn order_is_that_of_the_plan_until_time_is_short() {
        let items = [3, 1, 4, 1, 5].map(|number| SMALL_BYTES + number);
        let (meter, queue) = (Meter::default(), Queue::new(items));
        let take = || -> Vec<u64> {
            queue.take(&meter).into_iter().map(|item| item - SMALL_BYTES).collect()
        };
        assert_eq!([(); 2].map(|()| take()), [vec![3], vec![1]]);
        meter.pace.hurry();
        assert_eq!([(); 4].map(|()| take()), [vec![5], vec![4], vec![1], vec![]]);
    }

    #[test]
    fn small_ones_go_together_up_to_a_number_and_a_length() {
        let meter = Meter::default();
        let counts = |items: Vec<u64>| {
            let queue = Queue::new(items);
            let mut counts = Vec::new();
            while let count @ 1.. = queue.take(&meter).len() {
                counts.push(count);
            }
            counts
        };
        assert_eq!(counts(vec![1; TOGETHER_FILES + 2]), [TOGETHER_FILES, 2]);
        let fitting = (TOGETHER_BYTES / SMALL_BYTES) as usize;
        assert_eq!(counts(vec![SMALL_BYTES; fitting + 1]), [fitting, 1]);
        assert_eq!(counts(vec![1, 1, SMALL_BYTES + 1, SMALL_BYTES + 1, 1]), [2, 1, 1, 1]);
        let slow = DrainPolicy { rate_bytes: Some(100), ..DrainPolicy::default() };
        meter.pace.set(&slow);
        assert_eq!(counts(vec![40, 40, 40, 1000, 1]), [2, 1, 1, 1]);
    }
}
