//! A node in one program: processes, the agent and the media on a virtual clock, interleaved,
//! killed and cut off as a seed says. The seed is the bug report: it replays a failure exactly.
//!
//! ```text
//! scheduler.rs  who runs, the clock, deaths, power failures      actors.rs  programs, the agent, what starts them
//! media.rs      accesses that take time, the lock                journal.rs  a file that all programs append to
//! trace.rs      what happened
//! ```
//! After every failure of the power the namespace is recovered from what the media kept and
//! compared with what the programs were promised (`durable/state.rs`); then the programs go on.
//! They end on a node that works, and all they did is there after one more power failure.

mod actors;
mod journal;
mod media;
mod scheduler;
mod trace;

pub use scheduler::Counts;

use crate::durable::{Setting, look_in, recover_and_attach};
use crate::faulty::{self, ByteMedia, FaultPlan, FaultyMedia, Image, Outcome, Survivors};
use crate::random::Random;
use actors::{Node, Program, home_of};
use cairn_core::{Media, ROOT, Superblock};
use journal::Journal;
use media::{Segment, SlowMedia};
use scheduler::{End, Scheduler};
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

/// Operations of each program.
const OPERATIONS: u32 = 80;
/// Accesses among which a fault of the media falls.
const ACCESSES: faulty::Counts = faulty::Counts { reads: 300, writes: 600, flushes: 60 };
/// The media have a fault at one start of the node in so many.
const FAULT_ODDS: u64 = 3;

/// How a node reaches its media: a place for planted bugs.
pub type Wrap<'a> = &'a dyn Fn(Arc<dyn ByteMedia>) -> Arc<dyn ByteMedia>;

/// A run that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was done to it.
    pub counts: Counts,
    /// Events of the trace.
    pub events: u64,
    /// Stands for the whole trace.
    pub trace: u64,
    /// Virtual time it took, nanoseconds.
    pub time: u64,
}

/// A run that found something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Replays it.
    pub seed: u64,
    /// When, virtual nanoseconds.
    pub time: u64,
    /// What was found.
    pub message: String,
    /// The last events.
    pub events: String,
    /// Stands for the whole trace.
    pub trace: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.time as f64 / 1000.0;
        write!(f, "{}\nseed {}, {time:.3} us: {}", self.events, self.seed, self.message)?;
        write!(f, "\n`make sim SEED={}` replays this", self.seed)
    }
}

/// Runs a seed. With `verbose`, every event is printed.
pub fn run(seed: u64, wrap: Wrap<'_>, verbose: bool) -> Result<Report, Failure> {
    let mut setting = Setting { absent: false, ..Setting::draw(seed) };
    setting.processes = Random::new(seed).below(3) as usize + 2;
    let (image, superblock) = setting.format();
    let (image, programs) = make_homes(image, &superblock, setting.processes);
    let scheduler = Scheduler::new(seed, verbose);
    let simulation = Simulation {
        scheduler: scheduler.clone(),
        setting: Arc::new(setting),
        superblock,
        programs: Arc::new(Mutex::new(programs)),
        journal: Arc::default(),
        wrap,
    };
    let result = simulation.run(image);
    let (counts, events, trace) = scheduler.counts();
    let time = scheduler.clock.now();
    match result {
        Ok(()) => Ok(Report { counts, events, trace, time }),
        Err(message) => Err(Failure { seed, time, message, events: scheduler.recent(), trace }),
    }
}

/// A directory for each program.
fn make_homes(image: Image, superblock: &Superblock, count: usize) -> (Image, Vec<Program>) {
    let image = Arc::new(image);
    let (process, _) = recover_and_attach(image.clone(), superblock).expect("it was just made");
    let make = |number| {
        let made = process.fs.make_directory(&process.caller(), ROOT, &home_of(number), 0o755);
        let seen = look_in(&process, made.expect("there is room")).expect("nothing fails");
        Program::new(vec![Arc::new(seen.state())], OPERATIONS)
    };
    let programs = (0..count).map(make).collect();
    Journal::open(&process).and_then(|handle| process.close(handle)).expect("there is room");
    process.fs.sync().expect("nothing fails");
    (image.as_ref().clone(), programs)
}

struct Simulation<'a> {
    scheduler: Arc<Scheduler>,
    setting: Arc<Setting>,
    superblock: Superblock,
    programs: Arc<Mutex<Vec<Program>>>,
    journal: Arc<Journal>,
    wrap: Wrap<'a>,
}

impl Simulation<'_> {
    /// Starts the node again and again until all programs were done before a start. Errors: what
    /// was found.
    fn run(&self, mut image: Image) -> Result<(), String> {
        let mut is_last = false;
        loop {
            let media = Arc::new(FaultyMedia::new(&image));
            media.follow(self.faults(media.bytes()));
            let node = Arc::new(Node {
                scheduler: self.scheduler.clone(),
                setting: self.setting.clone(),
                superblock: self.superblock.clone(),
                media: (self.wrap)(Arc::new(SlowMedia(media.clone()))),
                faulty: media.clone(),
                segment: Segment::new(&self.superblock),
                programs: self.programs.clone(),
                journal: self.journal.clone(),
                next_process: AtomicU32::new(0),
            });
            self.scheduler.tell(format_args!("the node starts"));
            match node.run() {
                End::Done if is_last => return Ok(()),
                End::Done => is_last = true,
                End::PowerFailed => self.scheduler.count_power_failure(),
                End::Broken(message) => return Err(message),
            }
            image = media.crash(&self.survivors());
        }
    }

    fn faults(&self, bytes: u64) -> FaultPlan {
        let seed = self.scheduler.draw(u64::MAX);
        match self.scheduler.draw(FAULT_ODDS) {
            0 => FaultPlan::random(seed, Outcome::Survived, ACCESSES, bytes),
            _ => FaultPlan::default(),
        }
    }

    fn survivors(&self) -> Survivors {
        match self.scheduler.draw(6) {
            0 => Survivors::None,
            1 => Survivors::All,
            _ => Survivors::Random(self.scheduler.draw(u64::MAX)),
        }
    }
}
