//! `cairn restore`: fills a new store from what was drained or archived, for a restart on another
//! node or at another time.

use cairn_agent::archive::fetch::Archive;
use cairn_agent::model::archive::ArchivePolicy;
use cairn_agent::persist::destination::Destination;
use cairn_agent::persist::ledger::Ledger;
use cairn_agent::persist::manifest_file;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Manifest, manifest_name};
use clap::Args;
use glob::Pattern;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::Context;
use crate::claim::Claim;
use crate::commands::verify::{check_drained, jobs_in, missing_manifest};
use crate::create::staging::archived::Archived;
use crate::create::staging::{self, Origin, Source, Staged};
use crate::error::{Error, PersistError, Result, SettingError, StoreError};
use crate::output::{self, count};
use crate::request::{Request, StoreArguments, checked_persist};
use crate::settings::archive::{self, ServerArguments};
use crate::settings::stage_option::{Extent, Stage};
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairn restore /scratch/out
      the job whose manifest is there, into a new store of the same name
  cairn restore /scratch/out --job melt --only 'restart.*'
      only some files
  cairn restore /scratch/out --newest
      only the newest complete checkpoint, and files that belong to no checkpoint
  cairn restore s3://runs/melt --newest
      the newest complete checkpoint that was archived there; credentials come from
      AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from ~/.aws/credentials
  cairn run --job melt -- ./resume.sh
      then resumes that store, and drains to /scratch/out again

Several files are copied at a time, and each is compared with the manifest. A checkpoint with a
damaged file is left out as a whole. Files that were never drained, such as unclean ones, are not
restored.

Exit codes: 0 done; 1 some files are damaged (they and their checkpoints are left out, everything
else is restored); 2 refused.";

/// Fill a new store with files that were drained or archived.
#[derive(Args, Debug)]
#[command(
    after_help = EXAMPLES,
    mut_arg("job", |job| job.help(
        "Job to restore; also names the new store [default: the job of the only manifest there]"
    )),
    mut_arg("persist", |persist| persist.help(
        "Directory that the new store drains to [default: DIR; none if restored from an archive]"
    )),
    mut_arg("mount", |mount| mount.help(
        "Prefix below which the program finds the store [default: the prefix in the manifest]"
    )),
)]
pub struct Arguments {
    /// Directory that was drained to, or archive: s3://BUCKET/PREFIX
    #[arg(value_name = "DIR|URL")]
    from: PathBuf,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    server: ServerArguments,
    /// Restore only the newest complete checkpoint of each family, and the files that belong to no
    /// checkpoint
    #[arg(long)]
    newest: bool,
    /// Restore only files whose path matches, in the store or where they landed; may be repeated
    #[arg(long, value_name = "GLOB")]
    only: Vec<String>,
}

/// Result of the command.
#[derive(Debug, Default, Serialize)]
pub struct RestoreReport {
    /// The job.
    job: String,
    /// Directory of its new store.
    store: PathBuf,
    /// Number of restored regular files.
    files: u64,
    /// Their size in bytes.
    bytes: u64,
    /// Files that differ from the manifest; they were left out.
    damaged: Vec<String>,
    /// Checkpoints of an archive that were known to be incomplete.
    unreadable: Vec<String>,
    /// Checkpoints that were restored completely.
    checkpoints: Vec<String>,
    /// Checkpoints that were left out because one of their files is damaged.
    left_out: Vec<String>,
    /// Files that were not closed in order.
    unclosed: BTreeSet<FilePath>,
    /// Those of them whose last whole versions are outside, too.
    whole: BTreeSet<FilePath>,
}

impl RestoreReport {
    fn take(&mut self, staged: Staged, origin: &dyn Origin) {
        self.files = staged.files;
        self.bytes = staged.bytes;
        self.damaged = staged.damaged.iter().map(|path| origin.full_name(path)).collect();
        self.checkpoints = staged.checkpoints;
        self.left_out = staged.left_out;
        (self.unclosed, self.whole) = (staged.unclosed, staged.whole);
    }
}

/// What can be restored.
struct Found {
    origin: Box<dyn Origin>,
    manifest: Manifest,
    /// A message for each checkpoint that is known to be incomplete.
    unreadable: Vec<String>,
    /// Default persist directory of the new store.
    persist: Option<PathBuf>,
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let patterns = arguments.only.iter().map(|pattern| compiled(pattern));
    let patterns = patterns.collect::<Result<Vec<Pattern>>>()?;
    let mut request = Request::new(arguments.store, context.settings.run.clone())?;
    let url = arguments.from.to_str().filter(|from| from.starts_with("s3://"));
    let Found { origin, manifest, unreadable, persist } = match url {
        Some(url) => {
            let settings = context.settings.archive.clone();
            let policy = archive::place("restore", url, arguments.server, settings)?;
            in_archive(&policy, request.job.as_deref())?
        }
        None => in_directory(arguments.from, &request)?,
    };
    let job = manifest.job.clone();
    if context.roots.find(&job).is_some() {
        return Err(Error::Store(StoreError::StoreExists { job }));
    }
    request.job = Some(job.clone());
    // Only then is the directory the new store's own.
    let is_own = request.persist.is_none() && persist.is_some();
    request.persist = request.persist.or(persist);
    request.mount.get_or_insert(manifest.mount.clone());
    request.map.get_or_insert(manifest.map.clone());
    request.stage = Stage::Later;
    request.runs_program = false;
    let map = manifest.map.clone();
    let wanted = |path: &FilePath| {
        let place = map.place(path).unwrap_or_default();
        let matches =
            |pattern: &Pattern| [path, &place].iter().any(|path| pattern.matches(&path.to_lossy()));
        patterns.is_empty() || patterns.iter().any(matches)
    };
    if !patterns.is_empty() && unreadable.is_empty() && !manifest.files.keys().any(wanted) {
        let problem = format!("no file of job {job} matches; its manifest lists the files");
        return Err(Error::Setting(SettingError::Option { option: "--only", problem }));
    }
    let claim = Claim::create(&context.roots, &request, &[])?;
    let finished = if is_own { finish_turn(&claim) } else { Ok(None) };
    let manifest = match finished {
        Ok(finished) => finished.unwrap_or(manifest),
        Err(error) => {
            let _ = claim.is_new.then(|| claim.remove());
            return Err(error);
        }
    };
    let mut report = RestoreReport {
        job,
        store: claim.store.directory().to_path_buf(),
        unreadable,
        ..RestoreReport::default()
    };
    let source = Source { origin: &*origin, manifest: &manifest, wanted: &wanted };
    let extent = if arguments.newest { Extent::Newest } else { Extent::All };
    let restored = staging::fill(&claim, &source, extent, context.json)
        .map(|staged| report.take(staged, &*origin));
    let restored = restored.and_then(|()| staging::withdraw(claim.store.directory()));
    if let Err(error) = restored {
        if claim.is_new {
            // A partly filled store would be taken for a complete one.
            let _ = claim.remove();
        }
        return Err(error);
    }
    say(context, &report)?;
    match (report.damaged.len() + report.unreadable.len()) as u64 {
        0 => Ok(()),
        damaged => {
            let advice = "they were left out; restore from another copy";
            Err(Error::Persist(PersistError::Damage {
                damaged,
                checked: report.files + damaged,
                advice,
            }))
        }
    }
}

/// Finishes what an agent that died with its node has begun in the persist directory. Returns the
/// manifest afterwards.
fn finish_turn(claim: &Claim) -> Result<Option<Manifest>> {
    let job = &claim.store.job;
    let Some(persist) = &job.persist else { return Ok(None) };
    Ledger::settle_earlier(persist, job)?;
    Ok(manifest_file::load(&mut Destination::open(persist, &job.store)?, &job.job)?)
}

/// Finds what can be restored from a directory that was drained to.
fn in_directory(directory: PathBuf, request: &Request) -> Result<Found> {
    check_drained(&directory)?;
    let directory = match &request.persist {
        // The store drains to another directory, so this one need only be readable.
        Some(_) => directory,
        None => checked_persist(&directory).map_err(elsewhere)?,
    };
    let mut destination = Destination::open(&directory, "restore")?;
    let job = which_job(&directory, request.job.as_deref())?;
    let manifest = manifest_file::load(&mut destination, &job)?;
    let manifest = manifest.ok_or_else(|| missing_manifest(&directory, &job))?;
    let (origin, persist) = (Box::new(destination), Some(directory));
    Ok(Found { origin, manifest, unreadable: Vec::new(), persist })
}

/// Finds what can be restored from an archive.
fn in_archive(policy: &ArchivePolicy, job: Option<&str>) -> Result<Found> {
    let url = policy.url.clone();
    let job = match job {
        Some(job) => job.to_string(),
        None => match Archive::open(policy)?.jobs()?.as_slice() {
            [job] => job.clone(),
            [] => return Err(Error::Persist(PersistError::NothingArchived { url })),
            several => {
                return Err(Error::Persist(PersistError::WhichManifest {
                    jobs: several.join(", "),
                }));
            }
        },
    };
    let archived = Archived::open(policy, &job)?;
    let (manifest, unreadable) = (archived.manifest.clone(), archived.unreadable.clone());
    match manifest.checkpoints.is_empty() && unreadable.is_empty() {
        true => Err(Error::Persist(PersistError::NothingArchived { url: format!("{url}/{job}") })),
        false => Ok(Found { origin: Box::new(archived), manifest, unreadable, persist: None }),
    }
}

/// Adds advice to an error: a directory that cannot be drained to can still be restored from.
fn elsewhere(error: Error) -> Error {
    let advice = "name a directory that the new store drains to, with --persist";
    match error {
        Error::Setting(SettingError::Persist { path, problem, .. }) => {
            Error::Setting(SettingError::Persist { path, problem, advice })
        }
        other => other,
    }
}

fn compiled(pattern: &str) -> Result<Pattern> {
    Pattern::new(pattern).map_err(|error| {
        Error::Setting(SettingError::Pattern {
            pattern: pattern.to_string(),
            problem: error.msg.to_string(),
        })
    })
}

/// Returns the named job, else the only one with a manifest in the directory.
fn which_job(directory: &Path, named: Option<&str>) -> Result<String> {
    if let Some(job) = named {
        return Ok(job.to_string());
    }
    let jobs = jobs_in(directory)?;
    match jobs.as_slice() {
        [job] => Ok(job.clone()),
        [] => Err(Error::Persist(PersistError::NoManifest {
            path: directory.to_path_buf(),
            name: manifest_name("*"),
        })),
        several => Err(Error::Persist(PersistError::WhichManifest { jobs: several.join(", ") })),
    }
}

fn say(context: &Context, report: &RestoreReport) -> Result<()> {
    if context.json {
        return output::json(report);
    }
    report.unreadable.iter().for_each(|line| output::line(&output::printable(line)));
    for path in &report.damaged {
        output::line(&format!("damaged: {}", output::printable(path)));
    }
    for name in &report.left_out {
        let name = output::printable(name);
        output::line(&format!("checkpoint {name} is left out: a file of it is damaged"));
    }
    let (unclosed, whole) = (&report.unclosed, &report.whole);
    staging::line_about_unclosed(unclosed, whole).iter().for_each(|line| output::line(line));
    let (files, bytes) = (count(report.files, "file"), human(report.bytes));
    output::line(&format!("{files}, {bytes}, restored into the store of job {}", report.job));
    output::line(&format!("go on with: cairn run --job {} -- COMMAND", report.job));
    Ok(())
}
