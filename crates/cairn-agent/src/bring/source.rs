//! Where the data of absent files are, and bringing them from there.
//!
//! A file says itself how long its data are and which checksum they have. Its copy mostly has its name. Where programs, and after
//! them the drain, have renamed it, the manifest says which copies it may be.
//! Must stay true: a copy is said to be damaged only if the manifest says that it has the data of this file, as of now.

use super::queue::Item;
use super::{is_absent, path_of};
use crate::destination::Destination;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::manifest::{Entry, Manifest};
use crate::path::FilePath;
use crate::volume::Volume;
use crate::write::AbsentFile;
use cairn_core::Error::NoSpace;
use cairn_core::{Hope, InodeId, Moment};
use cairn_device::checksum;
use cairn_device::sys::monotonic_ms;
use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes brought at a time, unless a hugeblock is larger.
const CHUNK_BYTES: u64 = 4 << 20;
/// How often and how long is looked for a copy that is renamed just now.
const ATTEMPTS_MAX: u32 = 25;
const RETRY_EVERY: Duration = Duration::from_millis(200);
/// How often is looked whether a copy is still leased to somebody.
const LEASE_EVERY: Duration = Duration::from_millis(20);
/// How often is looked for room.
const ROOM_EVERY: Duration = Duration::from_millis(20);
/// What is said of a copy that is not what the manifest says.
pub const DAMAGED: &str = "its copy in the persist directory is damaged or gone";

/// The persist directory of a job.
pub struct Source {
    persist: PathBuf,
    job: Job,
    copies: Mutex<Arc<Copies>>,
    moved_bytes: AtomicU64,
}

/// What is there.
struct Copies {
    destination: Destination,
    manifest: Manifest,
    by_content: HashMap<(u64, u32), Vec<FilePath>>,
}

/// What became of a file.
#[derive(Debug)]
pub enum Verdict {
    /// It is here.
    Brought,
    /// Nobody needs its data any more.
    Gone,
    /// The agent ends.
    Stopped,
    /// It cannot be had.
    Failed {
        /// Why.
        reason: String,
        /// Its copy is not what it should be.
        damaged: bool,
    },
}

/// What came of trying a copy.
enum Tried {
    Done(Verdict),
    /// It is not there, or has other data.
    Other,
}

impl Source {
    /// Errors: there is none, it cannot be opened, or its manifest cannot be read.
    pub fn open(job: &Job) -> Result<Source> {
        let persist = job.persist.clone().unwrap_or_default();
        let copies = Mutex::new(Arc::new(Copies::load(&persist, job)?));
        Ok(Source { persist, job: job.clone(), copies, moved_bytes: AtomicU64::new(0) })
    }

    /// Bytes that came from there so far, also those of no use.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    fn copies(&self) -> Arc<Copies> {
        Arc::clone(&self.copies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reload(&self) -> Result<Arc<Copies>> {
        let fresh = Arc::new(Copies::load(&self.persist, &self.job)?);
        *self.copies.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        Ok(fresh)
    }

    /// Of files of checkpoints, how new these are: the newest has the greatest number.
    pub fn rank(&self) -> HashMap<FilePath, usize> {
        let copies = self.copies();
        let ranked = copies.manifest.checkpoints.iter().enumerate();
        let files =
            ranked.flat_map(|(rank, known)| known.files.iter().map(move |file| (file, rank)));
        files.map(|(file, rank)| (file.path.clone(), rank)).collect()
    }

    /// Brings a file, as long as `goes_on` says so, which is asked before each part.
    pub fn bring(&self, volume: &Volume, item: &Item, goes_on: &dyn Fn() -> bool) -> Verdict {
        let failed = |reason: String| Verdict::Failed { reason, damaged: false };
        match self.try_all(volume, item, goes_on) {
            Ok(verdict) => verdict,
            Err(Error::Store { source: NoSpace, .. }) => failed("the store is full".to_string()),
            Err(error) => failed(error.to_string()),
        }
    }

    fn try_all(&self, volume: &Volume, item: &Item, goes_on: &dyn Fn() -> bool) -> Result<Verdict> {
        let mut copies = self.copies();
        let mut path = item.path.clone();
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                // What is known may be old: where the file is, and what the drain has renamed.
                copies = self.reload()?;
                let Some(found) = path_of(volume, &path, item.key.inode)? else {
                    return Ok(Verdict::Gone);
                };
                path = found;
            }
            let says_it_has = copies.says_it_has(&path, item);
            for candidate in copies.candidates(&path, item, says_it_has) {
                match self.pour(volume, item, &copies.destination, candidate, goes_on)? {
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
        let reason = "nothing in the persist directory is known to be its copy".to_string();
        Ok(Verdict::Failed { reason, damaged: false })
    }

    /// Brings a file from the copy at `candidate`, if that has its data.
    fn pour(
        &self,
        volume: &Volume,
        item: &Item,
        destination: &Destination,
        candidate: &FilePath,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Tried> {
        let full_path = destination.full_path(candidate);
        let file = loop {
            match destination.open_file(candidate) {
                Err(Error::File { source, .. }) if is_about_nothing_there(&source) => {
                    return Ok(Tried::Other);
                }
                // Somebody has a lease on it, who is asked by that to give it up.
                Err(Error::File { source, .. }) if source.kind() == ErrorKind::WouldBlock => {
                    if !goes_on() {
                        return Ok(Tried::Done(Verdict::Stopped));
                    }
                    thread::sleep(LEASE_EVERY);
                }
                opened => break opened?,
            }
        };
        let metadata = file.metadata().map_err(Error::file("look at", &full_path))?;
        if !metadata.is_file() || metadata.len() != item.bytes {
            return Ok(Tried::Other);
        }
        let Some(mut target) = open_absent(volume, item, goes_on)? else {
            return Ok(Tried::Done(if goes_on() { Verdict::Gone } else { Verdict::Stopped }));
        };
        let chunk_bytes = CHUNK_BYTES.max(volume.hugeblock_bytes()).min(item.bytes);
        let mut buffer = vec![0; chunk_bytes as usize];
        let (mut offset, mut crc32c) = (0, 0);
        while offset < item.bytes {
            if !goes_on() {
                return Ok(Tried::Done(Verdict::Stopped));
            }
            let chunk = &mut buffer[..chunk_bytes.min(item.bytes - offset) as usize];
            if !read_exact(&file, chunk, offset).map_err(Error::file("read", &full_path))? {
                return Ok(Tried::Other);
            }
            if let Some(ended) = append(volume, item, &mut target, chunk, goes_on)? {
                return Ok(Tried::Done(ended));
            }
            crc32c = checksum::crc32c(crc32c, chunk);
            offset += chunk.len() as u64;
            self.moved_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        if crc32c != item.crc32c {
            return Ok(Tried::Other);
        }
        let verdict = if target.finish()? { Verdict::Brought } else { Verdict::Gone };
        Ok(Tried::Done(verdict))
    }
}

impl Copies {
    fn load(persist: &std::path::Path, job: &Job) -> Result<Copies> {
        let mut destination = Destination::open(persist, &job.store)?;
        let manifest = Manifest::load(&mut destination, &job.job)?;
        let manifest = manifest.unwrap_or_else(|| Manifest::new(&job.job, &job.store, &job.mount));
        let mut by_content: HashMap<(u64, u32), Vec<FilePath>> = HashMap::new();
        for (path, entry) in &manifest.files {
            if let Some(copy) = entry.copy() {
                by_content.entry((copy.bytes, copy.crc32c)).or_default().push(path.clone());
            }
        }
        Ok(Copies { destination, manifest, by_content })
    }

    /// Copies that may have the data of a file that is at `path` now: that one, and, unless it should, others.
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

    /// Whether the copy at `path` is said to have the data of a file.
    fn says_it_has(&self, path: &FilePath, item: &Item) -> bool {
        let copy = self.manifest.files.get(path).and_then(Entry::copy);
        copy.is_some_and(|copy| (copy.bytes, copy.crc32c) == (item.bytes, item.crc32c))
    }
}

/// None if nobody needs the data any more, or the agent ends.
fn open_absent<'a>(
    volume: &'a Volume,
    item: &Item,
    goes_on: &dyn Fn() -> bool,
) -> Result<Option<AbsentFile<'a>>> {
    use cairn_core::Error::{Busy, NotFound};
    for _ in 0..ATTEMPTS_MAX {
        let inner = item.path.strip_prefix(volume.prefix()).unwrap_or_else(|| item.path.clone());
        match AbsentFile::open(volume, &inner, item.key.inode) {
            Err(Error::Store { source: NotFound, .. }) => return Ok(None),
            // An agent that died was bringing it: it is looked after in a moment.
            Err(Error::Store { source: Busy, .. }) if goes_on() => thread::sleep(RETRY_EVERY),
            Err(Error::Store { source: Busy, .. }) => return Ok(None),
            opened => {
                // What was brought of it before is free again.
                crate::reaper::reclaim(volume, None)?;
                return opened.map(Some);
            }
        }
    }
    Err(volume.error("bring", &item.path)(Busy))
}

/// Appends a part; where there is no room for it, waits for some as a writer does. None if it is there. Errors: `NoSpace` where
/// there is no hope any more.
fn append(
    volume: &Volume,
    item: &Item,
    target: &mut AbsentFile<'_>,
    part: &[u8],
    goes_on: &dyn Fn() -> bool,
) -> Result<Option<Verdict>> {
    let (fs, now) = (volume.fs(), || Moment(monotonic_ms()));
    let end = target.bytes() + part.len() as u64;
    let is_offered = fs.space_patience_ms() > 0;
    let mut waiter = None;
    let ended = loop {
        // Asked first: what was made before the hope ended is found.
        let has_hope =
            waiter.as_ref().map_or(is_offered, |waiter| fs.space_hope(waiter, now()) == Hope::Some);
        let left = (end - target.bytes()) as usize;
        match target.append(&part[part.len() - left..]) {
            Err(Error::Store { source: NoSpace, .. }) if has_hope => {}
            appended => break appended.map(|is_there| (!is_there).then_some(Verdict::Gone)),
        }
        fs.keep_waiting(waiter.get_or_insert_with(|| fs.begin_waiting(now())), now());
        if !goes_on() {
            break Ok(Some(Verdict::Stopped));
        }
        if !is_absent(volume, item.key.inode) {
            break Ok(Some(Verdict::Gone));
        }
        thread::sleep(ROOM_EVERY);
    };
    if let Some(waiter) = waiter {
        fs.end_waiting(waiter);
    }
    ended
}

/// False if the file ends before.
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

/// Frees what was brought of a file that cannot be had.
pub fn drop_part(volume: &Volume, path: &FilePath, inode: InodeId) {
    // What stays goes with the next attempt, or with the file.
    drop(AbsentFile::open(volume, path, inode));
    let _ = crate::reaper::reclaim(volume, None);
}
