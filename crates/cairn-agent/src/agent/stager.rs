//! Stages in the data of absent files while programs run: of those that are staged on demand, from
//! their sources or the persist directory, and of those that gave up their data to make room.
//!
//! Must stay true:
//! - Files that somebody waits for come first.
//! - What nobody asks for takes only room that is free: once there is none, files come only if
//!   somebody waits for them or says that they will be read. So it is with files that gave up their
//!   data, from the beginning.
//! - Data count only after every byte was checked against the file's checksum.
//! - A file whose data are not available is reported, to its waiters at once.
//! - Copies are only read.
//! - Files that a dead agent left half staged are begun anew by the next one.
//!
//! The drain and its pace have no part in it. The threads of this module take only the resources
//! that programs leave, except for one that serves only files that somebody waits for, and more of
//! its kind when all threads hang. `bring` finds copies, orders files and holds what was staged.

#[cfg(test)]
mod tests;

use crate::store::notes;
use cairn_core::{InodeId, Moment};
use cairn_device::store::notes::NOTES_FILE;
use cairn_platform::sys::monotonic_ms;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::agent::shared::Shared;
use crate::bring::queue::{Item, Key, Queue};
use crate::bring::source::{self, Source, Verdict};
use crate::bring::standstill::Standstill;
use crate::bring::{FileKey, is_absent, is_waited_for, item, part};
use crate::model::error::Result;
use crate::model::job::Job;
use crate::model::log::{self, Complaints};
use crate::model::priority;
use crate::model::protocol::Failed;
use crate::store::volume::{Volume, now};
use cairn_job::checkpoint::sets::marks;
use cairn_job::file::path::FilePath;

/// Maximum number of files without waiters that are staged in at a time.
const WORKERS_MAX: usize = 4;
/// Maximum number of extra threads, started when all others hang while somebody waits for other
/// files.
const MORE_MAX: usize = 32;
/// Intervals between looks for waiters: while files are staged in; while none can be; while no file
/// is absent.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOK_IDLE: Duration = Duration::from_millis(100);
const LOOK_UNWANTED: Duration = Duration::from_millis(500);
/// For how long waiters are looked for often after the last file was staged in, if there are more
/// that can be.
const LINGER: Duration = Duration::from_secs(2);

/// Forgets failures of files that are no longer absent.
pub fn forget_failures(shared: &Shared) {
    let failed: Vec<FileKey> = shared.state().bringing.failed.keys().cloned().collect();
    if failed.is_empty() {
        return;
    }
    let volumes = shared.volumes().0;
    let is_over = |(name, inode): &FileKey| {
        let volume = volumes.iter().find(|volume| volume.name() == name);
        volume.is_some_and(|volume| !is_absent(volume, *inode))
    };
    let over: Vec<FileKey> = failed.into_iter().filter(is_over).collect();
    let mut state = shared.state();
    over.iter().for_each(|key| drop(state.bringing.failed.remove(key)));
}

/// Stages in files until the agent ends, whenever some are absent.
pub fn run(shared: &Shared) {
    let mut complaints = Complaints::default();
    // Per namespace, the number of waits begun at the last look, and the length of the notes.
    let mut seen: HashMap<String, u64> = HashMap::new();
    let mut notes_bytes = 0;
    let mut are_absent = true;
    // What was absent at the start comes by itself; what is later gave up its data.
    let mut comes_unasked = true;
    while !shared.is_stopping() {
        let volumes = shared.volumes().0;
        let bytes = length_of_notes(shared);
        let mut is_fresh = std::mem::replace(&mut notes_bytes, bytes) != bytes;
        for volume in &volumes {
            let wishes = volume.fs().absence_wishes();
            is_fresh |= seen.insert(volume.name().to_string(), wishes) != Some(wishes);
        }
        if is_fresh {
            let brought = bring_all(shared, &volumes, comes_unasked);
            comes_unasked &= brought.is_err();
            are_absent = complaints.note("bring files in", brought).unwrap_or(true);
        }
        shared.sleep(if are_absent { LOOK_IDLE } else { LOOK_UNWANTED });
    }
}

fn length_of_notes(shared: &Shared) -> u64 {
    shared.directory().join(NOTES_FILE).metadata().map_or(0, |found| found.len())
}

/// Whether a file of these namespaces is absent.
fn has_absent(volumes: &[Arc<Volume>]) -> Result<bool> {
    for volume in volumes {
        let surveyed = volume.fs().survey().map_err(volume.error("measure", &FilePath::root()));
        if surveyed?.absent_files > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Stages in the absent files of these namespaces that are available and that somebody asks for,
/// and, if they `come_unasked`, all others for which there is room. Returns whether any are still
/// absent.
fn bring_all(shared: &Shared, volumes: &[Arc<Volume>], come_unasked: bool) -> Result<bool> {
    if !has_absent(volumes)? {
        return Ok(false);
    }
    // The list of failures is bounded; this makes room for new ones.
    forget_failures(shared);
    let job = Job::load(shared.directory())?;
    let source = match Source::open(shared.directory(), &job) {
        Ok(source) => source,
        Err(error) => {
            beat(volumes);
            for volume in volumes {
                give_up_wanted(volume)?;
            }
            return Err(error);
        }
    };
    let bringer = Stager::new(shared, volumes, source);
    bringer.look_for_all(come_unasked)?;
    bringer.work_off()?;
    has_absent(volumes)
}

/// Fails the files that somebody waits for, so that nobody waits in vain while the persist
/// directory cannot be used.
fn give_up_wanted(volume: &Volume) -> Result<()> {
    let failed = || volume.error("bring", &FilePath::root());
    for inode in volume.fs().wanted_absent().map_err(failed())? {
        let told =
            volume.fs().begin_stage_in(inode).and_then(|()| volume.fs().fail_absent(inode, false));
        match told {
            Ok(_) | Err(cairn_core::Error::NotFound) => {}
            Err(error) => return Err(failed()(error)),
        }
    }
    Ok(())
}

fn beat(volumes: &[Arc<Volume>]) {
    let now = Moment(monotonic_ms());
    volumes.iter().for_each(|volume| volume.fs().absence_beat(now));
}

/// Stages in the absent files of a store.
struct Stager<'a> {
    shared: &'a Shared,
    volumes: &'a [Arc<Volume>],
    source: Source<'a>,
    queue: Mutex<Queue>,
    /// Number of threads that were started because all others hung.
    more: AtomicUsize,
}

impl<'a> Stager<'a> {
    fn new(shared: &'a Shared, volumes: &'a [Arc<Volume>], source: Source<'a>) -> Stager<'a> {
        shared.state().bringing.short = source.short();
        let (queue, more) = (Mutex::new(Queue::default()), AtomicUsize::new(0));
        Stager { shared, volumes, source, queue, more }
    }

    /// Locks the queue. A thread that panicked left it consistent.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts every absent file into the queue: newest checkpoint first, then by size, largest first.
    /// Unless they `come_unasked`, they rest there.
    fn look_for_all(&self, come_unasked: bool) -> Result<()> {
        let mut items = Vec::new();
        for (number, volume) in self.volumes.iter().enumerate() {
            for (path, node) in volume.tree()? {
                if node.absence.is_some_and(|absence| absence.damaged) {
                    let reason = source::DAMAGED.to_string();
                    let failed = Failed { path, reason, quarantined: true };
                    self.shared.state().bringing.fail(volume, InodeId(node.inode), failed);
                    continue;
                }
                items.extend(item(number, path, &node));
            }
        }
        let rank = self.source.rank();
        items.sort_by_key(|item| {
            let rank = rank.get(&item.path).copied();
            std::cmp::Reverse((rank, item.bytes))
        });
        let mut queue = self.queue();
        items.into_iter().for_each(|item| queue.add(item));
        if !come_unasked {
            queue.rest_unasked();
        }
        Ok(())
    }

    /// Stages in the files of the queue, and looks for waiters meanwhile.
    fn work_off(&self) -> Result<()> {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let workers = WORKERS_MAX.min(processors);
        thread::scope(|scope| {
            let start = |name: &str, work: fn(&Self)| {
                let thread = thread::Builder::new().name(name.to_string());
                thread.spawn_scoped(scope, move || work(self)).is_ok()
            };
            let mut started = start("bring-next", Self::bring_wanted);
            for _ in 0..workers {
                started |= start("bring", Self::bring_any);
            }
            let mut standstill = Standstill::default();
            let mut wishes: Vec<Option<u64>> = vec![None; self.volumes.len()];
            let (mut hints, mut hinted_at) = (None, Instant::now());
            let began = Instant::now();
            let (mut worked_at, mut seen_takings) = (began, 0);
            while started && !self.shared.is_stopping() {
                let looked = self.look_for_wishes(&mut wishes);
                if hints.is_none() || hinted_at.elapsed() >= LOOK_IDLE {
                    hinted_at = Instant::now();
                    self.look_for_hints(&mut hints);
                }
                let queue = self.queue();
                let (left, is_awaited, takings) =
                    (queue.left(), queue.is_awaited(), queue.takings());
                let lingers = queue.has_resting() && worked_at.elapsed() < LINGER;
                drop(queue);
                if left.files > 0 || std::mem::replace(&mut seen_takings, takings) != takings {
                    worked_at = Instant::now();
                }
                let is_over = left.files == 0 && !lingers || looked.is_err();
                let moved_bytes = self.source.moved_bytes();
                let rate = moved_bytes as f64 / began.elapsed().as_secs_f64();
                let rate = if is_over { 0 } else { rate as u64 };
                self.shared.state().bringing.note_left(left, rate);
                if is_over {
                    // The other threads see that nothing is left, or finish their current file.
                    self.queue().end();
                    return looked;
                }
                let stands = standstill.look((moved_bytes, takings), is_awaited, Instant::now());
                if stands && self.more.load(Ordering::Relaxed) < MORE_MAX {
                    self.more.fetch_add(1, Ordering::Relaxed);
                    if !start("bring-more", Self::bring_awaited) {
                        self.more.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                self.shared.sleep(LOOK_EVERY);
            }
            self.queue().end();
            Ok(())
        })
    }

    /// Reports that the agent is at work, and moves files that somebody waits for to the front.
    fn look_for_wishes(&self, seen: &mut [Option<u64>]) -> Result<()> {
        beat(self.volumes);
        for (number, volume) in self.volumes.iter().enumerate() {
            let wishes = volume.fs().absence_wishes();
            if seen[number].replace(wishes) == Some(wishes) {
                continue;
            }
            let wanted = volume.fs().wanted_absent();
            let wanted = wanted.map_err(volume.error("look at", &FilePath::root()))?;
            let mut unknown = BTreeSet::new();
            let mut queue = self.queue();
            for inode in wanted {
                if !queue.want(Key { volume: number, inode }) {
                    unknown.insert(inode);
                }
            }
            drop(queue);
            if !unknown.is_empty() {
                self.add_again(number, &unknown)?;
            }
        }
        Ok(())
    }

    /// Moves files that programs say they will read soon before others, if there are new hints
    /// since the length of the notes was `seen`. Without the notes the order stays as it is.
    fn look_for_hints(&self, seen: &mut Option<u64>) {
        let length = length_of_notes(self.shared);
        if seen.replace(length) == Some(length) || length == 0 {
            return;
        }
        let Ok(notes) = notes::read(self.shared.directory()) else { return };
        let mount = self.source.mount();
        self.queue().prefer(|item| {
            let seen = [mount.as_bytes(), b"/", item.path.as_bytes()].concat();
            marks::need(&notes, &seen).is_some_and(|(need, _)| need == "preload")
        });
    }

    /// Puts files back into the queue that were not available before and that somebody waits for.
    fn add_again(&self, number: usize, inodes: &BTreeSet<InodeId>) -> Result<()> {
        for (path, node) in self.volumes[number].tree()? {
            let Some(item) = item(number, path, &node) else { continue };
            if inodes.contains(&item.key.inode) {
                let (mut queue, key) = (self.queue(), item.key);
                queue.add(item);
                queue.want(key);
            }
        }
        Ok(())
    }

    fn bring_any(&self) {
        priority::lower_this_thread();
        self.work(|queue| match self.source.lacks_room() {
            true => queue.take_wanted(),
            false => queue.take(),
        });
    }

    fn bring_wanted(&self) {
        self.work(Queue::take_wanted);
    }

    /// Runs until no file that somebody waits for is left in the queue.
    fn bring_awaited(&self) {
        while !self.shared.is_stopping() {
            let taken = self.queue().take_wanted();
            let Some(item) = taken else { break };
            self.bring(&item);
        }
        self.more.fetch_sub(1, Ordering::Relaxed);
    }

    fn work(&self, take: impl Fn(&mut Queue) -> Option<Item>) {
        loop {
            let mut queue = self.queue();
            let (taken, has_ended) = (take(&mut queue), queue.has_ended());
            drop(queue);
            match taken {
                _ if has_ended || self.shared.is_stopping() => return,
                Some(item) => self.bring(&item),
                None => self.shared.sleep(LOOK_EVERY),
            }
        }
    }

    /// Stages in a file. Meanwhile, unless somebody waits for it, stages in files that somebody
    /// waits for.
    fn bring(&self, item: &Item) {
        let volume: &'a Volume = &self.volumes[item.key.volume];
        // It may have got other data since it was queued, and given them up again.
        let found = volume.fs().attributes(item.key.inode).ok();
        let found = found.and_then(|found| Some((found.size, found.absence?.crc32c)));
        let Some((bytes, crc32c)) = found else { return self.queue().done(item.key) };
        let item = &Item { bytes, crc32c, ..item.clone() };
        let is_wanted = self.queue().is_wanted(item.key);
        let goes_on = || {
            while !is_wanted && !self.queue().is_wanted(item.key) {
                let Some(first) = self.queue().take_wanted() else { break };
                self.bring(&first);
            }
            !self.shared.is_stopping()
        };
        // Fails if the file is gone. The attempt below notices that.
        let _ = volume.fs().begin_stage_in(item.key.inode);
        let verdict = self.source.bring(volume, item, &goes_on);
        let then: fn(&mut Queue, Item) = match &verdict {
            Verdict::Failed { .. } => |_, _| {},
            Verdict::PutOff => Queue::add,
            Verdict::NoRoom => |queue, item| {
                queue.rest(item);
                queue.rest_unasked();
            },
            Verdict::Brought | Verdict::Gone | Verdict::Stopped => {
                self.conclude(volume, item, verdict);
                return self.queue().done(item.key);
            }
        };
        self.conclude(volume, item, verdict);
        self.note_absent(item, then);
    }

    /// Records that a thread is done with a file that is still absent. The file is next again if
    /// somebody began to wait for it meanwhile; `then` does with it what is due otherwise.
    fn note_absent(&self, item: &Item, then: fn(&mut Queue, Item)) {
        let mut queue = self.queue();
        // Asked with the queue locked: a wish that was noticed before is seen here, and one that is
        // noticed later finds the file.
        let is_wanted = is_waited_for(&self.volumes[item.key.volume], item.key.inode);
        queue.done(item.key);
        then(&mut queue, item.clone());
        if is_wanted {
            queue.add(item.clone());
            queue.want(item.key);
        }
    }

    fn conclude(&self, volume: &Volume, item: &Item, verdict: Verdict) {
        let Item { path, bytes, key, .. } = item;
        match verdict {
            // The file was emptied or removed while its copy was looked for.
            Verdict::Failed { .. } if !is_absent(volume, key.inode) => {}
            Verdict::Brought => {
                let is_wanted = self.queue().is_wanted(*key);
                let mut state = self.shared.state();
                state.bringing.told.brought_files += 1;
                state.bringing.told.brought_bytes += bytes;
                if is_wanted {
                    let file = (volume.name().to_string(), key.inode);
                    state.bringing.returned.insert(file, now().0);
                }
                drop(state);
                log::say(log::Level::Debug, format_args!("/{path} is brought in: {bytes} bytes"));
            }
            Verdict::Gone | Verdict::PutOff | Verdict::NoRoom | Verdict::Stopped => {}
            Verdict::Failed { reason, damaged } => {
                log::say(log::Level::Warn, format_args!("/{path} cannot be brought in: {reason}"));
                let failed = Failed { path: path.clone(), reason, quarantined: damaged };
                // Stored first: a program that gets the error may ask for the reason at once.
                self.shared.state().bringing.fail(volume, key.inode, failed);
                part::drop_all(volume, key.inode);
                // An error means that the file was removed meanwhile; nothing more is to be done.
                // `false` means that the file is owed another attempt.
                if volume.fs().fail_absent(key.inode, damaged) == Ok(false) {
                    self.shared.state().bringing.forget(volume, key.inode);
                }
            }
        }
    }
}
