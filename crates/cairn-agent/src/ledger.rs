//! The persist directory together with the manifest that says what is in it.
//!
//! Must stay true: before anything in a directory changes whose manifest says *complete*, that word
//! is taken back on disk, so a half-replaced set of files never passes for a checkpoint; before a
//! manifest names a file, the directory the file lies in was made durable.

use crate::destination::Destination;
use crate::error::Result;
use crate::job::Job;
use crate::manifest::{Entry, Manifest};
use crate::path::FilePath;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The manifest is committed during a long pass so often at most.
const COMMIT_EVERY: Duration = Duration::from_secs(2);
/// Part of the time that commits may take: one in so many.
const COMMIT_SHARE: u32 = 10;

/// An open persist directory and its manifest.
pub struct Ledger {
    destination: Arc<Destination>,
    manifest: Manifest,
    /// The manifest in memory says something that the one on disk does not.
    dirty: bool,
    complete_on_disk: bool,
    /// Directories with names that may not be durable yet.
    touched: BTreeSet<FilePath>,
    committed_at: Instant,
    commit_cost: Duration,
}

impl Ledger {
    /// Opens the directory and takes up what the manifest of the job says.
    pub fn open(path: &Path, job: &Job) -> Result<Ledger> {
        let destination = Arc::new(Destination::open(path, &job.store)?);
        let on_disk = Manifest::load(&destination, &job.job)?;
        let complete_on_disk = on_disk.is_some_and(|manifest| manifest.complete);
        let manifest = Manifest::resume(&destination, &job.job, &job.store, &job.mount)?;
        Ok(Ledger {
            destination,
            manifest,
            dirty: false,
            complete_on_disk,
            touched: BTreeSet::new(),
            committed_at: Instant::now(),
            commit_cost: Duration::ZERO,
        })
    }

    /// The directory.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The directory, for threads that copy into it.
    pub fn shared_destination(&self) -> Arc<Destination> {
        Arc::clone(&self.destination)
    }

    /// What is in it.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The entry of a path.
    pub fn entry(&self, path: &FilePath) -> Option<&Entry> {
        self.manifest.files.get(path)
    }

    /// Sets the entry of a path.
    pub fn put(&mut self, path: FilePath, entry: Entry) {
        self.dirty = true;
        self.manifest.files.insert(path, entry);
    }

    /// Drops the entry of a path.
    pub fn take(&mut self, path: &FilePath) -> Option<Entry> {
        self.dirty = true;
        self.manifest.files.remove(path)
    }

    /// Changes the entry of a path, if there is one.
    pub fn update(&mut self, path: &FilePath, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.manifest.files.get_mut(path) {
            self.dirty = true;
            change(entry);
        }
    }

    /// Whether what lies at `path` is still exactly what its entry says we put there.
    pub fn is_ours(&self, path: &FilePath) -> Result<bool> {
        let Some(entry) = self.entry(path) else { return Ok(false) };
        Ok(self.destination.look(path)?.is_some_and(|found| entry.is_ours(&found)))
    }

    /// Names in this directory changed.
    pub fn touch(&mut self, directory: FilePath) {
        self.touched.insert(directory);
    }

    /// To be called before the first change of a pass.
    pub fn begin_changes(&mut self) -> Result<()> {
        self.set_complete(false);
        if self.complete_on_disk { self.commit() } else { Ok(()) }
    }

    /// Says whether every clean file is here.
    pub fn set_complete(&mut self, complete: bool) {
        self.dirty |= self.manifest.complete != complete;
        self.manifest.complete = complete;
    }

    /// Writes the manifest if it changed and the last time is long enough ago.
    pub fn commit_if_due(&mut self) -> Result<()> {
        let interval = COMMIT_EVERY.max(self.commit_cost * COMMIT_SHARE);
        if self.committed_at.elapsed() >= interval { self.commit() } else { Ok(()) }
    }

    /// Writes the manifest if it changed.
    pub fn commit(&mut self) -> Result<()> {
        if !self.dirty {
            return Ok(());
        }
        let started = Instant::now();
        while let Some(directory) = self.touched.pop_last() {
            self.destination.synchronise(&directory)?;
        }
        self.manifest.commit(&self.destination)?;
        self.dirty = false;
        self.complete_on_disk = self.manifest.complete;
        self.committed_at = Instant::now();
        self.commit_cost = started.elapsed();
        Ok(())
    }
}
