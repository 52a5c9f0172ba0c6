//! Repairs damaged checkpoints, or sets them aside in favour of the one before.
//!
//! Invariant: for each family, everything that is to be moved is first built and written to a note.
//! Then it is moved, and then the register is updated. A kill before the note leaves everything as
//! it was; a kill after it leaves the rest to the next run. A file is repaired only from a verified
//! copy of the same version. What is set aside is never removed. The repair has exclusive use of
//! the store and keeps agents away.

mod build;
pub mod moves;
mod places;

use build::Obstacle;
use cairn_agent::checkpoint::quarantine::{Move, REPAIR_FORMAT, Repair as Note};
use cairn_agent::drain::checkpoints::Checkpoints;
use cairn_agent::persist::ledger::Ledger;
use cairn_agent::store::volume::Volume;
use cairn_job::checkpoint::name::{self, Family, Name};
use cairn_job::checkpoint::sets::Member;
use cairn_job::checkpoint::sets::register::Checkpoint;
use cairn_job::file::node::Kind;
use cairn_job::file::node::Tree;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{self, State};
use std::collections::{BTreeMap, BTreeSet};

use super::torn::Torn;
use super::unfinished::Step;
use super::{Damage, Reader};
use crate::claim::Claim;
use crate::drain::checkpoints;
use crate::drain::tie;
use crate::error::Result;
use crate::output::progress::Progress;
use crate::store::{building, locate};

/// Repair of the checkpoints of a store.
pub struct Repair<'a> {
    claim: &'a Claim,
    volumes: &'a [Volume],
    ledger: Option<Ledger>,
    checkpoints: Checkpoints,
    quiet: bool,
}

/// Content that replaces something.
#[derive(Default)]
struct Built {
    moves: Vec<Move>,
    /// Messages to print once it is in place.
    lines: Vec<String>,
}

impl<'a> Repair<'a> {
    /// Opens a repair of damage that was found. Errors: the register, or the persist directory and
    /// its manifest, cannot be read.
    pub fn open(claim: &'a Claim, volumes: &'a [Volume], quiet: bool) -> Result<Repair<'a>> {
        let job = &claim.store.job;
        let ledger = job.persist.as_ref().map(|persist| Ledger::open(persist, job)).transpose()?;
        let checkpoints = checkpoints::current(&claim.store, volumes)?;
        Ok(Repair { claim, volumes, ledger, checkpoints, quiet })
    }

    /// Opens a repair to finish one that was begun. The persist directory may be absent; in that
    /// case the agent compares its copies later. Errors: the register cannot be read.
    pub fn to_settle(claim: &'a Claim, volumes: &'a [Volume]) -> Result<Repair<'a>> {
        let job = &claim.store.job;
        let ledger = job.persist.as_ref().and_then(|persist| Ledger::open(persist, job).ok());
        let checkpoints = Checkpoints::open(claim.store.directory(), job)?;
        Ok(Repair { claim, volumes, ledger, checkpoints, quiet: true })
    }

    /// Finishes the repair in `note`, which a killed process began.
    pub fn settle(&mut self, note: &Note) -> Result<()> {
        self.finish(note)?;
        self.say("finished a repair of checkpoints that an earlier run had begun");
        self.say_what_is_aside(note);
        Ok(())
    }

    /// Makes the newest checkpoint of a family an intact one, if there is one: among those `known`,
    /// oldest first, else among those only in the persist directory. `found` is the damage of one
    /// of them.
    pub(super) fn family(
        &mut self,
        family: &Family,
        mut known: Vec<Checkpoint>,
        found: (Checkpoint, Vec<Damage>),
    ) -> Result<()> {
        building::clear(self.volumes);
        let mut aside = Vec::new();
        let mut intact = None;
        while let Some(newest) = known.pop() {
            let damaged = match newest == found.0 {
                true => found.1.clone(),
                false => self.damaged(&newest)?,
            };
            damaged.iter().for_each(|damage| self.say(&damage.found));
            match self.build_replacements(&damaged)? {
                Some(built) => {
                    intact = Some((newest.name, built, Vec::new()));
                    break;
                }
                None => aside.push(newest),
            }
        }
        if intact.is_none() {
            intact = self.bring_older(family, &aside)?;
        }
        let (goes_on, built, brought) = match intact {
            Some((name, built, brought)) => (Some(name), built, brought),
            None => (None, Built::default(), Vec::new()),
        };
        let mut moves = self.set_all_aside(&aside)?;
        moves.extend(built.moves);
        let aside: Vec<Name> = aside.into_iter().map(|known| known.name).collect();
        let format = REPAIR_FORMAT;
        let note = Note { format, aside, unfinished: false, goes_on, brought, moves };
        if note.moves.is_empty() {
            return Ok(());
        }
        self.begin(&note)?;
        built.lines.iter().for_each(|line| self.say(line));
        self.say_what_is_aside(&note);
        Ok(())
    }

    /// Sets aside checkpoints that were never finished. Those of earlier runs go. If the store has
    /// no room for these and one more checkpoint as large as the largest of `complete`, they stay
    /// where they are: there the program can write over them.
    pub(super) fn unfinished(&mut self, steps: &[Step], complete: &[Checkpoint]) -> Result<()> {
        building::clear(self.volumes);
        building::clear_unfinished(self.volumes);
        for Step { name, reason, .. } in steps {
            self.say(&format!("checkpoint {name} was never finished: {reason}"));
        }
        if !self.has_room_for(complete.iter().max_by_key(|known| known.bytes()))? {
            self.say(
                "it stays where it is, because the store has no room to keep it beside another checkpoint",
            );
            return Ok(());
        }
        let mut note = Note {
            format: REPAIR_FORMAT,
            aside: Vec::new(),
            unfinished: true,
            goes_on: None,
            brought: Vec::new(),
            moves: Vec::new(),
        };
        for Step { name, place, .. } in steps {
            let Some((volume, inner)) = locate(self.volumes, place) else { continue };
            let Some(to) = places::unfinished(&inner) else { continue };
            build::make_parents(volume, &to, &|_| None)?;
            let inode = volume.attributes(&inner)?.inode.0;
            let (from, to) = (place.clone(), volume.outer_path(&to));
            note.moves.push(Move { inode, from, to, replaces: None });
            note.aside.push(name.clone());
        }
        self.begin(&note)?;
        self.say_what_is_aside(&note);
        Ok(())
    }

    /// Puts the last whole versions of files in the places of torn ones, which are set aside. A
    /// file without an earlier version outside that is longer stays as it is.
    pub(super) fn whole_again(&mut self, torn: &[Torn]) -> Result<()> {
        building::clear(self.volumes);
        let (mut moves, mut lines) = (Vec::new(), Vec::new());
        for file in torn {
            let Some(ledger) = &self.ledger else { return Ok(()) };
            let found = ledger.last_whole(&file.path)?;
            let longer = found.filter(|(copy, ..)| copy.bytes > file.bytes);
            let Some((copy, source, place)) = longer else { continue };
            let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
            let found = match build::has_place(volume, &[(&file.path, copy.bytes)])? {
                Ok(()) => {
                    build::make_directories(volume, &inner, ledger.manifest())?;
                    let mut progress = Progress::new("bringing in", copy.bytes, self.quiet);
                    let mut advance = |bytes| progress.advance(bytes);
                    let (from, to) = ((Ok(source), place.as_path()), (volume, &inner));
                    build::build(ledger.destination(), from, &copy, to, &mut advance)?
                }
                Err(obstacle) => Err(obstacle),
            };
            let path = &file.path;
            if let Err(obstacle) = found {
                self.say(&format!("/{path} stays as it is: {}", obstacle.reason));
                continue;
            }
            let aside = set_aside(volume, None, BTreeSet::from([inner.clone()]))?;
            let mount = &self.claim.store.job.mount;
            lines.extend(aside.first().map(|one| {
                let torn = &one.to;
                format!(
                    "/{path} was being written: its last whole version takes its place; what was written is in {mount}/{torn}"
                )
            }));
            moves.extend(aside);
            let from = build::place_of(&inner);
            let inode = volume.attributes(&from)?.inode.0;
            let from = volume.outer_path(&from);
            moves.push(Move { inode, from, to: path.clone(), replaces: None });
        }
        if moves.is_empty() {
            return Ok(());
        }
        let (format, aside, brought) = (REPAIR_FORMAT, Vec::new(), Vec::new());
        self.begin(&Note { format, aside, unfinished: true, goes_on: None, brought, moves })?;
        lines.iter().for_each(|line| self.say(line));
        Ok(())
    }

    /// Whether each namespace has room for one more checkpoint like this one.
    fn has_room_for(&self, known: Option<&Checkpoint>) -> Result<bool> {
        let files = known.into_iter().flat_map(|known| &known.files);
        let files: Vec<(&FilePath, u64)> = files.map(|file| (&file.path, file.bytes)).collect();
        for volume in self.volumes {
            if build::has_place(volume, &files)?.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Carries out a repair that no earlier run has begun.
    fn begin(&mut self, note: &Note) -> Result<()> {
        moves::make_durable(self.volumes)?;
        // Saved before the note, so that a later run that finishes this repair sees a complete
        // register.
        self.checkpoints.save()?;
        note.save(self.claim.store.directory())?;
        self.finish(note)
    }

    /// Carries out the moves of `note`, then updates register and manifest. Errors: the moves
    /// cannot be carried out; then all of them are undone.
    fn finish(&mut self, note: &Note) -> Result<()> {
        let directory = self.claim.store.directory();
        if let Err(error) = moves::carry_out(self.volumes, note) {
            // If this fails, too, the next run tries again.
            if moves::take_back(self.volumes, note).is_ok() {
                Note::forget(directory)?;
                building::clear(self.volumes);
            }
            return Err(error);
        }
        self.take_note(note)?;
        Note::forget(directory)?;
        building::clear(self.volumes);
        Ok(())
    }

    /// Updates register and manifest after the moves.
    fn take_note(&mut self, note: &Note) -> Result<()> {
        let mut new: BTreeSet<&FilePath> = note.brought.iter().collect();
        for one in note.moves.iter().filter(|one| one.replaces.is_some()) {
            let Some((volume, inner)) = locate(self.volumes, &one.to) else { continue };
            let Ok(found) = volume.attributes(&inner) else { continue };
            if found.inode.0 == one.inode {
                self.checkpoints.note_replaced(&one.to, one.inode, found.version);
                new.insert(&one.to);
            }
        }
        if let Some(name) = note.goes_on.as_ref().filter(|_| !note.brought.is_empty()) {
            let files = note.brought.iter().collect();
            checkpoints::take_up(&mut self.checkpoints, self.volumes, name, files)?;
        }
        self.checkpoints.save()?;
        if let Some(ledger) = &mut self.ledger {
            // The error is ignored: a copy without this entry is compared or made again by the
            // agent.
            let _ = tie::tie_files(ledger, self.volumes, &|path| new.contains(path));
        }
        Ok(())
    }

    fn say(&self, line: &str) {
        crate::output::say!("cairn: {}: {line}", self.claim.store.job.job);
    }

    fn say_what_is_aside(&self, note: &Note) {
        let mount = &self.claim.store.job.mount;
        for name in &note.aside {
            self.say(&match note.unfinished {
                true => format!(
                    "checkpoint {name} is set aside in {mount}/.cairn-damaged/unfinished until there is another one"
                ),
                false => format!(
                    "checkpoint {name} is damaged and set aside in {mount}/.cairn-damaged: remove it when you no longer need it"
                ),
            });
        }
        match &note.goes_on {
            None if note.unfinished => {}
            Some(name) if !note.brought.is_empty() => {
                self.say(&format!("goes on from {name}, which was brought in"));
            }
            Some(name) if !note.aside.is_empty() => self.say(&format!("goes on from {name}")),
            Some(_) => {}
            None => self.say("no checkpoint is left to go on from"),
        }
    }

    fn damaged(&self, known: &Checkpoint) -> Result<Vec<Damage>> {
        let progress = Progress::new("verifying", known.bytes(), self.quiet);
        Reader::new(self.volumes, progress).damaged(known)
    }

    /// Builds replacements for the damaged files of a checkpoint; None if not all of them can be
    /// replaced.
    fn build_replacements(&mut self, damaged: &[Damage]) -> Result<Option<Built>> {
        let mut built = Built::default();
        let mut wanted = Vec::new();
        for Damage { file, .. } in damaged {
            let Some(copy) = self.copy_of(file) else { return Ok(None) };
            wanted.push((&file.path, copy));
        }
        if !self.build_all(&wanted)? {
            return Ok(None);
        }
        for Damage { file, .. } in damaged {
            let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
            let from = build::place_of(&inner);
            built.moves.push(Move {
                inode: volume.attributes(&from)?.inode.0,
                from: volume.outer_path(&from),
                to: file.path.clone(),
                replaces: Some((file.inode, file.version)),
            });
            if let Some(ledger) = &self.ledger {
                let place = ledger.destination().full_path(&file.path);
                let line = format!("/{} is repaired from {}", file.path, place.display());
                built.lines.push(line);
            }
        }
        Ok(Some(built))
    }

    /// Returns the verified copy of this version of a file in the persist directory.
    fn copy_of(&self, file: &Member) -> Option<manifest::Copy> {
        let is_of_it = |entry: &&manifest::Entry| {
            let tied = entry.state == State::Drained && !entry.detached;
            tied && (entry.inode, entry.version, entry.bytes)
                == (file.inode, file.version, file.bytes)
        };
        self.ledger.as_ref()?.entry(&file.path).filter(is_of_it)?.copy()
    }

    /// Builds these files. Returns false, and prints why, if one of them cannot be built.
    fn build_all(&mut self, wanted: &[(&FilePath, manifest::Copy)]) -> Result<bool> {
        let Some(ledger) = &mut self.ledger else { return Ok(wanted.is_empty()) };
        let located = wanted.iter().filter_map(|(path, copy)| {
            let (volume, inner) = locate(self.volumes, path)?;
            Some((*path, copy, volume, inner))
        });
        let located: Vec<_> = located.collect();
        let total = located.iter().map(|(_, copy, ..)| copy.bytes).fold(0, u64::saturating_add);
        let mut obstacle = has_place(self.volumes, &located)?;
        let mut progress = Progress::new("bringing in", total, self.quiet);
        for (path, copy, volume, inner) in located {
            if obstacle.is_some() {
                break;
            }
            build::make_directories(volume, &inner, ledger.manifest())?;
            let mut advance = |bytes| progress.advance(bytes);
            let place = (volume, &inner);
            let destination = ledger.destination();
            let full_path = destination.full_path(path);
            let source = (destination.open_file(path), full_path.as_path());
            let built = build::build(destination, source, copy, place, &mut advance)?;
            if let Err(found) = built {
                if found.is_damage {
                    ledger.update(path, |entry| entry.damaged = true);
                }
                obstacle = Some(found);
            }
        }
        drop(progress);
        let Some(obstacle) = obstacle else { return Ok(true) };
        if obstacle.is_damage {
            // The error is ignored: the entry is only a hint to others.
            let _ = ledger.commit_whole();
        }
        self.say(&obstacle.reason);
        building::clear(self.volumes);
        Ok(false)
    }

    /// Returns the moves after which programs find nothing of these checkpoints.
    fn set_all_aside(&self, aside: &[Checkpoint]) -> Result<Vec<Move>> {
        let moves = aside.iter().map(|known| self.set_aside(&known.name, &known.files));
        Ok(moves.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Returns the moves after which programs find nothing of the checkpoint of these files.
    fn set_aside(&self, name: &Name, files: &[Member]) -> Result<Vec<Move>> {
        let mut moves = Vec::new();
        for volume in self.volumes {
            let own = files.iter().map(|file| &file.path);
            let own: BTreeSet<FilePath> =
                own.filter_map(|path| path.strip_prefix(volume.prefix())).collect();
            moves.extend(set_aside(volume, name.step.as_ref(), own)?);
        }
        Ok(moves)
    }

    /// Builds the newest complete checkpoint of a family that is only in the persist directory.
    /// Returns its name, what is to be moved, and its files.
    fn bring_older(
        &mut self,
        family: &Family,
        aside: &[Checkpoint],
    ) -> Result<Option<(Name, Built, Vec<FilePath>)>> {
        let Some(ledger) = &self.ledger else { return Ok(None) };
        let whole = ledger.manifest().whole_checkpoints().into_iter().rev();
        let is_meant = |known: &&manifest::Checkpoint| {
            let is_there = |path: &FilePath| {
                locate(self.volumes, path)
                    .is_none_or(|(volume, inner)| volume.attributes(&inner).is_ok())
            };
            known.name.family == *family
                && !aside.iter().any(|other| other.name == known.name)
                && !known.files.iter().any(|file| is_there(&file.path))
        };
        let outside: Vec<manifest::Checkpoint> = whole.filter(is_meant).cloned().collect();
        for known in outside {
            let Some(ledger) = &self.ledger else { break };
            let copy = |file: &'_ manifest::CheckpointFile| ledger.entry(&file.path)?.copy();
            let copies: Option<Vec<_>> = known.files.iter().map(copy).collect();
            let files: Vec<FilePath> = known.files.iter().map(|file| file.path.clone()).collect();
            let Some(copies) = copies else { continue };
            let wanted: Vec<_> = files.iter().zip(copies).collect();
            if self.build_all(&wanted)? {
                let moves = self.missing(&files, aside)?;
                return Ok(Some((known.name, Built { moves, lines: Vec::new() }, files)));
            }
            self.say(&format!("checkpoint {} is left out", known.name));
        }
        Ok(None)
    }

    /// Returns the moves that bring built files to their places where nothing exists: each moves
    /// the topmost missing directory as a whole. Directories that are set aside count as missing.
    fn missing(&self, files: &[FilePath], aside: &[Checkpoint]) -> Result<Vec<Move>> {
        let gone: BTreeSet<FilePath> =
            self.set_all_aside(aside)?.into_iter().map(|one| one.from).collect();
        let mut moves: BTreeMap<FilePath, Move> = BTreeMap::new();
        for path in files {
            let Some((volume, inner)) = locate(self.volumes, path) else { continue };
            let mut here = FilePath::root();
            for name in inner.components() {
                here = here.join(name);
                if gone.contains(&volume.outer_path(&here)) || volume.attributes(&here).is_err() {
                    break;
                }
            }
            let from = build::place_of(&here);
            let inode = volume.attributes(&from)?.inode.0;
            let (from, to) = (volume.outer_path(&from), volume.outer_path(&here));
            moves.insert(to.clone(), Move { inode, from, to, replaces: None });
        }
        Ok(moves.into_values().collect())
    }
}

type Located<'a> = (&'a FilePath, &'a manifest::Copy, &'a Volume, FilePath);

fn has_place(volumes: &[Volume], located: &[Located<'_>]) -> Result<Option<Obstacle>> {
    for volume in volumes {
        let here = located.iter().filter(|(_, _, other, _)| other.name() == volume.name());
        let files: Vec<(&FilePath, u64)> =
            here.map(|(path, copy, ..)| (*path, copy.bytes)).collect();
        if let Err(obstacle) = build::has_place(volume, &files)? {
            return Ok(Some(obstacle));
        }
    }
    Ok(None)
}

/// Returns the moves after which programs find nothing of the files `own` of a namespace, which
/// belong to one checkpoint.
fn set_aside(
    volume: &Volume,
    step: Option<&name::Step>,
    own: BTreeSet<FilePath>,
) -> Result<Vec<Move>> {
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let places = places_of(volume, step, own)?;
    let base = places::set_aside(&places, |path| volume.attributes(path).is_ok());
    let mut moves = Vec::new();
    for place in places {
        let to = base.append(&place);
        build::make_parents(volume, &to, &|_| None)?;
        moves.push(Move {
            inode: volume.attributes(&place)?.inode.0,
            from: volume.outer_path(&place),
            to: volume.outer_path(&to),
            replaces: None,
        });
    }
    Ok(moves)
}

/// Returns the paths of a namespace that hold the files `own` of a checkpoint, and no others.
fn places_of(
    volume: &Volume,
    step: Option<&name::Step>,
    own: BTreeSet<FilePath>,
) -> Result<BTreeSet<FilePath>> {
    let tree: Tree = volume.tree()?;
    let files = tree.iter().filter(|(_, node)| node.kind == Kind::File);
    let inner = files.filter_map(|(path, _)| path.strip_prefix(volume.prefix()));
    let others: Vec<FilePath> = inner.filter(|path| !own.contains(path)).collect();
    let own: Vec<FilePath> = own.into_iter().collect();
    Ok(places::places(step, &own, others.iter()))
}

/// Returns the directory that holds a checkpoint of these files and nothing else, if there is one.
pub(super) fn directory_of(
    volumes: &[Volume],
    name: &Name,
    files: &[Member],
) -> Result<Option<FilePath>> {
    let inside = |volume: &Volume| {
        let inner = files.iter().map(|file| file.path.strip_prefix(volume.prefix()));
        inner.collect::<Option<BTreeSet<FilePath>>>()
    };
    let all = volumes.iter().find_map(|volume| Some((volume, inside(volume)?)));
    let Some((volume, own)) = all else { return Ok(None) };
    let mut places = places_of(volume, name.step.as_ref(), own)?.into_iter();
    let (Some(place), None) = (places.next(), places.next()) else { return Ok(None) };
    let is_directory = volume.attributes(&place)?.is_directory();
    Ok(is_directory.then(|| volume.outer_path(&place)))
}
