//! `cairn verify`: checks that all data are still what was written.

use cairn_agent::drain::copy::checksum_of;
use cairn_agent::model::error::why;
use cairn_agent::persist::destination::Destination;
use cairn_agent::persist::manifest_file;
use cairn_agent::store::read::{Buffer, read_whole};
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Manifest, manifest_name};
use clap::Args;

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::Context;
use crate::commands::verify_report::{Damaged, VerifyReport};
use crate::commands::verify_tier;
use crate::error::{Error, PersistError, Result, SettingError};
use crate::output::progress::Progress;
use crate::output::{self, count};
use crate::size::human;
use crate::store::{OpenStore, offline};

const EXAMPLES: &str = "\
Examples:
  cairn verify                               the only store: every block's checksum
  cairn verify melt                          the store of job melt
  cairn verify --persist /scratch/out        files drained there: every file's checksum
  cairn verify melt --persist /scratch/out   only files that job melt drained there
  cairn verify file:/nvme/cairn              a durable tier that no store uses: every block of it
  cairn verify /nvme/meta --tier /nvme/data  a tier with its metadata in a file of their own

If verify finds damaged copies, the next cairn drain makes them again, provided that the store is
on this machine and still has the files. Until then the store is not removed. cairn drain --verify
does both at once.

Exit codes: 0 everything is intact; 1 something is damaged or missing (the output names it);
2 refused.";

/// Compare a store, a durable tier or what was drained with its checksums.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The job [default: the one this runs in, or the only one]; or the file or device of a durable
    /// tier that no store uses, as file:PATH, dax:PATH, block:PATH or PATH
    #[arg(value_name = "JOB|FILE")]
    job: Option<String>,
    /// Same as JOB
    #[arg(long = "job", id = "named", value_name = "NAME", conflicts_with = "job")]
    named: Option<String>,
    /// A further tier file of the store whose metadata are in FILE; repeat for each
    #[arg(long, value_name = "FILE", conflicts_with = "persist")]
    tier: Vec<String>,
    /// Verify drained files in this directory instead, with the manifests there
    #[arg(long, value_name = "DIR")]
    persist: Option<PathBuf>,
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let named = arguments.named.as_deref().or(arguments.job.as_deref());
    let tier = named.filter(|text| offline::is_file(text, &context.roots));
    let (report, advice) = match (&arguments.persist, tier) {
        (Some(persist), _) => (
            verify_persist(context, persist, named)?,
            "drain them again, or restore from another copy",
        ),
        (None, Some(file)) => (
            verify_tier::verify(context, &offline::path_of(file), &arguments.tier)?,
            "restart from an older file that is intact, or from a drained one",
        ),
        (None, None) => (
            verify_store(context, named)?,
            "restart from an older one; cairn ls --newest GLOB finds it",
        ),
    };
    if context.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    match report.damaged_files() {
        0 => Ok(()),
        damaged => {
            Err(Error::Persist(PersistError::Damage { damaged, checked: report.files, advice }))
        }
    }
}

fn print(report: &VerifyReport) {
    for damaged in &report.damaged {
        output::line(&format!("damaged: {}: {}", damaged.path, damaged.reason));
    }
    let (files, bytes) = (count(report.files, "file"), human(report.bytes));
    let intact = report.files - report.damaged_files().min(report.files);
    output::line(&format!("{files}, {bytes}: {intact} intact"));
    if report.open_blocks > 0 {
        let blocks = count(report.open_blocks, "block");
        output::line(&format!("{blocks} being written, not compared"));
    }
    if report.unclean_files > 0 {
        let files = count(report.unclean_files, "file");
        output::line(&format!(
            "{files} unclean: the writer died or a write failed; do not restart from these (cairn ls lists them)"
        ));
    }
    if report.absent_files > 0 {
        let files = count(report.absent_files, "file");
        output::line(&format!("{files} yet to be brought in, not compared"));
    }
    for (job, files) in &report.again {
        let is = if *files == 1 { "is" } else { "are" };
        output::line(&format!(
            "{files} of these {is} still in its store, which is kept until the copy is made again; make it with: cairn drain {job}"
        ));
    }
    if report.complete == Some(false) {
        output::line("the manifest is not complete: more files were to be drained");
    }
}

fn verify_store(context: &Context, job: Option<&str>) -> Result<VerifyReport> {
    let store = context.roots.choose(job)?;
    let mut report = VerifyReport::default();
    let mut buffer = Buffer::default();
    for volume in store.volumes()? {
        let root = FilePath::root();
        volume.fs().check().map_err(volume.error("check the metadata of", &root))?;
        let tree = volume.tree()?;
        let total = tree.values().map(|node| node.bytes).sum();
        let mut progress = Progress::new("verifying", total, context.json);
        for (path, node) in tree.iter().filter(|(_, node)| node.kind == Kind::File) {
            let Some(inner) = path.strip_prefix(volume.prefix()) else { continue };
            let read = volume.open_file(&inner).and_then(|file| {
                read_whole(&file, &mut buffer, &mut |chunk| {
                    progress.advance(chunk.length as u64);
                    Ok(())
                })
            });
            match read {
                Ok(summary) => {
                    report.files += 1;
                    report.unclean_files += u64::from(node.unclean);
                    report.bytes += summary.attributes.size;
                    report.checked_blocks += summary.checked_blocks;
                    report.open_blocks += summary.open_blocks;
                }
                // The file was written, renamed or removed meanwhile: it cannot be checked, and
                // nothing is wrong.
                Err(
                    cairn_agent::Error::Changed { .. }
                    | cairn_agent::Error::Store { source: cairn_core::Error::NotFound, .. },
                ) => {}
                Err(error) if error.is_about_absent_data() => report.absent_files += 1,
                Err(error) => {
                    report.files += 1;
                    let path = store.shown(path);
                    report.damaged.push(Damaged { path, reason: error.to_string() });
                }
            }
        }
    }
    Ok(report)
}

fn verify_persist(context: &Context, persist: &Path, job: Option<&str>) -> Result<VerifyReport> {
    check_drained(persist)?;
    let mut destination = Destination::open(persist, "verify")?;
    let jobs = match job {
        Some(job) => vec![job.to_string()],
        None => jobs_in(persist)?,
    };
    if jobs.is_empty() {
        return Err(missing_manifest(persist, "*"));
    }
    let mut report = VerifyReport { complete: Some(true), ..VerifyReport::default() };
    for job in jobs {
        let manifest = manifest_file::load(&mut destination, &job)?;
        let manifest = manifest.ok_or_else(|| missing_manifest(persist, &job))?;
        report.complete = Some(report.complete == Some(true) && manifest.complete);
        let damaged = verify_manifest(context, &destination, &manifest, &mut report)?;
        match tell(context, persist, &manifest, damaged) {
            Ok(0) => {}
            Ok(again) => drop(report.again.insert(job, again)),
            Err(error) => {
                output::say!("cairn: {job}: cannot mark these copies as damaged: {error}")
            }
        }
    }
    Ok(report)
}

/// Reports damaged copies to the agent of the store that the manifest belongs to, so that they are
/// made again. Returns how many of these files the store has.
fn tell(
    context: &Context,
    persist: &Path,
    manifest: &Manifest,
    damaged: Vec<FilePath>,
) -> Result<u64> {
    let found = context.roots.find(&manifest.job).filter(|_| !damaged.is_empty());
    let Some(store) = found.and_then(|directory| OpenStore::open(&directory).ok()) else {
        return Ok(0);
    };
    let drains_there = persist.canonicalize().is_ok_and(|path| store.job.persist == Some(path));
    if store.job.store != manifest.store || !drains_there {
        return Ok(0);
    }
    let mut files = 0;
    for volume in store.volumes()? {
        let tree = volume.tree()?;
        let nodes = damaged.iter().filter_map(|path| tree.get(path));
        files += nodes.filter(|node| node.absence.is_none()).count() as u64;
    }
    store.ask_agent(None, |agent| agent.distrust(damaged.clone()))?;
    Ok(files)
}

/// Compares the copies that a manifest names. Returns the damaged ones.
fn verify_manifest(
    context: &Context,
    destination: &Destination,
    manifest: &Manifest,
    report: &mut VerifyReport,
) -> Result<Vec<FilePath>> {
    let mut damaged = Vec::new();
    let copies = manifest.files.iter().filter_map(|(path, entry)| Some((path, entry.copy()?)));
    let copies: Vec<_> = copies.collect();
    let total = copies.iter().map(|(_, copy)| copy.bytes).sum();
    let mut progress = Progress::new("verifying", total, context.json);
    let mut buffer = Buffer::default();
    for (path, copy) in copies {
        report.files += 1;
        report.bytes += copy.bytes;
        let full_path = destination.full_path(path);
        let read = destination.open_file(path).and_then(|file| {
            checksum_of(&file, &full_path, &mut buffer, &mut |bytes| {
                progress.advance(bytes);
                Ok(())
            })
        });
        let reason = match read {
            Ok((bytes, _)) if bytes != copy.bytes => {
                Some(format!("it has {bytes} bytes instead of {}", copy.bytes))
            }
            Ok((_, crc32c)) if crc32c != copy.crc32c => {
                Some(format!("its checksum is {crc32c:08x} instead of {:08x}", copy.crc32c))
            }
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = reason {
            report.damaged.push(Damaged { path: full_path.display().to_string(), reason });
            damaged.push(path.clone());
        }
    }
    Ok(damaged)
}

pub use cairn_agent::persist::ownership::jobs_in;

/// Refuses a path that is not a directory.
pub fn check_drained(path: &Path) -> Result<()> {
    let problem = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "is not a directory".to_string(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => "does not exist".to_string(),
        Err(error) => format!("cannot be used: {}", why(&error)),
    };
    let advice = "name the directory that was drained to";
    Err(Error::Setting(SettingError::Persist { path: path.to_path_buf(), problem, advice }))
}

/// Returns the error for a directory without the manifest of `job`; it names the manifests that are
/// there.
pub fn missing_manifest(directory: &Path, job: &str) -> Error {
    let path = directory.to_path_buf();
    match jobs_in(directory).unwrap_or_default().join(", ") {
        jobs if jobs.is_empty() => {
            Error::Persist(PersistError::NoManifest { path, name: manifest_name(job) })
        }
        jobs => Error::Persist(PersistError::OtherManifests { path, job: job.to_string(), jobs }),
    }
}
