//! Plans what must change in the persist directory so that it holds what the store holds.
//!
//! A pure comparison of the store's tree with the manifest. It depends on no history, so it is
//! right after an agent died, after a log overrun, and after events in any order. `sequence.rs`
//! turns it into steps.
//!
//! Must stay true: a copy is removed only if the tree has no file of that name and kind and the
//! entry is not detached. A file is copied whatever state it is in, as a disk would have it. A copy
//! that holds the data of an absent file is left alone, except that it is renamed with the file.

use crate::file::node::{Kind, Node, Tree};
use crate::file::path::FilePath;
use crate::outside::comparison::{has_bytes_of, has_other_attributes, holds_data_of};
use crate::outside::manifest::{Entry, Manifest, State};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What must change; `sequence.rs` brings it in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Our copies to remove, deepest first.
    pub remove: Vec<FilePath>,
    /// Entries to drop from the manifest that have nothing in the persist directory.
    pub forget: Vec<FilePath>,
    /// Directories to make, parents first.
    pub directories: Vec<FilePath>,
    /// Verified copies whose files were renamed in the store, as (from, to). The order overwrites
    /// no copy that is still needed.
    pub renames: Vec<(FilePath, FilePath)>,
    /// Symbolic links to make.
    pub symlinks: Vec<FilePath>,
    /// Entries of verified copies that say something else of their files than the store: which
    /// they are, or whether they were closed in order.
    pub attach: Vec<FilePath>,
    /// Copies that turned out to differ from their entries.
    pub damaged: Vec<FilePath>,
    /// Entries whose mode, modification time or extended attributes are out of date.
    pub attributes: Vec<FilePath>,
    /// Regular files to copy.
    pub copies: Vec<FilePath>,
    /// Hard links to make, as (existing copy, new name). The copy may be one that this plan makes.
    pub links: Vec<(FilePath, FilePath)>,
    /// Regular files that wait for the data of absent files: their own data, or those of a file
    /// whose copy occupies their name in the persist directory.
    pub postponed: Vec<FilePath>,
}

impl Plan {
    /// Whether there is nothing to do. Postponed files do not count.
    pub fn is_empty(&self) -> bool {
        *self == Plan { postponed: self.postponed.clone(), ..Plan::default() }
    }

    /// Drops the copies of `held` files and returns these files. Also drops symbolic links and
    /// directories that are held, and directories that would hold nothing else, unless
    /// `makes_empty`.
    pub fn hold(
        &mut self,
        held: &HashSet<FilePath>,
        tree: &Tree,
        makes_empty: bool,
    ) -> Vec<FilePath> {
        if held.is_empty() {
            return Vec::new();
        }
        let (mut left_out, copies): (Vec<_>, _) =
            std::mem::take(&mut self.copies).into_iter().partition(|path| held.contains(path));
        self.copies = copies;
        self.symlinks.retain(|path| !held.contains(path));
        let (unlinked, links): (Vec<_>, _) =
            std::mem::take(&mut self.links).into_iter().partition(|(_, to)| held.contains(to));
        self.links = links;
        self.mend_links(&left_out);
        left_out.extend(unlinked.into_iter().map(|(_, to)| to));
        let (holding, wanted): (Vec<_>, Vec<_>) = tree
            .iter()
            .filter(|(_, node)| node.kind != Kind::Directory)
            .map(|(path, _)| path)
            .partition(|path| held.contains(path));
        let (holding, wanted) = (directories_of(holding), directories_of(wanted));
        let is_held =
            |path: &FilePath| holding.contains(path) && !makes_empty || held.contains(path);
        let is_kept = |path: &&FilePath| wanted.contains(*path) || !is_held(path);
        let kept: Vec<&FilePath> = self.directories.iter().filter(is_kept).collect();
        // A directory that is made needs its parents, whatever else they hold.
        let mut made = directories_of(kept.clone());
        made.extend(kept.into_iter().cloned());
        self.directories.retain(|path| made.contains(path));
        left_out
    }

    /// Makes a copy of the first link to each copy that was left out, and links the others to that.
    fn mend_links(&mut self, left_out: &[FilePath]) {
        let mut copied: HashMap<FilePath, FilePath> = HashMap::new();
        for (from, to) in std::mem::take(&mut self.links) {
            if !left_out.contains(&from) {
                self.links.push((from, to));
            } else if let Some(first) = copied.get(&from) {
                self.links.push((first.clone(), to));
            } else {
                self.copies.push(to.clone());
                copied.insert(from, to);
            }
        }
    }

    /// Removes copies that would be renamed to the name of an input: the name that was drained is
    /// gone, and the input is where it came from.
    pub fn leave_out(&mut self, inputs: &HashSet<FilePath>) {
        let (left_out, renames): (Vec<_>, _) =
            std::mem::take(&mut self.renames).into_iter().partition(|(_, to)| inputs.contains(to));
        self.renames = renames;
        self.remove.extend(left_out.into_iter().map(|(from, _)| from));
    }

    /// Returns the paths where something of another kind takes the place of a copy.
    pub fn displaced(&self, tree: &Tree) -> BTreeSet<FilePath> {
        self.remove.iter().filter(|path| tree.contains_key(*path)).cloned().collect()
    }

    /// Keeps a copy that something of another kind will replace, and everything below it, until the
    /// replacement is planned.
    pub fn keep_until_replaced(&mut self, tree: &Tree) {
        let mut left = self.displaced(tree);
        let Plan { directories, renames, symlinks, copies, links, .. } = &*self;
        let lists = [directories, symlinks, copies].into_iter().flatten();
        for coming in lists.chain(renames.iter().chain(links.iter()).map(|(_, to)| to)) {
            left.remove(coming);
        }
        if !left.is_empty() {
            self.remove.retain(|path| !lies_in(path, &left));
        }
    }

    /// Drops the removal of `guarded` copies.
    pub fn guard(&mut self, guarded: &HashSet<FilePath>) {
        let directories = directories_of(guarded.iter().collect());
        self.remove.retain(|path| !guarded.contains(path) && !directories.contains(path));
    }

    /// Leaves the copies at `needed` alone for now; the steps that touch them are postponed.
    pub fn spare(&mut self, needed: &HashSet<FilePath>) {
        let (held, renames): (Vec<_>, _) =
            std::mem::take(&mut self.renames).into_iter().partition(|(_, to)| needed.contains(to));
        let unmoved = held.iter().map(|(from, _)| from);
        self.guard(&needed.iter().chain(unmoved).cloned().collect());
        self.symlinks.retain(|path| !needed.contains(path));
        let (postponed, copies): (Vec<_>, _) =
            std::mem::take(&mut self.copies).into_iter().partition(|path| needed.contains(path));
        let (unlinked, links): (Vec<_>, _) =
            std::mem::take(&mut self.links).into_iter().partition(|(_, to)| needed.contains(to));
        (self.renames, self.copies, self.links) = (renames, copies, links);
        self.postponed.extend(postponed);
        self.postponed.extend(held.into_iter().chain(unlinked).map(|(_, to)| to));
        self.postponed.sort();
    }

    /// Drops every step on a path for which `is_left` is true, at either end of a rename.
    pub fn leave(&mut self, is_left: &dyn Fn(&FilePath) -> bool) {
        let Plan { remove, forget, directories, renames, symlinks, .. } = self;
        renames.retain(|(from, to)| !is_left(from) && !is_left(to));
        self.links.retain(|(_, to)| !is_left(to));
        let first = [remove, forget, directories, symlinks];
        let Plan { attach, damaged, attributes, copies, .. } = self;
        for list in first.into_iter().chain([attach, damaged, attributes, copies]) {
            list.retain(|path| !is_left(path));
        }
    }

    /// Returns the paths that have a step.
    pub fn steps(&self) -> impl Iterator<Item = &FilePath> {
        let Plan { remove, forget, directories, renames, symlinks, .. } = self;
        let Plan { attach, damaged, attributes, copies, links, .. } = self;
        let lists = [remove, forget, directories, symlinks, attach, damaged, attributes, copies];
        lists.into_iter().flatten().chain(renames.iter().chain(links).map(|(_, to)| to))
    }
}

/// Returns all directories above `paths`.
pub fn directories_of(paths: Vec<&FilePath>) -> HashSet<FilePath> {
    let mut directories = HashSet::new();
    for path in paths {
        let mut here = path.split().map(|(parent, _)| parent);
        while let Some(directory) = here {
            here = directory.split().map(|(parent, _)| parent);
            if !directories.insert(directory) {
                break;
            }
        }
    }
    directories
}

/// A path of a namespace, with the file that has it in the store, and its entry.
#[derive(Clone, Copy)]
struct Pair<'a> {
    path: &'a FilePath,
    node: Option<&'a Node>,
    entry: Option<&'a Entry>,
}

/// Returns all paths of a namespace whose files lie below `prefix`, in their order.
fn pairs<'a>(tree: &'a Tree, manifest: &'a Manifest, prefix: &FilePath) -> Vec<Pair<'a>> {
    let mut pairs = Vec::with_capacity(tree.len().max(manifest.files.len()));
    let entries = manifest.files.iter().filter(|(path, _)| path.strip_prefix(prefix).is_some());
    let (mut nodes, mut entries) = (tree.iter().peekable(), entries.peekable());
    loop {
        let order = match (nodes.peek(), entries.peek()) {
            (None, None) => return pairs,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((one, _)), Some((other, _))) => one.cmp(other),
        };
        let node = if order.is_le() { nodes.next() } else { None };
        let entry = if order.is_ge() { entries.next() } else { None };
        let (node_path, node) = node.unzip();
        let (entry_path, entry) = entry.unzip();
        let path = node_path.or(entry_path);
        pairs.extend(path.map(|path| Pair { path, node, entry }));
    }
}

/// Compares `tree`, a namespace whose files lie below `prefix`, with the entries of `manifest`
/// there. Files that are `stored_to` are copied whatever their version is. Inode numbers are unique
/// within one namespace only, so each namespace is planned alone.
pub fn plan(
    tree: &Tree,
    manifest: &Manifest,
    prefix: &FilePath,
    stored_to: &HashSet<FilePath>,
) -> Plan {
    let mut plan = Plan::default();
    let pairs = pairs(tree, manifest, prefix);
    let displaced = displaced(&pairs);
    let mut movable = movable(&pairs, &displaced);
    let mut renames = Vec::new();
    let mut astray = Vec::new();
    for Pair { path, node, entry } in &pairs {
        let Some(node) = *node else { continue };
        let entry = entry.filter(|entry| entry.kind == node.kind);
        match node.kind {
            Kind::Directory => plan_directory(&mut plan, path, node, entry),
            Kind::Symlink => plan_symlink(&mut plan, path, node, entry),
            Kind::File if node.absence.is_some() => {
                if plan_absent(&mut plan, path, node, entry) {
                    continue;
                }
                match movable.get_mut(&(node.inode, node.version)).and_then(Vec::pop) {
                    Some(from) => renames.push((from, (*path).clone())),
                    None => {
                        plan.postponed.push((*path).clone());
                        astray.push(node);
                    }
                }
            }
            Kind::File if stored_to.contains(*path) => plan.copies.push((*path).clone()),
            Kind::File if wants_copy(&mut plan, path, node, entry) => {
                match movable.get_mut(&(node.inode, node.version)).and_then(Vec::pop) {
                    Some(from) => renames.push((from, (*path).clone())),
                    None => plan.copies.push((*path).clone()),
                }
            }
            Kind::File => {}
        }
    }
    let (renames, cyclic) = in_safe_order(renames);
    let mut needed = needed_by(&astray, &pairs);
    for (from, to) in cyclic {
        match tree.get(&to).is_some_and(|node| node.absence.is_some()) {
            true => {
                needed.insert(from);
                plan.postponed.push(to);
            }
            false => plan.copies.push(to),
        }
    }
    plan.renames = renames;
    plan_links(&mut plan, tree, &pairs, stored_to);
    plan_removals(&mut plan, &pairs, &displaced);
    plan.spare(&needed);
    plan
}

/// Plans the steps of an absent file whose copy has its name. Returns whether there is such a copy.
fn plan_absent(plan: &mut Plan, path: &FilePath, node: &Node, entry: Option<&Entry>) -> bool {
    let Some(entry) = entry.filter(|entry| holds_data_of(entry, node)) else { return false };
    let is_tied = !entry.detached && entry.inode == node.inode && entry.version == node.version;
    if !is_tied {
        plan.attach.push(path.clone());
    }
    if has_other_attributes(node, entry) {
        plan.attributes.push(path.clone());
    }
    if node.absence.is_some_and(|absence| absence.damaged) && !entry.damaged {
        plan.damaged.push(path.clone());
    }
    true
}

/// Returns the copies that may hold the data of absent files which have other names by now.
fn needed_by(astray: &[&Node], pairs: &[Pair<'_>]) -> HashSet<FilePath> {
    if astray.is_empty() {
        return HashSet::new();
    }
    let is_needed = |entry: &Entry| astray.iter().any(|node| holds_data_of(entry, node));
    let needed = pairs.iter().filter(|pair| pair.entry.is_some_and(is_needed));
    needed.map(|pair| pair.path.clone()).collect()
}

/// Returns the paths where the store has another kind of file than the persist directory.
fn displaced(pairs: &[Pair<'_>]) -> BTreeSet<FilePath> {
    let differs = |pair: &&Pair<'_>| {
        pair.node.zip(pair.entry).is_some_and(|(node, entry)| node.kind != entry.kind)
    };
    pairs.iter().filter(differs).map(|pair| pair.path.clone()).collect()
}

/// Returns the verified copies whose path now names another file, by inode and version. They are
/// candidates for a rename.
fn movable(
    pairs: &[Pair<'_>],
    displaced: &BTreeSet<FilePath>,
) -> HashMap<(u32, u64), Vec<FilePath>> {
    let mut movable: HashMap<_, Vec<_>> = HashMap::new();
    for Pair { path, node, entry } in pairs {
        let Some(entry) = *entry else { continue };
        let verified = entry.kind == Kind::File && entry.state == State::Drained && !entry.detached;
        let still_named = node.is_some_and(|node| node.inode == entry.inode);
        if verified && !still_named && !lies_in(path, displaced) {
            movable.entry((entry.inode, entry.version)).or_default().push((*path).clone());
        }
    }
    movable
}

/// Whether `path` or a directory above it is in `places`.
pub fn lies_in(path: &FilePath, places: &BTreeSet<FilePath>) -> bool {
    let mut here = Some(path.clone());
    while let Some(path) = here {
        if places.contains(&path) {
            return true;
        }
        here = path.split().map(|(parent, _)| parent);
    }
    false
}

fn plan_directory(plan: &mut Plan, path: &FilePath, node: &Node, entry: Option<&Entry>) {
    match entry {
        None => plan.directories.push(path.clone()),
        Some(entry) => {
            if entry.detached || entry.inode != node.inode {
                plan.attach.push(path.clone());
            }
            if has_other_attributes(node, entry) {
                plan.attributes.push(path.clone());
            }
        }
    }
}

fn plan_symlink(plan: &mut Plan, path: &FilePath, node: &Node, entry: Option<&Entry>) {
    let is_there = entry.is_some_and(|entry| {
        let target = entry.target.as_ref().map(|target| target.0.as_slice());
        !entry.detached && target == Some(&node.target) && entry.mtime_ns == node.mtime_ns
    });
    if !is_there {
        plan.symlinks.push(path.clone());
    }
}

/// Plans the steps of a regular file other than a copy. Returns whether it needs a copy.
fn wants_copy(plan: &mut Plan, path: &FilePath, node: &Node, entry: Option<&Entry>) -> bool {
    let known = entry.filter(|entry| entry.inode == node.inode && entry.version == node.version);
    match known {
        Some(entry) if entry.state == State::Quarantined => false,
        Some(entry) if !entry.damaged => {
            let is_unclosed = node.open || node.unclean;
            let is_closed_now = entry.unclosed && !is_unclosed;
            if entry.detached || is_closed_now || entry.torn != node.torn {
                plan.attach.push(path.clone());
            }
            if has_other_attributes(node, entry) {
                plan.attributes.push(path.clone());
            }
            false
        }
        _ => true,
    }
}

/// Orders renames so that no target is the source of a later one. Also returns the renames that
/// form cycles. Precondition: no path is the source of two renames, or the target of two.
#[expect(clippy::type_complexity, reason = "two lists of the same pairs")]
fn in_safe_order(
    renames: Vec<(FilePath, FilePath)>,
) -> (Vec<(FilePath, FilePath)>, Vec<(FilePath, FilePath)>) {
    let mut ordered = Vec::with_capacity(renames.len());
    let sources: BTreeSet<FilePath> = renames.iter().map(|(from, _)| from.clone()).collect();
    let mut waiting: BTreeMap<FilePath, FilePath> =
        renames.into_iter().map(|(from, to)| (to, from)).collect();
    let ends: Vec<FilePath> = waiting.keys().filter(|to| !sources.contains(*to)).cloned().collect();
    for mut to in ends {
        while let Some(from) = waiting.remove(&to) {
            ordered.push((from.clone(), to));
            to = from;
        }
    }
    (ordered, waiting.into_iter().map(|(to, from)| (from, to)).collect())
}

/// Replaces copies by links where the file has a copy already, or gets one under another name.
fn plan_links(plan: &mut Plan, tree: &Tree, pairs: &[Pair<'_>], stored_to: &HashSet<FilePath>) {
    let linked = plan.copies.iter().filter_map(|path| tree.get(path).filter(|node| node.links > 1));
    let mut names: HashMap<u32, Option<FilePath>> = linked.map(|node| (node.inode, None)).collect();
    if names.is_empty() {
        return;
    }
    for Pair { path, node, entry } in pairs {
        let Some((node, entry)) = node.zip(*entry) else { continue };
        if let Some(name) = names.get_mut(&node.inode)
            && !stored_to.contains(*path)
            && has_bytes_of(entry, node)
        {
            *name = Some((*path).clone());
        }
    }
    for (_, to) in &plan.renames {
        if let Some(name) = tree.get(to).and_then(|node| names.get_mut(&node.inode)) {
            *name = Some(to.clone());
        }
    }
    for path in std::mem::take(&mut plan.copies) {
        let name = tree.get(&path).and_then(|node| names.get_mut(&node.inode));
        match name {
            Some(Some(name)) => plan.links.push((name.clone(), path)),
            Some(first) => {
                *first = Some(path.clone());
                plan.copies.push(path);
            }
            None => plan.copies.push(path),
        }
    }
}

fn plan_removals(plan: &mut Plan, pairs: &[Pair<'_>], displaced: &BTreeSet<FilePath>) {
    let moved: BTreeSet<&FilePath> = plan.renames.iter().map(|(from, _)| from).collect();
    let entries = || pairs.iter().filter_map(|pair| Some((pair, pair.entry?)));
    let goes = |pair: &Pair<'_>, entry: &Entry| {
        let gone = !entry.detached && pair.node.is_none() && !moved.contains(pair.path);
        gone || displaced.contains(pair.path)
    };
    let (mut remove, mut forget, mut removes_directory) = (Vec::new(), Vec::new(), false);
    for (pair, entry) in entries().rev().filter(|(pair, entry)| goes(pair, entry)) {
        let is_there = entry.kind != Kind::File || entry.copy().is_some();
        removes_directory |= entry.kind == Kind::Directory;
        let list = if is_there { &mut remove } else { &mut forget };
        list.push(pair.path.clone());
    }
    // A directory is removed together with the last of our copies in it.
    if removes_directory {
        let staying = entries().filter(|(pair, entry)| !goes(pair, entry));
        let staying = staying.map(|(pair, _)| pair.path).filter(|path| !moved.contains(path));
        let staying = directories_of(staying.collect());
        remove.retain(|path| !staying.contains(path) || lies_in(path, displaced));
    }
    (plan.remove, plan.forget) = (remove, forget);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::manifest::Target;
    use cairn_core::Absence;

    /// Mechanism: each round of the ordering found only the end of a chain. Consequence: a hundred
    /// thousand files, each renamed to the next number, kept the agent busy for hours. Fix: walk
    /// each chain once.
    #[test]
    fn long_chains_of_renames_are_ordered_from_their_ends() {
        const LENGTH: usize = 100_000;
        let name = |index: usize| path(&format!("f.{index:06}"));
        let chain: Vec<_> = (0..LENGTH).map(|index| (name(index), name(index + 1))).collect();
        let circle = [(path("a"), path("b")), (path("b"), path("a"))];
        let (ordered, cyclic) = in_safe_order([&chain[..], &circle].concat());
        assert!(ordered.iter().eq(chain.iter().rev()));
        assert_eq!(cyclic, [(path("b"), path("a")), (path("a"), path("b"))]);
    }

    /// Mechanism: the entry of a directory that the program had removed was dropped when the
    /// directory could not be removed outside, because a copy in it was kept or still to be
    /// renamed. Consequence: the directory stayed for good, with exit code 0. Fix: it is removed
    /// with the last copy in it.
    #[test]
    fn directory_goes_after_the_last_copy_in_it() {
        let kept = Entry { detached: true, ..entry(&file(4, 1)) };
        let entries =
            [("d", entry(&directory(2))), ("d/e", entry(&directory(3))), ("d/e/kept", kept)];
        let planned = plan(&Tree::new(), &manifest(&entries));
        assert_eq!(planned, Plan::default());
        let planned = plan(&Tree::new(), &manifest(&entries[..2]));
        assert_eq!(planned.remove, paths(&["d/e", "d"]));
        // The rename has to wait for an absent file.
        let moved = tree(&[("to", file(4, 1))]);
        let there = [("d", entry(&directory(2))), ("d/f", entry(&file(4, 1)))];
        let planned = plan(&moved, &manifest(&there));
        assert_eq!(planned.renames, [(path("d/f"), path("to"))]);
        assert_eq!(planned.remove, paths(&["d"]));
        let mut spared = planned;
        spared.spare(&HashSet::from([path("to")]));
        assert_eq!((spared.renames, spared.remove), (Vec::new(), Vec::new()));
    }

    /// Mechanism: a directory that contained only held files was left out although another
    /// directory lay in it. Consequence: the inner directory could not be made, and the drain of a
    /// killed run ended with 75. Fix: the outer directory is made for the inner one.
    #[test]
    fn directory_with_a_held_file_is_made_for_another_directory_in_it() {
        let tree = Tree::from([
            (path("d"), directory(2)),
            (path("d/empty"), directory(3)),
            (path("d/torn"), file(4, 1)),
            (path("e"), directory(5)),
            (path("e/torn"), file(6, 1)),
        ]);
        let manifest = Manifest::new("job", "store", "/cairn");
        let mut plan = plan(&tree, &manifest);
        let held = HashSet::from([path("d/torn"), path("e/torn")]);
        assert_eq!(plan.hold(&held, &tree, false), [path("d/torn"), path("e/torn")]);
        assert_eq!(plan.directories, [path("d"), path("d/empty")]);
    }

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    fn file(inode: u32, version: u64) -> Node {
        Node { bytes: 10, mtime_ns: 5, written_ns: 5, version, ..Node::new(inode, Kind::File) }
    }

    fn directory(inode: u32) -> Node {
        Node { kind: Kind::Directory, bytes: 0, ..file(inode, 0) }
    }

    fn entry(node: &Node) -> Entry {
        let is_link = node.kind == Kind::Symlink;
        Entry {
            kind: node.kind,
            state: State::Drained,
            inode: node.inode,
            version: node.version,
            bytes: node.bytes,
            crc32c: (node.kind == Kind::File).then_some(1),
            mode: node.mode,
            mtime_ns: node.mtime_ns,
            extended: node.extended.carried(true),
            earlier: None,
            target: is_link.then(|| Target(node.target.clone())),
            reason: None,
            detached: false,
            unclosed: false,
            damaged: false,
            torn: false,
        }
    }

    fn tree(nodes: &[(&str, Node)]) -> Tree {
        nodes.iter().map(|(name, node)| (path(name), node.clone())).collect()
    }

    fn manifest(entries: &[(&str, Entry)]) -> Manifest {
        let mut manifest = Manifest::new("job", "0123", "/cairn");
        manifest.files = entries.iter().map(|(name, entry)| (path(name), entry.clone())).collect();
        manifest
    }

    /// Plans a namespace that is the whole persist directory.
    fn plan(tree: &Tree, manifest: &Manifest) -> Plan {
        super::plan(tree, manifest, &FilePath::root(), &HashSet::new())
    }

    fn paths(names: &[&str]) -> Vec<FilePath> {
        names.iter().map(|name| path(name)).collect()
    }

    fn pairs(names: &[(&str, &str)]) -> Vec<(FilePath, FilePath)> {
        names.iter().map(|(from, to)| (path(from), path(to))).collect()
    }

    #[test]
    fn files_are_copied_whatever_state_they_are_in() {
        let open = Node { open: true, ..file(3, 1) };
        let unclean = Node { unclean: true, ..file(4, 1) };
        let tree = tree(&[("d", directory(9)), ("d/a", file(2, 1)), ("o", open), ("u", unclean)]);
        let expected = Plan {
            directories: paths(&["d"]),
            copies: paths(&["d/a", "o", "u"]),
            ..Plan::default()
        };
        assert_eq!(plan(&tree, &manifest(&[])), expected);
    }

    #[test]
    fn what_is_drained_needs_nothing_until_its_version_changes() {
        let a = file(2, 1);
        let manifest = manifest(&[("a", entry(&a))]);
        assert!(plan(&tree(&[("a", a)]), &manifest).is_empty());
        let rewritten = plan(&tree(&[("a", file(2, 2))]), &manifest);
        assert_eq!(rewritten, Plan { copies: paths(&["a"]), ..Plan::default() });
        let mode_changed = Node { mode: 0o600, ..file(2, 1) };
        let changed = plan(&tree(&[("a", mode_changed)]), &manifest);
        assert_eq!(changed, Plan { attributes: paths(&["a"]), ..Plan::default() });
    }

    #[test]
    fn file_that_was_closed_since_needs_no_copy_if_its_version_is_the_same() {
        let open = Node { open: true, ..file(2, 2) };
        let before = Entry { unclosed: true, ..entry(&open) };
        assert!(plan(&tree(&[("a", open)]), &manifest(&[("a", before.clone())])).is_empty());
        let closed = plan(&tree(&[("a", file(2, 2))]), &manifest(&[("a", before)]));
        assert_eq!(closed, Plan { attach: paths(&["a"]), ..Plan::default() });
    }

    #[test]
    fn rotation_renames_copies_without_overwriting_one_that_is_still_needed() {
        // ckpt.1 -> ckpt.2, ckpt -> ckpt.1, and a new ckpt.
        let (newest, older, oldest) = (file(4, 1), file(3, 1), file(2, 1));
        let manifest = manifest(&[("ckpt", entry(&older)), ("ckpt.1", entry(&oldest))]);
        let tree = tree(&[("ckpt", newest), ("ckpt.1", older), ("ckpt.2", oldest)]);
        let expected = Plan {
            renames: pairs(&[("ckpt.1", "ckpt.2"), ("ckpt", "ckpt.1")]),
            copies: paths(&["ckpt"]),
            ..Plan::default()
        };
        assert_eq!(plan(&tree, &manifest), expected);
    }

    #[test]
    fn swapped_files_are_copied_anew() {
        let manifest = manifest(&[("a", entry(&file(2, 1))), ("b", entry(&file(3, 1)))]);
        let plan = plan(&tree(&[("a", file(3, 1)), ("b", file(2, 1))]), &manifest);
        let mut copies = plan.copies.clone();
        copies.sort();
        assert_eq!(copies, paths(&["a", "b"]));
        assert!(plan.renames.is_empty() && plan.remove.is_empty());
    }

    #[test]
    fn a_second_name_is_linked_to_the_copy_or_renamed_copy_of_the_first() {
        let linked = || Node { links: 2, ..file(2, 1) };
        let all = |first, second| tree(&[(first, linked()), (second, linked())]);
        let manifest = manifest(&[("b", entry(&linked()))]);
        let links = pairs(&[("b", "a")]);
        assert_eq!(plan(&all("b", "a"), &manifest), Plan { links, ..Plan::default() });
        // Another mode is set afterwards.
        let changed = |one: &str, other: &str| {
            let node = || Node { mode: 0o600, ..linked() };
            tree(&[(one, node()), (other, node())])
        };
        let planned = plan(&changed("b", "a"), &manifest);
        assert_eq!((planned.links, planned.copies), (pairs(&[("b", "a")]), Vec::new()));
        let (renames, links) = (pairs(&[("b", "c")]), pairs(&[("c", "d")]));
        let expected = Plan { renames, links, ..Plan::default() };
        assert_eq!(plan(&all("c", "d"), &manifest), expected);
        let (copies, links) = (paths(&["c"]), pairs(&[("c", "d")]));
        let expected = Plan { copies, links, ..Plan::default() };
        assert_eq!(plan(&all("c", "d"), &super::tests::manifest(&[])), expected);
    }

    #[test]
    fn unlinked_files_lose_their_copy_but_detached_ones_keep_it() {
        let evicted = Entry { detached: true, ..entry(&file(3, 1)) };
        let never_copied = Entry { state: State::Quarantined, crc32c: None, ..entry(&file(5, 1)) };
        let manifest = manifest(&[
            ("d", entry(&directory(9))),
            ("d/a", entry(&file(2, 1))),
            ("e", evicted),
            ("u", never_copied),
        ]);
        let expected =
            Plan { remove: paths(&["d/a", "d"]), forget: paths(&["u"]), ..Plan::default() };
        assert_eq!(plan(&tree(&[]), &manifest), expected);
    }

    #[test]
    fn a_directory_that_became_a_file_is_cleared_first_and_its_content_copied_anew() {
        // mv d/x t; rmdir d; mv t d
        let manifest = manifest(&[("d", entry(&directory(9))), ("d/x", entry(&file(2, 1)))]);
        let expected =
            Plan { remove: paths(&["d/x", "d"]), copies: paths(&["d"]), ..Plan::default() };
        assert_eq!(plan(&tree(&[("d", file(2, 1))]), &manifest), expected);
    }

    #[test]
    fn an_evicted_file_that_is_still_there_is_tied_to_its_copy_again() {
        let detached = Entry { detached: true, ..entry(&file(2, 1)) };
        let plan = plan(&tree(&[("a", file(2, 1))]), &manifest(&[("a", detached)]));
        assert_eq!(plan, Plan { attach: paths(&["a"]), ..Plan::default() });
    }

    #[test]
    fn a_symlink_is_remade_when_its_target_changes() {
        let link = |target: &[u8]| Node {
            kind: Kind::Symlink,
            bytes: 0,
            target: target.to_vec(),
            ..file(7, 0)
        };
        let manifest = manifest(&[("l", entry(&link(b"one")))]);
        assert!(plan(&tree(&[("l", link(b"one"))]), &manifest).is_empty());
        let changed = plan(&tree(&[("l", link(b"two"))]), &manifest);
        assert_eq!(changed, Plan { symlinks: paths(&["l"]), ..Plan::default() });
    }

    #[test]
    fn namespaces_of_ranks_do_not_mix_their_inode_numbers() {
        let rank = directory(1);
        let manifest = manifest(&[("rank-0", entry(&rank)), ("rank-0/a", entry(&file(2, 1)))]);
        let tree = tree(&[("rank-1", rank), ("rank-1/b", file(2, 1))]);
        let expected = Plan {
            directories: paths(&["rank-1"]),
            copies: paths(&["rank-1/b"]),
            ..Plan::default()
        };
        assert_eq!(super::plan(&tree, &manifest, &path("rank-1"), &HashSet::new()), expected);
    }

    /// Returns an absent file of 10 bytes whose data have this checksum.
    fn absent(inode: u32, version: u64, crc32c: u32) -> Node {
        let absence = Absence { crc32c, wanted: false, unavailable: false, damaged: false };
        Node { absence: Some(absence), ..file(inode, version) }
    }

    /// Returns the entry that an earlier store left of such a file.
    fn left(crc32c: u32) -> Entry {
        Entry { crc32c: Some(crc32c), detached: true, ..entry(&file(0, 0)) }
    }

    fn tied(node: &Node, crc32c: u32) -> Entry {
        Entry { crc32c: Some(crc32c), ..entry(node) }
    }

    #[test]
    fn absent_file_is_tied_to_its_copy_and_never_copied() {
        let a = absent(2, 1, 7);
        let one = |name: &str, node: &Node| tree(&[(name, node.clone())]);
        let left = manifest(&[("a", left(7))]);
        assert_eq!(plan(&one("a", &a), &left), Plan { attach: paths(&["a"]), ..Plan::default() });
        assert!(plan(&one("a", &a), &manifest(&[("a", tied(&a, 7))])).is_empty());
        // A file that was brought in keeps its version.
        assert!(plan(&one("a", &file(2, 1)), &manifest(&[("a", tied(&a, 7))])).is_empty());
        let nothing = plan(&one("a", &a), &manifest(&[]));
        assert_eq!(nothing, Plan { postponed: paths(&["a"]), ..Plan::default() });
        let chmod = Node { mode: 0o600, ..a.clone() };
        let changed = plan(&one("a", &chmod), &manifest(&[("a", tied(&a, 7))]));
        assert_eq!(changed, Plan { attributes: paths(&["a"]), ..Plan::default() });
        let gone = plan(&tree(&[]), &manifest(&[("a", tied(&a, 7))]));
        assert_eq!(gone, Plan { remove: paths(&["a"]), ..Plan::default() });
        let mut bad = a.clone();
        bad.absence = a.absence.map(|absence| Absence { damaged: true, ..absence });
        let known = Entry { damaged: true, ..tied(&a, 7) };
        let found = plan(&one("a", &bad), &manifest(&[("a", tied(&a, 7))]));
        assert_eq!(found, Plan { damaged: paths(&["a"]), ..Plan::default() });
        assert!(plan(&one("a", &bad), &manifest(&[("a", known)])).is_empty());
    }

    #[test]
    fn copies_of_absent_files_are_renamed_as_those_are_before_others_take_their_names() {
        let (older, oldest) = (absent(3, 1, 7), absent(2, 1, 8));
        let manifest = manifest(&[("ckpt", tied(&older, 7)), ("ckpt.1", tied(&oldest, 8))]);
        let tree = tree(&[("ckpt", file(4, 1)), ("ckpt.1", older), ("ckpt.2", oldest)]);
        let expected = Plan {
            renames: pairs(&[("ckpt.1", "ckpt.2"), ("ckpt", "ckpt.1")]),
            copies: paths(&["ckpt"]),
            ..Plan::default()
        };
        assert_eq!(plan(&tree, &manifest), expected);
    }

    #[test]
    fn copies_that_absent_files_need_stay_until_these_were_brought() {
        // mv a t; mv b a; mv t b
        let (a, b) = (absent(2, 1, 7), absent(3, 1, 8));
        let swapped = manifest(&[("a", tied(&a, 7)), ("b", tied(&b, 8))]);
        let both = tree(&[("a", b.clone()), ("b", a.clone())]);
        let postponed = |names| Plan { postponed: paths(names), ..Plan::default() };
        assert_eq!(plan(&both, &swapped), postponed(&["a", "b"]));
        // One of them was brought in.
        let half = tree(&[("a", file(3, 1)), ("b", a.clone())]);
        assert_eq!(plan(&half, &swapped), postponed(&["a", "b"]));
        let here = tree(&[("a", file(3, 1)), ("b", file(2, 1))]);
        let mut copied = plan(&here, &swapped).copies;
        copied.sort();
        assert_eq!(copied, paths(&["a", "b"]));
        // Recovered, with no record in the manifest of where the file went: mv a c, and another a.
        let moved = tree(&[("a", file(4, 1)), ("c", a)]);
        let found = plan(&moved, &manifest(&[("a", left(7))]));
        assert_eq!(found, postponed(&["a", "c"]));
        // mv d/x t; rmdir d; mv t d
        let x = absent(2, 1, 7);
        let below = manifest(&[("d", entry(&directory(9))), ("d/x", tied(&x, 7))]);
        assert_eq!(plan(&tree(&[("d", x)]), &below), postponed(&["d"]));
        assert_eq!(
            plan(&tree(&[("d", file(2, 1))]), &below),
            Plan { remove: paths(&["d/x", "d"]), copies: paths(&["d"]), ..Plan::default() }
        );
    }
}
