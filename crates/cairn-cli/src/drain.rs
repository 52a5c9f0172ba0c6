//! `cairn drain`: makes the persist directory show the store as it is now, and archives complete
//! checkpoints, immediately.
//!
//! Must stay true: everything goes out, in whatever state it is, as a disk would have it.

pub(crate) mod checkpoints;
pub(crate) mod drain_state;
pub(crate) mod follow;
pub(crate) mod lag;
pub(crate) mod notes;
pub(crate) mod pace;
pub(crate) mod tie;
use cairn_agent::agent::client::Client;
use cairn_agent::model::archive::ArchiveStatus;
use cairn_agent::model::directory_id::DirectoryId;
use cairn_agent::model::drain_task::{DrainTask, Wanted};
use cairn_agent::model::job::{Job, RUN_LOCK};
use cairn_agent::model::lock;
use cairn_agent::model::protocol::{Outcome, Unfinished};
use cairn_agent::persist::ownership;
use cairn_agent::store::inputs::Inputs;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{manifest_name, whole_name};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Context;
use crate::claim::claim_existing;
use crate::error::{Error, PersistError, Result, SettingError};
use crate::output::progress::Progress;
use crate::output::waiting::SAID_AFTER;
use crate::output::{self, count};
use crate::request::checked_persist;
use crate::settings::archive::{self, archive_with};
use crate::size::human;
use crate::store::OpenStore;
use crate::store::job_name::JobName;

const EXAMPLES: &str = "\
Examples:
  cairn drain                          the only store, to its persist directory
  cairn drain melt                     the store of job melt
  cairn drain melt --persist /scratch/out
      if the job was started without --persist, or to use another directory
  cairn drain melt --verify            also read back and compare copies made earlier

The persist directory always shows the store as it was at one moment; while a job runs, that moment
moves on by itself. This command makes it the present, with all files as they are, open ones and
those of killed programs included; these are listed. Where a whole version of such a file was
outside before, it stays in cairn-whole.JOB until there is a newer one. If the job has an archive,
complete checkpoints are also archived.

Exit codes: 0 every file is verified in the persist directory, as it was at that moment; 75
something is left (the message says why); 2 refused.";

/// Drain the files of a store to its persist directory, and archive its complete checkpoints.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobName,
    /// Drain to this directory, and keep it as the job's persist directory
    #[arg(long, value_name = "DIR")]
    persist: Option<PathBuf>,
    /// With --persist, drain even if the directory holds files of other jobs; if two files have the
    /// same name, both stay
    #[arg(long, requires = "persist")]
    shared: bool,
    /// Read every copy back and compare it with what was drained, even if it was verified before; a
    /// damaged copy is made again. Takes as long as reading all copies
    #[arg(long)]
    verify: bool,
    /// Lift the limits of the drain (--drain-rate, --drain-share, slots) for as long as its agent
    /// lives
    #[arg(long)]
    now: bool,
}

/// Result of the command.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    drain: &'a DrainReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    archive: &'a Option<ArchiveStatus>,
}

/// Result of a drain.
#[derive(Clone, Debug, Serialize)]
pub struct DrainReport {
    /// The job.
    pub job: String,
    /// Persist directory.
    pub persist: Option<PathBuf>,
    /// Number of regular files in the store, without inputs that nobody has changed.
    pub files: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// Report of the agent.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Checks that no data of a store are only in the directory `former`, where it was drained before.
/// From another one they could not be brought in.
fn require_present(store: &OpenStore, former: &Path, persist: &Path) -> Result<()> {
    let mut absent = 0;
    for volume in store.volumes()? {
        absent += volume.tree()?.values().filter(|node| node.absence.is_some()).count() as u64;
    }
    match absent {
        0 => Ok(()),
        absent => Err(Error::Setting(SettingError::Persist {
            path: persist.to_path_buf(),
            problem: format!(
                "cannot replace {}: the data of {} are only there",
                former.display(),
                count(absent, "file")
            ),
            advice: "drain to that directory, and copy it, or read these files first",
        })),
    }
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let mut store = context.roots.choose(arguments.job.as_deref())?;
    if let Some(persist) = arguments.persist {
        let persist = checked_persist(&persist)?;
        if persist.starts_with(&store.job.mount) {
            return Err(Error::Setting(SettingError::Persist {
                path: persist,
                problem: format!("lies below the mount prefix {}", store.job.mount),
                advice: "choose another",
            }));
        }
        if let Some(former) = store.job.persist.clone().filter(|former| *former != persist) {
            require_present(&store, &former, &persist)?;
        }
        let launch = store.job.launch.as_deref();
        // An unreadable directory is ignored here, because the agent reports it.
        let owner = ownership::owner(&persist, &store.job.job, launch).unwrap_or_default();
        if let Some(owner) = owner.filter(|owner| *owner != store.job.job && !arguments.shared) {
            return Err(cairn_agent::Error::Owned { path: persist, owner }.into());
        }
        let persist_id = Some(DirectoryId::at(&persist)?);
        let shared = arguments.shared;
        store.job = Job { persist: Some(persist), persist_id, shared, ..store.job };
        store.job.save(store.directory())?;
    }
    let persist = store.job.persist.clone();
    if persist.is_none() && store.job.archive.is_none() {
        return Err(Error::Persist(PersistError::NoPersist { job: store.job.job }));
    }
    persist.as_deref().map(checked_persist).transpose()?;
    let told = DrainTask { wanted: Wanted::All, verify: arguments.verify, ..DrainTask::default() };
    if arguments.now {
        store.agent()?.hurry()?;
    }
    let drain =
        drain_with(&store, None, Duration::ZERO, told, context.json).map_err(not_drained)?;
    let is_drained = persist.is_none() || drain.outcome.complete;
    let is_at_rest = drain.outcome.open.is_empty() && !lock::has_run(store.directory(), RUN_LOCK)?;
    if persist.is_some() && is_drained && is_at_rest {
        // What the failed run left is outside: the user has what there is to have.
        claim_existing(OpenStore::open(store.directory())?)?.note_end()?;
    }
    let archive = archive_with(&store, context.json)?;
    let is_archived = archive.as_ref().is_none_or(ArchiveStatus::is_complete);
    if context.json {
        output::json(&Report { drain: &drain, archive: &archive })?;
    } else {
        if let Some(directory) = &persist {
            let files = count(drain.outcome.drained_files, "file");
            let bytes = human(drain.outcome.drained_bytes);
            let (directory, manifest) = (directory.display(), manifest_name(&drain.job));
            output::line(&format!("{files}, {bytes}, in {directory}, verified ({manifest})"));
            let outcome = &drain.outcome;
            as_they_are(outcome).iter().for_each(|line| output::line(line));
            last_whole(&drain).iter().for_each(|line| output::line(line));
            open(outcome).iter().for_each(|line| output::line(line));
            outcome.unfinished.iter().for_each(|one| output::line(&not_complete(one)));
        }
        archive.iter().flat_map(archive::lines).for_each(|line| output::line(&line));
    }
    match (is_drained, is_archived) {
        (true, true) => Ok(()),
        (false, _) => {
            Err(Error::Persist(PersistError::NotDrained { summary: left(&drain.outcome) }))
        }
        (true, false) => {
            let summary = "the archive is not complete; the store keeps its files".to_string();
            Err(Error::Persist(PersistError::NotDrained { summary }))
        }
    }
}

/// Returns a message about files that were drained as killed programs left them; None if there are
/// none.
pub fn as_they_are(outcome: &Outcome) -> Option<String> {
    let first = outcome.unclean.first()?;
    let files = count(outcome.unclean.len() as u64, "file");
    let (they, more) =
        if outcome.unclean.len() > 1 { ("they are", ", ...") } else { ("it is", "") };
    Some(format!(
        "{files} drained as {they}, although the writer died or a write failed: {first}{more}"
    ))
}

/// Returns a message about last whole versions that are kept outside; None if there are none.
pub fn last_whole(report: &DrainReport) -> Option<String> {
    let (first, persist) = (report.outcome.whole.first()?, report.persist.as_ref()?);
    let files = count(report.outcome.whole.len() as u64, "file");
    let place = persist.join(whole_name(&report.job));
    let more = if report.outcome.whole.len() > 1 { ", ..." } else { "" };
    Some(format!("the last whole version of {files} is in {}: {first}{more}", place.display()))
}

/// Returns a message about files that were open when they were drained; None if there are none.
fn open(outcome: &Outcome) -> Option<String> {
    let first = outcome.open.first()?;
    let files = count(outcome.open.len() as u64, "file");
    let (they, more) = if outcome.open.len() > 1 { ("they were", ", ...") } else { ("it was", "") };
    Some(format!("{files} open for writing, drained as {they} at that moment: {first}{more}"))
}

/// Returns a message about [`Outcome::unsteady`] files; None if there are none.
pub fn unsteady(paths: &[FilePath]) -> Option<String> {
    let first = paths.first()?;
    let files = count(paths.len() as u64, "file");
    let more = if paths.len() > 1 { ", ..." } else { "" };
    Some(format!(
        "{files} mapped, not stable: programs changed them during the copy, so they may be newer than the rest: {first}{more}"
    ))
}

/// Returns a message about a checkpoint that is not known to be whole.
pub fn not_complete(unfinished: &Unfinished) -> String {
    let (files, verdict) = (count(unfinished.files, "file"), unfinished.verdict());
    format!("checkpoint {verdict}, {files}, as they are: {}", unfinished.told())
}

/// Lets the agent of `store` drain. Shows progress unless `quiet`.
pub fn drain_with(
    store: &OpenStore,
    agent: Option<Client>,
    settle: Duration,
    told: DrainTask,
    quiet: bool,
) -> Result<DrainReport> {
    let persist = store.job.persist.clone();
    let label = match &persist {
        Some(persist) => format!("draining to {}", persist.display()),
        None => "looking at the store".to_string(),
    };
    let mut progress = Progress::new(&label, 0, quiet || persist.is_none());
    let (begun, mut has_said) = (Instant::now(), quiet || store.job.drain.slots.is_none());
    let mut show = |so_far: &cairn_agent::model::protocol::Progress| {
        progress.set(so_far.bytes_done, so_far.bytes_total);
        if !has_said && begun.elapsed() >= SAID_AFTER {
            has_said = true;
            let agent = Client::connect_within(store.directory(), SAID_AFTER);
            let status = agent.and_then(|mut agent| agent.status().ok());
            if let Some(slot) = status.and_then(|status| status.pace.waits_for) {
                crate::output::say!("cairn: {}: the drain waits for {slot}", store.job.job);
            }
        }
    };
    let outcome = store.ask_agent(agent, |agent| agent.drain(settle, told, &mut show))?;
    let (mut files, mut bytes) = (0, 0);
    let inputs = Inputs::known(store.directory());
    for volume in store.volumes()? {
        let tree = volume.tree()?;
        let own = tree.iter().filter(|(path, node)| !inputs.is_unchanged(path, node));
        for (_, node) in own.filter(|(_, node)| node.kind == Kind::File) {
            files += 1;
            bytes += node.bytes;
        }
    }
    Ok(DrainReport { job: store.job.job.clone(), persist, files, bytes, outcome })
}

/// Converts the error of a drain that the agent gave up because the whole directory has a problem.
fn not_drained(error: Error) -> Error {
    let advice = "fix that and repeat the drain, or choose another directory with --persist";
    given_up("the drain is not complete", advice)(error)
}

fn given_up(what: &str, advice: &str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Agent(cairn_agent::Error::AgentRefused { reason }) => {
            Error::Persist(PersistError::NotDrained {
                summary: format!("{what}: {reason}; the store keeps its files: {advice}"),
            })
        }
        other => other,
    }
}

/// Returns in one line what was not drained.
pub fn left(outcome: &Outcome) -> String {
    let mut parts = Vec::from_iter(unsteady(&outcome.unsteady));
    if let Some(failed) = outcome.failed.first() {
        let files = count(outcome.failed.len() as u64, "file");
        parts.push(format!("{files} not drained ({}: {})", failed.path, failed.reason));
    }
    if outcome.changed > 0 {
        let files = count(outcome.changed, "file");
        parts.push(format!("{files} changed during every attempt to copy"));
    }
    if let Some(first) = outcome.unfinished.first() {
        let checkpoints = count(outcome.unfinished.len() as u64, "unfinished checkpoint");
        parts.push(format!("{checkpoints} ({})", first.told()));
    }
    if parts.is_empty() {
        parts.push("a namespace of the store cannot be read; see: cairn status".to_string());
    }
    format!("the drain is not complete: {}; the rest is safe", parts.join(", "))
}
