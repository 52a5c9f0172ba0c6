//! `cairn run`: a program in a store, and its files drained when it ends.
//!
//! Must stay true: the program's exit code is ours; the store is removed only when nothing in it is
//! needed any more; the last lines say what is safe where, and what to type next.

use crate::Context;
use crate::calls;
use crate::claim::Claim;
use crate::company::{self, Company, Last};
use crate::drain::{DrainReport, drain_with};
use crate::ending::{Ending, Safety};
use crate::error::{EXIT_DRAIN, Error, Result};
use crate::launch;
use crate::probe;
use crate::request::{Request, StoreArguments};
use crate::signals::{Event, Signals};
use crate::store::OpenStore;
use crate::unserved;
use cairn_agent::client::Client;
use cairn_agent::daemon;
use cairn_agent::job::AGENT_LOCK;
use cairn_agent::ranks;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How often a wait for a signal is interrupted to look around.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the agent is looked after.
const AGENT_EVERY: Duration = Duration::from_secs(2);
/// How long files may stay open after the program ended: processes that were killed take a moment
/// to go.
const SETTLE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  cairn run -- ./simulate input.dat
      files below /cairn live in memory; nothing is drained
  cairn run --persist /scratch/out --tier ram:8G -- mpirun -np 4 lmp -in melt.in
      closed files arrive in /scratch/out as plain files, verified
  cairn run --meta-tier file:/optane/melt:1G --tier file:/nvme/melt:100G -- ./simulate
      metadata and data in files of their own: what is closed or synced survives a crash of the node
  cairn run --tier dax:/pmem/melt:50G -- ./simulate
      persistent memory, mapped: what is written needs no system call to be durable
  cairn run --tier 'nvme-tcp://storage1/nqn.2026-11.io.cairn:target?nsid=1' -- ./simulate
      a namespace of another machine, of cairn target there or any other NVMe/TCP target
  srun -N 2 -n 8 cairn run --persist /scratch/out -- ./simulate
      a store on each node, which its ranks share: the last one that ends drains it
  srun --ntasks-per-node=1 cairn run --tier nvme-tcp:cluster.toml -- ./simulate
      each node has its part of the targets in the file, as cairn plan places them
  cairn run --job melt -- ./resume.sh
      goes on in the store that an earlier run of job melt left

Exit codes: those of the command (128 + N if signal N killed it); 127 command not found, 126 not
executable; 75 the command succeeded but its files could not all be drained (the store is kept);
2 the request was refused, nothing was changed.

The report at the end, on standard error, is one JSON document with --json.

Options come from the command line, else from CAIRN_RUN_JOB, CAIRN_RUN_TIER, ..., else from the
section [run] of cairn.toml in the current directory.";

/// Run a command with a store below /cairn.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Nothing in the store need be kept: remove it at the end, whatever happens
    #[arg(long, env = "CAIRN_RUN_DISCARD")]
    discard: bool,
    /// Count calls about files, by function and by how they end, and say at the end which were not served; all of them:
    /// cairn calls
    #[arg(long, env = "CAIRN_RUN_REPORT_CALLS")]
    report_calls: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Carries out the command; its exit code.
pub fn run(context: &Context, arguments: Arguments) -> Result<i32> {
    let Context { roots, settings, .. } = context;
    let discard = arguments.discard || settings.run.discard.unwrap_or(false);
    let counts_calls = arguments.report_calls || settings.run.report_calls.unwrap_or(false);
    let request = Request::new(arguments.store, settings.run.clone())?;
    let library = launch::find_library()?;
    let words: Vec<String> =
        arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(persist) = request.persist.as_ref().filter(|_| discard) {
        return Err(Error::DiscardPersist { path: persist.clone() });
    }
    let company = Company::of_this_process(&request);
    let claim = match &company {
        Some(company) => company.enter(roots, request, &words)?,
        None => Claim::obtain(roots, &request, &words)?,
    };
    if let Some(persist) = claim.store.job.persist.as_ref().filter(|_| discard) {
        return Err(Error::DiscardPersist { path: persist.clone() });
    }
    let program = arguments.command.first().map(OsString::as_os_str).unwrap_or_default();
    if let Some(note) = company::other_nodes(program, &claim.store.job.mount) {
        eprintln!("cairn: {note}");
    }
    let executed = execute(&claim, &library, &arguments.command, counts_calls, |_| {});
    let code = executed.as_ref().ok().map(|ran| exit_code(ran.status));
    let last = match &company {
        Some(company) => match company.leave(&claim, code)? {
            Some(last) => last,
            // Another one ends what was begun together.
            None => return executed.map(|ran| exit_code(ran.status)),
        },
        None => Last { others_failed: false, is_unused: claim.is_new && code.is_none() },
    };
    match executed {
        Ok(ran) => {
            let others_failed = last.others_failed;
            let options = Options { discard, counts_calls, others_failed, words: &words };
            finish(context, claim, ran, &options)
        }
        Err(error) => {
            if last.is_unused {
                // Nothing ran in it. The error that is reported is the first one.
                let _ = claim.remove();
            }
            Err(error)
        }
    }
}

/// A program that ran.
pub struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    agent: Client,
    signals: Signals,
    /// Starts of MPI programs in the store before.
    launches_before: usize,
}

/// Runs the program to its end; `prepare` gets it just before it is started.
pub fn execute(
    claim: &Claim,
    library: &Path,
    words: &[OsString],
    counts_calls: bool,
    prepare: impl FnOnce(&mut Command),
) -> Result<Ran> {
    // Before anything starts a thread: the witness is forked.
    let mut signals =
        Signals::block().map_err(Error::file("block signals for", claim.store.directory()))?;
    let agent = claim.store.agent()?;
    probe::check(&claim.store, library)?;
    let launches_before = ranks::launches(claim.store.directory())?.len();
    if counts_calls {
        calls::prepare(&claim.store)?;
    }
    let mut command = launch::command(&claim.store, library, words, counts_calls);
    signals.unblock_in(&mut command);
    prepare(&mut command);
    let mut child = command.spawn().map_err(|source| Error::Execute {
        command: words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default(),
        source,
    })?;
    let status = wait(&claim.store, &mut child, &mut signals)?;
    Ok(Ran { status, agent, signals, launches_before })
}

/// Passes signals on until the program ends, and replaces an agent that was killed.
fn wait(store: &OpenStore, child: &mut Child, signals: &mut Signals) -> Result<ExitStatus> {
    let mut agent_seen = Instant::now();
    loop {
        if agent_seen.elapsed() >= AGENT_EVERY {
            agent_seen = Instant::now();
            if !daemon::is_locked(store.directory(), AGENT_LOCK).unwrap_or(true) {
                // If it cannot be started now, the end of the run tries again and says why.
                let _ = store.agent();
            }
        }
        match signals.wait(LOOK_EVERY) {
            Event::Forward(signal) => {
                // SAFETY: the child was not waited for successfully yet, so its number is still its
                // own.
                unsafe { libc::kill(child.id() as libc::pid_t, signal) };
            }
            Event::Child | Event::Shared(_) | Event::Timeout => {}
        }
        let ended = child.try_wait().map_err(Error::file("wait for", Path::new("the command")))?;
        if let Some(status) = ended {
            return Ok(status);
        }
    }
}

/// As a shell has it.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// What the user asked for that matters at the end.
struct Options<'a> {
    discard: bool,
    counts_calls: bool,
    /// The command of another rank that ran in the store failed.
    others_failed: bool,
    words: &'a [String],
}

/// Drains what is left, says what is safe where, and removes the store if it is not needed any
/// more.
fn finish(context: &Context, claim: Claim, ran: Ran, options: &Options) -> Result<i32> {
    let Ran { status, agent, mut signals, launches_before } = ran;
    let Options { discard, counts_calls, others_failed, words } = *options;
    let code = exit_code(status);
    let safety = match discard {
        true => Safety::Discarded,
        false => match drain(context, &claim, agent, &mut signals) {
            Some(Ok(report)) => Safety::of(&claim.store.job, report),
            Some(Err(error)) => Safety::Failed { reason: error.to_string() },
            None => Safety::Interrupted,
        },
    };
    let removes = discard || (code == 0 && !others_failed && safety.needs_no_store());
    // A list that cannot be read is none of the program's; `status` says why.
    let launches = ranks::launches(claim.store.directory()).unwrap_or_default();
    let launch = launches.into_iter().skip(launches_before).next_back();
    let undrained = claim.store.job.persist.is_some() && !safety.is_complete();
    // Nor is what they made of the file of counts.
    let calls = counts_calls.then(|| calls::load(&claim.store).ok().flatten()).flatten();
    let ending = Ending {
        roots: &context.roots,
        job: claim.store.job.clone(),
        store: claim.store.directory().to_path_buf(),
        command: words.to_vec(),
        code,
        safety,
        launch,
        unserved: unserved::programs(claim.store.directory()),
        removed: removes,
        calls,
    };
    if removes {
        claim.remove()?;
    }
    match context.json {
        true => eprintln!("{}", ending.json()),
        false => ending.lines().iter().for_each(|line| eprintln!("cairn: {line}")),
    }
    Ok(if code == 0 && undrained && !discard { EXIT_DRAIN } else { code })
}

/// Has the agent drain everything; None if the user does not want to wait for it.
fn drain(
    context: &Context,
    claim: &Claim,
    agent: Client,
    signals: &mut Signals,
) -> Option<Result<DrainReport>> {
    let (sender, result) = mpsc::channel();
    let quiet = context.json;
    let store = OpenStore::open(claim.store.directory());
    thread::spawn(move || {
        let report = store.and_then(|store| drain_with(&store, Some(agent), SETTLE, quiet));
        // The other side may have stopped listening.
        let _ = sender.send(report);
    });
    loop {
        match result.recv_timeout(Duration::from_millis(1)) {
            Ok(report) => return Some(report),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        // Not SIGUSR1 and the like: those were meant for the program.
        if let Event::Forward(signal) | Event::Shared(signal) = signals.wait(LOOK_EVERY / 10) {
            if matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT) {
                return None;
            }
        }
    }
}
