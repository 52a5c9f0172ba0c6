//! One pass of the drain: compare every namespace with the manifest, carry out the difference, say
//! how it stands.
//!
//! Must stay true: `complete` is said only after a pass that could read every namespace and left
//! nothing undone; a pass that somebody asked for trusts no earlier pass: it looks at every copy
//! again.
//! Does not decide when a pass is due; `service.rs` does.

use crate::carry::Carrier;
use crate::error::{Error, Result};
use crate::failures::Failures;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::manifest::{Kind, State};
use crate::meter::Meter;
use crate::path::FilePath;
use crate::plan::{Tree, plan};
use crate::protocol::{Failed, Outcome};
use crate::volume::Volume;
use cairn_core::{InodeId, ROOT};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Drains the namespaces of one store.
pub struct Drainer {
    store: PathBuf,
    job: Job,
    ledger: Option<Ledger>,
    failures: Failures,
    /// Versions of files whose blocks are known to be sealed, by namespace and inode.
    sealed: HashMap<String, HashMap<u32, u64>>,
}

/// Why a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something changed, or it is time to try again.
    Routine,
    /// Somebody asked for it: forget delays, read the job's description again, look at every copy.
    Asked,
}

impl Drainer {
    /// A drainer of the store in `store`.
    pub fn new(store: &Path, job: Job) -> Drainer {
        Drainer {
            store: store.to_path_buf(),
            job,
            ledger: None,
            failures: Failures::default(),
            sealed: HashMap::new(),
        }
    }

    /// Where it drains to.
    pub fn persist(&self) -> Option<&Path> {
        self.job.persist.as_deref()
    }

    /// When a file that could not be drained is to be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        self.failures.next_retry()
    }

    /// One pass over `volumes`, which are all namespaces of the store if `all`.
    /// Errors: the persist directory cannot be used, a namespace cannot be read, `Stopped`.
    pub fn pass(
        &mut self,
        volumes: &[Arc<Volume>],
        all: bool,
        reason: Reason,
        meter: &Meter,
    ) -> Result<Outcome> {
        meter.reset();
        if reason == Reason::Asked {
            self.failures.forgive();
            self.reload_job()?;
        }
        let mut trees = Vec::with_capacity(volumes.len());
        for volume in volumes {
            let tree = volume.tree()?;
            self.seal_closed(volume, &tree)?;
            trees.push((volume, tree));
        }
        let Some(persist) = self.job.persist.clone() else { return Ok(self.undrained(&trees)) };
        let result = self.drain(&persist, &trees, all, reason, meter);
        if result.is_err() {
            // Whatever is wrong with the directory, the next pass opens it afresh.
            self.ledger = None;
        }
        result
    }

    /// Takes up what another command wrote into the job's description: a persist directory given
    /// later.
    fn reload_job(&mut self) -> Result<()> {
        let job = Job::load(&self.store)?;
        if job.persist != self.job.persist {
            self.ledger = None;
        }
        self.job = job;
        Ok(())
    }

    fn drain(
        &mut self,
        persist: &Path,
        trees: &[(&Arc<Volume>, Tree)],
        all: bool,
        reason: Reason,
        meter: &Meter,
    ) -> Result<Outcome> {
        let mut ledger = match self.ledger.take() {
            // A directory that was replaced is not the one we have open.
            Some(ledger) if reason == Reason::Routine && ledger.destination().is_current() => {
                ledger
            }
            _ => open_ledger(persist, &self.job, trees)?,
        };
        if reason == Reason::Asked {
            forget_missing_copies(&mut ledger)?;
        }
        let mut outcome = Outcome::default();
        let result = self.drain_into(&mut ledger, trees, meter, &mut outcome);
        if let Err(error) = result {
            // What is verified stays verified; if this fails, too, the files are copied again.
            let _ = ledger.commit();
            return Err(error);
        }
        outcome.changed = self.failures.take_changed();
        outcome.failed = self.failed(&ledger);
        outcome.complete =
            all && outcome.failed.is_empty() && outcome.changed == 0 && outcome.open.is_empty();
        count_drained(&ledger, &mut outcome);
        ledger.set_complete(outcome.complete);
        ledger.commit()?;
        self.ledger = Some(ledger);
        Ok(outcome)
    }

    fn drain_into(
        &mut self,
        ledger: &mut Ledger,
        trees: &[(&Arc<Volume>, Tree)],
        meter: &Meter,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let mut plans = Vec::with_capacity(trees.len());
        for (volume, tree) in trees {
            let plan = plan(tree, ledger.manifest(), volume.prefix());
            outcome.open.extend(plan.open.iter().cloned());
            outcome.unclean.extend(unclean(tree));
            plans.push(plan);
        }
        self.failures.retain(|path| trees.iter().any(|(_, tree)| tree.contains_key(path)));
        if plans.iter().any(|plan| !plan.is_empty()) {
            ledger.begin_changes()?;
        }
        for ((volume, tree), plan) in trees.iter().zip(&plans) {
            let failures = &mut self.failures;
            let touched = BTreeSet::new();
            Carrier { ledger, failures, volume, tree, meter, touched }.carry_out(plan)?;
        }
        Ok(())
    }

    /// Seals what writers left open, so that damage can be told from then on.
    fn seal_closed(&mut self, volume: &Volume, tree: &Tree) -> Result<()> {
        let sealed = self.sealed.entry(volume.name().to_string()).or_default();
        for (path, node) in tree {
            let is_known = sealed.get(&node.inode) == Some(&node.version);
            if node.kind != Kind::File || node.open || is_known {
                continue;
            }
            match volume.seal(path, InodeId(node.inode)) {
                Ok(true) => {
                    sealed.insert(node.inode, node.version);
                }
                // Written or removed meanwhile.
                Ok(false) | Err(Error::Store { source: cairn_core::Error::NotFound, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if sealed.len() > 2 * tree.len() + 1024 {
            // Mostly files that are gone; the others are found sealed quickly.
            sealed.clear();
        }
        Ok(())
    }

    /// How things stand without a persist directory.
    fn undrained(&self, trees: &[(&Arc<Volume>, Tree)]) -> Outcome {
        let mut outcome = Outcome::default();
        for (_, tree) in trees {
            let open = tree.iter().filter(|(_, node)| node.open);
            outcome.open.extend(open.map(|(path, _)| path.clone()));
            outcome.unclean.extend(unclean(tree));
        }
        outcome
    }

    fn failed(&self, ledger: &Ledger) -> Vec<Failed> {
        let mut failed = self.failures.list();
        for (path, entry) in &ledger.manifest().files {
            if entry.state == State::Quarantined {
                let reason = entry.reason.clone().unwrap_or_default();
                failed.push(Failed { path: path.clone(), reason, quarantined: true });
            }
        }
        failed
    }

    /// Drops files from the store, in this order, and keeps their drained copies. Refuses all of
    /// them if one is not drained, unless `force`.
    pub fn evict(
        &mut self,
        volumes: &[Arc<Volume>],
        paths: &[FilePath],
        force: bool,
    ) -> Result<()> {
        if let (None, Some(persist)) = (&self.ledger, &self.job.persist) {
            // An agent that has not looked yet.
            let trees = volumes.iter().map(|volume| Ok((volume, volume.tree()?)));
            match open_ledger(persist, &self.job, &trees.collect::<Result<Vec<_>>>()?) {
                Ok(ledger) => self.ledger = Some(ledger),
                Err(error) if !force => return Err(error),
                Err(_) => {}
            }
        }
        let mut found = Vec::with_capacity(paths.len());
        for path in paths {
            let (volume, inner) = locate(volumes, path)?;
            let attributes = volume.attributes(&inner)?;
            let entry = self.ledger.as_ref().and_then(|ledger| ledger.entry(path));
            let is_safe = attributes.is_directory()
                || entry.is_some_and(|entry| {
                    entry.state == State::Drained
                        && entry.inode == attributes.inode.0
                        && (!attributes.is_regular() || entry.version == attributes.version)
                });
            if !is_safe && !force {
                return Err(Error::NotDrained { path: path.clone() });
            }
            found.push((path, volume, inner, attributes.is_directory()));
        }
        if let Some(ledger) = &mut self.ledger {
            // Said in the manifest first: once the file is gone, a copy without this word would be
            // removed as well.
            paths.iter().for_each(|path| ledger.update(path, |entry| entry.detached = true));
            ledger.commit()?;
        }
        for (_, volume, inner, is_directory) in found {
            let (fs, caller) = (volume.fs(), volume.caller());
            let removed = match is_directory {
                true => fs.remove_directory(&caller, ROOT, inner.as_bytes()),
                false => fs.evict(&caller, ROOT, inner.as_bytes()),
            };
            removed.map_err(volume.error("remove", &inner))?;
            crate::reaper::reclaim(volume, None)?;
        }
        Ok(())
    }
}

/// The namespace a path lies in, and its path there.
fn locate<'a>(volumes: &'a [Arc<Volume>], path: &FilePath) -> Result<(&'a Volume, FilePath)> {
    let mut places = volumes
        .iter()
        .filter_map(|volume| Some((volume.as_ref(), path.strip_prefix(volume.prefix())?)));
    places.next().ok_or_else(|| Error::Store {
        action: "find",
        path: path.clone(),
        source: cairn_core::Error::NotFound,
    })
}

fn open_ledger(persist: &Path, job: &Job, trees: &[(&Arc<Volume>, Tree)]) -> Result<Ledger> {
    let ledger = Ledger::open(persist, job)?;
    ledger.destination().sweep(&FilePath::root())?;
    for (_, tree) in trees {
        for (path, _) in tree.iter().filter(|(_, node)| node.kind == Kind::Directory) {
            ledger.destination().sweep(path)?;
        }
    }
    Ok(ledger)
}

/// Drops the entries of copies that somebody changed or removed, so that they are made again.
fn forget_missing_copies(ledger: &mut Ledger) -> Result<()> {
    let attached = ledger.manifest().files.iter().filter(|(_, entry)| {
        let has_copy = entry.kind != Kind::File || entry.copy().is_some();
        has_copy && !entry.detached && entry.state == State::Drained
    });
    let paths: Vec<FilePath> = attached.map(|(path, _)| path.clone()).collect();
    for path in paths {
        if !ledger.is_ours(&path)? {
            ledger.take(&path);
        }
    }
    Ok(())
}

fn unclean(tree: &Tree) -> impl Iterator<Item = FilePath> {
    tree.iter().filter(|(_, node)| node.unclean && !node.open).map(|(path, _)| path.clone())
}

fn count_drained(ledger: &Ledger, outcome: &mut Outcome) {
    for entry in ledger.manifest().files.values() {
        let is_bare = entry.extended.is_some_and(|extended| !extended.kept);
        outcome.without_attributes += u64::from(is_bare && !entry.detached);
        let counts = entry.kind == Kind::File && entry.state == State::Drained && !entry.detached;
        if counts {
            outcome.drained_files += 1;
            outcome.drained_bytes += entry.bytes;
        }
    }
}
