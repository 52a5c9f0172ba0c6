//! Brings what a pass plans into the order of one turn of the persist directory.
//!
//! A pure function of the plan, the tree, the manifest and the copies that were made.
//!
//! Must stay true:
//! - No step removes or replaces a copy that a later one needs.
//! - What the program removed goes last, and only if all of the cut arrives.
//! - The copy of a file that was closed in order outlives one that was not: it goes to the
//!   directory for last whole versions, until a whole copy has the name again.

use crate::file::node::{Kind, Node, Tree};
use crate::file::path::FilePath;
use crate::outside::comparison::has_other_attributes;
use crate::outside::manifest::{Copy, Entry, Manifest, State, Target};
use crate::outside::steps::{Fate, Step};
use crate::pass::plan::{Plan, directories_of, lies_in};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Smallest spare that is patched; a smaller file is copied anew, together with others.
pub const SPARE_BYTES_MIN: u64 = 256 << 10;

/// A copy that waits for its turn.
#[derive(Clone, Debug)]
pub struct Made {
    /// The copy.
    pub copy: Copy,
    /// Its inode in the persist directory, on the shelf or already in its place.
    pub inode: u64,
    /// Whether it begins with all bytes of the copy that it replaces.
    pub extends: bool,
}

/// What the sequence of a namespace is made of.
pub struct Material<'a> {
    /// What is to change.
    pub plan: &'a Plan,
    /// The namespace at the cut.
    pub tree: &'a Tree,
    /// What lies outside.
    pub manifest: &'a Manifest,
    /// Returns the copy that was made of exactly this file.
    pub made: &'a dyn Fn(&FilePath, &Node) -> Option<&'a Made>,
    /// Inodes, in the persist directory, of the copies that are to be renamed, as far as they are
    /// still ours.
    pub inodes: &'a HashMap<FilePath, u64>,
    /// Whether a path may be tried now.
    pub may_try: &'a dyn Fn(&FilePath) -> bool,
    /// Whether all of the cut can be there after the turn. If not, copies stay that the program has
    /// removed, because they may be what it is to go on from.
    pub is_whole: bool,
}

/// Where what has a name after the copies were placed comes from.
struct Arrivals<'a> {
    copies: HashSet<&'a FilePath>,
    /// By the new name, the one that the copy has before.
    renamed: HashMap<&'a FilePath, &'a FilePath>,
}

impl<'a> Arrivals<'a> {
    fn of(plan: &'a Plan) -> Arrivals<'a> {
        let renamed = plan.renames.iter().map(|(from, to)| (to, from)).collect();
        Arrivals { copies: plan.copies.iter().collect(), renamed }
    }
}

impl Material<'_> {
    /// Returns the steps in their order.
    pub fn sequence(&self) -> Vec<Step> {
        let Plan { remove, directories, renames, symlinks, copies, links, .. } = self.plan;
        let kind = |path: &FilePath| self.manifest.files.get(path).map(|entry| entry.kind);
        let arrivals = Arrivals::of(self.plan);
        // What something else takes the place of must go first.
        let displaced = self.plan.displaced(self.tree);
        let (first, last): (Vec<&FilePath>, Vec<_>) =
            remove.iter().partition(|path| lies_in(path, &displaced));
        let mut steps = self.entries();
        steps.extend(first.into_iter().map(removal));
        steps.extend(directories.iter().filter_map(|path| {
            let entry = self.tree.get(path)?.entry(State::Drained);
            let extended = self.tree[path].extended.clone();
            Some(Step::Directory { path: path.clone(), entry, extended })
        }));
        for (from, path) in renames {
            // A copy that is gone must be told from one that had its name all the time.
            let inode = self.inodes.get(from).copied().unwrap_or(0);
            let fate = self.tree.get(path).map_or(Fate::Gone, |node| self.fate(path, node, false));
            let fate = if fate == Fate::Spare { Fate::Gone } else { fate };
            steps.push(Step::Rename { from: from.clone(), path: path.clone(), inode, fate });
            steps.extend(self.closed_meanwhile(from, path));
        }
        steps.extend(symlinks.iter().filter_map(|path| {
            let node = self.tree.get(path)?;
            let target = Some(Target(node.target.clone()));
            let entry = Entry { target, ..node.entry(State::Drained) };
            Some(Step::Symlink { path: path.clone(), entry })
        }));
        steps.extend(copies.iter().filter_map(|path| self.place(path)));
        // The other names of a file that gets attributes follow after these.
        let changed = self.changed();
        let links = links.iter().filter(|(_, path)| {
            self.tree.get(path).is_none_or(|node| !changed.contains(&node.inode))
        });
        steps.extend(links.clone().filter_map(|(from, path)| {
            let copy = self.entry_at_end(from, &arrivals)?.copy()?;
            let entry = self.tree.get(path)?.drained_entry(copy);
            Some(self.link(from, path, entry))
        }));
        steps.extend(self.releases(true, &arrivals));
        if self.is_whole {
            let is_directory = |path: &FilePath| kind(path) == Some(Kind::Directory);
            let staying = match remove.iter().any(is_directory) {
                true => self.staying(),
                false => HashSet::new(),
            };
            let goes = |path: &&FilePath| !is_directory(path) || !staying.contains(*path);
            steps.extend(last.into_iter().filter(goes).map(removal));
            steps.extend(self.releases(false, &arrivals));
        }
        steps.retain(|step| (self.may_try)(step.path()));
        let attributes = self.attributes(&steps, &changed, &arrivals);
        steps.extend(attributes.into_iter().filter(|step| (self.may_try)(step.path())));
        // What a later step replaces is of this turn.
        let mut replaced = HashSet::new();
        for step in &mut steps {
            if let Step::Place { path, fate, .. }
            | Step::Rename { path, fate, .. }
            | Step::Link { path, fate, .. } = step
                && !replaced.insert(path.clone())
            {
                *fate = Fate::Gone;
            }
        }
        steps
    }

    /// Directories with copies that stay.
    fn staying(&self) -> HashSet<FilePath> {
        let renamed = self.plan.renames.iter().map(|(from, _)| from);
        let removed: HashSet<&FilePath> = self.plan.remove.iter().chain(renamed).collect();
        let all = self.manifest.files.keys();
        directories_of(all.filter(|path| !removed.contains(path)).collect())
    }

    /// What the manifest alone is to say.
    fn entries(&self) -> Vec<Step> {
        let Plan { forget, attach, damaged, .. } = self.plan;
        let mut steps: Vec<Step> =
            forget.iter().map(|path| Step::Forget { path: path.clone() }).collect();
        let (attach, damaged): (BTreeSet<&FilePath>, BTreeSet<_>) =
            (attach.iter().collect(), damaged.iter().collect());
        steps.extend(attach.union(&damaged).filter_map(|path| {
            let mut entry = self.manifest.files.get(*path)?.clone();
            if attach.contains(path) {
                entry.attach(self.tree.get(*path)?);
            }
            entry.damaged |= damaged.contains(path);
            Some(Step::Entry { path: (*path).clone(), entry })
        }));
        steps
    }

    /// Says of a copy that was renamed that its file has been closed in order since it was made.
    fn closed_meanwhile(&self, from: &FilePath, path: &FilePath) -> Option<Step> {
        let (known, node) = (self.manifest.files.get(from)?, self.tree.get(path)?);
        let mut entry = known.clone();
        entry.attach(node);
        (entry != *known).then(|| Step::Entry { path: path.clone(), entry })
    }

    fn place(&self, path: &FilePath) -> Option<Step> {
        let node = self.tree.get(path)?;
        let made = (self.made)(path, node)?;
        let entry = node.drained_entry(made.copy.clone());
        let fate = self.fate(path, node, made.extends);
        Some(Step::Place { path: path.clone(), entry, inode: made.inode, fate })
    }

    /// What becomes of the copy at `path` when one of `node` replaces it. `extends` says that the
    /// new one begins with all of it.
    fn fate(&self, path: &FilePath, node: &Node, extends: bool) -> Fate {
        let is_unclosed = node.open || node.unclean;
        let entry = self.manifest.files.get(path);
        let Some(entry) = entry.filter(|entry| !entry.damaged) else { return Fate::Gone };
        let Some(copy) = entry.copy().filter(|copy| copy.bytes > 0 && is_unclosed) else {
            return Fate::Gone;
        };
        let is_same_file = !entry.detached && entry.inode == node.inode && node.links == 1;
        match entry.unclosed || extends {
            false => Fate::Whole,
            true if is_same_file && node.open && copy.bytes >= SPARE_BYTES_MIN => Fate::Spare,
            true => Fate::Gone,
        }
    }

    /// Returns the step that makes `path` a name of the copy at `from`.
    fn link(&self, from: &FilePath, path: &FilePath, entry: Entry) -> Step {
        let copy = |path: &FilePath| self.manifest.files.get(path).and_then(Entry::copy);
        let fate = self.tree.get(path).map_or(Fate::Gone, |node| {
            let extends = (self.made)(from, node).is_some_and(|made| made.extends);
            self.fate(path, node, extends && copy(path) == copy(from))
        });
        let fate = if fate == Fate::Spare { Fate::Gone } else { fate };
        Step::Link { from: from.clone(), path: path.clone(), entry, fate }
    }

    /// Returns the entry that a path has after the copies were placed. None if its copy could not
    /// be made: what has the name is of another file.
    fn entry_at_end(&self, path: &FilePath, arrivals: &Arrivals<'_>) -> Option<Entry> {
        let node = self.tree.get(path)?;
        if arrivals.copies.contains(path) {
            return Some(node.drained_entry((self.made)(path, node)?.copy.clone()));
        }
        self.manifest.files.get(*arrivals.renamed.get(path).unwrap_or(&path)).cloned()
    }

    /// Last whole versions that are not needed any more: of files that are there, or of those that
    /// are gone.
    fn releases(&self, of_present: bool, arrivals: &Arrivals<'_>) -> Vec<Step> {
        let is_done = |path: &&FilePath| match self.tree.get(*path) {
            Some(node) if node.kind == Kind::File => {
                let arrives = !arrivals.copies.contains(path)
                    || (self.made)(path, node).is_some() && (self.may_try)(path);
                of_present && !(node.open || node.unclean) && arrives
            }
            _ => !of_present,
        };
        let done = self.manifest.whole.keys().filter(is_done);
        done.map(|path| Step::Release { path: path.clone() }).collect()
    }

    /// Inodes of files whose copies get attributes.
    fn changed(&self) -> HashSet<u32> {
        let inode = |path: &FilePath| self.tree.get(path).map(|node| node.inode);
        self.plan.attributes.iter().filter_map(inode).collect()
    }

    /// Attributes that are to be set after `steps`, also on the files in `changed`. A step has also
    /// changed the modification time of the directory that it works in.
    fn attributes(
        &self,
        steps: &[Step],
        changed: &HashSet<u32>,
        arrivals: &Arrivals<'_>,
    ) -> Vec<Step> {
        let above = |path: &FilePath| path.split().map(|(parent, _)| parent);
        let mut wanted: BTreeSet<FilePath> = self.plan.attributes.iter().cloned().collect();
        // A copy with several names is replaced when it gets attributes: all names must follow.
        for (_, path) in &self.plan.links {
            if self.tree.get(path).is_some_and(|node| changed.contains(&node.inode)) {
                wanted.extend(above(path).into_iter().chain([path.clone()]));
            }
        }
        for step in steps {
            wanted.extend(above(step.path()));
            match step {
                Step::Rename { from, path, .. } => {
                    wanted.extend(above(from));
                    wanted.insert(path.clone());
                }
                // A link to a copy that was made earlier.
                Step::Link { path, entry, .. } => {
                    let is_other = |node: &Node| {
                        changed.contains(&node.inode) || has_other_attributes(node, entry)
                    };
                    wanted.extend(
                        self.tree.get(path).filter(|it| is_other(it)).map(|_| path.clone()),
                    );
                }
                _ => {}
            }
        }
        let placed: HashMap<u32, FilePath> = steps
            .iter()
            .filter(|step| matches!(step, Step::Place { .. }))
            .filter_map(|step| Some((self.tree.get(step.path())?.inode, step.path().clone())))
            .collect();
        // Names of one file: the first gets the attributes, the others become names of it.
        let mut first: HashMap<u32, FilePath> = placed;
        let mut found = Vec::new();
        let mut wanted: Vec<FilePath> = wanted.into_iter().collect();
        // A name that is new cannot be the first.
        let new: HashSet<&FilePath> = self.plan.links.iter().map(|(_, path)| path).collect();
        wanted.sort_by_key(|path| new.contains(path));
        for path in wanted {
            let Some(node) = self.tree.get(&path) else { continue };
            if node.kind == Kind::Symlink
                || node.kind == Kind::File && node.absence.is_some() && node.links > 1
            {
                continue;
            }
            if node.kind == Kind::File && node.links > 1 {
                if let Some(from) = first.get(&node.inode).filter(|from| **from != path) {
                    let Some(entry) = self.entry_at_end(from, arrivals) else { continue };
                    let Some(mut copy) = entry.copy() else { continue };
                    (copy.mode, copy.mtime_ns) = (node.mode, node.mtime_ns);
                    let entry = node.drained_entry(copy);
                    found.push(self.link(from, &path, entry));
                    continue;
                }
                first.insert(node.inode, path.clone());
            }
            let (mode, mtime_ns, extended) = (node.mode, node.mtime_ns, node.extended.clone());
            found.push(Step::Attributes { path, mode, mtime_ns, extended });
        }
        found
    }
}

fn removal(path: &FilePath) -> Step {
    Step::Remove { path: path.clone() }
}
