//! `cairn drill`: kills a run at random times and restarts it, to test before a long campaign that
//! it recovers.
//!
//! Must stay true: the drill uses its own job, store, tiers and, if it drains, directory, and no
//! archive, so that it touches nothing of real runs. The program is killed and started as a user
//! would do it, by `cairn run` on the command line. The seed determines the times. A signal that
//! ends the drill ends the run. The drill does not judge the program's results, only how it ends.

use cairn_agent::store::volume::now;
use cairn_device::MediumKind;
use cairn_device::media::medium::{self, Contents};
use cairn_job::checkpoint::name::Step;
use cairn_job::checkpoint::sets::register::Checkpoint;
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Context;
use crate::claim::claim_existing;
use crate::drain::checkpoints::Found;
use crate::error::{DrillError, Error, Result, SettingError, StoreError, TierError};
use crate::output::{self, count, duration};
use crate::request::checked_persist;
use crate::run::exit_code;
use crate::run::signals::{Event, Signals};
use crate::settings::RunSettings;
use crate::settings::one_or_more::OneOrMore;
use crate::store::OpenStore;
use crate::store::survey::Look;
use crate::store::tier::{self, TierRequest};

/// Interval between two checks whether processes have gone, and longest wait for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long to wait for killed processes to disappear.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  cairn drill -- ./simulate --resume
      kill it three times, each time after 10 to 60 seconds, and start it again
  cairn drill --kills 5 --after 1m..10m --restart './simulate --from-newest' -- ./simulate
      if restarts need another command, which a shell runs
  cairn drill --seed 17 -- ./simulate --resume
      kill it at the same times again

The drill kills the whole process group with SIGKILL. A restart continues from the newest complete
checkpoint in the store; the work since then is lost. The store is the drill's own. It is removed
when the run has ended well. Nothing is archived. The tiers in CAIRN_RUN_TIER or cairn.toml must be
in memory, or new files or empty devices. The drill refuses other tiers, and all remote ones.

Exit codes: 0 every restart worked and the run ended well; 1 it did not (the message says why; the
store is kept), or it ended before the last kill, or the store had no file at any kill; 128 + N
signal N ended the drill; 2 refused.";

/// Kill a run at random times and see whether it recovers.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,
    /// Range of the time from a start to the kill
    #[arg(long, value_name = "TIME..TIME", default_value = "10s..60s", value_parser = span)]
    after: Span,
    /// Seed of the random times [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Shell command for restarts [default: the same command as for the first start]
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
    /// An empty directory for the drill to drain to, if runs drain: not that of real runs
    #[arg(long, value_name = "DIR")]
    persist: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A range of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    from: f64,
    to: f64,
}

/// Parses `10s..60s`.
fn span(text: &str) -> Result<Span, String> {
    let bad = || "write two times, as in 10s..60s".to_string();
    let (from, to) = text.split_once("..").ok_or_else(bad)?;
    let span = Span { from: duration::argument(from)?, to: duration::argument(to)? };
    if span.from <= span.to { Ok(span) } else { Err(bad()) }
}

/// Result of the drill.
#[derive(Debug, Serialize)]
struct DrillReport {
    /// Job of the drill.
    job: String,
    /// Seed of the times.
    seed: u64,
    /// The kills.
    kills: Vec<Kill>,
    /// Exit code of the program's last start.
    exit_code: i32,
    /// Whether every restart worked and the run succeeded.
    ended_well: bool,
    /// Work lost by all kills together, in seconds.
    lost_seconds: f64,
}

/// One kill and what it left.
#[derive(Debug, Default, Serialize)]
struct Kill {
    /// Seconds after the start of the program.
    after_seconds: f64,
    /// Newest complete checkpoint, from which it was restarted; null if there was none.
    checkpoint: Option<String>,
    step: Option<Step>,
    /// Lost work in seconds: since that checkpoint was written, or since the start.
    lost_seconds: f64,
    /// Checkpoints that it was writing.
    unfinished: Vec<String>,
    /// Number of files in the store.
    files: u64,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let seed = arguments.seed.unwrap_or_else(|| now().0 as u64);
    let drill = Drill {
        job: format!("drill-{}", std::process::id()),
        persist: persist(context, arguments)?,
        program: std::env::current_exe().map_err(Error::file("find", Path::new("cairn")))?,
        context,
        arguments,
    };
    check_tiers(&context.settings.run)?;
    if context.roots.find(&drill.job).is_some() {
        // A store of a failed drill whose process had the same id.
        return Err(Error::Store(StoreError::StoreExists { job: drill.job }));
    }
    // Must come before anything starts a thread, because it forks the witness.
    let mut signals =
        Signals::block().map_err(Error::file("block signals for", Path::new(&drill.job)))?;
    let report = match drill.hold(seed, &mut signals) {
        Err(error @ Error::Drill(DrillError::DrillEnded { .. })) => {
            if let Some(directory) = context.roots.find(&drill.job) {
                wait_until_unused(&OpenStore::open(&directory)?)?;
            }
            drill.clear()?;
            return Err(error);
        }
        held => held?,
    };
    say(context, &report);
    if !report.ended_well {
        return Err(Error::Drill(DrillError::NotRecovered {
            job: report.job,
            code: report.exit_code,
        }));
    }
    drill.clear()?;
    match report.kills.len() as u32 {
        kills if kills < arguments.kills => {
            Err(Error::Drill(DrillError::TooFewKills { kills, wanted: arguments.kills }))
        }
        kills if report.kills.iter().all(|kill| kill.files == 0) => {
            Err(Error::Drill(DrillError::NothingAtStake { kills }))
        }
        _ => Ok(()),
    }
}

/// Returns the directory of the drill. Errors: it is not empty; or none was given, and the drill
/// would drain to that of real runs.
fn persist(context: &Context, arguments: &Arguments) -> Result<Option<PathBuf>> {
    let refused = |path: &Path, problem: &str| {
        Error::Setting(SettingError::Persist {
            path: path.to_path_buf(),
            problem: problem.to_string(),
            advice: "give the drill an empty directory of its own, with --persist",
        })
    };
    let Some(path) = &arguments.persist else {
        let of_runs = std::env::var_os("CAIRN_RUN_PERSIST").map(PathBuf::from);
        return match of_runs.or(context.settings.run.persist.clone()) {
            Some(path) => Err(refused(&path, "is used by real runs")),
            None => Ok(None),
        };
    };
    let path = checked_persist(path)?;
    let mut entries = std::fs::read_dir(&path).map_err(Error::file("list", &path))?;
    match entries.next() {
        None => Ok(Some(path)),
        Some(_) => Err(refused(&path, "is not empty")),
    }
}

/// Refuses configured tiers that hold something, which the drill would recover, write to and
/// remove; and tiers that another machine may have.
fn check_tiers(of_runs: &RunSettings) -> Result<()> {
    let said = |name: &str| std::env::var(name).ok();
    let list = |text: String| text.split(',').map(str::to_string).collect();
    let of_file = || of_runs.tier.clone().map(OneOrMore::into_vec);
    let tiers = said("CAIRN_RUN_TIER").map(list).or_else(of_file).unwrap_or_default();
    let meta = said("CAIRN_RUN_META_TIER").or(of_runs.meta_tier.clone());
    for text in tiers.into_iter().chain(meta) {
        // A namespace that is free at this moment may be another machine's a moment later.
        let may_be_used = !text.starts_with("nvme-tcp") && is_free(&tier::parse(&text)?);
        if !may_be_used {
            let problem = "may hold data of real runs".to_string();
            let advice = "give the drill one in memory, or a file that is not there yet, with CAIRN_RUN_TIER \
                          and CAIRN_RUN_META_TIER"
                .into();
            return Err(Error::Tier(TierError::TierFile { path: text.into(), problem, advice }));
        }
    }
    Ok(())
}

/// Whether nothing is in the place of the tier.
fn is_free(tier: &TierRequest) -> bool {
    match (tier.device.medium(), &tier.path) {
        (Some(MediumKind::File | MediumKind::Dax), Some(path)) => path.symlink_metadata().is_err(),
        (Some(_), Some(path)) => matches!(medium::contents(path, false), Ok(Contents::Nothing)),
        _ => true,
    }
}

struct Drill<'a> {
    job: String,
    persist: Option<PathBuf>,
    /// Path of this program.
    program: PathBuf,
    context: &'a Context,
    arguments: &'a Arguments,
}

impl Drill<'_> {
    /// Starts the program and kills it repeatedly, then lets it run to its end.
    fn hold(&self, seed: u64, signals: &mut Signals) -> Result<DrillReport> {
        let mut report = DrillReport {
            job: self.job.clone(),
            seed,
            kills: Vec::new(),
            exit_code: 0,
            ended_well: false,
            lost_seconds: 0.0,
        };
        let Span { from, to } = self.arguments.after;
        let mut random = Random(seed);
        for _ in 0..self.arguments.kills {
            let after = Duration::from_secs_f64(from + (to - from) * random.fraction());
            let mut child = self.start(!report.kills.is_empty(), signals)?;
            let started = Instant::now();
            if let Some(status) = wait(&mut child, Some(after), signals)? {
                return Ok(DrillReport { ended_well: status.success(), ..report.with(status) });
            }
            kill(&mut child)?;
            let kill = self.look(started.elapsed())?;
            report.lost_seconds += kill.lost_seconds;
            if !self.context.json {
                output::say!("cairn: {}: {}", self.job, kill.shown(report.kills.len() + 1));
            }
            report.kills.push(kill);
        }
        let mut child = self.start(!report.kills.is_empty(), signals)?;
        // Without a limit the wait ends with the program.
        let status = wait(&mut child, None, signals)?.unwrap_or_default();
        Ok(DrillReport { ended_well: status.success(), ..report.with(status) })
    }

    /// Starts the program in a process group of its own, as a user would.
    fn start(&self, again: bool, signals: &Signals) -> Result<Child> {
        let mut command = Command::new(&self.program);
        if let Some(root) = self.context.roots.explicit() {
            command.arg("--store-root").arg(root);
        }
        command.args(["run", "--rehearsal", "--job", &self.job]);
        if let Some(persist) = &self.persist {
            command.arg("--persist").arg(persist);
        }
        command.arg("--");
        match self.arguments.restart.as_ref().filter(|_| again) {
            Some(restart) => command.args(["sh", "-c", restart]),
            None => command.args(&self.arguments.command),
        };
        // The program's output must not mix with that of the drill.
        command.stdout(io::stderr()).process_group(0);
        if io::stdin().is_terminal() {
            // A background process group that reads the terminal is stopped.
            command.stdin(Stdio::null());
        }
        signals.unblock_in(&mut command);
        command.spawn().map_err(Error::file("execute", &self.program))
    }

    /// Examines what a kill left. Errors: the store cannot be read.
    fn look(&self, ran: Duration) -> Result<Kill> {
        let died_ns = now().0;
        let Some(directory) = self.context.roots.find(&self.job) else {
            // The run was killed before it had a store.
            return Ok(Kill { lost_seconds: ran.as_secs_f64(), ..Kill::default() });
        };
        let store = OpenStore::open(&directory)?;
        wait_until_unused(&store)?;
        let files = Look::at(&store)?.contents.files;
        let found = Found::look(&store, &store.volumes()?)?;
        let newest = found.complete.iter().max_by_key(|known| known.id);
        let seconds_since =
            |known: &Checkpoint| died_ns.saturating_sub(known.modified_ns).max(0) as f64 / 1e9;
        Ok(Kill {
            after_seconds: ran.as_secs_f64(),
            checkpoint: newest.map(|known| known.name.to_string()),
            step: newest.and_then(|known| known.name.step.clone()),
            lost_seconds: newest.map_or(ran.as_secs_f64(), seconds_since),
            unfinished: found.unfinished.iter().map(|one| one.name.to_string()).collect(),
            files,
        })
    }

    /// Removes the drill's store. Drained files stay.
    fn clear(&self) -> Result<()> {
        match self.context.roots.find(&self.job) {
            Some(directory) => claim_existing(OpenStore::open(&directory)?)?.remove(),
            // The run removed the store because everything was drained.
            None => Ok(()),
        }
    }
}

impl DrillReport {
    fn with(self, status: ExitStatus) -> DrillReport {
        DrillReport { exit_code: exit_code(status), ..self }
    }
}

impl Kill {
    fn shown(&self, number: usize) -> String {
        let (after, lost) =
            (duration::human(self.after_seconds), duration::human(self.lost_seconds));
        let from = match &self.checkpoint {
            Some(name) => format!("starts again from {name}"),
            None => "starts again from the beginning, there is no complete checkpoint".to_string(),
        };
        format!("kill {number} after {after}: {from}, {lost} of work are lost")
    }
}

/// Waits for the end of the program, at most `limit`; None if it still runs. Errors: a signal ends
/// the drill; the program was killed first.
fn wait(
    child: &mut Child,
    limit: Option<Duration>,
    signals: &mut Signals,
) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        let ended = child.try_wait().map_err(Error::file("wait for", Path::new("the command")))?;
        if ended.is_some() || limit.is_some_and(|limit| started.elapsed() >= limit) {
            return Ok(ended);
        }
        // The program is in another process group, so no signal to ours has reached it.
        if let Event::Forward(signal) | Event::Shared(signal) = signals.wait(LOOK_EVERY) {
            kill(child)?;
            return Err(Error::Drill(DrillError::DrillEnded { signal }));
        }
    }
}

/// Kills the program with everything in its process group.
fn kill(child: &mut Child) -> Result<()> {
    // SAFETY: kill takes numbers only. The child has not been reaped, so the id of its group cannot
    // belong to another one.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    child.wait().map(drop).map_err(Error::file("wait for", Path::new("the command")))
}

/// Waits until nobody uses the store: killed processes, and those that lost their parent, take a
/// moment to disappear.
fn wait_until_unused(store: &OpenStore) -> Result<()> {
    let started = Instant::now();
    loop {
        let living = Look::at(store)?.living;
        if living == 0 {
            return Ok(());
        }
        if started.elapsed() > DEATH_PATIENCE {
            return Err(Error::Drill(DrillError::ProcessesSurvived { processes: living }));
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn say(context: &Context, report: &DrillReport) {
    if context.json {
        // The error is ignored: the report can always be written as JSON.
        let _ = output::json(report);
        return;
    }
    let kills = count(report.kills.len() as u64, "kill");
    let lost = duration::human(report.lost_seconds);
    let end = match report.ended_well {
        true => "the run ended well".to_string(),
        false => format!("the run ended with exit code {}", report.exit_code),
    };
    output::line(&format!("{kills} (--seed {}), {lost} of work lost: {end}", report.seed));
}

/// Random numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    /// Returns a number from 0 to below 1.
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_two_in_order() {
        assert_eq!(span("10s..1m"), Ok(Span { from: 10.0, to: 60.0 }));
        assert_eq!(span("5..5"), Ok(Span { from: 5.0, to: 5.0 }));
        for bad in ["10s", "..", "1m..10s", "a..b"] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_seed_decides_the_times() {
        let fractions = |seed| {
            let mut random = Random(seed);
            [random.fraction(), random.fraction(), random.fraction()]
        };
        assert_eq!(fractions(7), fractions(7));
        assert_ne!(fractions(7), fractions(8));
        assert!(fractions(7).iter().all(|fraction| (0.0..1.0).contains(fraction)));
    }
}
