//! Every crash of a workload. The power fails after each write and each flush, and any subset of
//! the unflushed sectors survives.
//!
//! The workload runs once and is recorded. The image of each crash is made from the recording. If
//! `CAIRN_CRASH_POINT` is set to a value that a failure printed, only that image is tried.
//!
//! Does not know what a workload writes; its `check` does.

use crate::faulty::{FaultPlan, FaultyMedia, Image, Recording, Replay, Survivors};
use crate::random::Random;
use cairn_core::SECTOR_BYTES;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

/// Environment variable that makes `for_every_crash` try one crash only, to repeat a failure.
pub const POINT_VARIABLE: &str = "CAIRN_CRASH_POINT";

/// Limits on the number of crashes to try.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Most images in all. If there are more, an even sample is drawn.
    pub images: u64,
    /// Most systematic choices of surviving sectors at one point. If there are more, an even sample
    /// is drawn.
    pub systematic_per_point: usize,
    /// Number of random choices at a point with more than one unflushed sector.
    pub random_per_point: usize,
    /// Seed of all samples.
    pub seed: u64,
    /// Size of a sector, bytes. A crash never leaves part of one.
    pub sector_bytes: usize,
    /// The only crash to try, to repeat a failure.
    pub only: Option<CrashPoint>,
}

impl Budget {
    /// Allows at most `images` images with a mixture of choices at each point. If the environment
    /// names a crash, only that one is tried.
    pub fn new(images: u64, seed: u64) -> Budget {
        let only = point_in_environment();
        let (systematic_per_point, random_per_point) = (24, 8);
        let sector_bytes = SECTOR_BYTES;
        Budget { images, systematic_per_point, random_per_point, seed, sector_bytes, only }
    }

    /// Returns the number of choices at a point with these unflushed writes.
    fn choices_at(&self, pending: &[usize]) -> usize {
        let systematic = Survivors::count(pending).min(self.systematic_per_point);
        systematic + self.random_choices_at(pending)
    }

    fn random_choices_at(&self, pending: &[usize]) -> usize {
        if pending.iter().sum::<usize>() > 1 { self.random_per_point } else { 0 }
    }
}

/// A crash: its place in the workload, and the sectors that survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// Number of writes and flushes before it.
    pub operation: u64,
    /// Unflushed sectors that survive.
    pub survivors: Survivors,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.operation, self.survivors)
    }
}

impl FromStr for CrashPoint {
    type Err = String;

    fn from_str(text: &str) -> Result<CrashPoint, String> {
        let (operation, survivors) =
            text.split_once(':').ok_or("a crash point is NUMBER:CHOICE")?;
        let operation = operation.parse().map_err(|_| format!("`{operation}` is no number"))?;
        Ok(CrashPoint { operation, survivors: survivors.parse()? })
    }
}

/// Amount of work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of writes and flushes of the workload.
    pub operations: u64,
    /// Number of images checked.
    pub images: u64,
}

/// A crash that the check rejected.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The crash.
    pub point: CrashPoint,
    /// Message of the check.
    pub message: String,
    /// Work done before it.
    pub passed: Report,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { point, message, passed } = self;
        writeln!(f, "crash {point} of {} operations: {message}", passed.operations)?;
        writeln!(f, "{} crashes before it passed; with the seed printed above,", passed.images)?;
        write!(f, "{POINT_VARIABLE}={point} tries only this one")
    }
}

/// States of the workload, recorded as it goes on: what it has begun and what it was promised.
pub struct Progress<S> {
    media: Arc<FaultyMedia>,
    /// States, each with the number of writes and flushes before it.
    notes: Mutex<Vec<(u64, S)>>,
}

impl<S> Progress<S> {
    fn new(media: Arc<FaultyMedia>) -> Progress<S> {
        Progress { media, notes: Mutex::new(Vec::new()) }
    }

    /// Records the state against which every later crash is checked.
    pub fn note(&self, state: S) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push((self.media.crash_points(), state));
    }

    fn into_notes(self) -> Vec<(u64, S)> {
        self.notes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `workload` on media that hold `base`. Calls `check` with the image of every crash and the
/// last state noted before it, or the default state. If there are more crashes than the budget
/// allows, an even sample is tried.
///
/// The workload must do all its writes before it returns. It may let the media follow a plan of
/// faults and handle the errors itself. A panic of `check` is a failure, too. Errors: the first
/// crash that `check` rejects.
pub fn for_every_crash<S: Default>(
    base: &Image,
    budget: &Budget,
    workload: impl FnOnce(&Arc<FaultyMedia>, &Progress<S>),
    check: impl Fn(Image, &S) -> Result<(), String>,
) -> Result<Report, Failure> {
    let media = Arc::new(FaultyMedia::with_sectors(base, budget.sector_bytes));
    media.record();
    let progress = Progress::new(media.clone());
    workload(&media, &progress);
    let recording = media.take_recording().expect("only this function takes it");
    let mut judge = CrashChecker {
        states: States::new(progress.into_notes()),
        check,
        report: Report { operations: media.crash_points(), images: 0 },
    };
    match budget.only {
        Some(point) => judge.try_one(&recording, point)?,
        None => judge.try_all(&recording, budget)?,
    }
    Ok(judge.report)
}

/// Runs `workload` on media that hold `base` until the power fails. After `operation` writes and
/// flushes every access fails with `Io`, so the workload notices. Returns the media, to `crash`
/// them, and the last state noted.
pub fn run_until_power_fails<S: Default>(
    base: &Image,
    operation: u64,
    workload: impl FnOnce(&Arc<FaultyMedia>, &Progress<S>),
) -> (Arc<FaultyMedia>, S) {
    let media = Arc::new(FaultyMedia::new(base));
    media.follow(FaultPlan::default().power_fails_at(operation));
    let progress = Progress::new(media.clone());
    workload(&media, &progress);
    let state = progress.into_notes().pop().map(|(_, state)| state);
    (media, state.unwrap_or_default())
}

fn point_in_environment() -> Option<CrashPoint> {
    let text = std::env::var(POINT_VARIABLE).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{POINT_VARIABLE}: {error}")))
}

/// The noted states in the order of the operations.
struct States<S> {
    current: S,
    next: std::iter::Peekable<std::vec::IntoIter<(u64, S)>>,
}

impl<S: Default> States<S> {
    fn new(notes: Vec<(u64, S)>) -> States<S> {
        States { current: S::default(), next: notes.into_iter().peekable() }
    }

    /// Returns the last state noted by the time of operation `operation`. Calls must come in
    /// ascending order.
    fn at(&mut self, operation: u64) -> &S {
        while let Some((_, state)) = self.next.next_if(|(noted, _)| *noted <= operation) {
            self.current = state;
        }
        &self.current
    }
}

/// Makes images in ascending order of their operations and checks them.
struct CrashChecker<S, C> {
    states: States<S>,
    check: C,
    report: Report,
}

impl<S: Default, C: Fn(Image, &S) -> Result<(), String>> CrashChecker<S, C> {
    fn try_one(&mut self, recording: &Recording, point: CrashPoint) -> Result<(), Failure> {
        println!("{POINT_VARIABLE}={point}");
        let mut replay = recording.replay();
        while replay.operations() < point.operation && replay.advance() {}
        self.judge(&replay, point.survivors)
    }

    fn try_all(&mut self, recording: &Recording, budget: &Budget) -> Result<(), Failure> {
        let mut drawn = Sampler::new(budget.images, count_choices(recording, budget));
        let mut random = Random::new(budget.seed);
        let mut replay = recording.replay();
        loop {
            for survivors in choices(&replay.pending(), budget, &mut random) {
                if drawn.draw(&mut random) {
                    self.judge(&replay, survivors)?;
                }
            }
            if !replay.advance() {
                return Ok(());
            }
        }
    }

    fn judge(&mut self, replay: &Replay, survivors: Survivors) -> Result<(), Failure> {
        let point = CrashPoint { operation: replay.operations(), survivors };
        let state = self.states.at(point.operation);
        let image = replay.image(&survivors);
        let verdict = catch_unwind(AssertUnwindSafe(|| (self.check)(image, state)));
        let verdict = verdict.unwrap_or_else(|panic| Err(said(panic.as_ref())));
        verdict.map_err(|message| Failure { point, message, passed: self.report })?;
        self.report.images += 1;
        Ok(())
    }
}

/// Returns the message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}

/// Returns the number of crashes that the budget's choices allow.
fn count_choices(recording: &Recording, budget: &Budget) -> u64 {
    let mut replay = recording.replay();
    let mut count = budget.choices_at(&replay.pending()) as u64;
    while replay.advance() {
        count += budget.choices_at(&replay.pending()) as u64;
    }
    count
}

/// Returns the choices of survivors at a point with these unflushed writes, as many as
/// `Budget::choices_at` says.
fn choices(pending: &[usize], budget: &Budget, random: &mut Random) -> Vec<Survivors> {
    let systematic = budget.systematic_per_point as u64;
    let mut drawn = Sampler::new(systematic, Survivors::count(pending) as u64);
    let mut choices: Vec<Survivors> =
        Survivors::each(pending).filter(|_| drawn.draw(random)).collect();
    let seeds = (0..budget.random_choices_at(pending)).map(|_| random.draw());
    choices.extend(seeds.map(Survivors::Random));
    choices
}

/// Draws `wanted` items out of a given number, all with the same odds.
struct Sampler {
    wanted: u64,
    left: u64,
}

impl Sampler {
    fn new(wanted: u64, of: u64) -> Sampler {
        Sampler { wanted: wanted.min(of), left: of }
    }

    /// Whether the next item is drawn. Must be called once per item.
    fn draw(&mut self, random: &mut Random) -> bool {
        let is_drawn = self.wanted == self.left || random.below(self.left) < self.wanted;
        self.left -= 1;
        self.wanted -= u64::from(is_drawn);
        is_drawn
    }
}
