//! Files that are being staged in, and the space they take.
//!
//! Must stay true: a file that somebody waits for never lacks space that a partly staged file
//! without waiters holds. Such a part is discarded without asking its thread, whose copy may hang
//! for ever; the thread learns of it at its next append. During such a lack nothing is added to
//! files that nobody waits for. Does not know where data come from.

use cairn_core::Error::{Busy, NoSpace, NotFound};
use cairn_core::{InodeId, Moment};
use cairn_platform::sys::monotonic_ms;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::queue::{Item, Key};
use super::source::Verdict;
use super::{is_absent, is_waited_for};
use crate::model::error::{Error, Result};
use crate::store::volume::Volume;
use crate::store::write::AbsentFile;
use cairn_job::file::path::FilePath;

/// Number of attempts, and the delay between them, while the file still belongs to an agent that
/// died while it staged it in.
const ATTEMPTS_MAX: u32 = 25;
const RETRY_EVERY: Duration = Duration::from_millis(200);
/// Interval between attempts while there is no room.
const ROOM_EVERY: Duration = Duration::from_millis(20);

/// Files that are being staged in.
#[derive(Default)]
pub struct Parts<'a> {
    files: Mutex<HashMap<Key, Arc<Place<'a>>>>,
    /// Number of files that lack room and that somebody waits for.
    short: Arc<AtomicUsize>,
}

/// A file being staged in; None once its part was discarded.
type Place<'a> = Mutex<Option<AbsentFile<'a>>>;

/// A thread's handle of a file that it stages in. The staged data are useless unless `finish` is
/// called.
pub struct Part<'p, 'a> {
    parts: &'p Parts<'a>,
    volume: &'a Volume,
    key: Key,
    will_be_read: bool,
    place: Arc<Place<'a>>,
    is_short: bool,
}

/// Result of an append.
enum Added {
    All,
    /// The file was emptied or removed.
    Nothing,
    /// The part staged before was discarded.
    TakenAway,
}

impl<'a> Parts<'a> {
    /// Whether a file that somebody waits for lacks room.
    pub fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) > 0
    }

    /// Number of files that lack room and that somebody waits for. A file counts before it waits
    /// for room.
    pub fn short(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.short)
    }

    fn files(&self) -> MutexGuard<'_, HashMap<Key, Arc<Place<'a>>>> {
        // A thread that panicked changed only whole entries.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to stage in a file. Returns None if nobody needs the data any more, if it is absent
    /// with other data than `item` says, or if the agent ends.
    pub fn open(
        &self,
        volume: &'a Volume,
        item: &Item,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<Part<'_, 'a>>> {
        let inner = item.path.strip_prefix(volume.prefix()).unwrap_or_else(|| item.path.clone());
        for _ in 0..ATTEMPTS_MAX {
            match AbsentFile::open(volume, &inner, item.key.inode) {
                Err(Error::Store { source: NotFound, .. }) => return Ok(None),
                // It belongs to an agent that died while it staged it in. The reaper frees it in a
                // moment.
                Err(Error::Store { source: Busy, .. }) if goes_on() => thread::sleep(RETRY_EVERY),
                Err(Error::Store { source: Busy, .. }) => return Ok(None),
                opened => {
                    // Frees the blocks that an earlier attempt staged in.
                    crate::store::reaper::reclaim(volume, None)?;
                    let file = opened?;
                    if !file.is_of(item.bytes, item.crc32c) {
                        return Ok(None);
                    }
                    let place = Arc::new(Mutex::new(Some(file)));
                    self.files().insert(item.key, Arc::clone(&place));
                    let (parts, key, is_short) = (self, item.key, false);
                    let will_be_read = item.will_be_read;
                    return Ok(Some(Part { parts, volume, key, will_be_read, place, is_short }));
                }
            }
        }
        Err(volume.error("bring", &item.path)(Busy))
    }
}

impl Part<'_, '_> {
    /// Appends `bytes`, which end at offset `end` of the file. Without room for a file that
    /// somebody asks for, waits as long as a writer would at most. Unlike a writer it waits
    /// although nothing can leave now: a program that closes a file may make room, and a read that
    /// fails is worse. Returns None if they were appended, else the final verdict. Errors:
    /// `NoSpace` if the wait is over.
    pub fn append(
        &mut self,
        bytes: &[u8],
        end: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<Verdict>> {
        let (fs, now) = (self.volume.fs(), || Moment(monotonic_ms()));
        let began = now();
        let mut waiter = None;
        let ended = loop {
            // Read before the attempt: it finds room that was made before the wait was over.
            let has_hope = now().since(began) < fs.space_patience_ms();
            match self.add(bytes, end) {
                Err(Error::Store { source: NoSpace, .. }) if self.take_room() => continue,
                Err(Error::Store { source: NoSpace, .. }) if !self.is_asked_for() => {
                    break Ok(Some(Verdict::NoRoom));
                }
                Err(Error::Store { source: NoSpace, .. }) if has_hope => {}
                Ok(Added::All) => break Ok(None),
                Ok(Added::TakenAway) if is_absent(self.volume, self.key.inode) => {
                    break Ok(Some(Verdict::PutOff));
                }
                Ok(Added::Nothing | Added::TakenAway) => break Ok(Some(Verdict::Gone)),
                Err(error) => break Err(error),
            }
            fs.keep_waiting(waiter.get_or_insert_with(|| fs.begin_waiting(now())), now());
            if !goes_on() {
                break Ok(Some(Verdict::Stopped));
            }
            if !is_absent(self.volume, self.key.inode) {
                break Ok(Some(Verdict::Gone));
            }
            thread::sleep(ROOM_EVERY);
        };
        if let Some(waiter) = waiter {
            fs.end_waiting(waiter);
        }
        ended
    }

    /// Appends the rest of `bytes`, which end at offset `end` of the file, behind what the file
    /// already has.
    fn add(&self, bytes: &[u8], end: u64) -> Result<Added> {
        if self.parts.are_short() && !is_waited_for(self.volume, self.key.inode) {
            take_away(self.volume, self.key.inode, &self.place);
        }
        let mut place = lock(&self.place);
        let Some(file) = place.as_mut() else { return Ok(Added::TakenAway) };
        let left = (end - file.bytes()) as usize;
        let is_there = file.append(&bytes[bytes.len() - left..])?;
        Ok(if is_there { Added::All } else { Added::Nothing })
    }

    /// Whether somebody waits for this file, or says that it will be read.
    fn is_asked_for(&self) -> bool {
        self.will_be_read || is_waited_for(self.volume, self.key.inode)
    }

    /// If somebody waits for this file, discards the part of one that nobody waits for. Returns
    /// whether that freed anything.
    fn take_room(&mut self) -> bool {
        if !is_waited_for(self.volume, self.key.inode) {
            return false;
        }
        if !self.is_short {
            self.is_short = true;
            self.parts.short.fetch_add(1, Ordering::Relaxed);
        }
        let is_other = |key: &Key| *key != self.key && key.volume == self.key.volume;
        let files = self.parts.files();
        let others: Vec<_> = files
            .iter()
            .filter(|(key, _)| is_other(key))
            .map(|(key, place)| (key.inode, Arc::clone(place)))
            .collect();
        drop(files);
        others.iter().any(|(inode, place)| {
            !is_waited_for(self.volume, *inode) && take_away(self.volume, *inode, place)
        })
    }

    /// Ends the staging of a file whose data are all there, and makes them valid.
    pub fn finish(self) -> Result<Verdict> {
        match lock(&self.place).take().map(AbsentFile::finish).transpose()? {
            Some(true) => Ok(Verdict::Brought),
            Some(false) => Ok(Verdict::Gone),
            None => Ok(Verdict::PutOff),
        }
    }
}

impl Drop for Part<'_, '_> {
    fn drop(&mut self) {
        self.parts.files().remove(&self.key);
        // Another thread may be about to discard it.
        drop(lock(&self.place).take());
        if self.is_short {
            self.parts.short.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Locks a place. The lock is held only while bytes go into the store, never while a copy is read.
/// A thread that panicked with it left a part that is as good as any other.
fn lock<'p, 'a>(place: &'p Place<'a>) -> MutexGuard<'p, Option<AbsentFile<'a>>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Discards the staged part of a file. Returns whether there was any.
fn take_away(volume: &Volume, inode: InodeId, place: &Place<'_>) -> bool {
    let Some(file) = lock(place).take() else { return false };
    let had_any = file.bytes() > 0;
    drop(file);
    drop_all(volume, inode);
    had_any
}

/// Frees the staged part of a file that no thread stages in.
pub fn drop_all(volume: &Volume, inode: InodeId) {
    // A remainder is freed by the next attempt, or with the file.
    drop(AbsentFile::open(volume, &FilePath::root(), inode));
    let _ = crate::store::reaper::reclaim(volume, None);
}
