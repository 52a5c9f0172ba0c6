//! Carries out the steps of a turn in the persist directory.
//!
//! Must stay true: each step looks whether it is done already, so that a turn that was cut off is
//! carried out once more. Nothing is replaced or removed that is not exactly what was put there.
//! Each step leaves its outcome in the manifest in memory.
//!
//! Does not decide which steps there are, nor write the journal; `ledger.rs` does the latter.

use super::Ledger;
use crate::model::error::{Error, Result};
use cairn_job::file::extended::{Carried, Extended};
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::found::{Found, same_time};
use cairn_job::outside::manifest::{Entry, State, whole_name};
use cairn_job::outside::steps::{Fate, Step};
use std::collections::HashSet;

impl Ledger {
    pub(super) fn carry_out_all(
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
