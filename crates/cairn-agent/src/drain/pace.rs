//! Limits of the drain: bytes per second, a share of the time in which programs write, and no work
//! while they write a checkpoint; and turns with other drains (`turn.rs`).
//!
//! Must stay true: a copying thread asks before each part and waits as long as it is told. A limit
//! holds over any period, except for a tenth of a second's worth and the part under way. The drain
//! and the archive share the limits. A program that writes continuously delays the drain but cannot
//! stop it. A request to stop, or lifted limits, end a wait at once.
//!
//! Does not know who writes; `activity.rs` does.

use crate::drain::forecast::Rates;
use crate::drain::meter::Meter;
use crate::drain::turn::Turn;
use crate::model::error::{Error, Result};
use crate::model::policy::DrainPolicy;
use crate::model::protocol::PaceReport;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Unused budget is kept for this long.
const BURST: Duration = Duration::from_millis(100);
/// A write within this time counts as part of a checkpoint.
const CHECKPOINT: Duration = Duration::from_millis(100);
/// A write within this time means that a program is writing.
const WRITING: Duration = Duration::from_secs(1);
/// Longest pause for a checkpoint. If the program writes on, the drain works as long at its limit,
/// then pauses again, and so on.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The rate is measured over the last seconds of work: between half of this and all of it.
const MEASURED_S: f64 = 20.0;
/// Interval at which a waiting thread checks its conditions.
const NAP: Duration = Duration::from_millis(10);
const NANOSECONDS: u128 = 1_000_000_000;

/// Source of time; a test supplies its own.
pub trait Clock: Send + Sync {
    /// Time since a fixed moment.
    fn now(&self) -> Duration;
    /// Waits for `time`.
    fn nap(&self, time: Duration);
}

/// The system's monotonic clock.
struct Monotonic(Instant);

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn nap(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Token bucket: spent tokens return at a fixed rate, and a caller that overspends waits for them.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_second: u64,
    /// When all spent tokens will have returned.
    paid_at: Duration,
}

impl Bucket {
    fn new(per_second: u64, now: Duration) -> Bucket {
        Bucket { per_second: per_second.max(1), paid_at: now }
    }

    /// Spends `amount`. Returns how long to wait for what was spent before.
    fn spend(&mut self, now: Duration, amount: u64) -> Duration {
        let begin = self.paid_at.max(now.saturating_sub(BURST));
        let cost = u128::from(amount) * NANOSECONDS / u128::from(self.per_second);
        self.paid_at = begin + Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX / 4));
        begin.saturating_sub(now)
    }
}

#[derive(Default)]
struct Limits {
    policy: DrainPolicy,
    bytes: Option<Bucket>,
    /// Budget of work, in nanoseconds.
    work: Option<Bucket>,
    wrote_at: Option<Duration>,
    /// Recently copied bytes, and the seconds that threads worked on them.
    measured: (f64, f64),
    /// Times of the first and the last admission.
    span: Option<(Duration, Duration)>,
    writing_since: Option<Duration>,
}

impl Limits {
    fn is_writing(&self, now: Duration, within: Duration) -> bool {
        self.wrote_at.is_some_and(|at| now.saturating_sub(at) <= within)
    }

    fn measure(&mut self, bytes: u64, worked_ns: u64) {
        let (sum_bytes, sum_s) = &mut self.measured;
        *sum_bytes += bytes as f64;
        *sum_s += worked_ns as f64 / NANOSECONDS as f64;
        if *sum_s > MEASURED_S {
            // Older measurements lose weight.
            *sum_bytes /= 2.0;
            *sum_s /= 2.0;
        }
    }

    fn note_leave(&mut self, now: Duration) {
        let (first, last) = self.span.unwrap_or((now, now));
        self.span = Some((first, last.max(now)));
    }

    /// Whether to wait for a program that writes its checkpoint.
    fn pauses(&self, now: Duration) -> bool {
        let turn = |since| now.saturating_sub(since).as_nanos() / PAUSE_MAX.as_nanos();
        let is_programs_turn = self.writing_since.is_none_or(|since| turn(since) % 2 == 0);
        self.policy.is_limited() && self.is_writing(now, CHECKPOINT) && is_programs_turn
    }
}

/// The pace of the drain.
pub struct Pace {
    clock: Box<dyn Clock>,
    limits: Mutex<Limits>,
    lifted: AtomicBool,
    hurrying: AtomicBool,
    admitted_bytes: AtomicU64,
    waited_ns: AtomicU64,
    /// The turn among drains that share slots.
    pub turn: Turn,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new(Box::new(Monotonic(Instant::now())))
    }
}

impl Pace {
    pub(crate) fn new(clock: Box<dyn Clock>) -> Pace {
        Pace {
            clock,
            limits: Mutex::default(),
            lifted: AtomicBool::new(false),
            hurrying: AtomicBool::new(false),
            admitted_bytes: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            turn: Turn::default(),
        }
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        // Plain values: a panic leaves them valid.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies `policy` from now on.
    pub fn set(&self, policy: &DrainPolicy) {
        let mut limits = self.limits();
        if limits.policy != *policy {
            let now = self.clock.now();
            let of_second = |percent: u8| u64::from(percent) * NANOSECONDS as u64 / 100;
            limits.bytes = policy.rate_bytes.map(|rate| Bucket::new(rate, now));
            limits.work = policy.share_percent.map(|share| Bucket::new(of_second(share), now));
            limits.policy = policy.clone();
        }
    }

    /// The policy in effect.
    pub fn policy(&self) -> DrainPolicy {
        self.limits().policy.clone()
    }

    /// Sets whether limits are lifted so that all is safe at the end of the job's time.
    pub fn lift(&self, lifted: bool) {
        self.lifted.store(lifted, Ordering::Relaxed);
    }

    /// Time is short: lifts all limits for good, and the newest files come first.
    pub fn hurry(&self) {
        self.hurrying.store(true, Ordering::Relaxed);
    }

    /// Whether `hurry` was called.
    pub fn is_hurrying(&self) -> bool {
        self.hurrying.load(Ordering::Relaxed)
    }

    /// Whether limits are lifted.
    fn is_lifted(&self) -> bool {
        self.lifted.load(Ordering::Relaxed) || self.is_hurrying()
    }

    /// Whether the activity of programs matters.
    pub fn is_watching(&self) -> bool {
        !self.is_lifted() && self.limits().policy.is_limited()
    }

    /// Records whether a program wrote since the last call.
    pub fn note_activity(&self, wrote: bool) {
        let now = self.clock.now();
        let mut limits = self.limits();
        if !limits.is_writing(now, CHECKPOINT) {
            limits.writing_since = None;
        }
        if wrote {
            limits.wrote_at = Some(now);
            limits.writing_since.get_or_insert(now);
        }
    }

    /// Speed of one thread without limits, as measured, and under the present limits.
    pub fn rates(&self) -> Rates {
        let limits = self.limits();
        let (bytes, seconds) = limits.measured;
        let free = (bytes > 0.0 && seconds > 0.0).then(|| bytes / seconds);
        let by_rate = limits.policy.rate_bytes.map(|rate| rate as f64);
        let share = limits.policy.share_percent.map(|share| f64::from(share) / 100.0);
        let by_share = free.zip(share).map(|(free, share)| free * share);
        let bounds = [free, by_rate, by_share].into_iter().flatten();
        Rates { free, kept: bounds.reduce(f64::min) }
    }

    /// Returns the state for reports.
    pub fn report(&self) -> PaceReport {
        let now = self.clock.now();
        let limits = self.limits();
        let lifted = self.is_lifted();
        PaceReport {
            rate_bytes: limits.policy.rate_bytes,
            share_percent: limits.policy.share_percent,
            paused: !lifted && limits.pauses(now),
            waits_for: self.turn.waits_for().filter(|_| !lifted),
            lifted,
            admitted_bytes: self.admitted_bytes.load(Ordering::Relaxed),
            waited_ms: self.waited_ns.load(Ordering::Relaxed) / 1_000_000,
            span_ms: limits.span.map_or(0, |(first, last)| (last - first).as_millis() as u64),
        }
    }

    /// Spends `bytes` and the work since `since`. Returns how long to wait for that.
    fn spend(&self, of: Work, since: Duration, bytes: u64) -> Duration {
        let now = self.clock.now();
        let worked = u64::try_from(now.saturating_sub(since).as_nanos()).unwrap_or(u64::MAX);
        let mut limits = self.limits();
        if of == Work::Drain {
            limits.measure(bytes, worked);
        }
        let is_beside_writers = limits.is_writing(now, WRITING);
        let by_rate = limits.bytes.as_mut().map(|bucket| bucket.spend(now, bytes));
        let work = limits.work.as_mut().filter(|_| is_beside_writers);
        let by_share = work.map(|bucket| bucket.spend(now, worked));
        by_rate.max(by_share).unwrap_or_default()
    }
}

/// Owner of copied bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// The drain: its bytes measure the rate.
    Drain,
    /// Another copier that keeps to the same limits.
    Other,
}

/// Work of one thread on one file.
pub struct PacedWork<'a> {
    meter: &'a Meter,
    work: Work,
    /// Start of the work that has not been accounted for.
    since: Duration,
}

impl<'a> PacedWork<'a> {
    /// Begins work of the drain.
    pub fn begin(meter: &'a Meter) -> PacedWork<'a> {
        PacedWork::of(Work::Drain, meter)
    }

    /// Begins work of another copier that keeps to the drain's limits.
    pub fn beside(meter: &'a Meter) -> PacedWork<'a> {
        PacedWork::of(Work::Other, meter)
    }

    fn of(work: Work, meter: &'a Meter) -> PacedWork<'a> {
        PacedWork { meter, work, since: meter.pace.clock.now() }
    }

    /// Asks for admission of `bytes` more, and waits for it. Errors: `Stopped`.
    pub fn admit(&mut self, bytes: u64) -> Result<()> {
        let pace = &self.meter.pace;
        let begun = pace.clock.now();
        let leave_at = begun + pace.spend(self.work, self.since, bytes);
        let mut now = begun;
        while !self.meter.is_stopping() && !pace.is_lifted() {
            let left = leave_at.saturating_sub(now);
            if left.is_zero() && !pace.limits().pauses(now) && pace.turn.has(now) {
                break;
            }
            pace.clock.nap(if left.is_zero() { NAP } else { left.min(NAP) });
            now = pace.clock.now();
            self.meter.moves();
        }
        self.since = now;
        if self.work == Work::Drain {
            pace.limits().note_leave(now);
            pace.admitted_bytes.fetch_add(bytes, Ordering::Relaxed);
            pace.waited_ns.fetch_add((now - begun).as_nanos() as u64, Ordering::Relaxed);
        }
        if self.meter.is_stopping() { Err(Error::Stopped) } else { Ok(()) }
    }
}

impl Drop for PacedWork<'_> {
    /// Accounts for the remaining work: the next caller waits for it.
    fn drop(&mut self) {
        self.meter.pace.spend(self.work, self.since, 0);
    }
}

#[cfg(test)]
pub(crate) mod tests;
