//! The checkpoints of a store as the drain sees them: labels of files, and the order in which these
//! are copied.
//!
//! Must stay true: labels withhold nothing. Only what the user asked for does: purposes of files
//! (`--temporary`), inputs, and policies that want some checkpoints outside (`--pfs-every`). When a
//! run has ended, or somebody asks, the latter withhold only checkpoints that are known to be whole
//! and not wanted. The register on disk holds the result of the last look.
//!
//! Where labels only order copies, looking takes a tenth of the time at most: a look at very many
//! files stands for those of the next passes.

use crate::persist::manifest_file;
use crate::store::notes;
use crate::store::register_file;
use cairn_device::store::notes::Note;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::model::clock::processor_time;
use crate::model::drain_task::{DrainTask, Wanted};

use crate::checkpoint::quarantine::{Places, Repair};
use crate::model::error::Result;
use crate::model::job::{Job, RUN_LOCK};
use crate::model::protocol::Unfinished;
use crate::model::store_file::Version;
use crate::model::{lock, log, ranks};
use crate::persist::destination::Destination;
use crate::persist::ledger::Ledger;
use crate::store::inputs::{Content, Inputs, SourceState, Staged};
use crate::store::volume::now;
use cairn_job::checkpoint::name::{Family, Name};
use cairn_job::checkpoint::policy::Purpose;
use cairn_job::checkpoint::sets::marks::{self, Mark};
use cairn_job::checkpoint::sets::register::{Checkpoint, Level, Moment, Register};
use cairn_job::checkpoint::sets::rules::Rules;
use cairn_job::checkpoint::sets::{DrainProgress, Member, NamespaceTree, Ranks, Reason, Run, Set};
use cairn_job::file::node::{Kind, Node, Tree};
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::Manifest;

/// A look that takes less processor time than this stands for no other one.
const LONG_LOOK: Duration = Duration::from_millis(100);
/// Factor on this time, for which it stands.
const STANDS_FACTOR: u32 = 9;

/// The checkpoints of one store.
pub struct Checkpoints {
    store: PathBuf,
    rules: Rules,
    settle: Duration,
    mount: String,
    /// Number of the last run that began, see [`Job::runs`].
    runs: u64,
    /// Whether the job has a persist directory.
    drains: bool,
    register: Register,
    saved: Register,
    /// Files that are never drained, whatever they belong to, as of the last look.
    unwanted: HashSet<FilePath>,
    /// Inputs of the job, and the version of their record when it was read.
    inputs: Mutex<(Option<Version>, Arc<Inputs>)>,
    /// Number of missed checkpoints of each family that the log last reported.
    told: HashMap<Family, u64>,
    /// When the present run was last seen alive, nanoseconds since the epoch; `i64::MIN` if never.
    alive_ns: i64,
    /// Whether a run was under way before the pass asked how it ended: it may have reported its end
    /// and gone since.
    pub run_was_seen: bool,
    /// The last look, while it stands for others.
    standing: Option<Standing>,
}

/// A look that stands for others while the run goes on, and nobody asks.
struct Standing {
    until: Instant,
    /// What this run is, and whether it was under way.
    run: (u64, bool),
    order: Arc<HashMap<FilePath, usize>>,
    unfinished: Vec<Unfinished>,
}

/// A checkpoint that a store was filled with.
pub struct Filled<'a> {
    /// Its name.
    pub name: &'a Name,
    /// Its files, ordered by path.
    pub files: Vec<&'a FilePath>,
    /// When it was written, nanoseconds since the epoch, if that is known.
    pub modified_ns: Option<i64>,
}

/// State of the run during a look.
#[derive(Clone, Copy)]
struct RunState {
    run: Run,
    /// See [`Moment::alive_ns`].
    alive_ns: i64,
    /// Whether no run is under way. If so, missing files are not a program's removals in progress.
    is_idle: bool,
}

/// Result of a look.
#[derive(Default)]
pub struct View {
    /// Files that are not copied now.
    pub held: HashSet<FilePath>,
    /// Files that are never drained.
    pub unwanted: HashSet<FilePath>,
    /// Those of them that are inputs.
    pub inputs: HashSet<FilePath>,
    /// Whether all files are copied except those that the user declared temporary or reusable.
    pub is_of_all: bool,
    /// Held files that nothing will want in the persist directory, as things stand: not even at the
    /// end of the run.
    pub unneeded: HashSet<FilePath>,
    /// Position of each checkpoint file in the order of copying; other files come after them.
    order: Arc<HashMap<FilePath, usize>>,
    /// Checkpoints that are not known to be whole.
    pub unfinished: Vec<Unfinished>,
    /// The sets that these are of, and all others that are not complete.
    pub incomplete: Vec<Set>,
    /// When the next look is due even if nothing changes.
    pub look_again: Option<Instant>,
    /// Files that a repair is moving; nobody else may touch them.
    pub repair: Option<Places>,
}

impl View {
    /// Sorts `paths` into the order of copying: newest checkpoint first, then files of no
    /// checkpoint in their present order.
    pub fn sort(&self, paths: &mut [FilePath]) {
        paths.sort_by_key(|path| self.order.get(path).copied().unwrap_or(usize::MAX));
    }
}

impl Checkpoints {
    /// Opens the checkpoints of the store in `store`, for a caller that finds new ones: new numbers
    /// exceed all those in the persist directory, as far as its manifest can be read. Errors: the
    /// register cannot be read.
    pub fn open(store: &Path, job: &Job) -> Result<Checkpoints> {
        let mut checkpoints = Checkpoints::load(store, job)?;
        let found = job.persist.as_ref().and_then(|persist| {
            let mut destination = Destination::open(persist, &job.store).ok()?;
            manifest_file::load(&mut destination, &job.job).ok().flatten()
        });
        if let Some(manifest) = found {
            checkpoints.register.skip(manifest.highest_id(&job.store));
        }
        Ok(checkpoints)
    }

    /// Loads the checkpoints of the store in `store` for a caller that only reads them; `job` is
    /// its description. Errors: the register cannot be read.
    pub fn load(store: &Path, job: &Job) -> Result<Checkpoints> {
        let register = register_file::load(store)?;
        Ok(Checkpoints {
            store: store.to_path_buf(),
            rules: Rules::of(&job.checkpoint),
            settle: job.checkpoint.settle(),
            mount: job.mount.clone(),
            runs: job.runs,
            drains: job.persist.is_some(),
            saved: register.clone(),
            register,
            unwanted: HashSet::new(),
            inputs: Mutex::default(),
            told: HashMap::new(),
            alive_ns: i64::MIN,
            run_was_seen: false,
            standing: None,
        })
    }

    /// Closes the run before a new one. Call it before the new run changes anything, while no agent
    /// runs. If nobody reported how the last run ended, its unfinished checkpoints stay unfinished.
    /// An agent that starts later could take files of the new run for theirs.
    pub fn begin_run(&mut self, groves: &[NamespaceTree<'_>]) -> Result<()> {
        if self.register.ended_run() < self.runs {
            let course = RunState { run: Run::Failed, alive_ns: self.alive_ns, is_idle: true };
            self.look_at(groves, course, DrainTask::default())?;
            self.register.end_run(self.runs, now().0);
            self.save()?;
        }
        Ok(())
    }

    /// Records the end of a run. Call it when no agent runs that could be told.
    pub fn end_run(&mut self, groves: &[NamespaceTree<'_>], told: DrainTask) -> Result<()> {
        self.look(groves, told)?;
        self.save()
    }

    /// Registers the checkpoints that a new store was filled with, oldest first. They count as
    /// complete and keep this order and their times.
    pub fn adopt(&mut self, groves: &[NamespaceTree<'_>], filled: &[Filled<'_>]) -> Result<()> {
        let places = filled.iter().enumerate().map(|(place, one)| (&one.files[..], place));
        let places: HashMap<&[&FilePath], usize> = places.collect();
        self.register.know(filled.iter().map(|one| &one.name.family));
        let marks = marks::marks(&notes::read(&self.store)?);
        // Also while a repair works on them.
        let sets = self.sets(groves, &marks, running(!self.is_run_under_way()), None)?;
        let place = |set: &&Set| {
            let paths: Vec<&FilePath> = set.members.iter().map(|member| &member.path).collect();
            places.get(&paths[..]).copied()
        };
        let mut whole: Vec<(usize, Set)> =
            sets.iter().filter_map(|set| Some((place(&set)?, set.clone()))).collect();
        whole.sort_by_key(|(place, _)| *place);
        for (place, set) in &mut whole {
            set.newest_ns = filled[*place].modified_ns.unwrap_or(set.newest_ns);
        }
        let whole: Vec<&Set> = whole.iter().map(|(_, set)| set).collect();
        self.register.adopt(&whole, &self.rules, now().0);
        self.save()
    }

    /// Records that a file was replaced by an identical copy. Call it while no agent runs. Returns
    /// whether the file belongs to a checkpoint.
    pub fn note_replaced(&mut self, path: &FilePath, inode: u32, version: u64) -> bool {
        self.register.note_replaced(path, inode, version)
    }

    /// Moves new numbers beyond those that `manifest` has for this store.
    pub fn compare(&mut self, manifest: &Manifest) {
        self.register.move_beyond(manifest.highest_id(&manifest.store));
    }

    /// Returns the complete checkpoints as of the last look.
    pub fn complete(&self) -> &[Checkpoint] {
        self.register.checkpoints()
    }

    /// Whether files have purposes of their own, or are inputs, so that they are treated apart from
    /// their checkpoint. Errors: the notes of programs cannot be read.
    pub fn has_purposes(&self) -> Result<bool> {
        let are_inputs = !self.inputs().is_empty();
        Ok(are_inputs || self.rules.has_purposes(&notes::read(&self.store)?))
    }

    /// Returns the files that are never drained. Inputs that nobody changed are where they came
    /// from.
    fn unwanted_among(
        &self,
        groves: &[NamespaceTree<'_>],
        notes: &[Note],
    ) -> Result<HashSet<FilePath>> {
        let inputs = self.inputs();
        let purpose = purposes(&self.rules, &self.mount, notes);
        let is_unwanted = |path: &FilePath, node: &Node| match purpose(path) {
            Some(Purpose::Persistent) => false,
            Some(Purpose::Temporary) => true,
            // What the job has made of a reusable input is the job's own.
            Some(Purpose::Reusable) => {
                !inputs.staged.contains_key(path) || inputs.is_unchanged(path, node)
            }
            None => inputs.is_unchanged(path, node),
        };
        if inputs.is_empty() && !self.rules.has_purposes(notes) {
            return Ok(HashSet::new());
        }
        let names = groves.iter().flat_map(|(_, tree)| tree.iter());
        let unwanted = names.filter(|(path, node)| is_unwanted(path, node));
        Ok(unwanted.map(|(path, _)| path.clone()).collect())
    }

    /// Returns the input files that nobody has changed and that the user declared reusable: path,
    /// source and its state. Errors: as `unwanted_in`.
    pub fn reusable_inputs(
        &self,
        groves: &[NamespaceTree<'_>],
    ) -> Result<Vec<(FilePath, PathBuf, SourceState)>> {
        let (inputs, notes) = (self.inputs(), notes::read(&self.store)?);
        let purpose = purposes(&self.rules, &self.mount, &notes);
        let names = groves.iter().flat_map(|(_, tree)| tree.iter());
        let kept = names.filter(|(path, node)| {
            let is_here = node.kind == Kind::File && node.absence.is_none();
            is_here && inputs.is_unchanged(path, node) && purpose(path) == Some(Purpose::Reusable)
        });
        let of = |path: &FilePath| {
            let Staged { source, content, .. } = inputs.staged.get(path)?;
            match content {
                Content::File(state) => Some((path.clone(), source.clone(), *state)),
                Content::Directory(_) | Content::Symlink(_) => None,
            }
        };
        Ok(kept.filter_map(|(path, _)| of(path)).collect())
    }

    /// Returns the inputs of the job. If their record cannot be read, there are none: everything is
    /// drained.
    fn inputs(&self) -> Arc<Inputs> {
        let version = Inputs::version(&self.store);
        let mut known = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != version {
            let inputs = Inputs::load(&self.store).unwrap_or_else(|error| {
                log::say(
                    log::Level::Warn,
                    format_args!("inputs count as files of the job: {error}"),
                );
                Inputs::default()
            });
            *known = (version, Arc::new(inputs));
        }
        Arc::clone(&known.1)
    }

    /// Returns the complete checkpoints without the files that are never drained.
    pub fn drainable(&self) -> Cow<'_, [Checkpoint]> {
        if self.unwanted.is_empty() {
            return Cow::Borrowed(self.complete());
        }
        let mut complete = self.complete().to_vec();
        for known in &mut complete {
            known.files.retain(|file| !self.unwanted.contains(&file.path));
        }
        complete.retain(|known| !known.files.is_empty());
        Cow::Owned(complete)
    }

    /// Makes the next look one of its own: somebody asks.
    pub fn look_anew(&mut self) {
        self.standing = None;
    }

    /// Looks at the files, all as they were at one moment.
    pub fn look(&mut self, groves: &[NamespaceTree<'_>], told: DrainTask) -> Result<View> {
        let is_under_way = std::mem::take(&mut self.run_was_seen) || self.is_run_under_way();
        let ended = if is_under_way { self.runs.saturating_sub(1) } else { self.runs };
        let present = running(!is_under_way);
        let course = match told.succeeded {
            Some(true) => RunState { run: Run::Succeeded, ..present },
            Some(false) => RunState { run: Run::Failed, ..present },
            // The agent that was told may have died before it finished.
            None if self.has_succeeded() => RunState { run: Run::Succeeded, ..present },
            // A run that dies reports no end.
            None if self.register.ended_run() < ended => {
                RunState { run: Run::Failed, alive_ns: self.alive_ns, ..present }
            }
            None => present,
        };
        if is_under_way {
            self.alive_ns = now().0;
        }
        let state = (self.runs, is_under_way);
        let standing = self.standing.take();
        let standing = standing.filter(|look| look.run == state && look.until > Instant::now());
        if let Some(look) = standing.filter(|_| self.only_orders().unwrap_or(false)) {
            let Standing { until, ref order, ref unfinished, .. } = *self.standing.insert(look);
            let (order, unfinished) = (Arc::clone(order), unfinished.clone());
            return Ok(View { order, unfinished, look_again: Some(until), ..View::default() });
        }
        self.note_end(told)?;
        let worked = processor_time();
        let view = self.look_at(groves, course, told)?;
        let took = processor_time().saturating_sub(worked);
        if took >= LONG_LOOK && !view.is_of_all && self.only_orders()? {
            let (order, unfinished) = (Arc::clone(&view.order), view.unfinished.clone());
            let until = Instant::now() + took * STANDS_FACTOR;
            self.standing = Some(Standing { until, run: state, order, unfinished });
        }
        let ended = if told.succeeded.is_some() { self.runs } else { ended };
        self.register.end_run(ended, now().0);
        Ok(view)
    }

    /// Whether labels only order copies: nothing is withheld, and no repair is under way. Errors:
    /// the notes of programs, or of a repair, cannot be read.
    fn only_orders(&self) -> Result<bool> {
        let withholds = !self.rules.wants_all() || self.has_purposes()?;
        Ok(!withholds && Repair::load(&self.store)?.is_none())
    }

    /// Records that the run succeeded, if `told` says so. It is saved first: if a later step fails,
    /// nobody repeats the message.
    pub fn note_end(&mut self, told: DrainTask) -> Result<()> {
        if told.succeeded == Some(true) {
            self.register.note_success(self.runs);
            self.save()?;
        }
        Ok(())
    }

    fn look_at(
        &mut self,
        groves: &[NamespaceTree<'_>],
        course: RunState,
        told: DrainTask,
    ) -> Result<View> {
        let notes = notes::read(&self.store)?;
        let marks = marks::marks(&notes);
        let repair = Repair::load(&self.store)?.map(|repair| repair.places());
        let run = course.run;
        let mut sets = self.sets(groves, &marks, course, repair.as_ref())?;
        let known = self.register.next_id();
        self.take(&sets, &notes);
        if run == Run::Failed || self.register.next_id() > known {
            // What is complete tells what the others lack.
            sets = self.sets(groves, &marks, course, repair.as_ref())?;
        }
        if run == Run::Failed {
            self.register.abandon(&sets);
            for set in &mut sets {
                match set.standing {
                    DrainProgress::Waiting(Reason::Open(_)) => {}
                    DrainProgress::Waiting(_) => {
                        set.standing = DrainProgress::Broken(Reason::Abandoned)
                    }
                    DrainProgress::Complete | DrainProgress::Broken(_) => {}
                }
            }
        }
        self.take(&sets, &notes);
        if run == Run::Succeeded {
            self.register.forgive_cleared();
        }
        match told.wanted {
            Wanted::Policy => {}
            Wanted::Newest => self.register.want_newest(),
            Wanted::All => self.register.want_all(),
        }
        // This holds for any number of passes after the run, and for any agent that makes them.
        let is_of_all = self.has_succeeded() || told.wanted == Wanted::All;
        self.view(groves, sets, &notes, (run, is_of_all), repair)
    }

    /// Enters complete sets in the register, and notes checkpoints that went before they were
    /// drained.
    fn take(&mut self, sets: &[Set], notes: &[Note]) {
        let mut gone = self.register.take(sets, &self.rules, now().0);
        let purpose = purposes(&self.rules, &self.mount, notes);
        gone.retain(|known| !known.files.iter().any(|file| is_unwanted(purpose(&file.path))));
        gone.iter().filter(|_| self.drains).for_each(|known| self.register.note_gone(known));
    }

    /// Whether the last run is known to have succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.runs > 0 && self.register.succeeded_run() == self.runs
    }

    /// Whether a run has the store locked. A run that [`Job::runs`] counts had the lock when it
    /// began.
    pub fn is_run_under_way(&self) -> bool {
        lock::is_locked(&self.store, RUN_LOCK).unwrap_or(true)
    }

    fn sets(
        &self,
        groves: &[NamespaceTree<'_>],
        marks: &[Mark],
        RunState { run, alive_ns, is_idle }: RunState,
        repair: Option<&Places>,
    ) -> Result<Vec<Set>> {
        let launches = ranks::launches(&self.store)?;
        let ranks = launches.last().map(|launch| Ranks {
            count: launch.known,
            numbers: launch.ranks.iter().map(|rank| u64::from(rank.rank)).collect(),
        });
        let moment = Moment {
            now_ns: now().0,
            ranks: ranks.as_ref(),
            run,
            alive_ns,
            settle: self.settle,
            marks,
            is_idle: run == Run::Running && is_idle,
        };
        let inputs = self.inputs();
        // Inputs are as old as they were where they came from.
        let mut trees: Vec<Tree> = Vec::new();
        if !inputs.is_empty() {
            trees.extend(groves.iter().map(|(_, tree)| (*tree).clone()));
            for (path, node) in trees.iter_mut().flatten() {
                if inputs.is_unchanged(path, node) {
                    node.written_ns = node.mtime_ns;
                }
            }
        }
        let aged: Vec<NamespaceTree<'_>> =
            groves.iter().zip(&trees).map(|((prefix, _), tree)| (*prefix, tree)).collect();
        let groves = if trees.is_empty() { groves } else { &aged[..] };
        let mut sets = self.register.survey(groves, &self.rules, moment);
        if !inputs.is_empty() {
            // The job has not written them, whatever they are called.
            let node = |path: &FilePath| groves.iter().find_map(|(_, tree)| tree.get(path));
            let is_input = |member: &Member| {
                node(&member.path).is_some_and(|node| inputs.is_unchanged(&member.path, node))
            };
            sets.retain(|set| !set.members.iter().all(is_input));
        }
        let is_repaired = |set: &Set| {
            let mut paths = set.members.iter().map(|member| &member.path);
            repair.is_some_and(|repair| paths.any(|path| repair.have(path)))
        };
        for set in sets.iter_mut().filter(|set| is_repaired(set)) {
            set.standing = DrainProgress::Broken(Reason::Repair);
        }
        Ok(sets)
    }

    fn view(
        &mut self,
        groves: &[NamespaceTree<'_>],
        sets: Vec<Set>,
        notes: &[Note],
        (run, is_of_all): (Run, bool),
        repair: Option<Places>,
    ) -> Result<View> {
        let unwanted = self.unwanted_among(groves, notes)?;
        let purpose = purposes(&self.rules, &self.mount, notes);
        let mut held = unwanted.clone();
        let mut wanted: Vec<&Checkpoint> = Vec::new();
        for checkpoint in self.register.checkpoints() {
            match checkpoint.wanted {
                Level::Pfs => wanted.push(checkpoint),
                Level::Node if is_of_all => {}
                Level::Node => held.extend(persistent_aside(&checkpoint.files, &purpose)),
            }
        }
        // If the policy wants only some checkpoints, nobody knows yet whether it will want this
        // one.
        let is_undecided = |set: &Set| {
            let is_running = run == Run::Running && !is_of_all && !self.rules.wants_all();
            is_running && matches!(set.standing, DrainProgress::Waiting(_))
        };
        for set in sets.iter().filter(|set| is_undecided(set)) {
            held.extend(persistent_aside(&set.members, &purpose));
        }
        let newest: HashMap<&Family, &[Member]> = self
            .register
            .checkpoints()
            .iter()
            .map(|known| (&known.name.family, &known.files[..]))
            .collect();
        let waiting = sets.iter().filter(|set| matches!(set.standing, DrainProgress::Waiting(_)));
        let awaited = waiting.map(|set| &set.members[..]).chain(newest.into_values()).flatten();
        let awaited: HashSet<&FilePath> = awaited.map(|member| &member.path).collect();
        let is_unneeded = |path: &&FilePath| unwanted.contains(*path) || !awaited.contains(*path);
        let unneeded = held.iter().filter(is_unneeded).cloned().collect();
        wanted.sort_by_key(|checkpoint| Reverse(checkpoint.id));
        let files = wanted.iter().flat_map(|checkpoint| &checkpoint.files);
        let order = files.enumerate().map(|(place, file)| (file.path.clone(), place)).collect();
        let order = Arc::new(order);
        let waits = sets.iter().filter_map(|set| match &set.standing {
            DrainProgress::Waiting(Reason::Unsettled(left) | Reason::Leaving(left)) => Some(*left),
            DrainProgress::Waiting(Reason::Ranks(..)) => Some(self.settle),
            _ => None,
        });
        let look_again = waits.min().map(|left| Instant::now() + left);
        self.unwanted = unwanted;
        let staged = self.inputs();
        Ok(View {
            held,
            inputs: self
                .unwanted
                .iter()
                .filter(|path| staged.staged.contains_key(*path))
                .cloned()
                .collect(),
            unwanted: self.unwanted.clone(),
            is_of_all,
            unneeded,
            order,
            unfinished: unfinished(&sets, run),
            incomplete: sets.into_iter().filter(|set| !set.is_complete()).collect(),
            look_again,
            repair,
        })
    }

    /// Updates the levels in the register, and names the checkpoints that `ledger` holds whole in
    /// its manifest.
    pub fn note_levels(&mut self, ledger: &mut Ledger) {
        let manifest = ledger.manifest();
        self.register.note_levels(|file| manifest.has(file) && !manifest.is_damaged(&file.path));
        ledger.name_drained(&self.drainable());
        let manifest = ledger.manifest();
        // The last checkpoint of a family in the manifest is the newest.
        for known in &manifest.checkpoints {
            let id = (known.store == manifest.store).then_some(known.id);
            self.register.note_outside(&known.name, known.modified_ns, id);
        }
    }

    /// Writes the register if it has changed.
    pub fn save(&mut self) -> Result<()> {
        if self.register != self.saved {
            register_file::save(&self.register, &self.store)?;
            tell(&self.saved, &self.register);
            self.tell_behind();
            self.saved = self.register.clone();
        }
        Ok(())
    }

    /// Logs a warning each time the number of missed checkpoints has doubled.
    fn tell_behind(&mut self) {
        for behind in self.register.lags().behind() {
            let told = self.told.entry(behind.family.clone()).or_default();
            if behind.missed >= *told * 2 {
                log::say(log::Level::Warn, &behind);
                *told = behind.missed;
            }
        }
    }
}

/// Returns the state of a run that goes on, or of none that matters.
fn running(is_idle: bool) -> RunState {
    RunState { run: Run::Running, alive_ns: now().0, is_idle }
}

/// Logs the checkpoints that became complete, and those that became safe.
fn tell(before: &Register, now: &Register) {
    let levels: HashMap<u64, Level> =
        before.checkpoints().iter().map(|known| (known.id, known.level)).collect();
    for known in now.checkpoints() {
        let (name, files, bytes) = (known.shown(), known.files.len(), known.bytes());
        let level = levels.get(&known.id);
        if level.is_none() {
            let text = format!("checkpoint {name} is complete: {bytes} bytes, files: {files}");
            log::say(log::Level::Info, text);
        }
        if known.level == Level::Pfs && level != Some(&Level::Pfs) {
            let text = format!("checkpoint {name} is in the persist directory, verified");
            log::say(log::Level::Info, text);
        }
    }
}

/// Returns the purpose of each file; programs see the files below `mount`.
fn purposes<'a>(
    rules: &'a Rules,
    mount: &'a str,
    notes: &'a [Note],
) -> impl Fn(&FilePath) -> Option<Purpose> + 'a {
    move |path| {
        let seen = format!("{mount}/").into_bytes();
        rules.purpose(path.as_bytes(), &[&seen, path.as_bytes()].concat(), notes)
    }
}

/// Whether files with this purpose are never drained.
fn is_unwanted(purpose: Option<Purpose>) -> bool {
    matches!(purpose, Some(Purpose::Reusable | Purpose::Temporary))
}

/// Returns the paths of `files` except those that are always drained.
fn persistent_aside<'a>(
    files: &'a [Member],
    purpose: &'a dyn Fn(&FilePath) -> Option<Purpose>,
) -> impl Iterator<Item = FilePath> + 'a {
    let paths = files.iter().map(|file| &file.path);
    paths.filter(|path| purpose(path) != Some(Purpose::Persistent)).cloned()
}

/// Returns the incomplete sets for reports. A set with an open file is left out while the run goes
/// on: that is normal.
fn unfinished(sets: &[Set], run: Run) -> Vec<Unfinished> {
    let told = sets.iter().filter_map(|set| match &set.standing {
        DrainProgress::Complete => None,
        DrainProgress::Waiting(Reason::Open(_)) if run == Run::Running => None,
        // Nothing more comes, and nothing is missing that anybody knows of.
        _ if run == Run::Succeeded => None,
        DrainProgress::Waiting(reason) | DrainProgress::Broken(reason) => Some((set, reason)),
    });
    let plain = |(set, reason): (&Set, &Reason)| Unfinished {
        name: set.name.clone(),
        files: set.members.len() as u64,
        bytes: set.bytes(),
        place: set.place(),
        reason: reason.to_string(),
        is_unknown: reason.leaves_open(),
    };
    told.map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_store::{TestStore, path};
    use cairn_device::Store;
    use cairn_device::store::notes::Kind as NoteKind;
    use cairn_device::store::notes::append;

    /// A look that stands for others must not stand for what a program says after it: a file that
    /// was declared temporary would be drained.
    #[test]
    fn look_stands_for_others_until_labels_may_withhold_something() {
        let store = TestStore::new();
        store.write("f.1", b"state", 0o644, 1);
        let root = FilePath::root();
        let mut checkpoints = Checkpoints::open(&store.path, &store.job).expect("opens");
        let stands = |checkpoints: &mut Checkpoints| {
            checkpoints.standing = Some(Standing {
                until: Instant::now() + Duration::from_secs(3600),
                run: (store.job.runs, false),
                order: Arc::new(HashMap::from([(path("stands"), 0)])),
                unfinished: Vec::new(),
            });
            let tree = store.volume.tree().expect("reads");
            let view = checkpoints.look(&[(&root, &tree)], DrainTask::default()).expect("looks");
            (view.order.contains_key(&path("stands")), view.unwanted.contains(&path("f.1")))
        };
        assert_eq!(stands(&mut checkpoints), (true, false));
        checkpoints.runs += 1;
        assert_eq!(stands(&mut checkpoints), (false, false), "another run");
        checkpoints.runs -= 1;
        // The third hint is that a file is temporary.
        let note = Note {
            time_ns: 1,
            pid: 1,
            rank: None,
            kind: NoteKind::Hint,
            number: 3,
            text: b"/cairn/f.1".to_vec(),
        };
        let directory = Store::open(&store.path).expect("opens");
        append(directory.directory().raw(), &note).expect("there is room");
        assert_eq!(stands(&mut checkpoints), (false, true));
    }
}
