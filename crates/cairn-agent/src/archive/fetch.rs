//! Reads the archive, for the agent that adds to it and for restores from it.
//!
//! Must stay true: a manifest object is trusted only if its content is what was written. Nothing
//! here changes the archive.

use super::client::{Client, Content};
use super::manifest::{FORMAT, Manifest, STEM};
use super::select;
use crate::model::archive::ArchivePolicy;
use crate::model::error::Result;
use crate::model::format;
use crate::model::job::Job;
use cairn_job::checkpoint::sets::register::Checkpoint;
use cairn_job::file::path::FilePath;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// An archive that is open for reading.
pub struct Archive {
    client: Client<'static>,
}

impl Archive {
    /// Opens the archive in `policy`. Errors: the policy names none; there are no credentials.
    pub fn open(policy: &ArchivePolicy) -> Result<Archive> {
        Ok(Archive { client: Client::new(policy, &wait)? })
    }

    /// Returns the jobs that have checkpoints in the archive.
    pub fn jobs(&self) -> Result<Vec<String>> {
        let root = self.client.location().root();
        let directories = self.client.list_directories(&root)?;
        let job = |name: &String| Some(name.strip_prefix(&root)?.trim_end_matches('/').to_string());
        let mut jobs = Vec::new();
        for job in directories.iter().filter_map(job) {
            if !self.client.list(&self.client.location().key(&job, STEM))?.is_empty() {
                jobs.push(job);
            }
        }
        Ok(jobs)
    }

    /// Returns the checkpoints of a job, and the objects that cannot be read, with the reasons.
    pub fn checkpoints(&self, job: &str) -> Result<(Vec<Manifest>, Vec<String>)> {
        let (mut found, unreadable) = manifests(&self.client, job)?;
        let is_rest = |one: &Manifest| found.iter().any(|whole| one.is_rest_of(whole));
        let rests: Vec<bool> = found.iter().map(is_rest).collect();
        let mut is_rest = rests.into_iter();
        found.retain(|_| is_rest.next() == Some(false));
        Ok((found, unreadable))
    }

    /// Returns how many of `known`, the complete checkpoints of a store without a run, are still to
    /// be archived. Errors: those of the server.
    pub fn lacks(&self, job: &Job, policy: &ArchivePolicy, known: &[Checkpoint]) -> Result<u64> {
        let (archived, _) = manifests(&self.client, &job.job)?;
        let newest = select::newest(known, &job.store, &archived);
        let is_wanted = |id| newest.contains(&id);
        let missing = select::missing(known, &job.store, &archived, policy.every, &is_wanted);
        Ok(missing.len() as u64)
    }

    /// Reads a file of a job and passes its bytes to `consume`. Returns None if the object does not
    /// exist or is unusable.
    pub fn read(
        &self,
        job: &str,
        path: &FilePath,
        consume: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Option<Content>> {
        match self.client.read(&self.client.location().key(job, &path.to_lossy()), consume) {
            Err(error) if error.is_of_object() => Ok(None),
            read => read,
        }
    }
}

/// Sleeps for `time` and always goes on.
fn wait(time: Duration) -> bool {
    thread::sleep(time);
    true
}

/// Returns the checkpoints of `job`, remainders included, and the objects that cannot be read, with
/// the reasons.
pub(crate) fn manifests(client: &Client<'_>, job: &str) -> Result<(Vec<Manifest>, Vec<String>)> {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for key in client.list(&client.location().key(job, STEM))? {
        let text = client.get(&key).transpose();
        match text.map(|text| text.and_then(|text| format::parse(Path::new(&key), &text, FORMAT))) {
            Some(Ok(manifest)) => found.push(manifest),
            Some(Err(error)) if error.is_of_object() => unreadable.push(error.to_string()),
            Some(Err(error)) => return Err(error),
            // The object was removed after it was listed.
            None => {}
        }
    }
    Ok((found, unreadable))
}
