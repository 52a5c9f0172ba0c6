//! Directories of a job's images below its persist directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::model::error::Result;
use crate::model::job::Job;
use crate::persist::destination::Destination;
use crate::persist::manifest::{Manifest, manifest_name};
use crate::persist::ownership;

/// Returns the two directories for images of a job below its persist directory. A new image
/// overwrites the older one, so the newest stays intact meanwhile.
pub(crate) fn places(persist: &Path, job: &str) -> [PathBuf; 2] {
    [0, 1].map(|number| persist.join(format!("cairn-image.{job}.{number}")))
}

/// Returns the newest complete image of a job in its persist directory, and when it was finished.
pub fn newest(persist: &Path, job: &str) -> Option<(PathBuf, SystemTime)> {
    let whole = places(persist, job).into_iter().filter_map(|place| {
        let manifest = place.join(manifest_name(job));
        let finished = fs::metadata(&manifest).and_then(|found| found.modified()).ok()?;
        ownership::is_everything(&manifest).then_some((place, finished))
    });
    whole.max_by_key(|(_, finished)| *finished)
}

/// Returns the newest complete image, which precedes the one that is written to `directory` and
/// does not change meanwhile. Returns None if there is none of this store.
pub(crate) fn last(directory: &Path, job: &Job) -> Result<Option<(Destination, Manifest)>> {
    let persist = directory.parent().unwrap_or(directory);
    let Some((place, _)) = newest(persist, &job.job) else { return Ok(None) };
    let mut destination = Destination::open(&place, &job.store)?;
    let manifest = Manifest::load(&mut destination, &job.job)?;
    let manifest = manifest.filter(|manifest| manifest.store == job.store);
    Ok(manifest.map(|manifest| (destination, manifest)))
}

/// Returns the directory for the next image.
pub fn next(persist: &Path, job: &str) -> PathBuf {
    let newest = newest(persist, job).map(|(place, _)| place);
    let [first, second] = places(persist, job);
    if newest.as_ref() == Some(&first) { second } else { first }
}
