//! Waiting line for a place at a target, first come, first served. It is a few words in memory that
//! the processes of a store share.
//!
//! Must stay true: a dead waiter never blocks the line. The first waiter reports again and again.
//! One that has been silent for `SILENCE_MAX` is passed over; it loses only its place.
//!
//! Does not know what the place is for.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use cairn_platform::mapping::{Mapping, PAGE_BYTES};

/// Time for which the first waiter may be silent before it is passed over.
const SILENCE_MAX: Duration = Duration::from_secs(1);

// Indices of words, relative to the line's first word.
/// Number of waiters that have joined.
const COME: usize = 0;
/// Number of waiters that have left.
const GONE: usize = 1;
/// Time at which the first waiter last reported, milliseconds.
const SEEN: usize = 2;
/// Number of words.
pub const WORDS: usize = 3;

/// A waiting line, stored in the first page of a mapping.
#[derive(Debug)]
pub struct Line {
    mapping: Mapping,
    first_word: usize,
}

/// A place in a line. Dropping it gives it up.
#[derive(Debug)]
pub struct Place<'a> {
    line: &'a Line,
    number: u64,
}

impl Line {
    /// Opens the line at `first_word` of the first page. The page must be present. The line keeps
    /// the waiters that its words record.
    pub fn new(mapping: Mapping, first_word: usize) -> Line {
        assert!((first_word + WORDS) * size_of::<u64>() <= PAGE_BYTES.min(mapping.bytes()));
        Line { mapping, first_word }
    }

    /// Descriptor that this object keeps open.
    pub fn descriptor(&self) -> i32 {
        self.mapping.file().raw()
    }

    /// Whether no waiter is in the line. A dead waiter that was not passed over yet still counts.
    pub fn is_empty(&self) -> bool {
        self.load(COME) == self.load(GONE)
    }

    /// Takes the last place in the line.
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
        // SAFETY: the words lie in the first page, which `new` has checked. The page is mapped as
        // long as `self` lives, and every access is atomic.
        unsafe { &*first.add(self.first_word + index) }
    }
}

impl Place<'_> {
    /// Whether this place is the first. Call it more often than every `SILENCE_MAX`: the call is
    /// also the report. Passes over a first waiter that has been silent for too long.
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
    /// Advances the line past the waiter `number`, if that one is still first.
    fn pass(&self, number: u64, now: u64) {
        let next = self.word(GONE);
        if next.compare_exchange(number, number + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.word(SEEN).store(now, Ordering::SeqCst);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // A waiter that leaves from the middle is passed over when its turn comes.
        self.line.pass(self.number, self.line.load(SEEN));
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_platform::descriptor::Descriptor;
    use core::sync::atomic::AtomicU32;
    use std::fs::File;
    use std::os::fd::IntoRawFd;

    /// Two views of one line, as two processes see it.
    fn lines() -> [Line; 2] {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("cairn-line-{}-{count}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(4096).unwrap();
        let file = Descriptor::from_raw(file.into_raw_fd());
        [file.duplicate().unwrap(), file]
            .map(|file| Line::new(Mapping::new(file, 4096).unwrap(), 8))
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn those_who_wait_are_first_in_the_order_in_which_they_came() {
        let [ours, theirs] = lines();
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
        let [line, _] = lines();
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
