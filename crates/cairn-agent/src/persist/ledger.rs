//! The persist directory together with the manifest that says what is in it.
//!
//! Must stay true: before anything in a directory changes whose manifest says *complete*, that word
//! is taken back on disk, so a half-replaced set of files never passes for a checkpoint; before a
//! manifest names a file, the directory the file lies in was made durable; whatever an agent did
//! before it died is in the journal, and in the manifest before anything else is done.

use crate::checkpoint::sets::{Name, register};
use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::model::job::left_name;
use crate::model::path::FilePath;
use crate::persist::before::Before;
use crate::persist::destination::{Destination, Found, same_time};
use crate::persist::journal::{Intent, Journal};
use crate::persist::manifest::{Checkpoint, Entry, Manifest, Partial, State, manifest_name};
use crate::persist::ownership;
use crate::store::node::Kind;
use crate::store::node::Node;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map};
use std::fs::{self, File};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The manifest is committed during a long pass so often at most.
const COMMIT_EVERY: Duration = Duration::from_secs(2);
/// Part of the time that commits may take: one in so many.
const COMMIT_SHARE: u32 = 10;

/// A version that no file has.
const OF_NO_FILE: u64 = u64::MAX;

/// An open persist directory and its manifest.
pub struct Ledger {
    destination: Arc<Destination>,
    journal: Arc<Journal>,
    manifest: Manifest,
    /// The manifest in memory says something that the one on disk does not.
    dirty: bool,
    complete_on_disk: bool,
    is_on_disk: bool,
    /// The complete checkpoints of the store: the manifest names each as soon as all of it is here.
    expected: Vec<register::Checkpoint>,
    /// All checkpoints of the store, whole or not.
    sets: Vec<Partial>,
    /// Other jobs drain here, too.
    is_shared: bool,
    /// What was there before the job; none where only the job's files are, or each must find its
    /// name free.
    before: Option<Before>,
    /// Directories with names that may not be durable yet.
    touched: BTreeSet<FilePath>,
    committed_at: Instant,
    commit_cost: Duration,
}

impl Ledger {
    /// Opens the directory and takes up what the manifest of the job says, and what an agent that
    /// died did without saying it there.
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
        let manifest = Manifest::resume(on_disk, job);
        let (journal, intents) = Journal::open(Arc::clone(&destination))?;
        let mut ledger = Ledger {
            destination,
            journal: Arc::new(journal),
            manifest,
            dirty: false,
            is_on_disk,
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

    /// Has the entries of directories say which times these have: an agent that died had changed
    /// what is in them, and not given them their times again.
    fn look_at_directories(&mut self) {
        let directories =
            self.manifest.files.iter_mut().filter(|(_, entry)| entry.kind == Kind::Directory);
        for (path, entry) in directories {
            if let Ok(Some(found)) = self.destination.look(path) {
                entry.mtime_ns = entry.mtime_found(&found);
            }
        }
    }

    /// Has the manifest say what the agent of an earlier store of the job was doing when it died
    /// with its node, and removes what it had not finished: nobody else of that store comes.
    /// Errors: as `open`.
    pub fn settle_earlier(path: &Path, job: &Job) -> Result<()> {
        match Ledger::look(path, job)? {
            (_, Some(manifest)) if manifest.store != job.store => {
                Ledger::settle(path, job, manifest)
            }
            _ => Ok(()),
        }
    }

    /// The same of the agent whose store wrote this manifest.
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

    /// Whether the directory can be drained to. Errors: it cannot be opened, or is not the one that
    /// it was.
    pub fn check(path: &Path, job: &Job) -> Result<()> {
        Ledger::look(path, job).map(drop)
    }

    /// The directory and the manifest of the job there. Errors: as `check`.
    pub(crate) fn look(path: &Path, job: &Job) -> Result<(Destination, Option<Manifest>)> {
        let mut destination = Destination::open(path, &job.store)?;
        let on_disk = Manifest::load(&mut destination, &job.job)?;
        // One with this store's manifest is the right one, whatever number it has now.
        let is_ours = on_disk.as_ref().is_some_and(|manifest| manifest.store == job.store);
        if let Some(known) = job.persist_id.filter(|_| !is_ours) {
            destination.check(known)?;
        }
        Ok((destination, on_disk))
    }

    /// Brings the manifest in line with what was announced: carried out or not, nobody knows yet.
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
                    // Else its attributes are those of a copy to come.
                    if entry.state == State::Drained {
                        // With the attributes it has, so that those it should have are given to it.
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

    /// Whether `found` at `path` is what was announced by `entry` and `inode`.
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

    /// The directory.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The directory, for threads that copy into it.
    pub fn shared_destination(&self) -> Arc<Destination> {
        Arc::clone(&self.destination)
    }

    /// The journal, for threads that copy into the directory.
    pub fn shared_journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    /// Says what is about to happen to `path`, before it does: it gets `entry`, by the regular file
    /// `inode` of the directory if it is one, or is removed. Errors: `Reserved`, `Taken`, before
    /// anything is said.
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
            self.make_way(path, entry.kind)?;
            if entry.kind != Kind::Directory && !self.may_replace(path)? {
                return Err(Error::Taken { path: self.destination.full_path(path) });
            }
        }
        self.journal.add(&Intent { path: path.clone(), entry: entry.cloned(), inode })
    }

    /// Sets aside what lies at `path` and was there before the job. Errors: `Taken`: it cannot be
    /// moved.
    pub fn make_way(&mut self, path: &FilePath, kind: Kind) -> Result<()> {
        match &mut self.before {
            Some(before) if !self.manifest.files.contains_key(path) => {
                before.clear((path, kind == Kind::Directory), &self.destination, &self.manifest)
            }
            _ => Ok(()),
        }
    }

    /// Whether a copy may take the place of what lies at `path`: in a directory that is shared,
    /// only of what this job put there.
    pub fn may_replace(&self, path: &FilePath) -> Result<bool> {
        Ok(!self.needs_free_name(path)? || self.destination.look(path)?.is_none())
    }

    /// Whether a new copy at `path` must find the name free.
    pub fn needs_free_name(&self, path: &FilePath) -> Result<bool> {
        let is_of_this_store = self.entry(path).is_some_and(|entry| !entry.is_of_earlier_store());
        Ok(self.is_shared && !(is_of_this_store && self.is_ours(path)?))
    }

    /// What is in it.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether the file system of the directory has refused permission bits.
    pub fn lacks_modes(&self) -> bool {
        self.manifest.without_modes || self.destination.has_refused_modes()
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

    /// Notes, durably, that these copies are not what their entries say, which only a new one ends.
    pub fn distrust(&mut self, paths: &[FilePath]) -> Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        paths.iter().for_each(|path| self.update(path, |entry| entry.damaged = true));
        self.set_complete(false, false);
        self.commit()
    }

    /// Ties the copy at `path` to its file, which it is a copy of.
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

    /// Ties what is at `path` to its file, of which it is no copy: it is replaced by one, or goes
    /// with it.
    pub fn attach_outdated(&mut self, path: &FilePath, inode: u32) {
        self.update(path, |entry| {
            (entry.detached, entry.rolled_back) = (false, false);
            (entry.inode, entry.version) = (inode, OF_NO_FILE);
        });
    }

    /// Moves what arrived after the image that the store was filled from, and was not written
    /// again, to a directory of its own, as far as nobody changed it; that, if there was anything.
    /// Errors: something cannot be moved, and is where it was.
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

    /// Whether what lies at `path` is still exactly what its entry says we put there.
    pub fn is_ours(&self, path: &FilePath) -> Result<bool> {
        Ok(self.find_ours(path)?.is_some())
    }

    /// The entry of `path` and what lies there, if that is still exactly what we put there.
    pub fn find_ours(&self, path: &FilePath) -> Result<Option<(Entry, Found)>> {
        let Some(entry) = self.entry(path) else { return Ok(None) };
        let found = self.destination.look(path)?.filter(|found| entry.is_ours(found));
        Ok(found.map(|found| (entry.clone(), found)))
    }

    /// Names in this directory changed.
    pub fn touch(&mut self, directory: FilePath) {
        self.touched.insert(directory);
    }

    #[cfg(test)]
    pub(crate) fn is_touched(&self, directory: &FilePath) -> bool {
        self.touched.contains(directory)
    }

    /// Gives directories that their owner has not all rights to in the store these rights exactly,
    /// or all.
    pub fn set_directory_rights(&self, exactly: bool) -> Result<()> {
        set_rights(&self.destination, &self.manifest, exactly)
    }

    /// Says whose the directory is before the first file of the job is there: another job may have
    /// come since this one began.
    fn claim(&mut self) -> Result<()> {
        if self.is_on_disk || self.is_shared {
            return Ok(());
        }
        let directory = self.destination.path().to_path_buf();
        let lock = File::open(&directory).map_err(Error::file("open", &directory))?;
        // Without locks, as some file systems are, there is a moment left in which two may come at
        // once.
        let _ = rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive);
        ownership::check_owner(&directory, &self.manifest.job, self.manifest.owner.as_deref())?;
        self.manifest.complete = false;
        self.manifest.commit(&self.destination)?;
        self.is_on_disk = true;
        Ok(())
    }

    /// To be called before anything changes at `changed`, where something else will be then.
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

    /// Says which checkpoints of the store are here; those of earlier ones, and those of which
    /// files have left the store, stay as long as their copies do.
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
                // What a store was filled with is no newer for that.
                *known = Checkpoint { order: known.order, ..one.clone() };
                return false;
            }
            !one.is_rest_of(known)
        });
        // A file is part of one checkpoint.
        let parts = drained.iter().flat_map(|one| &one.files).map(|file| &file.path);
        let parts: HashSet<&FilePath> = parts.collect();
        checkpoints.retain(|known| !known.files.iter().any(|file| parts.contains(&file.path)));
        self.dirty |= !drained.is_empty() || self.manifest.checkpoints != checkpoints;
        self.manifest.checkpoints = checkpoints;
        // By number, as they were completed.
        drained.into_iter().for_each(|one| self.manifest.enter(one));
    }

    /// Takes note of the complete checkpoints of the store, and of all, whole or not.
    pub fn expect(&mut self, complete: Vec<register::Checkpoint>, sets: Vec<Partial>) {
        (self.expected, self.sets) = (complete, sets);
    }

    /// Names those of them that are here by now.
    pub fn name_drained(&mut self) {
        let manifest = &self.manifest;
        let is_here = |known: &&register::Checkpoint| known.files.iter().all(|it| manifest.has(it));
        let drained = self.expected.iter().filter(is_here);
        let drained = drained.filter_map(|known| Checkpoint::of(known, manifest)).collect();
        self.put_checkpoints(drained);
    }

    /// Says which checkpoints are here in part, or will be while what is at `changed` becomes
    /// something else.
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
        // Of those that are no sets of the store any more, what has left it stays here.
        let is_left = |path: &FilePath| {
            let is_detached = manifest.files.get(path).is_some_and(|entry| entry.detached);
            is_detached || changed.contains(path)
        };
        // Nor is what was to be replaced and is still there less whole because nothing came of
        // that.
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
        // A file by itself is always whole.
        let partial = partial.into_values().filter(|partial| partial.files.len() > 1);
        let partial: Vec<Partial> = partial.collect();
        self.dirty |= self.manifest.partial != partial;
        self.manifest.partial = partial;
    }

    /// Says whether every clean file is here, and whether that is all of the store.
    pub fn set_complete(&mut self, complete: bool, everything: bool) {
        let said = (complete, everything);
        self.dirty |= (self.manifest.complete, self.manifest.everything) != said;
        (self.manifest.complete, self.manifest.everything) = said;
    }

    /// Writes the manifest if it changed and the last time is long enough ago. What is being copied
    /// meanwhile stays in the journal.
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

    /// Writes the manifest if it changed, and empties the journal. To be called while nothing is
    /// announced whose outcome is not noted.
    pub fn commit(&mut self) -> Result<()> {
        self.write_manifest()?;
        self.journal.clear()
    }

    /// As `commit`, but what was announced stays in the journal: for whoever gives the ledger up
    /// after an error.
    pub fn save(&mut self) -> Result<()> {
        self.write_manifest()
    }

    fn write_manifest(&mut self) -> Result<()> {
        let without_modes = self.lacks_modes();
        self.dirty |= self.manifest.without_modes != without_modes;
        self.manifest.without_modes = without_modes;
        let has_nothing_to_say = !self.is_on_disk && self.manifest.files.is_empty();
        if !self.dirty || has_nothing_to_say {
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

/// Gives directories that their owner has not all rights to in the store these rights exactly, or
/// all, so that something can be put into them, and taken out. Errors: one cannot be given them.
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
    // Out of a directory without rights nothing below it can be reached.
    match exactly {
        true => entries.rev().try_for_each(|(path, entry)| set(path, entry)),
        false => entries.into_iter().try_for_each(|(path, entry)| set(path, entry)),
    }
}
