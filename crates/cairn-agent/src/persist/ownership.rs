//! Whose a persist directory is: the job whose files lie there, as its manifest says; or all jobs
//! of one start of a launcher, which has one on each node.
//!
//! Must stay true: nobody drains into the directory of another owner unless its user says that no
//! two files have one name; what is there of an earlier start of a job is replaced only by a run
//! that goes on from it; what is set aside was drained there by the job and is what it was.

use crate::image;
use crate::model::error::{Error, Result};
use crate::model::format;
use crate::model::job::Job;
use crate::model::job::left_name;
use crate::model::path::FilePath;
use crate::persist::destination::Destination;
use crate::persist::ledger::{Ledger, set_rights};
use crate::persist::manifest::{MANIFEST_FORMAT, Manifest, manifest_name, manifest_path};
use crate::store::node::Kind;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories that an earlier start of a job can be set aside in.
const PLACES_MAX: u32 = 10_000;

/// What a manifest says of whom it belongs to.
#[derive(Deserialize)]
struct Head {
    job: String,
    #[serde(default)]
    owner: Option<String>,
    complete: bool,
    #[serde(default)]
    everything: bool,
    files: Vec<IgnoredAny>,
}

/// Whether a manifest says that all of a store is there; not if it cannot be read.
pub(crate) fn is_everything(path: &Path) -> bool {
    let head =
        fs::read(path).ok().and_then(|text| format::parse(path, &text, MANIFEST_FORMAT).ok());
    head.is_some_and(|head: Head| head.everything)
}

/// Removes what `job` has drained to `directory`, and nobody changed since, and the directory if
/// nothing else is in it.
/// Errors: something cannot be removed.
pub(crate) fn remove(directory: &Path, job: &Job) -> Result<()> {
    if let Some(manifest) = Manifest::load(&mut Destination::open(directory, "aside")?, &job.job)? {
        // What had arrived when it was cut off is in no manifest yet.
        Ledger::settle(directory, job, manifest)?;
    }
    let mut there = Destination::open(directory, "aside")?;
    if let Some(mut manifest) = Manifest::load(&mut there, &job.job)? {
        if manifest.complete || manifest.everything {
            // Said first: what is left of it, if this is cut off, is not all.
            (manifest.complete, manifest.everything) = (false, false);
            manifest.commit(&there)?;
        }
        set_rights(&there, &manifest, false)?;
        for (path, entry) in manifest.files.iter().rev() {
            match there.look(path)?.filter(|found| entry.is_ours(found)) {
                Some(_) if entry.kind == Kind::Directory => there.remove_directory(path)?,
                Some(_) => there.remove_file(path)?,
                None => {}
            }
        }
        there.remove_file(&manifest_path(&job.job))?;
    }
    // What else is in it is somebody's.
    let _ = fs::remove_dir(directory);
    Ok(())
}

/// Directories beside the places of a job's files that have what an earlier start left.
fn beside(directory: &Path, job: &str) -> Vec<PathBuf> {
    let mut all = image::places(directory, job).to_vec();
    all.push(directory.join(left_name(job)));
    all.retain(|path| path.exists());
    all
}

/// Makes way for what `job` is about to drain to a directory that is for nothing else: what another
/// store of it has left there would be taken for this one's. An older image goes; what a job has
/// left gets another name. Errors: the directory is a link, or something cannot be moved or
/// removed.
pub(crate) fn clear_of_others(directory: &Path, job: &Job) -> Result<()> {
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Ok(found) if found.is_dir() => {}
        _ => {
            let error = std::io::Error::from(std::io::ErrorKind::NotADirectory);
            return Err(Error::file("drain to", directory)(error));
        }
    }
    let mut there = Destination::open(directory, &job.store)?;
    let is_of_other = Manifest::load(&mut there, &job.job)?.is_some_and(|it| it.store != job.store);
    let name = directory.as_os_str();
    match is_of_other {
        false => Ok(()),
        true if directory.ends_with(left_name(&job.job)) => {
            let other = |number: u32| {
                let mut name = name.to_os_string();
                name.push(format!(".{number}"));
                PathBuf::from(name)
            };
            let free = (1..=PLACES_MAX).map(other).find(|path| !path.exists());
            let free = free.ok_or_else(|| Error::Occupied { path: manifest_path(&job.job) })?;
            fs::rename(directory, free).map_err(Error::file("rename", directory))
        }
        true => remove(directory, job),
    }
}

/// Jobs with a manifest in a directory. Errors: it cannot be listed.
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

/// The job whose files are in `directory` where another owner's, as those of `job`, would be
/// drained to; its own, if it has been there before. None if there are none. Errors: the directory,
/// or a manifest in it, cannot be read.
pub fn owner(directory: &Path, job: &str, launch: Option<&str>) -> Result<Option<String>> {
    for other in jobs_in(directory)? {
        let path = directory.join(manifest_name(&other));
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        let head: Head = format::parse(&path, &text, MANIFEST_FORMAT)?;
        let is_of_us = launch.is_some() && head.owner.as_deref() == launch;
        // One without files that is not complete was written by an agent that is about to put the
        // first ones there.
        let is_in_use = !head.files.is_empty() || !head.complete;
        if is_in_use && !is_of_us {
            return Ok(Some(if head.job == job { job.to_string() } else { head.job }));
        }
    }
    // Of one whose files were all open nothing else is there.
    Ok(image::newest(directory, job).map(|_| job.to_string()))
}

/// As `owner`, for a store that drains there and has not done so yet: another job's files.
pub(crate) fn check_others(directory: &Path, job: &Job) -> Result<()> {
    match job.shared {
        true => Ok(()),
        false => check_owner(directory, &job.job, job.launch.as_deref()),
    }
}

/// Errors: `Owned`: another job than `job`, of another start of a launcher than `launch`, drains to
/// the directory.
pub(crate) fn check_owner(directory: &Path, job: &str, launch: Option<&str>) -> Result<()> {
    match owner(directory, job, launch)?.filter(|owner| owner != job) {
        Some(owner) => Err(Error::Owned { path: directory.to_path_buf(), owner }),
        None => Ok(()),
    }
}

/// Moves what `job` has drained to `directory`, and nobody changed since, to a directory of its own
/// there; that. What was begun by somebody who was killed is gone on with. Errors: something cannot
/// be moved.
pub fn set_aside(directory: &Path, job: &str) -> Result<PathBuf> {
    let mut here = Destination::open(directory, "aside")?;
    let manifest = Manifest::load(&mut here, job)?;
    let beside = beside(directory, job);
    if manifest.is_none() && beside.is_empty() {
        return Ok(directory.to_path_buf());
    }
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
    for path in beside {
        let to = place.join(path.file_name().unwrap_or_default());
        fs::rename(&path, &to).map_err(Error::file("set aside", &path))?;
    }
    let there = Destination::open(&place, "aside")?;
    let Some(manifest) = manifest else { return Ok(place) };
    set_rights(&here, &manifest, false)?;
    let is_ours = |path: &FilePath, entry: &crate::persist::manifest::Entry| {
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
    // As the manifest has it, paths of mapped directories are those of the store.
    let mut unmapped = manifest;
    unmapped.map = crate::model::mapping::Mapping::default();
    unmapped.commit(&there)?;
    set_rights(&there, &unmapped, true)?;
    there.synchronise(&FilePath::root())?;
    here.map(crate::model::mapping::Mapping::default());
    here.remove_file(&manifest_path(job))?;
    here.synchronise(&FilePath::root())?;
    Ok(place)
}
