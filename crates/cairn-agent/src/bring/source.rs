//! Finds the data of absent files and stages them in: of inputs in the files that they are copies
//! of, of others in the persist directory.
//!
//! An absent file records the length and checksum of its data. Its copy usually has the file's
//! path. Where programs, and after them the drain, have renamed it, the manifest says which copies
//! are candidates. Must stay true: a copy is reported as damaged only if the manifest, freshly
//! read, says that it has the data of this file. Nobody knows the checksum of an input, so its
//! source must be, before and after it is read, in the state in which it was found.

use crate::persist::manifest_file;
use cairn_core::Error::NoSpace;
use cairn_core::InodeId;
use cairn_platform::checksum;
use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::part::{Part, Parts};
use super::queue::Item;
use super::{is_absent, path_of};
use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::persist::destination::Destination;
use crate::store::inputs::{Content, Inputs, SourceState, Staged, open_source};
use crate::store::volume::Volume;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Entry, Manifest};

/// Bytes staged in at a time, unless a hugeblock is larger.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Number of attempts to find a copy that is being renamed, and the delay between them.
const ATTEMPTS_MAX: u32 = 25;
const RETRY_EVERY: Duration = Duration::from_millis(200);
/// Interval between attempts to open a copy on which another process has a lease.
const LEASE_EVERY: Duration = Duration::from_millis(20);
/// Message for a copy that differs from what the manifest says.
pub const DAMAGED: &str = "its copy in the persist directory is damaged or gone";

/// The inputs and the persist directory of a job as a source of data.
pub struct Source<'a> {
    job: Job,
    /// Inputs whose data were absent at the start of the run, by inode and version: a file that the
    /// program has written since, or one that got the number later, is no input.
    inputs: HashMap<(InodeId, u64), (PathBuf, SourceState)>,
    /// Copies in the persist directory, if the job has one.
    copies: Option<Mutex<Arc<Copies>>>,
    moved_bytes: AtomicU64,
    parts: Parts<'a>,
}

/// Copies in the persist directory.
struct Copies {
    destination: Destination,
    manifest: Manifest,
    by_content: HashMap<(u64, u32), Vec<FilePath>>,
}

/// Result of staging in a file.
#[derive(Debug)]
pub enum Verdict {
    /// The data are in the store.
    Brought,
    /// Nobody needs the data any more.
    Gone,
    /// A file that somebody waits for got the space of this one, or it is absent with other data by
    /// now. It is to be staged in later.
    PutOff,
    /// There is no room, and nobody asks for the file.
    NoRoom,
    /// The agent ends.
    Stopped,
    /// The data are not available.
    Failed {
        /// The reason.
        reason: String,
        /// Whether the copy differs from what it should be.
        damaged: bool,
    },
}

/// Result of trying one copy.
enum Tried {
    Done(Verdict),
    /// The copy does not exist or has other data.
    Other,
}

/// Data of a file that were read from one place.
enum Poured<'p, 'a> {
    /// All of them; they count once the part is finished.
    All { part: Part<'p, 'a>, crc32c: u32 },
    /// There are fewer than there should be.
    Short,
    /// Nobody wants more.
    Ended(Verdict),
}

impl<'a> Source<'a> {
    /// Reads the record of inputs of the store in `directory` and the manifest in the persist
    /// directory of `job`. Errors: the manifest cannot be read.
    pub fn open(directory: &Path, job: &Job) -> Result<Source<'a>> {
        let staged = Inputs::known(directory).staged.into_values();
        let absent = staged.filter_map(|Staged { source, content, made, .. }| match content {
            Content::File(state) => {
                let made = made.filter(|made| made.crc32c.is_none())?;
                Some(((InodeId(made.inode), made.version), (source, state)))
            }
            Content::Directory(_) | Content::Symlink(_) => None,
        });
        let inputs = absent.collect();
        let copies =
            job.persist.as_deref().map(|persist| Copies::load(persist, job)).transpose()?;
        let copies = copies.map(|copies| Mutex::new(Arc::new(copies)));
        let (job, moved_bytes, parts) = (job.clone(), AtomicU64::new(0), Parts::default());
        Ok(Source { job, inputs, copies, moved_bytes, parts })
    }

    /// Prefix below which programs see the files.
    pub fn mount(&self) -> &str {
        &self.job.mount
    }

    /// Whether a file that somebody waits for lacks room.
    pub fn lacks_room(&self) -> bool {
        self.parts.are_short()
    }

    /// As [`Parts::short`].
    pub fn short(&self) -> Arc<AtomicUsize> {
        self.parts.short()
    }

    /// Number of bytes read so far, useless ones included.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    fn copies(&self) -> Option<Arc<Copies>> {
        let copies = self.copies.as_ref()?;
        Some(Arc::clone(&copies.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn reload(&self) -> Result<Option<Arc<Copies>>> {
        let Some((copies, persist)) = self.copies.as_ref().zip(self.job.persist.as_deref()) else {
            return Ok(None);
        };
        let fresh = Arc::new(Copies::load(persist, &self.job)?);
        *copies.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        Ok(Some(fresh))
    }

    /// Returns the ranks of files that belong to checkpoints: the newest checkpoint has the
    /// greatest.
    pub fn rank(&self) -> HashMap<FilePath, usize> {
        let Some(copies) = self.copies() else { return HashMap::new() };
        let ranked = copies.manifest.checkpoints.iter().enumerate();
        let files =
            ranked.flat_map(|(rank, known)| known.files.iter().map(move |file| (file, rank)));
        files.map(|(file, rank)| (file.path.clone(), rank)).collect()
    }

    /// Stages in a file. `goes_on` is called before each part and returns false to stop.
    pub fn bring(&self, volume: &'a Volume, item: &Item, goes_on: &dyn Fn() -> bool) -> Verdict {
        let failed = |reason: String| Verdict::Failed { reason, damaged: false };
        let Ok(found) = volume.fs().attributes(item.key.inode) else { return Verdict::Gone };
        let brought = match self.inputs.get(&(item.key.inode, found.version)) {
            Some(input) => self.bring_input(volume, item, input, goes_on),
            None => self.try_all(volume, item, goes_on),
        };
        match brought {
            Ok(verdict) => verdict,
            Err(Error::Store { source: NoSpace, .. }) => failed("the store is full".to_string()),
            Err(error) => failed(error.to_string()),
        }
    }

    fn try_all(
        &self,
        volume: &'a Volume,
        item: &Item,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Verdict> {
        let unknown = || {
            let reason = "nothing in the persist directory is known to be its copy".to_string();
            Ok(Verdict::Failed { reason, damaged: false })
        };
        let Some(mut copies) = self.copies() else { return unknown() };
        let mut path = item.path.clone();
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                // Both may be out of date: the file's path, and the copies that the drain has
                // renamed.
                copies = self.reload()?.unwrap_or(copies);
                let Some(found) = path_of(volume, &path, item.key.inode)? else {
                    return Ok(Verdict::Gone);
                };
                path = found;
            }
            let says_it_has = copies.says_it_has(&path, item);
            for candidate in copies.candidates(&path, item, says_it_has) {
                match self.bring_copy(volume, item, &copies.destination, candidate, goes_on)? {
                    Tried::Done(verdict) => return Ok(verdict),
                    Tried::Other => {}
                }
            }
            if attempt > 0 && says_it_has {
                return Ok(Verdict::Failed { reason: DAMAGED.to_string(), damaged: true });
            }
            if !goes_on() {
                return Ok(Verdict::Stopped);
            }
            if attempt > 0 {
                thread::sleep(RETRY_EVERY);
            }
        }
        unknown()
    }

    /// Stages in an input from the file that it is a copy of.
    fn bring_input(
        &self,
        volume: &'a Volume,
        item: &Item,
        (source, state): &(PathBuf, SourceState),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Verdict> {
        let shown = source.display();
        let failed = |what: &str| {
            let reason = format!("its source {shown} {what}");
            Ok(Verdict::Failed { reason, damaged: false })
        };
        let open = || open_source(source).map_err(Error::file("open", source));
        let file = match opened(open, goes_on)? {
            Opened::File(file) => file,
            Opened::Nothing => return failed("is gone"),
            Opened::Stopped => return Ok(Verdict::Stopped),
        };
        let is_same = || -> Result<bool> {
            let found = file.metadata().map_err(Error::file("look at", source))?;
            Ok(SourceState::of(&found) == *state)
        };
        if !is_same()? {
            return failed("has changed since the job began");
        }
        match self.pour(volume, item, (&file, source), goes_on)? {
            Poured::All { part, .. } if is_same()? => part.finish(),
            Poured::All { .. } | Poured::Short => failed("has changed since the job began"),
            Poured::Ended(verdict) => Ok(verdict),
        }
    }

    /// Stages in a file from the copy at `candidate`, if that has its data.
    fn bring_copy(
        &self,
        volume: &'a Volume,
        item: &Item,
        destination: &Destination,
        candidate: &FilePath,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Tried> {
        let full_path = destination.full_path(candidate);
        let file = match opened(|| destination.open_file(candidate), goes_on)? {
            Opened::File(file) => file,
            Opened::Nothing => return Ok(Tried::Other),
            Opened::Stopped => return Ok(Tried::Done(Verdict::Stopped)),
        };
        let metadata = file.metadata().map_err(Error::file("look at", &full_path))?;
        if !metadata.is_file() || metadata.len() != item.bytes {
            return Ok(Tried::Other);
        }
        Ok(match self.pour(volume, item, (&file, &full_path), goes_on)? {
            Poured::All { part, crc32c } if crc32c == item.crc32c => Tried::Done(part.finish()?),
            Poured::All { .. } | Poured::Short => Tried::Other,
            Poured::Ended(verdict) => Tried::Done(verdict),
        })
    }

    /// Reads the data of a file from `file`, which is at `full_path`, into the store.
    fn pour(
        &self,
        volume: &'a Volume,
        item: &Item,
        (file, full_path): (&File, &Path),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Poured<'_, 'a>> {
        let Some(mut part) = self.parts.open(volume, item, goes_on)? else {
            let verdict = match goes_on() {
                false => Verdict::Stopped,
                true if is_absent(volume, item.key.inode) => Verdict::PutOff,
                true => Verdict::Gone,
            };
            return Ok(Poured::Ended(verdict));
        };
        let chunk_bytes = CHUNK_BYTES.max(volume.hugeblock_bytes()).min(item.bytes);
        let mut buffer = vec![0; chunk_bytes as usize];
        let (mut offset, mut crc32c) = (0, 0);
        while offset < item.bytes {
            if !goes_on() {
                return Ok(Poured::Ended(Verdict::Stopped));
            }
            let chunk = &mut buffer[..chunk_bytes.min(item.bytes - offset) as usize];
            if !read_exact(file, chunk, offset).map_err(Error::file("read", full_path))? {
                return Ok(Poured::Short);
            }
            offset += chunk.len() as u64;
            if let Some(ended) = part.append(chunk, offset, goes_on)? {
                return Ok(Poured::Ended(ended));
            }
            crc32c = checksum::crc32c(crc32c, chunk);
            self.moved_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        Ok(Poured::All { part, crc32c })
    }
}

impl Copies {
    fn load(persist: &std::path::Path, job: &Job) -> Result<Copies> {
        let mut destination = Destination::open(persist, &job.store)?;
        let manifest = manifest_file::load(&mut destination, &job.job)?;
        let manifest = manifest.unwrap_or_else(|| Manifest::new(&job.job, &job.store, &job.mount));
        let mut by_content: HashMap<(u64, u32), Vec<FilePath>> = HashMap::new();
        for (path, entry) in &manifest.files {
            if let Some(copy) = entry.copy() {
                by_content.entry((copy.bytes, copy.crc32c)).or_default().push(path.clone());
            }
        }
        Ok(Copies { destination, manifest, by_content })
    }

    /// Returns the copies that may have the data of a file at `path`: the copy at that path first;
    /// if it is not known to have them (`is_known`), also others with the same length and checksum.
    fn candidates<'a>(
        &'a self,
        path: &'a FilePath,
        item: &Item,
        is_known: bool,
    ) -> impl Iterator<Item = &'a FilePath> {
        let same = self.by_content.get(&(item.bytes, item.crc32c)).filter(|_| !is_known);
        let others = same.into_iter().flatten().filter(move |other| *other != path);
        std::iter::once(path).chain(others)
    }

    /// Whether the manifest says that the copy at `path` has the data of a file.
    fn says_it_has(&self, path: &FilePath, item: &Item) -> bool {
        let copy = self.manifest.files.get(path).and_then(Entry::copy);
        copy.is_some_and(|copy| (copy.bytes, copy.crc32c) == (item.bytes, item.crc32c))
    }
}

/// What became of an attempt to open a file.
enum Opened {
    File(File),
    /// There is none.
    Nothing,
    /// The agent ends.
    Stopped,
}

/// Opens a file. Waits for another process that has a lease on it: the attempt to open the file
/// asks that process to give the lease up.
fn opened(open: impl Fn() -> Result<File>, goes_on: &dyn Fn() -> bool) -> Result<Opened> {
    loop {
        match open() {
            Err(Error::File { source, .. }) if is_about_nothing_there(&source) => {
                return Ok(Opened::Nothing);
            }
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::WouldBlock => {
                if !goes_on() {
                    return Ok(Opened::Stopped);
                }
                thread::sleep(LEASE_EVERY);
            }
            opened => return opened.map(Opened::File),
        }
    }
}

/// Returns false if the file ends before the buffer is full.
fn read_exact(file: &File, target: &mut [u8], offset: u64) -> std::io::Result<bool> {
    match file.read_exact_at(target, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_about_nothing_there(error: &std::io::Error) -> bool {
    let raw = error.raw_os_error();
    error.kind() == ErrorKind::NotFound || matches!(raw, Some(libc::ENOTDIR | libc::ELOOP))
}
