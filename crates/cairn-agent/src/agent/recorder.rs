//! Records what processes read and write, by looking at their open files from outside.
//!
//! Programs count no bytes: a counter per process in shared memory would cost every call one or two
//! nanoseconds, and a word of each undo. The recorder looks at the open-file descriptions instead,
//! some times a second while something happens, and attributes bytes by these rules:
//! - A file that has grown was written by the processes that have it open for writing: in
//!   proportion to how far their offsets moved, or else in equal parts.
//! - A file that has changed but not grown was overwritten where offsets moved.
//! - Any other moved offset has read.
//! - The writer of a file that was opened and closed between two looks is unknown.
//!
//! Limits: not seen are overwrites and reads that move no offset (`pwrite`, `pread`, mappings), and
//! files that were created and removed between two looks. Seeking forward in a file open for
//! reading counts as reading.
//!
//! Must stay true: looks take a small part of the time (`COST_SHARE`), whatever they cost. Bytes
//! are counted once.

use cairn_core::{Attributes, HandleId, Holding, InodeId, ProcessIdentity, Timestamp};
use cairn_device::Store;
use cairn_device::memory::ranks::{self, RankRecord};
use cairn_device::store::notes::{self, Kind};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agent::shared::Shared;
use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::persist::destination::Destination;
use crate::store::volume::{Volume, now};
use crate::timeline::{
    BYTES_MAX, LineOut, MARKS_MAX, Mark, NAME_BYTES_MAX, PROCESSES_MAX, Process, SET_NAME_MAX,
    SETS_MAX, Sample, Set, Share, TIMELINE_FILE, Timeline, beginning, line, timeline_name,
};
use cairn_job::checkpoint::sets::Member;
use cairn_job::checkpoint::sets::register::{Checkpoint, Level};
use cairn_job::file::path::FilePath;

/// Interval at which the heads of the logs are polled, one word each.
const GLANCE_EVERY: Duration = Duration::from_millis(50);
/// Maximum delay between the timestamp of a change and its visibility, milliseconds. A call takes
/// the time from a clock that ticks every few milliseconds, and changes the file once it has the
/// lock, which takes longer on a busy machine.
const LATE_MS: u64 = 1000;
/// Interval between looks at open files when nothing seems to happen: a process may read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A look is followed by a pause of this multiple of its duration, up to `PAUSE_MAX`. A long
/// duration may come from waiting.
const COST_SHARE: u32 = 30;
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of closed files whose size is remembered.
const CLOSED_MAX: usize = 1 << 16;

/// A file at the last look.
struct Known {
    size: u64,
    version: u64,
    /// Creation time. It differs for another file that reuses the inode.
    born: Timestamp,
    /// Processes that had it open for writing; empty when it is closed.
    writers: Vec<u32>,
    /// When it was created or a process began to write it, milliseconds since the epoch.
    begun_ms: u64,
}

/// Known files and offsets of a namespace.
#[derive(Default)]
struct Namespace {
    files: HashMap<InodeId, Known>,
    /// Offsets of open-file descriptions, by handle.
    cursors: HashMap<u32, u64>,
}

/// Records the timeline of a store.
pub struct Recorder {
    directory: PathBuf,
    timeline: Timeline,
    numbers: HashMap<(u32, u64), u32>,
    /// Open timeline file; None until something is recorded, and after an error.
    file: Option<File>,
    file_bytes: usize,
    namespaces: HashMap<String, Namespace>,
    /// Sample that is not in the file yet.
    sample: Option<Sample>,
    /// Monotonic time and wall time (milliseconds) of the last look; initially the start of the
    /// recorder, before any program of this run.
    looked: (Instant, u64),
    /// Wall time, milliseconds, up to which an earlier agent has recorded.
    recorded_ms: u64,
    /// Duration of the last look.
    cost: Duration,
    log_heads: u64,
    drained: u64,
    is_open: bool,
    notes_bytes: u64,
    notes_seen: usize,
}

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    while !shared.is_stopping() {
        let is_moving = shared.recorder().turn(shared);
        shared.sleep(if is_moving { GLANCE_EVERY } else { LOOK_EVERY });
    }
    shared.recorder().look(shared);
    shared.recorder().flush();
}

fn now_ms() -> u64 {
    ms_of(now().0)
}

fn ms_of(time_ns: i64) -> u64 {
    (time_ns / 1_000_000).max(0) as u64
}

/// Returns when a file was created, milliseconds since the epoch; 0 if it is gone.
fn born_ms(volume: &Volume, inode: InodeId) -> u64 {
    volume.fs().attributes(inode).map_or(0, |found| ms_of(found.born.0))
}

impl Recorder {
    /// Resumes the timeline of the store in `directory`, or begins a new one.
    pub fn new(directory: &Path, job: &Job) -> Recorder {
        Recorder::go_on(directory, Timeline::new(&job.job, &job.store, &job.command))
    }

    /// Resumes the timeline in `directory` if it belongs to the store of `fresh`, else begins
    /// `fresh`.
    fn go_on(directory: &Path, fresh: Timeline) -> Recorder {
        let old = Timeline::load(&directory.join(TIMELINE_FILE)).ok();
        let old = old.filter(|timeline| timeline.header.store == fresh.header.store);
        let timeline = old.unwrap_or(fresh);
        let recorded_ms = timeline.samples.last().map_or(0, |sample| sample.to_ms);
        let number = |process: &Process| ((process.pid, process.start_time), process.number);
        Recorder {
            directory: directory.to_path_buf(),
            numbers: timeline.processes.values().map(number).collect(),
            notes_seen: timeline.marks.len(),
            timeline,
            file: None,
            file_bytes: 0,
            namespaces: HashMap::new(),
            sample: None,
            // If the clock went back, recorded time must not overlap with new samples.
            looked: (Instant::now(), now_ms().max(recorded_ms)),
            recorded_ms,
            cost: Duration::ZERO,
            // Differs from any log head, so the first turn looks.
            log_heads: u64::MAX,
            drained: 0,
            is_open: false,
            notes_bytes: 0,
        }
    }

    /// Looks if something seems to happen, or the interval has passed. Returns whether
    /// something happens.
    fn turn(&mut self, shared: &Shared) -> bool {
        let since = self.looked.0.elapsed();
        if since < (self.cost * COST_SHARE).min(PAUSE_MAX) {
            return true;
        }
        let volumes = shared.volumes().0;
        let heads = volumes.iter().map(|volume| volume.fs().log_head());
        let heads = heads.fold(0, u64::wrapping_add);
        let is_moving = heads != self.log_heads || shared.meter.copied_ever() != self.drained;
        if is_moving || self.is_open || since >= LOOK_EVERY {
            self.log_heads = heads;
            self.look(shared);
        }
        is_moving || self.is_open
    }

    /// Looks at all namespaces, and writes the pending sample when it is long enough.
    fn look(&mut self, shared: &Shared) {
        let started = Instant::now();
        let from_ms = self.looked.1;
        let to_ms = now_ms().max(from_ms);
        let mut sample = Sample { from_ms, to_ms, ..Sample::default() };
        self.is_open = false;
        for volume in shared.volumes().0 {
            // Other threads report a namespace that cannot be read.
            let _ = self.look_at(&volume, &mut sample);
        }
        sample.drained = shared.meter.copied_ever() - self.drained;
        self.drained += sample.drained;
        let last = self.sample.as_ref().or(self.timeline.samples.last());
        if sample.says_more_than(last) {
            match &mut self.sample {
                Some(pending) => pending.join(&sample),
                None => self.sample = Some(sample),
            }
        }
        self.looked = (Instant::now(), to_ms);
        let is_due = |sample: &Sample| {
            let length_ms = to_ms.saturating_sub(sample.from_ms);
            // Or this look added nothing to it.
            length_ms >= self.timeline.header.every_ms || sample.to_ms != to_ms
        };
        if self.sample.as_ref().is_some_and(is_due) {
            self.flush();
        }
        self.cost = started.elapsed();
    }

    fn look_at(&mut self, volume: &Volume, sample: &mut Sample) -> cairn_core::Result<()> {
        let since = (self.unseen_since_ms() as i64).saturating_mul(1_000_000);
        let mut changed = Vec::new();
        // This also recalls leases, so bytes written under them are included.
        let survey =
            volume.fs().survey_since(Timestamp(since), &mut |found| changed.push(*found))?;
        let holdings = volume.fs().holdings()?;
        let mut namespace = self.namespaces.remove(volume.name()).unwrap_or_default();
        let by_file = by_file(holdings);
        self.is_open |= !by_file.is_empty();
        for (inode, holdings) in &by_file {
            self.look_at_file(&mut namespace, *inode, holdings, sample);
        }
        look_at_closed(volume, &mut namespace, &by_file, sample);
        sample.unknown += self.look_at_changed(&mut namespace, &changed);
        if namespace.files.len() > CLOSED_MAX {
            namespace.files.retain(|inode, _| by_file.contains_key(inode));
        }
        let open = by_file.into_values().flatten();
        namespace.cursors = open.map(|one| (one.handle.0, one.cursor)).collect();
        sample.exposed += survey.undrained_bytes;
        sample.exposed_max = sample.exposed;
        sample.held += survey.bytes;
        self.namespaces.insert(volume.name().to_string(), namespace);
        Ok(())
    }

    /// Attributes the changes of an open file.
    fn look_at_file(
        &mut self,
        namespace: &mut Namespace,
        inode: InodeId,
        holdings: &[Holding],
        sample: &mut Sample,
    ) {
        let Some(&Holding { size, version, born, .. }) = holdings.first() else { return };
        let old = namespace.files.remove(&inode).filter(|old| old.born == born);
        let is_written = holdings.iter().any(|one| one.write);
        let begun_ms = match &old {
            Some(old) if !is_written || !old.writers.is_empty() => old.begun_ms,
            _ => ms_of(born.0).max(self.looked.1),
        };
        let (old_size, old_version) = match old {
            Some(old) => (old.size, Some(old.version)),
            None => (self.size_before(born, size), None),
        };
        // A shorter file was truncated and rewritten.
        let grown = if size >= old_size { size - old_size } else { size };
        let has_changed = old_version != Some(version);
        let mut writers = Vec::new();
        for one in holdings {
            let number = self.number(one.process);
            let before = namespace.cursors.get(&one.handle.0).copied().unwrap_or(0);
            let moved = one.cursor.saturating_sub(before).min(size);
            let read = if one.write && has_changed { 0 } else { moved };
            sample.add(Share(number, 0, read, 0));
            if let Some(share) = sample.shares.iter_mut().find(|share| share.0 == number) {
                share.3 += 1;
            }
            if one.write {
                writers.push((number, moved));
            }
        }
        let overwritten = writers.iter().map(|(_, moved)| moved).sum();
        let written = match grown {
            0 if has_changed && old_version.is_some() => overwritten,
            grown => grown,
        };
        divide(written, &writers, sample);
        if writers.is_empty() {
            // The writer of a file that is open only for reading is unknown.
            sample.unknown += grown;
        }
        let writers = writers.into_iter().map(|(number, _)| number).collect();
        namespace.files.insert(inode, Known { size, version, born, writers, begun_ms });
    }

    /// Updates files that have changed and that no process was seen to have open. Returns the
    /// number of bytes by which they have grown.
    fn look_at_changed(&self, namespace: &mut Namespace, changed: &[Attributes]) -> u64 {
        let mut total = 0_u64;
        for &Attributes { inode, size, version, born, absence, .. } in changed {
            let old = namespace.files.get(&inode);
            // Files seen open are already up to date.
            if old.is_some_and(|old| old.version >= version) {
                continue;
            }
            let old = old.filter(|old| old.born == born);
            let old_size = old.map_or_else(|| self.size_before(born, size), |old| old.size);
            let grown = if size >= old_size { size - old_size } else { size };
            total += if absence.is_some() { 0 } else { grown };
            let begun_ms = ms_of(born.0).max(self.looked.1);
            let known = Known { size, version, born, writers: Vec::new(), begun_ms };
            namespace.files.insert(inode, known);
        }
        total
    }

    /// Returns the previous size of a file that no look has seen: 0 for a new one.
    fn size_before(&self, born: Timestamp, size: u64) -> u64 {
        if ms_of(born.0) >= self.unseen_since_ms() { 0 } else { size }
    }

    /// Returns a time, milliseconds: files created before it existed at the last look.
    fn unseen_since_ms(&self) -> u64 {
        self.looked.1.saturating_sub(LATE_MS).max(self.recorded_ms)
    }

    /// Returns the number of a process. A new process gets one and is written to the file.
    fn number(&mut self, process: ProcessIdentity) -> u32 {
        let key = (process.pid, process.start_time);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let last = self.timeline.processes.keys().next_back().copied();
        let number = match last {
            // The last number stands for all processes that do not fit.
            Some(last) if last as usize + 1 >= PROCESSES_MAX => return last,
            // A damaged file may lack some of the earlier numbers.
            Some(last) => last + 1,
            None => 0,
        };
        let rank = self.rank_of(process);
        let described = Process {
            number,
            pid: process.pid,
            start_time: process.start_time,
            name: name_of(process.pid),
            rank: rank.as_ref().map(|record| record.rank),
            launch: rank.map(|record| record.launch),
        };
        self.append(&line(&LineOut::Process(&described)));
        self.numbers.insert(key, number);
        self.timeline.processes.insert(number, described);
        number
    }

    fn rank_of(&self, process: ProcessIdentity) -> Option<RankRecord> {
        let store = Store::open(&self.directory).ok()?;
        let records = ranks::list(store.directory()).ok()?;
        records.into_iter().rev().find(|record| record.process == process)
    }

    /// Records the complete checkpoints after a pass of the drain: new ones, safe ones, and those
    /// that are gone. `is_kept` (id, name) says whether the persist directory has a checkpoint that
    /// left the store.
    pub fn note_sets(
        &mut self,
        volumes: &[Arc<Volume>],
        complete: &[Checkpoint],
        is_kept: &dyn Fn(u64, &str) -> bool,
    ) {
        let mut others = self.timeline.sets.clone();
        let oldest =
            others.first_key_value().map(|(id, _)| *id).filter(|_| others.len() == SETS_MAX);
        for known in complete.iter().filter(|known| oldest.is_none_or(|oldest| known.id >= oldest))
        {
            let old = others.remove(&known.id).filter(|set| set.left_ms.is_none());
            if old.as_ref().is_some_and(|old| old.level == known.level) {
                continue;
            }
            let set = old.unwrap_or_else(|| self.describe(volumes, known));
            let drained_ms = (known.level == Level::Pfs).then(now_ms);
            self.put_set(Set { level: known.level, drained_ms, ..set });
        }
        for set in others.into_values() {
            let is_safe = set.level == Level::Pfs && is_kept(set.id, &set.name);
            let level = if is_safe { Level::Pfs } else { Level::Node };
            if set.left_ms.is_none() || set.level != level {
                let left_ms = set.left_ms.or_else(|| Some(now_ms()));
                self.put_set(Set { level, left_ms, ..set });
            }
        }
    }

    fn put_set(&mut self, set: Set) {
        self.append(&line(&LineOut::Set(&set)));
        self.timeline.put(set);
    }

    /// Returns the entry of a new checkpoint.
    fn describe(&self, volumes: &[Arc<Volume>], known: &Checkpoint) -> Set {
        let name: String = known.name.to_string().chars().take(SET_NAME_MAX).collect();
        let complete_ms = ms_of(known.completed_ns);
        let modified_ms = ms_of(known.modified_ns).min(complete_ms);
        // Files begun before that belong to an earlier checkpoint of this name.
        let earlier = self.timeline.sets.values().filter(|set| set.name == name);
        let before_ms = earlier.map(|set| set.written_ms).max().unwrap_or(0);
        let begun = |file| self.begun_ms(volumes, file).find(|begun_ms| *begun_ms > before_ms);
        let from_ms = known.files.iter().filter_map(begun).min().unwrap_or(modified_ms);
        let from_ms = from_ms.min(complete_ms);
        Set {
            id: known.id,
            step: known.name.step.clone(),
            name,
            files: known.files.len() as u64,
            bytes: known.bytes(),
            from_ms,
            // A staged-in file has the modification time of its copy.
            written_ms: modified_ms.max(from_ms),
            complete_ms,
            drained_ms: None,
            level: Level::Node,
            left_ms: None,
        }
    }

    /// Returns when a file was created, and when a process was last seen to begin to write it.
    fn begun_ms(
        &self,
        volumes: &[Arc<Volume>],
        file: &Member,
    ) -> impl Iterator<Item = u64> + use<> {
        let inode = InodeId(file.inode);
        let is_its = |volume: &&Arc<Volume>| file.path.strip_prefix(volume.prefix()).is_some();
        let volume = volumes.iter().find(is_its);
        let born = volume.map(|volume| born_ms(volume, inode));
        let seen = volume.and_then(|volume| self.namespaces.get(volume.name()));
        let seen = seen.and_then(|known| known.files.get(&inode)).map(|known| known.begun_ms);
        born.into_iter().chain(seen)
    }

    /// Writes marks and the pending sample to the file.
    fn flush(&mut self) {
        self.take_marks();
        if let Some(sample) = self.sample.take() {
            self.append(&line(&LineOut::Sample(&sample)));
            self.timeline.samples.push(sample);
        }
    }

    /// Copies the announcements of programs since the last call.
    fn take_marks(&mut self) {
        let path = self.directory.join(notes::NOTES_FILE);
        let bytes = fs::symlink_metadata(&path).map_or(0, |found| found.len());
        if bytes == self.notes_bytes {
            return;
        }
        self.notes_bytes = bytes;
        let found = Store::open(&self.directory).ok();
        let found = found.and_then(|store| notes::read(store.directory().raw()).ok());
        let found: Vec<_> = found.unwrap_or_default();
        let marks = found.into_iter().filter(|note| matches!(note.kind, Kind::Begin | Kind::End));
        for note in marks.take(MARKS_MAX).skip(self.notes_seen).collect::<Vec<_>>() {
            let mark = Mark {
                at_ms: ms_of(note.time_ns),
                pid: note.pid,
                begins: note.kind == Kind::Begin,
                step: note.number,
                name: beginning(&String::from_utf8_lossy(&note.text), NAME_BYTES_MAX).to_string(),
            };
            self.notes_seen += 1;
            self.append(&line(&LineOut::Mark(&mark)));
            self.timeline.marks.push(mark);
        }
    }

    /// Appends a line to the file. If that fails, or the file is too large, the next append writes
    /// it anew.
    fn append(&mut self, line: &[u8]) {
        if self.file_bytes + line.len() > BYTES_MAX {
            self.timeline.coarsen();
            self.file = None;
        }
        if self.file.is_none() {
            self.file = self.write_anew();
        }
        let written = self.file.as_mut().is_some_and(|file| file.write_all(line).is_ok());
        self.file_bytes += line.len();
        if !written {
            self.file = None;
        }
    }

    /// Replaces the file by one with all that is known. Returns None if there is no room for it.
    fn write_anew(&mut self) -> Option<File> {
        let path = self.directory.join(TIMELINE_FILE);
        let unfinished = path.with_extension("new");
        let bytes = self.timeline.encode();
        // A dead agent may have left one.
        let _ = fs::remove_file(&unfinished);
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create_new(true).mode(0o600).open(&unfinished).ok()?;
        let replaced = file.write_all(&bytes).and_then(|()| fs::rename(&unfinished, &path));
        self.file_bytes = bytes.len();
        if replaced.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        replaced.ok().map(|()| file)
    }

    /// Looks once more and copies the timeline to the persist directory. Errors: those of
    /// the directory; a file that is not a timeline has the name.
    pub fn conclude(&mut self, shared: &Shared, persist: Option<&Path>) -> Result<()> {
        self.look(shared);
        self.flush();
        let Some(persist) = persist.filter(|_| !self.timeline.samples.is_empty()) else {
            return Ok(());
        };
        let destination = Destination::open(persist, &self.timeline.header.store)?;
        let name = timeline_name(&self.timeline.header.job);
        let path = FilePath::root().join(name.as_bytes());
        if destination.look(&path)?.is_some() && !is_timeline(&destination, &path) {
            let reason = "it is not a timeline, and is left as it is";
            let refused = std::io::Error::new(std::io::ErrorKind::AlreadyExists, reason);
            return Err(Error::file("replace", &destination.full_path(&path))(refused));
        }
        destination.replace_file(&name, &self.timeline.encode())
    }
}

/// Whether a file of the persist directory is a timeline, as `conclude` writes it.
fn is_timeline(destination: &Destination, path: &FilePath) -> bool {
    let read = || -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = destination.open_file(path)?;
        let full_path = destination.full_path(path);
        file.take(BYTES_MAX as u64)
            .read_to_end(&mut bytes)
            .map_err(Error::file("read", &full_path))?;
        Ok(bytes)
    };
    read().is_ok_and(|bytes| Timeline::decode(&bytes).is_some())
}

/// Groups open-file descriptions by file. Each is attributed to the oldest process that has it: the
/// others inherited it.
fn by_file(holdings: Vec<Holding>) -> BTreeMap<InodeId, Vec<Holding>> {
    let mut holders: BTreeMap<HandleId, Holding> = BTreeMap::new();
    let age = |process: ProcessIdentity| (process.start_time, process.pid);
    // A child that has not started yet has the descriptions of its parent.
    let counts =
        |one: &Holding| one.process.pid != std::process::id() && one.process.start_time > 0;
    for one in holdings.into_iter().filter(counts) {
        let known = holders.entry(one.handle).or_insert(one);
        if age(one.process) < age(known.process) {
            *known = one;
        }
    }
    let mut by_file: BTreeMap<InodeId, Vec<Holding>> = BTreeMap::new();
    for one in holders.into_values() {
        by_file.entry(one.inode).or_default().push(one);
    }
    by_file
}

/// Attributes the changes of files that were open at the last look and are closed.
fn look_at_closed(
    volume: &Volume,
    namespace: &mut Namespace,
    open: &BTreeMap<InodeId, Vec<Holding>>,
    sample: &mut Sample,
) {
    for (inode, file) in &mut namespace.files {
        if open.contains_key(inode) || file.writers.is_empty() {
            continue;
        }
        let writers: Vec<(u32, u64)> =
            std::mem::take(&mut file.writers).into_iter().map(|number| (number, 0)).collect();
        let found = volume.fs().attributes(*inode).ok().filter(|found| found.born == file.born);
        let Some(found) = found else { continue };
        let grown = if found.size >= file.size { found.size - file.size } else { found.size };
        let has_changed = found.version != file.version;
        (file.size, file.version) = (found.size, found.version);
        if has_changed && found.is_regular() {
            divide(grown, &writers, sample);
        }
    }
}

/// Attributes `bytes` written to a file to the processes that have it open: in proportion to how
/// far their offsets moved, or else in equal parts.
fn divide(bytes: u64, writers: &[(u32, u64)], sample: &mut Sample) {
    let moved: u128 = writers.iter().map(|(_, moved)| u128::from(*moved)).sum();
    let (mut left, mut weight_left) = (u128::from(bytes), moved.max(writers.len() as u128));
    for (number, moved_by_it) in writers {
        let weight = if moved > 0 { u128::from(*moved_by_it) } else { 1 };
        let part = left * weight / weight_left.max(1);
        left -= part;
        weight_left -= weight.min(weight_left);
        sample.add(Share(*number, part as u64, 0, 0));
    }
}

/// Returns the name of a process; empty if it is gone.
fn name_of(pid: u32) -> String {
    let path = format!("/proc/{pid}/comm");
    fs::read_to_string(path).map(|name| name.trim_end().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
