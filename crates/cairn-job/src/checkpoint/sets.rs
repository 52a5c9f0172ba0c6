//! Infers checkpoints from files: which files belong together, and whether a set of them is
//! complete.
//!
//! Pure: the result depends only on the names, times and states of files, the marks of programs,
//! and the state of the run. A file that belongs to no set does not appear here. Must stay true:
//! - A set is complete only for a positive reason. A pause in its changes is not one.
//! - A set with an open or an unclean file is never complete. A set that was unfinished when a run
//!   failed stays incomplete until its files change.
//! - While ranks run, each set waits for the parts of all of them.
//! - When files are rewritten in place, those that are not rewritten yet are not part of the new
//!   checkpoint.
//! - The remainder of a checkpoint that is being removed is not a checkpoint.
//! - Quarantined files are part of no set.
//!
//! Does not decide what is drained (`policy.rs`) and remembers nothing (`register.rs`).

mod companions;
pub mod lag;
pub mod marks;
mod names;
mod numbered;
pub mod pattern;
pub mod register;
pub mod rules;
pub mod series;
mod siblings;
mod usual;

use crate::checkpoint::name::{Family, Name};
use crate::file::node::{Kind, Node, Tree};
use crate::file::path;
use crate::file::path::FilePath;
use marks::Mark;
use pattern::{Patterns, Position};
use serde::{Deserialize, Serialize};
use siblings::Siblings;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// Factor on the settle time for a set that is smaller than its predecessor, lacks the parts of
/// some ranks, was rewritten in part, or has lost files: more files may come, or the others go too.
const PATIENCE_FACTOR: u32 = 12;

/// A version of a file that is part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Path of the file.
    pub path: FilePath,
    /// Inode of the file.
    pub inode: u32,
    /// Version of its data.
    pub version: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// State of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainProgress {
    /// The set is complete.
    Complete,
    /// More files may come.
    Waiting(Reason),
    /// The set stays incomplete unless its files change.
    Broken(Reason),
}

/// Why a set is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A process has this file open for writing.
    Open(FilePath),
    /// This file is unclean: its writer died, or could not write all.
    Unclean(FilePath),
    /// The set has parts of this many ranks, of this many.
    Ranks(u32, u32),
    /// This many processes have begun the checkpoint, and this many are done.
    Marks(usize, usize),
    /// More files may come. The set is examined again after this time.
    Unsettled(Duration),
    /// Nothing has changed for a while, and nothing says that these are all files. If ranks are
    /// missing: the number of ranks with parts, and of all ranks.
    Unproven(Option<(u32, u32)>),
    /// Like `Unproven`, for a file that may be one part of a checkpoint, because the number in
    /// which the names differ may count parts.
    Uncertain,
    /// The set was complete and has lost files. It is examined again after this time.
    Leaving(Duration),
    /// A writer of this file did not close it in order, and a later writer took the file over.
    Torn(FilePath),
    /// The run has ended, and the set lacks files that its predecessor had.
    Fewer,
    /// The set was unfinished when the run failed.
    Abandoned,
    /// Files of the set are being replaced or quarantined.
    Repair,
}

impl Reason {
    /// Whether a set with this reason may in fact be complete.
    pub fn leaves_open(&self) -> bool {
        matches!(
            self,
            Reason::Unproven(None)
                | Reason::Uncertain
                | Reason::Abandoned
                | Reason::Torn(_)
                | Reason::Fewer
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Open(path) => write!(f, "{path} is open"),
            Reason::Unclean(path) => write!(f, "the writer of {path} died or a write failed"),
            Reason::Ranks(there, all) => write!(f, "{there} of {all} ranks have written theirs"),
            Reason::Marks(begun, ended) => write!(f, "{ended} of {begun} processes are done"),
            Reason::Unsettled(_) => f.write_str("more files may come"),
            Reason::Unproven(None) => {
                f.write_str("these may not be all its files yet")
            }
            Reason::Unproven(Some((there, all))) => {
                write!(f, "{there} of {all} ranks have written theirs, and the others wrote nothing for a while")
            }
            Reason::Uncertain => f.write_str(
                "the number may count parts of one checkpoint; name the step with --checkpoint-pattern",
            ),
            Reason::Leaving(_) => f.write_str("some of its files were removed, and others may be"),
            Reason::Torn(path) => {
                write!(f, "{path} was not rewritten since one of its writers died")
            }
            Reason::Fewer => f.write_str("it lacks files that the checkpoint before it had"),
            Reason::Abandoned => f.write_str("it may have been unfinished when the run failed"),
            Reason::Repair => f.write_str(
                "the repair of its damaged files was interrupted; the next run of the job finishes it",
            ),
        }
    }
}

/// Files that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Name of the set.
    pub name: Name,
    /// Files of the set, ordered by path.
    pub members: Vec<Member>,
    /// When any of its files was last written, nanoseconds since the epoch.
    pub newest_ns: i64,
    /// State of the set.
    pub standing: DrainProgress,
    /// Families that were joined into this set; empty if it has a single family.
    pub families: Vec<Family>,
}

impl Set {
    /// Whether the set is complete.
    pub fn is_complete(&self) -> bool {
        self.standing == DrainProgress::Complete
    }

    /// Whether no process writes to the set, so that it may be copied, complete or not.
    pub fn is_quiet(&self) -> bool {
        matches!(self.standing, DrainProgress::Waiting(Reason::Unproven(_) | Reason::Uncertain))
    }

    /// Returns the total size of all files.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(|member| member.bytes).sum()
    }

    /// Returns the path of the only file, or of the lowest directory that contains all files.
    pub fn place(&self) -> FilePath {
        place(self.members.iter().map(|member| &member.path))
    }
}

/// Returns the only one of these paths, or that of the lowest directory that contains all of them.
pub fn place<'a>(mut paths: impl Iterator<Item = &'a FilePath>) -> FilePath {
    let Some(first) = paths.next() else { return FilePath::root() };
    paths.fold(first.clone(), |place, path| {
        let above = std::iter::successors(Some(place), |path| Some(path.split()?.0));
        above.into_iter().find(|place| path.strip_prefix(place).is_some()).unwrap_or_default()
    })
}

/// State of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// The run goes on: programs may write more.
    Running,
    /// The run succeeded.
    Succeeded,
    /// The run failed, was killed, or its end is unknown.
    Failed,
}

/// The ranks of an MPI program on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Number of ranks on this node.
    pub count: u32,
    /// Their numbers among all ranks of the program, as far as they are known.
    pub numbers: BTreeSet<u64>,
}

impl Ranks {
    /// Returns how many of the ranks `numbers` names, counted either by the program's rank numbers
    /// or by this node's.
    fn among(&self, numbers: &BTreeSet<u64>) -> u32 {
        let here = numbers.range(..u64::from(self.count)).count();
        here.max(numbers.intersection(&self.numbers).count()) as u32
    }

    /// Whether `numbers` names all of the ranks and nothing else.
    fn are(&self, numbers: &BTreeSet<u64>) -> bool {
        self.among(numbers) == self.count && numbers.len() == self.count as usize
    }
}

/// Knowledge beside the files.
pub struct Situation<'a> {
    /// Current time, nanoseconds since the epoch.
    pub now_ns: i64,
    /// Ranks of the MPI program that runs or ran last.
    pub ranks: Option<&'a Ranks>,
    /// State of the run.
    pub run: Run,
    /// Time until which programs could have written, nanoseconds since the epoch: the current time,
    /// or, after a run whose failure nobody saw, the time at which it was last seen alive.
    pub alive_ns: i64,
    /// Files older than this were left by runs that have ended, nanoseconds since the epoch.
    pub ended_ns: i64,
    /// Settle time. After this time without a change, during which programs could make one, the
    /// files of a set are copied, unless the set should be larger.
    pub settle: Duration,
    /// Announcements of programs about their checkpoints.
    pub marks: &'a [Mark],
    /// Whether a family has had complete sets.
    pub is_known: &'a dyn Fn(&Family) -> bool,
    /// Returns the files of the newest complete set of a family, ordered by path.
    pub usual: &'a dyn Fn(&Family) -> Option<&'a [Member]>,
    /// Returns the files of the set of this name when it was last complete.
    pub last_complete: &'a dyn Fn(&Name) -> Option<&'a [Member]>,
    /// Returns the time, nanoseconds since the epoch, since which these are the only files left of
    /// a set that had more when it was complete.
    pub left_since: &'a dyn Fn(&Name, &[Member]) -> Option<i64>,
    /// Whether these files are all or some of the files of a set that was unfinished when a run
    /// failed.
    pub was_abandoned: &'a dyn Fn(&[Member]) -> bool,
    /// Whether some of these files belong to such a set and to no checkpoint.
    pub has_abandoned: &'a dyn Fn(&[Member]) -> bool,
}

/// A set under construction.
#[derive(Default)]
struct Draft<'a> {
    files: Vec<(&'a FilePath, &'a Node)>,
    ranks: BTreeSet<u64>,
    /// Mark that the files belong to.
    mark: Option<&'a Mark>,
    /// The directory, if the set is one.
    directory: Option<FilePath>,
    /// Whether this may be one part of a set, see `numbered.rs`.
    is_uncertain: bool,
    /// Whether the directory got its name by `rename`, with its complete content.
    is_renamed: bool,
    /// Last change of the entries of its directories, nanoseconds since the epoch; 0 if it is not a
    /// directory.
    entries_ns: i64,
    /// Families that were joined into this set; empty if it has a single family.
    families: Vec<Family>,
}

impl Draft<'_> {
    fn members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = self.files.iter().copied().map(member).collect();
        members.sort();
        members
    }

    /// Number of path components of the directory that the set is.
    fn depth(&self) -> usize {
        self.directory.as_ref().map_or(0, |path| path.components().count())
    }

    /// Reads the times and the rename flag of the set's directories.
    fn note_directories(&mut self, groves: &[NamespaceTree<'_>]) {
        let Some(directory) = &self.directory else { return };
        let find = |path: &FilePath| groves.iter().find_map(|(_, tree)| tree.get(path));
        let parents = self.files.iter().filter_map(|(path, _)| Some(path.split()?.0));
        let all: BTreeSet<FilePath> = parents.chain([directory.clone()]).collect();
        let written = all.iter().filter_map(find).map(|node| node.written_ns);
        self.entries_ns = written.max().unwrap_or(0);
        let last_ns = newest_ns(self).max(self.entries_ns);
        // Whatever is written or removed in it later makes it a directory like others.
        self.is_renamed =
            find(directory).is_some_and(|node| node.renamed && last_ns <= node.written_ns);
    }
}

/// A namespace: its prefix and its tree. Namespaces of ranks have prefixes of their own.
pub type NamespaceTree<'a> = (&'a FilePath, &'a Tree);

/// Returns the sets that the files of `groves` form, ordered by name.
pub fn survey<'a>(
    groves: &[NamespaceTree<'a>],
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
    draft.files.iter().map(|(_, node)| node.written_ns).max().unwrap_or(0)
}

/// A file with its path as the writing program sees it.
struct Candidate<'a> {
    path: &'a FilePath,
    node: &'a Node,
    inner: FilePath,
    /// Rank that owns the namespace.
    rank: Option<u64>,
}

/// Returns the regular files of a namespace, without quarantined ones.
fn candidates<'a>((prefix, tree): NamespaceTree<'a>) -> impl Iterator<Item = Candidate<'a>> {
    let digits: String = prefix.to_lossy().chars().filter(char::is_ascii_digit).collect();
    let rank = digits.parse().ok();
    let files = tree.iter().filter(|(_, node)| node.kind == Kind::File);
    files.filter_map(move |(path, node)| {
        let inner = path.strip_prefix(prefix).filter(|inner| !path::is_aside(inner))?;
        Some(Candidate { path, node, inner, rank })
    })
}

/// Groups files into sets: by marks of programs, then by patterns, then by the numbers in names.
fn drafts<'a>(
    groves: &[NamespaceTree<'a>],
    patterns: &Patterns,
    situation: &Situation<'a>,
) -> BTreeMap<Name, Draft<'a>> {
    let mut drafts: BTreeMap<Name, Draft<'a>> = BTreeMap::new();
    let mut unnamed = Vec::new();
    for candidate in groves.iter().copied().flat_map(candidates) {
        let Candidate { path, node, .. } = candidate;
        if let Some(mark) = marks::mark_of(situation.marks, node.written_ns, situation.now_ns) {
            let draft = drafts.entry(mark.name.clone()).or_default();
            draft.mark = Some(mark);
            draft.files.push((path, node));
        } else if let Some(position) = patterns.position(candidate.inner.as_bytes()) {
            put(&mut drafts, position, &candidate);
        } else {
            unnamed.push(candidate);
        }
    }
    let published = published(groves, &unnamed, situation.is_known);
    let units = unnamed.iter().zip(&published).filter_map(|(file, directory)| {
        let is_left = file.node.written_ns < situation.ended_ns;
        match directory {
            None => Some(numbered::File {
                key: (file, None),
                path: file.inner.as_bytes(),
                written_ns: file.node.written_ns,
                is_left,
                is_directory: false,
            }),
            // Its first file stands for it.
            Some(directory) if directory.first == file.path => Some(numbered::File {
                key: (file, Some(directory.path)),
                path: &directory.inner,
                written_ns: directory.written_ns,
                is_left,
                is_directory: true,
            }),
            Some(_) => None,
        }
    });
    let (ranks, is_known) = (situation.ranks, situation.is_known);
    let mut of_directories: BTreeMap<&FilePath, Position> = BTreeMap::new();
    for ((candidate, directory), position) in numbered::positions(units, ranks, is_known) {
        match directory {
            None => put(&mut drafts, position, candidate),
            Some(directory) => drop(of_directories.insert(directory, position)),
        }
    }
    for (file, directory) in unnamed.iter().zip(&published) {
        let position = directory.as_ref().and_then(|it| of_directories.get(it.path));
        position.into_iter().for_each(|position| put(&mut drafts, position.clone(), file));
    }
    // A set that the user or the program declares is not joined with others.
    let is_said = |path: &FilePath| {
        let inner = groves.iter().find_map(|(prefix, _)| path.strip_prefix(prefix));
        inner.is_some_and(|inner| patterns.are_own_for(inner.as_bytes()))
    };
    companions::join(drafts, &|draft| {
        draft.mark.is_some() || draft.files.first().is_some_and(|(path, _)| is_said(path))
    })
}

/// A directory that was renamed into place, with all that is in it.
struct Published<'a> {
    path: &'a FilePath,
    /// Its path as the writing program sees it, with a slash behind it.
    inner: Vec<u8>,
    written_ns: i64,
    /// Its first file.
    first: &'a FilePath,
}

/// Returns for each of `files` the topmost directory above it that has a number in its name, and
/// was renamed into place after all in it had been written, or is of a known family.
fn published<'a>(
    groves: &[NamespaceTree<'a>],
    files: &[Candidate<'a>],
    is_known: &dyn Fn(&Family) -> bool,
) -> Vec<Option<Published<'a>>> {
    let mut directories: BTreeMap<&FilePath, (FilePath, i64)> = BTreeMap::new();
    for (prefix, tree) in groves {
        for (path, node) in tree.iter().filter(|(_, node)| node.kind == Kind::Directory) {
            let Some(inner) = path.strip_prefix(prefix) else { continue };
            if node.renamed && numbered::has_step(&inner) {
                directories.insert(path, (inner, node.written_ns));
            } else if numbered::families_of(&inner).iter().any(is_known) {
                directories.insert(path, (inner, i64::MAX));
            }
        }
    }
    let above = |path: &FilePath| -> Option<&'a FilePath> {
        let mut parents: Vec<FilePath> =
            std::iter::successors(path.split().map(|(parent, _)| parent), |path| {
                Some(path.split()?.0)
            })
            .collect();
        parents.reverse();
        parents.iter().find_map(|path| Some(*directories.get_key_value(path)?.0))
    };
    if directories.is_empty() {
        return files.iter().map(|_| None).collect();
    }
    let places: Vec<Option<&FilePath>> = files.iter().map(|file| above(file.path)).collect();
    let mut first: BTreeMap<&FilePath, &FilePath> = BTreeMap::new();
    let mut newest: BTreeMap<&FilePath, i64> = BTreeMap::new();
    let mut written_later: BTreeSet<&FilePath> = BTreeSet::new();
    for (file, place) in files.iter().zip(&places) {
        let Some(place) = place else { continue };
        first.entry(place).or_insert(file.path);
        if file.node.written_ns > directories[place].1 {
            written_later.insert(place);
        }
        let newest = newest.entry(place).or_insert(i64::MIN);
        *newest = file.node.written_ns.max(*newest);
    }
    let of = |place: Option<&'a FilePath>| {
        let path = place.filter(|place| !written_later.contains(place))?;
        let (inner, first) = ([directories[path].0.as_bytes(), b"/"].concat(), first[path]);
        Some(Published { path, inner, written_ns: newest[path], first })
    };
    places.into_iter().map(of).collect()
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
) -> DrainProgress {
    let of = |state: fn(&Node) -> bool| {
        draft.files.iter().find(|(_, node)| state(node)).map(|(path, _)| (*path).clone())
    };
    if let Some(path) = of(|node| node.open) {
        return DrainProgress::Waiting(Reason::Open(path));
    }
    if let Some(path) = of(|node| node.unclean) {
        return DrainProgress::Broken(Reason::Unclean(path));
    }
    let is_marked = draft.mark.is_some_and(Mark::is_done_by_all);
    if let Some(path) = of(|node| node.torn).filter(|_| !is_marked) {
        return DrainProgress::Broken(Reason::Torn(path));
    }
    let is_left = (situation.was_abandoned)(members);
    let last = (situation.last_complete)(name);
    if last == Some(members) && !is_left {
        return DrainProgress::Complete;
    }
    let usual = (situation.usual)(&name.family);
    let is_usual = usual.is_some_and(|usual| siblings.has_usual(name, usual));
    let is_mixed = last.is_some_and(|last| is_mixed(last, members)) || siblings.is_straddling(name);
    // What a whole one has tells what an abandoned one lacks.
    if is_left && (!is_usual || is_mixed) {
        return DrainProgress::Broken(Reason::Abandoned);
    }
    let is_over = situation.run == Run::Succeeded;
    if last == Some(members) {
        return DrainProgress::Complete;
    }
    if !is_over && !is_left && draft.mark.is_none() && (situation.has_abandoned)(members) {
        return DrainProgress::Broken(Reason::Abandoned);
    }
    // If the clock went back, the age is 0, so the set waits.
    let left_of = |patience: Duration, since_ns: i64| {
        let age_ns = situation.alive_ns.saturating_sub(since_ns).max(0);
        patience.saturating_sub(Duration::from_nanos(age_ns as u64))
    };
    let patience = situation.settle * PATIENCE_FACTOR;
    if last.is_some_and(|last| is_part(members, last)) {
        if is_over {
            return DrainProgress::Complete;
        }
        let since_ns = (situation.left_since)(name, members).unwrap_or(situation.now_ns);
        let left = left_of(patience, since_ns);
        return match left.is_zero() {
            true => DrainProgress::Complete,
            false => DrainProgress::Waiting(Reason::Leaving(left)),
        };
    }
    if draft.is_renamed && draft.mark.is_none() {
        // Its rename is its end, whatever its files are called.
        return DrainProgress::Complete;
    }
    let is_superseded = siblings.is_superseded(name);
    if let Some(mark) = draft.mark {
        let is_last = is_superseded || is_over;
        return match mark.is_done_by_all() || is_last && mark.is_done() {
            true => DrainProgress::Complete,
            false => {
                DrainProgress::Waiting(Reason::Marks(mark.begun.max(mark.expected), mark.ended))
            }
        };
    }
    // A program that ended well has rewritten everything it wanted to.
    let is_mixed = is_mixed && !is_over;
    if is_usual && !is_mixed && (is_over || !draft.is_uncertain) {
        return DrainProgress::Complete;
    }
    let ranks = situation.ranks.filter(|_| !draft.ranks.is_empty());
    let parts = ranks.map(|ranks| (ranks.among(&draft.ranks), ranks.count));
    let missing = parts.filter(|(there, all)| there < all);
    if is_over {
        // Not all ranks of a program have to write, but those that do are always the same.
        let may_lack = usual.is_some() || siblings.has_other_ranks(name);
        return match missing.filter(|_| may_lack) {
            Some((there, all)) => DrainProgress::Broken(Reason::Ranks(there, all)),
            None if usual.is_some() => DrainProgress::Broken(Reason::Fewer),
            None => DrainProgress::Complete,
        };
    }
    let is_short = is_superseded && !siblings.has_all_of_later(name);
    let is_patient = usual.is_some() || is_mixed || is_short || missing.is_some();
    let changed_ns = newest_ns(draft).max(draft.entries_ns);
    let left = left_of(if is_patient { patience } else { situation.settle }, changed_ns);
    let is_published = is_single_file(&name.family, draft);
    // No earlier set tells whether others must follow. A later one was begun, or has been written
    // by all writers of this one.
    let is_followed = || is_superseded || siblings.is_followed(name);
    let is_whole = !is_short
        && !is_mixed
        && !draft.is_uncertain
        && (is_published || usual.is_none() && is_followed());
    // Not all ranks of a program have to write, but those that do are always the same.
    let are_writers =
        left.is_zero() && siblings.have_same_ranks(name) && siblings.is_followed(name);
    match missing.filter(|_| !are_writers) {
        None if is_whole => DrainProgress::Complete,
        // Quiet files may be copied. Quiet does not tell whether more files come.
        None if left.is_zero() && draft.is_uncertain => DrainProgress::Waiting(Reason::Uncertain),
        missing if left.is_zero() => DrainProgress::Waiting(Reason::Unproven(missing)),
        None => DrainProgress::Waiting(Reason::Unsettled(left)),
        Some((there, all)) => DrainProgress::Waiting(Reason::Ranks(there, all)),
    }
}

/// Whether all of `some` are among `all`. Both are ordered by path.
fn is_part(some: &[Member], all: &[Member]) -> bool {
    let mut all = all.iter();
    some.iter().all(|one| all.any(|other| other == one))
}

/// Whether some files of a complete set were rewritten and some were not. Both lists are ordered by
/// path.
fn is_mixed(last: &[Member], members: &[Member]) -> bool {
    let is_same = |member: &Member| last.binary_search(member).is_ok();
    let is_other = |member: &Member| {
        let known = last.binary_search_by(|known| known.path.cmp(&member.path));
        known.is_ok_and(|index| last[index] != *member)
    };
    members.iter().any(is_same) && members.iter().any(is_other)
}

/// Whether a set of this family can have only one file, which was closed.
fn is_single_file(family: &Family, draft: &Draft<'_>) -> bool {
    let has = |word: &[u8]| family.0.windows(word.len()).any(|part| part == word);
    draft.directory.is_none() && !has(b"{any}") && !has(b"{rank}")
}

#[cfg(test)]
mod tests;
