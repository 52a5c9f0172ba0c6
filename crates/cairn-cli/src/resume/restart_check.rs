//! Check of an existing store before a program resumes in it: compares the newest checkpoint of
//! each family with its checksums.
//!
//! Invariant: the checkpoint that a program finds as its newest is intact. A damaged file is
//! repaired from its verified copy in the persist directory. Otherwise its checkpoint is set aside,
//! never removed, and the one before it is checked. A newer one that a killed run has not finished
//! (`unfinished.rs`) is set aside until another one is. A repair that a killed run has begun is
//! finished first. If damage cannot be determined, no program starts.
//!
//! Does not check files that belong to no checkpoint, nor data that are still elsewhere: the agent
//! compares those when they arrive, and notes which are lost.

mod repair;
#[cfg(test)]
mod tests;
mod torn;
mod unfinished;

use cairn_agent::checkpoint::quarantine::Repair as Note;
use cairn_agent::store::read::{Buffer, read_whole};
use cairn_agent::store::volume::{Volume, now};
use cairn_job::checkpoint::name::{Family, Name};
use cairn_job::checkpoint::sets::Member;
use cairn_job::checkpoint::sets::register::Checkpoint;
use cairn_job::file::node::Kind;
use cairn_job::file::path;
use cairn_job::file::path::FilePath;
use repair::Repair;
use std::collections::BTreeMap;
use unfinished::{Files, Step};

use crate::claim::Claim;
use crate::drain::checkpoints;
use crate::error::{Error, Result, ResumeError};
use crate::output;
use crate::output::duration;
use crate::output::progress::Progress;
use crate::store::{building, locate, survey};

/// Maximum number of checkpoints that the line at the start of a run names.
const NAMED_MAX: usize = 3;

/// A file with damaged data.
#[derive(Clone, Debug)]
struct Damage {
    file: Member,
    /// Description of the damage.
    found: String,
}

/// Finishes a repair that a killed run has begun. Precondition: nobody else uses the store. Errors:
/// the repair cannot be finished; then everything is as it was found.
pub fn settle(claim: &Claim, volumes: &[Volume]) -> Result<()> {
    let not_settled = |error: Error| {
        Error::Resume(ResumeError::NotSettled {
            job: claim.store.job.job.clone(),
            reason: error.to_string(),
        })
    };
    let Some(note) =
        Note::load(claim.store.directory()).map_err(Error::from).map_err(not_settled)?
    else {
        // The run was killed before it moved anything.
        building::clear(volumes);
        return Ok(());
    };
    let settle = || {
        let _no_agent = claim.without_agent()?;
        Repair::to_settle(claim, volumes)?.settle(&note)
    };
    settle().map_err(not_settled)
}

/// Returns one line for a person: the newest checkpoint of each family, and the incomplete ones;
/// None if there are no checkpoints.
pub fn line(claim: &Claim) -> Result<Option<String>> {
    let volumes = claim.store.volumes()?;
    let found = checkpoints::Found::look(&claim.store, &volumes)?;
    let mut newest: BTreeMap<&Family, &Checkpoint> = BTreeMap::new();
    let mut complete: Vec<&Checkpoint> = found.complete.iter().collect();
    complete.sort_by_key(|known| known.id);
    newest.extend(complete.into_iter().map(|known| (&known.name.family, known)));
    let whole = newest.values().map(|known| {
        let age_s = now().0.saturating_sub(known.modified_ns).max(0) as f64 / 1e9;
        format!("{}, written {} ago", known.shown(), duration::human(age_s))
    });
    let told = |unknown: bool| {
        let those = found.unfinished.iter().filter(|one| one.is_unknown == unknown);
        let told: Vec<String> =
            those.map(|one| format!("{} ({})", one.shown(), one.reason)).collect();
        few(told.into_iter())
    };
    let (broken, unknown) = (told(false), told(true));
    let is_aside =
        |path: &FilePath| locate(&volumes, path).is_some_and(|(_, inner)| path::is_aside(&inner));
    let unclean: Vec<&FilePath> = found.unclean.iter().filter(|path| !is_aside(path)).collect();
    let unclean = unclean.into_iter().map(|path| output::escaped(path.as_bytes()));
    let (whole, unclean) = (few(whole), few(unclean));
    let has_unfinished = broken.is_some() || unknown.is_some();
    let programs = survey::programs(&claim.store)?;
    let parts = [
        (!programs.is_empty()).then(|| format!("{} it", output::still_use(&programs))),
        match whole {
            None => has_unfinished.then(|| "no whole checkpoint".to_string()),
            Some(whole) => Some(format!("newest whole checkpoint {whole}")),
        },
        broken.map(|broken| format!("not complete: {broken}")),
        unknown.map(|unknown| format!("not known to be complete: {unknown}")),
        unclean.map(|unclean| format!("writer killed: {unclean}")),
    ];
    if parts.iter().all(Option::is_none) {
        return Ok(None);
    }
    Ok(Some(format!("resuming: {}", parts.into_iter().flatten().collect::<Vec<_>>().join("; "))))
}

/// Joins the first few texts into one line and counts the rest; None if there are none.
fn few(all: impl ExactSizeIterator<Item = String>) -> Option<String> {
    let more = all.len().saturating_sub(NAMED_MAX);
    let named: Vec<String> = all.take(NAMED_MAX).collect();
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| named.join(", ") + &rest)
}

/// Checks the newest checkpoints; repairs or sets aside damaged ones. Errors: `NotCompared`; then
/// nothing was changed, or the next run finishes the repair.
pub fn verify(claim: &Claim, quiet: bool) -> Result<()> {
    compare(claim, quiet).map_err(|error| {
        Error::Resume(ResumeError::NotCompared {
            job: claim.store.job.job.clone(),
            reason: error.to_string(),
        })
    })
}

/// Sets aside the unfinished checkpoints that a program would take for its newest. To be called
/// after a run that failed. Nothing is moved while programs of that run use the store.
pub fn set_unfinished_aside(claim: &Claim, quiet: bool) -> Result<()> {
    let volumes = claim.store.volumes()?;
    let found = checkpoints::Found::look(&claim.store, &volumes)?;
    let directory = |name: &Name, files: &[Member]| repair::directory_of(&volumes, name, files);
    let is_torn = |path: &FilePath| {
        let place = locate(&volumes, path);
        place.is_none_or(|(volume, inner)| {
            volume.attributes(&inner).is_ok_and(|found| found.unclean || found.torn)
        })
    };
    let files = Files { found: &found, directory: &directory, is_torn: &is_torn };
    let mut steps = files.chosen()?;
    for volume in &volumes {
        let tree = volume.tree()?;
        let inner = |path: &FilePath| path.strip_prefix(volume.prefix()).unwrap_or_default();
        let names = tree.iter().map(|(path, node)| (inner(path), node.kind == Kind::Directory));
        let empty = files.empty(names).into_iter();
        steps.extend(empty.map(|step| Step { place: volume.outer_path(&step.place), ..step }));
    }
    if steps.is_empty() || !survey::programs(&claim.store)?.is_empty() {
        return Ok(());
    }
    let _no_agent = claim.without_agent()?;
    Repair::open(claim, &volumes, quiet)?.unfinished(&steps, &found.complete)
}

/// Gives torn files that stand alone their last whole versions back. To be called when the program
/// that was killed goes on. Nothing is changed while programs of that run use the store.
pub fn make_torn_files_whole(claim: &Claim, quiet: bool) -> Result<()> {
    let volumes = claim.store.volumes()?;
    let mut torn = Vec::new();
    for volume in &volumes {
        torn.extend(torn::chosen(&volume.tree()?, volume.prefix()));
    }
    let has_copies = claim.store.job.persist.is_some();
    if torn.is_empty() || !has_copies || !survey::programs(&claim.store)?.is_empty() {
        return Ok(());
    }
    let _no_agent = claim.without_agent()?;
    Repair::open(claim, &volumes, quiet)?.whole_again(&torn)
}

fn compare(claim: &Claim, quiet: bool) -> Result<()> {
    let volumes = claim.store.volumes()?;
    let families = families(claim, &volumes)?;
    let newest: Vec<&Checkpoint> = families.values().filter_map(|known| known.last()).collect();
    let total = newest.iter().map(|known| known.bytes()).sum();
    let mut reader = Reader::new(&volumes, Progress::new("verifying", total, quiet));
    let mut damaged = BTreeMap::new();
    for known in newest {
        let found = reader.damaged(known)?;
        if !found.is_empty() {
            damaged.insert(known.name.family.clone(), (known.clone(), found));
        }
    }
    drop(reader);
    if damaged.is_empty() {
        return Ok(());
    }
    // An agent of an earlier run would continue with outdated knowledge of these files.
    let _no_agent = claim.without_agent()?;
    let mut repair = Repair::open(claim, &volumes, quiet)?;
    for (family, known) in self::families(claim, &volumes)? {
        if let Some(found) = damaged.remove(&family) {
            repair.family(&family, known, found)?;
        }
    }
    Ok(())
}

/// Returns complete checkpoints by family, oldest first.
fn families(claim: &Claim, volumes: &[Volume]) -> Result<BTreeMap<Family, Vec<Checkpoint>>> {
    let mut complete = checkpoints::Found::look(&claim.store, volumes)?.complete;
    complete.sort_by_key(|known| known.id);
    let mut families: BTreeMap<Family, Vec<Checkpoint>> = BTreeMap::new();
    for known in complete {
        families.entry(known.name.family.clone()).or_default().push(known);
    }
    Ok(families)
}

struct Reader<'a> {
    volumes: &'a [Volume],
    progress: Progress,
    buffer: Buffer,
}

impl<'a> Reader<'a> {
    fn new(volumes: &'a [Volume], progress: Progress) -> Reader<'a> {
        Reader { volumes, progress, buffer: Buffer::default() }
    }

    /// Returns the files of a checkpoint that are damaged, or that cannot be read although other
    /// files on the same tier can. Errors: damage cannot be determined.
    fn damaged(&mut self, known: &Checkpoint) -> Result<Vec<Damage>> {
        let mut damaged = Vec::new();
        for file in &known.files {
            let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
            let read = volume.open_file(&inner).and_then(|opened| {
                read_whole(&opened, &mut self.buffer, &mut |chunk| {
                    self.progress.advance(chunk.length as u64);
                    Ok(())
                })
            });
            let Err(error) = read else { continue };
            match verdict(&error, volume) {
                Verdict::Nothing => {}
                Verdict::Damaged => {
                    damaged.push(Damage { file: file.clone(), found: error.to_string() });
                }
                Verdict::Lost => {
                    let path = &file.path;
                    let found = format!(
                        "/{path} cannot be brought in: its copy in the persist directory is damaged or gone"
                    );
                    damaged.push(Damage { file: file.clone(), found });
                }
                Verdict::Unknown => return Err(error.into()),
            }
        }
        Ok(damaged)
    }
}

/// Meaning of a read error for the file.
enum Verdict {
    /// The file does not matter at the moment.
    Nothing,
    /// Its data are damaged.
    Damaged,
    /// Its data are still elsewhere, and are damaged there.
    Lost,
    /// Unknown.
    Unknown,
}

fn verdict(error: &cairn_agent::Error, volume: &Volume) -> Verdict {
    match error {
        // A program that outlived its run changes the file, an agent did, or its data are still
        // elsewhere.
        cairn_agent::Error::Changed { .. }
        | cairn_agent::Error::Store { source: cairn_core::Error::NotFound, .. } => Verdict::Nothing,
        cairn_agent::Error::Store { source: cairn_core::Error::Absent { inode }, .. } => {
            match volume.fs().absence(*inode) {
                Ok(Some(absence)) if absence.damaged => Verdict::Lost,
                _ => Verdict::Nothing,
            }
        }
        cairn_agent::Error::Damaged { .. } => Verdict::Damaged,
        // A device that is gone says nothing about the data on it.
        cairn_agent::Error::Store { source: cairn_core::Error::Io, .. }
        | cairn_agent::Error::Tier { source: cairn_core::Error::Io, .. }
            if !volume.has_unreadable_tier() =>
        {
            Verdict::Damaged
        }
        _ => Verdict::Unknown,
    }
}
