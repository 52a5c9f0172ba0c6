//! When a pass of the drain is due.
//!
//! Must stay true:
//! - What changes is in a cut that begins as soon as the pass under way has ended and the pause
//!   after it is over: a second at most. So what lies outside is no older than two passes and a
//!   second.
//! - Files that are open for writing are in a cut every second, or every second pass if these take
//!   longer.
//! - Passes take a tenth of a processor at most, without the threads that copy.
//! - After a failure passes become rare, and changes do not hasten them.
//!
//! Times are those since any moment that stays the same. Knows no clock; the agent asks at short
//! intervals.

use crate::pass::backoff::Backoff;
use std::time::Duration;

/// A pass is followed by a pause of this multiple of the processor time that it took, without the
/// threads that copy, up to `PAUSE_MAX`. The time between the pass before and this one counts as
/// part of the pause.
const PAUSE_FACTOR: u32 = 9;
/// Longest pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Interval between passes while files are open for writing, if nothing else changes; at least
/// twice the time that a pass takes. As often it is asked whether any are.
pub const OPEN_EVERY: Duration = Duration::from_secs(1);

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Something in the store, or what programs said of it, changed.
    Changed,
    /// Whether somebody has a file open for writing: the answer to [`Action::AskForWriters`].
    Writers(bool),
    /// Even if nothing changes, a pass is due at this time, or at none.
    DueAt(Option<Duration>),
    /// Writers wait for room that a pass may make.
    Wanted,
    /// A pass has begun.
    Began,
    /// The pass has brought its cut outside.
    Turned {
        /// Whether files changed while they were copied.
        changed: bool,
        /// Whether files were open for writing.
        has_open: bool,
        /// Processor time that it took.
        work: Duration,
    },
    /// The pass was given up, and is to be made again.
    GivenUp,
    /// The pass failed.
    Failed {
        /// Processor time that it took.
        work: Duration,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Find out whether somebody has a file open for writing.
    AskForWriters,
    /// Make a pass.
    Pass,
}

/// The passes of a store.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// Whether something changed since the last pass began.
    is_dirty: bool,
    has_open: bool,
    is_wanted: bool,
    changed_at: Duration,
    began_at: Duration,
    ended_at: Duration,
    asked_at: Duration,
    not_before: Duration,
    due_at: Option<Duration>,
    retry: Option<(Backoff, Duration)>,
}

impl Schedule {
    /// Takes what has happened until `now`, and returns what is to be done now.
    pub fn step(&mut self, now: Duration, events: &[Event]) -> Vec<Action> {
        events.iter().for_each(|event| self.take(now, *event));
        let took = self.ended_at.saturating_sub(self.began_at);
        if self.has_open && now.saturating_sub(self.began_at) >= OPEN_EVERY.max(2 * took) {
            self.note_change(now);
        }
        let mut actions = Vec::new();
        if !self.has_open && now.saturating_sub(self.asked_at) >= OPEN_EVERY {
            self.asked_at = now;
            actions.push(Action::AskForWriters);
        }
        if self.is_due(now) {
            actions.push(Action::Pass);
        }
        actions
    }

    /// Whether something is still to be brought outside, or to be tried again.
    pub fn is_behind(&self) -> bool {
        self.is_dirty || self.retry.is_some()
    }

    /// When the next attempt after a failed pass is due.
    pub fn retry_at(&self) -> Option<Duration> {
        self.retry.map(|(_, at)| at)
    }

    /// For how long nothing has changed.
    pub fn quiet_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.changed_at)
    }

    fn is_due(&self, now: Duration) -> bool {
        let is_waiting = self.retry.is_some_and(|(_, at)| at > now);
        let is_time = self.due_at.is_some_and(|at| at <= now);
        let is_due = self.is_dirty || is_time || self.retry.is_some();
        !is_waiting && (self.is_wanted || is_due && now >= self.not_before)
    }

    fn note_change(&mut self, now: Duration) {
        (self.is_dirty, self.changed_at) = (true, now);
    }

    fn take(&mut self, now: Duration, event: Event) {
        match event {
            Event::Changed => self.note_change(now),
            Event::Writers(has_open) => self.has_open |= has_open,
            Event::DueAt(at) => self.due_at = at,
            Event::Wanted => self.is_wanted = true,
            Event::Began => {
                (self.is_dirty, self.is_wanted, self.began_at) = (false, false, now);
            }
            Event::Turned { changed, has_open, work } => {
                (self.retry, self.has_open) = (None, has_open);
                self.is_dirty |= changed;
                self.end(now, work);
            }
            Event::GivenUp => self.is_dirty = true,
            Event::Failed { work } => {
                let backoff = self.retry.map_or_else(Backoff::first, |(known, _)| known.grown());
                self.retry = Some((backoff, now + backoff.delay()));
                self.end(now, work);
            }
        }
    }

    fn end(&mut self, now: Duration, work: Duration) {
        let rested = self.began_at.saturating_sub(self.ended_at);
        self.ended_at = now;
        self.not_before = now + (work * PAUSE_FACTOR).min(PAUSE_MAX).saturating_sub(rested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_millis(20);

    /// A stream of numbers from a seed (splitmix64).
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ mixed >> 31) % bound
        }

        fn ms(&mut self, bound: u64) -> Duration {
            Duration::from_millis(self.below(bound))
        }
    }

    /// Lives through some minutes. Returns how long each change waited for its cut, and how long
    /// the pass before it took.
    fn waits(seed: u64, always_open: bool) -> Vec<(Duration, Duration)> {
        let (mut dice, mut schedule) = (Dice(seed), Schedule::default());
        let (mut now, mut took, mut waits) = (Duration::ZERO, Duration::ZERO, Vec::new());
        let slowest = [10, 300, 5_000][dice.below(3) as usize];
        let mut waiting: Vec<Duration> = Vec::new();
        while now < Duration::from_secs(300) {
            now += POLL;
            let mut events = Vec::new();
            if dice.below(30) == 0 {
                events.push(Event::Changed);
                waiting.push(now);
            }
            let actions = schedule.step(now, &events);
            if actions.contains(&Action::AskForWriters) {
                schedule.step(now, &[Event::Writers(always_open)]);
            }
            if !actions.contains(&Action::Pass) {
                continue;
            }
            waits.extend(waiting.drain(..).map(|since| (now - since, took)));
            schedule.step(now, &[Event::Began]);
            let lasts = dice.ms(slowest);
            let work = lasts.min(dice.ms(200));
            // What changes meanwhile is for the next pass.
            if dice.below(2) == 0 {
                waiting.push(now + lasts / 2);
            }
            (now, took) = (now + lasts, lasts);
            let ended = Event::Turned { changed: false, has_open: always_open, work };
            let is_changed = !waiting.is_empty();
            let events = [Event::Changed, ended];
            schedule.step(now, &events[usize::from(!is_changed)..]);
        }
        waits
    }

    #[test]
    fn what_changes_is_in_a_cut_after_the_pass_under_way_and_a_second() {
        for seed in 0..400 {
            for (wait, took) in waits(seed, seed % 2 == 0) {
                let most = took + PAUSE_MAX + POLL;
                assert!(wait <= most, "seed {seed}: {wait:?} after a pass of {took:?}");
            }
        }
    }

    #[test]
    fn open_files_are_in_a_cut_every_second_and_at_most_every_second_pass() {
        let mut schedule = Schedule::default();
        let at = Duration::from_millis;
        assert_eq!(schedule.step(at(1_000), &[]), [Action::AskForWriters]);
        assert_eq!(schedule.step(at(1_000), &[Event::Writers(true)]), [Action::Pass]);
        let turned = Event::Turned { changed: false, has_open: true, work: Duration::ZERO };
        schedule.step(at(1_000), &[Event::Began]);
        assert_eq!(schedule.step(at(1_900), &[turned]), []);
        assert_eq!(schedule.step(at(2_799), &[]), [], "twice as long as the pass took");
        assert_eq!(schedule.step(at(2_800), &[]), [Action::Pass]);
    }

    #[test]
    fn failed_passes_become_rare_and_nothing_hastens_them() {
        let mut schedule = Schedule::default();
        let (mut now, mut gaps) = (Duration::ZERO, Vec::new());
        for _ in 0..12 {
            let begun = now;
            while !schedule.step(now, &[Event::Changed, Event::Wanted]).contains(&Action::Pass) {
                now += POLL;
            }
            gaps.push(now - begun);
            let failed = Event::Failed { work: Duration::ZERO };
            schedule.step(now, &[Event::Began, failed]);
        }
        assert!(gaps.windows(2).all(|pair| pair[0] <= pair[1] + POLL), "{gaps:?}");
        assert!(gaps[11] > 8 * gaps[1], "{gaps:?}");
        let turned = Event::Turned { changed: false, has_open: false, work: Duration::ZERO };
        schedule.step(now, &[turned]);
        assert!(!schedule.is_behind());
    }
}
