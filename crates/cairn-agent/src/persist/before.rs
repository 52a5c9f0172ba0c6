//! What lay in a persist directory before a job drained to it: set aside before something of the
//! job's takes its place.
//!
//! Must stay true: a file that was there, and has the name of one of the job's, is neither replaced
//! nor removed; it is below `cairn-before.JOB` then, under its own path.
//! Does not see what comes there while an agent runs, nor what lies in places of `--map`. A
//! directory that the job makes, too, is the job's from then on.

use crate::model::error::{Error, Result};
use crate::model::log;
use crate::model::path::FilePath;
use crate::persist::destination::Destination;
use crate::persist::manifest::Manifest;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Directories that things of one name can be set aside in.
const PLACES_MAX: u32 = 1000;

fn before_name(job: &str, number: u32) -> String {
    // No job has this sign in its name.
    let number = if number > 0 { format!("+{number}") } else { String::new() };
    format!("cairn-before.{job}{number}")
}

/// Where something is that was in the persist directory of `job` before.
pub fn places(persist: &Path, job: &str) -> Vec<PathBuf> {
    let places = (0..PLACES_MAX).map(|number| persist.join(before_name(job, number)));
    places.take_while(|place| place.is_dir()).collect()
}

/// What lies in each directory that was looked at and is not of the job: by its name, whether it is
/// a directory.
#[derive(Default)]
pub struct Before(HashMap<FilePath, HashMap<Vec<u8>, bool>>);

impl Before {
    /// Sets aside what lies at `path`, where a directory is to be, or something else, if it was
    /// there before. Errors: `Taken`: it cannot be moved; those of the directory.
    pub fn clear(
        &mut self,
        (path, is_directory): (&FilePath, bool),
        destination: &Destination,
        manifest: &Manifest,
    ) -> Result<()> {
        let Some((parent, name)) = path.split() else { return Ok(()) };
        if destination.mapping().place(path).as_ref() != Some(path) {
            // What has a place of its own is not below this directory.
            return Ok(());
        }
        let name = name.to_vec();
        if !self.0.contains_key(&parent) {
            let is_of_others = |(name, _): &(Vec<u8>, bool)| {
                let path = parent.join(name);
                !manifest.files.contains_key(&path) && !destination.mapping().is_reserved(&path)
            };
            let found = destination.list(&parent)?.into_iter().filter(is_of_others).collect();
            self.0.insert(parent.clone(), found);
        }
        let here = self.0.entry(parent).or_default();
        if here.get(&name).is_some_and(|is_one| !(is_directory && *is_one)) {
            set_aside(path, destination, &manifest.job)?;
            here.remove(&name);
            self.0.retain(|directory, _| directory.strip_prefix(path).is_none());
        }
        Ok(())
    }
}

fn set_aside(path: &FilePath, destination: &Destination, job: &str) -> Result<()> {
    if destination.look(path)?.is_none() {
        // It has gone since.
        return Ok(());
    }
    for number in 0..PLACES_MAX {
        let place = FilePath::root().join(before_name(job, number).as_bytes());
        let other = destination.make_and_open(&place)?;
        if other.look(path)?.is_some() {
            continue;
        }
        destination.set_aside_in(path, &other)?;
        let (path, place) = (destination.full_path(path), other.full_path(path));
        let (path, place) = (path.display(), place.display());
        log::say(
            log::Level::Warn,
            format_args!("what was at {path} before this job is set aside at {place}"),
        );
        return Ok(());
    }
    Err(Error::Taken { path: destination.full_path(path) })
}
