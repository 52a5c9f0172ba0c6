//! Checkpoints, inferred from files: which belong together, and whether all of them are there.
//!
//! Pure: the names, times and states of files, what programs said, and how the run stands give the
//! sets. What belongs to no set is on its own and does not appear here.
//! Must stay true: a set is complete only if something says why, and that nothing has changed for a
//! while says nothing; one with an open file, or with an unclean one, never is; nor is one that was
//! unfinished when a run failed, until its files change; each waits for the parts of all ranks as
//! long as they run; where files are written again, those that were not yet are no part of the new
//! checkpoint; what is left of one that is being removed is none, and what was set aside because it
//! is damaged is part of none.
//! Does not decide what is drained, nor remember; `policy.rs` and `register.rs` do.

mod companions;
pub mod lag;
pub mod marks;
mod numbered;
pub mod pattern;
pub mod policy;
pub mod register;
pub mod series;
mod siblings;
pub mod usual;

use crate::checkpoint::quarantine;
use crate::model::path::{FilePath, deserialize_bytes, serialize_bytes};
use crate::store::node::Kind;
use crate::store::node::{Node, Tree};
use marks::Mark;
use pattern::{Patterns, Position};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use siblings::Siblings;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use usual::Usual;

/// A set that is smaller than the one before it, lacks the parts of ranks, was written again in
/// part, or has lost files, waits so many times as long for more, or for the others to go, too.
const PATIENCE_FACTOR: u32 = 12;

/// Checkpoints that replace each other: a path with `{step}` in place of the number, or a name that
/// a program gave.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(pub Vec<u8>);

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_bytes(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Family {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Family, D::Error> {
        deserialize_bytes(deserializer).map(Family)
    }
}

/// What tells a checkpoint from all others of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name {
    /// Its family.
    pub family: Family,
    /// Its step; None where every one has the same name.
    pub step: Option<u64>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family.to_string();
        match self.step {
            Some(step) if family.contains("{step}") => {
                let family = family.replace("{step}", &step.to_string());
                f.write_str(&family.replace("{any}", "*").replace("{rank}", "*"))
            }
            Some(step) => write!(f, "{family} {step}"),
            None => f.write_str(&family),
        }
    }
}

/// A version of a file: what a checkpoint is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Where it is.
    pub path: FilePath,
    /// The file.
    pub inode: u32,
    /// Version of its data.
    pub version: u64,
    /// Its length.
    pub bytes: u64,
}

/// How far a set has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All of it is there.
    Complete,
    /// More may come.
    Waiting(Reason),
    /// It will never be, unless its files change.
    Broken(Reason),
}

/// Why a set is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Somebody may write to this file.
    Open(FilePath),
    /// This file is unclean: its writer died, or could not write all.
    Unclean(FilePath),
    /// Parts of so many ranks are there, of so many.
    Ranks(u32, u32),
    /// So many processes said that they have begun, and that they are done.
    Marks(usize, usize),
    /// Nobody can tell yet whether that was all; in this time it is looked at again.
    Unsettled(Duration),
    /// Nothing has changed for a while, and nothing says that these are all its files; of ranks,
    /// parts of so many are there, of so many.
    Unproven(Option<(u32, u32)>),
    /// The same, of a file that may be a part of one with others, because what tells them apart may
    /// count parts.
    Uncertain,
    /// It was complete, and some of its files are gone; in this time it is looked at again.
    Leaving(Duration),
    /// A writer of this file did not end in order; a later one took it over.
    Torn(FilePath),
    /// The run has ended, and it has not all that the one before it had.
    Fewer,
    /// It was unfinished when the run failed.
    Abandoned,
    /// Files of it are being replaced or set aside.
    Repair,
}

impl Reason {
    /// Whether a set of which this is said may be all that it is to be.
    pub fn leaves_open(&self) -> bool {
        matches!(self, Reason::Unproven(None) | Reason::Uncertain | Reason::Abandoned)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Open(path) => write!(f, "{path} is open"),
            Reason::Unclean(path) => write!(f, "the writer of {path} died, or could not write all"),
            Reason::Ranks(there, all) => write!(f, "{there} of {all} ranks have written theirs"),
            Reason::Marks(begun, ended) => write!(f, "{ended} of {begun} processes are done"),
            Reason::Unsettled(_) => f.write_str("more files may come"),
            Reason::Unproven(None) => {
                f.write_str("nothing says yet that these are all its files")
            }
            Reason::Unproven(Some((there, all))) => {
                write!(f, "{there} of {all} ranks have written theirs, and the others nothing for a while")
            }
            Reason::Uncertain => f.write_str(
                "the number may be that of a part of one checkpoint; --checkpoint-pattern says which is the step",
            ),
            Reason::Leaving(_) => f.write_str("some of its files were removed, and others may be"),
            Reason::Torn(path) => {
                write!(f, "{path} was not written anew since a writer of it died")
            }
            Reason::Fewer => f.write_str("it has not all files that the one before it had"),
            Reason::Abandoned => f.write_str("nothing says that it was finished when the run failed"),
            Reason::Repair => f.write_str(
                "what is damaged of it was being put right or set aside; the next run of the job goes on with that",
            ),
        }
    }
}

/// Files that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// What it is called.
    pub name: Name,
    /// Its files, in the order of their paths.
    pub members: Vec<Member>,
    /// The last change of any of them, nanoseconds since the epoch.
    pub newest_ns: i64,
    /// Whether all of it is there.
    pub standing: Standing,
    /// The families that were joined to this one; none if it is one by itself.
    pub families: Vec<Family>,
}

impl Set {
    /// Whether all of it is there.
    pub fn is_complete(&self) -> bool {
        self.standing == Standing::Complete
    }

    /// Whether nobody writes to it, so that it may be copied, whether or not that is all of it.
    pub fn is_quiet(&self) -> bool {
        matches!(self.standing, Standing::Waiting(Reason::Unproven(_) | Reason::Uncertain))
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(|member| member.bytes).sum()
    }

    /// The file, or the lowest directory that all of them lie in.
    pub fn place(&self) -> FilePath {
        let (first, more) = match &self.members[..] {
            [] => return FilePath::root(),
            [first, more @ ..] => (&first.path, more),
        };
        let above = std::iter::successors(Some(first.clone()), |path| Some(path.split()?.0));
        let has_all =
            |place: &FilePath| more.iter().all(|member| member.path.strip_prefix(place).is_some());
        above.into_iter().find(has_all).unwrap_or_default()
    }
}

/// How the run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Programs may write more.
    Running,
    /// It succeeded.
    Succeeded,
    /// It failed, was killed, or nobody knows how it ended.
    Failed,
}

/// The ranks of an MPI program on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// How many there are.
    pub count: u32,
    /// Their numbers among all ranks of the program, as far as they are known.
    pub numbers: BTreeSet<u64>,
}

impl Ranks {
    /// How many of them `numbers` name: as the program counts its ranks, or as this node does.
    fn among(&self, numbers: &BTreeSet<u64>) -> u32 {
        let here = numbers.range(..u64::from(self.count)).count();
        here.max(numbers.intersection(&self.numbers).count()) as u32
    }

    /// Whether `numbers` name all of them, and nothing else.
    fn are(&self, numbers: &BTreeSet<u64>) -> bool {
        self.among(numbers) == self.count && numbers.len() == self.count as usize
    }
}

/// What is known besides the files.
pub struct Situation<'a> {
    /// The present, nanoseconds since the epoch.
    pub now_ns: i64,
    /// Those of the MPI program that runs or ran last.
    pub ranks: Option<&'a Ranks>,
    /// How the run stands.
    pub run: Run,
    /// Until when programs could have written, nanoseconds since the epoch: the present, or, after
    /// a run that nobody saw fail, when it was last seen to go on.
    pub alive_ns: i64,
    /// What is older was left by runs that have ended, nanoseconds since the epoch.
    pub ended_ns: i64,
    /// After so long without a change, as long as programs could make one, what there is of a set
    /// is copied, unless it should be larger.
    pub settle: Duration,
    /// What programs said of their checkpoints.
    pub marks: &'a [Mark],
    /// Whether there have been complete sets of a family.
    pub is_known: &'a dyn Fn(&Family) -> bool,
    /// The newest complete set of a family.
    pub usual: &'a dyn Fn(&Family) -> Option<Usual<'a>>,
    /// The files of a set of this name when all of it was there last.
    pub last_complete: &'a dyn Fn(&Name) -> Option<&'a [Member]>,
    /// Since when these are all files of a set that had more when it was complete, nanoseconds
    /// since the epoch.
    pub left_since: &'a dyn Fn(&Name, &[Member]) -> Option<i64>,
    /// Whether a set with these files, or with more of which some are gone, was unfinished when a
    /// run failed.
    pub was_abandoned: &'a dyn Fn(&[Member]) -> bool,
    /// Whether some of these files are of such a set, and of no checkpoint.
    pub has_abandoned: &'a dyn Fn(&[Member]) -> bool,
}

/// A set that is being put together.
#[derive(Default)]
struct Draft<'a> {
    files: Vec<(&'a FilePath, &'a Node)>,
    ranks: BTreeSet<u64>,
    /// The mark that it is of.
    mark: Option<&'a Mark>,
    /// The directory that it is.
    directory: Option<FilePath>,
    /// It may be a part of another one, see `numbered.rs`.
    is_uncertain: bool,
    /// That got its name by `rename`, with all that is in it.
    is_renamed: bool,
    /// The last change of the entries of directories in it; long ago if it is none.
    entries_ns: i64,
    /// The families that it was joined from; none if it is of one.
    families: Vec<Family>,
}

impl Draft<'_> {
    fn members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = self.files.iter().copied().map(member).collect();
        members.sort();
        members
    }

    /// How many components of paths are the directory that it is.
    fn depth(&self) -> usize {
        self.directory.as_ref().map_or(0, |path| path.components().count())
    }

    /// Takes note of what its directories say.
    fn note_directories(&mut self, groves: &[Grove<'_>]) {
        let Some(directory) = &self.directory else { return };
        let find = |path: &FilePath| groves.iter().find_map(|(_, tree)| tree.get(path));
        let parents = self.files.iter().filter_map(|(path, _)| Some(path.split()?.0));
        let all: BTreeSet<FilePath> = parents.chain([directory.clone()]).collect();
        self.entries_ns = all.iter().filter_map(find).map(|node| node.mtime_ns).max().unwrap_or(0);
        self.is_renamed = find(directory).is_some_and(|node| node.renamed);
    }
}

/// A namespace: where its files lie, and all that is there. Those of ranks lie below directories of
/// their own.
pub type Grove<'a> = (&'a FilePath, &'a Tree);

/// The sets that the files of `groves` belong to, in the order of their names.
pub fn survey<'a>(
    groves: &[Grove<'a>],
    patterns: &Patterns,
    situation: &Situation<'a>,
) -> Vec<Set> {
    let mut drafts = drafts(groves, patterns, situation);
    drafts.values_mut().for_each(|draft| draft.note_directories(groves));
    let siblings = Siblings::of(&drafts);
    let settle = |(name, draft): (&Name, &Draft<'a>)| {
        let members = draft.members();
        let standing = standing(name, &members, draft, &siblings, situation);
        let (newest_ns, families) = (newest_ns(draft), draft.families.clone());
        Set { name: name.clone(), members, newest_ns, standing, families }
    };
    drafts.iter().map(settle).collect()
}

fn member((path, node): (&FilePath, &Node)) -> Member {
    Member { path: path.clone(), inode: node.inode, version: node.version, bytes: node.bytes }
}

fn newest_ns(draft: &Draft<'_>) -> i64 {
    draft.files.iter().map(|(_, node)| node.mtime_ns).max().unwrap_or(0)
}

/// A file, and where it is for the program that wrote it.
struct Candidate<'a> {
    path: &'a FilePath,
    node: &'a Node,
    inner: FilePath,
    /// The rank whose namespace it is in.
    rank: Option<u64>,
}

/// The regular files of a namespace, without those that were set aside.
fn candidates<'a>((prefix, tree): Grove<'a>) -> impl Iterator<Item = Candidate<'a>> {
    let digits: String = prefix.to_lossy().chars().filter(char::is_ascii_digit).collect();
    let rank = digits.parse().ok();
    let files = tree.iter().filter(|(_, node)| node.kind == Kind::File);
    files.filter_map(move |(path, node)| {
        let inner = path.strip_prefix(prefix).filter(|inner| !quarantine::is_aside(inner))?;
        Some(Candidate { path, node, inner, rank })
    })
}

/// Which files belong together: what programs marked, what patterns say, then what numbers say.
fn drafts<'a>(
    groves: &[Grove<'a>],
    patterns: &Patterns,
    situation: &Situation<'a>,
) -> BTreeMap<Name, Draft<'a>> {
    let mut drafts: BTreeMap<Name, Draft<'a>> = BTreeMap::new();
    let mut unnamed = Vec::new();
    for candidate in groves.iter().copied().flat_map(candidates) {
        let Candidate { path, node, .. } = candidate;
        if let Some(mark) = marks::mark_of(situation.marks, node.mtime_ns, situation.now_ns) {
            let draft = drafts.entry(mark.name.clone()).or_default();
            draft.mark = Some(mark);
            draft.files.push((path, node));
        } else if let Some(position) = patterns.position(candidate.inner.as_bytes()) {
            put(&mut drafts, position, &candidate);
        } else {
            unnamed.push(candidate);
        }
    }
    let numbered = unnamed.iter().map(|file| numbered::File {
        key: file,
        path: file.inner.as_bytes(),
        mtime_ns: file.node.mtime_ns,
        is_left: file.node.mtime_ns < situation.ended_ns,
    });
    let (ranks, is_known) = (situation.ranks, situation.is_known);
    for (candidate, position) in numbered::positions(numbered, ranks, is_known) {
        put(&mut drafts, position, candidate);
    }
    // What the user or the program says is a checkpoint is one.
    let is_said = |path: &FilePath| {
        let inner = groves.iter().find_map(|(prefix, _)| path.strip_prefix(prefix));
        inner.is_some_and(|inner| patterns.are_own_for(inner.as_bytes()))
    };
    companions::join(drafts, &|draft| {
        draft.mark.is_some() || draft.files.first().is_some_and(|(path, _)| is_said(path))
    })
}

fn put<'a>(drafts: &mut BTreeMap<Name, Draft<'a>>, position: Position, candidate: &Candidate<'a>) {
    let Position { mut family, step, rank, is_directory, is_certain } = position;
    if candidate.rank.is_some() {
        family.0.splice(0..0, *b"rank-{rank}/");
    }
    let directory = || {
        let depth = family.0.iter().filter(|&&byte| byte == b'/').count() + 1;
        let names = candidate.path.components().take(depth);
        names.fold(FilePath::root(), |path, name| path.join(name))
    };
    let directory = is_directory.then(directory);
    let draft = drafts.entry(Name { family, step }).or_default();
    draft.directory = directory;
    draft.is_uncertain |= !is_certain;
    draft.ranks.extend(candidate.rank.or(rank));
    draft.files.push((candidate.path, candidate.node));
}

fn standing(
    name: &Name,
    members: &[Member],
    draft: &Draft<'_>,
    siblings: &Siblings<'_, '_>,
    situation: &Situation<'_>,
) -> Standing {
    let of = |state: fn(&Node) -> bool| {
        draft.files.iter().find(|(_, node)| state(node)).map(|(path, _)| (*path).clone())
    };
    if let Some(path) = of(|node| node.open) {
        return Standing::Waiting(Reason::Open(path));
    }
    if let Some(path) = of(|node| node.unclean) {
        return Standing::Broken(Reason::Unclean(path));
    }
    let is_marked = draft.mark.is_some_and(Mark::is_done_by_all);
    if let Some(path) = of(|node| node.torn).filter(|_| !is_marked) {
        return Standing::Broken(Reason::Torn(path));
    }
    if (situation.was_abandoned)(members) {
        return Standing::Broken(Reason::Abandoned);
    }
    let is_over = situation.run == Run::Succeeded;
    let last = (situation.last_complete)(name);
    if last == Some(members) {
        return Standing::Complete;
    }
    if !is_over && draft.mark.is_none() && (situation.has_abandoned)(members) {
        return Standing::Broken(Reason::Abandoned);
    }
    // A clock that went back makes nothing complete.
    let left_of = |patience: Duration, since_ns: i64| {
        let age_ns = situation.alive_ns.saturating_sub(since_ns).max(0);
        patience.saturating_sub(Duration::from_nanos(age_ns as u64))
    };
    let patience = situation.settle * PATIENCE_FACTOR;
    if last.is_some_and(|last| is_part(members, last)) && !is_over {
        let since_ns = (situation.left_since)(name, members).unwrap_or(situation.now_ns);
        let left = left_of(patience, since_ns);
        return match left.is_zero() {
            true => Standing::Complete,
            false => Standing::Waiting(Reason::Leaving(left)),
        };
    }
    let is_superseded = siblings.is_superseded(name);
    if let Some(mark) = draft.mark {
        let is_last = is_superseded || is_over;
        return match mark.is_done_by_all() || is_last && mark.is_done() {
            true => Standing::Complete,
            false => Standing::Waiting(Reason::Marks(mark.begun.max(mark.expected), mark.ended)),
        };
    }
    let usual = (situation.usual)(&name.family);
    let is_usual = usual.is_some_and(|usual| {
        members.len() >= usual.files.len()
            && (is_superseded || usual.is_all_in(name.step, members, draft.depth()))
    });
    // A program that ended well has written again what it wanted to.
    let is_mixed = !is_over
        && (last.is_some_and(|last| is_mixed(last, members)) || siblings.is_straddling(name));
    if is_usual && !is_mixed && (is_over || !draft.is_uncertain) {
        return Standing::Complete;
    }
    let ranks = situation.ranks.filter(|_| !draft.ranks.is_empty());
    let parts = ranks.map(|ranks| (ranks.among(&draft.ranks), ranks.count));
    let missing = parts.filter(|(there, all)| there < all);
    if is_over {
        // Not all ranks of a program have to write, but always the same ones.
        let may_lack = usual.is_some() || siblings.has_other_ranks(name);
        return match missing.filter(|_| may_lack) {
            Some((there, all)) => Standing::Broken(Reason::Ranks(there, all)),
            None if usual.is_some() => Standing::Broken(Reason::Fewer),
            None => Standing::Complete,
        };
    }
    let is_short = is_superseded && !siblings.has_all_of_later(name);
    let is_patient = usual.is_some() || is_mixed || is_short || missing.is_some();
    let changed_ns = newest_ns(draft).max(draft.entries_ns);
    let left = left_of(if is_patient { patience } else { situation.settle }, changed_ns);
    let is_published = is_single_file(&name.family, draft) || draft.is_renamed;
    // Somebody has gone on, where no earlier one tells whether others have to; or all that wrote to
    // it have.
    let is_followed = is_superseded && usual.is_none() || siblings.is_followed(name);
    let is_whole = (is_published || is_followed) && !is_short && !is_mixed && !draft.is_uncertain;
    // Not all ranks of a program have to write, but always the same ones.
    let are_writers =
        left.is_zero() && siblings.have_same_ranks(name) && siblings.is_followed(name);
    match missing.filter(|_| !are_writers) {
        None if is_whole => Standing::Complete,
        // That they are quiet makes files fit to be copied. It says nothing of others that may
        // come.
        None if left.is_zero() && draft.is_uncertain => Standing::Waiting(Reason::Uncertain),
        missing if left.is_zero() => Standing::Waiting(Reason::Unproven(missing)),
        None => Standing::Waiting(Reason::Unsettled(left)),
        Some((there, all)) => Standing::Waiting(Reason::Ranks(there, all)),
    }
}

/// Whether all of `some` are among `all`, both in the order of their paths.
fn is_part(some: &[Member], all: &[Member]) -> bool {
    let mut all = all.iter();
    some.iter().all(|one| all.any(|other| other == one))
}

/// Whether some of the files of a complete set were written again, and some were not. Both are in
/// the order of their paths.
fn is_mixed(last: &[Member], members: &[Member]) -> bool {
    let is_same = |member: &Member| last.binary_search(member).is_ok();
    let is_other = |member: &Member| {
        let known = last.binary_search_by(|known| known.path.cmp(&member.path));
        known.is_ok_and(|index| last[index] != *member)
    };
    members.iter().any(is_same) && members.iter().any(is_other)
}

/// Whether no other file can belong to a set of this family.
fn is_single_file(family: &Family, draft: &Draft<'_>) -> bool {
    let has = |word: &[u8]| family.0.windows(word.len()).any(|part| part == word);
    draft.directory.is_none() && !has(b"{any}") && !has(b"{rank}")
}

#[cfg(test)]
mod tests;
