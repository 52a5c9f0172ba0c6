//! `cairn rm`: removes files from a store, but not their drained copies; or removes the whole
//! store.

use cairn_agent::model::drain_task::DrainTask;
use cairn_agent::model::job::RUN_LOCK;
use cairn_agent::model::lock;
use cairn_job::file::path::FilePath;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::Context;
use crate::claim::{self, Claim, claim_existing};
use crate::drain::drain_state::DrainProgress;
use crate::drain::drain_with;
use crate::error::{CopyError, Error, Result, SettingError, StoreError};
use crate::output::{self, count};
use crate::settings::archive::{self, archive_with};
use crate::store::survey::{self, Look};
use crate::store::{OpenStore, Place, locate, removal};

const EXAMPLES: &str = "\
Examples:
  cairn rm melt:/restart.100            free its memory; the drained copy stays
  cairn rm --recursive melt:/old
  cairn rm melt                         the whole store, if all of it is drained, and archived if
                                        the job has an archive
  cairn rm melt --verify                the same, after every copy was read back and compared
  cairn rm melt --discard               the whole store, even files that exist nowhere else

If a program removes a file below /cairn, the drained copy is removed, too. `cairn rm` keeps it.
A file that is not drained is removed only with --force.";

/// Remove files from a store, or a store.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// JOB for a whole store, JOB:/path for files in it
    #[arg(required_unless_present = "named", value_name = "JOB[:/PATH]")]
    targets: Vec<String>,
    /// The job: its whole store, or the files at the paths that are given without a job
    #[arg(long = "job", id = "named", value_name = "NAME")]
    named: Option<String>,
    /// Remove directories with everything in them
    #[arg(long, short)]
    recursive: bool,
    /// Remove files even if they are not drained
    #[arg(long)]
    force: bool,
    /// Remove the whole store, even if files in it exist nowhere else
    #[arg(long)]
    discard: bool,
    /// Before the whole store is removed, read every copy back and compare it with what was
    /// drained; a damaged copy is made again
    #[arg(long, conflicts_with = "discard")]
    verify: bool,
}

impl Arguments {
    /// Returns the place of a target. Errors: the job is named twice; a job's whole store where a
    /// path is expected.
    fn place(&self, target: &str) -> Result<Place> {
        let place = Place::parse(target);
        let Some(job) = &self.named else { return Ok(place) };
        let problem = match place.job {
            Some(_) => "the job is named twice: here, and before the path",
            None if place.path.is_empty() => "with it, targets are paths of files",
            None => return Ok(Place { job: Some(job.clone()), ..place }),
        };
        let problem = problem.to_string();
        Err(Error::Setting(SettingError::Option { option: "--job", problem }))
    }
}

/// Result of the command.
#[derive(Debug, Default, Serialize)]
pub struct RemoveReport {
    /// Removed paths, as the program saw them.
    removed: Vec<String>,
    /// Jobs whose whole stores were removed.
    removed_stores: Vec<String>,
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let mut report = RemoveReport::default();
    let mut by_job: BTreeMap<Option<String>, Vec<String>> = BTreeMap::new();
    if let (Some(job), true) = (&arguments.named, arguments.targets.is_empty()) {
        by_job.insert(Some(job.clone()), Vec::new());
    }
    for target in &arguments.targets {
        let place = arguments.place(target)?;
        let paths = by_job.entry(place.job.clone()).or_default();
        if !place.path.is_empty() {
            paths.push(place.path);
        }
    }
    for (job, paths) in by_job {
        let store = match context.roots.choose(job.as_deref()) {
            Err(Error::Store(StoreError::NotAStore { path }))
                if paths.is_empty() && claim::remove_unbegun(&path, &name_of(&path))? =>
            {
                report.removed_stores.push(name_of(&path));
                continue;
            }
            Err(Error::Store(StoreError::NoStore { job, .. }))
                if paths.is_empty() && removal::finish_earlier(&context.roots, &job)? =>
            {
                report.removed_stores.push(job);
                continue;
            }
            store => store?,
        };
        match paths.is_empty() {
            true => remove_store(store, &arguments, &mut report)?,
            false => remove_files(&store, &paths, &arguments, &mut report)?,
        }
    }
    if context.json {
        return output::json(&report);
    }
    if !report.removed.is_empty() {
        output::line(&format!("{} removed", count(report.removed.len() as u64, "name")));
    }
    for job in &report.removed_stores {
        output::line(&format!("store of job {job} removed"));
    }
    Ok(())
}

/// Returns the job of a store directory.
fn name_of(store: &Path) -> String {
    store.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn remove_store(store: OpenStore, arguments: &Arguments, report: &mut RemoveReport) -> Result<()> {
    let job = store.job.job.clone();
    let Arguments { discard, verify, .. } = *arguments;
    let (claim, files) = take_for_removal(store, discard, verify).map_err(|error| match error {
        Error::Store(StoreError::Running { job }) => Error::Store(StoreError::InUse { job }),
        other => other,
    })?;
    let unclean = DrainProgress::of(&claim.store).map_or(0, |standing| standing.unclean_files);
    if files > 0 && unclean > 0 {
        return Err(Error::Store(StoreError::WouldLoseUnclean {
            job,
            files: files as usize,
            unclean,
        }));
    }
    if files > 0 {
        return Err(Error::Store(StoreError::WouldLose { job, files: files as usize }));
    }
    let processes = match survey::programs(&claim.store) {
        // A store that cannot be opened any more can be discarded, but not one that a stopped
        // program holds.
        Err(ref error) if discard && error.holder().is_none() => Vec::new(),
        processes => processes?,
    };
    if !processes.is_empty() {
        return Err(Error::Store(StoreError::StoreInUse {
            job,
            users: output::still_use(&processes),
        }));
    }
    claim.remove()?;
    report.removed_stores.push(job);
    Ok(())
}

/// Takes a store that is to be removed. Drains what can be drained, and returns how many files
/// exist nowhere else; with `discard`, neither drains nor counts. `verify` reads every copy back.
/// Errors: a run holds the store, or the archive lacks a checkpoint.
pub fn take_for_removal(store: OpenStore, discard: bool, verify: bool) -> Result<(Claim, u64)> {
    if discard {
        return Ok((claim_existing(store)?, 0));
    }
    if lock::has_run(store.directory(), RUN_LOCK)? {
        return Err(Error::Store(StoreError::Running { job: store.job.job }));
    }
    // Runs before the claim because it may take long: a run may still take over the store
    // meanwhile.
    files_at_risk(&store, verify)?;
    let claim = claim_existing(store)?;
    let files = files_at_risk(&claim.store, false)?;
    Ok((claim, files))
}

/// Drains and archives what can be, and counts the files that exist nowhere else. Errors: the
/// archive lacks a checkpoint.
fn files_at_risk(store: &OpenStore, verify: bool) -> Result<u64> {
    if Look::at(store)?.contents.files == 0 {
        return Ok(0);
    }
    // The agent looks at every copy again, because a copy may have been removed since its drain.
    let report = drain_with(
        store,
        None,
        Duration::ZERO,
        DrainTask { verify, ..DrainTask::default() },
        true,
    )?;
    // The store does not have the data of lost files, either.
    let elsewhere = report.outcome.drained_files + report.outcome.lost_files;
    let files = report.files.saturating_sub(elsewhere);
    match archive_with(store, true)?.filter(|status| files == 0 && !status.is_complete()) {
        None => Ok(files),
        Some(status) => Err(Error::Store(StoreError::NotArchived {
            job: store.job.job.clone(),
            reason: archive::missing(&status),
            url: status.url,
        })),
    }
}

fn remove_files(
    store: &OpenStore,
    paths: &[String],
    arguments: &Arguments,
    report: &mut RemoveReport,
) -> Result<()> {
    let mut chosen = Vec::new();
    {
        let volumes = store.volumes()?;
        for text in paths {
            let path = store.path(text)?;
            let problem = "it is not a file of the store";
            let bad = || Error::Copy(CopyError::Target { path: store.shown(&path), problem });
            let (volume, inner) = locate(&volumes, &path).ok_or_else(bad)?;
            if !volume.attributes(&inner)?.is_directory() {
                chosen.push(path);
                continue;
            }
            if !arguments.recursive {
                return Err(Error::Copy(CopyError::IsDirectory { path: store.shown(&path) }));
            }
            let tree = volume.tree()?;
            let below = tree.into_keys().filter(|candidate| {
                candidate.strip_prefix(&path).is_some() && candidate != volume.prefix()
            });
            let mut below: Vec<FilePath> = below.collect();
            // The content of a directory comes before the directory.
            below.reverse();
            chosen.extend(below);
        }
    }
    let shown = chosen.iter().map(|path| store.shown(path));
    report.removed.extend(shown);
    store.agent()?.evict(chosen, arguments.force)?;
    Ok(())
}
