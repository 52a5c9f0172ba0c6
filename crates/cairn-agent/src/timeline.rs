//! Timeline of a job: what it read, wrote and drained over time, in a small file for `cairn
//! report`.
//!
//! ```text
//! CRC32C JSON                      one line each: of the rest, in hexadecimal
//! ........ {"timeline":1, ...}     Header, first
//! ........ {"process":{...}}       Process; a later one of the same number replaces it
//! ........ {"mark":{...}}          Mark
//! ........ {"set":{...}}           Set; a later one of the same number replaces it
//! ........ {"sample":{...}}        Sample
//! ```
//! The agent appends to the file in the store. With each requested drain, a copy goes beside the
//! manifest in the persist directory. Must stay true: the file stays below `BYTES_MAX` however long
//! a job runs, because samples then cover more time each. A damaged line, such as the last one of a
//! killed agent, is skipped and spoils no other. The content is validated when it is read. Does not
//! find out what happened; `recorder.rs` does.

use cairn_platform::checksum::crc32c;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::model::store_file;
use cairn_job::checkpoint::name::Step;
use cairn_job::checkpoint::sets::register::Level;

/// Name of the file in the store's directory.
pub const TIMELINE_FILE: &str = "agent.timeline";
/// Format that this version writes, and the newest it reads.
pub const TIMELINE_FORMAT: u32 = 1;
/// Maximum size of the file, bytes.
pub const BYTES_MAX: usize = 2 << 20;
/// Size to which a file of `BYTES_MAX` is reduced.
const BYTES_COARSE: usize = BYTES_MAX / 2;
/// Initial time that one sample covers, milliseconds.
pub const EVERY_MS: u64 = 200;
/// Maximum time that one sample covers; longer than any run.
const EVERY_MS_MAX: u64 = 1 << 40;
/// Times from this one on are invalid, milliseconds since the epoch.
const TIME_MS_MAX: u64 = 1 << 50;
/// Maximum number of processes in a timeline.
pub const PROCESSES_MAX: usize = 2048;
/// Maximum number of marks in a timeline.
pub const MARKS_MAX: usize = 2048;
/// Maximum length of a mark's name, and of a command, bytes.
pub const NAME_BYTES_MAX: usize = 64;
const COMMAND_BYTES_MAX: usize = 4096;

/// Maximum number of checkpoints in a timeline; the newest are kept.
pub const SETS_MAX: usize = 1024;
/// Maximum length of a checkpoint's name, characters.
pub const SET_NAME_MAX: usize = 128;

/// Returns the name of the file in the persist directory.
pub fn timeline_name(job: &str) -> String {
    format!("cairn-manifest.{job}.timeline")
}

/// A timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Identity of the job and store.
    pub header: Header,
    /// Processes that read or wrote, by their number in the timeline.
    pub processes: BTreeMap<u32, Process>,
    /// Announcements of programs, oldest first.
    pub marks: Vec<Mark>,
    /// Complete checkpoints, by id.
    pub sets: BTreeMap<u64, Set>,
    /// Samples, oldest first. Times in which nothing happened are left out.
    pub samples: Vec<Sample>,
}

/// Identity of the job and store of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Format of the file.
    #[serde(rename = "timeline")]
    pub format: u32,
    /// Name of the job.
    pub job: String,
    /// Store id; no other store of the job has the same.
    pub store: String,
    /// Command for which the store was made.
    pub command: Vec<String>,
    /// Maximum time that samples cover, milliseconds.
    pub every_ms: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Number of the process in samples.
    pub number: u32,
    /// Process id.
    pub pid: u32,
    /// Start time, in the kernel's units.
    pub start_time: u64,
    /// Name, as in `ps`.
    pub name: String,
    /// MPI rank of the process, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Launch of the program to which the rank belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<String>,
}

/// An announcement of a program about a checkpoint (`cairn.h`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Time of the announcement, milliseconds since the epoch.
    pub at_ms: u64,
    /// Process id of the program.
    pub pid: u32,
    /// Whether the process begins the checkpoint; otherwise it is done with it.
    pub begins: bool,
    /// Step of the checkpoint.
    pub step: u64,
    /// Name of the checkpoint.
    pub name: String,
}

/// A complete checkpoint: files that belong together. Times are in milliseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// Id of the checkpoint in the store.
    pub id: u64,
    /// Name, cut to `SET_NAME_MAX` characters.
    pub name: String,
    /// Step, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// Number of files.
    pub files: u64,
    /// Total size of the files.
    pub bytes: u64,
    /// When the first file was begun.
    pub from_ms: u64,
    /// When the last change of a file happened.
    pub written_ms: u64,
    /// When the checkpoint was found complete.
    pub complete_ms: u64,
    /// When all of it was in the persist directory, verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_ms: Option<u64>,
    /// Level on which it is safe: in the persist directory, or only in the store until it leaves
    /// that.
    pub level: Level,
    /// When it left the store: its files were removed, replaced, or dropped for space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// A period of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Begin, milliseconds since the epoch.
    pub from_ms: u64,
    /// End, milliseconds since the epoch.
    pub to_ms: u64,
    /// Bytes copied to the persist directory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drained: u64,
    /// At the end, bytes of files whose newest version was not drained.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exposed: u64,
    /// Maximum of `exposed` in the period.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exposed_max: u64,
    /// Bytes of all files at the end.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
    /// Bytes by which files grew that no process was seen to have open.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: u64,
    /// Activity of processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Share>,
}

/// Activity of a process in a sample: its number, bytes written, bytes read, and the maximum number
/// of files it had open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share(pub u32, pub u64, pub u64, pub u32);

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LineOut<'a> {
    Process(&'a Process),
    Mark(&'a Mark),
    Set(&'a Set),
    Sample(&'a Sample),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum LineIn {
    Process(Process),
    Mark(Mark),
    Set(Set),
    Sample(Sample),
}

impl Sample {
    /// Whether anything happened, or the state differs from that after `before`.
    pub(crate) fn says_more_than(&self, before: Option<&Sample>) -> bool {
        let stands = |sample: &Sample| {
            let open: Vec<(u32, u32)> = sample.shares.iter().map(|one| (one.0, one.3)).collect();
            (sample.exposed, sample.held, open)
        };
        let has_moved = self.shares.iter().any(|share| share.1 > 0 || share.2 > 0);
        has_moved
            || self.drained > 0
            || self.unknown > 0
            || before.map(stands).unwrap_or_default() != stands(self)
    }

    /// Adds the activity of a process.
    pub fn add(&mut self, share: Share) {
        match self.shares.iter_mut().find(|known| known.0 == share.0) {
            Some(known) => {
                known.1 = known.1.saturating_add(share.1);
                known.2 = known.2.saturating_add(share.2);
                known.3 = known.3.max(share.3);
            }
            None => self.shares.push(share),
        }
    }

    /// Extends this sample by the next one.
    pub fn join(&mut self, next: &Sample) {
        self.to_ms = next.to_ms;
        self.drained = self.drained.saturating_add(next.drained);
        self.exposed = next.exposed;
        self.exposed_max = self.exposed_max.max(next.exposed_max);
        self.held = next.held;
        self.unknown = self.unknown.saturating_add(next.unknown);
        next.shares.iter().for_each(|share| self.add(*share));
    }

    /// Whether its times are valid.
    fn is_plausible(&self) -> bool {
        self.from_ms <= self.to_ms && self.to_ms < TIME_MS_MAX
    }
}

impl Set {
    /// Whether its times are valid.
    fn is_plausible(&self) -> bool {
        let times = [self.from_ms, self.written_ms, self.complete_ms];
        let more = [self.drained_ms, self.left_ms];
        times.into_iter().chain(more.into_iter().flatten()).all(|ms| ms < TIME_MS_MAX)
    }
}

impl Timeline {
    /// Returns an empty timeline.
    pub fn new(job: &str, store: &str, command: &[String]) -> Timeline {
        let mut left = COMMAND_BYTES_MAX;
        let fits = |word: &&String| {
            // Each word needs a separator beside its characters.
            left = left.saturating_sub(word.len() + 1);
            left > 0
        };
        let header = Header {
            format: TIMELINE_FORMAT,
            job: job.to_string(),
            store: store.to_string(),
            command: command.iter().take_while(fits).cloned().collect(),
            every_ms: EVERY_MS,
        };
        Timeline { header, ..Timeline::default() }
    }

    /// Reads a file. Errors: `NotFound`; `InvalidData` if it is not a timeline, or of a newer
    /// format; those of the system.
    pub fn load(path: &Path) -> io::Result<Timeline> {
        let bytes = store_file::read(path, 2 * BYTES_MAX)?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is not a timeline");
        let timeline = Timeline::decode(&bytes).ok_or_else(damaged)?;
        match timeline.header.format {
            ..=TIMELINE_FORMAT => Ok(timeline),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a newer version of Cairn wrote it; use that one",
            )),
        }
    }

    /// Decodes the intact lines of a file. Returns None without a header. Of a newer format only
    /// the header is read.
    pub fn decode(bytes: &[u8]) -> Option<Timeline> {
        let mut lines = bytes.split(|&byte| byte == b'\n').filter_map(checked);
        let header: Header = serde_json::from_slice(lines.next()?).ok()?;
        let mut timeline = Timeline { header, ..Timeline::default() };
        if timeline.header.format > TIMELINE_FORMAT {
            return Some(timeline);
        }
        timeline.header.every_ms = timeline.header.every_ms.clamp(1, EVERY_MS_MAX);
        for line in lines.filter_map(|line| serde_json::from_slice(line).ok()) {
            match line {
                LineIn::Process(process) => _ = timeline.processes.insert(process.number, process),
                LineIn::Mark(mark) => timeline.marks.push(mark),
                LineIn::Set(set) if set.is_plausible() => timeline.put(set),
                LineIn::Set(_) => {}
                LineIn::Sample(sample) => {
                    let last_ms = timeline.samples.last().map_or(0, |last| last.to_ms);
                    if sample.is_plausible() && sample.from_ms >= last_ms {
                        timeline.samples.push(sample);
                    }
                }
            }
        }
        Some(timeline)
    }

    /// Encodes the timeline as the bytes of a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = line(&self.header);
        self.processes.values().for_each(|one| bytes.extend(line(&LineOut::Process(one))));
        self.marks.iter().for_each(|one| bytes.extend(line(&LineOut::Mark(one))));
        self.sets.values().for_each(|one| bytes.extend(line(&LineOut::Set(one))));
        self.samples.iter().for_each(|one| bytes.extend(line(&LineOut::Sample(one))));
        bytes
    }

    /// Adds or updates a checkpoint. Drops the oldest if there are too many.
    pub(crate) fn put(&mut self, set: Set) {
        self.sets.insert(set.id, set);
        if self.sets.len() > SETS_MAX {
            self.sets.pop_first();
        }
    }

    /// Merges samples until the file is at most `BYTES_COARSE` long.
    pub(crate) fn coarsen(&mut self) {
        while self.header.every_ms < EVERY_MS_MAX && self.encode().len() > BYTES_COARSE {
            self.header.every_ms *= 2;
            let every_ms = self.header.every_ms;
            let mut joined: Vec<Sample> = Vec::with_capacity(self.samples.len());
            for sample in &self.samples {
                match joined.last_mut() {
                    Some(last) if sample.to_ms.saturating_sub(last.from_ms) <= every_ms => {
                        last.join(sample);
                    }
                    _ => joined.push(sample.clone()),
                }
            }
            self.samples = joined;
        }
    }
}

/// Returns the longest beginning of a text that fits into `bytes_max` bytes.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns a line of the file, with its checksum.
pub(crate) fn line(value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_string(value).expect("a timeline holds nothing JSON cannot say");
    format!("{:08x} {json}\n", crc32c(0, json.as_bytes())).into_bytes()
}

/// Returns the JSON of a line if its checksum is right.
fn checked(line: &[u8]) -> Option<&[u8]> {
    let (sum, json) = (line.get(..8)?, line.get(9..)?);
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32c(0, json)).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(number: u32) -> Process {
        let name = "lmp\"\n".to_string();
        Process { number, pid: 100 + number, start_time: 7, name, rank: Some(3), launch: None }
    }

    fn set(id: u64) -> Set {
        Set {
            id,
            name: format!("f.{id}"),
            step: Some(Step::from(id)),
            files: 2,
            bytes: 1 << 20,
            from_ms: id,
            written_ms: id + 1,
            complete_ms: id + 2,
            drained_ms: None,
            level: Level::Node,
            left_ms: None,
        }
    }

    fn timeline(samples: u64) -> Timeline {
        let mut timeline = Timeline::new("melt", "s1", &["lmp".to_string()]);
        timeline.processes = (0..4).map(|number| (number, process(number))).collect();
        timeline.marks.push(Mark { at_ms: 5, pid: 1, begins: true, step: 10, name: "m".into() });
        timeline.put(set(7));
        let sample = |number: u64| Sample {
            from_ms: number * 250,
            to_ms: number * 250 + 200,
            drained: 1 << 20,
            exposed: number << 20,
            exposed_max: number << 21,
            held: number << 21,
            unknown: 0,
            shares: (0..4).map(|process| Share(process, 1 << 30, 0, 1)).collect(),
        };
        timeline.samples = (0..samples).map(sample).collect();
        timeline
    }

    #[test]
    fn what_was_written_is_read_back() {
        let timeline = timeline(3);
        assert_eq!(Timeline::decode(&timeline.encode()), Some(timeline));
    }

    #[test]
    fn torn_and_damaged_lines_are_left_out() {
        let whole = timeline(4);
        let mut bytes = whole.encode();
        // The state after kill -9 in the middle of the last line, and one damaged line before it.
        bytes.truncate(bytes.len() - 5);
        let at = bytes.len() - 300;
        bytes[at] ^= 1;
        let read = Timeline::decode(&bytes).expect("has a header");
        assert_eq!(read.processes, whole.processes);
        assert_eq!(read.samples.len(), 2);
        assert!(read.samples.iter().all(|sample| whole.samples.contains(sample)));
        for end in 0..bytes.len() {
            Timeline::decode(&bytes[..end]);
        }
        assert_eq!(Timeline::decode(b"no timeline"), None);
    }

    #[test]
    fn newer_formats_are_named_and_not_guessed_at() {
        let mut newer = timeline(1);
        newer.header.format += 1;
        let read = Timeline::decode(&newer.encode()).expect("has a header");
        assert!(read.samples.is_empty() && read.header.format == TIMELINE_FORMAT + 1);
    }

    #[test]
    fn long_jobs_have_coarser_samples_and_lose_no_byte() {
        let mut long = timeline(40_000);
        let sums = |timeline: &Timeline| {
            let written = |sample: &Sample| sample.shares.iter().map(|one| one.1).sum::<u64>();
            let drained: u64 = timeline.samples.iter().map(|sample| sample.drained).sum();
            (drained, timeline.samples.iter().map(written).sum::<u64>())
        };
        let (before, end_ms) = (sums(&long), long.samples.last().expect("many").to_ms);
        assert!(long.encode().len() > BYTES_MAX);
        long.coarsen();
        assert!(long.encode().len() <= BYTES_COARSE, "{}", long.encode().len());
        assert_eq!((sums(&long), long.samples.last().expect("some").to_ms), (before, end_ms));
        assert!(long.samples.is_sorted_by(|one, next| one.to_ms <= next.from_ms));
    }

    #[test]
    fn long_commands_are_cut() {
        let words = ["a".repeat(COMMAND_BYTES_MAX - 3), "bc".to_string(), "d".to_string()];
        let kept = Timeline::new("melt", "s1", &words).header.command;
        assert!(kept == words[..1]);
        assert_eq!((beginning("€€", 5), beginning("ab", 5)), ("€", "ab"));
        let many = vec!["x".to_string(); 1 << 20];
        assert!(Timeline::new("melt", "s1", &many).encode().len() < 6 * COMMAND_BYTES_MAX);
    }

    #[test]
    fn newest_checkpoints_are_kept_as_they_were_last() {
        let mut timeline = timeline(1);
        (8..8 + SETS_MAX as u64).for_each(|id| timeline.put(set(id)));
        let drained = Set { drained_ms: Some(99), level: Level::Pfs, ..set(9) };
        let impossible = Set { left_ms: Some(u64::MAX), ..set(10) };
        let mut bytes = timeline.encode();
        bytes.extend(line(&LineOut::Set(&drained)));
        bytes.extend(line(&LineOut::Set(&impossible)));
        let read = Timeline::decode(&bytes).expect("a header");
        assert_eq!((read.sets.len(), read.sets.first_key_value()), (SETS_MAX, Some((&8, &set(8)))));
        assert_eq!((&read.sets[&9], &read.sets[&10]), (&drained, &set(10)));
    }

    #[test]
    fn samples_that_cannot_be_are_left_out() {
        let mut backwards = timeline(2);
        backwards.samples[1].from_ms = 0;
        backwards.samples.push(Sample { from_ms: 900, to_ms: 800, ..Sample::default() });
        backwards.samples.push(Sample { from_ms: 900, to_ms: u64::MAX, ..Sample::default() });
        assert_eq!(Timeline::decode(&backwards.encode()).expect("a header").samples.len(), 1);
    }
}
