//! Owner of a persist directory: the job whose files lie there, according to its manifest, or all
//! jobs of one start of a launcher, which has a job on each node.
//!
//! Must stay true: nobody drains into the directory of another owner unless its user says that no
//! two files have the same name. Files of an earlier start of a job are replaced only by a run that
//! goes on from it. Only unchanged files that the job drained there are set aside.

use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::persist::destination::Destination;
use crate::persist::ledger::set_rights;
use crate::persist::manifest_file;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Manifest, manifest_name, manifest_path, whole_name};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Largest number of directories for earlier starts of a job.
const PLACES_MAX: u32 = 10_000;

/// The fields of a manifest that tell its owner.
#[derive(Deserialize)]
struct Head {
    job: String,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    everything: bool,
    files: Vec<IgnoredAny>,
}

/// Returns the jobs with a manifest in a directory. Errors: it cannot be listed.
pub fn jobs_in(directory: &Path) -> Result<Vec<String>> {
    let list = || -> std::io::Result<Vec<String>> {
        let mut jobs = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            let job =
                name.strip_prefix("cairn-manifest.").and_then(|rest| rest.strip_suffix(".json"));
            jobs.extend(job.map(str::to_string));
        }
        jobs.sort();
        Ok(jobs)
    };
    list().map_err(Error::file("list", directory))
}

/// Returns the job that owns `directory`, where `job` of the launcher's start `launch` wants to
/// drain; that job itself if it has files there. None if there is no owner. Errors: the directory,
/// or a manifest in it, cannot be read.
pub fn owner(directory: &Path, job: &str, launch: Option<&str>) -> Result<Option<String>> {
    for other in jobs_in(directory)? {
        let path = directory.join(manifest_name(&other));
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        let head: Head = manifest_file::parse(&path, &text)?;
        let is_of_us = launch.is_some() && head.owner.as_deref() == launch;
        // A manifest without files is the claim of a job that goes on, unless that has ended well.
        let is_claimed = head.job != job && !head.everything;
        let is_in_use = !head.files.is_empty() || is_claimed;
        if is_in_use && !is_of_us {
            return Ok(Some(head.job));
        }
    }
    Ok(None)
}

/// Checks that no other job owns the directory, for a store that has not drained there yet. Errors:
/// those of `check_owner`.
pub(crate) fn check_others(directory: &Path, job: &Job) -> Result<()> {
    match job.shared {
        true => Ok(()),
        false => check_owner(directory, &job.job, job.launch.as_deref()),
    }
}

/// Errors: `Owned` if another job than `job`, of another start than `launch`, drains to the
/// directory.
pub(crate) fn check_owner(directory: &Path, job: &str, launch: Option<&str>) -> Result<()> {
    match owner(directory, job, launch)?.filter(|owner| owner != job) {
        Some(owner) => Err(Error::Owned { path: directory.to_path_buf(), owner }),
        None => Ok(()),
    }
}

/// Claims the directory for a new store of `job` before its programs start, by a manifest without
/// files: two jobs that start at once find each other. Errors: `Owned`; it cannot be written.
pub fn claim(directory: &Path, job: &Job) -> Result<()> {
    let mut destination = Destination::open(directory, &job.store)?;
    match job.shared || manifest_file::load(&mut destination, &job.job)?.is_some() {
        true => Ok(()),
        false => write_claim(&destination, &manifest_file::fresh(job)),
    }
}

/// Writes the first manifest of a job. Errors: `Owned` if another job was faster.
pub(crate) fn write_claim(destination: &Destination, manifest: &Manifest) -> Result<()> {
    let directory = destination.path();
    let lock = File::open(directory).map_err(Error::file("open", directory))?;
    // On file systems without locks, a short race between two jobs remains.
    let _ = rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive);
    check_owner(directory, &manifest.job, manifest.owner.as_deref())?;
    manifest_file::commit(manifest, destination)
}

/// Removes the claim of a store that has drained nothing. A failure is ignored: the claim names no
/// file, so the next start of the job takes it over.
pub fn give_back(directory: &Path, job: &Job) {
    let there = Destination::open(directory, &job.store);
    let Ok(mut there) = there else { return };
    let manifest = manifest_file::load(&mut there, &job.job).ok().flatten();
    if manifest.is_some_and(|it| it.store == job.store && it.is_claim()) {
        let _ = manifest_file::remove(&there, &job.job);
    }
}

/// Moves what `job` drained to `directory` and nobody changed since to a directory of its own
/// there, and returns that. Continues a move that was cut off. Errors: something cannot be moved.
pub fn set_aside(directory: &Path, job: &str) -> Result<PathBuf> {
    let mut here = Destination::open(directory, "aside")?;
    let manifest = manifest_file::load(&mut here, job)?;
    let Some(manifest) = manifest else { return Ok(directory.to_path_buf()) };
    let name = |number: u32| directory.join(format!("cairn-aside.{job}.{number}"));
    let is_free = |path: &PathBuf| !path.join(manifest_name(job)).exists();
    let place = (1..=PLACES_MAX).map(name).find(is_free);
    let place = place.ok_or_else(|| Error::Occupied { path: manifest_path(job) })?;
    match fs::create_dir(&place) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::file("make", &place)(error));
        }
        _ => {}
    }
    let whole = directory.join(whole_name(job));
    if whole.exists() {
        let to = place.join(whole_name(job));
        fs::rename(&whole, &to).map_err(Error::file("set aside", &whole))?;
    }
    let there = Destination::open(&place, "aside")?;
    set_rights(&here, &manifest, false)?;
    let is_ours = |path: &FilePath, entry: &cairn_job::outside::manifest::Entry| {
        Ok::<bool, Error>(here.look(path)?.is_some_and(|found| entry.is_ours(&found)))
    };
    for (path, entry) in &manifest.files {
        match entry.kind {
            Kind::Directory => there.make_directory(path, entry.mode | 0o700)?,
            Kind::File | Kind::Symlink if is_ours(path, entry)? => here.move_to(path, &there)?,
            Kind::File | Kind::Symlink => {}
        }
    }
    for (path, entry) in manifest.files.iter().rev() {
        if entry.kind == Kind::Directory && is_ours(path, entry)? {
            here.remove_directory(path)?;
        }
    }
    // In the set-aside directory, mapped directories lie at their paths in the store.
    let mut unmapped = manifest;
    unmapped.log = None;
    unmapped.map = cairn_job::file::mapping::Mapping::default();
    manifest_file::commit(&unmapped, &there)?;
    set_rights(&there, &unmapped, true)?;
    there.synchronise(&FilePath::root())?;
    here.map(cairn_job::file::mapping::Mapping::default());
    manifest_file::remove(&here, job)?;
    here.synchronise(&FilePath::root())?;
    Ok(place)
}
