//! Before a program goes on in a store that has been there: the newest checkpoint of each family is compared with its checksums.
//!
//! Must stay true: what a program finds as its newest checkpoint is what was written. A damaged file is put right from its
//! verified copy in the persist directory, of that very version; if there is none, its checkpoint is set aside, never removed,
//! and the one before it is compared, or brought from outside. Nothing is changed while another agent or run is there.
//! Does not look at files of no checkpoint, nor at data that are still elsewhere: the agent compares those when they come.

use crate::checkpoints;
use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::local;
use crate::progress::Progress;
use crate::staging::Origin;
use crate::store::locate;
use cairn_agent::checkpoints::Checkpoints;
use cairn_agent::extended::Extended;
use cairn_agent::ledger::Ledger;
use cairn_agent::manifest::{self, Copy, State};
use cairn_agent::path::FilePath;
use cairn_agent::read::{Buffer, read_whole};
use cairn_agent::sets::register::Checkpoint;
use cairn_agent::sets::{Family, Member, Name};
use cairn_agent::volume::Volume;
use cairn_core::{ROOT, RenameMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The directory of a namespace that damaged checkpoints are set aside to. Programs do not look in it.
const ASIDE: &[u8] = b".cairn-damaged";
const ASIDE_MODE: u32 = 0o755;

/// Compares, and puts right what is damaged. Errors: the store or the persist directory cannot be read, or not be changed.
pub fn verify(claim: &Claim, quiet: bool) -> Result<()> {
    let volumes = claim.store.volumes()?;
    let families = families(claim, &volumes)?;
    let newest: Vec<&Checkpoint> = families.values().filter_map(|known| known.last()).collect();
    let total = newest.iter().map(|known| known.bytes()).sum();
    let progress = Progress::new("verifying", total, quiet);
    let mut reader = Reader { volumes: &volumes, progress, buffer: Buffer::default() };
    let mut is_sound = true;
    for known in newest {
        is_sound &= reader.damaged(known)?.is_empty();
    }
    drop(reader);
    if is_sound {
        return Ok(());
    }
    // One that an earlier run has left goes on with what it knows of these files.
    if !claim.end_agent()? {
        let late = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        return Err(Error::file("end the agent of", claim.store.directory())(late));
    }
    Repair::open(claim, &volumes)?.all()
}

/// Complete checkpoints, oldest first, but for those that were set aside.
fn families(claim: &Claim, volumes: &[Volume]) -> Result<BTreeMap<Family, Vec<Checkpoint>>> {
    let mut complete = checkpoints::Found::look(&claim.store, volumes)?.complete;
    complete.retain(|known| !known.files.iter().any(|file| is_aside(volumes, &file.path)));
    complete.sort_by_key(|known| known.id);
    let mut families: BTreeMap<Family, Vec<Checkpoint>> = BTreeMap::new();
    for known in complete {
        families.entry(known.name.family.clone()).or_default().push(known);
    }
    Ok(families)
}

fn is_aside(volumes: &[Volume], path: &FilePath) -> bool {
    locate(volumes, path).is_some_and(|(_, inner)| inner.components().next() == Some(ASIDE))
}

struct Reader<'a> {
    volumes: &'a [Volume],
    progress: Progress,
    buffer: Buffer,
}

impl Reader<'_> {
    /// Files of a checkpoint whose data are not what was written, and what was found.
    fn damaged<'k>(&mut self, known: &'k Checkpoint) -> Result<Vec<(&'k Member, String)>> {
        let mut damaged = Vec::new();
        for file in &known.files {
            let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
            let read = volume.open_file(&inner).and_then(|opened| {
                read_whole(&opened, &mut self.buffer, &mut |chunk| {
                    self.progress.advance(chunk.length as u64);
                    Ok(())
                })
            });
            match read {
                Ok(_) => {}
                Err(error @ cairn_agent::Error::Damaged { .. }) => {
                    damaged.push((file, error.to_string()));
                }
                // A program that outlived its run changes it, an agent did it, or its data are still elsewhere.
                Err(
                    cairn_agent::Error::Changed { .. }
                    | cairn_agent::Error::Store { source: cairn_core::Error::NotFound, .. },
                ) => {}
                Err(error) if error.is_about_absent_data() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(damaged)
    }
}

struct Repair<'a> {
    claim: &'a Claim,
    volumes: &'a [Volume],
    ledger: Option<Ledger>,
    checkpoints: Checkpoints,
    /// Checkpoints that nothing is to be brought of.
    given_up: BTreeSet<Name>,
}

impl<'a> Repair<'a> {
    fn open(claim: &'a Claim, volumes: &'a [Volume]) -> Result<Repair<'a>> {
        let job = &claim.store.job;
        let ledger = job.persist.as_ref().map(|persist| Ledger::open(persist, job)).transpose()?;
        let checkpoints = checkpoints::current(&claim.store, volumes)?;
        Ok(Repair { claim, volumes, ledger, checkpoints, given_up: BTreeSet::new() })
    }

    /// Until the newest checkpoint of each family is intact.
    fn all(mut self) -> Result<()> {
        for (family, mut known) in families(self.claim, self.volumes)? {
            let mut is_set_aside = false;
            while let Some(newest) = known.pop() {
                if self.put_right(&newest)? {
                    if is_set_aside {
                        self.say(&format!("goes on from {}", newest.name));
                    }
                    is_set_aside = false;
                    break;
                }
                self.set_aside(&newest)?;
                is_set_aside = true;
            }
            if is_set_aside {
                self.bring_older(&family)?;
            }
        }
        self.checkpoints.save()?;
        match &mut self.ledger {
            Some(ledger) => Ok(ledger.commit()?),
            None => Ok(()),
        }
    }

    fn say(&self, line: &str) {
        eprintln!("cairn: {}: {line}", self.claim.store.job.job);
    }

    /// Replaces what is damaged of a checkpoint by its copies; whether it is intact then.
    fn put_right(&mut self, known: &Checkpoint) -> Result<bool> {
        let progress = Progress::new("verifying", known.bytes(), true);
        let mut reader = Reader { volumes: self.volumes, progress, buffer: Buffer::default() };
        let mut is_intact = true;
        for (file, found) in reader.damaged(known)? {
            self.say(&found);
            // None of the others is of use without it.
            is_intact = is_intact && self.replace(file)?;
        }
        Ok(is_intact)
    }

    /// Replaces a damaged file by its copy outside, if there is one of this version that is whole.
    fn replace(&mut self, file: &Member) -> Result<bool> {
        let Some(ledger) = &mut self.ledger else { return Ok(false) };
        let is_of_it = |entry: &&manifest::Entry| {
            let tied = entry.state == State::Drained && !entry.detached && !entry.damaged;
            tied && (entry.inode, entry.version) == (file.inode, file.version)
        };
        let Some(copy) = ledger.entry(&file.path).filter(is_of_it).and_then(manifest::Entry::copy)
        else {
            return Ok(false);
        };
        let place = ledger.destination().full_name(&file.path);
        if !bring(ledger, self.volumes, &mut self.checkpoints, &file.path, &copy)? {
            ledger.update(&file.path, |entry| entry.damaged = true);
            self.say(&format!("{place} is damaged, too, or missing"));
            return Ok(false);
        }
        self.say(&format!("/{} is put right from {place}", file.path));
        Ok(true)
    }

    /// Moves a checkpoint to where programs do not look.
    fn set_aside(&mut self, known: &Checkpoint) -> Result<()> {
        for file in &known.files {
            let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
            let aside = FilePath::root().join(ASIDE).append(&inner);
            make_parents(volume, &aside)?;
            let (from, to) = (inner.as_bytes(), aside.as_bytes());
            let (fs, caller) = (volume.fs(), volume.caller_as_user());
            fs.rename(&caller, (ROOT, from), (ROOT, to), RenameMode::Replace)
                .map_err(volume.error("set aside", &inner))?;
            remove_empty_parents(volume, &inner)?;
        }
        self.given_up.insert(known.name.clone());
        let aside = String::from_utf8_lossy(ASIDE);
        let mount = &self.claim.store.job.mount;
        self.say(&format!(
            "checkpoint {} is damaged and set aside in {mount}/{aside}: remove that when nobody needs it",
            known.name
        ));
        Ok(())
    }

    /// Brings the newest whole checkpoint of a family that is only outside.
    fn bring_older(&mut self, family: &Family) -> Result<()> {
        let outside = self.ledger.as_ref().map(|ledger| ledger.manifest().whole());
        let outside: Vec<manifest::Checkpoint> = outside
            .into_iter()
            .flatten()
            .rev()
            .filter(|known| {
                let is_there = |path: &FilePath| {
                    locate(self.volumes, path)
                        .is_none_or(|(volume, inner)| volume.attributes(&inner).is_ok())
                };
                known.name.family == *family
                    && !self.given_up.contains(&known.name)
                    && !known.files.iter().any(|file| is_there(&file.path))
            })
            .cloned()
            .collect();
        for known in outside {
            if self.bring_whole(&known)? {
                self.say(&format!("goes on from {}, which was brought in", known.name));
                return Ok(());
            }
            self.say(&format!("checkpoint {} is left out: a copy of it is damaged", known.name));
        }
        self.say("no checkpoint is left to go on from");
        Ok(())
    }

    /// Brings a checkpoint; false, and nothing of it is there, if a file of it is not what it should be.
    fn bring_whole(&mut self, known: &manifest::Checkpoint) -> Result<bool> {
        let Some(ledger) = &mut self.ledger else { return Ok(false) };
        for (at, file) in known.files.iter().enumerate() {
            let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
            make_parents(volume, &inner)?;
            let copy = ledger.entry(&file.path).and_then(manifest::Entry::copy);
            let is_whole = match copy {
                Some(copy) => {
                    bring(ledger, self.volumes, &mut self.checkpoints, &file.path, &copy)?
                }
                None => false,
            };
            if is_whole {
                continue;
            }
            for file in &known.files[..at] {
                let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
                ledger.update(&file.path, |entry| entry.detached = true);
                let removed = volume.fs().unlink(&volume.caller_as_user(), ROOT, inner.as_bytes());
                removed.map_err(volume.error("take away", &inner))?;
            }
            remove_empty_parents(volume, &inner)?;
            return Ok(false);
        }
        let files: Vec<&FilePath> = known.files.iter().map(|file| &file.path).collect();
        checkpoints::take_up(&mut self.checkpoints, self.volumes, files)?;
        Ok(true)
    }
}

/// Brings a file from outside, in the place of one that may have its name, and ties the copy to it. False, and nothing is changed,
/// if it is not what `copy` says.
fn bring(
    ledger: &mut Ledger,
    volumes: &[Volume],
    checkpoints: &mut Checkpoints,
    path: &FilePath,
    copy: &Copy,
) -> Result<bool> {
    let Some((volume, inner)) = locate(volumes, path) else { return Ok(true) };
    let origin: &dyn Origin = ledger.destination();
    if !origin.bring(path, copy, volume, &inner, &mut |_| {})? {
        return Ok(false);
    }
    let now = volume.attributes(&inner)?;
    let inode = now.inode.0;
    checkpoints.note_replaced(path, inode, now.version);
    ledger.update(path, |entry| {
        entry.detached = false;
        (entry.inode, entry.version) = (inode, now.version);
    });
    Ok(true)
}

fn make_parents(volume: &Volume, inner: &FilePath) -> Result<()> {
    let Some((parent, _)) = inner.split() else { return Ok(()) };
    let mut directory = FilePath::root();
    for name in parent.components() {
        directory = directory.join(name);
        if volume.attributes(&directory).is_err() {
            local::make_directory(volume, &directory, ASIDE_MODE, &Extended::default())?;
        }
    }
    Ok(())
}

/// A program might take the last directory for the newest checkpoint.
fn remove_empty_parents(volume: &Volume, inner: &FilePath) -> Result<()> {
    let mut parent = inner.split().map(|(parent, _)| parent);
    while let Some(directory) = parent.filter(|path| !path.is_root()) {
        let name = directory.as_bytes();
        match volume.fs().remove_directory(&volume.caller_as_user(), ROOT, name) {
            Ok(()) => parent = directory.split().map(|(parent, _)| parent),
            Err(cairn_core::Error::NotEmpty | cairn_core::Error::NotFound) => break,
            Err(error) => return Err(volume.error("take away", &directory)(error).into()),
        }
    }
    Ok(())
}
