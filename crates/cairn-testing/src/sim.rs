//! Simulation of a node in one program: processes, the agent and the media on a virtual clock,
//! interleaved, killed and cut off by a seed. The seed is the bug report: it replays a failure
//! exactly.
//!
//! ```text
//! scheduler.rs  turns, the clock, deaths, power failures
//! actors.rs     programs, the agent, the launcher
//! media.rs      accesses that take time, the lock
//! journal.rs    a file that all programs append to
//! trace.rs      events of a run
//! ```
//! After every power failure the namespace is recovered from what the media kept and compared with
//! the promises that the programs got (`durable/state.rs`). Then the programs go on. At the end
//! they are done on a working node, and everything they did is still there after one more power
//! failure.

mod actors;
mod journal;
mod media;
mod scheduler;
mod trace;

pub use scheduler::Counts;

use actors::{Node, Program, home_of};
use cairn_core::{Media, ROOT, Superblock};
use journal::Journal;
use media::{Segment, SlowMedia};
use scheduler::{End, Scheduler};
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use crate::durable::{Setting, look_in, recover_and_attach};
use crate::faulty::{self, ByteMedia, FaultPlan, FaultyMedia, Image, Outcome, Survivors};
use crate::random::Random;

/// Operations of each program.
const OPERATIONS: u32 = 80;
/// Accesses among which a media fault is drawn.
const ACCESSES: faulty::Counts = faulty::Counts { reads: 300, writes: 600, flushes: 60 };
/// The media have a fault at one node start in so many.
const FAULT_ODDS: u64 = 3;

/// Wraps a node's media; planted bugs use it.
pub type Wrap<'a> = &'a dyn Fn(Arc<dyn ByteMedia>) -> Arc<dyn ByteMedia>;

/// Result of a run that found no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Events injected into the run.
    pub counts: Counts,
    /// Number of events in the trace.
    pub events: u64,
    /// Stands for the whole trace.
    pub trace: u64,
    /// Virtual time that the run took, in nanoseconds.
    pub time: u64,
}

/// Result of a run that found an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Seed that replays the run.
    pub seed: u64,
    /// Virtual time of the error, in nanoseconds.
    pub time: u64,
    /// Description of the error.
    pub message: String,
    /// Last events of the trace.
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

/// Runs a seed. With `verbose`, prints every event.
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

/// Makes a directory for each program, and the journal.
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
    /// Starts the node again and again until all programs were already done before a start. Errors:
    /// a description of what was found.
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
