//! Stages drained or archived files into a new store, several at a time.
//!
//! Must stay true: every file is compared with the manifest while it is copied; a file that differs
//! is left out. If a file of a checkpoint is left out, the whole checkpoint is; if only the newest
//! is wanted, the next older one takes its place. A store in which staging was cut off is never
//! taken for complete.
//!
//! Does not change the source of the files.

pub mod archived;
pub mod inputs;
mod limit;
mod on_demand;
pub mod reuse;
mod site;
mod sources;

use archived::Archived;
use cairn_agent::model::job::Job;
use cairn_agent::persist::destination::Destination;
use cairn_agent::persist::ledger::Ledger;
use cairn_agent::persist::manifest_file;
use cairn_agent::store::volume::Volume;
use cairn_agent::store::write;
use cairn_core::ROOT;
use cairn_job::checkpoint::name::{Family, Name};
use cairn_job::checkpoint::sets::series::Series;
use cairn_job::file::extended::Extended;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Checkpoint, Copy, Entry, Manifest};
use on_demand::OnDemand;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{io, thread};

use crate::settings::stage_option::{Extent, Stage};
use crate::store::creation::STAGING;

use crate::claim::Claim;
use crate::drain::{checkpoints, tie};
use crate::error::{Error, Result};
use crate::output::count;
use crate::output::progress::Progress;
use crate::size::human;
use crate::store::local::{self, Expected};
use crate::store::locate;

/// Maximum number of files that are staged at the same time.
const WORKERS_MAX: usize = 4;
/// Maximum number of checkpoints that a message names.
const NAMED_MAX: usize = 8;
/// Owner permissions of directories while files are staged into them.
const ALL_RIGHTS: u32 = 0o700;

/// What became of a file that was to be staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// It is in the store with its data.
    AtOnce,
    /// It is in the store; the agent brings in its data.
    Later,
    /// It is not in the store, because it differs from the manifest.
    Damaged,
}

/// Result of staging.
#[derive(Debug, Default)]
pub struct Staged {
    /// Number of regular files that are in the store with their data.
    pub files: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
    /// Sizes of the files whose data come later, in bytes.
    pub later: BTreeMap<FilePath, u64>,
    /// Files that differ from the manifest.
    pub damaged: BTreeSet<FilePath>,
    /// Checkpoints that were staged completely.
    pub checkpoints: Vec<String>,
    /// Checkpoints that were left out because one of their files is damaged.
    pub left_out: Vec<String>,
    /// Files that were not closed in order.
    pub unclosed: BTreeSet<FilePath>,
    /// Those of them whose last whole versions are outside, too.
    pub whole: BTreeSet<FilePath>,
}

/// Source of staged files.
pub trait Origin: Sync {
    /// Returns the name of a file at the source, for a person.
    fn full_name(&self, path: &FilePath) -> String;

    /// Returns the extended attributes of a directory.
    fn extended(&self, directory: &FilePath) -> Extended;

    /// Returns the inode number behind a path if the file has other names, too.
    fn shared_file(&self, path: &FilePath) -> Option<u64> {
        let _ = path;
        None
    }

    /// Whether a store of `job` drains to this source, and to the same paths there.
    fn is_persist_of(&self, job: &Job) -> bool {
        let _ = job;
        false
    }

    /// Stages a file into a store under the second part of `place`. Errors: a failure that would
    /// hit other files, too.
    fn bring(
        &self,
        path: &FilePath,
        copy: &Copy,
        place: (&Volume, &FilePath),
        advance: &mut dyn FnMut(u64),
    ) -> Result<Brought>;
}

impl Origin for Destination {
    fn full_name(&self, path: &FilePath) -> String {
        self.full_path(path).display().to_string()
    }

    fn extended(&self, directory: &FilePath) -> Extended {
        Destination::extended(self, directory)
    }

    fn shared_file(&self, path: &FilePath) -> Option<u64> {
        let found = self.look(path).ok()?.filter(|found| found.links > 1);
        found.map(|found| found.inode)
    }

    fn is_persist_of(&self, job: &Job) -> bool {
        let is_it = |persist: &PathBuf| match (persist.canonicalize(), self.path().canonicalize()) {
            (Ok(theirs), Ok(ours)) => theirs == ours && self.is_current(),
            _ => false,
        };
        self.mapping() == &job.map && job.persist.as_ref().is_some_and(is_it)
    }

    fn bring(
        &self,
        path: &FilePath,
        copy: &Copy,
        (volume, inner): (&Volume, &FilePath),
        advance: &mut dyn FnMut(u64),
    ) -> Result<Brought> {
        let full_path = self.full_path(path);
        let expected = Expected { bytes: copy.bytes, crc32c: copy.crc32c };
        let opened = self.open_file(path).map_err(Error::from);
        let brought = opened.and_then(|file| {
            let mut advance = |bytes| {
                advance(bytes);
                Ok(())
            };
            let from = (file, full_path.as_path());
            local::copy_in(from, None, (volume, inner), Some(expected), &mut advance)
        });
        let is_whole = |crc32c: Option<u32>| match crc32c {
            Some(_) => Brought::AtOnce,
            None => Brought::Damaged,
        };
        or_damaged(brought.map(is_whole), self)
    }
}

/// Takes a file for damaged if the error concerns it alone.
fn or_damaged(brought: Result<Brought>, directory: &Destination) -> Result<Brought> {
    match brought {
        Err(Error::Agent(cairn_agent::Error::File { source, .. }) | Error::File { source, .. })
            if directory.blames_one_file(&source) =>
        {
            Ok(Brought::Damaged)
        }
        brought => brought,
    }
}

/// Whether the store has no room.
fn is_without_room(error: &Error) -> bool {
    use cairn_agent::Error::Store;
    matches!(error, Error::Agent(Store { source: cairn_core::Error::NoSpace, .. }))
}

/// What is to be staged.
pub struct Source<'a> {
    /// Source of the files.
    pub origin: &'a dyn Origin,
    /// Files of the job at the source.
    pub manifest: &'a Manifest,
    /// Whether a path is wanted.
    pub wanted: &'a dyn Fn(&FilePath) -> bool,
}

/// Whether the filling of a store was cut off.
pub fn was_cut_off(directory: &Path) -> bool {
    directory.join(STAGING).symlink_metadata().is_ok()
}

/// Marks a directory as not filled yet. Must be called before the directory becomes a store, so
/// that it is not taken for one before it holds what `stage` says.
pub fn announce(directory: &Path, stage: Stage) -> Result<()> {
    match stage {
        // A killed process may have left the mark.
        Stage::Nothing => withdraw(directory),
        Stage::Later | Stage::Whole(_) | Stage::OnDemand(_) => {
            let mark = directory.join(STAGING);
            File::create(&mark).map(drop).map_err(Error::file("make", &mark))
        }
    }
}

/// Removes the mark: the store is filled, or needs no filling. A store on tiers of an earlier one
/// must not have the mark, because its files may exist nowhere else.
pub fn withdraw(directory: &Path) -> Result<()> {
    let mark = directory.join(STAGING);
    match fs::remove_file(&mark) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(Error::file("remove", &mark)),
    }
}

/// Fills a new store before the first program runs: from the persist directory, or, if that holds
/// nothing, from the archive. Errors: the directory, its manifest or the archive cannot be read, or
/// the store cannot be filled.
pub fn before_run(claim: &Claim, stage: Stage) -> Result<()> {
    match stage {
        Stage::Whole(extent) | Stage::OnDemand(extent) if claim.is_new => {
            bring_what_there_is(claim, stage, extent)?;
        }
        _ => return Ok(()),
    }
    withdraw(claim.store.directory())
}

fn bring_what_there_is(claim: &Claim, stage: Stage, extent: Extent) -> Result<()> {
    let job = &claim.store.job;
    let is_on_demand = matches!(stage, Stage::OnDemand(_));
    if let Some(persist) = &job.persist {
        let (destination, manifest) = in_places(persist, job)?;
        if let Some(manifest) = manifest {
            let origin = OnDemand::new(&destination, &manifest, !is_on_demand);
            return bring(claim, &origin, &manifest, (extent, is_on_demand));
        }
        say(job, &format!("nothing to bring in from {}", persist.display()));
    }
    if let Some(policy) = &job.archive {
        let archived = Archived::open(policy, &job.job)?;
        archived.unreadable.iter().for_each(|unreadable| say(job, unreadable));
        if !archived.manifest.checkpoints.is_empty() {
            if is_on_demand {
                say(job, "files of an archive are all brought in first, not on demand");
            }
            return bring(claim, &archived, &archived.manifest, (extent, false));
        }
        say(job, &format!("nothing to bring in from {}", policy.url));
    }
    Ok(())
}

fn say(job: &Job, line: &str) {
    crate::output::say!("cairn: {}: {line}", job.job);
}

/// Returns the manifest of the files that the job drained in place.
fn in_places(persist: &Path, job: &Job) -> Result<(Destination, Option<Manifest>)> {
    Ledger::settle_earlier(persist, job)?;
    let mut destination = Destination::open(persist, &job.store)?;
    let manifest = manifest_file::load(&mut destination, &job.job)?;
    Ok((destination, manifest.filter(|manifest| !manifest.is_claim())))
}

fn bring(
    claim: &Claim,
    origin: &dyn Origin,
    manifest: &Manifest,
    (extent, quiet): (Extent, bool),
) -> Result<()> {
    let source = Source { origin, manifest, wanted: &|_| true };
    let staged = fill(claim, &source, extent, quiet)?;
    staged.lines().iter().for_each(|line| say(&claim.store.job, line));
    Ok(())
}

/// Fills the new store with the wanted files. Errors: the store cannot be filled, and is
/// incomplete.
pub fn fill(claim: &Claim, source: &Source, extent: Extent, quiet: bool) -> Result<Staged> {
    let volumes = claim.store.volumes()?;
    let mut staging = Staging {
        source,
        volumes: &volumes,
        quiet,
        newest: source.manifest.newest_files(|_| true),
        linked: with_several_names(source.manifest),
        names: HashMap::new(),
        staged: Staged::default(),
    };
    staging.names()?;
    match extent {
        Extent::All => staging.everything()?,
        Extent::Newest => staging.newest()?,
    }
    staging.tidy(extent)?;
    staging.mark_unclosed()?;
    staging.restrict()?;
    checkpoints::adopt(&claim.store, &volumes, &staging.checkpoints())?;
    let staged = staging.staged;
    if source.origin.is_persist_of(&claim.store.job) {
        let tied = tie::tie(&claim.store, &volumes, staged.damaged.iter());
        // Files with their data do not need the tie: the agent compares them with the copies, and
        // reports problems of the directory.
        if !staged.later.is_empty() {
            tied?;
        }
    }
    Ok(staged)
}

impl Staged {
    fn note(&mut self, path: &FilePath, bytes: u64, brought: Brought) {
        match brought {
            Brought::AtOnce => (self.files, self.bytes) = (self.files + 1, self.bytes + bytes),
            Brought::Later => drop(self.later.insert(path.clone(), bytes)),
            Brought::Damaged => drop(self.damaged.insert(path.clone())),
        }
    }

    /// Returns the result as lines for a person.
    fn lines(&self) -> Vec<String> {
        let damaged = self.damaged.iter().map(|path| format!("damaged, left out: {path}"));
        let mut lines: Vec<String> = damaged.collect();
        for name in &self.left_out {
            lines.push(format!("checkpoint {name} is left out: a file of it is damaged"));
        }
        lines.extend(line_about_unclosed(&self.unclosed, &self.whole));
        let size =
            |files: usize, bytes| format!("{}, {}", count(files as u64, "file"), human(bytes));
        let at_once = size(self.files as usize, self.bytes);
        let later = size(self.later.len(), self.later.values().sum());
        let named = &self.checkpoints[..self.checkpoints.len().min(NAMED_MAX)];
        let newest = match self.checkpoints.len() - named.len() {
            0 if named.is_empty() => String::new(),
            0 => format!(", with {}", named.join(", ")),
            more => format!(", with {} and {more} more", named.join(", ")),
        };
        lines.push(match (self.files, self.later.len()) {
            (_, 0) => format!("{at_once}, brought in{newest}"),
            (0, _) => format!("{later}, to be brought in while the command runs{newest}"),
            _ => format!(
                "{at_once}, brought in; {later}, to be brought in while the command runs{newest}"
            ),
        });
        lines
    }
}

/// Returns a message about files that are as an interrupted program left them; None if there are
/// none.
pub fn line_about_unclosed(
    unclosed: &BTreeSet<FilePath>,
    whole: &BTreeSet<FilePath>,
) -> Option<String> {
    let few = |paths: &BTreeSet<FilePath>| {
        let named: Vec<String> = paths.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        let more = if paths.len() > NAMED_MAX { ", ..." } else { "" };
        format!("{}{more}", named.join(", "))
    };
    if unclosed.is_empty() {
        return None;
    }
    let files = count(unclosed.len() as u64, "file");
    let them = if unclosed.len() > 1 { "them" } else { "it" };
    let kept = match whole.is_empty() {
        true => String::new(),
        false => format!("; the last whole versions are kept outside: {}", few(whole)),
    };
    Some(format!("{files} as the program left {them}, not closed: {}{kept}", few(unclosed)))
}

struct Staging<'a> {
    source: &'a Source<'a>,
    volumes: &'a [Volume],
    quiet: bool,
    /// Files of the newest checkpoints. If the store has no room for all data, it has theirs.
    newest: HashSet<FilePath>,
    /// Files that had several names in the store that was drained.
    linked: HashSet<Version>,
    /// One staged name of each file with several names, by its version and its inode number at the
    /// source: names are linked only if they are one file at the source, too.
    names: HashMap<(Version, u64), &'a FilePath>,
    staged: Staged,
}

/// Inode number and version of a file in the store that was drained.
type Version = (u32, u64);

fn with_several_names(manifest: &Manifest) -> HashSet<Version> {
    let files = manifest.files.values().filter(|entry| entry.kind == Kind::File);
    let mut seen = HashSet::new();
    files.map(|entry| (entry.inode, entry.version)).filter(|file| !seen.insert(*file)).collect()
}

impl<'a> Staging<'a> {
    /// Creates directories, with all permissions for their owner, and symbolic links.
    fn names(&self) -> Result<()> {
        for (path, entry) in &self.source.manifest.files {
            let Some((volume, inner)) = locate(self.volumes, path) else { continue };
            match (entry.kind, &entry.target) {
                (Kind::Directory, _) => {
                    let extended = self.source.origin.extended(path);
                    local::make_directory(volume, &inner, entry.mode | ALL_RIGHTS, &extended)?;
                }
                (Kind::Symlink, Some(target)) if (self.source.wanted)(path) => {
                    local::make_symlink(volume, &inner, &target.0, entry.mtime_ns)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Restores the owner permissions of directories that are restricted in the manifest.
    fn restrict(&self) -> Result<()> {
        let entries = self.source.manifest.files.iter().rev();
        let directories = entries.filter(|(_, entry)| entry.kind == Kind::Directory);
        restrict(self.volumes, directories.map(|(path, entry)| (path, entry.mode)))
    }

    /// Stages every wanted file.
    fn everything(&mut self) -> Result<()> {
        let files = self.files(|_| true);
        self.bring(files)?;
        for known in self.checkpoints() {
            self.judge(known)?;
        }
        Ok(())
    }

    /// Stages the files that belong to no checkpoint, and the newest complete checkpoint of each
    /// family.
    fn newest(&mut self) -> Result<()> {
        let known = self.checkpoints();
        let parts: BTreeSet<&FilePath> =
            known.iter().flat_map(|known| known.files.iter()).map(|file| &file.path).collect();
        let files = self.files(|path| !parts.contains(path));
        self.bring(files)?;
        let mut families: HashMap<&Family, Vec<&Checkpoint>> = HashMap::new();
        for known in known {
            families.entry(&known.name.family).or_default().push(known);
        }
        for mut family in families.into_values() {
            while let Some(known) = family.pop() {
                let paths: BTreeSet<&FilePath> =
                    known.files.iter().map(|file| &file.path).collect();
                let files = self.files(|path| paths.contains(path));
                self.bring(files)?;
                if self.judge(known)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Removes the empty directories of checkpoints that were left out because they are damaged, or
    /// were not to be staged: a program might take the last one for the newest checkpoint.
    fn tidy(&self, extent: Extent) -> Result<()> {
        let is_gone = |name: &Name| match extent {
            Extent::All => self.staged.left_out.contains(&name.to_string()),
            Extent::Newest => !self.staged.checkpoints.contains(&name.to_string()),
        };
        let known = self.checkpoints().into_iter();
        let files: Vec<(&Name, &FilePath)> = known
            .flat_map(|known| known.files.iter().map(|file| (&known.name, &file.path)))
            .collect();
        let mut owners: BTreeMap<FilePath, BTreeSet<&Name>> = BTreeMap::new();
        for (name, path) in &files {
            let mut parent = path.split().map(|(parent, _)| parent);
            while let Some(path) = parent.filter(|path| !path.is_root()) {
                owners.entry(path.clone()).or_default().insert(*name);
                parent = path.split().map(|(parent, _)| parent);
            }
        }
        owners.retain(|_, owners| owners.len() == 1 && owners.iter().all(|name| is_gone(name)));
        let mut empty: BTreeSet<FilePath> = owners.into_keys().collect();
        let series = Series::of(files.into_iter());
        let entries = self.source.manifest.files.iter();
        let directories = entries.filter(|(_, entry)| entry.kind == Kind::Directory);
        let missing =
            directories.filter(|(path, _)| series.name(path).is_some_and(|name| is_gone(&name)));
        empty.extend(missing.map(|(path, _)| path.clone()));
        // The content of a directory comes before the directory.
        for path in empty.iter().rev() {
            let Some((volume, inner)) = locate(self.volumes, path) else { continue };
            match volume.fs().remove_directory(&volume.caller(), ROOT, inner.as_bytes()) {
                Ok(()) | Err(cairn_core::Error::NotEmpty | cairn_core::Error::NotFound) => {}
                Err(error) => return Err(volume.error("take away", &inner)(error).into()),
            }
        }
        Ok(())
    }

    /// Marks the files that were not closed in order as such.
    fn mark_unclosed(&mut self) -> Result<()> {
        let manifest = self.source.manifest;
        for (path, _) in manifest.files.iter().filter(|(_, entry)| entry.unclosed) {
            let Some((volume, inner)) = locate(self.volumes, path) else { continue };
            if volume.attributes(&inner).is_ok_and(|found| found.is_regular()) {
                write::mark_unclean(volume, &inner)?;
                self.staged.unclosed.insert(path.clone());
                if manifest.whole.contains_key(path) {
                    self.staged.whole.insert(path.clone());
                }
            }
        }
        Ok(())
    }

    /// Returns the complete checkpoints all of whose files are wanted.
    fn checkpoints(&self) -> Vec<&'a Checkpoint> {
        let Source { manifest, wanted, .. } = self.source;
        let is_wanted = |known: &&Checkpoint| known.files.iter().all(|file| wanted(&file.path));
        manifest.whole_checkpoints().into_iter().filter(is_wanted).collect()
    }

    /// Returns the wanted files with a copy for which `is_meant` holds.
    fn files(&self, is_meant: impl Fn(&FilePath) -> bool) -> BTreeMap<&'a FilePath, &'a Entry> {
        let files = self.source.manifest.files.iter();
        let has_copy = |entry: &Entry| entry.kind == Kind::File && entry.copy().is_some();
        let chosen = files.filter(|(path, entry)| {
            has_copy(entry) && (self.source.wanted)(path) && is_meant(path)
        });
        chosen.collect()
    }

    /// Records whether a staged checkpoint is complete. If it is not, removes its files again.
    /// Returns whether it is complete.
    fn judge(&mut self, known: &Checkpoint) -> Result<bool> {
        let is_damaged = known.files.iter().any(|file| self.staged.damaged.contains(&file.path));
        if !is_damaged {
            self.staged.checkpoints.push(known.name.to_string());
            return Ok(true);
        }
        self.staged.left_out.push(known.name.to_string());
        let sound = known.files.iter().filter(|file| !self.staged.damaged.contains(&file.path));
        for file in sound {
            let Some((volume, inner)) = locate(self.volumes, &file.path) else { continue };
            let removed = volume.fs().unlink(&volume.caller_as_user(), ROOT, inner.as_bytes());
            removed.map_err(volume.error("take away", &inner))?;
            if self.staged.later.remove(&file.path).is_none() {
                self.staged.files -= 1;
                self.staged.bytes -= file.bytes;
            }
        }
        Ok(false)
    }

    /// Stages files. Names of one file become names of one file again.
    fn bring(&mut self, mut files: BTreeMap<&'a FilePath, &'a Entry>) -> Result<()> {
        let links = self.take_links(&mut files);
        self.bring_data(files)?;
        let mut alone = BTreeMap::new();
        for (path, (other, entry)) in links {
            if self.staged.damaged.contains(other) {
                self.staged.damaged.insert(path.clone());
            } else if self.link(other, path)? {
                let brought = match self.staged.later.contains_key(other) {
                    true => Brought::Later,
                    false => Brought::AtOnce,
                };
                self.staged.note(path, bytes(entry), brought);
            } else {
                alone.insert(path, entry);
            }
        }
        self.bring_data(alone)
    }

    /// Takes from `files` each path that is a further name of a file that is staged with this call,
    /// or was before. Returns these paths with the first name.
    fn take_links(
        &mut self,
        files: &mut BTreeMap<&'a FilePath, &'a Entry>,
    ) -> BTreeMap<&'a FilePath, (&'a FilePath, &'a Entry)> {
        let mut links = BTreeMap::new();
        files.retain(|&path, &mut entry| {
            let version = (entry.inode, entry.version);
            let is_linked = self.linked.contains(&version);
            let shared = is_linked.then(|| self.source.origin.shared_file(path)).flatten();
            let Some(shared) = shared else { return true };
            let other = *self.names.entry((version, shared)).or_insert(path);
            let is_link = other != path;
            if is_link {
                links.insert(path, (other, entry));
            }
            !is_link
        });
        links
    }

    /// Gives the file at `other` in the store the further name `path`. Returns false if that is not
    /// possible.
    fn link(&self, other: &FilePath, path: &FilePath) -> Result<bool> {
        let places = locate(self.volumes, other).zip(locate(self.volumes, path));
        let Some(((volume, other), (its, inner))) = places else { return Ok(false) };
        if volume.prefix() != its.prefix() {
            return Ok(false);
        }
        let (old, new) = ((ROOT, other.as_bytes()), (ROOT, inner.as_bytes()));
        match volume.fs().link(&volume.caller_as_user(), old, new, false) {
            Ok(()) => Ok(true),
            // The file belonged to a checkpoint that was removed again.
            Err(cairn_core::Error::NotFound) => Ok(false),
            Err(error) => Err(volume.error("give another name to", &other)(error).into()),
        }
    }

    /// Stages the data of files, several at a time, those of the newest checkpoints and the largest
    /// first.
    fn bring_data(&mut self, files: BTreeMap<&FilePath, &Entry>) -> Result<()> {
        let mut files: Vec<(&FilePath, &Entry)> = files.into_iter().collect();
        files.sort_by_key(|(path, entry)| {
            std::cmp::Reverse((self.newest.contains(path), bytes(entry)))
        });
        let total = files.iter().map(|(_, entry)| bytes(entry)).sum();
        let progress = Mutex::new(Progress::new("bringing in", total, self.quiet));
        let staged = Mutex::new(&mut self.staged);
        let (origin, volumes) = (self.source.origin, self.volumes);
        for_each(&files, |(path, entry)| {
            let mut advance = |bytes| lock(&progress).advance(bytes);
            let places = locate(volumes, path).zip(entry.copy());
            let brought = match places {
                Some(((volume, inner), copy)) => {
                    origin.bring(path, &copy, (volume, &inner), &mut advance)?
                }
                None => Brought::AtOnce,
            };
            lock(&staged).note(path, bytes(entry), brought);
            Ok(())
        })
    }
}

/// Does `work` on all items, in order, several at a time. Returns the first error, after which no
/// further item is begun.
fn for_each<T: Sync>(items: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            // An error stops the other workers.
            work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let workers = WORKERS_MAX.min(processors).min(items.len());
    thread::scope(|scope| {
        let others = (1..workers).map(|_| thread::Builder::new().spawn_scoped(scope, work));
        // Those that cannot be started are not needed.
        let others: Vec<_> = others.flatten().collect();
        let mine = work();
        let ended = others
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(mine).chain(ended).collect()
    })
}

/// Takes from the owner of directories the permissions that their modes do not have. The content of
/// a directory must come before the directory.
fn restrict<'p>(
    volumes: &[Volume],
    directories: impl Iterator<Item = (&'p FilePath, u32)>,
) -> Result<()> {
    for (path, mode) in directories.filter(|(_, mode)| mode & ALL_RIGHTS != ALL_RIGHTS) {
        let Some((volume, inner)) = locate(volumes, path) else { continue };
        match volume.attributes(&inner) {
            Ok(found) => {
                let set = volume.fs().set_mode(&volume.caller(), found.inode, mode & 0o7777);
                set.map_err(volume.error("set the attributes of", &inner))?;
            }
            // `tidy` has removed the directory.
            Err(cairn_agent::Error::Store { source: cairn_core::Error::NotFound, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns the size of an entry's copy in bytes.
fn bytes(entry: &Entry) -> u64 {
    entry.copy().map_or(0, |copy| copy.bytes)
}

/// Locks a mutex even if a worker panicked. A panic ends the command, and until then the value is
/// consistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
