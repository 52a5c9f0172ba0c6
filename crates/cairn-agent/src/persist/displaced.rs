//! Files that were in a persist directory before a job drained to it: they are set aside before the
//! job's files take their places.
//!
//! Must stay true: an earlier file with the name of one of the job's is neither replaced nor
//! removed. It is moved below `cairn-before.JOB`, under its own path.
//!
//! Does not notice files that come while an agent runs, nor those in places of `--map`. A directory
//! that the job makes as well belongs to the job from then on.

use crate::model::error::{Error, Result};
use crate::model::log;
use crate::persist::destination::Destination;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::Manifest;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Largest number of directories in which files of the same name can be set aside.
const PLACES_MAX: u32 = 1000;

fn before_name(job: &str, number: u32) -> String {
    // `+` is not allowed in a job's name.
    let number = if number > 0 { format!("+{number}") } else { String::new() };
    format!("cairn-before.{job}{number}")
}

/// Returns the directories with files that were in the persist directory of `job` before.
pub fn places(persist: &Path, job: &str) -> Vec<PathBuf> {
    let places = (0..PLACES_MAX).map(|number| persist.join(before_name(job, number)));
    places.take_while(|place| place.is_dir()).collect()
}

/// Names that do not belong to the job, by directory looked at; the value says whether each is a
/// directory.
#[derive(Default)]
pub struct Before(HashMap<FilePath, HashMap<Vec<u8>, bool>>);

impl Before {
    /// Sets aside what was at `path` before; `is_directory` says that a directory is to come there.
    /// Errors: `Taken` if it cannot be moved; those of the directory.
    pub fn clear(
        &mut self,
        (path, is_directory): (&FilePath, bool),
        destination: &Destination,
        manifest: &Manifest,
    ) -> Result<()> {
        let Some((parent, name)) = path.split() else { return Ok(()) };
        if destination.mapping().place(path).as_ref() != Some(path) {
            // A path with a place of its own is not below this directory.
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
        // It is gone meanwhile.
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
