//! The files that wait to be copied: in the order of the plan, or, once time is short, the newest first.

use crate::meter::Meter;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Items in the order of the plan, each handed out once.
pub struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
}

struct Waiting<T> {
    items: VecDeque<T>,
    is_newest_first: bool,
}

impl<T> Queue<T> {
    /// All of `items`.
    pub fn new(items: impl IntoIterator<Item = T>) -> Queue<T> {
        let items = items.into_iter().collect();
        Queue { waiting: Mutex::new(Waiting { items, is_newest_first: false }) }
    }

    /// The next one; `modified` says how new one is.
    pub fn take(&self, meter: &Meter, modified: impl Fn(&T) -> i64) -> Option<T> {
        // Whoever panicked had the item already or not yet.
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if meter.is_hurrying() && !waiting.is_newest_first {
            let newest_first = |item: &T| std::cmp::Reverse(modified(item));
            waiting.items.make_contiguous().sort_by_key(newest_first);
            waiting.is_newest_first = true;
        }
        waiting.items.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_that_of_the_plan_until_time_is_short() {
        let (meter, queue) = (Meter::default(), Queue::new([3, 1, 4, 1, 5]));
        let take = || queue.take(&meter, |&item| item);
        assert_eq!((take(), take()), (Some(3), Some(1)));
        meter.hurry();
        assert_eq!([take(), take(), take(), take()], [Some(5), Some(4), Some(1), None]);
    }
}
