//! The files of one checkpoint, held open while they are copied: if a program removes them or puts
//! others in their place meanwhile, their data stay until the copy is there.
//!
//! Must stay true: no program finds less room because of that. A checkpoint is held only while
//! there is far more room than it takes; whoever finds none nevertheless waits a moment, as for
//! other space that is being made, and it is let go. What is let go is copied on for as long as it
//! has its names. At most one is held at a time, by the drain; the thread that hears writers lets
//! it go.

use crate::checkpoint::sets::Family;
use crate::checkpoint::sets::register::{Checkpoint, Level};
use crate::drain::plan::Plan;
use crate::model::log;
use crate::model::path::FilePath;
use crate::store::reaper;
use crate::store::volume::{Volume, now};
use cairn_core::{HandleId, InodeId, OpenOptions, ROOT};
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A checkpoint of more files is not held: each takes one of the descriptions that programs have,
/// too.
const FILES_MAX: usize = 1024;
/// How long who finds no room waits for what is held to be let go, at most.
pub const PATIENCE_MS: u32 = 5000;
/// Room for so many checkpoints of its size must be there when one is held, and for one as long as
/// it is.
const ROOM_AT_FIRST: u64 = 2;

/// What is held of one namespace.
#[derive(Default)]
pub struct Hold(Mutex<Held>);

#[derive(Default)]
struct Held {
    files: HashMap<InodeId, HandleId>,
    bytes: u64,
}

impl Hold {
    fn lock(&self) -> MutexGuard<'_, Held> {
        // Whoever panicked had put a file in or not yet.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds a checkpoint until it is dropped, or the thread that hears writers lets it go.
pub struct Holding<'a>(Vec<&'a Volume>);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|volume| volume.let_go());
    }
}

/// When a checkpoint of each family was held last: after how many others.
#[derive(Default)]
pub struct Turns(HashMap<Family, u64>);

impl Turns {
    /// Holds one of the checkpoints that are `due`, oldest first, and to be copied, and has it
    /// copied first: the newest of a family, and of several families that of which none was held
    /// for the longest time.
    pub fn hold<'a>(
        &mut self,
        volumes: &[&'a Arc<Volume>],
        due: &[Checkpoint],
        plans: &mut [Plan],
    ) -> Option<Holding<'a>> {
        let copied: HashSet<&FilePath> = plans.iter().flat_map(|plan| &plan.copies).collect();
        let wanted = due.iter().filter(|known| known.wanted == Level::Pfs);
        let newest: HashMap<&Family, &Checkpoint> =
            wanted.map(|known| (&known.name.family, known)).collect();
        let is_copied =
            |known: &&Checkpoint| known.files.iter().any(|it| copied.contains(&it.path));
        let turn = |known: &&Checkpoint| (self.0.get(&known.name.family), Reverse(known.id));
        let chosen = newest.into_values().filter(is_copied).min_by_key(turn)?;
        let held = hold(volumes, chosen)?;
        let last = self.0.values().max().copied().unwrap_or(0);
        self.0.insert(chosen.name.family.clone(), last + 1);
        let files: HashSet<&FilePath> = chosen.files.iter().map(|file| &file.path).collect();
        plans.iter_mut().for_each(|plan| plan.copies.sort_by_key(|path| !files.contains(path)));
        Some(held)
    }
}

/// Holds the files of `known`, all of them; None if there is no room for that, or they are not what
/// they were.
pub fn hold<'a>(volumes: &[&'a Arc<Volume>], known: &Checkpoint) -> Option<Holding<'a>> {
    let holding = Holding(volumes.iter().map(|volume| &***volume).collect());
    let mut held_files = 0;
    for volume in volumes {
        let inner = |path: &FilePath| path.strip_prefix(volume.prefix());
        let files = known.files.iter().filter_map(|file| Some((inner(&file.path)?, file)));
        let files: Vec<_> = files.collect();
        let bytes: u64 = files.iter().map(|(_, file)| file.bytes).sum();
        if known.files.len() > FILES_MAX || !volume.has_room(bytes.saturating_mul(ROOM_AT_FIRST)) {
            return None;
        }
        let mut held = volume.hold.lock();
        for (path, file) in files {
            let inode = InodeId(file.inode);
            // It may have two names.
            if let Entry::Vacant(entry) = held.files.entry(inode) {
                entry.insert(open(volume, &path, inode, file.version)?);
            }
            held_files += 1;
        }
        held.bytes = bytes;
        if !held.files.is_empty() {
            volume.fs().offer_space(volume.fs().space_patience_ms().max(PATIENCE_MS));
        }
    }
    if held_files < known.files.len() {
        return None;
    }
    let name = &known.name;
    log::say(log::Level::Debug, format_args!("holds checkpoint {name} while it is copied"));
    Some(holding)
}

/// A description of the file at `path`, if that is still `inode` in this version.
fn open(volume: &Volume, path: &FilePath, inode: InodeId, version: u64) -> Option<HandleId> {
    let (fs, caller) = (volume.fs(), volume.caller());
    let options = OpenOptions { read: true, no_follow: true, ..OpenOptions::default() };
    let opened = fs.open_file(&caller, ROOT, path.as_bytes(), options, 0).ok()?;
    let is_it = opened.inode == inode && fs.attributes(inode).is_ok_and(|it| it.version == version);
    if !is_it {
        // If this fails the handle goes with the slot.
        let _ = fs.release(volume.slot(), opened.handle, now());
    }
    is_it.then_some(opened.handle)
}

impl Volume {
    /// Whether this process holds the file.
    pub fn holds(&self, inode: InodeId) -> bool {
        self.hold.lock().files.contains_key(&inode)
    }

    /// Acts on the description of a file that is held, which stays as long as that takes; None if
    /// it is not held.
    pub fn while_held<T>(&self, inode: InodeId, act: impl FnOnce(HandleId) -> T) -> Option<T> {
        let held = self.hold.lock();
        held.files.get(&inode).map(|handle| act(*handle))
    }

    /// Whether anything is held.
    pub fn is_holding(&self) -> bool {
        !self.hold.lock().files.is_empty()
    }

    /// Whether there is still enough room for what is held.
    pub fn may_hold(&self) -> bool {
        let bytes = self.hold.lock().bytes;
        bytes == 0 || self.has_room(bytes)
    }

    /// Lets go of what is held: the data of what has no name any more are gone then.
    pub fn let_go(&self) {
        let mut held = self.hold.lock();
        let files = std::mem::take(&mut *held).files;
        for handle in files.values() {
            // If this fails the handle goes with the slot.
            let _ = self.fs().release(self.slot(), *handle, now());
        }
        // What fails here is tried again at the next visit.
        let _ = reaper::reclaim(self, None);
    }

    /// Whether the first tier with data has room for so many bytes more: in the next one a program
    /// would have them more slowly.
    fn has_room(&self, bytes: u64) -> bool {
        let Ok(usage) = self.fs().usage() else { return false };
        let tiers = usage.total_blocks.iter().zip(&usage.used_blocks);
        let free = tiers.map(|(total, used)| (*total, total.saturating_sub(*used)));
        let (_, free) = free.into_iter().find(|(total, _)| *total > 0).unwrap_or_default();
        let barred: u64 = usage.parts.iter().map(|part| u64::from(part.barred_blocks)).sum();
        free.saturating_sub(barred).saturating_mul(usage.hugeblock_bytes) >= bytes
    }
}
