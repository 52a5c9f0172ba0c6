//! Passes of the drain, lived through by the thousand: what `cairn-job` decides is carried out on a
//! model of the persist directory, by an agent that may die at any step.
//!
//! Must stay true, whatever programs do between two cuts:
//! - After a turn, the directory shows the cut: each name, kind, content, mode and link.
//! - A turn that was cut off is finished by its journal, and then it shows the cut, too. Before the
//!   journal is whole nothing has changed.
//! - The last whole version of a file that is being written is there, in its place or beside it.
//! - If a copy could not be made, nothing is removed.
//!
//! The model of the store and of the directory, and the one that carries out the steps, are written
//! here from the description of the steps. Four planted bugs are found.
//!
//! `CAIRN_TEST_SEEDS=n` runs n histories, `CAIRN_TEST_SEED=s` repeats one.

use cairn_job::file::node::{Kind, Node, Tree};
use cairn_job::file::path::FilePath;
use cairn_job::outside::found::Found;
use cairn_job::outside::manifest::{Copy, Entry, Manifest};
use cairn_job::outside::steps::{Fate, Step};
use cairn_job::pass::plan::{Plan, plan};
use cairn_job::pass::sequence::{Made, Material};
use cairn_testing::random::{Random, SEED_VARIABLE, SEEDS_VARIABLE, environment_number, soaking};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

const HISTORIES: u64 = 3_000;
const HISTORIES_IN_SOAK: u64 = 300_000;
/// Histories in which a planted bug must be found.
const HISTORIES_OF_A_BUG: u64 = 3_000;
const PASSES: u64 = 5;
const DIRECTORIES: [&str; 3] = ["", "d/", "e/"];
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Content of a file: the pieces that were written to it.
type Content = Vec<u32>;

/// The store: its names, and the content of each inode.
#[derive(Clone, Default)]
struct Store {
    tree: Tree,
    contents: HashMap<u32, Content>,
    inodes: u32,
    pieces: u32,
}

/// A file, directory or link outside.
#[derive(Clone, Debug, PartialEq, Eq)]
struct There {
    inode: u64,
    found: Found,
    content: Content,
    target: Vec<u8>,
}

/// The persist directory.
#[derive(Clone, Default)]
struct Directory {
    files: BTreeMap<FilePath, There>,
    whole: BTreeMap<FilePath, There>,
    shelf: BTreeMap<FilePath, There>,
    journal: Option<(u64, Vec<Step>)>,
    inodes: u64,
}

/// A bug that somebody could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Files are copied as they are now, not as they were at the cut.
    NoCut,
    /// What a file belongs to keeps it from being placed.
    Withheld,
    /// The last whole version of a file goes when a torn one takes its name.
    WholeGone,
    /// What the program removed goes first.
    OutOfOrder,
}

fn path(text: &str) -> FilePath {
    FilePath::parse(text.as_bytes()).expect("a path")
}

impl Store {
    fn any_path(dice: &mut Random) -> FilePath {
        path(&format!("{}{}", dice.pick(&DIRECTORIES), dice.pick(&NAMES)))
    }

    fn node(&mut self, kind: Kind) -> Node {
        self.inodes += 1;
        Node {
            mode: if kind == Kind::Directory { 0o755 } else { 0o644 },
            mtime_ns: i64::from(self.inodes),
            ..Node::new(self.inodes, kind)
        }
    }

    /// Changes all names of a file.
    fn update(&mut self, inode: u32, change: impl Fn(&mut Node)) {
        self.tree.values_mut().filter(|node| node.inode == inode).for_each(change);
    }

    fn is_in_directory(&self, path: &FilePath) -> bool {
        let (parent, _) = path.split().expect("it has a name");
        parent.is_root() || self.tree.get(&parent).is_some_and(|it| it.kind == Kind::Directory)
    }

    fn write(&mut self, path: &FilePath, appends: bool, stays_open: bool) {
        match self.tree.get(path).map(|node| node.kind) {
            Some(Kind::Directory | Kind::Symlink) => return,
            Some(Kind::File) => {}
            None => {
                let node = self.node(Kind::File);
                self.tree.insert(path.clone(), node);
            }
        }
        let inode = self.tree[path].inode;
        self.pieces += 1;
        let (piece, content) = (self.pieces, self.contents.entry(inode).or_default());
        if !appends {
            content.clear();
        }
        content.push(piece);
        let (bytes, now) = (content.len() as u64, i64::from(piece) * 1_000);
        self.update(inode, |node| {
            (node.bytes, node.mtime_ns, node.version) = (bytes, now, node.version + 1);
            node.open = stays_open;
            node.unclean &= stays_open;
            node.torn &= appends;
        });
    }

    fn remove(&mut self, path: &FilePath) {
        let Some(node) = self.tree.remove(path) else { return };
        let links = self.tree.values().filter(|other| other.inode == node.inode).count() as u32;
        self.update(node.inode, |other| other.links = links);
    }

    /// One operation of a program.
    fn operate(&mut self, dice: &mut Random) {
        let (one, other) = (Store::any_path(dice), Store::any_path(dice));
        if !self.is_in_directory(&one) || !self.is_in_directory(&other) {
            let directory = path(["d", "e"][dice.below(2) as usize]);
            if !self.tree.contains_key(&directory) {
                let node = self.node(Kind::Directory);
                self.tree.insert(directory, node);
            }
            return;
        }
        let kind = |store: &Store, path: &FilePath| store.tree.get(path).map(|node| node.kind);
        match dice.below(12) {
            0..=3 => self.write(&one, false, false),
            4 => self.write(&one, false, true),
            5 => self.write(&one, true, dice.one_in(2)),
            6 => {
                // Closed in order, or its writer dies.
                let is_killed = dice.one_in(2);
                let Some(node) = self.tree.get(&one).filter(|node| node.open) else { return };
                self.update(node.inode, |node| {
                    (node.open, node.unclean) = (false, is_killed);
                    node.torn |= is_killed;
                });
            }
            7 | 8 if one != other => {
                let Some(node) = self.tree.get(&one).cloned() else { return };
                let there = self.tree.get(&other).cloned();
                let is_same = there.as_ref().is_some_and(|there| there.inode == node.inode);
                let fits = there.is_none_or(|there| there.kind != Kind::Directory);
                if node.kind != Kind::Directory && fits && !is_same {
                    self.remove(&other);
                    self.tree.remove(&one);
                    self.tree.insert(other, node);
                }
            }
            9 => match kind(self, &one) {
                Some(Kind::Directory) => {}
                _ => self.remove(&one),
            },
            10 if one != other && !self.tree.contains_key(&other) => {
                let is_file = kind(self, &one) == Some(Kind::File);
                let Some(node) = self.tree.get(&one).filter(|_| is_file).cloned() else { return };
                self.update(node.inode, |node| node.links += 1);
                let node = self.tree[&one].clone();
                self.tree.insert(other, node);
            }
            _ => match kind(self, &one) {
                None => {
                    let target = NAMES[dice.below(3) as usize].as_bytes().to_vec();
                    let node = self.node(Kind::Symlink);
                    self.tree.insert(one, Node { target, mode: 0o777, ..node });
                }
                Some(Kind::File) => {
                    let mode = *dice.pick(&[0o600, 0o640, 0o644]);
                    let inode = self.tree[&one].inode;
                    self.update(inode, |node| node.mode = mode);
                }
                Some(_) => {
                    // A directory or a link gives way to something else.
                    let below = |path: &&FilePath| {
                        path.strip_prefix(&one).is_some_and(|inner| !inner.is_root())
                    };
                    if !self.tree.keys().any(|path| below(&path)) {
                        self.remove(&one);
                    }
                }
            },
        }
        if dice.one_in(9) {
            let directory = path(["d", "e"][dice.below(2) as usize]);
            let inside: Vec<FilePath> = self
                .tree
                .keys()
                .filter(|path| path.strip_prefix(&directory).is_some())
                .cloned()
                .collect();
            if inside.len() == 1 {
                self.remove(&directory);
            }
        }
    }
}

fn sum(content: &Content) -> u32 {
    content.iter().fold(7, |sum: u32, piece| sum.wrapping_mul(31).wrapping_add(*piece))
}

impl Directory {
    fn there(&mut self, node: &Node, content: Content) -> There {
        self.inodes += 1;
        let found = Found {
            kind: Some(node.kind),
            bytes: content.len() as u64,
            mtime_ns: node.mtime_ns,
            mode: node.mode,
            inode: self.inodes,
            links: 1,
        };
        There { inode: self.inodes, found, content, target: node.target.clone() }
    }

    fn ours<'a>(&'a self, manifest: &Manifest, path: &FilePath) -> Option<&'a There> {
        let there = self.files.get(path)?;
        manifest.files.get(path)?.is_ours(&there.found).then_some(there)
    }

    /// Carries out a step, or does nothing if it is done. Returns whether that succeeded.
    fn carry_out(&mut self, manifest: &mut Manifest, step: &Step) -> bool {
        match step {
            Step::Remove { path } => {
                let is_empty = |path: &FilePath| {
                    let inner = |other: &&FilePath| {
                        other.strip_prefix(path).is_some_and(|inner| !inner.is_root())
                    };
                    !self.files.keys().any(|other| inner(&other))
                };
                if self.ours(manifest, path).is_some() && is_empty(path) {
                    self.files.remove(path);
                }
                manifest.files.remove(path);
            }
            Step::Entry { path, entry } => {
                if let Some(known) = manifest.files.get_mut(path) {
                    known.clone_from(entry);
                }
            }
            Step::Forget { path } => drop(manifest.files.remove(path)),
            Step::Directory { path, entry, .. } => {
                let mut there = self.plain(entry);
                there.found.mode = entry.mode | 0o700;
                self.files.entry(path.clone()).or_insert(there);
                manifest.files.insert(path.clone(), entry.clone());
            }
            Step::Symlink { path, entry } => {
                let there = self.plain(entry);
                self.files.insert(path.clone(), there);
                manifest.files.insert(path.clone(), entry.clone());
            }
            Step::Rename { from, path, inode, fate } => {
                let Some(entry) = manifest.files.get(from).cloned() else { return true };
                let is_it = |path: &FilePath| {
                    self.files.get(path).is_some_and(|there| there.inode == *inode)
                };
                let is_like_it = self.files.get(path).is_some_and(|there| {
                    let is_other = self.ours(manifest, path).is_none();
                    let bytes = entry.copy().map(|copy| copy.bytes);
                    let is_gone = self
                        .files
                        .get(from)
                        .is_none_or(|here| here.inode != *inode && !entry.is_ours(&here.found));
                    is_other && is_gone && bytes == Some(there.found.bytes)
                });
                if is_it(from) || !is_it(path) && !is_like_it {
                    if !is_it(from) {
                        manifest.files.remove(from);
                        return false;
                    }
                    self.keep(manifest, path, *fate);
                    let there = self.files.remove(from).expect("it was looked at");
                    self.files.insert(path.clone(), there);
                }
                self.note_whole(manifest, path, *fate);
                manifest.files.remove(from);
                manifest.files.insert(path.clone(), entry);
            }
            Step::Place { path, entry, inode, fate } => {
                if self.files.get(path).is_none_or(|there| there.inode != *inode) {
                    let Some(there) = self.shelf.get(path).filter(|it| it.inode == *inode).cloned()
                    else {
                        return false;
                    };
                    self.keep(manifest, path, *fate);
                    self.shelf.remove(path);
                    self.files.insert(path.clone(), there);
                }
                self.note_whole(manifest, path, *fate);
                manifest.files.insert(path.clone(), entry.clone());
            }
            Step::Link { from, path, entry, fate } => {
                let Some(there) = self.ours(manifest, from).cloned() else { return false };
                if self.files.get(path).is_none_or(|other| other.inode != there.inode) {
                    self.keep(manifest, path, *fate);
                    self.files.insert(path.clone(), there);
                }
                self.note_whole(manifest, path, *fate);
                manifest.files.insert(path.clone(), entry.clone());
            }
            Step::Attributes { path, mode, mtime_ns, .. } => {
                let Some(entry) = manifest.files.get(path).cloned() else { return false };
                let changed = entry.with_attributes(*mode, *mtime_ns);
                let Some(there) = self.files.get(path).cloned() else { return false };
                if !entry.is_ours(&there.found) && !changed.is_ours(&there.found) {
                    manifest.files.remove(path);
                    return false;
                }
                let is_set = there.found.mode == *mode && there.found.mtime_ns == *mtime_ns;
                if !is_set {
                    let mut there = there;
                    let names = self.files.values().filter(|it| it.inode == there.inode).count();
                    if there.found.kind == Some(Kind::File) && names > 1 {
                        // A copy with other names gets an inode of its own.
                        self.inodes += 1;
                        there.inode = self.inodes;
                    }
                    (there.found.mode, there.found.mtime_ns) = (*mode, *mtime_ns);
                    self.files.insert(path.clone(), there);
                }
                if let Some(entry) = manifest.files.get_mut(path) {
                    (entry.mode, entry.mtime_ns) = (*mode, *mtime_ns);
                }
            }
            Step::Release { path } => {
                let here = manifest.files.get(path).filter(|entry| entry.kind == Kind::File);
                if here.is_none_or(|entry| !entry.unclosed) {
                    self.whole.remove(path);
                    manifest.whole.remove(path);
                }
            }
        }
        true
    }

    fn plain(&mut self, entry: &Entry) -> There {
        self.inodes += 1;
        let found = Found {
            kind: Some(entry.kind),
            bytes: 0,
            mtime_ns: entry.mtime_ns,
            mode: entry.mode,
            inode: self.inodes,
            links: 1,
        };
        let target = entry.target.as_ref().map(|target| target.0.clone()).unwrap_or_default();
        There { inode: self.inodes, found, content: Vec::new(), target }
    }

    fn keep(&mut self, manifest: &Manifest, path: &FilePath, fate: Fate) {
        if let (Fate::Whole, Some(there)) = (fate, self.ours(manifest, path).cloned()) {
            self.whole.insert(path.clone(), there);
        }
    }

    fn note_whole(&self, manifest: &mut Manifest, path: &FilePath, fate: Fate) {
        let entry = manifest.files.get(path).cloned();
        let is_its =
            |entry: &Entry| self.whole.get(path).is_some_and(|there| entry.is_ours(&there.found));
        if let (Fate::Whole, Some(entry)) = (fate, entry.filter(is_its)) {
            manifest.whole.insert(path.clone(), entry);
        }
    }
}

/// A job: its store, the directory, and what the directory must show.
struct Life {
    dice: Random,
    bug: Bug,
    store: Store,
    directory: Directory,
    /// The manifest on disk.
    manifest: Manifest,
    /// The cut that the directory shows.
    shown: Store,
    /// Last whole versions that must be there.
    whole: BTreeMap<FilePath, Content>,
    /// Whether a copy could not be made in some pass. A name that was to go then may have come back
    /// as a copy of its own.
    has_failed: bool,
}

impl Life {
    fn new(seed: u64, bug: Bug) -> Life {
        Life {
            dice: Random::new(seed),
            bug,
            store: Store::default(),
            directory: Directory::default(),
            manifest: Manifest::new("job", "0123456789abcdef", "/cairn"),
            shown: Store::default(),
            whole: BTreeMap::new(),
            has_failed: false,
        }
    }

    fn live(&mut self) -> Result<(), String> {
        for number in 0..PASSES {
            for _ in 0..1 + self.dice.below(8) {
                let mut dice = self.dice.clone();
                self.store.operate(&mut dice);
                self.dice = dice;
            }
            self.pass(number).map_err(|said| format!("pass {number}: {said}"))?;
        }
        Ok(())
    }

    fn pass(&mut self, number: u64) -> Result<(), String> {
        let cut = self.store.clone();
        let manifest = self.manifest.clone();
        let plan = plan(&cut.tree, &manifest, &FilePath::root(), &HashSet::new());
        if self.bug == Bug::NoCut {
            let mut dice = self.dice.clone();
            (0..4).for_each(|_| self.store.operate(&mut dice));
            self.dice = dice;
        }
        let fails = self.dice.one_in(6);
        let made = self.copy(&cut, &plan, &manifest, fails);
        let is_whole = plan.copies.iter().all(|path| made.contains_key(path));
        let mut inodes = HashMap::new();
        for (from, _) in &plan.renames {
            let there = self.directory.ours(&manifest, from);
            inodes.extend(there.map(|there| (from.clone(), there.inode)));
        }
        let mut steps = Material {
            plan: &plan,
            tree: &cut.tree,
            manifest: &manifest,
            made: &|path, _| made.get(path),
            inodes: &inodes,
            may_try: &|_| true,
            is_whole,
        }
        .sequence();
        self.plant(&mut steps);
        if environment_number(SEED_VARIABLE).is_some() {
            println!("pass {number}:");
            steps
                .iter()
                .for_each(|step| println!("  {}", serde_json::to_string(step).unwrap_or_default()));
        }
        let before = self.directory.clone();
        self.turn(manifest, (number + 1, &steps))?;
        match is_whole {
            true => self.judge(&cut),
            false => self.judge_rest(&before, &cut),
        }
    }

    /// Makes the copies on the shelf. If it `fails`, one of them is missing.
    fn copy(
        &mut self,
        cut: &Store,
        plan: &Plan,
        manifest: &Manifest,
        fails: bool,
    ) -> HashMap<FilePath, Made> {
        let left_out = fails.then(|| self.dice.below(plan.copies.len().max(1) as u64) as usize);
        let mut made = HashMap::new();
        for (index, path) in plan.copies.iter().enumerate() {
            if Some(index) == left_out {
                continue;
            }
            let node = &cut.tree[path];
            let from = if self.bug == Bug::NoCut { &self.store } else { cut };
            let content = from.contents.get(&node.inode).cloned().unwrap_or_default();
            let extends = self
                .directory
                .ours(manifest, path)
                .is_some_and(|there| content.starts_with(&there.content));
            let copy = Copy {
                bytes: content.len() as u64,
                crc32c: sum(&content),
                mode: node.mode,
                mtime_ns: node.mtime_ns,
                version: node.version,
                extended: None,
            };
            let there = self.directory.there(node, content);
            let inode = there.inode;
            self.directory.shelf.insert(path.clone(), there);
            made.insert(path.clone(), Made { copy, inode, extends });
        }
        made
    }

    fn plant(&mut self, steps: &mut Vec<Step>) {
        match self.bug {
            Bug::None | Bug::NoCut => {}
            Bug::Withheld => {
                let placed = steps.iter().position(|step| matches!(step, Step::Place { .. }));
                placed.filter(|_| self.dice.one_in(4)).map(|index| steps.remove(index));
            }
            Bug::WholeGone => {
                for step in steps {
                    if let Step::Place { fate, .. }
                    | Step::Rename { fate, .. }
                    | Step::Link { fate, .. } = step
                    {
                        *fate = Fate::Gone;
                    }
                }
            }
            Bug::OutOfOrder => {
                steps.sort_by_key(|step| !matches!(step, Step::Remove { .. }));
                let first = steps.iter().filter(|step| matches!(step, Step::Remove { .. })).count();
                steps[first..].reverse();
            }
        }
    }

    /// Turns the directory. The agent may die before any step, and before or after the manifest is
    /// there; then another one finishes the turn.
    fn turn(
        &mut self,
        mut manifest: Manifest,
        (number, steps): (u64, &[Step]),
    ) -> Result<(), String> {
        self.directory.journal = Some((number, steps.to_vec()));
        let dies = self.dice.below(steps.len() as u64 * 2 + 4) as usize;
        let has_all = self.carry_out_all(&mut manifest, &steps[..dies.min(steps.len())]);
        if dies >= steps.len() {
            let _ = has_all;
            manifest.turn = number;
            if dies != steps.len() {
                self.manifest = manifest;
            }
            if dies > steps.len() + 1 {
                self.directory.journal = None;
                return Ok(());
            }
        }
        // The next agent finds the journal.
        let (number, steps) = self.directory.journal.take().expect("it was written");
        if number > self.manifest.turn {
            let mut manifest = self.manifest.clone();
            self.carry_out_all(&mut manifest, &steps);
            manifest.turn = number;
            self.manifest = manifest;
        }
        Ok(())
    }

    fn carry_out_all(&mut self, manifest: &mut Manifest, steps: &[Step]) -> bool {
        let (mut kept, mut has_all) = (BTreeSet::new(), true);
        for step in steps {
            if !has_all && matches!(step, Step::Remove { .. }) {
                continue;
            }
            let is_kept = kept.contains(step.path());
            let done = !is_kept && self.directory.carry_out(manifest, step);
            if let (Step::Rename { from, .. }, false) = (step, done) {
                kept.insert(from.clone());
            }
            has_all &= done;
        }
        has_all
    }

    /// Compares the directory with the cut that it must show.
    fn judge(&mut self, cut: &Store) -> Result<(), String> {
        let names = |paths: Vec<&FilePath>| -> Vec<String> {
            paths.into_iter().map(ToString::to_string).collect()
        };
        let (there, wanted) =
            (names(self.directory.files.keys().collect()), names(cut.tree.keys().collect()));
        if there != wanted {
            return Err(format!("{there:?} instead of {wanted:?}"));
        }
        let mut groups: BTreeMap<u32, u64> = BTreeMap::new();
        for (path, node) in &cut.tree {
            let there = &self.directory.files[path];
            let content = cut.contents.get(&node.inode).cloned().unwrap_or_default();
            let wanted = (Some(node.kind), &content, &node.target, node.mode);
            let found = (there.found.kind, &there.content, &there.target, there.found.mode);
            if node.kind != Kind::Directory && found != wanted {
                return Err(format!("{path}: {found:?} instead of {wanted:?}"));
            }
            if node.kind == Kind::File
                && !self.has_failed
                && *groups.entry(node.inode).or_insert(there.inode) != there.inode
            {
                return Err(format!("{path} is no name of the file that it is one of"));
            }
        }
        self.judge_whole(cut)
    }

    fn judge_whole(&mut self, cut: &Store) -> Result<(), String> {
        let mut whole = BTreeMap::new();
        for (path, node) in cut.tree.iter().filter(|(_, node)| node.kind == Kind::File) {
            if !node.open && !node.unclean {
                continue;
            }
            let content = cut.contents.get(&node.inode).cloned().unwrap_or_default();
            let before = self.shown.tree.get(path).filter(|before| before.kind == Kind::File);
            let was_whole = before.filter(|before| !before.open && !before.unclean);
            // What the program has moved away is where it is now.
            let is_there = |before: &&Node| {
                let same =
                    |other: &Node| (other.inode, other.version) == (before.inode, before.version);
                cut.tree.iter().any(|(other, node)| other != path && same(node))
            };
            let was_whole = was_whole.filter(|before| !is_there(before));
            let last = was_whole
                .map(|before| self.shown.contents.get(&before.inode).cloned().unwrap_or_default());
            let is_same = was_whole
                .is_some_and(|before| (before.inode, before.version) == (node.inode, node.version));
            // A file that was only continued, or opened, has its last whole version in it.
            let last = last.filter(|last| !last.is_empty() && !content.starts_with(last));
            let last = last.filter(|_| !is_same).or_else(|| self.whole.get(path).cloned());
            if let Some(last) = last {
                whole.insert(path.clone(), last);
            }
        }
        self.whole = whole;
        for (path, content) in &self.whole {
            let kept = self.directory.whole.get(path).map(|there| &there.content);
            let is_named = self.manifest.whole.contains_key(path);
            if kept != Some(content) || !is_named {
                return Err(format!("the last whole {path} is {content:?}, kept is {kept:?}"));
            }
        }
        self.shown = cut.clone();
        Ok(())
    }

    /// Checks that nothing went that a cut has which did not arrive as a whole.
    fn judge_rest(&mut self, before: &Directory, cut: &Store) -> Result<(), String> {
        let moved =
            |there: &There| self.directory.files.values().any(|it| it.content == there.content);
        for (path, there) in &before.files {
            let stays = self.directory.files.contains_key(path) || moved(there);
            let gives_way = cut.tree.iter().any(|(other, node)| {
                path.strip_prefix(other).is_some() && Some(node.kind) != there.found.kind
            });
            if !stays && !gives_way && there.found.kind == Some(Kind::File) {
                return Err(format!("{path} is gone, though not all of the cut arrived"));
            }
        }
        // What it shows is a mixture until the next pass: nothing more can be said of it.
        self.shown = Store::default();
        self.has_failed = true;
        self.whole.clear();
        Ok(())
    }
}

fn found(bug: Bug, histories: u64) -> Option<(u64, String)> {
    (0..histories).find_map(|seed| Some((seed, Life::new(seed, bug).live().err()?)))
}

#[test]
fn directory_shows_the_last_cut_whatever_programs_do_and_whenever_the_agent_dies() {
    let count = if soaking() { HISTORIES_IN_SOAK } else { HISTORIES };
    let count = environment_number(SEEDS_VARIABLE).unwrap_or(count);
    let said = match environment_number(SEED_VARIABLE) {
        Some(seed) => Life::new(seed, Bug::None).live().err().map(|said| (seed, said)),
        None => found(Bug::None, count),
    };
    assert_eq!(said, None);
    println!("{count} histories of {PASSES} passes");
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::NoCut, Bug::Withheld, Bug::WholeGone, Bug::OutOfOrder] {
        let (seed, said) = found(bug, HISTORIES_OF_A_BUG).unwrap_or_else(|| panic!("{bug:?}"));
        println!("{bug:?} is found in history {seed}: {said}");
    }
}
