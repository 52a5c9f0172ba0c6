//! What lay in a persist directory before a job drained to it: set aside before something of the job's takes its place.
//!
//! Must stay true: what the job did not put there is neither replaced nor removed, also where it has the name of a file of the job's; it
//! is below `cairn-before.JOB` then, under its own path.
//! Does not see what comes there while an agent runs.

use crate::destination::Destination;
use crate::error::{Error, Result};
use crate::log;
use crate::manifest::Manifest;
use crate::path::FilePath;
use std::collections::HashMap;

/// Directories that things of one name can be set aside in.
const PLACES_MAX: u32 = 1000;

/// Where what was there before is set aside, in the persist directory of `job`.
pub fn before_name(job: &str) -> String {
    format!("cairn-before.{job}")
}

/// What lies in each directory that was looked at and is not of the job: by its name, whether it is a directory.
#[derive(Default)]
pub struct Before(HashMap<FilePath, HashMap<Vec<u8>, bool>>);

impl Before {
    /// Sets aside what lies at `path`, where a directory is to be, or something else, if it was there before. Errors: `Taken`: it cannot
    /// be moved; those of the directory.
    pub fn clear(
        &mut self,
        (path, is_directory): (&FilePath, bool),
        destination: &Destination,
        manifest: &Manifest,
    ) -> Result<()> {
        let Some((parent, name)) = path.split() else { return Ok(()) };
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
        }
        Ok(())
    }
}

fn set_aside(path: &FilePath, destination: &Destination, job: &str) -> Result<()> {
    let taken = || Error::Taken { path: destination.full_path(path) };
    for number in 0..PLACES_MAX {
        let name = match number {
            0 => before_name(job),
            _ => format!("{}.{number}", before_name(job)),
        };
        let place = FilePath::root().join(name.as_bytes());
        let other = destination.make_and_open(&place).map_err(|_| taken())?;
        if other.look(path)?.is_some() {
            continue;
        }
        destination.set_aside_in(path, &other).map_err(|_| taken())?;
        let (path, place) = (destination.full_path(path), other.full_path(path));
        let (path, place) = (path.display(), place.display());
        log::say(
            log::Level::Warn,
            format_args!("what was at {path} before this job is set aside at {place}"),
        );
        return Ok(());
    }
    Err(taken())
}
