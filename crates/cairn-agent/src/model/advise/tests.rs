//! Compares the formulas with a simulation that uses none of them: failures at random moments, one
//! event after the other.
//!
//! Each simulation has a seed, and enough failures that its own spread is below the tolerances
//! named here.

use super::*;

const SEED: u64 = 0x5eed_0001;
/// Failures in one simulation.
const FAILURES: u32 = 100_000;
/// Largest difference between the simulated and the computed progress, both from 0 to 1.
const PROGRESS_TOLERANCE: f64 = 0.006;
const HOUR: f64 = 3600.0;

/// xorshift64*: random enough for a test, and the same everywhere.
struct Random(u64);

impl Random {
    /// Returns a number above 0, at most 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits + 1) as f64 / (1_u64 << 53) as f64
    }
}

/// A job that computes, writes checkpoints and fails.
struct Simulation<'a> {
    model: &'a Model,
    schedule: Schedule,
    random: Random,
    now_s: f64,
    next_failure_s: f64,
    failures: u32,
    /// Number of completed intervals whose checkpoint is on the first level, and on the second one.
    first: u64,
    second: u64,
}

impl Simulation<'_> {
    /// Returns the lasting progress as a share of the time.
    fn progress(model: &Model, schedule: Schedule) -> f64 {
        let mut simulation = Simulation {
            model,
            schedule,
            random: Random(SEED),
            now_s: 0.0,
            next_failure_s: 0.0,
            failures: 0,
            first: 0,
            second: 0,
        };
        simulation.draw_failure();
        while simulation.failures < FAILURES {
            simulation.interval();
        }
        simulation.first as f64 * schedule.interval_s / simulation.now_s
    }

    fn draw_failure(&mut self) {
        self.next_failure_s = self.now_s - self.model.mtbf_s * self.random.share().ln();
    }

    /// Computes for one interval and writes one checkpoint.
    fn interval(&mut self) {
        let is_deep = (self.first + 1) % u64::from(self.schedule.every) == 0;
        let second = self.model.second.filter(|_| is_deep);
        let more_s = second.map_or(0.0, |second| second.write_s);
        match self.survives(self.schedule.interval_s + self.model.checkpoint_s + more_s) {
            true => {
                self.first += 1;
                if is_deep {
                    self.second = self.first;
                }
            }
            false => self.recover(),
        }
    }

    /// Restarts until that succeeds. Once the second level was needed, it stays needed.
    fn recover(&mut self) {
        let mut deep = false;
        loop {
            deep |=
                self.model.second.is_some_and(|second| self.random.share() <= second.failure_share);
            let restart_s = match self.model.second {
                Some(second) if deep => second.restart_s,
                _ => self.model.restart_s,
            };
            if self.survives(restart_s) {
                break;
            }
        }
        if deep {
            self.first = self.second;
        }
    }

    /// Lets this much time pass, or less if there is a failure.
    fn survives(&mut self, time_s: f64) -> bool {
        if self.now_s + time_s < self.next_failure_s {
            self.now_s += time_s;
            return true;
        }
        self.now_s = self.next_failure_s;
        self.failures += 1;
        self.draw_failure();
        false
    }
}

fn one_level(checkpoint_s: f64, restart_s: f64, mtbf_s: f64) -> Model {
    Model { checkpoint_s, restart_s, mtbf_s, second: None }
}

fn two_levels(failure_share: f64) -> Model {
    let second = SecondLevel { write_s: 300.0, restart_s: 400.0, failure_share };
    Model { second: Some(second), ..one_level(10.0, 20.0, 2.0 * HOUR) }
}

/// Returns models from a negligible checkpoint to one that takes a third of the time between
/// failures.
fn models() -> Vec<Model> {
    vec![
        one_level(12.0, 0.0, 24.0 * HOUR),
        one_level(60.0, 120.0, 2.0 * HOUR),
        one_level(300.0, 600.0, HOUR),
        one_level(1200.0, 1200.0, HOUR),
        two_levels(0.02),
        two_levels(0.1),
        two_levels(0.5),
        two_levels(1.0),
        // Restarts that often fail themselves.
        Model { restart_s: 0.5 * HOUR, ..two_levels(0.3) },
    ]
}

#[test]
fn progress_is_that_of_the_simulation() {
    for model in models() {
        let best = model.best();
        for (factor, every) in [(0.3, 1), (1.0, 1), (1.0, 3), (3.0, 2)] {
            let every = if model.second.is_some() { best.every * every } else { 1 };
            let schedule = Schedule { interval_s: best.interval_s * factor, every };
            let (expected, found) =
                (model.progress(&schedule), Simulation::progress(&model, schedule));
            let what = format!("seed {SEED:#x}: {model:?} {schedule:?}: {expected} and {found}");
            assert!((expected - found).abs() < PROGRESS_TOLERANCE, "{what}");
        }
    }
}

/// Compares intervals in steps of a factor of √2 on either side: closer ones differ by less than
/// the simulation's spread.
#[test]
fn simulation_gets_on_fastest_at_the_interval_advised() {
    const STEP: f64 = std::f64::consts::SQRT_2;
    for model in models() {
        let best = model.best();
        let simulated = |power: i32| {
            let interval_s = best.interval_s * STEP.powi(power);
            Simulation::progress(&model, Schedule { interval_s, ..best })
        };
        let at_best = simulated(0);
        for power in [-4, -3, -2, -1, 1, 2, 3, 4] {
            let other = simulated(power);
            assert!(at_best > other, "seed {SEED:#x}: {model:?}: {at_best}, {other} at {power}");
        }
    }
}

#[test]
fn simulation_gets_on_fastest_with_as_many_checkpoints_to_the_second_level_as_advised() {
    for share in [0.02, 0.1, 0.5] {
        let model = two_levels(share);
        let best = model.best();
        assert!(best.every > 1, "{best:?}");
        let at_best = Simulation::progress(&model, best);
        for every in [best.every.div_ceil(2), best.every * 2 + 1] {
            let other = Simulation::progress(&model, Schedule { every, ..best });
            assert!(at_best > other, "seed {SEED:#x}: {model:?} {best:?}: {at_best}, {other}");
        }
    }
}

/// Daly's interval is within half a per cent of the best one where checkpoints take up to a third
/// of the time between failures. Young's is close only where they take little. Both as in Daly's
/// paper.
#[test]
fn daly_is_near_the_best_where_young_is_not() {
    for model in models().into_iter().filter(|model| model.second.is_none()) {
        let best_s = model.best().interval_s;
        assert!((model.daly_s() / best_s - 1.0).abs() < 0.005, "{model:?}: {best_s}");
    }
    let young_is_off = |model: Model| model.young_s() / model.best().interval_s - 1.0;
    assert!(young_is_off(one_level(12.0, 0.0, 24.0 * HOUR)) < 0.01);
    assert!(young_is_off(one_level(1200.0, 0.0, HOUR)) > 0.3);
}

#[test]
fn formulas_give_the_figures_of_their_papers() {
    // √(2 · 5 min · 24 h) = 120 min; with Daly's terms 120 · (1 + 0.01389 + 0.000193) − 5.
    let model = one_level(300.0, 600.0, 24.0 * HOUR);
    assert!((model.young_s() / 60.0 - 120.0).abs() < 1e-9);
    assert!((model.daly_s() / 60.0 - 116.69).abs() < 0.01, "{}", model.daly_s() / 60.0);
    assert_eq!(one_level(3.0, 0.0, 1.0).daly_s(), 1.0);
    // M e^{R/M} (e^{(τ + C)/M} − 1), by hand.
    let model = one_level(10.0, 20.0, 100.0);
    let expected = 40.0 / (100.0 * 0.2_f64.exp() * (0.5_f64.exp() - 1.0));
    let found = model.progress(&Schedule { interval_s: 40.0, every: 1 });
    assert!((found - expected).abs() < 1e-12, "{found} {expected}");
}

#[test]
fn second_level_that_is_hardly_needed_is_hardly_used() {
    let with = |failure_share| two_levels(failure_share).best();
    assert!(with(1e-6).every > 100 * with(0.5).every);
    let alone = Model { second: None, ..two_levels(1.0) };
    let best = with(1e-9);
    assert!((best.interval_s / alone.best().interval_s - 1.0).abs() < 0.01, "{best:?}");
    assert_eq!(with(1.0).every, 1);
}

#[test]
fn nonsense_is_refused() {
    let refused = |model: Model| model.check().expect_err("is nonsense").to_string();
    let good = two_levels(0.1);
    assert_eq!(good.check(), Ok(()));
    let with = |checkpoint_s, restart_s, mtbf_s| Model { checkpoint_s, restart_s, mtbf_s, ..good };
    for (model, part) in [
        (with(7200.0, 0.0, 7200.0), "cost of a checkpoint (7200 s) is not shorter"),
        (with(6950.0, 0.0, 7200.0), "on both levels"),
        (with(1.0, 7200.0, 7200.0), "cost of a restart"),
        (with(0.0, 0.0, 7200.0), "positive"),
        (with(f64::NAN, 0.0, 7200.0), "positive"),
        (with(1.0, -1.0, 7200.0), "positive"),
        (with(1.0, 0.0, f64::INFINITY), "mean time between failures must"),
        (two_levels(0.0), "above 0"),
        (two_levels(1.1), "above 0"),
        (two_levels(f64::NAN), "above 0"),
    ] {
        let text = refused(model);
        assert!(text.contains(part), "{text}");
    }
    // A hopeless schedule makes no progress; the result is still a number.
    assert_eq!(good.progress(&Schedule { interval_s: 1e9, every: EVERY_MAX }), 0.0);
}
