//! Stages files whose data need not be there at once, because the agent can bring them in from the
//! persist directory while programs run: all files, or those for which the store has no room.
//!
//! Must stay true: data come later only if the persist directory has a copy of the right length
//! that is not known to be damaged. All other files are copied and compared at once.

use cairn_agent::model::job::Job;
use cairn_agent::persist::destination::Destination;
use cairn_agent::store::extended;
use cairn_agent::store::volume::Volume;
use cairn_agent::store::write::AbsentFile;
use cairn_job::file::extended::Extended;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Copy, Manifest};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Brought, Origin, is_without_room, or_damaged};
use crate::error::Result;

/// Drained files whose data can be had later.
pub struct OnDemand<'a> {
    /// Persist directory and its files.
    source: &'a Destination,
    manifest: &'a Manifest,
    /// Whether data are to come at once, and have found room so far.
    comes_at_once: AtomicBool,
}

impl<'a> OnDemand<'a> {
    /// Files of the persist directory: with `comes_at_once` they have their data as far as the
    /// store has room.
    pub fn new(
        source: &'a Destination,
        manifest: &'a Manifest,
        comes_at_once: bool,
    ) -> OnDemand<'a> {
        OnDemand { source, manifest, comes_at_once: comes_at_once.into() }
    }

    /// Whether the data can come later. A file that was not closed in order comes at once: the
    /// store has to know that, and notes it only in files with data.
    fn can_come_later(&self, path: &FilePath, copy: &Copy) -> Result<bool> {
        let entry = self.manifest.files.get(path);
        if entry.is_none_or(|entry| entry.damaged || entry.unclosed) {
            return Ok(false);
        }
        let found = self.source.look(path)?;
        Ok(found.is_some_and(|found| (found.kind, found.bytes) == (Some(Kind::File), copy.bytes)))
    }

    fn make_absent(
        &self,
        path: &FilePath,
        copy: &Copy,
        (volume, inner): (&Volume, &FilePath),
    ) -> Result<Brought> {
        let extended = match copy.extended.is_some_and(|carried| carried.kept) {
            true => extended::read(self.source.open_file(path)?),
            false => Extended::default(),
        };
        AbsentFile::create(volume, inner, &copy.into(), &extended)?;
        Ok(Brought::Later)
    }
}

impl Origin for OnDemand<'_> {
    fn full_name(&self, path: &FilePath) -> String {
        self.source.full_name(path)
    }

    fn extended(&self, directory: &FilePath) -> Extended {
        Origin::extended(self.source, directory)
    }

    fn shared_file(&self, path: &FilePath) -> Option<u64> {
        self.source.shared_file(path)
    }

    fn is_persist_of(&self, job: &Job) -> bool {
        self.source.is_persist_of(job)
    }

    fn bring(
        &self,
        path: &FilePath,
        copy: &Copy,
        (volume, inner): (&Volume, &FilePath),
        advance: &mut dyn FnMut(u64),
    ) -> Result<Brought> {
        let at_once =
            |advance: &mut dyn FnMut(u64)| self.source.bring(path, copy, (volume, inner), advance);
        if copy.bytes == 0 || !self.can_come_later(path, copy)? {
            return at_once(advance);
        }
        if self.comes_at_once.load(Ordering::Relaxed) {
            match at_once(advance) {
                Err(error) if is_without_room(&error) => {
                    self.comes_at_once.store(false, Ordering::Relaxed);
                }
                brought => return brought,
            }
        }
        or_damaged(self.make_absent(path, copy, (volume, inner)), self.source)
    }
}
