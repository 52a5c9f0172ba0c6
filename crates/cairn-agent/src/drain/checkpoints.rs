//! The checkpoints of a store as the drain sees them: which files it may copy now, in which order,
//! and which checkpoints are in the persist directory afterwards.
//!
//! Must stay true: what is a checkpoint, and whether all of it is there, decides only when its
//! files are copied: when a run has succeeded, or somebody asks, all files are but those that the
//! user declared temporary or reusable. The register on disk says what the last look found.

use crate::checkpoint::quarantine::{Places, Repair};
use crate::checkpoint::sets::marks::{self, Mark};
use crate::checkpoint::sets::policy::{Purpose, Rules};
use crate::checkpoint::sets::register::{Checkpoint, Level, Moment, Register};
use crate::checkpoint::sets::{Family, Grove, Member, Name, Ranks, Reason, Run, Set, Standing};
use crate::model::error::Result;
use crate::model::job::{Job, RUN_LOCK};
use crate::model::lock;
use crate::model::log;
use crate::model::path::FilePath;
use crate::model::protocol::Unfinished;
use crate::model::ranks;
use crate::persist::destination::Destination;
use crate::persist::ledger::Ledger;
use crate::persist::manifest::{Manifest, Partial};
use crate::store::volume::now;
use cairn_device::notes::Note;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// When it is looked again at what has become complete while it was looked at.
const RIPE_AFTER: Duration = Duration::from_millis(20);

/// Which checkpoints somebody wants in the persist directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// Those that the policy says.
    #[default]
    Policy,
    /// The newest of each family, too.
    Newest,
    /// All.
    All,
}

/// Which files go outside, and under which names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// Those that were closed in order and belong to no unfinished checkpoint, under their own
    /// names.
    #[default]
    Sound,
    /// All that nobody has open, as they are, under their own names.
    AsIs,
    /// All as it is at one moment, below a directory of their own, see [`crate::image`].
    Image,
    /// The same of a job that no run has, see [`crate::model::job::left_name`].
    Left,
    /// The same of a job that goes on from its last image, which stays.
    LeftForImage,
}

impl Delivery {
    /// Whether files go to a directory of their own rather than to their places.
    pub fn is_aside(self) -> bool {
        matches!(self, Delivery::Image | Delivery::Left | Delivery::LeftForImage)
    }
}

/// What the drain is told about the run and about wishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The run ended, and whether well.
    pub succeeded: Option<bool>,
    /// Which checkpoints are to be drained.
    pub wanted: Wanted,
    /// Copies are to be read, and compared with what was drained.
    #[serde(default)]
    pub verify: bool,
    /// Which files are meant. A run that succeeded leaves all of them as they are to be.
    #[serde(default)]
    pub delivery: Delivery,
}

impl Told {
    /// Adds what somebody else says.
    pub fn add(&mut self, other: Told) {
        self.succeeded = other.succeeded.or(self.succeeded);
        self.wanted = self.wanted.max(other.wanted);
        self.verify |= other.verify;
        self.delivery = self.delivery.max(other.delivery);
    }
}

/// The checkpoints of one store.
pub struct Checkpoints {
    store: PathBuf,
    rules: Rules,
    settle: Duration,
    mount: String,
    /// The last run that has begun, see [`Job::runs`].
    runs: u64,
    /// There is an outside.
    drains: bool,
    register: Register,
    saved: Register,
    /// Files that are not to be drained, whatever they belong to, as of the last look.
    unwanted: HashSet<FilePath>,
    /// How many that went were said to be missed, of each family.
    told: HashMap<Family, u64>,
    /// When the run that is under way was seen to go on last, nanoseconds since the epoch; long ago
    /// if nobody has looked.
    alive_ns: i64,
    /// A run was under way before it was looked whether one has said how it ended: it may have said
    /// so since, and gone.
    pub run_was_seen: bool,
}

/// What a run is to those who look at its files.
#[derive(Clone, Copy)]
struct Course {
    run: Run,
    /// See [`Moment::alive_ns`].
    alive_ns: i64,
    /// No run is under way: then it is no program that removes files, one after another.
    is_idle: bool,
}

/// What a look found.
#[derive(Clone)]
pub struct View {
    /// Files that are not to be copied now.
    pub held: HashSet<FilePath>,
    /// Files whose checkpoint is not complete.
    pub incomplete: HashSet<FilePath>,
    /// Unclean files that are copied as they are.
    pub taken: HashSet<FilePath>,
    /// All files are to go outside but those that the user declared temporary or reusable.
    pub is_of_all: bool,
    /// Those that nobody will want outside, as things stand: not even when the run ends.
    pub unneeded: HashSet<FilePath>,
    /// Every checkpoint, complete or not, without files that are drained in any case or in none.
    pub sets: Vec<Partial>,
    /// The files of those that are to be outside; none as long as the run may go on, or has failed.
    wanted: Vec<(Family, Member)>,
    /// Place of each file of a checkpoint in the order of copying; the others come after them.
    order: HashMap<FilePath, usize>,
    /// Checkpoints that are not complete.
    pub unfinished: Vec<Unfinished>,
    /// The files of each of these.
    pub unfinished_files: HashMap<Name, Vec<Member>>,
    /// When it should be looked again, although nothing may have changed.
    pub look_again: Option<Instant>,
    /// What is being moved, which nobody else is to touch.
    pub repair: Option<Places>,
}

impl View {
    /// Puts `paths` in the order of copying: newest checkpoint first; what belongs to none stays in
    /// its order, behind them.
    pub fn sort(&self, paths: &mut [FilePath]) {
        paths.sort_by_key(|path| self.order.get(path).copied().unwrap_or(usize::MAX));
    }

    /// Families with a checkpoint that is to be outside, complete or not, and is not in `manifest`
    /// as it is in the store. For a run that has succeeded.
    pub fn lacking(&self, manifest: &Manifest) -> HashSet<&Family> {
        let wanted = self.wanted.iter();
        wanted.filter(|(_, file)| !manifest.has(file)).map(|(family, _)| family).collect()
    }
}

impl Checkpoints {
    /// Those of the store in `store`, for whoever finds new ones: the numbers of these are none
    /// that any has in the persist directory, as far as that can be read. Errors: the register
    /// cannot be read.
    pub fn open(store: &Path, job: &Job) -> Result<Checkpoints> {
        let mut checkpoints = Checkpoints::load(store, job)?;
        let found = job.persist.as_ref().and_then(|persist| {
            let mut destination = Destination::open(persist, &job.store).ok()?;
            Manifest::load(&mut destination, &job.job).ok().flatten()
        });
        if let Some(manifest) = found {
            checkpoints.register.skip(manifest.highest_id(&job.store));
        }
        Ok(checkpoints)
    }

    /// Those of the store in `store`, as `job` describes it now, for whoever only looks. Errors:
    /// its register cannot be read.
    pub fn load(store: &Path, job: &Job) -> Result<Checkpoints> {
        let register = Register::load(store)?;
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
            told: HashMap::new(),
            alive_ns: i64::MIN,
            run_was_seen: false,
        })
    }

    /// To be called when another run begins, before it changes anything, while there is no agent:
    /// what the one before it left unfinished, if nobody said how that ended, stays so. An agent
    /// that comes later could take the new run's files for the other's.
    pub fn begin_run(&mut self, groves: &[Grove<'_>]) -> Result<()> {
        if self.register.ended_run() < self.runs {
            let course = Course { run: Run::Failed, alive_ns: self.alive_ns, is_idle: true };
            self.look_at(groves, course, Told::default(), &[])?;
            self.register.end_run(self.runs, now().0);
            self.save()?;
        }
        Ok(())
    }

    /// To be called when a run has ended, and no agent is there to be told how.
    pub fn end_run(&mut self, groves: &[Grove<'_>], told: Told) -> Result<()> {
        self.look(groves, told, &[])?;
        self.save()
    }

    /// To be called in a new store that was filled with checkpoints which consist of these files
    /// each, oldest first: they are complete, and stay in this order.
    pub fn adopt(&mut self, groves: &[Grove<'_>], filled: &[Vec<&FilePath>]) -> Result<()> {
        let places = filled.iter().enumerate().map(|(place, files)| (&files[..], place));
        let places: HashMap<&[&FilePath], usize> = places.collect();
        let marks = marks::marks(&marks::read(&self.store)?);
        // Also while that is what a repair is about.
        let sets = self.sets(groves, &marks, running(!self.is_run_under_way()), None)?;
        let place = |set: &&Set| {
            let paths: Vec<&FilePath> = set.members.iter().map(|member| &member.path).collect();
            places.get(&paths[..]).copied()
        };
        let mut whole: Vec<&Set> = sets.iter().filter(|set| place(set).is_some()).collect();
        whole.sort_by_cached_key(place);
        self.register.adopt(&whole, &self.rules, now().0);
        self.save()
    }

    /// To be called when a file was replaced by a copy of itself, while there is no agent; whether
    /// it is one of a checkpoint.
    pub fn note_replaced(&mut self, path: &FilePath, inode: u32, version: u64) -> bool {
        self.register.note_replaced(path, inode, version)
    }

    /// Takes note of what `manifest` has of this store.
    pub fn compare(&mut self, manifest: &Manifest) {
        self.register.move_beyond(manifest.highest_id(&manifest.store));
    }

    /// Those that are complete, as of the last look.
    pub fn complete(&self) -> &[Checkpoint] {
        self.register.checkpoints()
    }

    /// Whether files are there for something, so that what becomes of them is not what becomes of
    /// their checkpoint. Errors: the notes of programs cannot be read.
    pub fn has_purposes(&self) -> Result<bool> {
        Ok(self.rules.has_purposes(&marks::read(&self.store)?))
    }

    /// Files that the user wants outside in no case. Errors: the notes of programs cannot be read.
    pub fn unwanted_in(&self, groves: &[Grove<'_>]) -> Result<HashSet<FilePath>> {
        let notes = marks::read(&self.store)?;
        let purpose = purposes(&self.rules, &self.mount, &notes);
        let paths = groves.iter().flat_map(|(_, tree)| tree.keys());
        Ok(paths.filter(|path| is_unwanted(purpose(path))).cloned().collect())
    }

    /// The same, of each what is to be drained.
    pub fn drainable(&self) -> Vec<Checkpoint> {
        let mut complete = self.complete().to_vec();
        for known in &mut complete {
            known.files.retain(|file| !self.unwanted.contains(&file.path));
        }
        complete.retain(|known| !known.files.is_empty());
        complete
    }

    /// Sets that are complete there and not known to be, while no run has ended. Errors: the
    /// register or the notes of programs cannot be read.
    pub fn fresh(&self, groves: &[Grove<'_>]) -> Result<Vec<Set>> {
        let marks = marks::marks(&marks::read(&self.store)?);
        let repair = Repair::load(&self.store)?.map(|repair| repair.places());
        let mut sets =
            self.sets(groves, &marks, running(!self.is_run_under_way()), repair.as_ref())?;
        let is_known = self.register.knows();
        sets.retain(|set| set.is_complete() && !is_known(set));
        Ok(sets)
    }

    /// Looks at the files: what may be copied, and in which order. Where sets are `ripe`, what has
    /// become complete since, and is no older than all of them, waits for the next look: a file
    /// that was closed before may have been open still when it was read.
    pub fn look(&mut self, groves: &[Grove<'_>], told: Told, ripe: &[Set]) -> Result<View> {
        let is_under_way = std::mem::take(&mut self.run_was_seen) || self.is_run_under_way();
        let ended = if is_under_way { self.runs.saturating_sub(1) } else { self.runs };
        let present = running(!is_under_way);
        let course = match told.succeeded {
            Some(true) => Course { run: Run::Succeeded, ..present },
            Some(false) => Course { run: Run::Failed, ..present },
            // Whoever was told may have got no further.
            None if self.has_succeeded() => Course { run: Run::Succeeded, ..present },
            // Nobody who dies says so.
            None if self.register.ended_run() < ended => {
                Course { run: Run::Failed, alive_ns: self.alive_ns, ..present }
            }
            None => present,
        };
        if is_under_way {
            self.alive_ns = now().0;
        }
        self.note_end(told)?;
        let view = self.look_at(groves, course, told, ripe)?;
        let ended = if told.succeeded.is_some() { self.runs } else { ended };
        self.register.end_run(ended, now().0);
        Ok(view)
    }

    /// Notes that the run went well, if that is said: whatever fails in what follows, nobody says
    /// it again.
    pub fn note_end(&mut self, told: Told) -> Result<()> {
        if told.succeeded == Some(true) {
            self.register.note_success(self.runs);
            self.save()?;
        }
        Ok(())
    }

    fn look_at(
        &mut self,
        groves: &[Grove<'_>],
        course: Course,
        told: Told,
        ripe: &[Set],
    ) -> Result<View> {
        let notes = marks::read(&self.store)?;
        let marks = marks::marks(&notes);
        let repair = Repair::load(&self.store)?.map(|repair| repair.places());
        let run = course.run;
        let mut sets = self.sets(groves, &marks, course, repair.as_ref())?;
        let newest_ns = ripe.iter().map(|set| set.newest_ns).max();
        if let Some(newest_ns) = newest_ns.filter(|_| run == Run::Running) {
            let is_known = self.register.knows();
            let were_there: HashSet<&Name> = ripe.iter().map(|set| &set.name).collect();
            // One that is written again and again would never be ripe by its time.
            let is_ripe = |set: &Set| {
                set.newest_ns < newest_ns || were_there.contains(&set.name) || is_known(set)
            };
            let unripe = sets.iter_mut().filter(|set| set.is_complete() && !is_ripe(set));
            unripe.for_each(|set| set.standing = Standing::Waiting(Reason::Unsettled(RIPE_AFTER)));
        }
        if run == Run::Failed {
            // Those that are complete tell how large the others should be.
            self.take(&sets, &notes);
            sets = self.sets(groves, &marks, course, repair.as_ref())?;
            self.register.abandon(&sets);
            for set in &mut sets {
                match set.standing {
                    Standing::Waiting(Reason::Open(_)) => {}
                    Standing::Waiting(_) => set.standing = Standing::Broken(Reason::Abandoned),
                    Standing::Complete | Standing::Broken(_) => {}
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
        // However many passes that takes after the run, and whoever makes them.
        let is_of_all = self.has_succeeded() || told.delivery != Delivery::Sound;
        Ok(self.view(groves, &sets, &notes, (run, is_of_all), repair))
    }

    /// Takes note of what is complete, and of what went before it was outside.
    fn take(&mut self, sets: &[Set], notes: &[Note]) {
        let mut gone = self.register.take(sets, &self.rules, now().0);
        let purpose = purposes(&self.rules, &self.mount, notes);
        gone.retain(|known| !known.files.iter().any(|file| is_unwanted(purpose(&file.path))));
        gone.iter().filter(|_| self.drains).for_each(|known| self.register.note_gone(known));
    }

    /// Whether the last run is known to have.
    pub fn has_succeeded(&self) -> bool {
        self.runs > 0 && self.register.succeeded_run() == self.runs
    }

    /// Whether a run has the store. One that is counted in [`Job::runs`] has had it before.
    pub fn is_run_under_way(&self) -> bool {
        lock::is_locked(&self.store, RUN_LOCK).unwrap_or(true)
    }

    fn sets(
        &self,
        groves: &[Grove<'_>],
        marks: &[Mark],
        Course { run, alive_ns, is_idle }: Course,
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
        let mut sets = self.register.survey(groves, &self.rules, moment);
        let is_repaired = |set: &Set| {
            let mut paths = set.members.iter().map(|member| &member.path);
            repair.is_some_and(|repair| paths.any(|path| repair.have(path)))
        };
        for set in sets.iter_mut().filter(|set| is_repaired(set)) {
            set.standing = Standing::Broken(Reason::Repair);
        }
        Ok(sets)
    }

    fn view(
        &mut self,
        groves: &[Grove<'_>],
        sets: &[Set],
        notes: &[Note],
        (run, is_of_all): (Run, bool),
        repair: Option<Places>,
    ) -> View {
        let purpose = purposes(&self.rules, &self.mount, notes);
        let mut held: HashSet<FilePath> = HashSet::new();
        if self.rules.has_purposes(notes) {
            let unwanted = |path: &&FilePath| is_unwanted(purpose(path));
            held.extend(groves.iter().flat_map(|(_, tree)| tree.keys()).filter(unwanted).cloned());
        }
        let unwanted = held.clone();
        let unclean = groves.iter().flat_map(|(_, tree)| tree.iter());
        let unclean = unclean.filter(|(path, node)| node.unclean && !unwanted.contains(*path));
        let taken = unclean
            .map(|(path, _)| path)
            .filter(|path| is_of_all || purpose(path) == Some(Purpose::Persistent))
            .cloned()
            .collect();
        let mut wanted: Vec<&Checkpoint> = Vec::new();
        for checkpoint in self.register.checkpoints() {
            match checkpoint.wanted {
                Level::Pfs => wanted.push(checkpoint),
                Level::Node if is_of_all => {}
                Level::Node => held.extend(persistent_aside(&checkpoint.files, &purpose)),
            }
        }
        let mut incomplete = HashSet::new();
        // Where not all are wanted, nobody knows yet whether this one is; nor does half of one
        // replace a whole one of the same name.
        let whole = self.register.last_complete();
        let goes_out =
            |set: &Set| set.is_quiet() && self.rules.wants_all() && !whole.contains_key(&set.name);
        for set in sets.iter().filter(|set| !set.is_complete()) {
            if !is_of_all && !goes_out(set) {
                held.extend(persistent_aside(&set.members, &purpose));
            }
            incomplete.extend(set.members.iter().map(|member| member.path.clone()));
        }
        let newest: HashMap<&Family, &[Member]> = self
            .register
            .checkpoints()
            .iter()
            .map(|known| (&known.name.family, &known.files[..]))
            .collect();
        let waiting = sets.iter().filter(|set| matches!(set.standing, Standing::Waiting(_)));
        let awaited = waiting.map(|set| &set.members[..]).chain(newest.into_values()).flatten();
        let awaited: HashSet<&FilePath> = awaited.map(|member| &member.path).collect();
        let is_unneeded = |path: &&FilePath| unwanted.contains(*path) || !awaited.contains(*path);
        let unneeded = held.iter().filter(is_unneeded).cloned().collect();
        let complete = self.register.checkpoints().iter().map(|known| (&known.name, &known.files));
        let others = sets.iter().filter(|set| !set.is_complete());
        let all = complete.chain(others.map(|set| (&set.name, &set.members)));
        let all = all.map(|(name, files)| Partial {
            name: name.clone(),
            files: persistent_aside(files, &purpose)
                .filter(|path| !unwanted.contains(path))
                .collect(),
            earlier: None,
        });
        let all = all.collect();
        wanted.sort_by_key(|checkpoint| Reverse(checkpoint.id));
        let files = wanted.iter().flat_map(|checkpoint| &checkpoint.files);
        let order = files.enumerate().map(|(place, file)| (file.path.clone(), place)).collect();
        let drained = wanted.iter().map(|known| (&known.name.family, &known.files));
        let incomplete_ones = sets.iter().filter(|set| !set.is_complete());
        let of_all = drained.chain(incomplete_ones.map(|set| (&set.name.family, &set.members)));
        let files = of_all.flat_map(|(family, files)| files.iter().map(move |file| (family, file)));
        let of_wanted = files
            .filter(|(_, file)| run == Run::Succeeded && !unwanted.contains(&file.path))
            .map(|(family, file)| (family.clone(), file.clone()))
            .collect();
        let waits = sets.iter().filter_map(|set| match &set.standing {
            Standing::Waiting(Reason::Unsettled(left) | Reason::Leaving(left)) => Some(*left),
            Standing::Waiting(Reason::Ranks(..)) => Some(self.settle),
            _ => None,
        });
        let unfinished_files = sets.iter().filter(|set| !set.is_complete());
        let unfinished_files =
            unfinished_files.map(|set| (set.name.clone(), set.members.clone())).collect();
        let look_again = waits.min().map(|left| Instant::now() + left);
        self.unwanted = unwanted;
        View {
            held,
            incomplete,
            taken,
            is_of_all,
            unneeded,
            sets: all,
            wanted: of_wanted,
            order,
            unfinished: unfinished(sets, run, &goes_out),
            unfinished_files,
            look_again,
            repair,
        }
    }

    /// Notes which checkpoints `ledger` has whole, in its manifest, too.
    pub fn note_levels(&mut self, ledger: &mut Ledger) {
        let manifest = ledger.manifest();
        self.register.note_levels(|file| manifest.has(file) && !manifest.is_damaged(&file.path));
        ledger.name_drained();
        self.register.note_outside(ledger.manifest());
    }

    /// Writes the register if it says something else than before.
    pub fn save(&mut self) -> Result<()> {
        if self.register != self.saved {
            self.register.save(&self.store)?;
            tell(&self.saved, &self.register);
            self.tell_behind();
            self.saved = self.register.clone();
        }
        Ok(())
    }

    /// Says in the log how far the drain is behind, whenever that is twice as far as was said
    /// before.
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

/// One that goes on, or none that anybody has to think of.
fn running(is_idle: bool) -> Course {
    Course { run: Run::Running, alive_ns: now().0, is_idle }
}

/// Says in the log which checkpoints became complete, and which safe.
fn tell(before: &Register, now: &Register) {
    let levels: HashMap<u64, Level> =
        before.checkpoints().iter().map(|known| (known.id, known.level)).collect();
    for known in now.checkpoints() {
        let (name, files, bytes) = (&known.name, known.files.len(), known.bytes());
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

/// What files are for that programs find below `mount`.
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

/// Whether files with this purpose are drained in no case.
fn is_unwanted(purpose: Option<Purpose>) -> bool {
    matches!(purpose, Some(Purpose::Reusable | Purpose::Temporary))
}

/// The paths of `files`, without those that are drained in any case.
fn persistent_aside<'a>(
    files: &'a [Member],
    purpose: &'a dyn Fn(&FilePath) -> Option<Purpose>,
) -> impl Iterator<Item = FilePath> + 'a {
    let paths = files.iter().map(|file| &file.path);
    paths.filter(|path| purpose(path) != Some(Purpose::Persistent)).cloned()
}

/// What is not complete, for whoever asks. An open file of a run that goes on is nothing to be
/// told.
fn unfinished(sets: &[Set], run: Run, goes_out: &dyn Fn(&Set) -> bool) -> Vec<Unfinished> {
    let told = sets.iter().filter_map(|set| match &set.standing {
        Standing::Complete => None,
        Standing::Waiting(Reason::Open(_)) if run == Run::Running => None,
        Standing::Waiting(reason) | Standing::Broken(reason) => Some((set, reason)),
    });
    let plain = |(set, reason): (&Set, &Reason)| Unfinished {
        name: set.name.clone(),
        files: set.members.len() as u64,
        bytes: set.bytes(),
        place: set.place(),
        reason: reason.to_string(),
        is_unknown: reason.leaves_open(),
        // Where nothing says that more will come, nobody waits for it.
        waits: match &set.standing {
            Standing::Waiting(Reason::Unproven(None) | Reason::Uncertain) => !goes_out(set),
            standing => matches!(standing, Standing::Waiting(_)),
        },
        // That is for whoever copies them to say.
        is_outside: false,
    };
    told.map(plain).collect()
}
