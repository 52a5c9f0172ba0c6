//! Holds the files of one checkpoint open while they are copied. If a program removes or replaces
//! them meanwhile, their data stay until the copies are made.
//!
//! Must stay true: no program gets less room because of a hold. A checkpoint is held only while
//! there is far more free space than it takes. A program that finds no space nevertheless waits a
//! moment, as it does for other space that is being made, and the hold is released. A released
//! checkpoint is copied on as long as its files have their names. At most one checkpoint is held at
//! a time. The drain takes the hold; the thread that serves waiting writers may release it.

use cairn_core::{HandleId, InodeId, OpenOptions, ROOT};
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::checkpoint::sets::register::{Checkpoint, Level};
use crate::drain::plan::Plan;
use crate::model::checkpoint_name::Family;
use crate::model::log;
use crate::model::path::FilePath;
use crate::store::volume::{Volume, now};

/// Largest number of files of a checkpoint that is held. Each takes an open-file description, which
/// programs need as well.
const FILES_MAX: usize = 1024;
/// Longest time, in milliseconds, that a program without space waits for a hold to be released.
pub const PATIENCE_MS: u32 = 5000;
/// Free space required to take a hold, as a multiple of the checkpoint's size. Keeping it requires
/// one time its size.
const ROOM_AT_FIRST: u64 = 2;

/// A held checkpoint; released when this is dropped, or earlier by the thread that serves waiting
/// writers.
pub struct Holding<'a>(Vec<&'a Volume>);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|volume| volume.let_go());
    }
}

/// Order in which families were held last: a larger number is more recent.
#[derive(Default)]
pub struct Turns(HashMap<Family, u64>);

impl Turns {
    /// Holds one of the checkpoints in `due` that `plans` copy, and moves its files to the front of
    /// the plans. `due` is oldest first. Candidates are the newest checkpoint of each family; of
    /// these, the one of the family that was held least recently.
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

/// Holds all files of `known`. None if there is not enough room, or if a file has changed or gone.
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
            // The file may have two names.
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

/// Opens the file at `path`; None if it is not `inode` in this version any more.
fn open(volume: &Volume, path: &FilePath, inode: InodeId, version: u64) -> Option<HandleId> {
    let (fs, caller) = (volume.fs(), volume.caller());
    let options = OpenOptions { read: true, no_follow: true, ..OpenOptions::default() };
    let opened = fs.open_file(&caller, ROOT, path.as_bytes(), options, 0).ok()?;
    let is_it = opened.inode == inode && fs.attributes(inode).is_ok_and(|it| it.version == version);
    if !is_it {
        // If this fails, the handle is released with the process slot.
        let _ = fs.release(volume.slot(), opened.handle, now());
    }
    is_it.then_some(opened.handle)
}
