//! `cairn gc`: removes stores that nobody uses any more.
//!
//! Must stay true: a store is removed only under its run lock, after it was examined again under
//! that lock. A store with files that exist nowhere else, or with checkpoints that its archive
//! lacks, is removed only if the user confirms it twice. A damaged store, or another user's, is
//! listed and left alone.

use cairn_agent::archive::fetch::Archive;
use cairn_agent::persist::outside::Lack;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

use crate::claim;
use crate::commands::rm::take_for_removal;
use crate::create::staging::reuse;
use crate::drain::checkpoints::Found;
use crate::error::{Error, Result, StoreError};
use crate::output::duration;
use crate::size::human;
use crate::store::survey::{Look, State, StoreRow, survey};
use crate::store::unsaved::{said, shown};
use crate::store::{OpenStore, check_job_name, removal};
use crate::{Context, output};

const EXAMPLES: &str = "\
Examples:
  cairn gc                              stores unused for three days, if nothing would be lost
  cairn gc --older-than 12h --dry-run   list stores unused for 12 hours; this asks the archives
  cairn gc --job melt --older-than 0    the store of job melt, however new
  cairn gc --job melt --older-than 0 --force --yes
      the same, even if files in it exist nowhere else: they are lost

A store is in use while a cairn run has it or a program in it lives. It was last used when a file
in it was written, or its agent started or ended.

gc removes a store only if the persist directory still has a verified copy of every file, and the
archive has every checkpoint that is to be archived. Before it removes a store, gc looks at the
copies again and sends missing checkpoints to the archive. Only --force and --yes together permit
the loss of files. Inputs that an earlier job left on this node (cairn run --reusable) go when their
lease has ended. Damaged stores, and those of other users, are named and left alone.

Exit codes: 0 done; 1 the store that --job names was not removed (the message says why); 2 refused.";

/// Remove stores that were left behind.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Only stores that were not used for this long, as in 3d, 12h or 30m
    #[arg(long, value_name = "TIME", default_value = "3d", value_parser = duration::argument)]
    older_than: f64,
    /// Only print what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Only the store of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Also stores with files that exist nowhere else; requires --yes
    #[arg(long, requires = "yes")]
    force: bool,
    /// Confirm that those files may be lost; requires --force
    #[arg(long, requires = "force")]
    yes: bool,
    /// Also remove inputs that are kept on this node for other jobs, although their lease goes on
    #[arg(long)]
    reusable: bool,
}

/// Result of the command.
#[derive(Debug, Default, Serialize)]
struct GcReport {
    /// Whether this was a dry run, which removes nothing.
    dry_run: bool,
    /// Stores that were removed, or would be.
    freed: Vec<Freed>,
    /// Bytes that were freed, or would be.
    freed_bytes: u64,
    /// Stores that stay.
    kept: Vec<Kept>,
    /// Number of kept inputs that were removed, or would be, and their size in bytes.
    inputs: u64,
    inputs_bytes: u64,
}

/// A removed store.
#[derive(Debug, Serialize)]
struct Freed {
    job: String,
    store: PathBuf,
    bytes: u64,
    /// Number of checkpoints that would be archived first.
    to_archive: u64,
}

/// A store that stays.
#[derive(Debug, Serialize)]
struct Kept {
    job: String,
    store: PathBuf,
    why: String,
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let older_than = Duration::from_secs_f64(arguments.older_than);
    if let Some(job) = &arguments.job {
        check_job_name(job)?;
    }
    let is_meant = |row: &StoreRow| arguments.job.as_ref().is_none_or(|job| *job == row.job);
    let rows: Vec<StoreRow> = survey(&context.roots).into_iter().filter(is_meant).collect();
    if let Some(job) = arguments.job.as_ref().filter(|_| rows.is_empty()) {
        // Returns the error that names the places that were searched.
        context.roots.choose(Some(job))?;
    }
    let mut report = GcReport { dry_run: arguments.dry_run, ..GcReport::default() };
    for row in rows {
        match collect(&row, older_than, &arguments) {
            Ok(to_archive) => {
                report.freed_bytes += row.held_bytes;
                let (job, store, bytes) = (row.job, row.store, row.held_bytes);
                report.freed.push(Freed { job, store, bytes, to_archive });
            }
            Err(why) => report.kept.push(Kept { job: row.job, store: row.store, why }),
        }
    }
    if arguments.job.is_none() {
        let beside = context.roots.reusable().into_iter();
        for directory in
            beside.chain(context.settings.stage.reuse_dir.as_deref().map(reuse::own_part))
        {
            let (files, bytes) = reuse::collect(&directory, arguments.reusable, arguments.dry_run);
            report.inputs += files;
            report.inputs_bytes += bytes;
        }
    }
    say(context, &report)?;
    match (arguments.job, report.kept.into_iter().next()) {
        (Some(job), Some(Kept { why, .. })) => Err(Error::Store(StoreError::NotFreed { job, why })),
        _ => Ok(()),
    }
}

/// Removes a store if allowed. In a dry run, returns the number of checkpoints that would be
/// archived first. Errors: the reason why the store stays.
fn collect(row: &StoreRow, older_than: Duration, arguments: &Arguments) -> Result<u64, String> {
    match refusal(row, older_than, arguments.force) {
        Some(why) => Err(why),
        None if arguments.dry_run && arguments.force => Ok(0),
        None if arguments.dry_run => to_archive(row),
        None => remove(row, arguments.force).map(|()| 0),
    }
}

/// Returns the number of checkpoints that the store's archive lacks. Errors: the archive does not
/// answer; then the store would stay.
fn to_archive(row: &StoreRow) -> Result<u64, String> {
    if row.contents.is_none_or(|contents| contents.files == 0) {
        return Ok(0);
    }
    let count = || -> Result<u64> {
        let store = OpenStore::open(&row.store)?;
        let Some(policy) = &store.job.archive else { return Ok(0) };
        let known = Found::look(&store, &store.volumes()?)?.complete;
        Ok(Archive::open(policy)?.lacks(&store.job, policy, &known)?)
    };
    count().map_err(|error| format!("cannot tell what the archive has of it: {error}"))
}

/// Returns why a store stays, as far as can be told without taking it.
fn refusal(row: &StoreRow, older_than: Duration, force: bool) -> Option<String> {
    match row.state {
        State::Running => Some("it is in use".to_string()),
        State::Damaged | State::Foreign => {
            Some(row.problem.clone().unwrap_or("its state is unknown".to_string()))
        }
        _ if row.problem.is_some() => row.problem.clone(),
        _ if row.idle() < older_than => {
            Some(format!("it was used {} ago", duration::human(row.idle().as_secs_f64())))
        }
        State::Removed | State::Unbegun => None,
        State::LeftBehind => match row.not_safe {
            Some(not_safe) if not_safe.files > 0 && !force => {
                let (what, reasons) = (shown(not_safe), said(&row.reasons));
                Some(format!("{what} in it are nowhere else: {reasons}; {}", advice(row)))
            }
            _ => None,
        },
    }
}

/// Returns advice for files that exist nowhere else.
fn advice(row: &StoreRow) -> String {
    let job = &row.job;
    let is_hopeless = |lack: &Lack| matches!(lack, Lack::Unclean | Lack::Damaged);
    if row.reasons.keys().any(is_hopeless) {
        return format!(
            "unclean files (the writer died or a write failed) and damaged files are never drained: save them with: cairn cp, or give them \
             up with: cairn rm {job} --discard"
        );
    }
    match (&row.persist_problem, &row.persist) {
        (Some(problem), _) => {
            format!("{problem}; drain them elsewhere with: cairn drain {job} --persist DIR")
        }
        (None, Some(_)) => format!("drain them with: cairn drain {job}"),
        (None, None) => format!("drain them with: cairn drain {job} --persist DIR"),
    }
}

/// Takes a store and removes it, unless something changed since it was examined. Errors: the reason
/// why it stays.
fn remove(row: &StoreRow, force: bool) -> Result<(), String> {
    let text = |error: Error| error.to_string();
    if row.state == State::Removed {
        return removal::finish(&row.job, &row.store).map_err(text);
    }
    if row.state == State::Unbegun {
        return match claim::remove_unbegun(&row.store, &row.job).map_err(text)? {
            true => Ok(()),
            false => Err("it is in use".to_string()),
        };
    }
    let store = OpenStore::open(&row.store).map_err(text)?;
    let (claim, files) = take_for_removal(store, force, false).map_err(|error| match error {
        Error::Store(StoreError::Running { .. }) => "it is in use".to_string(),
        other => other.to_string(),
    })?;
    if Look::at(&claim.store).map_err(text)?.living > 0 {
        return Err("it is in use".to_string());
    }
    if files > 0 {
        return Err(format!("{} in it are nowhere else", output::count(files, "file")));
    }
    claim.remove().map_err(text)
}

fn say(context: &Context, report: &GcReport) -> Result<()> {
    if context.json {
        return output::json(report);
    }
    for Kept { job, store, why } in &report.kept {
        output::line(&format!("kept: {job}, {}: {why}", store.display()));
    }
    let verb = if report.dry_run { "would free" } else { "freed" };
    for Freed { job, store, bytes, to_archive } in &report.freed {
        let before = match to_archive {
            0 => String::new(),
            _ => format!(", once {} of it are archived", output::count(*to_archive, "checkpoint")),
        };
        output::line(&format!("{verb}: {job}, {}, {}{before}", store.display(), human(*bytes)));
    }
    if report.inputs > 0 {
        let inputs = output::count(report.inputs, "kept input");
        output::line(&format!("{verb}: {inputs}, {}", human(report.inputs_bytes)));
    }
    let stores = output::count(report.freed.len() as u64, "store");
    output::line(&format!("{verb} {} in {stores}", human(report.freed_bytes)));
    Ok(())
}
