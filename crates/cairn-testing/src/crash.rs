//! Every crash of a workload: the power fails after each write and flush, and any subset of what
//! was not flushed is left.
//!
//! The workload runs once, recorded; every crash is an image made from the recording. With
//! `CAIRN_CRASH_POINT` as a failure prints it, that image only.
//! Does not know what a workload writes: its `check` does.

use crate::faulty::{FaultPlan, FaultyMedia, Image, Recording, Replay, Survivors};
use crate::random::Random;
use cairn_core::SECTOR_BYTES;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

/// Variable that makes `for_every_crash` try one crash only, to repeat a failure.
pub const POINT_VARIABLE: &str = "CAIRN_CRASH_POINT";

/// How many crashes to try.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Images in all; if there are more, they are drawn evenly.
    pub images: u64,
    /// Systematic choices of surviving sectors at one point; if there are more, they are drawn
    /// evenly.
    pub systematic_per_point: usize,
    /// Random choices at a point where more than one sector is not flushed.
    pub random_per_point: usize,
    /// Decides what is drawn.
    pub seed: u64,
    /// What a crash leaves whole.
    pub sector_bytes: usize,
    /// Only this crash, to repeat a failure.
    pub only: Option<CrashPoint>,
}

impl Budget {
    /// At most so many images, with a mixture of choices at each point; or the one that the
    /// environment names.
    pub fn new(images: u64, seed: u64) -> Budget {
        let only = point_in_environment();
        let (systematic_per_point, random_per_point) = (24, 8);
        let sector_bytes = SECTOR_BYTES;
        Budget { images, systematic_per_point, random_per_point, seed, sector_bytes, only }
    }

    /// Choices at a point with these unflushed writes.
    fn choices_at(&self, pending: &[usize]) -> usize {
        let systematic = Survivors::count(pending).min(self.systematic_per_point);
        systematic + self.random_choices_at(pending)
    }

    fn random_choices_at(&self, pending: &[usize]) -> usize {
        if pending.iter().sum::<usize>() > 1 { self.random_per_point } else { 0 }
    }
}

/// One crash: after how many writes and flushes, and what survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// Writes and flushes before it.
    pub operation: u64,
    /// Which of the unflushed sectors survive.
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

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Writes and flushes of the workload.
    pub operations: u64,
    /// Images that were checked.
    pub images: u64,
}

/// A crash after which the check was not content.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The crash.
    pub point: CrashPoint,
    /// What the check said.
    pub message: String,
    /// Crashes that passed before.
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

/// What a workload has begun and what it was promised, noted as it goes on.
pub struct Progress<S> {
    media: Arc<FaultyMedia>,
    /// Each with the writes and flushes before it.
    notes: Mutex<Vec<(u64, S)>>,
}

impl<S> Progress<S> {
    fn new(media: Arc<FaultyMedia>) -> Progress<S> {
        Progress { media, notes: Mutex::new(Vec::new()) }
    }

    /// From now on, this is the state against which a crash is checked.
    pub fn note(&self, state: S) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push((self.media.crash_points(), state));
    }

    fn into_notes(self) -> Vec<(u64, S)> {
        self.notes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `workload` on media that hold `base` and calls `check` with the image of every crash and
/// the last state noted before it (the default one if none was). With more crashes than the budget
/// allows, a part of them, evenly drawn.
///
/// The workload must do all its writes before it returns. It may let the media follow a plan of
/// faults; then it deals with the errors. A panic of `check` is a failure, too.
/// Errors: the first crash that `check` did not accept.
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
    let mut judge = Judge {
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

/// Runs `workload` on media that hold `base` until the power fails: after `operation` writes and
/// flushes every access fails with `Io`, so the workload sees the end. Returns the media, to
/// `crash` them, and the last state noted.
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

/// The states noted, in the order of the operations.
struct States<S> {
    current: S,
    next: std::iter::Peekable<std::vec::IntoIter<(u64, S)>>,
}

impl<S: Default> States<S> {
    fn new(notes: Vec<(u64, S)>) -> States<S> {
        States { current: S::default(), next: notes.into_iter().peekable() }
    }

    /// The last one that was noted when so many operations had taken place.
    fn at(&mut self, operation: u64) -> &S {
        while let Some((_, state)) = self.next.next_if(|(noted, _)| *noted <= operation) {
            self.current = state;
        }
        &self.current
    }
}

/// Makes images, each later in the run than the one before, and has them checked.
struct Judge<S, C> {
    states: States<S>,
    check: C,
    report: Report,
}

impl<S: Default, C: Fn(Image, &S) -> Result<(), String>> Judge<S, C> {
    fn try_one(&mut self, recording: &Recording, point: CrashPoint) -> Result<(), Failure> {
        println!("{POINT_VARIABLE}={point}");
        let mut replay = recording.replay();
        while replay.operations() < point.operation && replay.advance() {}
        self.judge(&replay, point.survivors)
    }

    fn try_all(&mut self, recording: &Recording, budget: &Budget) -> Result<(), Failure> {
        let mut drawn = Lottery::new(budget.images, count_choices(recording, budget));
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

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without a message"))
}

/// All crashes of a run.
fn count_choices(recording: &Recording, budget: &Budget) -> u64 {
    let mut replay = recording.replay();
    let mut count = budget.choices_at(&replay.pending()) as u64;
    while replay.advance() {
        count += budget.choices_at(&replay.pending()) as u64;
    }
    count
}

/// What may survive at a point with these unflushed writes: as many as `Budget::choices_at` says.
fn choices(pending: &[usize], budget: &Budget, random: &mut Random) -> Vec<Survivors> {
    let systematic = budget.systematic_per_point as u64;
    let mut drawn = Lottery::new(systematic, Survivors::count(pending) as u64);
    let mut choices: Vec<Survivors> =
        Survivors::each(pending).filter(|_| drawn.draw(random)).collect();
    let seeds = (0..budget.random_choices_at(pending)).map(|_| random.draw());
    choices.extend(seeds.map(Survivors::Random));
    choices
}

/// Draws a given number out of a given number, each with the same odds.
struct Lottery {
    wanted: u64,
    left: u64,
}

impl Lottery {
    fn new(wanted: u64, of: u64) -> Lottery {
        Lottery { wanted: wanted.min(of), left: of }
    }

    /// Whether the next one is drawn; asked once for each.
    fn draw(&mut self, random: &mut Random) -> bool {
        let is_drawn = self.wanted == self.left || random.below(self.left) < self.wanted;
        self.left -= 1;
        self.wanted -= u64::from(is_drawn);
        is_drawn
    }
}
