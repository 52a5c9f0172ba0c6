//! Whether a thread that waits for something looks for it again and again for a moment before it
//! sleeps: to be woken takes as long as many a message needs to be answered.
//!
//! Must stay true: looking takes no longer at a time than being woken may, and goes on only while
//! it finds what is awaited. A thread that others share its processor with, be it one that works or
//! the very one that is waited for, sleeps instead. Neither looks nor sleeps, and knows no clock:
//! its user has them.

use core::time::Duration;
use std::time::Instant;

/// For how long is looked at a time.
const LONGEST: Duration = Duration::from_micros(50);
/// Looks that are this far apart had somebody else's work between them.
const INTERRUPTED: Duration = Duration::from_micros(200);
/// How often looking may be in vain before it is given up for a while, and more often if it was not
/// lately.
const CREDIT: u32 = 4;
const CREDIT_MAX: u32 = 16;
/// For how long it is given up, at first and at most: longer each time that it has not helped in
/// between.
const SHORTEST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// For how long it is given up for somebody else's work.
const REST_FOR_OTHERS: Duration = Duration::from_millis(100);

/// How well looking has done lately.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    credit: u32,
    /// The next time that it is given up.
    rest: Duration,
    rests_until: Option<Instant>,
}

/// A time of waiting.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// When it was looked last.
    last: Instant,
    /// Until when it is looked; None: it is not.
    until: Option<Instant>,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { credit: CREDIT, rest: SHORTEST_REST, rests_until: None }
    }
}

impl Looks {
    /// What is awaited is not there `now`.
    pub fn begin(&self, now: Instant) -> Wait {
        let may_look = self.rests_until.is_none_or(|until| until <= now);
        Wait { last: now, until: may_look.then_some(now + LONGEST) }
    }

    /// Whether to look once more before sleeping. After a no this wait has nothing more to do with
    /// looking.
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

    /// What was awaited has come.
    pub fn came(&mut self, wait: &Wait, now: Instant) {
        let was_looking = wait.until.is_some();
        if was_looking && !self.was_interrupted(wait, now) {
            self.credit = (self.credit + 1).min(CREDIT_MAX);
            self.rest = SHORTEST_REST;
        }
    }

    /// Whether others had the processor since the last look; then they shall have it.
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

    /// Waits for what comes after `time`, with a clock that goes on by a look at a time, and says
    /// for how long it was looked.
    fn wait(looks: &mut Looks, now: &mut Instant, time: Duration) -> Duration {
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
        let (mut looks, mut now) = (Looks::default(), Instant::now());
        for _ in 0..10_000 {
            assert_eq!(wait(&mut looks, &mut now, microseconds(20)), microseconds(20));
        }
    }

    #[test]
    fn what_never_comes_soon_is_hardly_looked_for() {
        let (mut looks, mut now, began) = (Looks::default(), Instant::now(), Instant::now());
        let looked: Duration =
            (0..100_000).map(|_| wait(&mut looks, &mut now, microseconds(200))).sum();
        let all = now - began;
        assert!(looked < all / 1000, "{looked:?} of {all:?}");
        assert!(looked > LONGEST * CREDIT, "now and then it is tried");
    }

    #[test]
    fn rare_exception_does_not_end_looking_and_what_comes_soon_again_is_looked_for_again() {
        let (mut looks, mut now) = (Looks::default(), Instant::now());
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
            let (mut looks, mut now) = (Looks::default(), Instant::now());
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
