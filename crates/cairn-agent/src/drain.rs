//! One pass of the drain: compare every namespace with the manifest, carry out the difference, say
//! how it stands.
//!
//! Must stay true: `complete` is said only after a pass that could read every namespace and left
//! nothing undone; a pass that somebody asked for trusts no earlier pass: it looks at every copy
//! again.
//! Does not decide when a pass is due; `service.rs` does.

pub(crate) mod aside;
pub(crate) mod carry;
pub mod checkpoints;
mod copies;
pub mod copy;
pub(crate) mod failures;
pub mod forecast;
pub(crate) mod hold;
mod leaving;
pub mod link;
pub(crate) mod meter;
pub mod pace;
pub mod plan;
pub(crate) mod queue;
#[cfg(test)]
mod tests;
mod unchanged;
mod whole;

use crate::checkpoint::quarantine::Places;
use crate::checkpoint::sets::policy::Every;
use crate::checkpoint::sets::register::{Checkpoint, Level};
use crate::checkpoint::sets::{self, Grove, Member};
use crate::drain::carry::{Carrier, Overtaking};
use crate::drain::checkpoints::{Checkpoints, Delivery, Told, View};
use crate::drain::failures::Failures;
use crate::drain::hold::Turns;
use crate::drain::link::Elsewhere;
use crate::drain::meter::Meter;
use crate::drain::plan::{Plan, lies_in, plan};
use crate::image;
use crate::model::error::{Error, Result};
use crate::model::job::left_name;
use crate::model::job::{Description, Job, RUN_LOCK};
use crate::model::lock;
use crate::model::log::{self, Complaints};
use crate::model::path::FilePath;
use crate::model::protocol::{Failed, Outcome, Progress};
use crate::persist::ledger::Ledger;
use crate::persist::manifest::{self, Entry, Manifest, State, manifest_path};
use crate::persist::marks::Marks;
use crate::store::node::Kind;
use crate::store::node::Tree;
use crate::store::reaper;
use crate::store::volume::Volume;
use cairn_core::InodeId;
use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
pub use unchanged::Since;
use unchanged::Unchanged;
use whole::Whole;

/// Drains the namespaces of one store.
pub struct Drainer {
    store: PathBuf,
    job: Job,
    description: Description,
    checkpoints: Option<Checkpoints>,
    ledger: Option<Ledger>,
    failures: Failures,
    marks: Marks,
    /// Versions of files whose blocks are known to be sealed, by namespace and inode.
    sealed: HashMap<String, HashMap<u32, u64>>,
    /// Files of which that could not be said in this pass.
    unsealed: Vec<Failed>,
    /// When it should be looked again at checkpoints that may be complete by then.
    look_again: Option<Instant>,
    complaints: Complaints,
    turns: Turns,
    /// What is known of the images that were taken.
    unchanged: Unchanged,
    /// The last run, as in [`Job::runs`], of which somebody said how it ended.
    ended_run: u64,
    /// As [`Checkpoints::run_was_seen`], for the next pass.
    pub run_was_seen: bool,
    /// The last pass took the run for one that goes on.
    pub run_went_on: bool,
}

/// What is to be outside.
#[derive(Clone, Copy)]
struct Contents<'a> {
    /// The namespaces as they are.
    trees: &'a [(&'a Arc<Volume>, Tree)],
    /// These are all of the store.
    all: bool,
    /// The last run had ended before they were read: an image has nothing then that is not in them,
    /// and later.
    is_over: bool,
    /// Where else copies of their files may lie.
    elsewhere: &'a [Elsewhere<'a>],
    /// They are of an image.
    whole: Option<&'a Whole<'a>>,
}

/// Why a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something changed, or it is time to try again.
    Routine,
    /// An image is due.
    ImageDue,
    /// Somebody asked for it: forget delays, look at every copy.
    Asked(Told),
}

impl Reason {
    fn is_asked(self) -> bool {
        matches!(self, Reason::Asked(_))
    }

    fn told(self) -> Told {
        match self {
            Reason::Routine => Told::default(),
            Reason::ImageDue => Told { delivery: Delivery::Image, ..Told::default() },
            Reason::Asked(told) => told,
        }
    }
}

impl Drainer {
    /// A drainer of the store in `store`.
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

    /// Where it drains to.
    pub fn persist(&self) -> Option<&Path> {
        self.job.persist.as_deref()
    }

    /// When a file that could not be drained is to be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        self.failures.next_retry()
    }

    /// When the next pass is due although nothing has changed.
    pub fn next_look(&self) -> Option<Instant> {
        self.next_retry().into_iter().chain(self.look_again).min()
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
        // Who asked waits for all that there was.
        let overtaking = (reason == Reason::Routine).then(|| Overtaking::new(volumes));
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
            // Before the files are read: what a run that is not there any more has done is to be in
            // them. Its program may have outlived it.
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
                // A run began, and may have ended: what it did is not what the one before it left.
                Some(job) => self.take_up(job),
            }
        };
        let mut ripe = Vec::new();
        // What seems complete may be newer than what has become so behind the reader's back.
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
        // Others read it: what is there does not depend on the directory.
        self.save_checkpoints()?;
        let Some(persist) = self.job.persist.clone() else {
            return Ok(undrained(&trees, view, self.unsealed.clone()));
        };
        let aside = match told.delivery {
            Delivery::Sound | Delivery::AsIs => None,
            Delivery::Image => Some(image::next(&persist, &self.job.job)),
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
            // Whatever is wrong with the directory, the next pass opens it afresh.
            self.ledger = None;
        }
        result
    }

    /// Takes up what another command wrote into the job's description: a persist directory given
    /// later, or what a run wants that resumes the store.
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

    /// A store that has no room for what is known of its checkpoints is drained all the more: the
    /// next pass tries again.
    fn save_checkpoints(&mut self) -> Result<()> {
        let saved = self.checkpoints()?.save();
        self.complaints.note("write down what is known of checkpoints", saved);
        Ok(())
    }

    /// The complete checkpoints as of the last pass.
    pub fn known(&self) -> &[Checkpoint] {
        self.checkpoints.as_ref().map_or(&[], Checkpoints::complete)
    }

    /// Whether the last run has ended, though whoever has the store for it may still be there.
    pub fn has_run_ended(&self) -> bool {
        let is_said = self.job.runs > 0 && self.ended_run == self.job.runs;
        is_said || self.checkpoints.as_ref().is_some_and(Checkpoints::has_succeeded)
    }

    /// Whether not every checkpoint is wanted outside.
    pub fn is_choosy(&self) -> bool {
        self.job.checkpoint.pfs != Every::default()
    }

    /// Whether the persist directory has a checkpoint of this number, whose name begins so.
    pub fn has_checkpoint(&self, id: u64, name: &str) -> bool {
        self.ledger.as_ref().map(Ledger::manifest).is_some_and(|manifest| {
            let mut there = manifest.checkpoints.iter().filter(|known| known.id == id);
            let is_meant = |known: &manifest::Checkpoint| known.name.to_string().starts_with(name);
            there.any(|known| is_meant(known) && known.is_whole(manifest))
        })
    }

    /// The checkpoints that may be given up as a whole, as of the last pass: all that are complete;
    /// where files have purposes of their own, those that are drained. Errors: the register or the
    /// notes of programs cannot be read.
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
        (reason, overtaking): (Reason, Option<Overtaking>),
        mut view: View,
        meter: &Meter,
    ) -> Result<Outcome> {
        let Contents { trees, all, is_over, whole, .. } = what;
        let manifest = manifest_path(&self.job.job);
        let at_work = meter.at(&manifest);
        let mut ledger = match self.ledger.take() {
            // A directory that was replaced is not the one we have open.
            Some(ledger) if !reason.is_asked() && ledger.destination().is_current() => ledger,
            _ => open_ledger(persist, &self.job, trees, &self.marks)?,
        };
        if reason.is_asked() {
            copies::forget_missing(&mut ledger, trees, meter)?;
        }
        if reason.told().verify {
            let damaged = copies::damaged(&ledger, meter)?;
            ledger.distrust(&damaged)?;
        }
        drop(at_work);
        let mut outcome = Outcome::default();
        let has_succeeded = reason.told().succeeded == Some(true);
        let is_image = whole.is_some();
        // An image is what it is; so is what somebody wants as it is.
        let is_as_it_is = is_image || reason.told().delivery == Delivery::AsIs;
        let guarded = ledger.manifest().newest_files(|_| !is_as_it_is);
        // Stores to a mapped file leave no trace: whatever was copied of it before is another
        // image's.
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
                // It stays where it is.
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
            // What an image has is not in its place.
            true if is_image => ledger.name_drained(),
            true => self.checkpoints()?.note_levels(&mut ledger),
            false => {}
        }
        if has_succeeded && matches!(result, Ok(true)) {
            // What the program removed is to be gone, unless what it has left instead is not
            // outside.
            let lacking = view.lacking(ledger.manifest());
            let guarded = ledger.manifest().newest_files(|family| lacking.contains(family));
            let (look, mut again) = ((&view, &guarded), Outcome::default());
            result = self.drain_into(&mut ledger, what, look, None, meter, &mut again);
        }
        let _at_work = meter.at(&manifest);
        let guards = match result {
            Ok(guards) => guards && !has_succeeded,
            Err(error) => {
                // What is verified stays verified; if this fails, too, the next ledger finds it in
                // the journal.
                let _ = ledger.save();
                return Err(error);
            }
        };
        outcome.changed = self.failures.take_changed();
        outcome.failed.extend(self.failed(&ledger));
        outcome.failed.extend(copies::without_data(&ledger, trees));
        (outcome.as_they_are, outcome.unclean) = unclean_files(trees, ledger.manifest());
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
            // There is a newer one now: the copies of the other can go.
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
        if (everything || has_all) && is_over {
            image::discard(persist, &self.job);
        }
        self.ledger = Some(ledger);
        Ok(outcome)
    }

    /// Whether copies stay that the store has no files for, because they are `guarded`: the newest
    /// checkpoint outside is not given up before there is a newer one.
    fn drain_into(
        &mut self,
        ledger: &mut Ledger,
        Contents { trees, elsewhere, whole, .. }: Contents<'_>,
        (view, guarded): (&View, &HashSet<FilePath>),
        mut overtaking: Option<Overtaking>,
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
            let held = plan.hold(&view.held, tree, view.is_of_all);
            plan.keep_until_replaced(tree);
            // Where something else comes in the place of a checkpoint, the program has removed
            // that.
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
            // Those of directories that were changed by what else was done are tried again by
            // themselves.
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
            // What an earlier store has left is mostly found to be the same.
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

    /// Seals what writers left open, so that damage can be told from then on. Copying a file tries
    /// it again, and fails with it.
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
                // Written or removed meanwhile.
                Ok(false) | Err(Error::Store { source: cairn_core::Error::NotFound, .. }) => {}
                Err(error) => {
                    let (path, reason) = (path.clone(), error.to_string());
                    self.unsealed.push(Failed { path, reason, quarantined: false });
                }
            }
        }
        if sealed.len() > 2 * tree.len() + 1024 {
            // Mostly files that are gone; the others are found sealed quickly.
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

    /// Notes that copies are not what was drained: of a file that is in the store it is made again,
    /// by the next pass.
    /// Errors: the manifest cannot be read or written.
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

    /// Opens the persist directory, of an agent that has not looked yet.
    fn open(&mut self, volumes: &[Arc<Volume>]) -> Result<()> {
        if let (None, Some(persist)) = (&self.ledger, &self.job.persist) {
            self.ledger = Some(open_ledger(persist, &self.job, &read(volumes)?, &self.marks)?);
        }
        Ok(())
    }
}

/// All that there is, each namespace one name after the other: what closes meanwhile may be seen
/// open although something that was closed later is seen closed.
fn read(volumes: &[Arc<Volume>]) -> Result<Vec<(&Arc<Volume>, Tree)>> {
    volumes.iter().map(|volume| Ok((volume, volume.tree()?))).collect()
}

fn groves<'a>(trees: &'a [(&Arc<Volume>, Tree)]) -> Vec<Grove<'a>> {
    trees.iter().map(|(volume, tree)| (volume.prefix(), tree)).collect()
}

/// How things stand without a persist directory.
fn undrained(trees: &[(&Arc<Volume>, Tree)], view: View, failed: Vec<Failed>) -> Outcome {
    let mut outcome = Outcome { unfinished: view.unfinished, failed, ..Outcome::default() };
    for (_, tree) in trees {
        let open = tree.iter().filter(|(_, node)| node.open);
        outcome.open.extend(open.map(|(path, _)| path.clone()));
        outcome.unclean.extend(unclean(tree));
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
    // Where an agent that died may have copied to: also what has left the store since, which goes
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

/// What is to be done for `tree`, where unclean files that are `taken` are copied, and how many
/// copies are left as they are: their files were renamed while it was read, so that they are
/// nowhere in it.
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

/// Why a file is not drained that waits for the data of absent ones.
fn waiting(path: &FilePath) -> Failed {
    let reason = "it waits for files that are yet to be brought in".to_string();
    Failed { path: path.clone(), reason, quarantined: false }
}

/// Why files are not drained that a repair is about.
fn being_repaired(repair: &Places, tree: &Tree) -> impl Iterator<Item = Failed> {
    let files = tree.iter().filter(|(_, node)| node.kind == Kind::File);
    let files = files.filter(|(path, _)| repair.have(path));
    files.map(|(path, _)| {
        let reason = sets::Reason::Repair.to_string();
        Failed { path: path.clone(), reason, quarantined: false }
    })
}

/// Unclean files that `manifest` has as they are, and those that it has not.
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

/// Counts what the directory has of the files of `trees`: not older versions of them, nor what the
/// store has no file of any more.
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
