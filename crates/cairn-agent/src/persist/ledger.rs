//! The persist directory together with its manifest.
//!
//! Must stay true: before anything changes in a directory whose manifest says *complete*, the
//! manifest on disk retracts that, so that a half-replaced set of files never passes for a
//! checkpoint. Before a manifest names a file, the file's directory has been made durable. What an
//! agent did before it died is in the journal, and enters the manifest before anything else is
//! done.

use crate::checkpoint::sets::register;
use crate::model::checkpoint_name::Name;
use crate::model::error::{Error, Result};
use crate::model::job::{Job, left_name};
use crate::model::path::FilePath;
use crate::persist::destination::{Destination, Found, same_time};
use crate::persist::displaced::Before;
use crate::persist::journal::{Intent, Journal};
use crate::persist::manifest::{Checkpoint, Entry, Manifest, Partial, State, manifest_name};
use crate::persist::ownership;
use crate::store::node::{Kind, Node};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map};
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest time between two commits of the manifest during a long pass.
const COMMIT_EVERY: Duration = Duration::from_secs(2);
/// Commits take at most one part in this many of the time.
const COMMIT_SHARE: u32 = 10;

/// A version that no file has.
const OF_NO_FILE: u64 = u64::MAX;

/// An open persist directory and its manifest.
pub struct Ledger {
    destination: Arc<Destination>,
    journal: Arc<Journal>,
    manifest: Manifest,
    /// Whether the manifest in memory differs from the one on disk.
    dirty: bool,
    complete_on_disk: bool,
    is_on_disk: bool,
    /// Whether files were drained to the directory, so that the manifest says more than a claim.
    has_drained: bool,
    /// The complete checkpoints of the store. The manifest names each as soon as all of its files
    /// are here.
    expected: Vec<register::Checkpoint>,
    /// All checkpoints of the store, whole or not.
    sets: Vec<Partial>,
    /// Whether other jobs drain here, too.
    is_shared: bool,
    /// Files that were here before the job. None if only the job's files are here, or if every copy
    /// must find its name free.
    before: Option<Before>,
    /// Directories whose names may not be durable yet.
    touched: BTreeSet<FilePath>,
    committed_at: Instant,
    commit_cost: Duration,
}

impl Ledger {
    /// Opens the directory and the manifest of the job, and recovers changes that an agent
    /// announced before it died.
    pub fn open(path: &Path, job: &Job) -> Result<Ledger> {
        Ledger::settle_earlier(path, job)?;
        let (mut destination, on_disk) = Ledger::look(path, job)?;
        if on_disk.as_ref().is_none_or(|manifest| manifest.files.is_empty()) {
            ownership::check_others(path, job)?;
        }
        if on_disk.as_ref().is_some_and(|found| !found.files.is_empty() && found.map != job.map) {
            return Err(Error::Mapped { path: path.join(manifest_name(&job.job)) });
        }
        destination.map(job.map.clone());
        destination.make_places()?;
        let destination = Arc::new(destination);
        let (is_on_disk, complete_on_disk) =
            (on_disk.is_some(), on_disk.as_ref().is_some_and(|manifest| manifest.complete));
        let has_drained = on_disk.as_ref().is_some_and(|manifest| !manifest.is_claim());
        let manifest = Manifest::resume(on_disk, job);
        let (journal, intents) = Journal::open(Arc::clone(&destination))?;
        let mut ledger = Ledger {
            destination,
            journal: Arc::new(journal),
            manifest,
            dirty: false,
            is_on_disk,
            has_drained,
            complete_on_disk,
            expected: Vec::new(),
            sets: Vec::new(),
            is_shared: job.shared,
            before: (!job.shared && job.persist.as_deref() == Some(path)).then(Before::default),
            touched: BTreeSet::new(),
            committed_at: Instant::now(),
            commit_cost: Duration::ZERO,
        };
        ledger.set_directory_rights(false)?;
        ledger.recover(intents)?;
        if is_on_disk && !complete_on_disk {
            ledger.look_at_directories();
        }
        Ok(ledger)
    }

    /// Reads the modification times of directories into their entries: an agent that died may have
    /// changed their content without restoring their times.
    fn look_at_directories(&mut self) {
        let directories =
            self.manifest.files.iter_mut().filter(|(_, entry)| entry.kind == Kind::Directory);
        for (path, entry) in directories {
            if let Ok(Some(found)) = self.destination.look(path) {
                entry.mtime_ns = entry.mtime_found(&found);
            }
        }
    }

    /// Completes the manifest of an earlier store of the job whose agent died with its node, and
    /// removes what that agent had not finished: no other agent of that store follows. Errors: as
    /// `open`.
    pub fn settle_earlier(path: &Path, job: &Job) -> Result<()> {
        match Ledger::look(path, job)? {
            (_, Some(manifest)) if manifest.store != job.store => {
                Ledger::settle(path, job, manifest)
            }
            _ => Ok(()),
        }
    }

    /// Does the same for the store that wrote this manifest.
    pub(crate) fn settle(path: &Path, job: &Job, manifest: Manifest) -> Result<()> {
        let earlier = Job {
            store: manifest.store,
            map: manifest.map,
            launch: manifest.owner,
            persist_id: None,
            ..job.clone()
        };
        let ledger = Ledger::open(path, &earlier)?;
        let directories = ledger.manifest.files.iter();
        let directories = directories.filter(|(_, entry)| entry.kind == Kind::Directory);
        ledger.destination.sweep(&FilePath::root(), &[])?;
        for (directory, _) in directories {
            ledger.destination.sweep(directory, &[])?;
        }
        Ok(())
    }

    /// Checks that the directory can be drained to. Errors: it cannot be opened, or is not the one
    /// that it was.
    pub fn check(path: &Path, job: &Job) -> Result<()> {
        Ledger::look(path, job).map(drop)
    }

    /// Opens the directory and the manifest of the job in it. Errors: as `check`.
    pub(crate) fn look(path: &Path, job: &Job) -> Result<(Destination, Option<Manifest>)> {
        let mut destination = Destination::open(path, &job.store)?;
        let on_disk = Manifest::load(&mut destination, &job.job)?;
        // A directory with this store's manifest is the right one, even if its numbers have
        // changed.
        let is_ours = on_disk.as_ref().is_some_and(|manifest| manifest.store == job.store);
        if let Some(known) = job.persist_id.filter(|_| !is_ours) {
            destination.check(known)?;
        }
        Ok((destination, on_disk))
    }

    /// Applies announced changes to the manifest: whether each was carried out is decided by
    /// looking.
    fn recover(&mut self, intents: Vec<Intent>) -> Result<()> {
        if intents.is_empty() {
            return Ok(());
        }
        self.set_complete(false, false);
        for Intent { path, entry, inode } in intents {
            let found = self.destination.look(&path)?;
            let carried_out = match (&entry, &found) {
                (Some(entry), Some(found)) => self.is_result(&path, entry, inode, found)?,
                _ => false,
            };
            let known = if carried_out { entry } else { self.entry(&path).cloned() };
            match (known, found) {
                (Some(entry), Some(found)) if entry.is_ours(&found) => {
                    // Other entries hold the attributes of a copy to come.
                    if entry.state == State::Drained {
                        // Enter the attributes found, so that the next pass corrects them.
                        let mode = found.mode;
                        let mtime_ns = entry.mtime_found(&found);
                        let extended = self.destination.extended(&path).carried(true);
                        self.put(path.clone(), Entry { mode, mtime_ns, extended, ..entry });
                    }
                }
                _ => drop(self.take(&path)),
            }
            self.touched.extend(path.split().map(|(parent, _)| parent));
        }
        self.commit()
    }

    /// Whether `found` at `path` is what `entry` and `inode` announced.
    fn is_result(
        &self,
        path: &FilePath,
        entry: &Entry,
        inode: Option<u64>,
        found: &Found,
    ) -> Result<bool> {
        if !entry.is_ours(found) {
            return Ok(false);
        }
        match entry.kind {
            Kind::Directory => Ok(true),
            Kind::File => Ok(inode == Some(found.inode)),
            Kind::Symlink => {
                let target = self.destination.read_link(path)?;
                Ok(entry.target.as_ref().is_some_and(|announced| announced.0 == target))
            }
        }
    }

    /// Returns the directory.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Returns the directory, for threads that copy into it.
    pub fn shared_destination(&self) -> Arc<Destination> {
        Arc::clone(&self.destination)
    }

    /// Returns the journal, for threads that copy into the directory.
    pub fn shared_journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    /// Announces a change of `path` before it happens: it gets `entry` (as the regular file `inode`
    /// of the directory, if it is one), or is removed. Errors: `Reserved`, `Taken`; nothing is
    /// announced then.
    pub fn announce(
        &mut self,
        path: &FilePath,
        entry: Option<&Entry>,
        inode: Option<u64>,
    ) -> Result<()> {
        if let Some(entry) = entry {
            if self.destination.mapping().is_reserved(path) {
                return Err(Error::Reserved { path: path.clone() });
            }
            self.set_aside_existing(path, entry.kind)?;
            if entry.kind != Kind::Directory && !self.may_replace(path)? {
                return Err(Error::Taken { path: self.destination.full_path(path) });
            }
        }
        self.journal.add(&Intent { path: path.clone(), entry: entry.cloned(), inode })
    }

    /// Sets aside what was at `path` before the job. Errors: `Taken` if it cannot be moved.
    pub fn set_aside_existing(&mut self, path: &FilePath, kind: Kind) -> Result<()> {
        match &mut self.before {
            Some(before) if !self.manifest.files.contains_key(path) => {
                before.clear((path, kind == Kind::Directory), &self.destination, &self.manifest)
            }
            _ => Ok(()),
        }
    }

    /// Whether a copy may replace what is at `path`. In a shared directory, only what this job put
    /// there may be replaced.
    pub fn may_replace(&self, path: &FilePath) -> Result<bool> {
        Ok(!self.needs_free_name(path)? || self.destination.look(path)?.is_none())
    }

    /// Whether a new copy at `path` must find the name free.
    pub fn needs_free_name(&self, path: &FilePath) -> Result<bool> {
        let is_of_this_store = self.entry(path).is_some_and(|entry| !entry.is_of_earlier_store());
        Ok(self.is_shared && !(is_of_this_store && self.is_ours(path)?))
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether the file system of the directory refused permission bits.
    pub fn lacks_modes(&self) -> bool {
        self.manifest.without_modes || self.destination.has_refused_modes()
    }

    /// Returns the entry of a path.
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

    /// Marks these copies as damaged, durably. Only a new copy removes the mark.
    pub fn distrust(&mut self, paths: &[FilePath]) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        paths.iter().for_each(|path| self.update(path, |entry| entry.damaged = true));
        self.set_complete(false, false);
        self.commit()
    }

    /// Ties the copy at `path` to its file in the store.
    pub fn attach(&mut self, path: &FilePath, node: &Node) {
        self.update(path, |entry| {
            (entry.detached, entry.rolled_back) = (false, false);
            entry.inode = node.inode;
            if node.kind == Kind::File {
                if let Some(copy) = entry.copy() {
                    entry.set_copy(copy);
                }
                entry.version = node.version;
            }
        });
    }

    /// Ties what is at `path` to a file of which it is not a copy: a copy replaces it, or it is
    /// removed with the file.
    pub fn attach_outdated(&mut self, path: &FilePath, inode: u32) {
        self.update(path, |entry| {
            (entry.detached, entry.rolled_back) = (false, false);
            (entry.inode, entry.version) = (inode, OF_NO_FILE);
        });
    }

    /// Moves files that arrived after the image that the store was filled from, and were not
    /// written again, to a directory of their own. Files that somebody changed stay. Returns the
    /// directory if anything was moved. Errors: a file cannot be moved, and stays where it was.
    pub fn set_rolled_back_aside(&mut self) -> Result<Option<PathBuf>> {
        let rolled_back = self.manifest.files.iter().filter(|(_, entry)| entry.rolled_back);
        let paths: Vec<(FilePath, Kind)> =
            rolled_back.map(|(path, entry)| (path.clone(), entry.kind)).collect();
        let mut place: Option<(PathBuf, Destination)> = None;
        for (path, kind) in paths.iter().rev() {
            if !self.is_ours(path)? {
                self.take(path);
                continue;
            }
            self.announce(path, None, None)?;
            if *kind == Kind::Directory {
                self.destination.remove_directory(path)?;
            } else {
                let (_, there) = match &place {
                    Some(place) => place,
                    None => place.insert(self.place_of_rolled_back()?),
                };
                let above = |path: &FilePath| path.split().map(|(parent, _)| parent);
                let mut parents: Vec<FilePath> = iter::successors(above(path), above).collect();
                parents.retain(|parent| !parent.is_root());
                for parent in parents.iter().rev() {
                    there.make_directory(parent, 0o700)?;
                }
                self.destination.move_to(path, there)?;
            }
            self.touched.extend(path.split().map(|(parent, _)| parent));
            self.take(path);
        }
        Ok(place.map(|(path, _)| path))
    }

    fn place_of_rolled_back(&self) -> Result<(PathBuf, Destination)> {
        let name = format!("{}.lost", left_name(&self.manifest.job));
        let numbered = |number: u32| self.destination.path().join(format!("{name}.{number}"));
        let free = (1..=u32::MAX).map(numbered).find(|path| !path.exists());
        let path = free.unwrap_or_else(|| self.destination.path().join(name));
        fs::create_dir(&path).map_err(Error::file("make", &path))?;
        let there = Destination::open(&path, "aside")?;
        Ok((path, there))
    }

    /// Whether what is at `path` is still exactly what its entry says we put there.
    pub fn is_ours(&self, path: &FilePath) -> Result<bool> {
        Ok(self.find_ours(path)?.is_some())
    }

    /// Returns the entry of `path` and what is there, if that is still exactly what we put there.
    pub fn find_ours(&self, path: &FilePath) -> Result<Option<(Entry, Found)>> {
        let Some(entry) = self.entry(path) else { return Ok(None) };
        let found = self.destination.look(path)?.filter(|found| entry.is_ours(found));
        Ok(found.map(|found| (entry.clone(), found)))
    }

    /// Records that names in this directory changed.
    pub fn touch(&mut self, directory: FilePath) {
        self.touched.insert(directory);
    }

    #[cfg(test)]
    pub(crate) fn is_touched(&self, directory: &FilePath) -> bool {
        self.touched.contains(directory)
    }

    /// Sets the modes of directories whose owner lacks rights in the store: to exactly those, or to
    /// all rights for the owner.
    pub fn set_directory_rights(&self, exactly: bool) -> Result<()> {
        set_rights(&self.destination, &self.manifest, exactly)
    }

    /// Writes the manifest before the first file of the job is there, to claim the directory:
    /// another job may have come since this one began. Errors: another job owns it.
    fn claim(&mut self) -> Result<()> {
        if self.is_on_disk || self.is_shared {
            return Ok(());
        }
        self.manifest.complete = false;
        ownership::write_claim(&self.destination, &self.manifest)?;
        self.is_on_disk = true;
        Ok(())
    }

    /// Prepares a change of the copies at `changed`: claims the directory, retracts *complete*, and
    /// retracts the checkpoints with these files. Call it before anything changes.
    pub fn begin_changes(&mut self, changed: &HashSet<&FilePath>) -> Result<()> {
        self.claim()?;
        self.set_directory_rights(false)?;
        self.set_complete(false, false);
        self.note_partial(changed);
        let known = self.manifest.checkpoints.len();
        let is_kept = |checkpoint: &Checkpoint| {
            !checkpoint.files.iter().any(|file| changed.contains(&file.path))
        };
        self.manifest.checkpoints.retain(is_kept);
        let retracts = self.manifest.checkpoints.len() < known;
        self.dirty |= retracts;
        if self.complete_on_disk || retracts { self.write_manifest() } else { Ok(()) }
    }

    /// Enters the checkpoints of the store that are here. Checkpoints of earlier stores, and those
    /// with files that have left the store, stay as long as their copies do.
    pub(crate) fn put_checkpoints(&mut self, mut drained: Vec<Checkpoint>) {
        let manifest = &self.manifest;
        let whole = manifest.checkpoints.iter().filter(|known| known.is_whole(manifest));
        let mut checkpoints: Vec<Checkpoint> = whole.cloned().collect();
        let names = checkpoints.iter().enumerate();
        let places: HashMap<Name, usize> =
            names.map(|(place, known)| (known.name.clone(), place)).collect();
        drained.retain(|one| {
            let Some(&place) = places.get(&one.name) else { return true };
            let known = &mut checkpoints[place];
            if known.files == one.files && same_time(known.modified_ns, one.modified_ns) {
                // A checkpoint that the store was filled with does not become newer by that.
                *known = Checkpoint { order: known.order, ..one.clone() };
                return false;
            }
            !one.is_rest_of(known)
        });
        // A file is part of one checkpoint only.
        let parts = drained.iter().flat_map(|one| &one.files).map(|file| &file.path);
        let parts: HashSet<&FilePath> = parts.collect();
        checkpoints.retain(|known| !known.files.iter().any(|file| parts.contains(&file.path)));
        self.dirty |= !drained.is_empty() || self.manifest.checkpoints != checkpoints;
        self.manifest.checkpoints = checkpoints;
        // In the order of their numbers, which is that of completion.
        drained.into_iter().for_each(|one| self.manifest.enter(one));
    }

    /// Sets the complete checkpoints of the store, and all checkpoints, whole or not.
    pub fn expect(&mut self, complete: Vec<register::Checkpoint>, sets: Vec<Partial>) {
        (self.expected, self.sets) = (complete, sets);
    }

    /// Enters those of the complete checkpoints whose files are all here.
    pub fn name_drained(&mut self) {
        let manifest = &self.manifest;
        let is_here = |known: &&register::Checkpoint| known.files.iter().all(|it| manifest.has(it));
        let drained = self.expected.iter().filter(is_here);
        let drained = drained.filter_map(|known| Checkpoint::of(known, manifest)).collect();
        self.put_checkpoints(drained);
    }

    /// Records the checkpoints that are here in part, or will be while the files at `changed` are
    /// replaced.
    pub fn note_partial(&mut self, changed: &HashSet<&FilePath>) {
        let manifest = &self.manifest;
        let stays = |known: &&Checkpoint| {
            let changes = known.files.iter().any(|file| changed.contains(&file.path));
            known.is_whole(manifest) && !changes
        };
        let (whole, retracted): (Vec<_>, Vec<_>) = manifest.checkpoints.iter().partition(stays);
        let whole = whole.into_iter().flat_map(|known| &known.files).map(|file| &file.path);
        let whole: HashSet<&FilePath> = whole.collect();
        let is_part = |path: &FilePath| {
            !whole.contains(path) && (changed.contains(path) || manifest.has_copy(path))
        };
        // A partial checkpoint that the store does not know any more stays while files of it stay
        // here that have left the store.
        let is_left = |path: &FilePath| {
            let is_detached = manifest.files.get(path).is_some_and(|entry| entry.detached);
            is_detached || changed.contains(path)
        };
        // A checkpoint that was to be replaced is still whole if no copy was replaced.
        let is_intact = |partial: &Partial| {
            partial.earlier.as_ref().is_some_and(|earlier| earlier.is_whole(manifest))
        };
        let is_kept = |partial: &&Partial| is_intact(partial) || partial.files.iter().any(is_left);
        let before = manifest.partial.iter().filter(is_kept);
        let before = before.cloned().chain(retracted.into_iter().map(Partial::from));
        let all = before.chain(self.sets.iter().cloned());
        let mut partial: BTreeMap<Name, Partial> = BTreeMap::new();
        for one in all.filter(|one| one.files.iter().any(is_part)) {
            match partial.entry(one.name.clone()) {
                btree_map::Entry::Vacant(entry) => drop(entry.insert(one)),
                btree_map::Entry::Occupied(mut entry) => entry.get_mut().add(one),
            }
        }
        // A single file is always whole.
        let partial = partial.into_values().filter(|partial| partial.files.len() > 1);
        let partial: Vec<Partial> = partial.collect();
        self.dirty |= self.manifest.partial != partial;
        self.manifest.partial = partial;
    }

    /// Sets whether every clean file is here, and whether that is all of the store.
    pub fn set_complete(&mut self, complete: bool, everything: bool) {
        let said = (complete, everything);
        self.dirty |= (self.manifest.complete, self.manifest.everything) != said;
        (self.manifest.complete, self.manifest.everything) = said;
    }

    /// Writes the manifest if it changed and the last commit is long enough ago. Records of copies
    /// under way stay in the journal.
    pub fn commit_if_due(&mut self) -> Result<()> {
        let interval = COMMIT_EVERY.max(self.commit_cost * COMMIT_SHARE);
        if !self.dirty || self.committed_at.elapsed() < interval {
            return Ok(());
        }
        let started = Instant::now();
        self.name_drained();
        self.write_manifest()?;
        self.commit_cost = started.elapsed();
        Ok(())
    }

    /// Writes the manifest if it changed, and empties the journal. Precondition: the outcome of
    /// every announced change is in the manifest.
    pub fn commit(&mut self) -> Result<()> {
        self.write_manifest()?;
        self.journal.clear()
    }

    /// Writes the manifest like `commit`, but keeps the journal: for a caller that drops the ledger
    /// after an error.
    pub fn save(&mut self) -> Result<()> {
        self.write_manifest()
    }

    fn write_manifest(&mut self) -> Result<()> {
        let without_modes = self.lacks_modes();
        self.dirty |= self.manifest.without_modes != without_modes;
        self.manifest.without_modes = without_modes;
        self.has_drained |= !self.manifest.files.is_empty();
        if !self.dirty || !self.has_drained {
            return Ok(());
        }
        let started = Instant::now();
        while let Some(directory) = self.touched.last() {
            self.destination.synchronise(directory)?;
            self.touched.pop_last();
        }
        self.manifest.commit(&self.destination)?;
        self.dirty = false;
        self.is_on_disk = true;
        self.complete_on_disk = self.manifest.complete;
        self.committed_at = Instant::now();
        self.commit_cost = started.elapsed();
        Ok(())
    }
}

/// Sets the modes of directories whose owner lacks rights in the store: to exactly those, or to all
/// rights for the owner, so that files can be added and removed. Errors: a mode cannot be set.
pub(crate) fn set_rights(
    destination: &Destination,
    manifest: &Manifest,
    exactly: bool,
) -> Result<()> {
    const ALL: u32 = 0o700;
    let is_directory = |entry: &Entry| entry.kind == Kind::Directory;
    let restricted = |entry: &Entry| is_directory(entry) && entry.mode & ALL != ALL;
    let entries = manifest.files.iter().filter(|(_, entry)| restricted(entry));
    let set = |path: &FilePath, entry: &Entry| {
        let mode = if exactly { entry.mode } else { entry.mode | ALL };
        match destination.look(path)?.is_some_and(|found| entry.is_ours(&found)) {
            true => destination.set_attributes(path, mode, entry.mtime_ns),
            false => Ok(()),
        }
    };
    // Nothing below a directory without rights can be reached: revoke from the bottom up, grant
    // from the top down.
    match exactly {
        true => entries.rev().try_for_each(|(path, entry)| set(path, entry)),
        false => entries.into_iter().try_for_each(|(path, entry)| set(path, entry)),
    }
}
