//! Those who wait for a place at a target, in the order in which they came: a few words in memory
//! that the processes of a store share.
//!
//! Must stay true: nobody waits for who is gone. Whoever is first says so again and again; who has
//! not for a while is passed over, which costs it nothing but its place.
//! Does not know what there is a place for.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::mapping::{Mapping, PAGE_BYTES};

/// How long whoever is first may say nothing before the next one is.
const SILENCE_MAX: Duration = Duration::from_secs(1);

// Words, from the line's first one on.
/// How many have come.
const COME: usize = 0;
/// How many have gone.
const GONE: usize = 1;
/// When the first one last said something, milliseconds.
const SEEN: usize = 2;
/// How many words there are.
pub const WORDS: usize = 3;

/// A line, which is somewhere in the first page of a mapping.
#[derive(Debug)]
pub struct Line {
    mapping: Mapping,
    first_word: usize,
}

/// A place in it, given up with this.
#[derive(Debug)]
pub struct Place<'a> {
    line: &'a Line,
    number: u64,
}

impl Line {
    /// The line in those words of the first page, which is present. It is as long as whoever wrote
    /// there last has left it.
    pub fn new(mapping: Mapping, first_word: usize) -> Line {
        assert!((first_word + WORDS) * size_of::<u64>() <= PAGE_BYTES.min(mapping.bytes()));
        Line { mapping, first_word }
    }

    /// The descriptor this object keeps open.
    pub fn descriptor(&self) -> i32 {
        self.mapping.file().raw()
    }

    /// Whether nobody waits, as far as they are known to be alive.
    pub fn is_empty(&self) -> bool {
        self.load(COME) == self.load(GONE)
    }

    /// Takes the place behind all others.
    pub fn join(&self, now: Duration) -> Place<'_> {
        let number = self.word(COME).fetch_add(1, Ordering::SeqCst);
        if number == self.load(GONE) {
            self.word(SEEN).store(milliseconds(now), Ordering::SeqCst);
        }
        Place { line: self, number }
    }

    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::SeqCst)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let first = self.mapping.address().as_ptr().cast::<AtomicU64>();
        // SAFETY: the words lie in the first page, as `new` has made sure; it is mapped as long as
        // `self` lives, and all access is atomic.
        unsafe { &*first.add(self.first_word + index) }
    }
}

impl Place<'_> {
    /// Whether it is the first one now; to be asked more often than `SILENCE_MAX`. Passes over a
    /// first one that says nothing.
    pub fn is_first(&self, now: Duration) -> bool {
        let (line, now) = (self.line, milliseconds(now));
        let gone = line.load(GONE);
        if gone >= self.number {
            line.word(SEEN).store(now, Ordering::SeqCst);
            return true;
        }
        let seen = line.load(SEEN);
        if now.saturating_sub(seen) > milliseconds(SILENCE_MAX) {
            line.pass(gone, now);
        }
        false
    }
}

impl Line {
    /// The one of that number is not first any more.
    fn pass(&self, number: u64, now: u64) {
        let next = self.word(GONE);
        if next.compare_exchange(number, number + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.word(SEEN).store(now, Ordering::SeqCst);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // One that leaves from the middle is passed over when it would be first.
        self.line.pass(self.number, self.line.load(SEEN));
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;
    use crate::segment;

    fn line(scratch: &Scratch) -> Line {
        let (file, bytes) = match segment::open_file(&scratch.0, c"line") {
            Ok(found) => found,
            Err(_) => (segment::create_file(&scratch.0, c"line", 4096).unwrap(), 4096),
        };
        Line::new(Mapping::new(file, bytes as usize).unwrap(), 8)
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn those_who_wait_are_first_in_the_order_in_which_they_came() {
        let scratch = Scratch::new();
        let (ours, theirs) = (line(&scratch), line(&scratch));
        assert!(ours.is_empty());
        let now = seconds(5);
        let [first, second, third] = [ours.join(now), theirs.join(now), ours.join(now)];
        assert!(!theirs.is_empty());
        assert!(first.is_first(now) && !second.is_first(now) && !third.is_first(now));
        drop(first);
        assert!(!third.is_first(now) && second.is_first(now));
        drop(second);
        assert!(third.is_first(now));
        drop(third);
        assert!(ours.is_empty());
    }

    #[test]
    fn who_died_or_left_from_the_middle_is_passed_over() {
        let scratch = Scratch::new();
        let line = line(&scratch);
        let dead = line.join(seconds(10));
        let [leaver, waiter] = [line.join(seconds(10)), line.join(seconds(10))];
        assert!(!waiter.is_first(seconds(11)));
        drop(leaver);
        assert!(
            !waiter.is_first(seconds(12)),
            "the dead one was passed over, the next is looked at"
        );
        assert!(!waiter.is_first(seconds(13)), "who left would still be first");
        assert!(!waiter.is_first(seconds(14)));
        assert!(waiter.is_first(seconds(15)));
        core::mem::forget(dead);
    }
}
