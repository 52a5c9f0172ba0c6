//! Adaptive polling: decides whether a waiting thread polls for a moment before it sleeps. A
//! wake-up takes as long as the answer to many a message.
//!
//! Must stay true: one spell of polling takes no longer than a wake-up may take, and polling goes
//! on only while it succeeds. A thread that shares its processor with another one sleeps instead,
//! whether that one works or is the very thread that is waited for.
//!
//! Does not poll, sleep or read a clock; its user does.

use core::time::Duration;
use std::time::Instant;

/// Longest spell of polling.
const LONGEST: Duration = Duration::from_micros(50);
/// If two polls are this far apart, another thread ran between them.
const INTERRUPTED: Duration = Duration::from_micros(200);
/// Number of failed spells after which polling is given up for a while. Each success adds one, up
/// to `CREDIT_MAX`.
const CREDIT: u32 = 4;
const CREDIT_MAX: u32 = 16;
/// Time for which polling is given up, at first and at most. It grows each time until polling has
/// succeeded again.
const SHORTEST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Time for which polling is given up because another thread needs the processor.
const REST_FOR_OTHERS: Duration = Duration::from_millis(100);

/// Record of how well polling has worked lately.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveSpin {
    credit: u32,
    /// Length of the next pause.
    rest: Duration,
    rests_until: Option<Instant>,
}

/// One wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Time of the last poll.
    last: Instant,
    /// End of the spell of polling; `None`: this wait does not poll, or not any more.
    until: Option<Instant>,
}

impl Default for AdaptiveSpin {
    fn default() -> AdaptiveSpin {
        AdaptiveSpin { credit: CREDIT, rest: SHORTEST_REST, rests_until: None }
    }
}

impl AdaptiveSpin {
    /// Begins a wait at `now`, when what is awaited is not there yet.
    pub fn begin(&self, now: Instant) -> Wait {
        let may_look = self.rests_until.is_none_or(|until| until <= now);
        Wait { last: now, until: may_look.then_some(now + LONGEST) }
    }

    /// Whether to poll once more before sleeping. After false this wait polls no more.
    pub fn go_on(&mut self, wait: &mut Wait, now: Instant) -> bool {
        let Some(until) = wait.until else { return false };
        if now < until {
            wait.last = now;
            return true;
        }
        wait.until = None;
        if !self.was_interrupted(wait, now) {
            self.fail(now);
        }
        false
    }

    /// Records that what was awaited has come.
    pub fn came(&mut self, wait: &Wait, now: Instant) {
        let was_looking = wait.until.is_some();
        if was_looking && !self.was_interrupted(wait, now) {
            self.credit = (self.credit + 1).min(CREDIT_MAX);
            self.rest = SHORTEST_REST;
        }
    }

    /// Whether others had the processor since the last poll. If so, they keep it for a while.
    fn was_interrupted(&mut self, wait: &Wait, now: Instant) -> bool {
        let was = now.saturating_duration_since(wait.last) >= INTERRUPTED;
        if was {
            self.rests_until = Some(now + REST_FOR_OTHERS);
        }
        was
    }

    fn fail(&mut self, now: Instant) {
        self.credit -= 1;
        if self.credit == 0 {
            self.credit = CREDIT;
            self.rests_until = Some(now + self.rest);
            self.rest = (self.rest * 4).min(LONGEST_REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_nanos(500);

    /// Waits for something that comes after `time`, on a clock that advances by one poll at a time.
    /// Returns the time spent polling.
    fn wait(looks: &mut AdaptiveSpin, now: &mut Instant, time: Duration) -> Duration {
        let (began, comes) = (*now, *now + time);
        let mut wait = looks.begin(*now);
        loop {
            if !looks.go_on(&mut wait, *now) {
                let looked = *now - began;
                *now = comes.max(*now);
                looks.came(&wait, *now);
                return looked;
            }
            *now += LOOK;
            if *now >= comes {
                looks.came(&wait, *now);
                return *now - began;
            }
        }
    }

    fn microseconds(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn what_comes_soon_is_looked_for_until_it_comes() {
        let (mut looks, mut now) = (AdaptiveSpin::default(), Instant::now());
        for _ in 0..10_000 {
            assert_eq!(wait(&mut looks, &mut now, microseconds(20)), microseconds(20));
        }
    }

    #[test]
    fn what_never_comes_soon_is_hardly_looked_for() {
        let (mut looks, mut now, began) = (AdaptiveSpin::default(), Instant::now(), Instant::now());
        let looked: Duration =
            (0..100_000).map(|_| wait(&mut looks, &mut now, microseconds(200))).sum();
        let all = now - began;
        assert!(looked < all / 1000, "{looked:?} of {all:?}");
        assert!(looked > LONGEST * CREDIT, "now and then it is tried");
    }

    #[test]
    fn rare_exception_does_not_end_looking_and_what_comes_soon_again_is_looked_for_again() {
        let (mut looks, mut now) = (AdaptiveSpin::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(wait(&mut looks, &mut now, microseconds(500)), LONGEST);
            for _ in 0..5 {
                assert_eq!(wait(&mut looks, &mut now, microseconds(10)), microseconds(10));
            }
        }
        while !wait(&mut looks, &mut now, microseconds(500)).is_zero() {}
        now += LONGEST_REST;
        assert_eq!(wait(&mut looks, &mut now, microseconds(10)), microseconds(10));
    }

    #[test]
    fn others_who_want_the_processor_have_it_for_a_while() {
        for is_found in [false, true] {
            let (mut looks, mut now) = (AdaptiveSpin::default(), Instant::now());
            let mut interrupted = looks.begin(now);
            assert!(looks.go_on(&mut interrupted, now));
            now += INTERRUPTED;
            match is_found {
                true => looks.came(&interrupted, now),
                false => assert!(!looks.go_on(&mut interrupted, now)),
            }
            let end = now + REST_FOR_OTHERS;
            while now + LONGEST < end {
                assert!(wait(&mut looks, &mut now, microseconds(10)).is_zero());
            }
            now = end;
            assert!(!wait(&mut looks, &mut now, microseconds(10)).is_zero());
        }
    }
}
