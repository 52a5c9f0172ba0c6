//! `cairn restore`: a new store from what was drained, for a restart on another node or another
//! day.

use crate::Context;
use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::output::{self, count};
use crate::request::{Request, StoreArguments, checked_persist};
use crate::size::human;
use crate::staging::{self, Source, Stage, Staged};
use crate::verify::{check_drained, jobs_in, missing_manifest};
use cairn_agent::destination::Destination;
use cairn_agent::manifest::{Manifest, manifest_name};
use cairn_agent::path::FilePath;
use clap::Args;
use glob::Pattern;
use serde::Serialize;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  cairn restore /scratch/out
      the job whose manifest is there, into a new store of the same name
  cairn restore /scratch/out --job melt --only 'restart.*'
      only some files
  cairn restore /scratch/out --newest
      only the newest whole checkpoint, and what belongs to none
  cairn run --job melt -- ./resume.sh
      then goes on in that store, and drains to /scratch/out again

Every file is compared with the manifest on the way, several at a time; a checkpoint of which one is damaged is left out as a whole. Unclean files were never drained, so they are
not restored. Exit codes: 0 done; 1 some files are damaged (the others are restored); 2 refused.";

/// Fill a new store with files that were drained.
#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    mut_arg("job", |job| job.help(
        "Job to restore, also the name of the new store [default: that of the only manifest there]"
    )),
    mut_arg("persist", |persist| persist.help(
        "Directory that the new store drains to [default: DIR]"
    )),
    mut_arg("mount", |mount| mount.help(
        "Prefix below which the program finds the store [default: that of the manifest]"
    )),
)]
pub struct Arguments {
    /// The directory that was drained to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    store: StoreArguments,
    /// Only the newest whole checkpoint of each family, and what belongs to no checkpoint
    #[arg(long)]
    newest: bool,
    /// Restore only files whose path in the directory matches; may be repeated
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
}

/// What was restored.
#[derive(Debug, Default, Serialize)]
pub struct RestoreReport {
    /// The job.
    job: String,
    /// Its new store.
    store: PathBuf,
    /// Regular files that are there now.
    files: u64,
    /// Their bytes.
    bytes: u64,
    /// Files that are not what the manifest says; they were left out.
    damaged: Vec<String>,
    /// Checkpoints that are there as a whole.
    checkpoints: Vec<String>,
    /// Checkpoints that were left out, because a file of them is damaged.
    left_out: Vec<String>,
}

impl RestoreReport {
    fn take(&mut self, staged: Staged, destination: &Destination) {
        self.files = staged.files;
        self.bytes = staged.bytes;
        let full_path = |path: &FilePath| destination.full_path(path).display().to_string();
        self.damaged = staged.damaged.iter().map(full_path).collect();
        self.checkpoints = staged.checkpoints;
        self.left_out = staged.left_out;
    }
}

/// Carries out the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let patterns = arguments.only.iter().map(|pattern| compiled(pattern));
    let patterns = patterns.collect::<Result<Vec<Pattern>>>()?;
    let mut request = Request::new(arguments.store, context.settings.run.clone())?;
    check_drained(&arguments.directory)?;
    let directory = match &request.persist {
        // Drained to another place from now on: this one need only be readable.
        Some(_) => arguments.directory,
        None => checked_persist(&arguments.directory).map_err(elsewhere)?,
    };
    let mut destination = Destination::open(&directory, "restore")?;
    let job = which_job(&directory, request.job.as_deref())?;
    let manifest = Manifest::load(&mut destination, &job)?;
    let manifest = manifest.ok_or_else(|| missing_manifest(&directory, &job))?;
    if context.roots.find(&job).is_some() {
        return Err(Error::StoreExists { job });
    }
    request.job = Some(job.clone());
    request.persist.get_or_insert(directory);
    request.mount.get_or_insert(manifest.mount.clone());
    request.map.get_or_insert(manifest.map.clone());
    let claim = Claim::create(&context.roots, &request, &[])?;
    let mut report = RestoreReport {
        job,
        store: claim.store.directory().to_path_buf(),
        ..RestoreReport::default()
    };
    let wanted = |path: &FilePath| {
        let place = destination.mapping().place(path);
        let place = place.as_ref().unwrap_or(path).to_lossy();
        patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(&place))
    };
    let source = Source { destination: &destination, manifest: &manifest, wanted: &wanted };
    let stage = if arguments.newest { Stage::Newest } else { Stage::All };
    let restored = staging::fill(&claim, &source, stage, context.json)
        .map(|staged| report.take(staged, &destination));
    if let Err(error) = restored {
        if claim.is_new {
            // A store that is only half there would be taken for whole.
            let _ = claim.remove();
        }
        return Err(error);
    }
    say(context, &report)?;
    match report.damaged.len() as u64 {
        0 => Ok(()),
        damaged => {
            let advice = "they were left out; restore from another copy";
            Err(Error::Damage { damaged, checked: report.files + damaged, advice })
        }
    }
}

/// A directory that cannot be drained to can still be restored from.
fn elsewhere(error: Error) -> Error {
    let advice = "name a directory that the new store drains to, with --persist";
    match error {
        Error::Persist { path, problem, .. } => Error::Persist { path, problem, advice },
        other => other,
    }
}

fn compiled(pattern: &str) -> Result<Pattern> {
    Pattern::new(pattern).map_err(|error| Error::Pattern {
        pattern: pattern.to_string(),
        problem: error.msg.to_string(),
    })
}

/// The job that is meant: the one named, or the only one with a manifest there.
fn which_job(directory: &Path, named: Option<&str>) -> Result<String> {
    if let Some(job) = named {
        return Ok(job.to_string());
    }
    let jobs = jobs_in(directory)?;
    match jobs.as_slice() {
        [job] => Ok(job.clone()),
        [] => Err(Error::NoManifest { path: directory.to_path_buf(), name: manifest_name("*") }),
        several => Err(Error::WhichManifest { jobs: several.join(", ") }),
    }
}

fn say(context: &Context, report: &RestoreReport) -> Result<()> {
    if context.json {
        return output::json(report);
    }
    for path in &report.damaged {
        output::line(&format!("damaged: {path}"));
    }
    for name in &report.left_out {
        output::line(&format!("checkpoint {name} is left out: a file of it is damaged"));
    }
    let (files, bytes) = (count(report.files, "file"), human(report.bytes));
    output::line(&format!("{files}, {bytes}, restored into the store of job {}", report.job));
    output::line(&format!("go on with: cairn run --job {} -- COMMAND", report.job));
    Ok(())
}
