//! Makes the copies that a cut needs, on the shelf of the persist directory, several at a time.
//!
//! Must stay true: nothing that a user sees outside changes here. Copies that an attempt made stay
//! for the next one, which uses those whose files are the same: so work that is given up is not
//! lost, and a pass that is given up again and again comes to its end. A failure on one file does
//! not keep the others from being copied; a failure of the directory ends the pass.
//!
//! Does not decide which copies are needed; `plan.rs` does.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::drain::copy::{Place, Source, adopt_file, copy_file, copy_together, patch_file};
use crate::drain::failures::Failures;
use crate::drain::meter::Meter;
use crate::drain::queue::{Item, Queue};
use crate::drain::unchanged::{Since, Unchanged};
use crate::model::error::{Error, Result};
use crate::model::policy::Priority;
use crate::model::priority;
use crate::persist::ledger::Ledger;
use crate::persist::marks::Marks;
use crate::store::read::Buffer;
use crate::store::volume::Volume;
use cairn_job::file::node::{Node, Tree};
use cairn_job::file::path::FilePath;
use cairn_job::outside::comparison::has_other_extended;
use cairn_job::outside::manifest::{Copy, Entry};
use cairn_job::pass::sequence::{Made, SPARE_BYTES_MIN};

/// Copies on the shelf, and spares.
#[derive(Default)]
pub struct Shelf {
    made: HashMap<FilePath, (Node, Made)>,
    /// Inodes, in the store and in the persist directory, of the spares, and the number of the
    /// image that each is of.
    spares: HashMap<FilePath, Spare>,
}

/// An earlier copy of a file that changes in its place.
#[derive(Clone, Copy)]
pub struct Spare {
    /// Inode in the store.
    pub file: u32,
    /// Inode in the persist directory.
    pub inode: u64,
    /// Pass whose cut it is of.
    pub pass: u64,
}

impl Shelf {
    /// Returns the copy that was made of exactly `node`.
    pub fn made(&self, path: &FilePath, node: &Node) -> Option<&Made> {
        let (of, made) = self.made.get(path)?;
        let is_same = (of.inode, of.version, of.mode, of.mtime_ns)
            == (node.inode, node.version, node.mode, node.mtime_ns);
        (is_same && of.extended == node.extended).then_some(made)
    }

    /// Forgets the copies: they have their names, or are needed no more.
    pub fn clear(&mut self) {
        self.made.clear();
    }

    /// Forgets the copies of `paths`: what they show may be older than the files.
    pub fn forget<'a>(&mut self, paths: impl IntoIterator<Item = &'a FilePath>) {
        paths.into_iter().for_each(|path| drop(self.made.remove(path)));
    }

    /// Notes a new spare.
    pub fn note_spare(&mut self, path: FilePath, spare: Spare) {
        self.spares.insert(path, spare);
    }

    /// Takes the spares of files for which `is_kept` is false.
    pub fn take_spares(&mut self, is_kept: impl Fn(&FilePath, &Spare) -> bool) -> Vec<FilePath> {
        let mut gone = Vec::new();
        self.spares.retain(|path, spare| {
            let stays = is_kept(path, spare);
            gone.extend((!stays).then(|| path.clone()));
            stays
        });
        gone
    }
}

/// What copies are made of, and how.
pub struct Copier<'a> {
    /// The persist directory.
    pub ledger: &'a mut Ledger,
    /// Files that failed, with their delays.
    pub failures: &'a mut Failures,
    /// Copies made so far.
    pub shelf: &'a mut Shelf,
    /// Views of the namespace at the cut, one for each copying thread.
    pub views: &'a [Arc<Volume>],
    /// The tree of the namespace at the cut.
    pub tree: &'a Tree,
    /// Progress, pace and the request to stop.
    pub meter: &'a Meter,
    /// Marks of how far large copies have come.
    pub marks: &'a Marks,
    /// What is unchanged in large files since earlier passes.
    pub since: &'a Unchanged,
    /// Files that programs can store to through mappings: their copies are made anew.
    pub stored_to: &'a HashSet<FilePath>,
}

impl<'a> Copier<'a> {
    /// Makes the copies at `paths`, in this order. Errors: those of the directory as a whole, and
    /// `Stopped`; the cut is not held any more.
    pub fn copy_all(&mut self, paths: &[FilePath]) -> Result<()> {
        let work = self.work(paths);
        if work.is_empty() {
            return Ok(());
        }
        let total_bytes = work.iter().map(|item| item.source.node.bytes).sum();
        self.meter.expect(work.len() as u64, total_bytes);
        let copiers = Copiers {
            place: Place {
                destination: &self.ledger.shared_destination(),
                marks: self.marks,
                verify: self.meter.pace.policy().verify,
            },
            meter: self.meter,
            queue: Queue::new(&work),
            gives_up: AtomicBool::new(false),
        };
        thread::scope(|scope| {
            let (sender, results) = mpsc::channel();
            let mut outcome = Ok(());
            for view in self.views.iter().take(work.len()) {
                let (sender, copiers) = (sender.clone(), &copiers);
                let copier = thread::Builder::new().name("copy".to_string());
                let copy = move || copiers.run(view, sender);
                if let Err(error) = copier.spawn_scoped(scope, copy) {
                    let path = copiers.place.destination.path();
                    outcome = Err(Error::file("start a thread for", path)(error));
                }
            }
            drop(sender);
            for (source, result) in results {
                self.meter.finished_file();
                let noted = match result {
                    Err(error @ Error::Damaged { .. }) => {
                        self.ledger.quarantine(source.path, source.node, error.to_string());
                        Ok(())
                    }
                    result => self.failures.settle(source.path, result).map(|made| {
                        if let Some(made) = made {
                            let made = (source.node.clone(), made);
                            self.shelf.made.insert(source.path.clone(), made);
                        }
                    }),
                };
                if noted.is_err() && outcome.is_ok() {
                    copiers.gives_up.store(true, Ordering::Relaxed);
                    outcome = noted;
                }
            }
            outcome
        })
    }

    fn work(&mut self, paths: &[FilePath]) -> Vec<WorkItem<'a>> {
        let (tree, volume) = (self.tree, &*self.views[0]);
        let mut work = Vec::with_capacity(paths.len());
        for (path, node) in paths.iter().filter_map(|path| tree.get_key_value(path)) {
            let is_made = !self.stored_to.contains(path) && self.shelf.made(path, node).is_some();
            if is_made || !self.failures.may_try(path) {
                continue;
            }
            let entry = self.ledger.entry(path);
            let before = entry.filter(|entry| !entry.unclosed).and_then(Entry::copy);
            let spare = self.shelf.spares.remove(path).filter(|spare| {
                let carries_others = has_other_extended(node, None);
                spare.file == node.inode && node.bytes >= SPARE_BYTES_MIN && !carries_others
            });
            let since = spare.map(|spare| (spare.inode, self.since.since(spare.pass)));
            work.push(WorkItem {
                source: Source {
                    volume,
                    path,
                    node,
                    before: before.map(|copy| (copy.bytes, copy.crc32c)),
                },
                existing: self.detached_copy(path),
                spare: since,
            });
        }
        work
    }

    /// Returns the copy that an earlier store of the job left under this name, if it is still
    /// there.
    fn detached_copy(&self, path: &FilePath) -> Option<Copy> {
        let is_earlier = |entry: &&Entry| (entry.detached || entry.inode == 0) && !entry.damaged;
        let entry = self.ledger.entry(path).filter(is_earlier)?;
        let is_there = self.ledger.is_ours(path).unwrap_or(false);
        entry.copy().filter(|_| is_there)
    }
}

/// A file to copy, with copies that may make that unnecessary.
struct WorkItem<'a> {
    source: Source<'a>,
    /// Copy that an earlier store left.
    existing: Option<Copy>,
    /// Spare, by its inode, and what is unchanged since.
    spare: Option<(u64, Since<'a>)>,
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
    place: Place<'a>,
    meter: &'a Meter,
    queue: Queue<&'a WorkItem<'a>>,
    gives_up: AtomicBool,
}

/// Results of a thread.
type Results<'a> = mpsc::Sender<(Source<'a>, Result<Made>)>;

impl<'a> Copiers<'a> {
    /// Copies from the queue until it is empty. `view` is of this thread alone.
    fn run(&self, view: &'a Volume, results: Results<'a>) {
        if self.meter.pace.policy().priority == Priority::Idle {
            priority::lower_this_thread();
        }
        let mut buffer = Buffer::default();
        while !self.gives_up.load(Ordering::Relaxed) {
            let items = self.queue.take(self.meter);
            if items.is_empty() {
                return;
            }
            for result in self.copy(view, &items, &mut buffer) {
                if results.send(result).is_err() {
                    return;
                }
            }
        }
    }

    /// Copies `items`, or adopts existing copies.
    fn copy(
        &self,
        view: &'a Volume,
        items: &[&WorkItem<'a>],
        buffer: &mut Buffer,
    ) -> Vec<(Source<'a>, Result<Made>)> {
        let mut results = Vec::with_capacity(items.len());
        let mut sources = Vec::with_capacity(items.len());
        for item in items {
            let source = Source { volume: view, ..item.source };
            if self.place.destination.mapping().is_reserved(source.path) {
                let path = source.path.clone();
                results.push((source, Err(Error::Reserved { path })));
                continue;
            }
            match self.make(source, item, buffer) {
                Ok(None) => sources.push(source),
                Ok(Some(made)) => results.push((source, Ok(made))),
                Err(error) => results.push((source, Err(error))),
            }
        }
        let copies = match sources.as_slice() {
            [source] => vec![copy_file(self.place, *source, buffer, self.meter)],
            sources => copy_together(self.place, sources, buffer, self.meter),
        };
        results.extend(sources.into_iter().zip(copies));
        results
    }

    /// Makes a copy from one that exists already. None: none is suitable.
    fn make(
        &self,
        source: Source<'_>,
        item: &WorkItem<'_>,
        buffer: &mut Buffer,
    ) -> Result<Option<Made>> {
        if let Some(existing) = &item.existing {
            let adopted = adopt_file(self.place, source, existing, buffer, self.meter)?;
            if let Some(made) = adopted {
                self.meter.copied(made.copy.bytes);
                return Ok(Some(made));
            }
        }
        match item.spare {
            Some((inode, since)) => {
                let unchanged = since.of(source.volume, source.node.inode);
                patch_file(self.place, source, (inode, unchanged), buffer, self.meter)
            }
            None => Ok(None),
        }
    }
}
