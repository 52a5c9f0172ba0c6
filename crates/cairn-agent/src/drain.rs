//! One pass of the drain: compares every namespace with the manifest, carries out the difference
//! and reports the state.
//!
//! Must stay true: `complete` is reported only after a pass that read every namespace and left
//! nothing undone. A pass that somebody asked for trusts no earlier pass: it looks at every copy
//! again.
//!
//! Does not decide when a pass is due; `service.rs` does.

pub(crate) mod aside;
mod audit;
pub(crate) mod carry;
pub mod checkpoints;
pub mod copy;
mod eviction;
pub(crate) mod failures;
pub mod forecast;
pub(crate) mod hold;
mod image_copy;
pub mod link;
pub(crate) mod meter;
pub mod pace;
pub mod plan;
pub(crate) mod queue;
pub(crate) mod release;
#[cfg(test)]
mod tests;
pub(crate) mod turn;
mod unchanged;

use cairn_core::InodeId;
use image_copy::Whole;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
pub use unchanged::Since;
use unchanged::Unchanged;

use crate::persist::image_place;

use crate::checkpoint::quarantine::Places;
use crate::checkpoint::sets::register::{Checkpoint, Level};
use crate::checkpoint::sets::{self, Member, NamespaceTree};
use crate::drain::carry::{Carrier, Preemption};
use crate::drain::checkpoints::{Checkpoints, View};
use crate::drain::failures::Failures;
use crate::drain::hold::Turns;
use crate::drain::link::Elsewhere;
use crate::drain::meter::Meter;
use crate::drain::plan::{Plan, lies_in, plan};
use crate::image;
use crate::model::checkpoint_policy::Every;
use crate::model::drain_task::{Delivery, DrainTask};
use crate::model::error::{Error, Result};
use crate::model::job::{Description, Job, RUN_LOCK, left_name};
use crate::model::lock;
use crate::model::log::{self, Complaints};
use crate::model::path::FilePath;
use crate::model::protocol::{Failed, Outcome, Progress};
use crate::persist::ledger::Ledger;
use crate::persist::manifest::{self, Entry, Manifest, State, manifest_path};
use crate::persist::marks::Marks;
use crate::store::node::{Kind, Tree};
use crate::store::reaper;
use crate::store::volume::Volume;

/// Drains the namespaces of one store.
pub struct Drainer {
    store: PathBuf,
    job: Job,
    description: Description,
    checkpoints: Option<Checkpoints>,
    ledger: Option<Ledger>,
    failures: Failures,
    marks: Marks,
    /// Versions of the files whose blocks are known to be sealed, by namespace and inode.
    sealed: HashMap<String, HashMap<u32, u64>>,
    /// Files that this pass could not seal.
    unsealed: Vec<Failed>,
    /// When the next look at the checkpoints is due: some may be complete by then.
    look_again: Option<Instant>,
    complaints: Complaints,
    turns: Turns,
    /// Unchanged ranges of large files between the images taken so far.
    unchanged: Unchanged,
    /// Number of the last run, as in [`Job::runs`], whose end was reported to this agent.
    ended_run: u64,
    /// Value of [`Checkpoints::run_was_seen`] for the next pass.
    pub run_was_seen: bool,
    /// Whether the last pass assumed that the run goes on.
    pub run_went_on: bool,
}

/// What a pass copies to a directory.
#[derive(Clone, Copy)]
struct Contents<'a> {
    /// The namespaces, as they were read.
    trees: &'a [(&'a Arc<Volume>, Tree)],
    /// Whether these are all namespaces of the store.
    all: bool,
    /// Whether the last run had ended before the namespaces were read. If so, no image holds
    /// anything that is newer or missing here.
    is_over: bool,
    /// Other directories that may hold copies of the same files.
    elsewhere: &'a [Elsewhere<'a>],
    /// The image that the namespaces belong to; None if they are live.
    whole: Option<&'a Whole<'a>>,
}

/// Why a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something changed, or a retry is due.
    Routine,
    /// An image is due.
    ImageDue,
    /// On request: forget retry delays, and look at every copy.
    Asked(DrainTask),
}

impl Reason {
    fn is_asked(self) -> bool {
        matches!(self, Reason::Asked(_))
    }

    fn told(self) -> DrainTask {
        match self {
            Reason::Routine => DrainTask::default(),
            Reason::ImageDue => DrainTask { delivery: Delivery::Image, ..DrainTask::default() },
            Reason::Asked(told) => told,
        }
    }
}

impl Drainer {
    /// Returns a drainer of the store in the directory `store`.
    pub fn new(store: &Path, job: Job) -> Drainer {
        Drainer {
            store: store.to_path_buf(),
            job,
            description: Description::default(),
            checkpoints: None,
            ledger: None,
            failures: Failures::default(),
            marks: Marks::open(store),
            sealed: HashMap::new(),
            unsealed: Vec::new(),
            look_again: None,
            complaints: Complaints::default(),
            turns: Turns::default(),
            unchanged: Unchanged::default(),
            ended_run: 0,
            run_was_seen: false,
            run_went_on: false,
        }
    }

    /// Persist directory of the job; None if it has none.
    pub fn persist(&self) -> Option<&Path> {
        self.job.persist.as_deref()
    }

    /// Prefix below which programs see the files.
    pub fn mount(&self) -> &str {
        &self.job.mount
    }

    /// When the next retry of a file that could not be drained is due.
    pub fn next_retry(&self) -> Option<Instant> {
        self.failures.next_retry()
    }

    /// When the next pass is due even if nothing changes.
    pub fn next_look(&self) -> Option<Instant> {
        self.next_retry().into_iter().chain(self.look_again).min()
    }

    /// Runs one pass over `volumes`; `all` says that these are all namespaces of the store. Errors:
    /// the persist directory is unusable, a namespace cannot be read, `Stopped`.
    pub fn pass(
        &mut self,
        volumes: &[Arc<Volume>],
        all: bool,
        reason: Reason,
        meter: &Meter,
    ) -> Result<Outcome> {
        meter.reset();
        for volume in volumes {
            let failed = volume.error("look at the metadata of", &FilePath::root());
            volume.fs().check_metadata().map_err(failed)?;
        }
        if reason.is_asked() {
            self.failures.forgive();
        }
        if let Some(job) = self.description.follow(&self.store)? {
            self.take_up(job);
        }
        // A pass on request must finish everything that was there when it began.
        let overtaking = (reason == Reason::Routine).then(|| Preemption::new(volumes));
        self.unsealed.clear();
        if self.checkpoints.is_none() {
            let _at_work = meter.at(&manifest_path(&self.job.job));
            self.checkpoints()?;
        }
        let told = reason.told();
        if told.succeeded.is_some() {
            self.ended_run = self.job.runs;
        }
        self.checkpoints()?.note_end(told)?;
        let heads = || volumes.iter().map(|volume| volume.fs().log_head()).collect::<Vec<_>>();
        let (is_over, before, mut trees) = loop {
            // Ask before the files are read: the trees must include everything that a run did which
            // has ended. A program of the run may outlive it.
            let goes_on = reaper::any_program(volumes)?;
            let run_was_seen = self.run_was_seen || goes_on;
            let has_run = goes_on || lock::has_run(&self.store, RUN_LOCK)?;
            let is_over = told.succeeded.is_some() || !has_run;
            self.run_went_on = run_was_seen || has_run;
            let checkpoints = self.checkpoints()?;
            checkpoints.run_was_seen = run_was_seen || checkpoints.is_run_under_way();
            let (before, trees) = (heads(), read(volumes)?);
            match self.description.follow(&self.store)? {
                None => break (is_over, before, trees),
                // A run began meanwhile, and may have ended: the trees may not show the state that
                // the run before it left.
                Some(job) => self.take_up(job),
            }
        };
        let mut ripe = Vec::new();
        // A set that looks complete may be newer than one that became complete behind the reader.
        // So the trees are read again if a log moved.
        if heads() != before {
            ripe = self.checkpoints()?.fresh(&groves(&trees))?;
            if !ripe.is_empty() {
                trees = read(volumes)?;
            }
        }
        for (volume, tree) in &trees {
            self.seal_closed(volume, tree);
        }
        let mut view = self.checkpoints()?.look(&groves(&trees), told, &ripe)?;
        meter.leave_out(std::mem::take(&mut view.unneeded));
        self.look_again = view.look_again;
        // Save even if the persist directory is unusable: `cairn` commands read the register.
        self.save_checkpoints()?;
        let Some(persist) = self.job.persist.clone() else {
            return Ok(undrained(&trees, view, self.unsealed.clone()));
        };
        let aside = match told.delivery {
            Delivery::Sound | Delivery::AsIs => None,
            Delivery::Image => Some(image_place::next(&persist, &self.job.job)),
            Delivery::Left | Delivery::LeftForImage => Some(persist.join(left_name(&self.job.job))),
        };
        if let Some(directory) = aside {
            drop(trees);
            let left = self.copy_whole(&directory, (volumes, all), (reason, view), meter);
            let Progress { bytes_total, bytes_done, .. } = meter.progress();
            let left_bytes = bytes_total.saturating_sub(bytes_done);
            return left.map_err(|error| match told.delivery {
                Delivery::Image => image::give_up(error, &directory, &self.job, left_bytes),
                _ => error,
            });
        }
        let what = Contents { trees: &trees, all, is_over, elsewhere: &[], whole: None };
        let result = self.drain(&persist, what, (reason, overtaking), view, meter);
        if result.is_err() {
            // The persist directory may be in any state: the next pass opens the ledger again.
            self.ledger = None;
        }
        result
    }

    /// Adopts a job description that another command changed: a persist directory that was given
    /// later, or the options of a run that resumes the store.
    fn take_up(&mut self, job: Job) {
        if (&job.persist, &job.map) != (&self.job.persist, &self.job.map) {
            self.ledger = None;
        }
        let said = |job: &Job| (job.checkpoint.clone(), job.persist.clone(), job.runs);
        if said(&job) != said(&self.job) {
            self.checkpoints = None;
        }
        self.job = job;
    }

    fn checkpoints(&mut self) -> Result<&mut Checkpoints> {
        let checkpoints = match self.checkpoints.take() {
            Some(checkpoints) => checkpoints,
            None => Checkpoints::open(&self.store, &self.job)?,
        };
        Ok(self.checkpoints.insert(checkpoints))
    }

    /// Saves the register of checkpoints. A failure is only logged: a store too full for the
    /// register needs draining all the more, and the next pass saves again.
    fn save_checkpoints(&mut self) -> Result<()> {
        let saved = self.checkpoints()?.save();
        self.complaints.note("write down what is known of checkpoints", saved);
        Ok(())
    }

    /// Returns the complete checkpoints as of the last pass.
    pub fn known(&self) -> &[Checkpoint] {
        self.checkpoints.as_ref().map_or(&[], Checkpoints::complete)
    }

    /// Whether the last run has ended. The process that holds the store for the run may still
    /// exist.
    pub fn has_run_ended(&self) -> bool {
        let is_said = self.job.runs > 0 && self.ended_run == self.job.runs;
        is_said || self.checkpoints.as_ref().is_some_and(Checkpoints::has_succeeded)
    }

    /// Whether the policy wants only some checkpoints in the persist directory.
    pub fn is_choosy(&self) -> bool {
        self.job.checkpoint.pfs != Every::default()
    }

    /// Whether the persist directory holds all of a checkpoint with number `id` whose name begins
    /// with `name`.
    pub fn has_checkpoint(&self, id: u64, name: &str) -> bool {
        self.ledger.as_ref().map(Ledger::manifest).is_some_and(|manifest| {
            let mut there = manifest.checkpoints.iter().filter(|known| known.id == id);
            let is_meant = |known: &manifest::Checkpoint| known.name.to_string().starts_with(name);
            there.any(|known| is_meant(known) && known.is_whole(manifest))
        })
    }

    /// Returns the complete checkpoints that may be evicted as a whole, as of the last pass. Where
    /// files have purposes of their own, each is marked as wanted in the persist directory, so that
    /// only drained ones can go. Errors: the register or the notes of programs cannot be read.
    pub fn complete(&mut self) -> Result<Vec<Checkpoint>> {
        let checkpoints = self.checkpoints()?;
        let has_purposes = checkpoints.has_purposes()?;
        let mut complete = checkpoints.complete().to_vec();
        if has_purposes {
            complete.iter_mut().for_each(|known| known.wanted = Level::Pfs);
        }
        Ok(complete)
    }

    fn drain(
        &mut self,
        persist: &Path,
        what: Contents<'_>,
        (reason, overtaking): (Reason, Option<Preemption>),
        mut view: View,
        meter: &Meter,
    ) -> Result<Outcome> {
        let Contents { trees, all, is_over, whole, .. } = what;
        let manifest = manifest_path(&self.job.job);
        let at_work = meter.at(&manifest);
        let mut ledger = match self.ledger.take() {
            // If the directory was replaced, the open descriptor leads to the old one.
            Some(ledger) if !reason.is_asked() && ledger.destination().is_current() => ledger,
            _ => open_ledger(persist, &self.job, trees, &self.marks)?,
        };
        if reason.is_asked() {
            audit::forget_missing(&mut ledger, trees, meter)?;
        }
        if reason.told().verify {
            let damaged = audit::damaged(&ledger, meter)?;
            ledger.distrust(&damaged)?;
        }
        drop(at_work);
        let mut outcome = Outcome::default();
        let has_succeeded = reason.told().succeeded == Some(true);
        let is_image = whole.is_some();
        // An image is copied as it is, and so is a delivery as it is: neither guards older
        // checkpoints.
        let is_as_it_is = is_image || reason.told().delivery == Delivery::AsIs;
        let guarded = ledger.manifest().newest_files(|_| !is_as_it_is);
        // Stores to a mapped file leave no trace. An earlier copy of such a file belongs to another
        // image.
        for path in whole.into_iter().flat_map(|whole| &whole.stored_to) {
            ledger.update(path, |entry| entry.damaged = true);
        }
        self.checkpoints()?.compare(ledger.manifest());
        ledger.expect(self.checkpoints()?.drainable(), std::mem::take(&mut view.sets));
        if has_succeeded && !is_image {
            match ledger.set_rolled_back_aside() {
                Ok(None) => {}
                Ok(Some(place)) => log::say(
                    log::Level::Info,
                    format_args!("what arrived after the image is in {}", place.display()),
                ),
                // The files stay where they are.
                Err(error) => log::say(log::Level::Warn, format_args!("{error}")),
            }
        }
        let look = (&view, &guarded);
        let mut result = self.drain_into(&mut ledger, what, look, overtaking, meter, &mut outcome);
        if let (Some(whole), Ok(_)) = (whole, &result) {
            outcome.unsteady = whole.unsteady(trees)?;
            outcome.unsteady.iter().for_each(|path| ledger.update(path, |entry| entry.torn = true));
        }
        match result.is_ok() {
            // The copies of an image are not in their places, so no checkpoint level changes.
            true if is_image => ledger.name_drained(),
            true => self.checkpoints()?.note_levels(&mut ledger),
            false => {}
        }
        if has_succeeded && matches!(result, Ok(true)) {
            // Remove the copies of files that the program removed. A family keeps its newest copies
            // if one of its wanted checkpoints is not in the persist directory.
            let lacking = view.lacking(ledger.manifest());
            let guarded = ledger.manifest().newest_files(|family| lacking.contains(family));
            let (look, mut again) = ((&view, &guarded), Outcome::default());
            result = self.drain_into(&mut ledger, what, look, None, meter, &mut again);
        }
        let _at_work = meter.at(&manifest);
        let guards = match result {
            Ok(guards) => guards && !has_succeeded,
            Err(error) => {
                // Verified copies stay verified. If this save fails as well, the next ledger finds
                // them in the journal.
                let _ = ledger.save();
                return Err(error);
            }
        };
        outcome.changed = self.failures.take_changed();
        outcome.failed.extend(self.failed(&ledger));
        outcome.failed.extend(audit::without_data(&ledger, trees, reason.is_asked())?);
        (outcome.as_they_are, outcome.unclean) = unclean_files(trees, ledger.manifest());
        // Nobody misses what is never drained.
        outcome.unclean.retain(|path| !view.unwanted.contains(path));
        let is_of_all = view.is_of_all;
        outcome.unfinished = view.unfinished;
        let waits = outcome.unfinished.iter().any(|unfinished| unfinished.waits);
        let is_undisturbed = outcome.failed.is_empty() && outcome.changed == 0;
        let is_delivered = all && is_undisturbed && outcome.open.is_empty();
        outcome.complete = is_delivered && (is_of_all || !waits);
        let manifest = ledger.manifest();
        let is_there = |file: &Member| manifest.has(file) && !manifest.is_damaged(&file.path);
        for unfinished in &mut outcome.unfinished {
            let files = view.unfinished_files.get(&unfinished.name);
            let are_there = files.is_some_and(|files| files.iter().all(is_there));
            unfinished.is_outside = are_there || is_of_all && is_delivered;
        }
        count_drained(&ledger, trees, &mut outcome);
        ledger.note_partial(&HashSet::new());
        self.save_checkpoints()?;
        if guards && ledger.manifest().newest_files(|_| true) != guarded {
            // A newer checkpoint has arrived: the guarded copies can go in the next pass.
            self.look_again = Some(Instant::now());
        }
        let everything = is_of_all && outcome.complete && outcome.unclean.is_empty();
        ledger.set_complete(outcome.complete, everything);
        ledger.commit()?;
        if everything {
            ledger.set_directory_rights(true)?;
        }
        let has_no_other = outcome.unfinished.is_empty() && outcome.kept_files == 0;
        let has_all = outcome.complete && outcome.unclean.is_empty() && has_no_other;
        // A run that failed may need them next. Whoever asks for a drain has given them up.
        let is_asked = reason.is_asked() && reason.told().succeeded.is_none();
        let is_done = is_asked || has_succeeded || self.checkpoints()?.has_succeeded();
        if (everything || has_all) && is_over && is_done {
            image::discard(persist, &self.job);
        }
        self.ledger = Some(ledger);
        Ok(outcome)
    }

    /// Plans and carries out the difference for all `trees`. Returns whether copies stay that the
    /// store has no files for, because they are `guarded`: the newest checkpoint outside stays
    /// until there is a newer one.
    fn drain_into(
        &mut self,
        ledger: &mut Ledger,
        Contents { trees, elsewhere, whole, .. }: Contents<'_>,
        (view, guarded): (&View, &HashSet<FilePath>),
        mut overtaking: Option<Preemption>,
        meter: &Meter,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let mut guards = false;
        let mut plans = Vec::with_capacity(trees.len());
        for (volume, tree) in trees {
            let (mut plan, spared) = planned(volume, tree, ledger.manifest(), &view.taken);
            self.failures.leave(spared);
            plan.copy_absent(tree, |path, node| {
                elsewhere.iter().any(|there| there.entry(path, node).is_some())
            });
            if let Some(repair) = &view.repair {
                plan.leave(&|path| repair.have(path));
                outcome.failed.extend(being_repaired(repair, tree));
            }
            plan.leave_out(&view.inputs);
            let held = plan.hold(&view.held, tree, view.is_of_all);
            plan.keep_until_replaced(tree);
            // If a file of another kind takes the place of a checkpoint, the program has removed
            // that checkpoint: it is not guarded.
            let displaced = plan.displaced(tree);
            let guarded = guarded.iter().filter(|path| !lies_in(path, &displaced)).cloned();
            guards |= plan.guard(&guarded.collect());
            let kept = held.iter().filter(|path| !view.incomplete.contains(*path));
            outcome.kept_files += kept.count() as u64;
            plan.copies.sort_by_key(|path| tree.get(path).map(|node| node.mtime_ns));
            view.sort(&mut plan.copies);
            outcome.open.extend(plan.open.iter().cloned());
            outcome.failed.extend(plan.postponed.iter().map(waiting));
            plans.push(plan);
        }
        for ((_, tree), plan) in trees.iter().zip(&mut plans) {
            // Steps on other paths changed the attributes of these directories, so the plan may not
            // list them. Retry them here.
            let is_directory =
                |path: &&FilePath| tree.get(path).is_some_and(|node| node.kind == Kind::Directory);
            for path in self.failures.paths().filter(is_directory) {
                if !plan.steps().any(|step| step == path) {
                    plan.attributes.push(path.clone());
                }
            }
        }
        let steps: HashSet<&FilePath> = plans.iter().flat_map(Plan::steps).collect();
        self.failures.retain(|path| steps.contains(path));
        if plans.iter().any(|plan| !plan.is_empty()) {
            // Copies that an earlier store left mostly turn out to be identical, so they do not
            // count as changes.
            let is_known =
                |path: &&FilePath| !ledger.entry(path).is_some_and(|entry| entry.detached);
            let copied = plans.iter().flat_map(|plan| &plan.copies).filter(is_known);
            let changed = plans.iter().flat_map(Plan::changed).chain(copied).collect();
            let _at_work = meter.at(&manifest_path(&ledger.manifest().job));
            ledger.begin_changes(&changed)?;
        }
        let due = self.checkpoints()?.drainable();
        let volumes: Vec<&Arc<Volume>> = trees.iter().map(|(volume, _)| *volume).collect();
        let _held = whole.is_none().then(|| self.turns.hold(&volumes, &due, &mut plans));
        let mut carry_out = |plans: &[Plan]| -> Result<()> {
            for ((volume, tree), plan) in trees.iter().zip(plans) {
                let failures = &mut self.failures;
                let touched = BTreeSet::new();
                let marks = &self.marks;
                let (replaced, overtaking) = (Vec::new(), overtaking.as_mut());
                let mut carrier = Carrier {
                    ledger,
                    failures,
                    volume,
                    tree,
                    meter,
                    marks,
                    replaced,
                    elsewhere,
                    image: whole.map(|whole| (&whole.stored_to, whole.since)),
                    touched,
                    overtaking,
                    names: OnceCell::new(),
                };
                carrier.carry_out(plan)?;
            }
            Ok(())
        };
        if let Some(whole) = whole {
            carry_out(&whole.take_first(&mut plans))?;
            whole.first_are_copied()?;
        }
        carry_out(&plans)?;
        Ok(guards)
    }

    /// Seals files whose blocks their writers left open, so that damage is detected from then on. A
    /// failure is noted only: copying the file seals it again and reports the error.
    fn seal_closed(&mut self, volume: &Volume, tree: &Tree) {
        let sealed = self.sealed.entry(volume.name().to_string()).or_default();
        for (path, node) in tree {
            let is_known = sealed.get(&node.inode) == Some(&node.version);
            if node.kind != Kind::File || node.open || is_known || node.absence.is_some() {
                continue;
            }
            match volume.seal(path, InodeId(node.inode)) {
                Ok(true) => {
                    sealed.insert(node.inode, node.version);
                }
                // The file was written to or removed meanwhile.
                Ok(false) | Err(Error::Store { source: cairn_core::Error::NotFound, .. }) => {}
                Err(error) => {
                    let (path, reason) = (path.clone(), error.to_string());
                    self.unsealed.push(Failed { path, reason, quarantined: false });
                }
            }
        }
        if sealed.len() > 2 * tree.len() + 1024 {
            // Most entries belong to files that are gone. The others are found sealed again at
            // little cost.
            sealed.clear();
        }
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

    /// Marks copies as different from what was drained. The next pass copies those again whose
    /// files are in the store. Errors: the manifest cannot be read or written.
    pub fn distrust(
        &mut self,
        volumes: &[Arc<Volume>],
        paths: &[FilePath],
        meter: &Meter,
    ) -> Result<()> {
        let _at_work = meter.at(&manifest_path(&self.job.job));
        self.open(volumes)?;
        match &mut self.ledger {
            Some(ledger) => ledger.distrust(paths),
            None => Ok(()),
        }
    }

    /// Opens the persist directory if no pass has opened it yet.
    fn open(&mut self, volumes: &[Arc<Volume>]) -> Result<()> {
        if let (None, Some(persist)) = (&self.ledger, &self.job.persist) {
            self.ledger = Some(open_ledger(persist, &self.job, &read(volumes)?, &self.marks)?);
        }
        Ok(())
    }
}

/// Reads the trees of all namespaces, name by name. The result is no snapshot: a file may appear
/// open that was closed before another one that appears closed.
fn read(volumes: &[Arc<Volume>]) -> Result<Vec<(&Arc<Volume>, Tree)>> {
    volumes.iter().map(|volume| Ok((volume, volume.tree()?))).collect()
}

fn groves<'a>(trees: &'a [(&Arc<Volume>, Tree)]) -> Vec<NamespaceTree<'a>> {
    trees.iter().map(|(volume, tree)| (volume.prefix(), tree)).collect()
}

/// Returns the outcome of a pass without a persist directory.
fn undrained(trees: &[(&Arc<Volume>, Tree)], view: View, failed: Vec<Failed>) -> Outcome {
    let mut outcome = Outcome { unfinished: view.unfinished, failed, ..Outcome::default() };
    for (_, tree) in trees {
        let open = tree.iter().filter(|(_, node)| node.open);
        outcome.open.extend(open.map(|(path, _)| path.clone()));
        outcome.unclean.extend(unclean(tree).filter(|path| !view.unwanted.contains(path)));
    }
    outcome
}

fn open_ledger(
    persist: &Path,
    job: &Job,
    trees: &[(&Arc<Volume>, Tree)],
    marks: &Marks,
) -> Result<Ledger> {
    let ledger = Ledger::open(persist, job)?;
    let find = |path: &FilePath| trees.iter().find_map(|(_, tree)| tree.get(path));
    let kept = marks.retain(ledger.destination(), find);
    // An agent that died may have left temporary files in any of these directories: those of the
    // store, and those that only the manifest knows. A directory of the latter kind can be removed
    // once it is empty.
    let stored = trees.iter().flat_map(|(_, tree)| tree).map(|(path, node)| (path, node.kind));
    let known = ledger.manifest().files.iter().map(|(path, entry)| (path, entry.kind));
    let all = stored.chain(known).filter(|(_, kind)| *kind == Kind::Directory);
    let mut directories: BTreeSet<&FilePath> = all.map(|(path, _)| path).collect();
    let root = FilePath::root();
    directories.insert(&root);
    for directory in directories {
        ledger.destination().sweep(directory, &kept)?;
    }
    Ok(ledger)
}

/// Plans what `tree` needs; unclean files in `taken` are copied. Also returns the number of copies
/// that are left alone: their files were renamed while the tree was read, so the tree shows them
/// under no name.
fn planned(
    volume: &Volume,
    tree: &Tree,
    manifest: &Manifest,
    taken: &HashSet<FilePath>,
) -> (Plan, u64) {
    let mut plan = plan(tree, manifest, volume.prefix(), &|path| taken.contains(path));
    let seen: HashSet<u32> = tree.values().map(|node| node.inode).collect();
    let has_name = |entry: &Entry| match volume.fs().attributes(InodeId(entry.inode)) {
        Ok(found) => found.links > 0 && found.version == entry.version,
        Err(error) => error != cairn_core::Error::NotFound,
    };
    let is_renamed = |path: &&FilePath| {
        let entry = manifest.files.get(path).filter(|entry| entry.kind == Kind::File);
        entry
            .is_some_and(|entry| !entry.detached && !seen.contains(&entry.inode) && has_name(entry))
    };
    let renamed: HashSet<FilePath> = plan.steps().filter(is_renamed).cloned().collect();
    plan.spare(&renamed);
    (plan, renamed.len() as u64)
}

/// Returns the failure of a file that waits for the data of absent files.
fn waiting(path: &FilePath) -> Failed {
    let reason = "it waits for files that are yet to be brought in".to_string();
    Failed { path: path.clone(), reason, quarantined: false }
}

/// Returns the failures of the files that a repair is working on.
fn being_repaired(repair: &Places, tree: &Tree) -> impl Iterator<Item = Failed> {
    let files = tree.iter().filter(|(_, node)| node.kind == Kind::File);
    let files = files.filter(|(path, _)| repair.have(path));
    files.map(|(path, _)| {
        let reason = sets::Reason::Repair.to_string();
        Failed { path: path.clone(), reason, quarantined: false }
    })
}

/// Returns two lists of unclean files: those that `manifest` has in their present version, and the
/// others.
fn unclean_files(
    trees: &[(&Arc<Volume>, Tree)],
    manifest: &Manifest,
) -> (Vec<FilePath>, Vec<FilePath>) {
    let has = |path: &FilePath| {
        let node = trees.iter().find_map(|(_, tree)| tree.get(path));
        let entry = manifest.files.get(path);
        node.zip(entry).is_some_and(|(node, entry)| {
            let is_same = (entry.inode, entry.version) == (node.inode, node.version);
            is_same && entry.state == State::Drained && !entry.detached
        })
    };
    let unclean = trees.iter().flat_map(|(_, tree)| unclean(tree));
    unclean.partition(has)
}

fn unclean(tree: &Tree) -> impl Iterator<Item = FilePath> {
    tree.iter().filter(|(_, node)| node.unclean && !node.open).map(|(path, _)| path.clone())
}

/// Counts the files of `trees` that the persist directory has. Copies of older versions do not
/// count, nor copies of files that have left the store.
fn count_drained(ledger: &Ledger, trees: &[(&Arc<Volume>, Tree)], outcome: &mut Outcome) {
    let in_store = |path: &FilePath, entry: &Entry| {
        let mut nodes = trees.iter().filter_map(|(_, tree)| tree.get(path));
        nodes.find(|node| (node.inode, node.version) == (entry.inode, entry.version))
    };
    outcome.without_modes |= ledger.lacks_modes();
    for (path, entry) in &ledger.manifest().files {
        let is_bare = entry.extended.is_some_and(|extended| !extended.kept);
        outcome.without_attributes += u64::from(is_bare && !entry.detached);
        let counts = entry.kind == Kind::File && entry.state == State::Drained && !entry.detached;
        let Some(node) = in_store(path, entry).filter(|_| counts) else { continue };
        if entry.damaged {
            outcome.lost_files += u64::from(node.absence.is_some_and(|absence| absence.damaged));
        } else {
            outcome.drained_files += 1;
            outcome.drained_bytes += entry.bytes;
        }
    }
}
