//! `cairn-proxy`: a job like CoMD's (NVMe-CR, section IV) that computes, writes checkpoints and
//! fails, on any file system.
//!
//! Its ranks are processes that step together. After every computing period each rank writes its
//! own file (N-N), and the newest steps are kept. A failure kills one rank at any moment, and all
//! others with it, as MPI does. They restart from the newest step of which every part is whole. So
//! a job that failed must end in the same state as one that did not.
//!
//! Must stay true: the computed state depends only on the arguments. A part is whole only if its
//! checksum matches.
//!
//! Does not know Cairn: `cairn run -- cairn-proxy /cairn/job` measures Cairn in the same way as
//! `cairn-proxy /tmp/job` measures another place.

use cairn_platform::checksum;
use cairn_testing::random::Random;
use clap::Parser;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Length of one read or write call, bytes.
const CALL_BYTES: usize = 4 << 20;
/// Number of rounds of work between two looks at the clock.
const ROUNDS: u32 = 200;
/// Argument that makes this program a rank.
const RANK: &str = "--as-rank";

/// Compute, write checkpoints, fail, restart, and report what that cost
#[derive(Parser, Debug)]
#[command(after_help = "\
Examples:
  cairn-proxy /tmp/job --ranks 4 --mebibytes 256 --period 5 --steps 20
  cairn run --persist ~/job -- cairn-proxy /cairn/job --mtbf 30 --seed 7")]
struct Arguments {
    /// Directory for the parts of checkpoints; created if missing
    directory: PathBuf,
    /// Number of processes
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Size of each rank's part of a checkpoint, MiB
    #[arg(long, default_value_t = 64)]
    mebibytes: usize,
    /// Computing time of each rank before a checkpoint, seconds
    #[arg(long, default_value_t = 1.0)]
    period: f64,
    /// Number of checkpoints
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Mean time between failures, seconds; 0: no failures
    #[arg(long, default_value_t = 0.0)]
    mtbf: f64,
    /// Maximum number of failures
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    failures: u64,
    /// Seed of the failure times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of checkpoints kept
    #[arg(long, default_value_t = 2)]
    keep: u64,
    /// Write each part to its medium before the next step (fsync)
    #[arg(long)]
    sync: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Result of a job.
#[derive(Serialize, Default, Debug)]
struct Report {
    /// Computing time that was needed, divided by the time that passed.
    progress: f64,
    seconds: f64,
    /// Average time that the slowest rank took to write its part, seconds.
    checkpoint_s: f64,
    /// Write rate of all ranks together, bytes per second.
    checkpoint_bytes_per_s: f64,
    checkpoints: u64,
    failures: u64,
    /// Average time from a failure until all ranks have their state back, seconds.
    recovery_s: f64,
    /// Number of steps that were computed again.
    steps_lost: u64,
    /// Checksums of the final states of the ranks.
    states: Vec<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ended = match words.first().map(String::as_str) {
        Some(RANK) => rank(&words[1..]),
        _ => Job::new(Arguments::parse()).run(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cairn-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

// The job.

struct Job {
    arguments: Arguments,
    chance: Random,
    /// Time at which a rank is killed.
    fails_at: Option<Instant>,
    report: Report,
    computed: u64,
    writing: f64,
    recovering: f64,
}

/// Ranks of the job, from one start to the next failure.
struct Ranks {
    processes: Vec<Child>,
    inputs: Vec<ChildStdin>,
    answers: Receiver<(usize, io::Result<String>)>,
}

/// Reason why not all ranks answered.
enum Stopped {
    Failure,
    Error(io::Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Stopped {
        Stopped::Error(error)
    }
}

impl Job {
    fn new(arguments: Arguments) -> Job {
        let chance = Random::new(arguments.seed);
        let (report, fails_at) = (Report::default(), None);
        Job { arguments, chance, fails_at, report, computed: 0, writing: 0.0, recovering: 0.0 }
    }

    fn run(mut self) -> io::Result<()> {
        fs::create_dir_all(&self.arguments.directory)?;
        let started = Instant::now();
        let mut failed: Option<Instant> = None;
        loop {
            let mut ranks = self.start()?;
            self.plan_failure();
            match self.advance(&mut ranks, &mut failed) {
                Ok(()) => break,
                Err(Stopped::Failure) => {
                    failed.get_or_insert_with(Instant::now);
                    self.report.failures += 1;
                    let victim = self.chance.draw() as usize % ranks.processes.len();
                    ranks.processes.swap(0, victim);
                }
                Err(Stopped::Error(error)) => return Err(error),
            }
        }
        self.finish(started.elapsed().as_secs_f64());
        Ok(())
    }

    fn start(&self) -> io::Result<Ranks> {
        let Arguments { directory, mebibytes, period, sync, .. } = &self.arguments;
        let (sender, answers) = channel();
        let (mut processes, mut inputs) = (Vec::new(), Vec::new());
        for number in 0..self.arguments.ranks {
            let mut rank = Command::new(std::env::current_exe()?)
                .args([RANK, &number.to_string(), &mebibytes.to_string(), &period.to_string()])
                .args([&sync.to_string()])
                .arg(directory)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            inputs.push(rank.stdin.take().expect("it is a pipe"));
            let output = BufReader::new(rank.stdout.take().expect("it is a pipe"));
            listen(number, output, sender.clone());
            processes.push(rank);
        }
        Ok(Ranks { processes, inputs, answers })
    }

    /// Draws the time of the next failure. Failures are equally likely in every second.
    fn plan_failure(&mut self) {
        let may_fail = self.report.failures < self.arguments.failures;
        let mean = if may_fail { self.arguments.mtbf } else { 0.0 };
        let drawn = (self.chance.draw() >> 11) as f64 / (1_u64 << 53) as f64;
        let after = (mean > 0.0).then(|| Duration::from_secs_f64(-mean * (1.0 - drawn).ln()));
        self.fails_at = after.map(|after| Instant::now() + after);
    }

    /// Runs from the newest whole checkpoint to the end.
    fn advance(&mut self, ranks: &mut Ranks, failed: &mut Option<Instant>) -> Result<(), Stopped> {
        let lists = self.ask(ranks, "whole")?;
        let parts = |list: &String| -> BTreeSet<u64> {
            list.split_whitespace().filter_map(|step| step.parse().ok()).collect()
        };
        let all: Vec<BTreeSet<u64>> = lists.iter().map(parts).collect();
        let is_whole = |step: &u64| all.iter().all(|parts| parts.contains(step));
        let newest = all[0].iter().copied().filter(is_whole).max().unwrap_or(0);
        self.ask(ranks, &format!("load {newest}"))?;
        if let Some(failed) = failed.take() {
            self.recovering += failed.elapsed().as_secs_f64();
        }
        self.report.steps_lost += self.computed.saturating_sub(newest);
        self.computed = newest;
        for step in newest + 1..=self.arguments.steps {
            self.ask(ranks, &format!("compute {step}"))?;
            self.computed = step;
            let taken = self.ask(ranks, &format!("write {step}"))?;
            let slowest = taken.iter().filter_map(|taken| taken.parse().ok()).fold(0.0, f64::max);
            self.writing += slowest;
            self.report.checkpoints += 1;
            if step > self.arguments.keep {
                self.ask(ranks, &format!("forget {}", step - self.arguments.keep))?;
            }
        }
        self.report.states = self.ask(ranks, "state")?;
        Ok(())
    }

    /// Sends a command to all ranks and waits for all answers.
    fn ask(&self, ranks: &mut Ranks, what: &str) -> Result<Vec<String>, Stopped> {
        for input in &mut ranks.inputs {
            writeln!(input, "{what}")?;
        }
        let mut answers = vec![None; ranks.inputs.len()];
        while answers.iter().any(Option::is_none) {
            let answered = match self.fails_at {
                None => ranks.answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(moment) => {
                    ranks.answers.recv_timeout(moment.saturating_duration_since(Instant::now()))
                }
            };
            match answered {
                Ok((rank, answer)) => answers[rank] = Some(answer?),
                Err(RecvTimeoutError::Timeout) => return Err(Stopped::Failure),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("all ranks have ended").into());
                }
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    fn finish(mut self, seconds: f64) {
        let Arguments { ranks, mebibytes, period, steps, .. } = self.arguments;
        let report = &mut self.report;
        let each = |sum: f64, count: u64| if count > 0 { sum / count as f64 } else { 0.0 };
        report.seconds = seconds;
        report.progress = steps as f64 * period / seconds;
        report.checkpoint_s = each(self.writing, report.checkpoints);
        report.recovery_s = each(self.recovering, report.failures);
        if report.checkpoint_s > 0.0 {
            report.checkpoint_bytes_per_s =
                ((ranks * mebibytes) << 20) as f64 / report.checkpoint_s;
        }
        if self.arguments.json {
            println!("{}", serde_json::to_string(report).expect("a report is JSON"));
            return;
        }
        println!(
            "{ranks} ranks, {steps} checkpoints of {mebibytes} MiB each, {period} s before each"
        );
        println!("progress rate     {:.3}  ({seconds:.1} s)", report.progress);
        println!(
            "checkpoint        {:.3} s  ({:.2} GB/s)",
            report.checkpoint_s,
            report.checkpoint_bytes_per_s / 1e9
        );
        println!(
            "failures          {}, {:.3} s each until all ranks go on; {} steps computed again",
            report.failures, report.recovery_s, report.steps_lost
        );
        println!("last state        {}", report.states.join(" "));
    }
}

/// Kills the ranks when the job ends or any of them fails.
impl Drop for Ranks {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
        }
        for process in &mut self.processes {
            let _ = process.wait();
        }
    }
}

/// Forwards the answers of a rank. Its end counts as an answer, too.
fn listen(
    rank: usize,
    mut output: impl BufRead + Send + 'static,
    to: Sender<(usize, io::Result<String>)>,
) {
    thread::spawn(move || {
        loop {
            let mut line = String::new();
            let answer = match output.read_line(&mut line) {
                Ok(0) => Err(io::Error::other(format!("rank {rank} has ended"))),
                Ok(_) => Ok(line.trim_end().to_string()),
                Err(error) => Err(error),
            };
            let is_last = answer.is_err();
            if to.send((rank, answer)).is_err() || is_last {
                return;
            }
        }
    });
}

// A rank.

struct Rank {
    number: u64,
    directory: PathBuf,
    period: Duration,
    sync: bool,
    state: Vec<u8>,
}

fn rank(words: &[String]) -> io::Result<()> {
    let [number, mebibytes, period, sync, directory] = words else {
        return Err(io::Error::other("started by cairn-proxy only"));
    };
    let number_of = |word: &String| word.parse::<f64>().map_err(io::Error::other);
    let mut rank = Rank {
        number: number_of(number)? as u64,
        directory: PathBuf::from(directory),
        period: Duration::from_secs_f64(number_of(period)?),
        sync: sync == "true",
        state: vec![0; (number_of(mebibytes)? as usize) << 20],
    };
    for line in io::stdin().lines() {
        let line = line?;
        let (what, step) = line.split_once(' ').unwrap_or((&line, "0"));
        let answer = rank.act(what, step.parse().map_err(io::Error::other)?)?;
        println!("{answer}");
    }
    Ok(())
}

impl Rank {
    fn act(&mut self, what: &str, step: u64) -> io::Result<String> {
        let started = Instant::now();
        match what {
            "whole" => return self.whole(),
            "load" if step == 0 => self.begin(),
            "load" => {
                self.state = self.read(step)?.ok_or_else(|| io::Error::other("it is torn"))?
            }
            "compute" => self.compute(step),
            "write" => self.write(step)?,
            "forget" => fs::remove_file(self.part(step))?,
            "state" => return Ok(format!("{:08x}", checksum::crc32c(0, &self.state))),
            _ => return Err(io::Error::other(format!("nobody does this: {what}"))),
        }
        Ok(started.elapsed().as_secs_f64().to_string())
    }

    fn part(&self, step: u64) -> PathBuf {
        self.directory.join(format!("state.{step}.{}", self.number))
    }

    fn begin(&mut self) {
        let mut random = Random::new(self.number);
        self.state
            .chunks_mut(8)
            .for_each(|word| word.copy_from_slice(&random.draw().to_le_bytes()));
    }

    /// Changes the whole state, and works for the rest of the period.
    fn compute(&mut self, step: u64) {
        let started = Instant::now();
        for word in self.state.chunks_exact_mut(8) {
            let number = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let next = number.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step;
            word.copy_from_slice(&next.to_le_bytes());
        }
        let mut forces = [1.0_f64; 512];
        while started.elapsed() < self.period {
            for round in 0..ROUNDS {
                let shift = 1.0 + f64::from(round % 7) * 1e-9;
                forces.iter_mut().for_each(|force| *force = force.mul_add(shift, 1e-9));
            }
        }
        black_box(forces);
    }

    /// Writes the state and, behind it, its checksum.
    fn write(&self, step: u64) -> io::Result<()> {
        let mut file = File::create(self.part(step))?;
        self.state.chunks(CALL_BYTES).try_for_each(|piece| file.write_all(piece))?;
        file.write_all(&checksum::crc32c(0, &self.state).to_le_bytes())?;
        if self.sync { file.sync_all() } else { Ok(()) }
    }

    /// Reads the state of a step. Returns `None` if its part is not whole.
    fn read(&self, step: u64) -> io::Result<Option<Vec<u8>>> {
        let mut file = File::open(self.part(step))?;
        let mut bytes = Vec::with_capacity(self.state.len() + 4);
        let mut piece = vec![0; CALL_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                count => bytes.extend_from_slice(&piece[..count]),
            }
        }
        let Some(sum) = bytes.len().checked_sub(4).map(|end| bytes.split_off(end)) else {
            return Ok(None);
        };
        let is_whole =
            bytes.len() == self.state.len() && sum == checksum::crc32c(0, &bytes).to_le_bytes();
        Ok(is_whole.then_some(bytes))
    }

    /// Lists the steps whose parts are whole.
    fn whole(&self) -> io::Result<String> {
        let mut steps = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let step = step_of(Path::new(&name), self.number);
            if let Some(step) =
                step.filter(|&step| self.read(step).is_ok_and(|found| found.is_some()))
            {
                steps.push(step.to_string());
            }
        }
        Ok(steps.join(" "))
    }
}

fn step_of(name: &Path, rank: u64) -> Option<u64> {
    let (step, owner) = name.to_str()?.strip_prefix("state.")?.split_once('.')?;
    (owner == rank.to_string()).then(|| step.parse().ok()).flatten()
}
