//! Programs that write checkpoints: scripts of the changes that their processes make to names, and
//! the resulting store.
//!
//! A step is whole when its processes have done everything the script lists for it, and none of its
//! files was removed or written again. Readers change no names, so the scripts have none.
//!
//! Invariant: wholeness is computed from the script alone, whatever the agent says of checkpoints.

use crate::random::Random;
use cairn_job::checkpoint::sets::Member;
use cairn_job::file::node::Kind;
use cairn_job::file::node::{Node, Tree};
use cairn_job::file::path::FilePath;
use std::collections::{BTreeMap, BTreeSet};

const MS: i64 = 1_000_000;
/// Distance between two step numbers. Every step number is a multiple of it.
pub const STRIDE: u64 = 10;
/// Number of steps in a run.
const STEPS: u64 = 4;

/// How the files of a step get their final names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// They are created under them.
    Straight,
    /// Each is written under a temporary name and renamed.
    FilesRenamed,
    /// Rank 0 renames their directory when all are written.
    DirectoryRenamed,
    /// The first file of each rank is a hard link to that of the previous step.
    Linked,
}

/// A kind of checkpointing program.
#[derive(Clone, Copy)]
pub struct Style {
    /// Name for messages.
    pub name: &'static str,
    /// Number of processes.
    pub ranks: u64,
    /// Whether an MPI launcher tells the number of ranks.
    pub launched: bool,
    /// Returns the final path of file `file` of `rank` in `step`.
    pub path: fn(step: u64, rank: u64, file: u64) -> String,
    /// Returns the number of files per rank in `step`.
    pub files: fn(step: u64) -> u64,
    /// How the files get their final names.
    pub way: Way,
    /// Whether ranks wait for each other after each step.
    pub waits: bool,
    /// Longest pause between two files of a rank, milliseconds.
    pub pause_ms: u64,
    /// Longest extra delay of a rank that begins a step late, milliseconds.
    pub late_ms: u64,
    /// Number of steps kept; 0 keeps all.
    pub keeps: u64,
    /// Whether a process sometimes dies in a step and writes it anew.
    pub restarts: bool,
    /// Whether the node may be lost, with the register and the launcher's values in it.
    pub loses_memory: bool,
    /// Whether no checkpoint may be torn.
    pub is_certain: bool,
}

/// Change of a name.
#[derive(Clone, Debug)]
pub enum Act {
    /// Creates or empties the file and opens it for writing.
    Open,
    /// Closes the file.
    Close,
    /// Renames it to this name.
    Rename(String),
    /// Adds this name as a hard link.
    Link(String),
    /// Removes the name.
    Remove,
    /// The process dies.
    Die,
}

/// One change that a process makes.
#[derive(Clone, Debug)]
pub struct Event {
    /// Time, nanoseconds since the epoch.
    pub at_ns: i64,
    /// Rank that makes it.
    pub rank: u64,
    /// Step it belongs to.
    pub step: u64,
    /// The change.
    pub act: Act,
    /// Name it applies to.
    pub path: String,
}

impl Event {
    /// Whether the event is part of writing its step.
    pub fn writes(&self) -> bool {
        !matches!(self.act, Act::Remove)
    }
}

/// Author of a script.
struct Author<'a> {
    style: &'a Style,
    random: &'a mut Random,
    at_ns: Vec<i64>,
    events: Vec<Event>,
}

impl Author<'_> {
    fn add(&mut self, (rank, step): (u64, u64), act: Act, path: String) {
        let at_ns = self.at_ns[rank as usize];
        self.events.push(Event { at_ns, rank, step, act, path });
    }

    fn pass(&mut self, rank: u64, up_to_ms: u64) {
        self.at_ns[rank as usize] += 1 + self.random.below(up_to_ms.max(1)) as i64 * MS;
    }

    fn wait_for_all(&mut self) {
        let last_ns = *self.at_ns.iter().max().expect("there is a rank");
        self.at_ns.fill(last_ns);
    }

    fn step(&mut self, step: u64) {
        let style = *self.style;
        for rank in 0..style.ranks {
            self.pass(rank, 200);
            if self.random.one_in(4) {
                self.pass(rank, style.late_ms);
            }
            if style.restarts && self.random.one_in(6) {
                self.write(rank, step, 0);
                self.add((rank, step), Act::Open, self.name((style.path)(step, rank, 1)));
                self.add((rank, step), Act::Die, String::new());
                self.pass(rank, 60_000);
            }
            for file in 0..(style.files)(step) {
                self.write(rank, step, file);
            }
        }
        if style.waits {
            self.wait_for_all();
        }
        if style.way == Way::DirectoryRenamed {
            let path = (style.path)(step, 0, 0);
            let (directory, _) = path.split_once('/').expect("a directory");
            self.pass(0, 500);
            self.add((0, step), Act::Rename(directory.into()), self.name(directory.into()));
        }
        let old = step.saturating_sub(style.keeps * STRIDE);
        if style.keeps > 0 && old > 0 {
            for rank in 0..style.ranks {
                for file in 0..(style.files)(old) {
                    self.pass(0, 500);
                    self.add((0, old), Act::Remove, (style.path)(old, rank, file));
                }
            }
            self.wait_for_all();
        }
    }

    /// Returns the name of a file while it is being written.
    fn name(&self, path: String) -> String {
        match (self.style.way, path.split_once('/')) {
            (Way::FilesRenamed, _) => format!("{path}.tmp"),
            (Way::DirectoryRenamed, Some((directory, rest))) => format!("{directory}.tmp/{rest}"),
            (Way::DirectoryRenamed, None) => format!("{path}.tmp"),
            _ => path,
        }
    }

    fn write(&mut self, rank: u64, step: u64, file: u64) {
        let (who, path) = ((rank, step), (self.style.path)(step, rank, file));
        self.pass(rank, self.style.pause_ms);
        if self.style.way == Way::Linked && file == 0 && step > STRIDE {
            return self.add(who, Act::Link(path), (self.style.path)(step - STRIDE, rank, 0));
        }
        let name = self.name(path.clone());
        self.add(who, Act::Open, name.clone());
        self.pass(rank, 1000);
        self.add(who, Act::Close, name.clone());
        if self.style.way == Way::FilesRenamed {
            self.add(who, Act::Rename(path), name);
        }
    }
}

/// Returns the events of a program that begins at `begin_ns` with step `first`, in order of time.
pub fn script(style: &Style, random: &mut Random, begin_ns: i64, first: u64) -> Vec<Event> {
    let interval_ms = *random.pick(&[2000, 30_000, 300_000]);
    let at_ns = vec![begin_ns; style.ranks as usize];
    let mut author = Author { style, random, at_ns, events: Vec::new() };
    for step in (0..STEPS).map(|index| first + index * STRIDE) {
        let computed_ns = author.random.below(interval_ms) as i64 * MS;
        author.at_ns.iter_mut().for_each(|at_ns| *at_ns += computed_ns);
        author.step(step);
    }
    let mut events = author.events;
    events.sort_by_key(|event| event.at_ns);
    events
}

/// Ground truth about a step.
#[derive(Debug, Default)]
struct StepState {
    /// Number of events that its processes still have to do for it.
    left: usize,
    /// Whether a file of it is lost.
    lost: bool,
}

/// A store with the ground truth about it.
#[derive(Default)]
pub struct World {
    /// Tree that the agent sees.
    pub tree: Tree,
    /// Step that each file belongs to.
    owners: BTreeMap<FilePath, u64>,
    /// Rank that has a file open for writing.
    writers: BTreeMap<FilePath, u64>,
    steps: BTreeMap<u64, StepState>,
    inodes: u32,
}

fn parsed(path: &str) -> FilePath {
    FilePath::parse(path.as_bytes()).expect("a path")
}

impl World {
    fn make(&mut self, path: &FilePath, kind: Kind, mtime_ns: i64) {
        if let Some((parent, _)) = path.split().filter(|(parent, _)| !parent.is_root()) {
            if !self.tree.contains_key(&parent) {
                self.make(&parent, Kind::Directory, mtime_ns);
            }
            let parent = self.tree.get_mut(&parent).expect("was made");
            // A new entry clears the mark of a renamed directory.
            (parent.renamed, parent.written_ns) = (false, mtime_ns);
        }
        self.inodes += 1;
        let node =
            Node { bytes: 10, mtime_ns, written_ns: mtime_ns, ..Node::new(self.inodes, kind) };
        self.tree.insert(path.clone(), node);
    }

    /// Takes the file at `path` from its step and marks the step as lost, unless the step is `of`.
    fn take_from_step(&mut self, path: &FilePath, of: Option<u64>) {
        if let Some(owner) = self.owners.remove(path).filter(|owner| Some(*owner) != of) {
            self.steps.entry(owner).or_default().lost = true;
        }
    }

    /// Begins a step that consists of `left` events of all processes.
    pub fn begin(&mut self, step: u64, left: usize) {
        self.steps.insert(step, StepState { left, lost: false });
    }

    /// Applies an event.
    pub fn act(&mut self, event: &Event) {
        let (path, step) = (parsed(&event.path), event.step);
        if let Some(truth) = self.steps.get_mut(&step).filter(|_| event.writes()) {
            truth.left -= 1;
        }
        match &event.act {
            Act::Open => {
                self.take_from_step(&path, Some(step));
                if !self.tree.contains_key(&path) {
                    self.make(&path, Kind::File, event.at_ns);
                }
                let node = self.tree.get_mut(&path).expect("was made");
                (node.open, node.unclean, node.torn) = (true, false, false);
                (node.version, node.written_ns) = (node.version + 1, event.at_ns);
                self.owners.insert(path.clone(), step);
                self.writers.insert(path, event.rank);
            }
            Act::Close => {
                self.writers.remove(&path);
                let node = self.tree.get_mut(&path).expect("is open");
                (node.open, node.version) = (false, node.version + 1);
                node.written_ns = event.at_ns;
            }
            Act::Rename(to) => self.rename(&path, &parsed(to), step),
            Act::Link(to) => {
                let to = parsed(to);
                self.take_from_step(&to, Some(step));
                let node = self.tree[&path].clone();
                self.make(&to, Kind::File, event.at_ns);
                self.tree.insert(to.clone(), node);
                self.owners.insert(to, step);
            }
            Act::Remove => {
                self.tree.remove(&path);
                self.take_from_step(&path, None);
            }
            Act::Die => self.die(|rank| rank == event.rank),
        }
    }

    fn rename(&mut self, from: &FilePath, to: &FilePath, step: u64) {
        let moved = |path: &FilePath| path.strip_prefix(from).map(|tail| to.append(&tail));
        let names: Vec<FilePath> =
            self.tree.keys().filter(|path| moved(path).is_some()).cloned().collect();
        for name in names {
            let (mut node, place) =
                (self.tree.remove(&name).expect("is there"), moved(&name).expect("is below"));
            node.renamed = name == *from && node.kind == Kind::Directory;
            self.take_from_step(&place, Some(step));
            if let Some(owner) = self.owners.remove(&name) {
                self.owners.insert(place.clone(), owner);
            }
            self.tree.insert(place, node);
        }
    }

    /// Kills the ranks that `dies` selects. Every file they have open becomes unclean.
    pub fn die(&mut self, dies: impl Fn(u64) -> bool) {
        for (path, _) in self.writers.iter().filter(|(_, rank)| dies(**rank)) {
            let node = self.tree.get_mut(path).expect("is open");
            (node.open, node.unclean, node.torn) = (false, true, true);
        }
        self.writers.retain(|_, rank| !dies(*rank));
    }

    /// Whether a step is whole.
    pub fn is_whole(&self, step: u64) -> bool {
        let truth = &self.steps[&step];
        truth.left == 0 && !truth.lost && self.owners.values().any(|owner| *owner == step)
    }

    /// Returns the whole steps.
    pub fn whole(&self) -> Vec<u64> {
        self.steps.keys().copied().filter(|step| self.is_whole(*step)).collect()
    }

    /// Returns the steps that these files belong to.
    pub fn steps_of(&self, files: &[Member]) -> BTreeSet<u64> {
        files.iter().map(|file| self.owners[&file.path]).collect()
    }

    /// Whether `files` contains every file of these steps.
    pub fn are_all(&self, steps: &BTreeSet<u64>, files: &[Member]) -> bool {
        let paths: BTreeSet<&FilePath> = files.iter().map(|file| &file.path).collect();
        let mut own = self.owners.iter().filter(|(_, owner)| steps.contains(owner));
        own.all(|(path, _)| paths.contains(path))
    }
}
