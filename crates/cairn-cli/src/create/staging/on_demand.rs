//! Stages the metadata of a persist directory's files into a new store. The agent brings in the
//! data while programs run.
//!
//! Must stay true: a file that is known to be damaged, or has the wrong length, is left out, as if
//! its data had been compared.

use cairn_agent::model::job::Job;
use cairn_agent::model::path::FilePath;
use cairn_agent::persist::destination::Destination;
use cairn_agent::persist::manifest::{Copy, Manifest};
use cairn_agent::store::extended::Extended;
use cairn_agent::store::volume::Volume;
use cairn_agent::store::write::AbsentFile;
use rustix::fs::FileType;

use super::{Origin, or_damaged};
use crate::error::Result;

/// A persist directory whose file data are brought in later.
pub struct OnDemand<'a> {
    /// The directory.
    pub destination: &'a Destination,
    /// Files of the job in the directory.
    pub manifest: &'a Manifest,
}

impl Origin for OnDemand<'_> {
    fn full_name(&self, path: &FilePath) -> String {
        self.destination.full_name(path)
    }

    fn extended(&self, directory: &FilePath) -> Extended {
        Origin::extended(self.destination, directory)
    }

    fn shared_file(&self, path: &FilePath) -> Option<u64> {
        self.destination.shared_file(path)
    }

    fn is_persist_of(&self, job: &Job) -> bool {
        self.destination.is_persist_of(job)
    }

    fn bring(
        &self,
        path: &FilePath,
        copy: &Copy,
        volume: &Volume,
        inner: &FilePath,
        _: &mut dyn FnMut(u64),
    ) -> Result<bool> {
        or_damaged(self.make(path, copy, volume, inner), self.destination)
    }
}

impl OnDemand<'_> {
    /// Creates a file without data. Returns false if its copy is missing, damaged or of the wrong
    /// length.
    fn make(
        &self,
        path: &FilePath,
        copy: &Copy,
        volume: &Volume,
        inner: &FilePath,
    ) -> Result<bool> {
        let is_damaged = self.manifest.files.get(path).is_some_and(|entry| entry.damaged);
        let found = self.destination.look(path)?;
        let is_there = found
            .is_some_and(|found| (found.kind, found.bytes) == (FileType::RegularFile, copy.bytes));
        if is_damaged || !is_there {
            return Ok(false);
        }
        let extended = match copy.extended.is_some_and(|carried| carried.kept) {
            true => Extended::read(self.destination.open_file(path)?),
            false => Extended::default(),
        };
        AbsentFile::create(volume, inner, &copy.into(), &extended)?;
        Ok(true)
    }
}
