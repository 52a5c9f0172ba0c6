//! Carries out the plan of one namespace: changes the persist directory and the manifest step by
//! step.
//!
//! Must stay true: a copy is renamed or removed only if it is still exactly what this job put
//! there. No name changes before the journal announces it. A failure on one file does not keep the
//! others from being drained; a failure of the directory ends the pass.

use cairn_core::{InodeId, Moment};
use cairn_platform::sys::monotonic_ms;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::drain::Since;
use crate::drain::copy::{Place, Source, adopt_file, copy_file, copy_together, patch_file};
use crate::drain::failures::Failures;
use crate::drain::link::{Elsewhere, is_copy_of, is_copy_of_file, link};
use crate::drain::meter::Meter;
use crate::drain::plan::{Plan, directories_of, lies_in};
use crate::drain::queue::{Item, Queue};
use crate::model::error::{Error, Result};
use crate::model::path::FilePath;
use crate::model::policy::Priority;
use crate::model::priority;
use crate::persist::comparison::{has_other_attributes, has_other_extended};
use crate::persist::destination::{Destination, Found};
use crate::persist::journal::Journal;
use crate::persist::ledger::Ledger;
use crate::persist::manifest::{Copy, Entry, State, Target, manifest_path};
use crate::persist::marks::Marks;
use crate::store::extended::Carried;
use crate::store::node::{Kind, Node, Tree};
use crate::store::read::Buffer;
use crate::store::volume::Volume;
use crate::store::watch::Watch;

/// Number of copying threads: enough to overlap the fsync of one file with the copy of another.
const COPY_THREADS: usize = 2;

/// Smallest earlier copy of an image that is patched; a smaller file is copied anew, together with
/// others.
pub const EARLIER_BYTES_MIN: u64 = 256 << 10;

/// Shortest time that files closed during a pass wait for the files already queued in it.
const OVERTAKEN_AFTER: Duration = Duration::from_secs(1);

/// Carries out the plan of one namespace.
pub struct Carrier<'a> {
    /// The persist directory.
    pub ledger: &'a mut Ledger,
    /// Files that failed, with their delays.
    pub failures: &'a mut Failures,
    /// The namespace.
    pub volume: &'a Volume,
    /// The tree of the namespace.
    pub tree: &'a Tree,
    /// Progress, pace and the request to stop.
    pub meter: &'a Meter,
    /// Marks of how far large copies have come.
    pub marks: &'a Marks,
    /// Files whose copies by an earlier store differ and are to be replaced.
    pub replaced: Vec<FilePath>,
    /// Other directories that may hold copies of the same files.
    pub elsewhere: &'a [Elsewhere<'a>],
    /// For an image: the files whose copies in the last image may be older than the files, and what
    /// is unchanged since the image in this place.
    pub image: Option<(&'a HashSet<FilePath>, Since<'a>)>,
    /// Directories whose content changed.
    pub touched: BTreeSet<FilePath>,
    /// Tells whether newer files may go first; None if the whole plan must be carried out.
    pub overtaking: Option<&'a mut Preemption>,
    /// Names of files with several names, by inode; computed on first use.
    pub names: OnceCell<HashMap<u32, Vec<&'a FilePath>>>,
}

fn names(tree: &Tree) -> HashMap<u32, Vec<&FilePath>> {
    let mut names: HashMap<u32, Vec<&FilePath>> = HashMap::new();
    for (path, node) in tree.iter().filter(|(_, node)| node.links > 1) {
        names.entry(node.inode).or_default().push(path);
    }
    names
}

/// Detects, after the files of a pass have been copied for a while, that a namespace changed or
/// that a program waits for space.
pub struct Preemption {
    watches: Vec<(Arc<Volume>, Watch)>,
    /// Earliest time of the next check; None until the first files of a namespace are copied.
    next: Option<Instant>,
    /// Start of the pass. The pass that overtakes has to repeat the work done before the first
    /// copy.
    began: Instant,
}

impl Preemption {
    /// Watches `volumes` from now on. Create it before their trees are read.
    pub fn new(volumes: &[Arc<Volume>]) -> Preemption {
        let watch = |volume: &Arc<Volume>| (Arc::clone(volume), Watch::since_now(volume));
        Preemption {
            watches: volumes.iter().map(watch).collect(),
            next: None,
            began: Instant::now(),
        }
    }

    /// Records that the copies of the next namespace begin.
    fn begin(&mut self) {
        let copied_for = OVERTAKEN_AFTER.max(self.began.elapsed());
        self.next = Some(Instant::now() + copied_for);
    }

    /// Whether something changed after the pass has copied for long enough, or a program waits for
    /// space. Space is made after a pass, from what arrived in it.
    fn has_come(&mut self) -> bool {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return false;
        }
        self.next = Some(now + OVERTAKEN_AFTER);
        // If the log cannot be read, the next pass reports it.
        let has_changed =
            |(volume, watch): &mut (Arc<Volume>, Watch)| watch.has_changed(volume).unwrap_or(false);
        let moment = Moment(monotonic_ms());
        let is_waited =
            self.watches.iter().any(|(volume, _)| volume.fs().space_waiters(moment).count > 0);
        self.watches.iter_mut().fold(is_waited, |changed, one| has_changed(one) | changed)
    }
}

impl<'a> Carrier<'a> {
    /// Carries out `plan`, except for the steps that must wait for a retry. Errors: those of the
    /// directory as a whole; what was done until then is in the manifest.
    pub fn carry_out(&mut self, plan: &Plan) -> Result<()> {
        // A directory to be removed may hold copies that are renamed first, so it is removed later.
        // A directory whose place something else takes must go first.
        let displaced = plan.displaced(self.tree);
        let is_kept_back = |path: &&FilePath| {
            let entry = self.ledger.entry(path).map(|entry| entry.kind);
            entry == Some(Kind::Directory) && !lies_in(path, &displaced)
        };
        let (emptied, first): (Vec<&FilePath>, Vec<_>) = plan.remove.iter().partition(is_kept_back);
        for path in first {
            self.step(path, |carrier| carrier.remove(path))?;
        }
        for path in &plan.forget {
            self.ledger.take(path);
        }
        for path in &plan.directories {
            self.step(path, |carrier| carrier.make_directory(path))?;
        }
        let mut copies = plan.copies.clone();
        // Copies that were not renamed although they hold the only data of absent files.
        let mut kept = BTreeSet::new();
        for (from, to) in &plan.renames {
            let renamed = match kept.contains(to) {
                true => None,
                false => self.step(to, |carrier| carrier.rename(from, to))?,
            };
            let is_absent = self.tree.get(to).is_some_and(|node| node.absence.is_some());
            match renamed == Some(true) {
                true => {}
                false if is_absent => drop(kept.insert(from)),
                false => copies.push(to.clone()),
            }
        }
        // A directory stays if something in it should have gone and could not: a later pass removes
        // it.
        let removed: HashSet<&FilePath> = emptied.iter().copied().collect();
        let mut staying = match emptied.is_empty() {
            true => HashSet::new(),
            false => {
                let all = self.ledger.manifest().files.keys();
                directories_of(all.filter(|path| !removed.contains(path)).collect())
            }
        };
        for path in emptied {
            let is_gone = !staying.contains(path)
                && self.step(path, |carrier| carrier.remove(path))?.is_some();
            if !is_gone {
                staying.extend(directories_of(vec![path]));
            }
        }
        copies.retain(|path| !kept.contains(path));
        for path in &plan.symlinks {
            self.step(path, |carrier| carrier.make_symlink(path))?;
        }
        for path in &plan.unclean {
            self.mark(path, State::Unclean, None);
        }
        for path in &plan.attach {
            self.attach(path);
        }
        for path in &plan.damaged {
            self.ledger.update(path, |entry| entry.damaged = true);
        }
        self.copy_all(&copies, true)?;
        let replaced = std::mem::take(&mut self.replaced);
        if !replaced.is_empty() {
            self.ledger.begin_changes(&replaced.iter().collect())?;
            self.copy_all(&replaced, false)?;
        }
        self.link_all(&plan.links)?;
        // A change of a directory's content has also changed its modification time.
        let touched = std::mem::take(&mut self.touched);
        let renamed = plan.renames.iter().map(|(_, to)| to).filter(|to| self.has_others(to));
        let renamed: Vec<FilePath> = renamed.cloned().collect();
        for path in plan.attributes.iter().chain(&renamed).chain(&touched) {
            if self.tree.get(path).is_some_and(|node| node.kind != Kind::Symlink) {
                self.step(path, |carrier| carrier.set_attributes(path))?;
            }
        }
        Ok(())
    }

    /// Records that a name in the parent directory of `path` changes.
    fn touch_parent(&mut self, path: &FilePath) {
        if let Some((parent, _)) = path.split() {
            self.ledger.touch(parent.clone());
            self.touched.insert(parent);
        }
    }

    /// Carries out one step on `path`, unless it must wait for a retry.
    fn step<T>(
        &mut self,
        path: &FilePath,
        action: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.meter.is_stopping() {
            return Err(Error::Stopped);
        }
        if !self.failures.may_try(path) {
            return Ok(None);
        }
        let meter = self.meter;
        let at_work = meter.at(path);
        let result = action(self);
        drop(at_work);
        self.failures.settle(path, result)
    }

    fn destination(&self) -> &Destination {
        self.ledger.destination()
    }

    fn node(&self, path: &FilePath) -> Result<&'a Node> {
        self.tree.get(path).ok_or_else(|| Error::Changed { path: path.clone() })
    }

    /// Whether the copy at `path` has other attributes than the file.
    fn has_others(&self, path: &FilePath) -> bool {
        let both = self.tree.get(path).zip(self.ledger.entry(path));
        both.is_some_and(|(node, entry)| has_other_attributes(node, entry))
    }

    fn remove(&mut self, path: &FilePath) -> Result<()> {
        let is_directory =
            self.ledger.entry(path).is_some_and(|entry| entry.kind == Kind::Directory);
        self.touch_parent(path);
        // A copy that is not ours any more stays. Its entry is dropped either way.
        if self.ledger.is_ours(path)? {
            self.ledger.announce(path, None, None)?;
            match is_directory {
                true => self.destination().remove_directory(path)?,
                false => self.destination().remove_file(path)?,
            }
        }
        self.ledger.take(path);
        Ok(())
    }

    fn make_directory(&mut self, path: &FilePath) -> Result<()> {
        let node = self.node(path)?.clone();
        self.touch_parent(path);
        let mut entry = node.entry(State::Drained);
        self.ledger.announce(path, Some(&entry), None)?;
        self.destination().make_directory(path, node.mode)?;
        entry.extended = self.set_extended(path, &node, None)?;
        self.set_directory_attributes(path, &node)?;
        self.ledger.put(path.clone(), entry);
        Ok(())
    }

    /// Renames a copy. False if it is not ours any more, so that the file must be copied.
    fn rename(&mut self, from: &FilePath, to: &FilePath) -> Result<bool> {
        let Some((entry, found)) = self.ledger.find_ours(from)? else {
            self.ledger.take(from);
            return Ok(false);
        };
        self.touch_parent(from);
        self.touch_parent(to);
        self.ledger.announce(to, Some(&entry), Some(found.inode))?;
        self.ledger.announce(from, None, None)?;
        self.destination().rename(from, to)?;
        self.ledger.take(from);
        self.ledger.put(to.clone(), entry);
        Ok(true)
    }

    /// Makes hard links to copies under other names. If a copy is missing, one of the names gets a
    /// copy and the others are linked to it.
    fn link_all(&mut self, links: &[(FilePath, FilePath)]) -> Result<()> {
        let (mut alone, mut others) = (BTreeMap::new(), Vec::new());
        for (from, to) in links {
            if self.step(to, |carrier| carrier.link(from, to))? == Some(false) {
                match alone.entry(from) {
                    btree_map::Entry::Vacant(first) => _ = first.insert(to.clone()),
                    btree_map::Entry::Occupied(first) => others.push((first.get().clone(), to)),
                }
            }
        }
        self.copy_all(&alone.into_values().collect::<Vec<_>>(), false)?;
        for (from, to) in &others {
            if self.step(to, |carrier| carrier.link(from, to))? == Some(false) {
                // The next pass does it.
                self.failures.leave(1);
            }
        }
        Ok(())
    }

    /// Links the copy at `from` to the name `to`. False if the file must be copied.
    fn link(&mut self, from: &FilePath, to: &FilePath) -> Result<bool> {
        let (node, volume) = (self.node(to)?, self.volume);
        // The file may have been written to since the tree was read. If this name belongs to
        // another file by now, the next pass notices.
        let entry = self.ledger.entry(from).filter(|entry| is_copy_of_file(entry, node));
        if entry.is_none() || self.destination().mapping().is_reserved(to) {
            return Ok(false);
        }
        self.ledger.set_aside_existing(to, Kind::File)?;
        let is_new = self.ledger.needs_free_name(to)?;
        self.link_from(from, Source { volume, path: to, node, is_new })
    }

    fn link_from(&mut self, from: &FilePath, source: Source<'_>) -> Result<bool> {
        let Some(entry) = self.ledger.entry(from) else { return Ok(false) };
        let journal = self.ledger.shared_journal();
        let verify = self.meter.pace.policy().verify;
        let destination = self.destination();
        let place = Place { destination, journal: &journal, marks: self.marks, verify };
        let Some(copy) = link(place, source, (destination, from, entry))? else {
            return Ok(false);
        };
        self.touch_parent(source.path);
        self.ledger.put(source.path.clone(), source.node.drained_entry(copy));
        Ok(true)
    }

    /// Returns another name of the file at `path` whose copy has the file's attributes already.
    fn other_name(&self, path: &FilePath, node: &Node) -> Option<FilePath> {
        let names = self.names.get_or_init(|| names(self.tree)).get(&node.inode)?;
        let is_it = |other: &&&FilePath| {
            **other != path && self.ledger.entry(other).is_some_and(|entry| is_copy_of(entry, node))
        };
        names.iter().find(is_it).map(|other| (*other).clone())
    }

    fn make_symlink(&mut self, path: &FilePath) -> Result<()> {
        let node = self.node(path)?.clone();
        self.touch_parent(path);
        let target = Some(Target(node.target.clone()));
        let entry = Entry { target, ..node.entry(State::Drained) };
        self.ledger.announce(path, Some(&entry), None)?;
        self.destination().make_symlink(path, &node.target, node.mtime_ns)?;
        self.ledger.put(path.clone(), entry);
        Ok(())
    }

    /// Records the state of a file without a verified copy of this version. An older copy stays
    /// where it is.
    fn mark(&mut self, path: &FilePath, state: State, reason: Option<String>) {
        if let Some(node) = self.tree.get(path) {
            let earlier = self.ledger.entry(path).and_then(Entry::copy);
            self.ledger.put(path.clone(), Entry { earlier, reason, ..node.entry(state) });
        }
    }

    fn attach(&mut self, path: &FilePath) {
        if let Some(node) = self.tree.get(path) {
            self.ledger.attach(path, node);
        }
    }

    fn set_attributes(&mut self, path: &FilePath) -> Result<()> {
        let node = self.node(path)?;
        let mut extended = self.ledger.entry(path).and_then(|entry| entry.extended);
        if node.kind == Kind::Directory {
            if self.destination().look(path)?.is_none() {
                // The directory was renamed or removed in the store, and therefore here as well.
                self.ledger.take(path);
                return Err(Error::Changed { path: path.clone() });
            }
            extended = self.set_extended(path, node, extended)?;
            self.set_directory_attributes(path, node)?;
        } else if let Some((entry, found)) = self.ledger.find_ours(path)? {
            if found.links > 1 || node.links > 1 {
                self.touch_parent(path);
                let source = Source { volume: self.volume, path, node, is_new: false };
                if let Some(other) = self.other_name(path, node)
                    && self.link_from(&other, source)?
                {
                    return Ok(());
                }
            }
            let entry = Entry { mode: node.mode, mtime_ns: node.mtime_ns, ..entry };
            self.ledger.announce(path, Some(&entry), Some(found.inode))?;
            extended = self.set_extended(path, node, extended)?;
            self.destination().set_attributes(path, node.mode, node.mtime_ns)?;
        } else {
            // Somebody changed or removed the copy: make a new one.
            self.ledger.take(path);
            return Err(Error::Changed { path: path.clone() });
        }
        self.ledger.update(path, |entry| {
            entry.mode = node.mode;
            entry.mtime_ns = node.mtime_ns;
            entry.extended = extended;
        });
        Ok(())
    }

    /// Sets the file's extended attributes on the copy if `carried` says that it has others.
    /// Returns what the copy has then.
    fn set_extended(
        &self,
        path: &FilePath,
        node: &Node,
        carried: Option<Carried>,
    ) -> Result<Option<Carried>> {
        if !has_other_extended(node, carried) {
            return Ok(carried);
        }
        let kept = self.destination().set_extended(path, &node.extended)?;
        Ok(node.extended.carried(kept))
    }

    /// Sets mode and time of a directory. The owner keeps all rights: otherwise nothing more could
    /// be drained into it.
    fn set_directory_attributes(&self, path: &FilePath, node: &Node) -> Result<()> {
        self.destination().set_attributes(path, node.mode | 0o700, node.mtime_ns)
    }

    /// Copies files in their order, several at a time. If `adopts`, a copy that an earlier store
    /// left is compared with the file; one that differs is noted in `replaced`.
    fn copy_all(&mut self, paths: &[FilePath], adopts: bool) -> Result<()> {
        let work = self.work(paths, adopts)?;
        let total_bytes = work.iter().map(|item| item.source.node.bytes).sum();
        self.meter.expect(work.len() as u64, total_bytes);
        if let Some(overtaking) = &mut self.overtaking {
            overtaking.begin();
        }
        let manifest = manifest_path(&self.ledger.manifest().job);
        let copiers = Copiers {
            destination: self.ledger.shared_destination(),
            journal: self.ledger.shared_journal(),
            meter: self.meter,
            marks: self.marks,
            elsewhere: self.elsewhere,
            since: self.image.map(|(_, since)| since),
            queue: Queue::new(&work),
            give_up: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            let (sender, results) = mpsc::channel();
            let mut outcome = Ok(());
            // One thread reads an image at a time.
            let threads = if self.volume.is_image() { 1 } else { COPY_THREADS };
            for _ in 0..threads.min(work.len()) {
                let sender = sender.clone();
                let copier = thread::Builder::new().name("copy".to_string());
                if let Err(error) = copier.spawn_scoped(scope, || copiers.run(sender)) {
                    let path = copiers.destination.path();
                    outcome = Err(Error::file("start a thread for", path)(error));
                }
            }
            drop(sender);
            for (source, result) in results {
                let noted = self.note_copy(source, result);
                let at_work = self.meter.at(&manifest);
                let noted = noted.and_then(|()| self.ledger.commit_if_due());
                drop(at_work);
                if noted.is_err() && outcome.is_ok() {
                    copiers.give_up.store(true, Ordering::Relaxed);
                    outcome = noted;
                }
                if self.overtaking.as_mut().is_some_and(|overtaking| overtaking.has_come()) {
                    // Files closed meanwhile may belong to a newer checkpoint: plan the rest anew.
                    // Held files are finished.
                    let is_held =
                        |item: &&WorkItem<'_>| self.volume.holds(InodeId(item.source.node.inode));
                    self.failures.leave(copiers.queue.leave(is_held) as u64);
                }
            }
            outcome
        })
    }

    fn work(&mut self, paths: &[FilePath], adopts: bool) -> Result<Vec<WorkItem<'a>>> {
        let (tree, volume) = (self.tree, self.volume);
        let mut work = Vec::with_capacity(paths.len());
        for (path, node) in paths.iter().filter_map(|path| tree.get_key_value(path)) {
            if !self.failures.may_try(path) {
                continue;
            }
            if let refused @ Err(_) = self.ledger.set_aside_existing(path, Kind::File) {
                self.failures.settle(path, refused)?;
                continue;
            }
            // If the directory cannot be looked at, the copy reports the error.
            let is_new = self.ledger.needs_free_name(path).unwrap_or(false);
            let is_left = self.ledger.entry(path).is_some_and(|entry| entry.detached);
            let existing = if adopts { self.detached_copy(path) } else { None };
            if adopts && is_left && existing.is_none() {
                // Somebody changed it: it is not what an earlier store left.
                self.replaced.push(path.clone());
                continue;
            }
            let earlier = self.earlier_copy(path, node);
            work.push(WorkItem {
                source: Source { volume, path, node, is_new },
                existing,
                earlier,
            });
        }
        Ok(work)
    }

    /// Returns the copy of the file that an earlier image has in this place, if it is worth
    /// patching.
    fn earlier_copy(&self, path: &FilePath, node: &Node) -> Option<Found> {
        let (stored_to, _) = self.image?;
        let (entry, found) = self.ledger.find_ours(path).ok()??;
        // A copy that is marked as damaged only because it is older is sound.
        let is_older = stored_to.contains(path);
        let is_sound = !entry.detached && (!entry.damaged || is_older) && entry.inode == node.inode;
        let is_alone = found.links == 1 && !has_other_extended(node, entry.extended);
        let is_worth_it = found.bytes.min(node.bytes) >= EARLIER_BYTES_MIN;
        (is_sound && is_alone && is_worth_it).then_some(found)
    }

    /// Returns the copy that an earlier store of the job left under this name, if it is still
    /// there.
    fn detached_copy(&self, path: &FilePath) -> Option<Copy> {
        let entry = self.ledger.entry(path).filter(|entry| entry.detached)?;
        let is_there = self.ledger.is_ours(path).unwrap_or(false);
        entry.copy().filter(|_| is_there)
    }

    fn note_copy(&mut self, source: Source<'_>, result: Result<Option<Copy>>) -> Result<()> {
        self.meter.finished_file();
        if let Err(error @ Error::Damaged { .. }) = &result {
            self.mark(source.path, State::Quarantined, Some(error.to_string()));
            return Ok(());
        }
        match self.failures.settle(source.path, result)? {
            Some(Some(copy)) => {
                self.touch_parent(source.path);
                self.ledger.put(source.path.clone(), source.node.drained_entry(copy));
            }
            Some(None) => self.replaced.push(source.path.clone()),
            None => {}
        }
        Ok(())
    }
}

/// A file to copy, with copies that may make that unnecessary.
struct WorkItem<'a> {
    source: Source<'a>,
    existing: Option<Copy>,
    /// Copy in the earlier image.
    earlier: Option<Found>,
}

impl Item for &WorkItem<'_> {
    fn modified_ns(&self) -> i64 {
        self.source.node.mtime_ns
    }

    fn bytes(&self) -> u64 {
        self.source.node.bytes
    }
}

/// State shared by the copying threads.
struct Copiers<'a> {
    destination: Arc<Destination>,
    journal: Arc<Journal>,
    meter: &'a Meter,
    marks: &'a Marks,
    elsewhere: &'a [Elsewhere<'a>],
    /// For an image: what is unchanged since the image in this place.
    since: Option<Since<'a>>,
    queue: Queue<&'a WorkItem<'a>>,
    give_up: AtomicBool,
}

impl<'a> Copiers<'a> {
    /// Copies from the queue until it is empty.
    fn run(&self, results: mpsc::Sender<(Source<'a>, Result<Option<Copy>>)>) {
        if self.meter.pace.policy().priority == Priority::Idle {
            priority::lower_this_thread();
        }
        let mut buffer = Buffer::default();
        while !self.give_up.load(Ordering::Relaxed) {
            let items = self.queue.take(self.meter);
            if items.is_empty() {
                return;
            }
            for result in self.copy(&items, &mut buffer) {
                if results.send(result).is_err() {
                    return;
                }
            }
        }
    }

    /// Copies `items`, or adopts existing copies. None: the copy that an earlier store left
    /// differs.
    fn copy(
        &self,
        items: &[&WorkItem<'a>],
        buffer: &mut Buffer,
    ) -> Vec<(Source<'a>, Result<Option<Copy>>)> {
        let (destination, journal) = (&*self.destination, &*self.journal);
        let verify = self.meter.pace.policy().verify;
        let place = Place { destination, journal, marks: self.marks, verify };
        let mut results = Vec::with_capacity(items.len());
        let mut sources = Vec::with_capacity(items.len());
        for WorkItem { source, existing, earlier } in items {
            match existing {
                _ if destination.mapping().is_reserved(source.path) => {
                    let path = source.path.clone();
                    results.push((*source, Err(Error::Reserved { path })));
                }
                Some(existing) => {
                    results.push((*source, self.adopt(place, *source, existing, buffer)));
                }
                None => match self.make(place, *source, earlier.as_ref(), buffer) {
                    Ok(None) => sources.push(*source),
                    made => results.push((*source, made)),
                },
            }
        }
        let copies = match sources.as_slice() {
            [source] => vec![copy_file(place, *source, buffer, self.meter)],
            sources => copy_together(place, sources, buffer, self.meter),
        };
        let copies = copies.into_iter().map(|copy| copy.map(Some));
        results.extend(sources.into_iter().zip(copies));
        results
    }

    /// Makes the copy of `source` from a copy that exists already. None: no existing copy is
    /// suitable.
    fn make(
        &self,
        place: Place<'_>,
        source: Source<'a>,
        earlier: Option<&Found>,
        buffer: &mut Buffer,
    ) -> Result<Option<Copy>> {
        let unchanged = earlier.zip(self.since);
        let unchanged = unchanged.and_then(|(_, since)| since.of(source.volume, source.node.inode));
        // If the differences are known, the place keeps a copy of its own: a file linked to from
        // two places could not be patched the next time.
        let linked = if unchanged.is_some() { None } else { self.link(place, source, buffer)? };
        match (linked, earlier) {
            (None, Some(found)) => {
                patch_file(place, source, (found, unchanged), buffer, self.meter)
            }
            (linked, _) => Ok(linked),
        }
    }

    /// Links `source` to a copy in another directory, or copies it from there.
    fn link(
        &self,
        place: Place<'_>,
        source: Source<'a>,
        buffer: &mut Buffer,
    ) -> Result<Option<Copy>> {
        for there in self.elsewhere {
            let Some(entry) = there.entry(source.path, source.node) else { continue };
            let linked = match there.shares {
                true => link(place, source, (there.destination, source.path, entry))?,
                false => None,
            };
            let copied = match (linked, source.node.absence) {
                (None, Some(_)) => there.copy(place, source, buffer, self.meter)?,
                (linked, _) => linked,
            };
            if let Some(copy) = copied {
                self.meter.copied(copy.bytes);
                return Ok(Some(copy));
            }
        }
        Ok(None)
    }

    /// Compares the existing copy with `source`; None if it differs.
    fn adopt(
        &self,
        place: Place<'_>,
        source: Source<'_>,
        existing: &Copy,
        buffer: &mut Buffer,
    ) -> Result<Option<Copy>> {
        let adopted = adopt_file(place, source, existing, buffer, self.meter)?;
        self.meter.copied(adopted.as_ref().map_or(0, |copy| copy.bytes));
        Ok(adopted)
    }
}

#[cfg(test)]
mod tests;
