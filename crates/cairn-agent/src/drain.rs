//! One pass of the drain: takes a cut through the store, copies what changed since the last one,
//! and turns the persist directory to it.
//!
//! Must stay true:
//! - What lies outside is always one cut. It turns only after all copies of the next cut are on the
//!   shelf, verified. A pass that is given up changes nothing that a user sees.
//! - Labels, names and times withhold nothing: see `checkpoints.rs`.
//! - A pass that somebody asked for trusts no earlier pass: it looks at every copy again.
//! - The copy of a file that programs may store to through a mapping contains no store that came
//!   after something the cut lacks. Such files are copied first. If a call that orders stores ended
//!   meanwhile, a new cut is taken, a few times. Files that are unsteady after that are reported.
//!
//! Does not decide when a pass is due; `service.rs` does.

pub(crate) mod aside;
mod audit;
pub mod checkpoints;
pub(crate) mod copies;
pub mod copy;
mod eviction;
pub(crate) mod failures;
pub mod forecast;
pub(crate) mod meter;
pub mod pace;
pub(crate) mod queue;
pub(crate) mod release;
#[cfg(test)]
mod tests;
pub(crate) mod turn;
mod unchanged;

use cairn_core::{InodeId, Timestamp};
use cairn_device::store::free_bytes;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
pub use unchanged::Since;
use unchanged::Unchanged;

use crate::checkpoint::quarantine::Places;
use crate::drain::checkpoints::{Checkpoints, View};
use crate::drain::copies::{Copier, Shelf, Spare};
use crate::drain::failures::Failures;
use crate::drain::meter::Meter;
use crate::image::Moment;
use crate::model::drain_task::DrainTask;
use crate::model::error::{Error, Result};
use crate::model::job::{Description, Job, RUN_LOCK};
use crate::model::lock;
use crate::model::log::Complaints;
use crate::model::protocol::{Failed, Outcome, Progress};
use crate::persist::ledger::Ledger;
use crate::persist::marks::Marks;
use crate::store::reaper;
use crate::store::volume::{Volume, now};
use cairn_job::checkpoint::policy::Every;
use cairn_job::checkpoint::sets::register::{Checkpoint, Level};
use cairn_job::checkpoint::sets::{self, NamespaceTree};
use cairn_job::file::node::{Kind, Node, Tree};
use cairn_job::file::path::FilePath;
use cairn_job::outside::comparison::has_bytes_of;
use cairn_job::outside::manifest::{self, Entry, LogPosition, State, manifest_path};
use cairn_job::outside::steps::{Fate, Step};
use cairn_job::pass::plan::{Plan, lies_in, plan};
use cairn_job::pass::sequence::Material;
use cairn_job::pass::sequence::SPARE_BYTES_MIN;

/// Number of cuts taken in an attempt to get steady copies of mapped files.
const ATTEMPTS: usize = 3;

/// Drains the namespaces of one store.
pub struct Drainer {
    store: PathBuf,
    job: Job,
    description: Description,
    checkpoints: Option<Checkpoints>,
    ledger: Option<Ledger>,
    /// Copies that wait for their turn. Valid while the ledger is open.
    shelf: Shelf,
    /// For the copies of large files that change in their places: the cut that each is of.
    placed: HashMap<FilePath, u64>,
    failures: Failures,
    marks: Marks,
    /// Versions of the files whose blocks are known to be sealed, by namespace and inode.
    sealed: HashMap<String, HashMap<u32, u64>>,
    /// Files that this pass could not seal.
    unsealed: Vec<Failed>,
    /// When the next look at the checkpoints is due: some may be complete by then.
    look_again: Option<Instant>,
    complaints: Complaints,
    /// Unchanged ranges of large files between the cuts taken so far.
    unchanged: Unchanged,
    /// When the cut that lies outside was taken.
    cut_at: Option<Instant>,
    /// Number of the last run, as in [`Job::runs`], whose end was reported to this agent.
    ended_run: u64,
    /// Value of [`Checkpoints::run_was_seen`] for the next pass.
    pub run_was_seen: bool,
    /// Whether the last pass assumed that the run goes on.
    pub run_went_on: bool,
    /// Number of steps of a turn after which the agent dies.
    #[cfg(test)]
    dies_after: Option<usize>,
}

/// A cut that is being copied.
struct Cut<'a> {
    image: &'a Moment,
    /// Its namespaces, each with a view and its files.
    trees: &'a [(&'a Arc<Volume>, Tree)],
    /// When it was taken.
    at: Instant,
    /// Position in the log that it does not go beyond, if the store has one namespace, on a medium.
    position: Option<LogPosition>,
    /// Its number, see [`Unchanged`].
    number: u64,
    /// Files that programs could store to, in this cut or in one that was given up.
    stored_to: &'a mut HashSet<FilePath>,
    is_last_attempt: bool,
}

/// Why a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something changed, or a retry is due.
    Routine,
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
            shelf: Shelf::default(),
            placed: HashMap::new(),
            failures: Failures::default(),
            marks: Marks::open(store),
            sealed: HashMap::new(),
            unsealed: Vec::new(),
            look_again: None,
            complaints: Complaints::default(),
            unchanged: Unchanged::default(),
            cut_at: None,
            ended_run: 0,
            run_was_seen: false,
            run_went_on: false,
            #[cfg(test)]
            dies_after: None,
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

    /// When the cut that lies outside was taken; None before the first.
    pub fn cut_at(&self) -> Option<Instant> {
        self.cut_at
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
    /// the persist directory is unusable, a namespace cannot be read, the cut was lost, `Stopped`.
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
        self.unsealed.clear();
        if self.checkpoints.is_none() {
            let _at_work = meter.at(&manifest_path(&self.job.job));
            self.checkpoints()?;
        }
        let told = reason.told();
        if told.succeeded.is_some() {
            self.ended_run = self.job.runs;
        }
        let checkpoints = self.checkpoints()?;
        if reason.is_asked() {
            checkpoints.look_anew();
        }
        checkpoints.note_end(told)?;
        let mut stored_to = HashSet::new();
        let mut attempts = 1..=ATTEMPTS;
        loop {
            let is_last = attempts.next().is_none_or(|attempt| attempt == ATTEMPTS);
            match self.attempt(volumes, all, reason, (is_last, &mut stored_to), meter) {
                Err(Error::Unsteady) if !is_last => meter.reset(),
                done => return done,
            }
        }
    }

    /// Makes one attempt. `stored_to` collects the files that were stored to; the next attempt
    /// copies them first. Errors: `Unsteady`, unless this is the last attempt.
    fn attempt(
        &mut self,
        volumes: &[Arc<Volume>],
        all: bool,
        reason: Reason,
        (is_last_attempt, stored_to): (bool, &mut HashSet<FilePath>),
        meter: &Meter,
    ) -> Result<Outcome> {
        let told = reason.told();
        for volume in volumes {
            self.seal_closed(volume)?;
        }
        let (image, at) = loop {
            // Ask before the cut is taken: it must include everything that a run did which has
            // ended. A program of the run may outlive it.
            let goes_on = reaper::any_program(volumes)?;
            let run_was_seen = self.run_was_seen || goes_on;
            self.run_went_on = run_was_seen || lock::has_run(&self.store, RUN_LOCK)?;
            let checkpoints = self.checkpoints()?;
            checkpoints.run_was_seen = run_was_seen || checkpoints.is_run_under_way();
            let (at, image) = (Instant::now(), self.moment(volumes)?);
            match self.description.follow(&self.store)? {
                None => break (image, at),
                // A run began meanwhile, and may have ended: the cut may not show the state that
                // the run before it left.
                Some(job) => self.take_up(job),
            }
        };
        let first: Vec<&Arc<Volume>> = image.views().iter().filter_map(|one| one.first()).collect();
        let trees: Vec<(&Arc<Volume>, Tree)> = match &image {
            Moment::Held(_) => {
                first.into_iter().map(|view| Ok((view, view.tree()?))).collect::<Result<_>>()?
            }
            Moment::Quiet { trees, .. } => first.into_iter().zip(trees.iter().cloned()).collect(),
        };
        let mut view = self.checkpoints()?.look(&groves(&trees), told)?;
        meter.leave_out(std::mem::take(&mut view.unneeded));
        self.look_again = view.look_again;
        // Save even if the persist directory is unusable: `cairn` commands read the register.
        self.save_checkpoints()?;
        let Some(persist) = self.job.persist.clone() else {
            return Ok(undrained(&trees, view, self.unsealed.clone()));
        };
        stored_to.extend(image.stored_to(&trees)?);
        // Read after the cut was taken.
        let position = match volumes {
            [volume] if all => volume.position(),
            _ => None,
        };
        let number = self.unchanged.note(&image, &trees, stored_to)?;
        let cut =
            Cut { image: &image, trees: &trees, at, position, number, stored_to, is_last_attempt };
        let result = self.drain(&persist, cut, (volumes, all), (reason, view), meter);
        if result.as_ref().is_err_and(|error| !error.repeats_pass()) {
            // The persist directory may be in any state: the next pass opens the ledger again.
            self.ledger = None;
        }
        result.map_err(|error| without_room(error, &persist, meter))
    }

    /// Adopts a job description that another command changed: a persist directory that was given
    /// later, or the options of a run that resumes the store.
    fn take_up(&mut self, job: Job) {
        if (&job.persist, &job.map) != (&self.job.persist, &self.job.map) {
            self.ledger = None;
            self.cut_at = None;
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

    /// Takes the moment of the next cut. A job that drains nothing needs none that lasts: its files
    /// are read as they are, if nothing changes meanwhile.
    fn moment(&self, volumes: &[Arc<Volume>]) -> Result<Moment> {
        let heads = || volumes.iter().map(|volume| volume.fs().log_head()).collect::<Vec<_>>();
        for _ in 0..if self.job.persist.is_none() { ATTEMPTS } else { 0 } {
            let before = heads();
            let moment = Moment::quiet(volumes)?;
            if heads() == before {
                return Ok(moment);
            }
        }
        Moment::take(&self.store, volumes)
    }

    /// Copies what the cut needs, and turns the directory to it.
    fn drain(
        &mut self,
        persist: &Path,
        cut: Cut<'_>,
        (volumes, all): (&[Arc<Volume>], bool),
        (reason, view): (Reason, View),
        meter: &Meter,
    ) -> Result<Outcome> {
        let trees = cut.trees;
        let manifest = manifest_path(&self.job.job);
        let at_work = meter.at(&manifest);
        // If the directory was replaced, the open descriptor leads to the old one.
        let is_usable = |ledger: &Ledger| !reason.is_asked() && ledger.destination().is_current();
        if !self.ledger.as_ref().is_some_and(is_usable) {
            self.ledger = None;
            self.open(persist, trees)?;
        }
        let Some(mut ledger) = self.ledger.take() else { return Err(Error::Stopped) };
        if reason.is_asked() {
            audit::forget_missing(&mut ledger, trees, meter)?;
        }
        if reason.told().verify {
            let damaged = audit::damaged(&ledger, meter)?;
            ledger.distrust(&damaged)?;
        }
        drop(at_work);
        let mut outcome = Outcome::default();
        self.checkpoints()?.compare(ledger.manifest());
        let guarded = self.guarded(&ledger, &view);
        let plans = self.plans(&ledger, &cut, &view, &mut outcome);
        let turned = self.copy_and_turn(&mut ledger, &cut, (volumes, &plans), meter);
        let _at_work = meter.at(&manifest);
        outcome.unsteady = match turned {
            Ok(unsteady) => unsteady,
            Err(error) => {
                self.ledger = Some(ledger);
                return Err(error);
            }
        };
        self.checkpoints()?.note_levels(&mut ledger);
        if self.guarded(&ledger, &view) != guarded {
            // A newer checkpoint has arrived: the older ones can go.
            self.look_again = Some(Instant::now());
        }
        outcome.changed = self.failures.take_changed();
        outcome.failed.extend(self.failed(&ledger));
        outcome.failed.extend(audit::without_data(&ledger, trees, reason.is_asked())?);
        let files = || trees.iter().flat_map(|(_, tree)| tree);
        let is_wanted = |path: &&FilePath| !view.unwanted.contains(*path);
        let paths = |found: Vec<&FilePath>| found.into_iter().filter(is_wanted).cloned().collect();
        outcome.open = paths(files().filter(|(_, node)| node.open).map(|(path, _)| path).collect());
        let unclean = files().filter(|(_, node)| node.unclean && !node.open);
        outcome.unclean = paths(unclean.map(|(path, _)| path).collect());
        outcome.whole = ledger.manifest().whole.keys().cloned().collect();
        outcome.unfinished = view.unfinished;
        let is_steady = outcome.unsteady.is_empty();
        outcome.complete = all && is_steady && outcome.failed.is_empty() && outcome.changed == 0;
        count_drained(&ledger, trees, &mut outcome);
        self.save_checkpoints()?;
        let has_succeeded = self.checkpoints()?.has_succeeded();
        let everything = has_succeeded && outcome.complete;
        ledger.set_complete(outcome.complete, everything);
        ledger.set_position(cut.position);
        ledger.set_pending(self.job.pending.clone().filter(|_| !has_succeeded));
        match everything || reason.is_asked() {
            true => ledger.commit_whole()?,
            false => ledger.commit()?,
        }
        if everything {
            ledger.set_directory_rights(true)?;
        }
        ledger.destination().remove_empty_shelves();
        self.cut_at = Some(cut.at);
        self.ledger = Some(ledger);
        Ok(outcome)
    }

    /// Plans what the cut needs outside, and notes in `outcome` what is not to be there.
    fn plans(
        &mut self,
        ledger: &Ledger,
        cut: &Cut<'_>,
        view: &View,
        outcome: &mut Outcome,
    ) -> Vec<Plan> {
        let Cut { trees, stored_to, .. } = cut;
        let mut plans = Vec::with_capacity(trees.len());
        // Where the user wants only some checkpoints outside, the program may have removed the
        // newest of these long before the next: it stays until then.
        let guarded = self.guarded(ledger, view);
        for (volume, tree) in *trees {
            let mut plan = plan(tree, ledger.manifest(), volume.prefix(), stored_to);
            if let Some(repair) = &view.repair {
                plan.leave(&|path| repair.have(path));
                outcome.failed.extend(being_repaired(repair, tree));
            }
            plan.leave_out(&view.inputs);
            let held = plan.hold(&view.held, tree, view.is_of_all);
            plan.keep_until_replaced(tree);
            let displaced = plan.displaced(tree);
            let guarded = guarded.iter().filter(|path| !lies_in(path, &displaced)).cloned();
            plan.guard(&guarded.collect());
            outcome.kept_files += held.len() as u64;
            plan.copies.sort_by_key(|path| tree.get(path).map(|node| node.mtime_ns));
            view.sort(&mut plan.copies);
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
        plans
    }

    /// Returns the files of checkpoints outside that stay although the program may have removed
    /// them.
    fn guarded(&self, ledger: &Ledger, view: &View) -> HashSet<FilePath> {
        let is_kept = self.is_choosy() && !view.is_of_all;
        ledger.manifest().newest_files(|_| is_kept)
    }

    /// Makes the copies, ends the hold on the cut, and turns the directory. Returns the files whose
    /// copies may be unsteady. Errors: `Unsteady`, unless this is the last attempt.
    fn copy_and_turn(
        &mut self,
        ledger: &mut Ledger,
        cut: &Cut<'_>,
        (volumes, plans): (&[Arc<Volume>], &[Plan]),
        meter: &Meter,
    ) -> Result<Vec<FilePath>> {
        let stored_to = &*cut.stored_to;
        self.shelf.forget(stored_to);
        let mut copy = |are_first: bool| -> Result<()> {
            for (((_, tree), plan), views) in cut.trees.iter().zip(plans).zip(cut.image.views()) {
                let paths: Vec<FilePath> = plan
                    .copies
                    .iter()
                    .filter(|path| stored_to.contains(*path) == are_first)
                    .cloned()
                    .collect();
                let (failures, shelf, marks) = (&mut self.failures, &mut self.shelf, &self.marks);
                let since = &self.unchanged;
                let mut copier =
                    Copier { ledger, failures, shelf, views, tree, meter, marks, since, stored_to };
                copier.copy_all(&paths)?;
            }
            Ok(())
        };
        copy(true)?;
        let is_unsteady = !stored_to.is_empty() && !cut.image.is_steady();
        if is_unsteady && !cut.is_last_attempt {
            return Err(Error::Unsteady);
        }
        copy(false)?;
        let mut unsteady = BTreeSet::new();
        if is_unsteady {
            unsteady.extend(stored_to.iter().cloned());
        }
        if !cut.image.is_steady() {
            let later = cut.image.stored_to(cut.trees)?;
            unsteady.extend(later.difference(stored_to).cloned());
        }
        if !unsteady.is_empty() && !cut.is_last_attempt {
            return Err(Error::Unsteady);
        }
        cut.image.check()?;
        let steps = self.steps(ledger, cut, plans)?;
        self.turn(ledger, cut, (volumes, &steps), meter)?;
        for path in &unsteady {
            ledger.update(path, |entry| entry.torn = true);
        }
        Ok(unsteady.into_iter().collect())
    }

    /// Returns the steps of the turn.
    fn steps(&self, ledger: &Ledger, cut: &Cut<'_>, plans: &[Plan]) -> Result<Vec<Step>> {
        let mut inodes = HashMap::new();
        for (from, _) in plans.iter().flat_map(|plan| &plan.renames) {
            if let Some((_, found)) = ledger.find_ours(from)? {
                inodes.insert(from.clone(), found.inode);
            }
        }
        let may_try = |path: &FilePath| self.failures.may_try(path);
        let has_all = |tree: &Tree, plan: &Plan| {
            let made = |path: &FilePath| tree.get(path).and_then(|it| self.shelf.made(path, it));
            plan.postponed.is_empty() && plan.copies.iter().all(|path| made(path).is_some())
        };
        let is_whole = self.failed(ledger).is_empty()
            && cut.trees.iter().zip(plans).all(|((_, tree), plan)| has_all(tree, plan));
        let mut steps = Vec::new();
        for ((_, tree), plan) in cut.trees.iter().zip(plans) {
            let made = &|path: &FilePath, node: &Node| self.shelf.made(path, node);
            let (manifest, inodes, may_try) = (ledger.manifest(), &inodes, &may_try);
            let material = Material { plan, tree, manifest, made, inodes, may_try, is_whole };
            steps.extend(material.sequence());
        }
        for step in &mut steps {
            if let Step::Place { path, fate, .. } = step
                && *fate == Fate::Spare
                && !self.placed.contains_key(path)
            {
                *fate = Fate::Gone;
            }
        }
        Ok(steps)
    }

    fn turn(
        &mut self,
        ledger: &mut Ledger,
        cut: &Cut<'_>,
        (volumes, steps): (&[Arc<Volume>], &[Step]),
        meter: &Meter,
    ) -> Result<()> {
        let node = |path: &FilePath| {
            let mut found = cut.trees.iter().zip(volumes);
            found.find_map(|((_, tree), volume)| Some((tree.get(path)?, volume)))
        };
        let mut spares = Vec::new();
        for step in steps {
            if let Step::Place { path, fate: Fate::Spare, .. } = step
                && let Some(pass) = self.placed.get(path).copied()
                && let Some((entry, found)) = ledger.find_ours(path)?
            {
                let spare = Spare { file: entry.inode, inode: found.inode, pass };
                spares.push((path.clone(), spare));
            }
        }
        let failures = &mut self.failures;
        #[cfg(test)]
        let mut lives_for = self.dies_after.map_or(usize::MAX, |count| count);
        ledger.turn(steps, &mut |path, result| {
            let _at_work = meter.at(path);
            #[cfg(test)]
            {
                lives_for = lives_for.checked_sub(1).ok_or(Error::Stopped)?;
            }
            failures.settle(path, result).map(drop)
        })?;
        for (path, spare) in spares {
            self.shelf.note_spare(path, spare);
        }
        for step in steps {
            let Step::Place { path, .. } = step else { continue };
            let Some((node, _)) = node(path) else { continue };
            if !ledger.entry(path).is_some_and(|entry| has_bytes_of(entry, node)) {
                continue;
            }
            match node.open && node.bytes >= SPARE_BYTES_MIN {
                true => drop(self.placed.insert(path.clone(), cut.number)),
                false => drop(self.placed.remove(path)),
            }
        }
        mark_drained(ledger, cut.trees, volumes);
        self.shelf.clear();
        let is_open = |path: &FilePath, spare: &Spare| {
            node(path).is_some_and(|(node, _)| node.open && node.inode == spare.file)
        };
        for path in self.shelf.take_spares(is_open) {
            ledger.destination().drop_spare(&path)?;
        }
        Ok(())
    }

    /// Seals files whose blocks their writers left open, so that damage is detected from then on. A
    /// failure is noted only: copying the file seals it again and reports the error.
    fn seal_closed(&mut self, volume: &Volume) -> Result<()> {
        let sealed = self.sealed.entry(volume.name().to_string()).or_default();
        let mut closed = Vec::new();
        let survey = volume.fs().survey_since(Timestamp(i64::MIN), &mut |file| {
            let is_known = sealed.get(&file.inode.0) == Some(&file.version);
            if file.writers == 0 && file.absence.is_none() && !is_known {
                closed.push((file.inode, file.version));
            }
        });
        let survey = survey.map_err(volume.error("look at the files of", &FilePath::root()))?;
        let mut failed = HashMap::new();
        for (inode, version) in closed {
            match volume.seal(&FilePath::root(), inode) {
                Ok(true) => drop(sealed.insert(inode.0, version)),
                // The file was written to or removed meanwhile.
                Ok(false) | Err(Error::Store { source: cairn_core::Error::NotFound, .. }) => {}
                Err(error) => drop(failed.insert(inode.0, error.to_string())),
            }
        }
        if !failed.is_empty() {
            let named = volume.tree()?.into_iter();
            self.unsealed.extend(named.filter_map(|(path, node)| {
                let reason = failed.remove(&node.inode)?;
                Some(Failed { path, reason, quarantined: false })
            }));
        }
        if sealed.len() as u64 > 2 * survey.files + 1024 {
            // Most entries belong to files that are gone. The others are found sealed again at
            // little cost.
            sealed.clear();
        }
        Ok(())
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
        self.open_for(volumes)?;
        match &mut self.ledger {
            Some(ledger) => ledger.distrust(paths),
            None => Ok(()),
        }
    }

    /// Writes the manifest as one file: this agent ends.
    pub fn fold_manifest(&mut self) -> Result<()> {
        self.ledger.as_mut().map_or(Ok(()), Ledger::fold)
    }

    /// Opens the persist directory if no pass has opened it yet.
    fn open(&mut self, persist: &Path, trees: &[(&Arc<Volume>, Tree)]) -> Result<()> {
        if self.ledger.is_none() {
            (self.shelf, self.placed) = Default::default();
            let ledger = Ledger::open(persist, &self.job)?;
            let find = |path: &FilePath| trees.iter().find_map(|(_, tree)| tree.get(path));
            ledger.sweep(&self.marks.retain(find))?;
            self.ledger = Some(ledger);
        }
        Ok(())
    }

    /// Opens the persist directory for work on single files.
    fn open_for(&mut self, volumes: &[Arc<Volume>]) -> Result<()> {
        match self.job.persist.clone() {
            Some(persist) if self.ledger.is_none() => self.open(&persist, &read(volumes)?),
            _ => Ok(()),
        }
    }
}

/// Marks the files as drained whose bytes at the cut are outside: those that were copied, and those
/// that were closed since they were. Only the flag that `ls` shows can be lost here; the manifest
/// is authoritative.
fn mark_drained(ledger: &Ledger, trees: &[(&Arc<Volume>, Tree)], volumes: &[Arc<Volume>]) {
    for ((_, tree), volume) in trees.iter().zip(volumes) {
        for (path, node) in tree.iter().filter(|(_, node)| !node.drained && !node.open) {
            if ledger.entry(path).is_some_and(|entry| has_bytes_of(entry, node)) {
                let _ = volume.fs().mark_drained(InodeId(node.inode), node.version, now());
            }
        }
    }
}

/// Says how much room the next cut lacks if the file system is full.
fn without_room(error: Error, persist: &Path, meter: &Meter) -> Error {
    let Progress { bytes_total, bytes_done, .. } = meter.progress();
    let free_bytes = free_bytes(persist).unwrap_or(0);
    match bytes_total.saturating_sub(bytes_done).saturating_sub(free_bytes) {
        // A quota is exceeded, or space was freed meanwhile.
        0 => error,
        missing_bytes if error.is_about_room() => {
            Error::NoRoom { place: persist.to_path_buf(), missing_bytes }
        }
        _ => error,
    }
}

/// Reads the trees of all namespaces, name by name. The result is no cut.
fn read(volumes: &[Arc<Volume>]) -> Result<Vec<(&Arc<Volume>, Tree)>> {
    volumes.iter().map(|volume| Ok((volume, volume.tree()?))).collect()
}

fn groves<'a>(trees: &'a [(&Arc<Volume>, Tree)]) -> Vec<NamespaceTree<'a>> {
    trees.iter().map(|(volume, tree)| (volume.prefix(), tree)).collect()
}

/// Returns the outcome of a pass without a persist directory.
fn undrained(trees: &[(&Arc<Volume>, Tree)], view: View, failed: Vec<Failed>) -> Outcome {
    let mut outcome = Outcome { unfinished: view.unfinished, failed, ..Outcome::default() };
    for (path, node) in trees.iter().flat_map(|(_, tree)| tree) {
        if node.open {
            outcome.open.push(path.clone());
        } else if node.unclean && !view.unwanted.contains(path) {
            outcome.unclean.push(path.clone());
        }
    }
    outcome
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
