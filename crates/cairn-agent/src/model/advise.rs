//! Checkpoint interval that maximises the progress of a job in spite of failures.
//!
//! The model. Failures come at random moments with a constant rate `1 / M` (exponential), also
//! while a checkpoint is written and during a restart. The job computes for `τ`, writes a
//! checkpoint for `C`, and so on. After a failure it reads a checkpoint for `R` and repeats what it
//! had done since. With a second level each `n`-th checkpoint is brought there as well, which takes
//! `C₂` more. The share `p` of failures needs that copy, which is read in `R₂`, and loses
//! everything since.
//!
//! Invariant: times are finite, positive numbers of seconds, and no single step takes as long as
//! the mean time between failures (`Model::check`); then all results are finite.
//!
//! Does not measure anything; the caller knows the cost of a checkpoint.
//!
//! Sources: J. W. Young, *A first order approximation to the optimum checkpoint interval*, CACM
//! 17(9), 1974. J. T. Daly, *A higher order estimate of the optimum checkpoint interval for restart
//! dumps*, FGCS 22, 2006. Two levels: the Markov model of A. Moody, G. Bronevetsky, K. Mohror and
//! B. R. de Supinski, *Design, modeling, and evaluation of a scalable multi-level checkpointing
//! system*, SC10, for two levels, solved in closed form and minimised numerically.

/// Largest distance between checkpoints that go to the second level, in checkpoints.
pub const EVERY_MAX: u32 = 1 << 20;
/// Range of the search for the interval: multiples of the cost of a checkpoint and of the mean time
/// between failures.
const SEARCH_LEAST: f64 = 1e-4;
const SEARCH_MOST: f64 = 10.0;
/// Steps of a golden-section search. Each leaves 0.618 of the range; after all of them the result
/// is known to one in a million.
const SEARCH_STEPS: usize = 60;
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Costs of checkpoints, and the rate of failures. All times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Time the job waits for a checkpoint to be written (`C`).
    pub checkpoint_s: f64,
    /// Time from a failure until the job goes on from a checkpoint (`R`).
    pub restart_s: f64,
    /// Mean time between failures of the whole job (`M`).
    pub mtbf_s: f64,
    /// A level that survives failures that the first one does not.
    pub second: Option<SecondLevel>,
}

/// A slower level, such as a parallel file system behind the memory of the nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SecondLevel {
    /// Additional time for the job to bring a checkpoint there, besides writing it to the first
    /// level (`C₂`).
    pub write_s: f64,
    /// Time from a failure until the job goes on from there (`R₂`).
    pub restart_s: f64,
    /// Share of all failures that need it (`p`), above 0 and at most 1.
    pub failure_share: f64,
}

/// When checkpoints are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Time from the end of one checkpoint to the beginning of the next, seconds (`τ`).
    pub interval_s: f64,
    /// Each checkpoint of this many goes to the second level (`n`); 1 without a second level.
    pub every: u32,
}

/// Why a model is rejected.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// A time is not positive and finite.
    #[error("the {what} must be a positive, finite time (a restart may cost nothing)")]
    NotATime {
        /// Name of the time.
        what: &'static str,
    },
    /// A step takes longer than the mean time between failures.
    #[error(
        "the {what} ({cost_s} s) is not shorter than the mean time between failures ({mtbf_s} s): the job would \
         make no progress; make checkpoints smaller, or use fewer nodes"
    )]
    TooLong {
        /// Name of the step.
        what: &'static str,
        /// Its duration.
        cost_s: f64,
        /// The mean time between failures.
        mtbf_s: f64,
    },
    /// The share of failures is out of range.
    #[error(
        "the share of failures that need the second level must be above 0 and at most 1, not {share}"
    )]
    NotAShare {
        /// The given value.
        share: f64,
    },
}

/// One interval and its checkpoint, as a step of the chain of segments. The expected time until the
/// pattern is complete is `time_s` + `onward` × (that of the next segment) + `back` × (that of the
/// whole pattern), where the two probabilities add up to 1.
struct Segment {
    time_s: f64,
    onward: f64,
    back: f64,
}

impl Model {
    /// Rejects values for which the model is meaningless.
    pub fn check(&self) -> Result<(), Refused> {
        let mtbf_s = self.mtbf_s;
        let is_time = |what, time_s: f64, least_s: f64| match time_s.is_finite() && time_s > least_s
        {
            true => Ok(()),
            false => Err(Refused::NotATime { what }),
        };
        let is_short = |what, cost_s: f64| match cost_s < mtbf_s {
            true => Ok(()),
            false => Err(Refused::TooLong { what, cost_s, mtbf_s }),
        };
        is_time("mean time between failures", mtbf_s, 0.0)?;
        is_time("cost of a checkpoint", self.checkpoint_s, 0.0)?;
        is_short("cost of a checkpoint", self.checkpoint_s)?;
        // A restart may cost nothing.
        is_time("cost of a restart", self.restart_s, -f64::MIN_POSITIVE)?;
        is_short("cost of a restart", self.restart_s)?;
        let Some(second) = self.second else { return Ok(()) };
        is_time("cost of the second level", second.write_s, 0.0)?;
        is_short("cost of a checkpoint on both levels", self.checkpoint_s + second.write_s)?;
        is_time("cost of a restart from the second level", second.restart_s, -f64::MIN_POSITIVE)?;
        is_short("cost of a restart from the second level", second.restart_s)?;
        let share = second.failure_share;
        match share > 0.0 && share <= 1.0 {
            true => Ok(()),
            false => Err(Refused::NotAShare { share }),
        }
    }

    /// Young's optimal interval for one level, `√(2 C M)`: a first approximation, good while `C` is
    /// far below `M`.
    pub fn young_s(&self) -> f64 {
        (2.0 * self.checkpoint_s * self.mtbf_s).sqrt()
    }

    /// Daly's optimal interval for one level: `√(2 C M) · [1 + ⅓ √(C / 2M) + ⅑ (C / 2M)] − C` where
    /// `C < 2M`, else `M`.
    pub fn daly_s(&self) -> f64 {
        let ratio = self.checkpoint_s / (2.0 * self.mtbf_s);
        match ratio < 1.0 {
            true => self.young_s() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - self.checkpoint_s,
            false => self.mtbf_s,
        }
    }

    /// Share of the time in which the job makes lasting progress, from 0 to 1: `n τ` divided by the
    /// expected time until a pattern of `n` intervals is complete. With one level that time is `M
    /// e^{R/M} (e^{(τ + C)/M} − 1)`, as in Daly's paper.
    pub fn progress(&self, schedule: &Schedule) -> f64 {
        let Schedule { interval_s, every } = *schedule;
        let last_cost_s = self.second.map_or(0.0, |second| second.write_s);
        let usual = self.segment(interval_s + self.checkpoint_s);
        let last = self.segment(interval_s + self.checkpoint_s + last_cost_s);
        // The expected time of the pattern is E = S·t + βᵐ·t' + (1 − βᵐ β')·E, with m = n − 1 usual
        // segments. The k-th is reached for the first time with probability βᵏ; S is the sum of
        // these.
        let before = f64::from(every.max(1) - 1);
        let log_reached = before * (-usual.back).ln_1p();
        let visits = match usual.back > 0.0 {
            true => -log_reached.exp_m1() / usual.back,
            false => before,
        };
        let reached = log_reached.exp();
        let expected_s = (visits * usual.time_s + reached * last.time_s) / (reached * last.onward);
        let progress = (before + 1.0) * interval_s / expected_s;
        if progress.is_finite() { progress } else { 0.0 }
    }

    /// Returns the segment of this many seconds. After a failure of the first level it begins again
    /// when the restart is through. A failure of the second level, in the segment or in a restart,
    /// leads back to the beginning of the pattern.
    fn segment(&self, seconds: f64) -> Segment {
        let rate = 1.0 / self.mtbf_s;
        let share = self.second.map_or(0.0, |second| second.failure_share);
        let passes = |time_s: f64| (-rate * time_s).exp();
        let spent_s = |time_s: f64| -(-rate * time_s).exp_m1() / rate;
        // A restart from the first level succeeds, or fails and is repeated, or leads to the second
        // level.
        let (whole, restarted) = (passes(seconds), passes(self.restart_s));
        let settled = 1.0 - (1.0 - restarted) * (1.0 - share);
        let failed = 1.0 - whole;
        let light = failed * (1.0 - share);
        let again = light * restarted / settled;
        let back = (light * (1.0 - restarted) / settled + failed) * share;
        let deep_restart_s =
            self.second.map_or(0.0, |second| (rate * second.restart_s).exp_m1() / rate);
        let time_s =
            spent_s(seconds) + light * spent_s(self.restart_s) / settled + back * deep_restart_s;
        let ends = 1.0 - again;
        Segment { time_s: time_s / ends, onward: whole / ends, back: back / ends }
    }

    /// Returns the schedule with the most progress. Its interval is known to one in a million.
    pub fn best(&self) -> Schedule {
        match self.second {
            None => self.best_with(1),
            Some(_) => self.best_with(self.best_every(|every| self.best_with(every))),
        }
    }

    /// Returns the best schedule with this interval.
    pub fn best_for_interval(&self, interval_s: f64) -> Schedule {
        let with = |every| Schedule { interval_s, every };
        match self.second {
            None => with(1),
            Some(_) => with(self.best_every(with)),
        }
    }

    /// Best distance between checkpoints on the second level: the progress has a single maximum
    /// there.
    fn best_every(&self, schedule: impl Fn(u32) -> Schedule) -> u32 {
        let progress = |every| self.progress(&schedule(every));
        let (mut least, mut most) = (1, EVERY_MAX);
        while least < most {
            let middle = least + (most - least) / 2;
            match progress(middle) < progress(middle + 1) {
                true => least = middle + 1,
                false => most = middle,
            }
        }
        least
    }

    /// Best interval if each `every`-th checkpoint goes to the second level: a golden-section
    /// search for the single maximum, on a logarithmic scale.
    fn best_with(&self, every: u32) -> Schedule {
        let schedule = |log_interval: f64| Schedule { interval_s: log_interval.exp(), every };
        let progress = |log_interval| self.progress(&schedule(log_interval));
        let mut from = (self.checkpoint_s * SEARCH_LEAST).ln();
        let mut to = (self.mtbf_s * SEARCH_MOST).ln();
        for _ in 0..SEARCH_STEPS {
            let part = (to - from) * GOLDEN;
            match progress(to - part) < progress(from + part) {
                true => from = to - part,
                false => to = from + part,
            }
        }
        schedule((from + to) / 2.0)
    }
}

#[cfg(test)]
mod tests;
