//! `cairn drain`: drains every closed file to the persist directory, and archives complete
//! checkpoints, immediately.
//!
//! Must stay true: after a failed or killed run, the user can get everything. Sound files go to
//! their places. If anything else is left, the whole store is copied to a directory of its own, or,
//! with `--as-is`, the files go to their places as they are.

pub(crate) mod checkpoints;
pub(crate) mod drain_state;
pub(crate) mod follow;
pub(crate) mod lag;
pub(crate) mod notes;
pub(crate) mod pace;
use cairn_agent::agent::client::Client;
use cairn_agent::model::archive::ArchiveStatus;
use cairn_agent::model::directory_id::DirectoryId;
use cairn_agent::model::drain_task::{Delivery, DrainTask, Wanted};
use cairn_agent::model::job::{Job, RUN_LOCK, left_name};
use cairn_agent::model::lock;
use cairn_agent::model::path::FilePath;
use cairn_agent::model::protocol::{Outcome, Unfinished};
use cairn_agent::persist::manifest::manifest_name;
use cairn_agent::persist::ownership;
use cairn_agent::store::inputs::Inputs;
use cairn_agent::store::node::Kind;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Context;
use crate::create::claim::{Claim, claim_existing};
use crate::create::request::checked_persist;
use crate::error::{Error, PersistError, Result, SettingError, StoreError};
use crate::output::progress::Progress;
use crate::output::size::human;
use crate::output::waiting::SAID_AFTER;
use crate::output::{self, count, quoted};
use crate::settings::archive::{self, archive_with};
use crate::store::job_name::JobName;
use crate::store::{OpenStore, Roots};

const EXAMPLES: &str = "\
Examples:
  cairn drain                          the only store, to its persist directory
  cairn drain melt                     the store of job melt
  cairn drain melt --persist /scratch/out
      if the job was started without --persist, or to use another directory
  cairn drain melt --verify            also read back and compare copies made earlier
  cairn drain melt --image             copy all files as they are at one moment, even open ones,
                                       while the job continues
  cairn drain melt --as-is             after a kill: drain every file to its place, even if it was
                                       open or belongs to an unfinished checkpoint

While a job runs, closed files are drained, except those of unfinished checkpoints. If the last run
of the job failed or was killed and left other files, the whole store is copied to cairn-left.JOB
in the persist directory, under the names that files have in the store. Files that were open are
listed. With --as-is, all files go to their places instead. If the job has an archive, complete
checkpoints are also archived.

Exit codes: 0 every file is verified in the persist directory; 75 something is left (the message
says why); 2 refused.";

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
    /// Copy an image of the whole store, as it is at one moment, open files included, to
    /// cairn-image.JOB.0 or .1 in the persist directory while the job continues. The last image
    /// stays until the new one is complete
    #[arg(long, conflicts_with = "as_is")]
    image: bool,
    /// Lift the limits of the drain (--drain-rate, --drain-share, slots) for as long as its agent
    /// lives
    #[arg(long)]
    now: bool,
    /// For a job without a run: drain every file to its place as it is, even if it was open when
    /// its writer died
    #[arg(long)]
    as_is: bool,
}

/// Result of the command.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    drain: &'a DrainReport,
    /// Directory that the whole store was copied to.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<&'a PathBuf>,
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
    if arguments.image {
        return image(context, &store);
    }
    let delivery = if arguments.as_is { Delivery::AsIs } else { Delivery::Sound };
    let told = DrainTask {
        wanted: Wanted::All,
        verify: arguments.verify,
        delivery,
        ..DrainTask::default()
    };
    if arguments.now {
        store.agent()?.hurry()?;
    }
    let mut claim = None;
    if arguments.as_is {
        // No program may write while its files count as final.
        claim = Some(claim_at_rest(OpenStore::open(store.directory())?)?);
    }
    let drain =
        drain_with(&store, None, Duration::ZERO, told, context.json).map_err(not_drained)?;
    // A checkpoint that nobody completes does not matter if its files are drained.
    let is_outside = drain.outcome.unfinished.iter().all(|one| one.is_outside);
    let is_whole = drain.outcome.complete && drain.outcome.unclean.is_empty() && is_outside;
    let is_at_rest = drain.outcome.open.is_empty() && !lock::has_run(store.directory(), RUN_LOCK)?;
    let failed = &drain.outcome.failed;
    let mut aside = None;
    let leaves = !drain.outcome.unclean.is_empty() || !is_outside;
    if persist.is_some() && leaves && !arguments.as_is && is_at_rest {
        claim = Some(claim_at_rest(OpenStore::open(store.directory())?)?);
        aside = leave(&store, context.json).map_err(not_drained)?;
    }
    let is_drained = persist.is_none() || is_whole || aside.is_some() && failed.is_empty();
    if let Some(claim) = claim.as_mut().filter(|_| is_drained) {
        claim.note_end()?;
    }
    drop(claim);
    let archive = archive_with(&store, context.json)?;
    let is_archived = archive.as_ref().is_none_or(ArchiveStatus::is_complete);
    if context.json {
        output::json(&Report { drain: &drain, left: aside.as_ref(), archive: &archive })?;
    } else {
        if let Some(directory) = &persist {
            let files = count(drain.outcome.drained_files, "file");
            let bytes = human(drain.outcome.drained_bytes);
            let (directory, manifest) = (directory.display(), manifest_name(&drain.job));
            output::line(&format!("{files}, {bytes}, in {directory}, verified ({manifest})"));
            let outcome = &drain.outcome;
            unclean(outcome)
                .iter()
                .chain(&as_they_are(outcome))
                .for_each(|line| output::line(line));
            for unfinished in &outcome.unfinished {
                output::line(&match aside {
                    Some(_) => {
                        format!("checkpoint {}: {}", unfinished.verdict(), unfinished.told())
                    }
                    None => not_complete(&context.roots, &drain.job, unfinished),
                });
            }
            if let Some(left) = &aside {
                let (left, files) = (left.display(), count(drain.files, "file"));
                output::line(&format!(
                    "all of the store as the last run left it, {files}, in {left}, verified; to have it in place: cairn {}drain {} --as-is",
                    context.roots.option(),
                    drain.job
                ));
            }
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

/// Returns a message about unclean files that were drained to their places; None if there are none.
pub fn as_they_are(outcome: &Outcome) -> Option<String> {
    let first = outcome.as_they_are.first()?;
    let files = count(outcome.as_they_are.len() as u64, "file");
    let more = if outcome.as_they_are.len() > 1 { ", ..." } else { "" };
    Some(format!(
        "{files} drained as they are, although the writer died or a write failed: {first}{more}"
    ))
}

/// Returns a message about an image with [`Outcome::unsteady`] files; None if there are none.
pub fn unsteady(paths: &[FilePath]) -> Option<String> {
    let first = paths.first()?;
    let files = count(paths.len() as u64, "file");
    let more = if paths.len() > 1 { ", ..." } else { "" };
    Some(format!(
        "{files} mapped, not stable: programs changed them during the copy, so they may be newer than the image: {first}{more}"
    ))
}

/// Makes an image of the store.
fn image(context: &Context, store: &OpenStore) -> Result<()> {
    let persist = store.job.persist.as_ref();
    let persist = persist
        .ok_or_else(|| Error::Persist(PersistError::NoPersist { job: store.job.job.clone() }))?;
    let told = DrainTask { delivery: Delivery::Image, ..DrainTask::default() };
    let drain = drain_with(store, None, Duration::ZERO, told, context.json).map_err(no_image)?;
    let newest = cairn_agent::persist::image_place::newest(persist, &drain.job);
    let outcome = &drain.outcome;
    // An image that lacks a file is not kept; the newest one is older.
    let directory = newest.map(|(place, _)| place).filter(|_| outcome.complete);
    if context.json {
        output::json(&Report { drain: &drain, left: directory.as_ref(), archive: &None })?;
    } else if let Some(directory) = &directory {
        let (files, bytes) = (count(outcome.drained_files, "file"), human(outcome.drained_bytes));
        output::line(&format!("image of {files}, {bytes}, in {}, verified", directory.display()));
        as_they_are(outcome).iter().for_each(|line| output::line(line));
    } else {
        output::line("no image was made, because the data of a file are missing");
    }
    match outcome.complete && outcome.unclean.is_empty() && outcome.unsteady.is_empty() {
        true => Ok(()),
        false => Err(Error::Persist(PersistError::NotDrained { summary: left(outcome) })),
    }
}

/// Takes exclusive use of the store, so that no run changes it. Errors: a run holds it.
fn claim_at_rest(store: OpenStore) -> Result<Claim> {
    match lock::has_run(store.directory(), RUN_LOCK)? {
        true => Err(Error::Store(StoreError::Running { job: store.job.job })),
        false => claim_existing(store),
    }
}

/// Copies the whole store to a directory of its own. Returns the directory; None if something could
/// not be copied.
fn leave(store: &OpenStore, quiet: bool) -> Result<Option<PathBuf>> {
    let told = DrainTask { delivery: Delivery::Left, ..DrainTask::default() };
    let outcome = drain_with(store, None, Duration::ZERO, told, quiet)?.outcome;
    let is_whole = outcome.complete && outcome.unclean.is_empty();
    let directory =
        store.job.persist.as_ref().map(|persist| persist.join(left_name(&store.job.job)));
    Ok(directory.filter(|_| is_whole))
}

/// Returns a message about unclean files that are only in the store; None if there are none.
pub fn unclean(outcome: &Outcome) -> Option<String> {
    let first = outcome.unclean.first()?;
    let files = count(outcome.unclean.len() as u64, "file");
    let more = if outcome.unclean.len() > 1 { ", ..." } else { "" };
    Some(format!(
        "{files} not in place, because the writer died, a write failed, or a part is lost: {first}{more}"
    ))
}

/// Returns a message about an incomplete checkpoint, with the command that copies it out of the
/// store of `job`.
pub fn not_complete(roots: &Roots, job: &str, unfinished: &Unfinished) -> String {
    let (files, verdict) = (count(unfinished.files, "file"), unfinished.verdict());
    if unfinished.is_outside {
        return format!(
            "checkpoint {verdict}, {files}, drained as they are: {}",
            unfinished.told()
        );
    }
    let option = roots.option();
    let source = quoted(&format!("{job}:/{}", unfinished.place));
    // The whole store must not be mixed with other files, so it gets a directory of its own.
    let target = if unfinished.place.is_root() { job } else { "." };
    format!(
        "checkpoint {verdict}, {files} only in the store: {}; copy it out with: cairn {option}cp --recursive {source} {target}",
        unfinished.told()
    )
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

/// Does the same for an image, which is separate from drained files.
fn no_image(error: Error) -> Error {
    given_up("there is no new image", "fix that and repeat the command")(error)
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
    let mut parts = Vec::new();
    if !outcome.open.is_empty() {
        parts.push(format!("{} still open", count(outcome.open.len() as u64, "file")));
    }
    parts.extend(unsteady(&outcome.unsteady));
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
