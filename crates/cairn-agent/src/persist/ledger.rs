//! The persist directory together with its manifest.
//!
//! Must stay true: the directory holds one cut of the store. It turns to the next cut in one step:
//! the journal gets all steps of the turn, they are carried out, and the manifest says what is
//! there. An agent that dies in between has its turn finished by whoever opens the directory next.
//! Before a manifest names a file, the file's directory has been made durable.
//!
//! Does not decide what is to be there; `drain/sequence.rs` does.

mod carrying_out;

use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::model::log;
use crate::persist::destination::Destination;
use crate::persist::displaced::Before;
use crate::persist::manifest_log::{self, ManifestLog};
use crate::persist::{journal, manifest_file, ownership};
use cairn_job::checkpoint::name::Name;
use cairn_job::checkpoint::sets::register;
use cairn_job::file::node::{Kind, Node};
use cairn_job::file::path::FilePath;
use cairn_job::outside::found::{Found, same_time};
use cairn_job::outside::manifest::changes::{Changes, Touched};
use cairn_job::outside::manifest::{
    Checkpoint, Copy, Entry, LogPosition, Manifest, State, manifest_name, manifest_path, whole_name,
};
use cairn_job::outside::steps::Step;
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
        if self.has_manifest()? {
            return Ok(());
        }
        let path = manifest_path(&self.manifest.job);
        (self.manifest.complete, self.manifest.everything) = (false, false);
        self.manifest.log = None;
        match self.destination.look(&path)?.is_none() && !self.is_shared {
            true => ownership::write_claim(&self.destination, &self.manifest)?,
            false => manifest_file::commit(&self.manifest, &self.destination)?,
        }
        manifest_log::sweep(&self.destination, &self.manifest.job, None);
        self.on_disk = self.destination.look(&path)?;
        Ok(())
    }

    /// Whether the manifest that this ledger wrote or read last is there. If not, or if somebody
    /// else of the store has written it, its log is not gone on with. Errors: another store of the
    /// job has replaced it.
    fn has_manifest(&mut self) -> Result<bool> {
        let path = manifest_path(&self.manifest.job);
        let now = self.destination.look(&path)?;
        if self.on_disk.is_some() && self.on_disk == now {
            return Ok(true);
        }
        self.log = None;
        if self.on_disk.is_none() || now.is_none() {
            return Ok(false);
        }
        let there = manifest_file::read(&self.destination, &self.manifest.job)?;
        if there.is_some_and(|there| there.store != self.manifest.store) {
            return Err(Error::Superseded { path: self.destination.full_path(&path) });
        }
        self.on_disk = now;
        Ok(true)
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
                Some((log, left)) if touched <= *left && log.has_name() => {
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

    /// Writes the manifest as one file if a log continues it, and no turn is under way.
    pub fn fold(&mut self) -> Result<()> {
        match self.manifest.log.is_some() && !self.is_turning && self.has_manifest()? {
            true => self.write(false),
            false => Ok(()),
        }
    }

    /// Makes the names in the directory durable if the manifest is to be written. Returns whether
    /// it is. Errors: also those of `has_manifest`.
    fn prepare(&mut self) -> Result<bool> {
        let without_modes = self.lacks_modes();
        self.dirty |= self.manifest.without_modes != without_modes;
        self.manifest.without_modes = without_modes;
        self.has_drained |= !self.manifest.files.is_empty();
        if !self.dirty || !self.has_drained {
            return Ok(false);
        }
        self.has_manifest()?;
        while let Some(directory) = self.unsynchronised.last() {
            self.destination.synchronise(directory)?;
            self.unsynchronised.pop_last();
        }
        Ok(true)
    }

    /// Replaces the manifest on disk, which a log continues from then on if it `is_to_have_log`.
    fn write(&mut self, is_to_have_log: bool) -> Result<()> {
        self.log = None;
        let name = format!("{}-{}", self.manifest.turn, self.manifest.store);
        // The log in use stays as it is until the manifest goes on without it.
        let is_free = self.manifest.log.as_ref() != Some(&name);
        let name = Some(name).filter(|_| is_to_have_log && is_free);
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
