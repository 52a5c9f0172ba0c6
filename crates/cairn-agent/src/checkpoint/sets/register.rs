//! The complete checkpoints of a store, with their numbers and levels: `checkpoints.json` in the
//! store's directory.
//!
//! Must stay true: the file is replaced whole; a checkpoint keeps its number as long as its files
//! stay what they were; what was unfinished when a run failed stays so until its files change. An
//! agent that lost the file finds the checkpoints again and gives them new numbers, higher than
//! those that are known outside.

use super::lag::Lags;
use super::marks::Mark;
use super::policy::Rules;
use super::usual::Usual;
use super::{
    Family, Grove, Member, Name, Ranks, Reason, Run, Set, Situation, Standing, is_part, survey,
};
use crate::model::error::{Error, Result};
use crate::model::format;
use crate::model::store_file::{self, Outlives};
use crate::persist::manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Name of the file in the store's directory.
pub const REGISTER_FILE: &str = "checkpoints.json";
/// Format that this version writes, and the newest it reads.
const REGISTER_FORMAT: u32 = 1;
/// Longest file that is read.
const BYTES_MAX: usize = 1 << 30;

/// Where a checkpoint is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// In the store.
    Node,
    /// In the persist directory, verified.
    Pfs,
}

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its number, which no other of the store has or had, but this one before its files changed.
    pub id: u64,
    /// What it is called.
    #[serde(flatten)]
    pub name: Name,
    /// Its number in its family, from 1.
    pub ordinal: u64,
    /// When it was found complete, nanoseconds since the epoch.
    pub completed_ns: i64,
    /// The last change of its files.
    pub modified_ns: i64,
    /// Where it is to be.
    pub wanted: Level,
    /// Where it is.
    pub level: Level,
    /// Its files, in the order of their paths.
    pub files: Vec<Member>,
}

impl Checkpoint {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// How the job stands when its files are looked at.
#[derive(Clone, Copy)]
pub struct Moment<'a> {
    /// See [`Situation::now_ns`].
    pub now_ns: i64,
    /// See [`Situation::ranks`].
    pub ranks: Option<&'a Ranks>,
    /// How the run stands.
    pub run: Run,
    /// See [`Situation::alive_ns`].
    pub alive_ns: i64,
    /// See [`Situation::settle`].
    pub settle: Duration,
    /// What programs said of their checkpoints.
    pub marks: &'a [Mark],
    /// No program runs that could be removing files, one after another.
    pub is_idle: bool,
}

/// A set that was unfinished when a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Abandoned {
    #[serde(flatten)]
    name: Name,
    files: Vec<Member>,
}

/// What is left of a checkpoint some of whose files are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rest {
    #[serde(flatten)]
    name: Name,
    files: Vec<Member>,
    /// Since when it is that, nanoseconds since the epoch.
    since_ns: i64,
}

/// The checkpoints of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    format: u32,
    next_id: u64,
    /// How many there have been, by family.
    counts: Vec<(Family, u64)>,
    /// Oldest first.
    checkpoints: Vec<Checkpoint>,
    abandoned: Vec<Abandoned>,
    /// Complete ones whose files were written again or removed since, and are not all of one
    /// checkpoint again.
    #[serde(default)]
    rewritten: Vec<Checkpoint>,
    #[serde(default)]
    rests: Vec<Rest>,
    /// When the last one of a family that is to be in the persist directory was found complete,
    /// nanoseconds since the epoch.
    #[serde(default)]
    wanted_ns: Vec<(Family, i64)>,
    /// What is outside, and what went before it was.
    #[serde(default)]
    lags: Lags,
    /// The last run, of all in the store, of which it is known that it has ended.
    #[serde(default)]
    ended_run: u64,
    /// When that became known, nanoseconds since the epoch.
    #[serde(default)]
    ended_ns: i64,
    /// The last run that is known to have succeeded; 0 if none is.
    #[serde(default)]
    succeeded_run: u64,
    /// Families that are parts of others, see [`super::companions`].
    #[serde(default)]
    joined: BTreeSet<Family>,
}

impl Default for Register {
    fn default() -> Register {
        Register {
            format: REGISTER_FORMAT,
            next_id: 1,
            counts: Vec::new(),
            checkpoints: Vec::new(),
            abandoned: Vec::new(),
            rewritten: Vec::new(),
            rests: Vec::new(),
            wanted_ns: Vec::new(),
            lags: Lags::default(),
            ended_run: 0,
            ended_ns: 0,
            succeeded_run: 0,
            joined: BTreeSet::new(),
        }
    }
}

impl Register {
    /// The register of the store in `directory`; an empty one if there is none.
    /// Errors: `File`, `Json`, `Format` (written by a newer version).
    pub fn load(directory: &Path) -> Result<Register> {
        let path = directory.join(REGISTER_FILE);
        let text = match store_file::read(&path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Register::default()),
            read => read.map_err(Error::file("read", &path))?,
        };
        format::parse(&path, &text, REGISTER_FORMAT)
    }

    /// Replaces the register of the store in `directory`. It is as durable as the store's
    /// directory, which lies in memory.
    pub fn save(&self, directory: &Path) -> Result<()> {
        store_file::replace_json(&directory.join(REGISTER_FILE), self, Outlives::Process)
    }

    /// The complete checkpoints, in the order in which they were found so, which is that of their
    /// numbers: the newest is the last, whatever the clock said when it was written.
    pub fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    /// Says of sets whether they are known to be complete with their files, or with more that are
    /// gone.
    pub fn knows(&self) -> impl Fn(&Set) -> bool + '_ {
        let known = self.checkpoints.iter().map(|known| (&known.name, &known.files[..]));
        let known: HashMap<&Name, &[Member]> = known.collect();
        move |set| known.get(&set.name).is_some_and(|files| is_part(&set.members, files))
    }

    /// Whether a set with these files, or with more of which some are gone, was unfinished when a
    /// run failed. It may be called otherwise since more is known of what belongs together.
    pub fn was_abandoned(&self, files: &[Member]) -> bool {
        self.abandoned.iter().any(|left| is_part(files, &left.files))
    }

    /// Whether some of these files are of such a set, and of no checkpoint. They are in the order
    /// of their paths.
    pub fn has_abandoned(&self, files: &[Member]) -> bool {
        let is_known = |file: &Member| {
            let mut known = self.checkpoints.iter().flat_map(|known| &known.files);
            known.any(|other| (other.inode, other.version) == (file.inode, file.version))
        };
        let mut left = self.abandoned.iter().flat_map(|left| shared(files, &left.files));
        left.any(|file| !is_known(file))
    }

    /// Since when these are all that is left of a checkpoint of that name.
    pub fn left_since(&self, name: &Name, files: &[Member]) -> Option<i64> {
        let rest = self.rests.iter().find(|rest| rest.name == *name && rest.files == files)?;
        Some(rest.since_ns)
    }

    /// Whether there have been checkpoints of a family.
    pub fn is_known(&self, family: &Family) -> bool {
        self.counts.iter().any(|(known, _)| known == family) || self.joined.contains(family)
    }

    /// The newest checkpoint of each family, as it is or was before files of it were written again
    /// or removed.
    pub fn usual(&self) -> HashMap<&Family, Usual<'_>> {
        let mut known: Vec<_> = self.checkpoints.iter().chain(&self.rewritten).collect();
        known.sort_by_key(|known| known.id);
        let usual = known.into_iter().map(|known| {
            (&known.name.family, Usual { step: known.name.step, files: &known.files })
        });
        usual.collect()
    }

    /// The files of each checkpoint when all of it was there last.
    pub fn last_complete(&self) -> HashMap<&Name, &[Member]> {
        let known = self.checkpoints.iter().chain(&self.rewritten);
        known.map(|known| (&known.name, &known.files[..])).collect()
    }

    /// The sets that the files of `groves` belong to, as they stand by what is known.
    pub fn survey(&self, groves: &[Grove<'_>], rules: &Rules, moment: Moment<'_>) -> Vec<Set> {
        let usual = self.usual();
        let last_complete = self.last_complete();
        let situation = Situation {
            now_ns: moment.now_ns,
            ranks: moment.ranks,
            run: moment.run,
            ended_ns: self.ended_ns,
            alive_ns: moment.alive_ns,
            settle: moment.settle,
            marks: moment.marks,
            is_known: &|family| self.is_known(family),
            usual: &|family| usual.get(family).copied(),
            last_complete: &|name| last_complete.get(name).copied(),
            left_since: &|name, files| match moment.is_idle {
                true => Some(i64::MIN),
                false => self.left_since(name, files),
            },
            was_abandoned: &|files| self.was_abandoned(files),
            has_abandoned: &|files| self.has_abandoned(files),
        };
        survey(groves, rules.patterns(), &situation)
    }

    /// Takes note of what `sets` are complete at `now_ns`: new ones get a number and the level that
    /// `rules` want, those that changed or went are dropped. One that has lost files, and has no
    /// others, is the same as before, once it counts as complete. Those that are nowhere any more,
    /// of which not all files are in another.
    pub fn take(&mut self, sets: &[Set], rules: &Rules, now_ns: i64) -> Vec<Checkpoint> {
        self.joined.extend(sets.iter().flat_map(|set| set.families.iter().cloned()));
        let complete: BTreeMap<&Name, &Set> =
            sets.iter().filter(|set| set.is_complete()).map(|set| (&set.name, set)).collect();
        let is_same = |known: &Checkpoint| {
            complete.get(&known.name).is_some_and(|set| is_part(&set.members, &known.files))
        };
        // What was taken for removed, or for written again, may have turned out to be what it was.
        let all = self.checkpoints.drain(..).chain(self.rewritten.drain(..));
        let (mut kept, dropped): (Vec<_>, Vec<_>) = all.partition(is_same);
        kept.sort_by_key(|known| known.id);
        for known in &mut kept {
            let now = complete.get(&known.name).filter(|set| set.members.len() < known.files.len());
            if let Some(set) = now {
                known.files.clone_from(&set.members);
            }
        }
        self.checkpoints = kept;
        self.rewritten = dropped;
        let known: BTreeSet<&Name> = self.checkpoints.iter().map(|known| &known.name).collect();
        let mut fresh: Vec<&Set> =
            complete.into_values().filter(|set| !known.contains(&set.name)).collect();
        let before = self.rewritten.iter().flat_map(|it| it.files.iter().map(|file| (file, it.id)));
        let before: BTreeMap<&Member, u64> = before.collect();
        fresh.sort_by_cached_key(|set| {
            // One that only has another name by now has its place in the order already.
            let ids = set.members.iter().map(|member| before.get(member).copied());
            let renamed = ids.collect::<Option<Vec<u64>>>().and_then(|ids| ids.into_iter().max());
            // What is of the future was written before the clock was set back.
            let is_of_now = set.newest_ns <= now_ns;
            (renamed.unwrap_or(u64::MAX), is_of_now, set.newest_ns, set.name.step)
        });
        for set in fresh {
            // One that only has more files by now was counted already.
            let before = self.rewritten.iter().find(|known| known.name == set.name);
            let grown = before.filter(|known| is_part(&known.files, &set.members));
            let ordinal = grown.map(|known| known.ordinal);
            // One that was found complete a little too early stands where it stood, however late
            // that is found out.
            let is_later = |known: &Checkpoint, other: &Checkpoint| {
                other.id > known.id && (set.newest_ns..=now_ns).contains(&other.modified_ns)
            };
            let later = |known: &&Checkpoint| self.checkpoints.iter().any(|it| is_later(known, it));
            let early = before.filter(later).map(|known| (known.id, known.ordinal));
            match early {
                Some((id, ordinal)) => self.add(set, Some(ordinal), Some(id), rules, now_ns),
                None => self.add(set, ordinal, None, rules, now_ns),
            }
        }
        self.checkpoints.sort_by_key(|known| known.id);
        let unfinished = sets.iter().filter(|set| !set.is_complete());
        let unfinished: BTreeSet<&Name> = unfinished.map(|set| &set.name).collect();
        let (rewritten, mut gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.rewritten)
            .into_iter()
            .partition(|known| unfinished.contains(&known.name));
        self.rewritten = rewritten;
        let files = self.checkpoints.iter().flat_map(|known| &known.files);
        let files = files.chain(sets.iter().flat_map(|set| &set.members));
        let files: HashSet<_> = files.map(|file| (file.inode, file.version)).collect();
        let ids: HashSet<u64> = self.checkpoints.iter().map(|known| known.id).collect();
        gone.retain(|known| {
            let is_there = |file: &Member| files.contains(&(file.inode, file.version));
            !ids.contains(&known.id) && !known.files.iter().all(is_there)
        });
        self.abandoned.retain(|left| {
            let mut unfinished = sets.iter().filter(|set| !set.is_complete());
            unfinished.any(|set| shared(&set.members, &left.files).next().is_some())
        });
        let leaves = |set: &&Set| matches!(set.standing, Standing::Waiting(Reason::Leaving(_)));
        let rest = |set: &Set| Rest {
            name: set.name.clone(),
            files: set.members.clone(),
            since_ns: self.left_since(&set.name, &set.members).unwrap_or(now_ns),
        };
        self.rests = sets.iter().filter(leaves).map(rest).collect();
        gone
    }

    /// What is outside, and what went before it was.
    pub fn lags(&self) -> &Lags {
        &self.lags
    }

    /// `gone` is nowhere any more; it was missed if it was wanted outside and is not there.
    pub fn note_gone(&mut self, gone: &Checkpoint) {
        if gone.level < gone.wanted {
            self.lags.miss(&gone.name.family, gone.id);
        }
    }

    /// The program has ended well: of what it has cleared up nothing is missed.
    pub fn forgive_cleared(&mut self) {
        let there: HashSet<&Family> =
            self.checkpoints.iter().map(|known| &known.name.family).collect();
        self.lags.forgive(|family| there.contains(family));
    }

    /// Takes note of `sets` that are whole, oldest first, whatever the times of their files say.
    /// One that is known stays what it is: somebody who was killed took note of it before.
    pub fn adopt(&mut self, sets: &[&Set], rules: &Rules, now_ns: i64) {
        for set in sets {
            let is_it = |known: &Checkpoint| known.name == set.name && known.files == set.members;
            if self.checkpoints.iter().any(is_it) {
                continue;
            }
            match self.rewritten.iter().position(is_it) {
                Some(index) => self.checkpoints.push(self.rewritten.remove(index)),
                None => self.add(set, None, None, rules, now_ns),
            }
        }
        self.checkpoints.sort_by_key(|known| known.id);
    }

    /// The file at `path` is another one with the same data: what consists of it stays what it is.
    /// Whether anything does.
    pub fn note_replaced(&mut self, path: &crate::FilePath, inode: u32, version: u64) -> bool {
        let mut is_part = false;
        let known = self.checkpoints.iter_mut().chain(&mut self.rewritten);
        let files = known.flat_map(|known| &mut known.files);
        for file in files.filter(|file| file.path == *path) {
            (file.inode, file.version) = (inode, version);
            is_part = true;
        }
        is_part
    }

    /// The numbers up to `taken` were given before, by an agent that could not write them down.
    pub fn skip(&mut self, taken: u64) {
        self.next_id = self.next_id.max(taken + 1);
    }

    /// The same, when checkpoints may have got such numbers already: then these are newer.
    pub fn move_beyond(&mut self, taken: u64) {
        if taken >= self.next_id {
            let known = self.checkpoints.iter_mut().chain(&mut self.rewritten);
            known.for_each(|known| known.id += taken);
            self.lags.raise(taken);
            self.next_id += taken;
        }
    }

    /// The number that the next one gets.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    fn add(
        &mut self,
        set: &Set,
        ordinal: Option<u64>,
        id: Option<u64>,
        rules: &Rules,
        now_ns: i64,
    ) {
        let ordinal = ordinal.unwrap_or_else(|| self.count(&set.name.family));
        let mut known = Checkpoint {
            id: id.unwrap_or(self.next_id),
            name: set.name.clone(),
            ordinal,
            completed_ns: now_ns,
            modified_ns: set.newest_ns,
            wanted: Level::Node,
            level: Level::Node,
            files: set.members.clone(),
        };
        self.next_id += u64::from(id.is_none());
        let wanted_ns = self.wanted_ns_of(&set.name.family);
        // None if the clock went back since.
        let age_ns = now_ns.checked_sub(*wanted_ns).and_then(|age_ns| u64::try_from(age_ns).ok());
        if rules.wants_pfs(ordinal, age_ns.map(Duration::from_nanos)) {
            known.wanted = Level::Pfs;
            *wanted_ns = now_ns;
        }
        self.checkpoints.push(known);
    }

    /// When the last one of a family that is to be in the persist directory was found complete;
    /// long ago if none was.
    fn wanted_ns_of(&mut self, family: &Family) -> &mut i64 {
        let known = self.wanted_ns.iter().position(|(known, _)| known == family);
        let index = known.unwrap_or(self.wanted_ns.len());
        if known.is_none() {
            self.wanted_ns.push((family.clone(), i64::MIN));
        }
        &mut self.wanted_ns[index].1
    }

    /// The checkpoint at `index` is to be in the persist directory, whatever the policy says.
    fn want(&mut self, index: usize) {
        let known = &mut self.checkpoints[index];
        known.wanted = Level::Pfs;
        let (family, completed_ns) = (known.name.family.clone(), known.completed_ns);
        let wanted_ns = self.wanted_ns_of(&family);
        *wanted_ns = completed_ns.max(*wanted_ns);
    }

    /// One more of a family: its number in it.
    fn count(&mut self, family: &Family) -> u64 {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| known == family) {
            *count += 1;
            return *count;
        }
        self.counts.push((family.clone(), 1));
        1
    }

    /// The last run of which it is known that it has ended, see [`crate::model::job::Job::runs`].
    pub fn ended_run(&self) -> u64 {
        self.ended_run
    }

    /// That run has ended, and all before it, as is known at `now_ns`.
    pub fn end_run(&mut self, run: u64, now_ns: i64) {
        if run > self.ended_run {
            (self.ended_run, self.ended_ns) = (run, now_ns);
        }
    }

    /// The last run that is known to have succeeded, 0 if none is.
    pub fn succeeded_run(&self) -> u64 {
        self.succeeded_run
    }

    /// That run has succeeded.
    pub fn note_success(&mut self, run: u64) {
        self.succeeded_run = run;
    }

    /// The run failed: those of `sets` that are not complete stay so until their files change.
    /// Those of dead writers, too, because what is left when somebody has removed the unclean files
    /// is no more complete.
    pub fn abandon(&mut self, sets: &[Set]) {
        let is_unfinished = |set: &&Set| {
            let is_left =
                |reason: &Reason| matches!(reason, Reason::Unclean(_) | Reason::Abandoned);
            matches!(&set.standing, Standing::Broken(reason) if is_left(reason))
                || matches!(set.standing, Standing::Waiting(_))
        };
        for set in sets.iter().filter(is_unfinished) {
            if !self.was_abandoned(&set.members) {
                let (name, files) = (set.name.clone(), set.members.clone());
                self.abandoned.push(Abandoned { name, files });
            }
        }
    }

    /// The newest checkpoint of each family is wanted in the persist directory, whatever the policy
    /// says.
    pub fn want_newest(&mut self) {
        let known = self.checkpoints.iter().enumerate();
        let newest: BTreeMap<Family, usize> =
            known.map(|(index, known)| (known.name.family.clone(), index)).collect();
        newest.into_values().for_each(|index| self.want(index));
    }

    /// All checkpoints are wanted in the persist directory.
    pub fn want_all(&mut self) {
        (0..self.checkpoints.len()).for_each(|index| self.want(index));
    }

    /// Notes what `manifest` has, in which the checkpoints that are whole are named.
    pub fn note_outside(&mut self, manifest: &Manifest) {
        self.lags.compare(manifest);
    }

    /// Notes which checkpoints are in the persist directory: those all of whose files `is_drained`.
    pub fn note_levels(&mut self, is_drained: impl Fn(&Member) -> bool) {
        for checkpoint in &mut self.checkpoints {
            let all = checkpoint.files.iter().all(&is_drained);
            checkpoint.level = if all { Level::Pfs } else { Level::Node };
        }
    }
}

/// The files that are among both, which are in the order of their paths.
fn shared<'a>(some: &'a [Member], others: &'a [Member]) -> impl Iterator<Item = &'a Member> {
    some.iter().filter(|file| others.binary_search(file).is_ok())
}

#[cfg(test)]
mod tests;
