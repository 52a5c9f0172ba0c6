//! The pace against a clock that advances only when a thread waits or works.

use super::*;
use std::sync::Arc;

/// A clock that advances when a thread waits, or when the test says so.
#[derive(Clone, Default)]
pub(crate) struct Virtual(Arc<AtomicU64>);

impl Virtual {
    fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for Virtual {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn nap(&self, time: Duration) {
        self.pass(time);
    }
}

const MIB: u64 = 1 << 20;

fn meter(policy: DrainPolicy) -> (Meter, Virtual) {
    let clock = Virtual::default();
    let mut meter = Meter::default();
    meter.pace = Pace::new(Box::new(clock.clone()));
    meter.pace.set(&policy);
    (meter, clock)
}

fn limited_to(rate: u64) -> DrainPolicy {
    DrainPolicy { rate_bytes: Some(rate), ..DrainPolicy::default() }
}

fn share_of(percent: u8) -> DrainPolicy {
    DrainPolicy { share_percent: Some(percent), ..DrainPolicy::default() }
}

#[test]
fn bytes_over_time_are_the_rate_whatever_the_parts() {
    for part in [1, 4096, 65_537, 4 * MIB] {
        let (meter, clock) = meter(limited_to(100 * MIB));
        let mut lap = PacedWork::begin(&meter);
        let parts = (200 * MIB).div_ceil(part).min(20_000);
        (0..parts).for_each(|_| lap.admit(part).expect("is admitted"));
        let after = |time: Duration| 100.0 * MIB as f64 * time.as_secs_f64();
        let (admitted, one) = ((parts * part) as f64, part as f64);
        let allowed = after(clock.now() + BURST) + one;
        assert!(admitted <= allowed, "{admitted} of {allowed} in parts of {part}");
        assert!(admitted >= 0.99 * after(clock.now()), "the rate is used, in parts of {part}");
        assert_eq!(meter.pace.report().admitted_bytes, parts * part);
    }
}

#[test]
fn threads_share_one_rate() {
    let (meter, clock) = meter(limited_to(MIB));
    let mut laps: Vec<_> = (0..4).map(|_| PacedWork::begin(&meter)).collect();
    for _ in 0..10 {
        laps.iter_mut().for_each(|lap| lap.admit(MIB / 4).expect("is admitted"));
    }
    let seconds = clock.now().as_secs_f64();
    assert!((9.6..=10.0).contains(&seconds), "{seconds}");
}

#[test]
fn pause_saves_no_more_than_a_burst() {
    let (meter, clock) = meter(limited_to(100 * MIB));
    clock.pass(Duration::from_secs(3600));
    let before = clock.now();
    let mut lap = PacedWork::begin(&meter);
    (0..200).for_each(|_| lap.admit(MIB).expect("is admitted"));
    let seconds = (clock.now() - before).as_secs_f64();
    assert!(seconds >= 1.88, "200 MiB in {seconds} s");
}

#[test]
fn share_is_kept_beside_a_writer_and_free_without() {
    for (writes, expected) in [(true, 5.0), (false, 1.0)] {
        let (meter, clock) = meter(share_of(20));
        let mut lap = PacedWork::begin(&meter);
        for _ in 0..1000 {
            // A writer that pauses for longer than `CHECKPOINT`, so that the drain does not pause
            // for it.
            meter.pace.limits().wrote_at =
                writes.then(|| clock.now().saturating_sub(2 * CHECKPOINT));
            clock.pass(Duration::from_millis(1));
            lap.admit(MIB).expect("is admitted");
        }
        let seconds = clock.now().as_secs_f64();
        assert!((seconds - expected).abs() < 0.3, "1 s of work took {seconds} s");
    }
}

#[test]
fn limited_drain_waits_for_a_checkpoint_and_an_unlimited_one_does_not() {
    for (policy, least) in
        [(limited_to(u64::MAX), CHECKPOINT), (DrainPolicy::default(), Duration::ZERO)]
    {
        let (meter, clock) = meter(policy);
        clock.pass(WRITING);
        meter.pace.note_activity(true);
        let begun = clock.now();
        PacedWork::begin(&meter).admit(1).expect("is admitted");
        let waited = clock.now() - begun;
        assert!(waited >= least && waited <= least + 2 * NAP, "{waited:?}");
    }
}

#[test]
fn program_that_never_stops_writing_has_half_of_the_time() {
    let (meter, clock) = meter(limited_to(u64::MAX));
    let (mut paused, step) = (0, Duration::from_millis(50));
    for _ in 0..1200 {
        meter.pace.note_activity(true);
        paused += u32::from(meter.pace.report().paused);
        clock.pass(step);
    }
    assert_eq!(step * paused, Duration::from_secs(30), "of a minute");
}

#[test]
fn lifted_limit_ends_every_wait_and_a_stop_is_an_error() {
    let (meter, clock) = meter(limited_to(1));
    let mut lap = PacedWork::begin(&meter);
    lap.admit(1000).expect("the first is free");
    meter.pace.lift(true);
    lap.admit(1000).expect("is admitted");
    assert!(clock.now() <= NAP);
    meter.pace.lift(false);
    meter.stop();
    assert!(matches!(lap.admit(1000), Err(Error::Stopped)));
    assert!(clock.now() <= NAP);
}

#[test]
fn limit_that_somebody_lifted_because_time_is_short_stays_so_whatever_is_foretold() {
    let (meter, clock) = meter(limited_to(1));
    let mut lap = PacedWork::begin(&meter);
    lap.admit(1000).expect("the first is free");
    meter.pace.hurry();
    meter.pace.lift(false);
    lap.admit(1000).expect("is admitted");
    assert!(clock.now() <= NAP && meter.pace.report().lifted);
}
