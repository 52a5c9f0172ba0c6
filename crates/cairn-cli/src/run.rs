//! `cairn run`: runs a program in a store and drains its files when it ends.
//!
//! Must stay true: cairn exits with the program's exit code. The store is removed only when nothing
//! in it is needed any more. The last lines say which files are safe, where they are, and which
//! command to type next.

pub(crate) mod ending;
pub(crate) mod launch;
pub(crate) mod launcher;
pub(crate) mod probe;
pub(crate) mod real_prefix;
pub(crate) mod signals;
mod tmpdir;
pub(crate) mod unserved;

use cairn_agent::agent::client::Client;
use cairn_agent::archive::check_credentials;
use cairn_agent::model::archive::{ArchivePolicy, ArchiveStatus};
use cairn_agent::model::drain_task::{DrainTask, Wanted};
use cairn_agent::model::holder::Holder;
use cairn_agent::model::job::{AGENT_LOCK, Scope};
use cairn_agent::model::policy::AtEnd;
use cairn_agent::model::protocol::{Failed, Status};
use cairn_agent::model::{lock, ranks};
use clap::Args;
use clap::builder::BoolishValueParser;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::claim::Claim;
use crate::create::staging::inputs;
use crate::drain::drain_state::DrainProgress;
use crate::drain::{DrainReport, checkpoints, drain_with, lag};
use crate::error::{
    EXIT_DRAIN, Error, LaunchError, MountError, PersistError, Result, SettingError, StageError,
};
use crate::mount::place::{self, Hidden, hidden_by};
use crate::mount::start::mount;
use crate::report::calls;
use crate::request::{MadePersist, Request, StoreArguments};
use crate::resume::earlier;
use crate::run::ending::{Ending, Safety};
use crate::run::launcher::{Last, NodeRanks};
use crate::run::real_prefix::Strayed;
use crate::run::signals::{Event, Signals};
use crate::settings::archive::{self, ArchiveArguments, archive_with};
use crate::settings::checkpoint_options::{self, CheckpointArguments};
use crate::settings::drain_options::{DrainArguments, DrainRequest};
use crate::settings::input_options::{InputArguments, InputRequest, ReusePolicy};
use crate::settings::log_level::LevelArgument;
use crate::settings::resume_option::Resume;
use crate::settings::space::{self, SpaceArguments};
use crate::settings::stage_option::{self, Extent, Stage, StageArgument};
use crate::settings::walltime::Walltime;
use crate::store::{OpenStore, survey};
use crate::{Context, program};

/// Longest wait for a signal before the other conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Longest wait at the end of a run for programs that still use its mount.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two checks that the agent lives.
const AGENT_EVERY: Duration = Duration::from_secs(2);
/// How long files may stay open after the program ended, because killed processes take a moment to
/// disappear.
const SETTLE: Duration = Duration::from_secs(2);
/// How long to wait for the agent to accept a request and report that everything is drained, when
/// the user no longer waits for the drain.
const TELL_PATIENCE: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  cairn run --job melt -- ./simulate input.dat
      files below /cairn stay in memory, nothing is drained; the same command again resumes the
      store that is left
  cairn run --job melt --persist /scratch/out --tier ram:8G -- mpirun -np 4 lmp -in melt.in
      closed files are drained to /scratch/out as plain, verified files
  cairn run --persist /scratch/out --map /cairn/dump=dumps/run7 -- ./simulate
      files below /cairn/dump are drained to /scratch/out/dumps/run7
  cairn run --meta-tier file:/optane/melt:1G --tier file:/nvme/melt:100G -- ./simulate
      metadata and data are in files; closed or synced files survive a crash of the node
  cairn run --tier dax:/pmem/melt:50G -- ./simulate
      persistent memory is mapped; written data become durable without a system call
  cairn run --tier 'nvme-tcp://storage1/nqn.2026-11.io.cairn:target?nsid=1' -- ./simulate
      a namespace of another machine, exported by cairn target or any other NVMe/TCP target
  srun -N 2 -n 8 cairn run --persist /scratch/out -- ./simulate
      one store per node, shared by its ranks; the last rank to end drains it
  srun --ntasks-per-node=1 cairn run --tier nvme-tcp:cluster.toml -- ./simulate
      each node gets its part of the targets in the file, as cairn plan places them
  cairn run --job melt -- ./resume.sh
      resumes the store that an earlier run of job melt left
  cairn run --job melt --persist /scratch/out --stage -- ./resume.sh
      also works on another node, or if this one was wiped: fills a new store from /scratch/out
  cairn run --job melt --persist /scratch/out --stage=on-demand -- ./resume.sh
      the same, but the command starts at once; files arrive while it runs, opened files first

Exit codes: the command's own (128 + N if signal N killed it); 127 command not found; 126 command
not executable; 75 the command and the node's other ranks succeeded, but some files could not be
drained (the store is kept); 2 the request was refused and nothing was changed; 1 with a line that
begins with \"cairn:\", something failed before the command could start, as in staging in.

The report at the end goes to standard error. With --json, it is one JSON document.

Options come from the command line, else from CAIRN_RUN_JOB, CAIRN_RUN_TIER, ..., else from
section [run] of cairn.toml in the current directory. Options of the drain come from
CAIRN_DRAIN_RATE, ... and section [drain].";

/// Run a command with a store below /cairn.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten, next_help_heading = "Checkpoints and files")]
    checkpoint: CheckpointArguments,
    #[command(flatten)]
    drain: DrainArguments,
    #[command(flatten, next_help_heading = "Space")]
    space: SpaceArguments,
    /// Write metrics of the job to this file every five seconds, in the Prometheus text format
    #[arg(help_heading = None, long, value_name = "FILE.prom", env = "CAIRN_RUN_METRICS_FILE")]
    metrics_file: Option<PathBuf>,
    /// Level of the agent's log, which cairn log shows [default: info]
    #[arg(help_heading = None, long, value_name = "LEVEL", env = "CAIRN_RUN_LOG_LEVEL")]
    log_level: Option<LevelArgument>,
    /// Fill a new store with what the job drained to --persist, or, if nothing is there, with what
    /// it archived: all files as they were at one moment. Every file is compared with the manifest.
    /// A checkpoint with a damaged file is left out as a whole. --stage without a value means
    /// whole. With on-demand the command starts at once, and opening a file waits for its data;
    /// damage is then found too late to use an older checkpoint: opening that file fails (EIO), and
    /// the next run takes the older one. Archived files always come before the command starts
    /// [default: nothing comes]
    #[arg(
        long,
        value_name = "WHEN",
        env = "CAIRN_RUN_STAGE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "whole",
        hide_possible_values = false
    )]
    stage: Option<StageArgument>,
    #[command(flatten)]
    inputs: InputArguments,
    /// Begin anew, although an earlier start of the job, or another job, has files in --persist:
    /// first move what they drained there to cairn-aside.JOB.N in that directory
    #[arg(long, conflicts_with_all = ["stage", "shared", "resume"])]
    fresh: bool,
    /// With --stage, bring only the newest complete checkpoint of each family, and the files that
    /// belong to no checkpoint
    #[arg(help_heading = None, long, value_name = "YES|NO", env = "CAIRN_RUN_NEWEST_ONLY", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    newest_only: Option<bool>,
    /// What the command finds in a store that exists already. checked: all files; the newest
    /// checkpoint of each family is compared with its checksums, a damaged file is repaired from
    /// its copy in the persist directory, and if no intact copy exists, the checkpoint is moved to
    /// .cairn-damaged and the one before it is used. So is a step (checkpoint-20) that the last run
    /// did not finish, and that its framework could not load. as-is: all files as the last run left
    /// them [default: checked]
    #[arg(help_heading = None, long, value_name = "WHAT", env = "CAIRN_RUN_RESUME", hide_possible_values = true)]
    resume: Option<Resume>,
    #[command(flatten, next_help_heading = "Archive")]
    archive: ArchiveArguments,
    /// Remove the store at the end, whatever happens: nothing in it needs to be kept
    #[arg(long, value_name = "YES|NO", env = "CAIRN_RUN_DISCARD", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    discard: Option<bool>,
    /// Count the program's file calls, by function and result, and print at the end which ones were
    /// not served; cairn calls shows all of them
    #[arg(help_heading = None, long, value_name = "YES|NO", env = "CAIRN_RUN_REPORT_CALLS", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    report_calls: Option<bool>,
    /// Mount the store for the time of the run, too, so that programs that the library does not
    /// reach see its files: static programs, containers, other shells
    #[arg(help_heading = None, long, value_name = "YES|NO", env = "CAIRN_RUN_MOUNT_FUSE", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    mount_fuse: Option<bool>,
    /// Let programs make their temporary files in the store: TMPDIR is /cairn/tmp, and nothing in
    /// it is drained. Faster for programs that rename such files to their places, as Lightning
    /// does. Programs cannot make sockets and FIFOs there, which Python's multiprocessing.Manager
    /// and MPI do [default: no]
    #[arg(help_heading = None, long, value_name = "YES|NO", env = "CAIRN_RUN_TMPDIR", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    tmpdir: Option<bool>,
    /// Run for `cairn drill`: touches only the store and what the command line names
    #[arg(long, hide = true)]
    rehearsal: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Arguments {
    /// Whether this is an inner run of a drill.
    pub fn is_rehearsal(&self) -> bool {
        self.rehearsal
    }
}

/// Runs the command. Returns the exit code.
pub fn run(context: &Context, arguments: Arguments) -> Result<i32> {
    let Context { roots, settings, .. } = context;
    let is_real = !arguments.is_rehearsal();
    let discard = is_real && arguments.discard.or(settings.run.discard).unwrap_or(false);
    let counts_calls = arguments.report_calls.or(settings.run.report_calls).unwrap_or(false);
    let has_tmpdir = arguments.tmpdir.or(settings.run.tmpdir).unwrap_or(false);
    let mounts = is_real && arguments.mount_fuse.or(settings.run.mount_fuse).unwrap_or(false);
    let resume = Resume::of(arguments.resume, settings.run.resume.clone())?;
    let newest_only = arguments.newest_only.or(settings.run.newest_only).unwrap_or(false);
    let extent = if newest_only { Extent::Newest } else { Extent::All };
    let stage = stage_option::stage(arguments.stage, settings.run.stage.clone(), extent)?;
    let stage = if is_real { stage } else { Stage::Nothing };
    let job = arguments.store.job.as_ref().or(settings.run.job.as_ref());
    let begins = stage == Stage::Nothing && job.is_none_or(|job| roots.find(job).is_none());
    let persist = arguments.store.persist.as_ref().or(settings.run.persist.as_ref());
    let made = MadePersist::make(persist.filter(|_| begins));
    let (checkpoint, files) = (settings.checkpoint.clone(), settings.files.clone());
    let metrics = arguments.metrics_file.or(settings.run.metrics_file.clone());
    let level = checkpoint.levels.archive.clone();
    let archive = match is_real {
        true => archive::policy(arguments.archive, settings.archive.clone(), level)?,
        false => None,
    };
    let mut request = Request {
        metrics: metrics.filter(|_| is_real).map(|path| figures(&path)).transpose()?,
        log: arguments.log_level.map(Into::into).or(settings.run.log_level),
        checkpoint: checkpoint_options::policy(arguments.checkpoint, checkpoint, files)?,
        drain: DrainRequest::new(arguments.drain, settings.drain.clone())?,
        stage,
        resume,
        space: space::policy(&arguments.space, &settings.space)?,
        archive,
        fresh: arguments.fresh,
        ..Request::new(arguments.store, settings.run.clone())?
    };
    // A drill drains only to a directory that nobody needs.
    request.shared |= !is_real;
    if is_real {
        launcher::settle_in_directory_of_node(&mut request)?;
        let InputArguments { stage_in, limits } = arguments.inputs;
        let mount = request.mount_or_default();
        request.inputs = InputRequest::new(stage_in, limits, settings.stage.clone(), &mount)?;
        request.drain.slots = request.inputs.slots.clone();
    }
    if stage != Stage::Nothing
        && request.inputs.named.is_empty()
        && request.persist.is_none()
        && request.archive.is_none()
        && request.job.as_ref().is_none_or(|job| roots.find(job).is_none())
    {
        return Err(Error::Persist(PersistError::NothingToStage));
    }
    if request.map.is_some()
        && request.persist.is_none()
        && request.job.as_ref().is_none_or(|job| roots.find(job).is_none())
    {
        let problem = "it needs a persist directory to place files in; name it with --persist";
        return Err(Error::Setting(SettingError::Option {
            option: "--map",
            problem: problem.to_string(),
        }));
    }
    if stage != Stage::Nothing && request.scope == Some(Scope::Rank) {
        return Err(Error::Persist(PersistError::StageOfRanks));
    }
    if !request.inputs.named.is_empty() && request.scope == Some(Scope::Rank) {
        return Err(Error::Stage(StageError::OfRanks));
    }
    let library = launch::find_library()?;
    let words: Vec<String> =
        arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if discard {
        check_discard(request.persist.as_ref(), request.archive.as_ref())?;
    }
    if request.archive.is_some() {
        check_credentials()?;
    }
    let earlier = match is_real && !context.json {
        true => earlier::lines(roots, &request, &words),
        false => Vec::new(),
    };
    let reuse = request.inputs.reuse.clone();
    let mut company = NodeRanks::of_this_process(&request);
    let name = request.job.clone();
    let claim = match &mut company {
        Some(company) => company.enter(roots, request, &words),
        None => Claim::obtain(roots, &request, &words),
    };
    if claim.is_ok() || name.is_some_and(|job| roots.find(&job).is_some()) {
        // Also for a store whose inputs are staged in part.
        made.keep();
    }
    let claim = claim?;
    if !context.json {
        settings.tell();
    }
    if claim.is_new {
        earlier.iter().for_each(|line| crate::output::say!("cairn: {line}"));
    }
    if discard {
        check_discard(claim.store.job.persist.as_ref(), claim.store.job.archive.as_ref())?;
    }
    let program = arguments.command.first().map(OsString::as_os_str).unwrap_or_default();
    if let Some(note) = launcher::other_nodes(program, &claim.store.job.mount) {
        crate::output::say!("cairn: {note}");
    }
    let job = &claim.store.job;
    let is_prefix_free = matches!(hidden_by(Path::new(&job.mount)), Ok(Hidden::Nothing));
    if let Some(why) = program::out_of_reach(program).filter(|_| !mounts) {
        let (name, mount) = (program.to_string_lossy(), &job.mount);
        crate::output::say!(
            "cairn: {name} {why}; it cannot see the files below {mount}: give --mount-fuse, or link it \
             dynamically, or with libcairn.a (cairn config --help)"
        );
    }
    if let Some(note) = space::without_effect(&job.space, job.persist.is_some()) {
        crate::output::say!("cairn: {}: {note}", job.job);
    }
    let mounted = if mounts { mount_for_run(&claim) } else { Ok(()) };
    let executed = mounted.and_then(|()| {
        let place = has_tmpdir.then(|| tmpdir::make(&claim)).transpose()?;
        execute(&claim, &library, &arguments.command, counts_calls, |command| {
            command.envs(place.map(|place| ("TMPDIR", place)));
        })
    });
    let code = executed.as_ref().ok().map(|ran| exit_code(ran.status));
    let last = match &company {
        Some(company) => match company.leave(&claim, code)? {
            Some(last) => last,
            // Another rank ends what the ranks started together.
            None => return executed.map(|ran| exit_code(ran.status)),
        },
        None => Last { others_failed: false, is_unused: claim.is_new && code.is_none() },
    };
    match executed {
        Ok(ran) => {
            let others_failed = last.others_failed;
            let words = &words;
            let options = Options {
                discard,
                counts_calls,
                others_failed,
                words,
                is_real,
                is_prefix_free,
                mounts,
                reuse: &reuse,
            };
            finish(context, claim, ran, &options)
        }
        Err(error) => {
            if last.is_unused {
                // Nothing ran in the store, so it is not needed. The first error is the one to
                // report.
                let _ = claim.remove();
            }
            Err(error)
        }
    }
}

/// Mounts the store where programs see it, unless another rank of the node has done so.
fn mount_for_run(claim: &Claim) -> Result<()> {
    match mount(&claim.store, None, false) {
        Err(Error::Mount(MountError::Mounted { store, .. }))
            if store == claim.store.directory() =>
        {
            Ok(())
        }
        mounted => mounted.map(drop),
    }
}

/// A program that has ended.
pub struct Ran {
    /// How the program ended.
    pub status: ExitStatus,
    agent: Client,
    signals: Signals,
    walltime: Walltime,
    /// Number of MPI launches that the store listed before the program started.
    launches_before: usize,
}

/// Runs the program to its end. `prepare` can change the command just before it is started.
pub fn execute(
    claim: &Claim,
    library: &Path,
    words: &[OsString],
    counts_calls: bool,
    prepare: impl FnOnce(&mut Command),
) -> Result<Ran> {
    // Must come before anything starts a thread, because it forks the witness.
    let mut signals =
        Signals::block().map_err(Error::file("block signals for", claim.store.directory()))?;
    let agent = claim.store.agent()?;
    probe::check(&claim.store, library)?;
    let launches_before = ranks::launches(claim.store.directory())?.len();
    if counts_calls {
        calls::prepare(&claim.store)?;
    }
    launch::note_directory(&claim.store);
    let mut command = launch::command(&claim.store, library, words, counts_calls);
    signals.unblock_in(&mut command);
    prepare(&mut command);
    let mut child = command.spawn().map_err(|source| {
        Error::Launch(LaunchError::Execute {
            command: words
                .first()
                .map(|word| word.to_string_lossy().into_owned())
                .unwrap_or_default(),
            source,
        })
    })?;
    let mut walltime = Walltime::new(claim.store.job.drain.until);
    let status = wait(&claim.store, &mut child, &mut signals, &mut walltime)?;
    Ok(Ran { status, agent, signals, walltime, launches_before })
}

/// Forwards signals until the program ends, and replaces an agent that was killed.
fn wait(
    store: &OpenStore,
    child: &mut Child,
    signals: &mut Signals,
    walltime: &mut Walltime,
) -> Result<ExitStatus> {
    let mut agent_seen = Instant::now();
    loop {
        if agent_seen.elapsed() >= AGENT_EVERY {
            agent_seen = Instant::now();
            if !lock::is_locked(store.directory(), AGENT_LOCK).unwrap_or(true) {
                // If the agent cannot be started here, the end of the run tries again and reports
                // why.
                let _ = store.agent();
            }
            walltime.warn(store.directory());
        }
        let event = signals.wait(LOOK_EVERY);
        match event {
            Event::Forward(signal) => {
                // SAFETY: kill takes numbers only. The child has not been reaped, so its process id
                // cannot belong to another process.
                unsafe { libc::kill(child.id() as libc::pid_t, signal) };
            }
            Event::Child | Event::Shared(_) | Event::Timeout => {}
        }
        const ENDING: [i32; 2] = [libc::SIGTERM, libc::SIGXCPU];
        if matches!(event, Event::Forward(signal) | Event::Shared(signal) if ENDING.contains(&signal))
        {
            walltime.note_termination(store.directory());
        }
        let ended = child.try_wait().map_err(Error::file("wait for", Path::new("the command")))?;
        if let Some(status) = ended {
            return Ok(status);
        }
    }
}

/// Refuses `--discard` together with a persist directory or an archive: files cannot both be thrown
/// away and kept.
fn check_discard(persist: Option<&PathBuf>, archive: Option<&ArchivePolicy>) -> Result<()> {
    match (persist, archive) {
        (Some(path), _) => Err(Error::Setting(SettingError::DiscardPersist { path: path.clone() })),
        (None, Some(ArchivePolicy { url, .. })) => {
            Err(Error::Setting(SettingError::DiscardArchive { url: url.clone() }))
        }
        (None, None) => Ok(()),
    }
}

/// Returns the absolute path of the metrics file, because the agent has another current directory.
/// Errors: its directory does not exist.
fn figures(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(Error::file("find", path))?;
    match path.parent().filter(|parent| !parent.is_dir()) {
        None => Ok(path),
        Some(parent) => Err(Error::Setting(SettingError::Option {
            option: "--metrics-file",
            problem: format!(
                "{} is not a directory; create it first, with mkdir -p",
                parent.display()
            ),
        })),
    }
}

/// Returns the exit code that a shell would report: 128 plus the number of a signal.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Options that matter at the end of a run.
struct Options<'a> {
    discard: bool,
    counts_calls: bool,
    /// Whether the command of another rank failed in the store.
    others_failed: bool,
    words: &'a [String],
    /// Whether this is not the run of a drill. A drill reports itself what happens to the store.
    is_real: bool,
    /// Whether nothing was at the mount prefix in the real file system before the run.
    is_prefix_free: bool,
    /// Whether the store was mounted for the run.
    mounts: bool,
    /// How inputs are kept for other jobs.
    reuse: &'a ReusePolicy,
}

/// Keeps the reusable inputs of a job on the node for other jobs. Says why it cannot; the job has
/// ended well all the same.
fn keep_reusable(claim: &Claim, policy: &ReusePolicy) {
    let line = match inputs::keep(claim, policy) {
        Ok(line) => line,
        Err(error) => Some(format!("inputs are not kept for other jobs: {error}")),
    };
    line.iter().for_each(|line| crate::output::say!("cairn: {}: {line}", claim.store.job.job));
}

/// Drains what is left, reports which files are safe where, and removes the store if it is no
/// longer needed. Returns the exit code.
fn finish(context: &Context, mut claim: Claim, ran: Ran, options: &Options) -> Result<i32> {
    let Ran { status, agent, mut signals, walltime, launches_before } = ran;
    let Options {
        discard,
        counts_calls,
        others_failed,
        words,
        is_real,
        is_prefix_free,
        mounts,
        reuse,
    } = *options;
    let code = exit_code(status);
    let unmounted = match (discard, mounts) {
        (true, _) => place::detach(claim.store.directory()).map(|()| Vec::new()),
        (false, true) => place::release(claim.store.directory(), UNMOUNT_PATIENCE),
        (false, false) => Ok(Vec::new()),
    };
    let mut used_mounts = told(unmounted);
    let may_end = claim.may_end_by(words);
    let is_finished = code == 0 && !others_failed && may_end;
    let safety = match discard {
        true => Safety::Discarded,
        false => settle(context, &claim, agent, (&mut signals, &walltime), is_finished),
    };
    let archive = match discard {
        true => None,
        false => settle_archive(context, &claim, (&mut signals, &walltime)),
    };
    // A store without files has nothing to send, so the state of the server does not matter.
    let has_nothing = |status: &ArchiveStatus| {
        matches!(safety, Safety::Empty) && status.failed.is_empty() && status.abandoned.is_empty()
    };
    let archive = archive.filter(|status| status.is_complete() || !has_nothing(status));
    let is_archived = archive.as_ref().is_none_or(ArchiveStatus::is_complete);
    let safe = safety.needs_no_store() && is_archived;
    let may_remove = is_finished && safe;
    let remaining_processes = match may_remove && !discard {
        // Remaining programs could still write files that exist nowhere else. If the list of
        // programs cannot be read, the store counts as used only by the holder that the error
        // names.
        true => survey::programs(&claim.store)
            .unwrap_or_else(|error| error.holder().map(Holder::pid).into_iter().collect()),
        false => Vec::new(),
    };
    if may_remove && remaining_processes.is_empty() && !discard {
        // Of a user who mounted it meanwhile.
        used_mounts = told(place::release(claim.store.directory(), Duration::ZERO));
    }
    let is_unused = remaining_processes.is_empty() && used_mounts.is_empty();
    let removes = discard || may_remove && is_unused;
    // A list that cannot be read is not the program's fault; `cairn status` reports it.
    let launches = ranks::launches(claim.store.directory()).unwrap_or_default();
    let launch = launches.into_iter().skip(launches_before).next_back();
    let pending = claim.store.job.pending.clone().filter(|_| !may_end && !removes);
    if is_finished && !removes {
        claim.note_end()?;
    }
    if removes && !discard {
        keep_reusable(&claim, reuse);
    }
    let job = &claim.store.job;
    let is_postponed = matches!(safety, Safety::Postponed { .. });
    let undrained = job.persist.is_some() && !safety.is_complete() && !is_postponed;
    // Nobody knows what the failed run would have made of these.
    let is_unsettled = pending.is_some() && safety.is_unsettled();
    let unarchived = !is_archived && job.drain.at_end == AtEnd::Wait;
    // A file of call counts that cannot be read is not the program's fault either.
    let calls = counts_calls.then(|| calls::load(&claim.store).ok().flatten()).flatten();
    let ending = Ending {
        roots: &context.roots,
        job: claim.store.job.clone(),
        store: claim.store.directory().to_path_buf(),
        command: words.to_vec(),
        code,
        signal: status.signal(),
        safety,
        archive,
        launch,
        unserved: unserved::programs(claim.store.directory()),
        unreached: unserved::unreached(claim.store.directory()),
        uncaught: unserved::uncaught(claim.store.directory()),
        behind: lag::of(claim.store.directory()),
        not_brought: not_brought(&claim),
        remaining_processes,
        used_mounts,
        pending,
        removed: removes,
        offers: is_real,
        calls,
        strayed: strayed(&claim.store.job.mount).filter(|_| is_prefix_free),
    };
    let strayed = ending.strayed.is_some();
    if removes {
        claim.remove()?;
    }
    match context.json {
        true => crate::output::say!("{}", ending.json()),
        false => ending.lines().iter().for_each(|line| crate::output::say!("cairn: {line}")),
    }
    // If another rank failed, the exit code of that rank says more.
    let succeeded = code == 0 && !others_failed;
    let is_elsewhere = undrained || is_unsettled || unarchived || strayed;
    Ok(if succeeded && is_elsewhere && !discard { EXIT_DRAIN } else { code })
}

/// Returns the places of mounts that are used; none, and says so, if that cannot be found out.
fn told(places: Result<Vec<PathBuf>>) -> Vec<PathBuf> {
    places.unwrap_or_else(|error| {
        crate::output::say!("cairn: {error}");
        Vec::new()
    })
}

/// Returns what the run has left at the mount prefix in the real file system.
fn strayed(mount: &str) -> Option<Strayed> {
    if matches!(hidden_by(Path::new(mount)), Ok(Hidden::Mount(_))) {
        return None;
    }
    Strayed::at(mount).filter(Strayed::is_something)
}

/// Returns the files whose data could not be brought in; empty if the agent does not answer.
fn not_brought(claim: &Claim) -> Vec<Failed> {
    let mut agent = Client::connect(claim.store.directory());
    let status = agent.as_mut().and_then(|agent| agent.status().ok());
    status.and_then(|status| status.bringing).map_or(Vec::new(), |bringing| bringing.failed)
}

/// Ends the drain the way the user wants, with or without waiting. `is_finished`: the program and
/// all others that shared the store succeeded.
fn settle(
    context: &Context,
    claim: &Claim,
    agent: Client,
    (signals, walltime): (&mut Signals, &Walltime),
    is_finished: bool,
) -> Safety {
    let store = &claim.store;
    let wanted = Wanted::Newest;
    let told = DrainTask { succeeded: Some(is_finished), wanted, ..DrainTask::default() };
    let postponed = |goes_on, told: Result<()>| match told.and_then(|()| DrainProgress::of(store)) {
        Ok(standing) => Safety::postponed(goes_on, standing),
        Err(error) => Safety::Failed { reason: error.to_string() },
    };
    match store.job.drain.at_end {
        AtEnd::Background if store.job.persist.is_some() => {
            // Starts another agent if the last one was killed just before.
            postponed(true, store.agent().and_then(|mut agent| Ok(agent.tell_end(told)?)))
        }
        AtEnd::Nothing if store.job.persist.is_some() => {
            postponed(false, end_without_drain(claim, told))
        }
        _ => match drain(context, claim, agent, (signals, walltime), told) {
            Some(Ok(report)) => Safety::of(&store.job, report),
            Some(Err(error)) => Safety::Failed { reason: error.to_string() },
            None => {
                let is_delivered = is_delivered_soon(store, told);
                match DrainProgress::of(store) {
                    Ok(standing) => Safety::interrupted(standing, is_delivered),
                    Err(error) => Safety::Failed { reason: error.to_string() },
                }
            }
        },
    }
}

/// Tells the agent how the run ended, in case nobody has yet, and waits shortly for it to report
/// that everything is drained. Does not touch the persist directory: it may be the very thing that
/// the user did not want to wait for.
fn is_delivered_soon(store: &OpenStore, told: DrainTask) -> bool {
    let Some(mut agent) = Client::connect_within(store.directory(), TELL_PATIENCE) else {
        return false;
    };
    let started = Instant::now();
    let mut answer = agent.tell_end(told).and_then(|()| agent.status());
    while answer.as_ref().is_ok_and(|status| !status.settled) && started.elapsed() < TELL_PATIENCE {
        thread::sleep(LOOK_EVERY / 10);
        answer = agent.status();
    }
    answer
        .is_ok_and(|Status { settled, last, .. }| settled && last.complete && last.open.is_empty())
}

/// Stops the agent and records how the run ended, because no agent will do so.
fn end_without_drain(claim: &Claim, told: DrainTask) -> Result<()> {
    match claim.end_agent()? {
        true => checkpoints::end_run(&claim.store, told),
        // The agent notices by itself that no program uses the store any more.
        false => Ok(()),
    }
}

/// Lets the agent drain what the policy wants outside, the newest checkpoint in any case. Returns
/// None if the user stopped the wait or the job's time is over.
fn drain(
    context: &Context,
    claim: &Claim,
    agent: Client,
    attention: (&mut Signals, &Walltime),
    told: DrainTask,
) -> Option<Result<DrainReport>> {
    let quiet = context.json;
    let store = OpenStore::open(claim.store.directory());
    attended(attention, move || {
        store.and_then(|store| drain_with(&store, Some(agent), SETTLE, told, quiet))
    })
}

/// Lets the agent archive what is due. Returns the state of the archive; None if the job has none.
fn settle_archive(
    context: &Context,
    claim: &Claim,
    attention: (&mut Signals, &Walltime),
) -> Option<ArchiveStatus> {
    let job = &claim.store.job;
    job.archive.as_ref()?;
    match job.drain.at_end {
        AtEnd::Background => return archive::unknown(job, "it goes on in the background"),
        AtEnd::Nothing => return archive::unknown(job, "not requested (--drain none)"),
        AtEnd::Wait => {}
    }
    let quiet = context.json;
    let store = OpenStore::open(claim.store.directory());
    let archived = attended(attention, move || store.and_then(|store| archive_with(&store, quiet)));
    match archived {
        Some(Ok(status)) => status,
        Some(Err(error)) => archive::unknown(job, &error.to_string()),
        None => archive::unknown(job, "the run did not wait for it; it goes on in the background"),
    }
}

/// Runs `work` in a thread and returns its result; None if the user stopped the wait or the job's
/// time is over.
fn attended<T: Send + 'static>(
    (signals, walltime): (&mut Signals, &Walltime),
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, result) = mpsc::channel();
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<_>>| work.lock().ok().and_then(|mut work| work.take());
    let theirs = Arc::clone(&work);
    let started = thread::Builder::new().spawn(move || {
        if let Some(work) = take(&theirs) {
            // The receiver is gone if the wait was stopped.
            let _ = sender.send(work());
        }
    });
    if started.is_err() {
        // Without a thread nothing can stop the wait.
        return take(&work).map(|work| work());
    }
    loop {
        match result.recv_timeout(Duration::from_millis(1)) {
            Ok(report) => return Some(report),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if walltime.patience() == Some(Duration::ZERO) {
            return None;
        }
        // SIGUSR1 and the like do not stop the wait: they were meant for the program.
        if let Event::Forward(signal) | Event::Shared(signal) = signals.wait(LOOK_EVERY / 10) {
            if matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT) {
                return None;
            }
        }
    }
}
