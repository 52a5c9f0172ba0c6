//! Register of the complete checkpoints of a store, with their ids and levels.
//!
//! Must stay true: a checkpoint keeps its id as long as its files
//! stay the same. A set that was unfinished when a run failed stays so until its files change. An
//! agent that lost the file finds the checkpoints again and gives them new ids, higher than those
//! known outside the store.

use super::lag::Lags;
use super::marks::Mark;
use super::rules::Rules;
use super::{
    DrainProgress, Member, NamespaceTree, Ranks, Reason, Run, Set, Situation, is_part, place,
    survey,
};
use crate::checkpoint::name::{Family, Name};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// Format that this version writes, and the newest it reads.
pub const REGISTER_FORMAT: u32 = 1;

/// Level on which a checkpoint is safe.
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
    /// Id; unique in the store for all time. A rewritten checkpoint may keep its id.
    pub id: u64,
    /// Name of the checkpoint.
    #[serde(flatten)]
    pub name: Name,
    /// Ordinal in its family, from 1.
    pub ordinal: u64,
    /// When it was found complete, nanoseconds since the epoch.
    pub completed_ns: i64,
    /// Time of the last change of its files, nanoseconds since the epoch.
    pub modified_ns: i64,
    /// Level on which it is wanted.
    pub wanted: Level,
    /// Level on which it is.
    pub level: Level,
    /// Files of the checkpoint, ordered by path.
    pub files: Vec<Member>,
}

impl Checkpoint {
    /// Returns the total size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns its name for a message.
    pub fn shown(&self) -> String {
        let place = place(self.files.iter().map(|file| &file.path));
        self.name.shown(self.files.len() as u64, &place)
    }
}

/// State of the job at the time of a look at its files.
#[derive(Clone, Copy)]
pub struct Moment<'a> {
    /// See [`Situation::now_ns`].
    pub now_ns: i64,
    /// See [`Situation::ranks`].
    pub ranks: Option<&'a Ranks>,
    /// State of the run.
    pub run: Run,
    /// See [`Situation::alive_ns`].
    pub alive_ns: i64,
    /// See [`Situation::settle`].
    pub settle: Duration,
    /// Announcements of programs about their checkpoints.
    pub marks: &'a [Mark],
    /// Whether no program runs that could be removing files one after another.
    pub is_idle: bool,
}

/// A set that was unfinished when a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Abandoned {
    #[serde(flatten)]
    name: Name,
    files: Vec<Member>,
}

/// Remainder of a checkpoint that has lost files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rest {
    #[serde(flatten)]
    name: Name,
    files: Vec<Member>,
    /// Since when these are its files, nanoseconds since the epoch.
    since_ns: i64,
}

/// The checkpoints of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    format: u32,
    next_id: u64,
    /// Number of checkpoints so far, by family.
    counts: Vec<(Family, u64)>,
    /// Oldest first.
    checkpoints: Vec<Checkpoint>,
    abandoned: Vec<Abandoned>,
    /// Checkpoints whose files were rewritten or removed since, and are not all in one checkpoint
    /// again.
    #[serde(default)]
    rewritten: Vec<Checkpoint>,
    #[serde(default)]
    rests: Vec<Rest>,
    /// When the last checkpoint of a family that is wanted in the persist directory was found
    /// complete, nanoseconds since the epoch.
    #[serde(default)]
    wanted_ns: Vec<(Family, i64)>,
    /// Newest checkpoints in the persist directory, and those that were removed before they were
    /// copied.
    #[serde(default)]
    lags: Lags,
    /// Number of the last run of the store that is known to have ended.
    #[serde(default)]
    ended_run: u64,
    /// When that became known, nanoseconds since the epoch.
    #[serde(default)]
    ended_ns: i64,
    /// Number of the last run that is known to have succeeded; 0 if none is.
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
    /// Returns the complete checkpoints ordered by id, which is the order in which they were found
    /// complete: the newest is the last, whatever the clock said when it was written.
    pub fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    /// Returns a predicate: whether a set is known to be complete with these files, or with more of
    /// which some are gone.
    pub fn knows(&self) -> impl Fn(&Set) -> bool + '_ {
        let known = self.checkpoints.iter().map(|known| (&known.name, &known.files[..]));
        let known: HashMap<&Name, &[Member]> = known.collect();
        move |set| known.get(&set.name).is_some_and(|files| is_part(&set.members, files))
    }

    /// Whether all of these files belong to sets that were unfinished when a run failed. A set may
    /// have had another name, or have been taken for several, as long as less was known about which
    /// files belong together.
    pub fn was_abandoned(&self, files: &[Member]) -> bool {
        let is_left = |file: &Member| {
            self.abandoned.iter().any(|left| left.files.binary_search(file).is_ok())
        };
        !files.is_empty() && files.iter().all(is_left)
    }

    /// Whether some of these files belong to such a set and to no checkpoint. They must be ordered
    /// by path.
    pub fn has_abandoned(&self, files: &[Member]) -> bool {
        let is_known = |file: &Member| {
            let mut known = self.checkpoints.iter().flat_map(|known| &known.files);
            known.any(|other| (other.inode, other.version) == (file.inode, file.version))
        };
        let mut left = self.abandoned.iter().flat_map(|left| shared(files, &left.files));
        left.any(|file| !is_known(file))
    }

    /// Returns since when these are the only files left of a checkpoint of that name.
    pub fn left_since(&self, name: &Name, files: &[Member]) -> Option<i64> {
        let rest = self.rests.iter().find(|rest| rest.name == *name && rest.files == files)?;
        Some(rest.since_ns)
    }

    /// Makes families known that had checkpoints in an earlier store.
    pub fn know<'a>(&mut self, families: impl Iterator<Item = &'a Family>) {
        for family in families {
            if !self.is_known(family) {
                self.counts.push((family.clone(), 0));
            }
        }
    }

    /// Whether a family has had checkpoints.
    pub fn is_known(&self, family: &Family) -> bool {
        self.counts.iter().any(|(known, _)| known == family) || self.joined.contains(family)
    }

    /// Returns the newest checkpoint of each family, with its files before any were rewritten or
    /// removed.
    pub fn usual(&self) -> HashMap<&Family, &[Member]> {
        let mut known: Vec<_> = self.checkpoints.iter().chain(&self.rewritten).collect();
        known.sort_by_key(|known| known.id);
        known.into_iter().map(|known| (&known.name.family, &known.files[..])).collect()
    }

    /// Returns the files of each checkpoint when it was last complete.
    pub fn last_complete(&self) -> HashMap<&Name, &[Member]> {
        let known = self.checkpoints.iter().chain(&self.rewritten);
        known.map(|known| (&known.name, &known.files[..])).collect()
    }

    /// Returns the sets that the files of `groves` form, with their states by the register's
    /// knowledge.
    pub fn survey(
        &self,
        groves: &[NamespaceTree<'_>],
        rules: &Rules,
        moment: Moment<'_>,
    ) -> Vec<Set> {
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

    /// Updates the register to the `sets` that are complete at `now_ns`. New ones get an id and the
    /// level that `rules` want. Changed or removed ones are dropped. A checkpoint that has only
    /// lost files stays the same, once the remainder counts as complete. Returns the checkpoints
    /// that are gone: those with a file that is in no set any more.
    pub fn take(&mut self, sets: &[Set], rules: &Rules, now_ns: i64) -> Vec<Checkpoint> {
        self.joined.extend(sets.iter().flat_map(|set| set.families.iter().cloned()));
        let complete: BTreeMap<&Name, &Set> =
            sets.iter().filter(|set| set.is_complete()).map(|set| (&set.name, set)).collect();
        let is_same = |known: &Checkpoint| {
            complete.get(&known.name).is_some_and(|set| is_part(&set.members, &known.files))
        };
        // A checkpoint that seemed removed or rewritten may turn out to be unchanged.
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
            // A renamed checkpoint keeps its position in the order.
            let ids = set.members.iter().map(|member| before.get(member).copied());
            let renamed = ids.collect::<Option<Vec<u64>>>().and_then(|ids| ids.into_iter().max());
            // A time in the future means that the set was written before the clock was set back.
            let is_of_now = set.newest_ns <= now_ns;
            (renamed.unwrap_or(u64::MAX), is_of_now, set.newest_ns, set.name.step.clone())
        });
        for set in fresh {
            // A checkpoint that only gained files was counted already.
            let before = self.rewritten.iter().find(|known| known.name == set.name);
            let grown = before.filter(|known| is_part(&known.files, &set.members));
            let ordinal = grown.map(|known| known.ordinal);
            // A checkpoint that was found complete a little too early keeps its position, however
            // late that is noticed.
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
        let leaves =
            |set: &&Set| matches!(set.standing, DrainProgress::Waiting(Reason::Leaving(_)));
        let rest = |set: &Set| Rest {
            name: set.name.clone(),
            files: set.members.clone(),
            since_ns: self.left_since(&set.name, &set.members).unwrap_or(now_ns),
        };
        self.rests = sets.iter().filter(leaves).map(rest).collect();
        gone
    }

    /// Returns the newest checkpoints in the persist directory, and those removed before they were
    /// copied.
    pub fn lags(&self) -> &Lags {
        &self.lags
    }

    /// Records that `gone` does not exist any more. It counts as missed if it was wanted in the
    /// persist directory and is not there.
    pub fn note_gone(&mut self, gone: &Checkpoint) {
        if gone.level < gone.wanted {
            self.lags.miss(&gone.name.family, gone.id);
        }
    }

    /// Records that the program has ended well: checkpoints that it has cleaned up are not missed.
    pub fn forgive_cleared(&mut self) {
        let there: HashSet<&Family> =
            self.checkpoints.iter().map(|known| &known.name.family).collect();
        self.lags.forgive(|family| there.contains(family));
    }

    /// Adds `sets` that are complete, oldest first, whatever the times of their files say. A known
    /// one stays as it is: a killed process may have recorded it before.
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

    /// Records that the file at `path` was replaced by another one with the same data, so
    /// checkpoints with this file stay the same. Returns whether any has it.
    pub fn note_replaced(
        &mut self,
        path: &crate::file::path::FilePath,
        inode: u32,
        version: u64,
    ) -> bool {
        let mut is_part = false;
        let known = self.checkpoints.iter_mut().chain(&mut self.rewritten);
        let files = known.flat_map(|known| &mut known.files);
        for file in files.filter(|file| file.path == *path) {
            (file.inode, file.version) = (inode, version);
            is_part = true;
        }
        is_part
    }

    /// Skips the ids up to `taken`: an agent that could not save the register has given them out.
    pub fn skip(&mut self, taken: u64) {
        self.next_id = self.next_id.max(taken + 1);
    }

    /// Skips the ids up to `taken`, like `skip`. If that overlaps ids given out here, raises the
    /// ids of all checkpoints, so that these are newer.
    pub fn move_beyond(&mut self, taken: u64) {
        if taken >= self.next_id {
            let known = self.checkpoints.iter_mut().chain(&mut self.rewritten);
            known.for_each(|known| known.id += taken);
            self.lags.raise(taken);
            self.next_id += taken;
        }
    }

    /// Returns the id that the next checkpoint gets.
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
        // None if the clock went back meanwhile.
        let age_ns = now_ns.checked_sub(*wanted_ns).and_then(|age_ns| u64::try_from(age_ns).ok());
        if rules.wants_pfs(ordinal, age_ns.map(Duration::from_nanos)) {
            known.wanted = Level::Pfs;
            *wanted_ns = now_ns;
        }
        self.checkpoints.push(known);
    }

    /// Returns when the last checkpoint of a family that is wanted in the persist directory was
    /// found complete; `i64::MIN` if none was.
    fn wanted_ns_of(&mut self, family: &Family) -> &mut i64 {
        let known = self.wanted_ns.iter().position(|(known, _)| known == family);
        let index = known.unwrap_or(self.wanted_ns.len());
        if known.is_none() {
            self.wanted_ns.push((family.clone(), i64::MIN));
        }
        &mut self.wanted_ns[index].1
    }

    /// Marks the checkpoint at `index` as wanted in the persist directory, whatever the policy
    /// says.
    fn want(&mut self, index: usize) {
        let known = &mut self.checkpoints[index];
        known.wanted = Level::Pfs;
        let (family, completed_ns) = (known.name.family.clone(), known.completed_ns);
        let wanted_ns = self.wanted_ns_of(&family);
        *wanted_ns = completed_ns.max(*wanted_ns);
    }

    /// Counts one more checkpoint of a family. Returns its ordinal.
    fn count(&mut self, family: &Family) -> u64 {
        if let Some((_, count)) = self.counts.iter_mut().find(|(known, _)| known == family) {
            *count += 1;
            return *count;
        }
        self.counts.push((family.clone(), 1));
        1
    }

    /// Returns the number of the last run that is known to have ended, see
    /// `Job::runs` of the agent.
    pub fn ended_run(&self) -> u64 {
        self.ended_run
    }

    /// Records at `now_ns` that a run and all before it have ended.
    pub fn end_run(&mut self, run: u64, now_ns: i64) {
        if run > self.ended_run {
            (self.ended_run, self.ended_ns) = (run, now_ns);
        }
    }

    /// Returns the number of the last run that is known to have succeeded; 0 if none is.
    pub fn succeeded_run(&self) -> u64 {
        self.succeeded_run
    }

    /// Records that a run has succeeded.
    pub fn note_success(&mut self, run: u64) {
        self.succeeded_run = run;
    }

    /// Records the failure of a run: those of `sets` that are not complete stay so until their
    /// files change. This includes sets of dead writers: when somebody has removed the unclean
    /// files, the rest is still not complete.
    pub fn abandon(&mut self, sets: &[Set]) {
        let is_unfinished = |set: &&Set| {
            let is_left =
                |reason: &Reason| matches!(reason, Reason::Unclean(_) | Reason::Abandoned);
            matches!(&set.standing, DrainProgress::Broken(reason) if is_left(reason))
                || matches!(set.standing, DrainProgress::Waiting(_))
        };
        for set in sets.iter().filter(is_unfinished) {
            if !self.was_abandoned(&set.members) {
                let (name, files) = (set.name.clone(), set.members.clone());
                self.abandoned.push(Abandoned { name, files });
            }
        }
    }

    /// Marks the newest checkpoint of each family as wanted in the persist directory, whatever the
    /// policy says.
    pub fn want_newest(&mut self) {
        let known = self.checkpoints.iter().enumerate();
        let newest: BTreeMap<Family, usize> =
            known.map(|(index, known)| (known.name.family.clone(), index)).collect();
        newest.into_values().for_each(|index| self.want(index));
    }

    /// Marks all checkpoints as wanted in the persist directory.
    pub fn want_all(&mut self) {
        (0..self.checkpoints.len()).for_each(|index| self.want(index));
    }

    /// Records that a checkpoint is complete in the persist directory, see [`Lags::note_outside`].
    pub fn note_outside(&mut self, name: &Name, modified_ns: i64, id: Option<u64>) {
        self.lags.note_outside(name, modified_ns, id);
    }

    /// Updates the levels: a checkpoint is in the persist directory if all of its files
    /// `is_drained`.
    pub fn note_levels(&mut self, is_drained: impl Fn(&Member) -> bool) {
        for checkpoint in &mut self.checkpoints {
            let all = checkpoint.files.iter().all(&is_drained);
            checkpoint.level = if all { Level::Pfs } else { Level::Node };
        }
    }
}

/// Returns the files that both lists have. Both are ordered by path.
fn shared<'a>(some: &'a [Member], others: &'a [Member]) -> impl Iterator<Item = &'a Member> {
    some.iter().filter(|file| others.binary_search(file).is_ok())
}

#[cfg(test)]
mod tests;
