//! A target that does not answer: since when, and which thread retries it. Calls that must complete
//! wait for the target. Calls that can be done later, such as those of the drain, fail at once;
//! every `ASK_EVERY` one thread tries once.
//!
//! Does not connect, and does not decide which calls can wait.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;

/// Time between the last failed attempt and the next one.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// State of the target. Times are milliseconds of a clock that is never 0.
#[derive(Default)]
pub(super) struct Availability {
    /// Start of the oldest call that has no answer; 0: every call was answered.
    since: AtomicU64,
    /// Time from which a deferrable call may try again; 0: no call has waited in vain.
    ask_at: AtomicU64,
    /// Thread that tries; 0: none.
    asker: AtomicU64,
    /// Whether the last answer said that the target does not have what it is asked for.
    is_missing: AtomicBool,
}

/// Permission for this thread to call the target.
pub(super) struct Ask<'a>(Option<&'a Availability>);

impl Availability {
    /// Records that a call begins.
    pub fn begins(&self, now: u64) {
        // If an earlier call is still without an answer, its time stays.
        let _ = self.since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Records an answer. `is_missing`: the target does not have what it is asked for.
    pub fn answers(&self, is_missing: bool) {
        self.is_missing.store(is_missing, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        self.ask_at.store(0, Ordering::Relaxed);
    }

    /// Records that a call has waited in vain.
    pub fn is_silent(&self, now: u64) {
        self.ask_at.store(now + ASK_EVERY.as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether the last answer said that the target does not have what it is asked for.
    pub fn is_missing(&self) -> bool {
        self.is_missing.load(Ordering::Relaxed)
    }

    /// Time without an answer; `None`: every call was answered.
    pub fn silent_for(&self, now: u64) -> Option<Duration> {
        match self.since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Duration::from_millis(now.saturating_sub(since))),
        }
    }

    /// Returns permission to call if `thread`, whose call can be deferred, may try the target at
    /// `now`.
    pub fn ask(&self, now: u64, thread: u64) -> Option<Ask<'_>> {
        let (relaxed, ask_at) = (Ordering::Relaxed, self.ask_at.load(Ordering::Relaxed));
        if ask_at == 0 {
            return Some(Ask(None));
        }
        let is_mine =
            now >= ask_at && self.asker.compare_exchange(0, thread, relaxed, relaxed).is_ok();
        is_mine.then_some(Ask(Some(self)))
    }

    /// Whether `thread` is the one that tries. Its calls try only once.
    pub fn is_asked_by(&self, thread: impl FnOnce() -> u64) -> bool {
        let asker = self.asker.load(Ordering::Relaxed);
        asker != 0 && asker == thread()
    }
}

impl Drop for Ask<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(|away| away.asker.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_that_was_silent_is_asked_now_and_then_by_one_thread_until_it_answers() {
        let away = Availability::default();
        away.begins(1_000);
        drop((
            away.ask(1_000, 1).expect("nobody has waited"),
            away.ask(1_000, 2).expect("nor now"),
        ));
        away.is_silent(31_000);
        assert!(away.ask(31_000, 1).is_none() && away.ask(35_999, 2).is_none());
        let ask = away.ask(36_000, 1).expect("it is time");
        assert!(away.is_asked_by(|| 1) && !away.is_asked_by(|| 2));
        assert!(away.ask(36_000, 2).is_none(), "another thread asks");
        away.is_silent(37_000);
        drop(ask);
        assert!(!away.is_asked_by(|| 1) && away.ask(37_000, 1).is_none());
        away.begins(42_000);
        assert_eq!(away.silent_for(43_000), Some(Duration::from_secs(42)));
        away.answers(false);
        assert!(away.silent_for(43_000).is_none() && away.ask(43_000, 2).is_some());
    }
}
