//! The persist directory together with its manifest.
//!
//! Must stay true: the directory holds one cut of the store. It turns to the next cut in one step:
//! the journal gets all steps of the turn, they are carried out, and the manifest says what is
//! there. An agent that dies in between has its turn finished by whoever opens the directory next.
//! Before a manifest names a file, the file's directory has been made durable.
//!
//! Does not decide what is to be there; `drain/sequence.rs` does.

use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::model::log;
use crate::persist::destination::Destination;
use crate::persist::displaced::Before;
use crate::persist::manifest_log::{self, ManifestLog};
use crate::persist::{journal, manifest_file, ownership};
use cairn_job::checkpoint::name::Name;
use cairn_job::checkpoint::sets::register;
use cairn_job::file::extended::{Carried, Extended};
use cairn_job::file::node::{Kind, Node};
use cairn_job::file::path::FilePath;
use cairn_job::outside::found::{Found, same_time};
use cairn_job::outside::manifest::changes::{Changes, Touched};
use cairn_job::outside::manifest::{
    Checkpoint, Copy, Entry, LogPosition, Manifest, State, manifest_name, manifest_path, whole_name,
};
use cairn_job::outside::steps::{Fate, Step};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Least number of entries of a manifest that a log continues: a smaller one is written whole.
/// Tests of the agent have small ones.
const LOG_ENTRIES_MIN: usize = if cfg!(test) { 2 } else { 1000 };

/// An open persist directory and its manifest.
pub struct Ledger {
    destination: Arc<Destination>,
    manifest: Manifest,
    /// Whether the manifest in memory differs from the one on disk.
    dirty: bool,
    /// Where it may differ.
    touched: Touched,
    /// The log that continues the manifest on disk, and how many more entries it may get.
    log: Option<(ManifestLog, usize)>,
    /// The checkpoints on disk.
    written: Vec<Checkpoint>,
    /// The manifest on disk as it was read or written last, if there is one.
    on_disk: Option<Found>,
    /// Whether files were drained to the directory, so that the manifest says more than a claim.
    has_drained: bool,
    /// Whether there is a journal.
    is_turning: bool,
    /// Whether other jobs drain here, too.
    is_shared: bool,
    /// Files that were here before the job. None if only the job's files are here, or if every copy
    /// must find its name free.
    before: Option<Before>,
    /// Directories whose names may not be durable yet.
    unsynchronised: BTreeSet<FilePath>,
}

impl Ledger {
    /// Opens the directory and the manifest of the job, and finishes a turn that an agent had begun
    /// when it died.
    pub fn open(path: &Path, job: &Job) -> Result<Ledger> {
        Ledger::settle_earlier(path, job)?;
        Ledger::open_and_finish(path, job, &mut |path, done| {
            // The next pass tries again.
            if let Err(error) = done {
                let text =
                    format_args!("a turn that was cut off is finished without {path}: {error}");
                log::say(log::Level::Warn, text);
            }
            Ok(())
        })
    }

    /// Opens the directory and the manifest of the store of `job`. `settle` takes the result of
    /// each step of a turn that an agent of the store had begun when it died.
    fn open_and_finish(
        path: &Path,
        job: &Job,
        settle: &mut dyn FnMut(&FilePath, Result<()>) -> Result<()>,
    ) -> Result<Ledger> {
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
        let is_ours = on_disk.as_ref().is_some_and(|manifest| manifest.store == job.store);
        let found = destination.look(&manifest_path(&job.job))?.filter(|_| is_ours);
        let has_drained = on_disk.as_ref().is_some_and(|manifest| !manifest.is_claim());
        let manifest = Manifest::resume(on_disk, manifest_file::fresh(job), job.recovered.as_ref());
        let steps = journal::read(&destination, manifest.turn)?;
        let mut ledger = Ledger {
            destination,
            manifest,
            dirty: false,
            touched: Touched::default(),
            log: None,
            written: Vec::new(),
            on_disk: found,
            has_drained,
            // A journal without its end goes with the next commit.
            is_turning: true,
            is_shared: job.shared,
            before: (!job.shared).then(Before::default),
            unsynchronised: BTreeSet::new(),
        };
        ledger.set_directory_rights(false)?;
        if !steps.is_empty() {
            let mut has_failed = false;
            ledger.carry_out_all(&steps, &mut |path, done| {
                has_failed |= done.is_err();
                settle(path, done)
            })?;
            ledger.look_at_directories();
            if has_failed {
                ledger.set_complete(false, false);
            }
            // The journal does not say how far the cut goes.
            ledger.set_position(None);
            (ledger.dirty, ledger.manifest.turn) = (true, ledger.manifest.turn + 1);
            ledger.commit_whole()?;
            ledger.destination.remove_empty_shelves();
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

    /// Does the same for the store that wrote this manifest. Errors: also that a step cannot be
    /// carried out; the journal and the copies stay for the next try.
    fn settle(path: &Path, job: &Job, manifest: Manifest) -> Result<()> {
        let earlier = Job {
            store: manifest.store,
            map: manifest.map,
            launch: manifest.owner,
            persist_id: None,
            ..job.clone()
        };
        let ledger = Ledger::open_and_finish(path, &earlier, &mut |_, done| match done {
            // Somebody else has changed the copy: it is his now.
            Err(Error::Changed { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        })?;
        ledger.sweep(&[])
    }

    /// Removes what agents that died left on the shelves, except the files for the paths in `kept`.
    pub fn sweep(&self, kept: &[FilePath]) -> Result<()> {
        let files = self.manifest.files.iter();
        let directories = files.filter(|(_, entry)| entry.kind == Kind::Directory);
        manifest_log::sweep(&self.destination, &self.manifest.job, Some(&self.manifest));
        self.destination.find_shelves(directories.map(|(path, _)| path));
        self.destination.sweep(kept)
    }

    /// Checks that the directory can be drained to. Errors: it cannot be opened, or is not the one
    /// that it was.
    pub fn check(path: &Path, job: &Job) -> Result<()> {
        Ledger::look(path, job).map(drop)
    }

    /// Opens the directory and the manifest of the job in it. Errors: as `check`.
    pub(crate) fn look(path: &Path, job: &Job) -> Result<(Destination, Option<Manifest>)> {
        let mut destination = Destination::open(path, &job.store)?;
        let on_disk = manifest_file::load(&mut destination, &job.job)?;
        // A directory with this store's manifest is the right one, even if its numbers have
        // changed.
        let is_ours = on_disk.as_ref().is_some_and(|manifest| manifest.store == job.store);
        if let Some(known) = job.persist_id.filter(|_| !is_ours) {
            destination.check(known)?;
        }
        Ok((destination, on_disk))
    }

    /// Turns the directory: writes `steps` to the journal and carries them out. `settle` takes the
    /// result of each; an error that it returns ends the turn, which the next ledger finishes.
    /// Errors: that one; the journal cannot be written, and nothing has changed.
    pub fn turn(
        &mut self,
        steps: &[Step],
        settle: &mut dyn FnMut(&FilePath, Result<()>) -> Result<()>,
    ) -> Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        self.claim()?;
        self.manifest.turn += 1;
        self.dirty = true;
        if !steps.iter().all(Step::is_of_manifest) {
            self.set_directory_rights(false)?;
            self.destination.synchronise_shelves()?;
            self.is_turning = true;
            journal::write(&self.destination, self.manifest.turn, steps)?;
        }
        self.carry_out_all(steps, settle)
    }

    fn carry_out_all(
        &mut self,
        steps: &[Step],
        settle: &mut dyn FnMut(&FilePath, Result<()>) -> Result<()>,
    ) -> Result<()> {
        // Copies that could not be renamed: nothing may take their places.
        let mut kept = HashSet::new();
        let mut has_failed = false;
        for step in steps {
            let path = step.path();
            if has_failed && matches!(step, Step::Remove { .. }) {
                // Not all of the cut is there: what lay outside before stays.
                continue;
            }
            let done = match kept.contains(path) {
                true => Err(Error::Changed { path: path.clone() }),
                false => self.carry_out(step),
            };
            if let (Step::Rename { from, .. }, Err(_)) = (step, &done) {
                kept.insert(from);
            }
            has_failed |= done.is_err();
            settle(path, done)?;
        }
        Ok(())
    }

    /// Carries out one step, or does nothing if it is done.
    fn carry_out(&mut self, step: &Step) -> Result<()> {
        self.touch_parent(step.path());
        match step {
            Step::Remove { path } => self.remove(path),
            Step::Entry { path, entry } => {
                self.update(path, |known| known.clone_from(entry));
                Ok(())
            }
            Step::Forget { path } => {
                self.take(path);
                Ok(())
            }
            Step::Directory { path, entry, extended } => self.make_directory(path, entry, extended),
            Step::Rename { from, path, inode, fate } => self.rename((from, path), *inode, *fate),
            Step::Symlink { path, entry } => self.make_symlink(path, entry),
            Step::Place { path, entry, inode, fate } => self.place(path, entry, *inode, *fate),
            Step::Link { from, path, entry, fate } => self.link((from, path), entry, *fate),
            Step::Attributes { path, mode, mtime_ns, extended } => {
                self.set_attributes(path, (*mode, *mtime_ns), extended)
            }
            Step::Release { path } => self.release(path),
        }
    }

    fn remove(&mut self, path: &FilePath) -> Result<()> {
        // A copy that is not ours any more stays. Its entry is dropped either way.
        if let Some((entry, _)) = self.find_ours(path)? {
            match entry.kind {
                Kind::Directory => self.destination.remove_directory(path)?,
                Kind::File | Kind::Symlink => self.destination.remove_file(path)?,
            }
        }
        self.take(path);
        Ok(())
    }

    fn make_directory(
        &mut self,
        path: &FilePath,
        entry: &Entry,
        extended: &Extended,
    ) -> Result<()> {
        self.require_name(path, Kind::Directory)?;
        self.destination.make_directory(path, entry.mode)?;
        let carried = match extended.is_empty() {
            true => None,
            false => extended.carried(self.destination.set_extended(path, extended)?),
        };
        // The owner keeps all rights: otherwise nothing more could be drained into it.
        self.destination.set_attributes(path, entry.mode | 0o700, entry.mtime_ns)?;
        self.put(path.clone(), Entry { extended: carried, ..entry.clone() });
        Ok(())
    }

    fn rename(
        &mut self,
        (from, path): (&FilePath, &FilePath),
        inode: u64,
        fate: Fate,
    ) -> Result<()> {
        let Some(entry) = self.entry(from).cloned() else { return Ok(()) };
        let (here, there) = (self.destination.look(from)?, self.destination.look(path)?);
        if !is_moved(&entry, self.entry(path), inode, (here, there)) {
            if !here.is_some_and(|here| entry.is_ours(&here) && here.inode == inode) {
                self.take(from);
                return Err(Error::Changed { path: path.clone() });
            }
            self.require_name(path, Kind::File)?;
            if fate == Fate::Whole && self.is_ours(path)? {
                self.keep_whole(path)?;
            }
            self.touch_parent(from);
            self.destination.rename(from, path)?;
        }
        if fate == Fate::Whole {
            self.note_whole(path)?;
        }
        self.take(from);
        self.put(path.clone(), entry);
        Ok(())
    }

    fn make_symlink(&mut self, path: &FilePath, entry: &Entry) -> Result<()> {
        let target = entry.target.as_ref().map(|target| &target.0[..]).unwrap_or_default();
        let is_there = self.destination.look(path)?.is_some_and(|found| entry.is_ours(&found))
            && self.destination.read_link(path).is_ok_and(|found| found == target);
        if !is_there {
            self.require_name(path, Kind::Symlink)?;
            self.destination.make_symlink(path, target, entry.mtime_ns)?;
        }
        self.put(path.clone(), entry.clone());
        Ok(())
    }

    fn place(&mut self, path: &FilePath, entry: &Entry, inode: u64, fate: Fate) -> Result<()> {
        let found = self.destination.look(path)?;
        if found.is_none_or(|found| found.inode != inode) {
            if self.destination.inode_on_shelf(path)? != Some(inode) {
                return Err(Error::Changed { path: path.clone() });
            }
            self.require_name(path, Kind::File)?;
            if self.is_ours(path)? {
                match fate {
                    Fate::Gone => {}
                    Fate::Whole => self.keep_whole(path)?,
                    Fate::Spare => self.destination.set_spare(path)?,
                }
            }
            match self.needs_free_name(path)? {
                true => self.destination.publish_new(path)?,
                false => self.destination.publish(path)?,
            }
        }
        if fate == Fate::Whole {
            self.note_whole(path)?;
        }
        self.put(path.clone(), entry.clone());
        Ok(())
    }

    /// Gives the copy at `path` a name in the directory for last whole versions, too.
    fn keep_whole(&self, path: &FilePath) -> Result<()> {
        self.destination.keep_below(path, &whole_name(&self.manifest.job))
    }

    /// Enters the copy that `path` had, if it is in the directory for last whole versions.
    fn note_whole(&mut self, path: &FilePath) -> Result<()> {
        let Some(entry) = self.entry(path).cloned() else { return Ok(()) };
        let place = self.destination.place_below(path, &whole_name(&self.manifest.job))?;
        if self.destination.look_at_place(&place)?.is_some_and(|found| entry.is_ours(&found)) {
            self.dirty = true;
            self.touched.whole.insert(path.clone());
            self.manifest.whole.insert(path.clone(), entry);
        }
        Ok(())
    }

    /// Opens the last version of a file that was closed in order, if it is here: in its place, or
    /// where it is kept. Returns also its description and its full path. None if it is gone: the
    /// user may have removed it. Errors: it cannot be opened.
    pub fn last_whole(&self, path: &FilePath) -> Result<Option<(Copy, File, PathBuf)>> {
        let is_gone = |error: &Error| error.is_not_found();
        if let Some(entry) = self.manifest.whole.get(path) {
            let whole = whole_name(&self.manifest.job);
            return match self.destination.open_below(path, &whole) {
                Ok((file, place)) => Ok(entry.copy().map(|copy| (copy, file, place))),
                Err(error) if is_gone(&error) => Ok(None),
                Err(error) => Err(error),
            };
        }
        let is_whole = |entry: &&Entry| {
            entry.state == State::Drained && !entry.unclosed && !entry.torn && !entry.damaged
        };
        let Some(copy) = self.entry(path).filter(is_whole).and_then(Entry::copy) else {
            return Ok(None);
        };
        match self.destination.open_file(path) {
            Ok(file) => Ok(Some((copy, file, self.destination.full_path(path)))),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the last whole version of a file, unless what has its name is still not whole.
    fn release(&mut self, path: &FilePath) -> Result<()> {
        let here = self.entry(path).filter(|entry| entry.kind == Kind::File);
        if here.is_none_or(|entry| entry.state == State::Drained && !entry.unclosed) {
            self.destination.remove_below(path, &whole_name(&self.manifest.job))?;
            if self.manifest.whole.remove(path).is_some() {
                self.dirty = true;
                self.touched.whole.insert(path.clone());
            }
        }
        Ok(())
    }

    fn link(
        &mut self,
        (from, path): (&FilePath, &FilePath),
        entry: &Entry,
        fate: Fate,
    ) -> Result<()> {
        let Some((_, source)) = self.find_ours(from)? else {
            return Err(Error::Changed { path: path.clone() });
        };
        // A turn that was cut off may have made it: as a name of the file, or as a copy of it.
        let is_new = self.entry(path).is_none();
        let is_it = |it: &Found| it.inode == source.inode || is_new && entry.is_ours(it);
        if !self.destination.look(path)?.as_ref().is_some_and(is_it) {
            self.require_name(path, Kind::File)?;
            if fate == Fate::Whole && self.is_ours(path)? {
                self.keep_whole(path)?;
            }
            self.destination.link(from, path)?;
        }
        if fate == Fate::Whole {
            self.note_whole(path)?;
        }
        self.put(path.clone(), entry.clone());
        Ok(())
    }

    fn set_attributes(
        &mut self,
        path: &FilePath,
        (mode, mtime_ns): (u32, i64),
        extended: &Extended,
    ) -> Result<()> {
        let there = self.destination.look(path)?;
        // A turn that was cut off may have set them already.
        let is_ours = |entry: &Entry, found: &Found| {
            entry.is_ours(found) || entry.with_attributes(mode, mtime_ns).is_ours(found)
        };
        let found = self.entry(path).cloned().zip(there);
        let Some((entry, found)) = found.filter(|(entry, found)| is_ours(entry, found)) else {
            // Somebody changed or removed the copy: the next pass makes another one.
            self.take(path);
            return Err(Error::Changed { path: path.clone() });
        };
        let all = if entry.kind == Kind::Directory { 0o700 } else { 0 };
        let is_other = has_other(extended, entry.extended);
        // A copy with other names would get an inode of its own again.
        let is_set = found.mode == mode | all
            && same_time(mtime_ns, found.mtime_ns)
            && (!is_other || self.destination.extended(path) == *extended);
        let carried = match (is_other, is_set) {
            (false, _) => entry.extended,
            (true, true) => extended.carried(true),
            (true, false) => extended.carried(self.destination.set_extended(path, extended)?),
        };
        if !is_set {
            self.destination.set_attributes(path, mode | all, mtime_ns)?;
        }
        self.update(path, |entry| {
            (entry.mode, entry.mtime_ns, entry.extended) = (mode, mtime_ns, carried);
        });
        Ok(())
    }

    /// Prepares the name for something of the job. Errors: `Reserved`, `Taken`.
    fn require_name(&mut self, path: &FilePath, kind: Kind) -> Result<()> {
        if self.destination.mapping().is_reserved(path) {
            return Err(Error::Reserved { path: path.clone() });
        }
        self.set_aside_existing(path, kind)?;
        let is_free = kind == Kind::Directory
            || !self.needs_free_name(path)?
            || self.destination.look(path)?.is_none();
        match is_free {
            true => Ok(()),
            false => Err(Error::Taken { path: self.destination.full_path(path) }),
        }
    }

    fn touch_parent(&mut self, path: &FilePath) {
        self.unsynchronised.extend(path.split().map(|(parent, _)| parent));
    }

    /// Returns the directory.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Returns the directory, for threads that copy into it.
    pub fn shared_destination(&self) -> Arc<Destination> {
        Arc::clone(&self.destination)
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
        self.touch(&path);
        self.manifest.files.insert(path, entry);
    }

    /// Drops the entry of a path.
    pub fn take(&mut self, path: &FilePath) -> Option<Entry> {
        self.touch(path);
        self.manifest.files.remove(path)
    }

    /// Changes the entry of a path, if there is one.
    pub fn update(&mut self, path: &FilePath, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.manifest.files.get_mut(path) {
            change(entry);
            self.touch(path);
        }
    }

    fn touch(&mut self, path: &FilePath) {
        self.dirty = true;
        self.touched.files.insert(path.clone());
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
        self.update(path, |entry| entry.attach(node));
    }

    /// Records that the data of `node` in the store are damaged. An earlier copy stays where it is.
    pub fn quarantine(&mut self, path: &FilePath, node: &Node, reason: String) {
        let earlier = self.entry(path).and_then(Entry::copy);
        let entry = node.entry(State::Quarantined);
        self.put(path.clone(), Entry { earlier, reason: Some(reason), ..entry });
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

    /// Sets the modes of directories whose owner lacks rights in the store: to exactly those, or to
    /// all rights for the owner.
    pub fn set_directory_rights(&self, exactly: bool) -> Result<()> {
        set_rights(&self.destination, &self.manifest, exactly)
    }

    /// Sees to it that the manifest on disk is that of this store before a turn begins: whoever
    /// finds the turn cut off knows by it whose journal to read. Writes it before the first turn:
    /// another job may have come since this one began. Errors: another job owns the directory, or
    /// another store of the job drains there now.
    fn claim(&mut self) -> Result<()> {
        let path = manifest_path(&self.manifest.job);
        let now = self.destination.look(&path)?;
        if self.on_disk.is_some() && self.on_disk == now {
            return Ok(());
        }
        let full = self.destination.full_path(&path);
        if self.on_disk.is_some() && now.is_some() {
            let there = manifest_file::read(&self.destination, &self.manifest.job)?;
            if there.is_some_and(|there| there.store != self.manifest.store) {
                return Err(Error::Superseded { path: full });
            }
        } else {
            (self.manifest.complete, self.manifest.everything) = (false, false);
            (self.manifest.log, self.log) = (None, None);
            match now.is_none() && !self.is_shared {
                true => ownership::write_claim(&self.destination, &self.manifest)?,
                false => manifest_file::commit(&self.manifest, &self.destination)?,
            }
            manifest_log::sweep(&self.destination, &self.manifest.job, None);
        }
        self.on_disk = self.destination.look(&path)?;
        Ok(())
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
        let parts = drained.iter().flat_map(|one| one.files.iter()).map(|file| &file.path);
        let parts: HashSet<&FilePath> = parts.collect();
        checkpoints.retain(|known| !known.files.iter().any(|file| parts.contains(&file.path)));
        self.dirty |= !drained.is_empty() || self.manifest.checkpoints != checkpoints;
        self.manifest.checkpoints = checkpoints;
        // In the order of their numbers, which is that of completion.
        drained.into_iter().for_each(|one| self.manifest.enter(one));
    }

    /// Enters those of the `complete` checkpoints whose files are all here.
    pub fn name_drained(&mut self, complete: &[register::Checkpoint]) {
        let manifest = &self.manifest;
        let ours = manifest.checkpoints.iter().filter(|known| known.store == manifest.store);
        let entered: HashMap<u64, &Checkpoint> = ours.map(|known| (known.id, known)).collect();
        let is_here = |known: &&register::Checkpoint| known.files.iter().all(|it| manifest.has(it));
        let of = |known: &register::Checkpoint| {
            let entered = entered.get(&known.id).filter(|it| it.is_of(known, manifest));
            entered.map(|it| (*it).clone()).or_else(|| Checkpoint::of(known, manifest))
        };
        let drained = complete.iter().filter(is_here).filter_map(of).collect();
        self.put_checkpoints(drained);
    }

    /// Sets the position that the cut does not go beyond.
    pub fn set_position(&mut self, position: Option<LogPosition>) {
        self.dirty |= self.manifest.position != position;
        self.manifest.position = position;
    }

    /// Sets which executable's run has failed and is still to be repeated.
    pub fn set_pending(&mut self, pending: Option<String>) {
        self.dirty |= self.manifest.pending != pending;
        self.manifest.pending = pending;
    }

    /// Sets whether the last cut is here as a whole, and whether that is how the store was left.
    pub fn set_complete(&mut self, complete: bool, everything: bool) {
        let said = (complete, everything);
        self.dirty |= (self.manifest.complete, self.manifest.everything) != said;
        (self.manifest.complete, self.manifest.everything) = said;
    }

    /// Writes what has changed in the manifest, and removes the journal. Precondition: the outcome
    /// of every step is in the manifest.
    pub fn commit(&mut self) -> Result<()> {
        if self.prepare()? {
            let touched = self.touched.len();
            match &mut self.log {
                Some((log, left)) if touched <= *left => {
                    log.append(&Changes::of(&self.manifest, &self.touched, &self.written))?;
                    *left -= touched;
                    self.note_written();
                }
                _ => self.write(self.manifest.files.len() >= LOG_ENTRIES_MIN)?,
            }
        }
        self.end_turn()
    }

    /// Writes the manifest as one file if it changed or has a log, and removes the journal.
    /// Precondition: as for `commit`.
    pub fn commit_whole(&mut self) -> Result<()> {
        if self.prepare()? || self.manifest.log.is_some() {
            self.write(false)?;
        }
        self.end_turn()
    }

    /// Makes the names in the directory durable if the manifest is to be written. Returns whether
    /// it is.
    fn prepare(&mut self) -> Result<bool> {
        let without_modes = self.lacks_modes();
        self.dirty |= self.manifest.without_modes != without_modes;
        self.manifest.without_modes = without_modes;
        self.has_drained |= !self.manifest.files.is_empty();
        if !self.dirty || !self.has_drained {
            return Ok(false);
        }
        while let Some(directory) = self.unsynchronised.last() {
            self.destination.synchronise(directory)?;
            self.unsynchronised.pop_last();
        }
        Ok(true)
    }

    /// Replaces the manifest on disk, which a log continues from then on if it `is_to_have_log`.
    fn write(&mut self, is_to_have_log: bool) -> Result<()> {
        self.log = None;
        let (turn, store) = (self.manifest.turn, &self.manifest.store);
        let name = is_to_have_log.then(|| format!("{turn}-{store}"));
        let begin = |name: &String| ManifestLog::begin(&self.destination, &self.manifest, name);
        let log = name.as_ref().map(begin).transpose()?;
        let log = log.map(|log| (log, self.manifest.files.len()));
        let had_log = std::mem::replace(&mut self.manifest.log, name).is_some();
        manifest_file::commit(&self.manifest, &self.destination)?;
        self.on_disk = self.destination.look(&manifest_path(&self.manifest.job))?;
        if had_log {
            manifest_log::sweep(&self.destination, &self.manifest.job, Some(&self.manifest));
        }
        self.log = log;
        self.note_written();
        Ok(())
    }

    fn note_written(&mut self) {
        #[cfg(test)]
        {
            let there = manifest_file::read(&self.destination, &self.manifest.job);
            assert_eq!(there.expect("is read").as_ref(), Some(&self.manifest));
        }
        (self.dirty, self.touched) = (false, Touched::default());
        self.written.clone_from(&self.manifest.checkpoints);
    }

    fn end_turn(&mut self) -> Result<()> {
        match std::mem::take(&mut self.is_turning) {
            true => journal::clear(&self.destination),
            false => Ok(()),
        }
    }
}

/// Whether the copy of `entry`, with this inode, has been renamed already: what was found at its
/// names, before and after, tells. A later step may have given it other attributes, and an inode of
/// its own by that; what had the name before, which `earlier` describes, is not it.
fn is_moved(
    entry: &Entry,
    earlier: Option<&Entry>,
    inode: u64,
    (here, there): (Option<Found>, Option<Found>),
) -> bool {
    let Some(there) = there else { return false };
    let is_at_both = here.is_some_and(|here| here.inode == inode);
    let is_like_it = || {
        let is_other = earlier.is_none_or(|earlier| !earlier.is_ours(&there));
        let bytes = entry.copy().map(|copy| copy.bytes);
        let is_gone = here.is_none_or(|here| here.inode != inode && !entry.is_ours(&here));
        is_gone && is_other && there.kind == Some(Kind::File) && bytes == Some(there.bytes)
    };
    inode != 0 && !is_at_both && (there.inode == inode || is_like_it())
}

fn has_other(extended: &Extended, carried: Option<Carried>) -> bool {
    extended.carried(carried.is_none_or(|carried| carried.kept)) != carried
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
