//! The manifest: which of a job's files are safe in the persist directory.
//!
//! Must stay true: the manifest names a file as drained only after the copy was verified and
//! renamed. It describes one cut of the store. That of a large store is continued by a log, to
//! which each pass adds what has changed, until both are written as one again. The manifest of
//! another store of the same job is kept and its entries are *detached*: nothing in the new store
//! removes their copies, except a file of the same name.

pub mod changes;
mod checkpoint;
pub mod order;

pub use checkpoint::{Checkpoint, CheckpointFile};

use cairn_platform::checksum;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use crate::checkpoint::name::Family;
use crate::checkpoint::sets::Member;
use crate::file::extended::Carried;
use crate::file::json_text::{
    read_checksum, read_mode, read_number, read_time, write_checksum, write_mode, write_time,
};
use crate::file::mapping::Mapping;
use crate::file::node::{Kind, Node};
use crate::file::path::{self, FilePath};
use crate::outside::found::{Found, same_time};

/// Format that this version writes, and the newest it reads. Format 1 had no checksum, format 2 no
/// log.
pub const MANIFEST_FORMAT: u32 = 3;
/// Name of the field with the CRC32C of the file, which counts with these digits in its place.
const CHECKSUM: &str = "\"checksum\": \"";
const NO_CHECKSUM: &str = "00000000";

/// Name of the manifest of `job` in the persist directory.
pub fn manifest_name(job: &str) -> String {
    format!("cairn-manifest.{job}.json")
}

/// Name of the log that continues the manifest of `job` and is called `log` there.
pub fn log_name(job: &str, log: &str) -> String {
    format!("cairn-manifest.{job}.{log}.changes")
}

/// Whether a name is that of a log of the manifest of `job`.
pub fn is_log_name(name: &[u8], job: &str) -> bool {
    let begin = format!("cairn-manifest.{job}.");
    let middle = name.strip_prefix(begin.as_bytes()).and_then(|it| it.strip_suffix(b".changes"));
    middle.is_some_and(|middle| !middle.contains(&b'.'))
}

/// Path of the manifest of `job`, below the persist directory.
pub fn manifest_path(job: &str) -> FilePath {
    FilePath::root().join(manifest_name(job).as_bytes())
}

/// Name of the directory for the last whole versions of files of `job`, below the persist directory
/// and below the place of each mapped directory.
pub fn whole_name(job: &str) -> String {
    format!("cairn-whole.{job}")
}

/// How safe a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The persist directory has this version, verified.
    Drained,
    /// Its data in the store are damaged; never copied.
    Quarantined,
}

/// A verified copy in the persist directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Length.
    pub bytes: u64,
    /// CRC32C of the whole file.
    #[serde(serialize_with = "write_checksum", deserialize_with = "read_checksum")]
    pub crc32c: u32,
    /// Permission bits; in the file, octal digits.
    #[serde(serialize_with = "write_mode", deserialize_with = "read_mode")]
    pub mode: u32,
    /// Modification time, nanoseconds since the epoch; in the file, seconds with nine decimals,
    /// negative before 1970.
    #[serde(rename = "mtime", serialize_with = "write_time", deserialize_with = "read_time")]
    pub mtime_ns: i64,
    /// Version of the data in the store that was copied.
    pub version: u64,
    /// Extended attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended: Option<Carried>,
}

/// One file, directory or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Kind of file.
    pub kind: Kind,
    /// How safe it is.
    pub state: State,
    /// Inode in the store.
    pub inode: u32,
    /// Version of the data in the store that `state` refers to.
    pub version: u64,
    /// Permission bits; in the file, octal digits.
    #[serde(serialize_with = "write_mode", deserialize_with = "read_mode")]
    pub mode: u32,
    /// Modification time, nanoseconds since the epoch; in the file, seconds with nine decimals,
    /// negative before 1970.
    #[serde(rename = "mtime", serialize_with = "write_time", deserialize_with = "read_time")]
    pub mtime_ns: i64,
    /// Length of a regular file; 0 for anything else.
    pub bytes: u64,
    /// CRC32C of the whole file, for a drained regular file.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_some_checksum",
        deserialize_with = "read_some_checksum"
    )]
    pub crc32c: Option<u32>,
    /// Extended attributes of the copy; those of an `earlier` copy are in that field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended: Option<Carried>,
    /// Verified copy of an earlier version that still has the name, if `state` is not `drained`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Copy>,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Why it is quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the copy is kept whatever happens in the store: its file was evicted, or an earlier
    /// store of the job left it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub detached: bool,
    /// Whether the copy shows a file that was not closed in order: somebody had it open for writing
    /// at the cut, or its last writer did not end in order.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unclosed: bool,
    /// Whether the copy was found to differ from this entry when a store was to be filled from it.
    /// Only a new copy clears the mark.
    #[serde(default, skip_serializing_if = "is_false")]
    pub damaged: bool,
    /// Whether a writer did not end in order since the file was last emptied: its content may be
    /// torn.
    #[serde(default, skip_serializing_if = "is_false")]
    pub torn: bool,
}

/// Target of a symbolic link: any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(pub Vec<u8>);

/// Position in the log of a namespace whose metadata are on a medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// Identity of the medium, hexadecimal digits.
    pub medium: String,
    /// How often the store was recovered from it, from 1. Log sequence numbers that were not
    /// durable are given out again after a recovery.
    #[serde(default)]
    pub epoch: u64,
    /// Log sequence number.
    pub lsn: u64,
}

impl LogPosition {
    /// Whether a store that was recovered up to here has everything that one had at `earlier`.
    pub fn has_reached(&self, earlier: &LogPosition) -> bool {
        let is_same = (&self.medium, self.epoch) == (&earlier.medium, earlier.epoch);
        is_same && self.lsn >= earlier.lsn
    }
}

/// Description of the persist directory of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of the file.
    pub format: u32,
    /// CRC32C of the file, as eight digits; `text` computes it.
    #[serde(default = "no_checksum", deserialize_with = "forget_checksum")]
    checksum: String,
    /// The job.
    pub job: String,
    /// Launcher's start that the job belongs to, see `Job::launch` of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The store, see `Job::store`.
    pub store: String,
    /// Path prefix under which the program saw its files.
    pub mount: String,
    /// Directories with places of their own. All paths below are those of the store.
    #[serde(default, skip_serializing_if = "Mapping::is_empty")]
    pub map: Mapping,
    /// Number of the turn that brought the last cut, see `journal.rs`.
    #[serde(default, deserialize_with = "read_number")]
    pub turn: u64,
    /// What the log that continues it is called: the turn after which it begins, and the store, see
    /// [`log_name`]. None if it is whole.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_log")]
    pub log: Option<String>,
    /// Position in the log that the cut does not go beyond, if the store has a durable log: what a
    /// store that is recovered from it lacks was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<LogPosition>,
    /// Whether the last cut is here as a whole, verified.
    pub complete: bool,
    /// Whether that is the store as it was left by a run that succeeded.
    #[serde(default)]
    pub everything: bool,
    /// Executable of the run that has not ended well yet, see
    /// `Job::pending`. None if the job is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// Whether the file system refused permission bits, so that copies have those that it gave
    /// them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_modes: bool,
    /// Checkpoints whose files are all here, verified; oldest first, see [`order`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// Last whole versions, below [`whole_name`], of files whose copies are not whole, or that are
    /// gone; sorted by path.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        serialize_with = "write_files",
        deserialize_with = "read_files"
    )]
    pub whole: BTreeMap<FilePath, Entry>,
    /// Entries, sorted by path.
    #[serde(serialize_with = "write_files", deserialize_with = "read_files")]
    pub files: BTreeMap<FilePath, Entry>,
}

impl Manifest {
    /// Returns an empty manifest.
    pub fn new(job: &str, store: &str, mount: &str) -> Manifest {
        Manifest {
            format: MANIFEST_FORMAT,
            checksum: NO_CHECKSUM.to_string(),
            job: job.to_string(),
            owner: None,
            store: store.to_string(),
            mount: mount.to_string(),
            map: Mapping::default(),
            turn: 0,
            log: None,
            position: None,
            complete: false,
            everything: false,
            pending: None,
            without_modes: false,
            checkpoints: Vec::new(),
            whole: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    /// Returns the manifest to continue with as `fresh`: the one that was found, with the entries
    /// of another store detached, unless this one was `recovered` with all that it had.
    pub fn resume(
        found: Option<Manifest>,
        fresh: Manifest,
        recovered: Option<&LogPosition>,
    ) -> Manifest {
        let Some(mut manifest) = found else { return fresh };
        if manifest.store != fresh.store {
            let positions = recovered.zip(manifest.position.as_ref());
            let has_all = positions.is_some_and(|(now, then)| now.has_reached(then));
            manifest.adopt(&fresh.store, !has_all);
            manifest.position = None;
        }
        manifest.format = MANIFEST_FORMAT;
        (manifest.owner, manifest.mount, manifest.map) = (fresh.owner, fresh.mount, fresh.map);
        manifest
    }

    /// Whether it only claims the directory: nothing was drained to it yet.
    pub fn is_claim(&self) -> bool {
        self.files.is_empty() && !self.complete
    }

    /// Returns the files of the newest checkpoint of each family for which `is_meant` is true.
    pub fn newest_files(&self, is_meant: impl Fn(&Family) -> bool) -> HashSet<FilePath> {
        let newest: HashMap<&Family, &Checkpoint> =
            self.checkpoints.iter().map(|known| (&known.name.family, known)).collect();
        let newest = newest.into_iter().filter(|(family, _)| is_meant(family));
        let files = newest.flat_map(|(_, checkpoint)| checkpoint.files.iter());
        files.map(|file| file.path.clone()).collect()
    }

    /// Returns the checkpoints, oldest first.
    pub fn whole_checkpoints(&self) -> Vec<&Checkpoint> {
        let mut whole: Vec<&Checkpoint> =
            self.checkpoints.iter().filter(|known| known.is_whole(self)).collect();
        whole.sort_by_key(|known| known.order);
        whole
    }

    /// Returns the highest number of a checkpoint of `store` here; 0 if there is none.
    pub fn highest_id(&self, store: &str) -> u64 {
        let ours = self.checkpoints.iter().filter(|known| known.store == store);
        ours.map(|known| known.id).max().unwrap_or(0)
    }

    /// Adds a checkpoint at its place in the order.
    pub fn enter(&mut self, known: Checkpoint) {
        let places = self.checkpoints.iter().map(|other| (&other.store[..], other.id, other.order));
        let order = order::place(&known.store, known.id, places);
        for other in self.checkpoints.iter_mut().filter(|it| it.order >= order) {
            other.order += 1;
        }
        self.checkpoints.push(Checkpoint { order, ..known });
        self.checkpoints.sort_by_key(|known| known.order);
    }

    /// Whether the copy of a file is of this version.
    pub fn has(&self, file: &Member) -> bool {
        self.files.get(&file.path).is_some_and(|entry| {
            let is_same = (entry.inode, entry.version) == (file.inode, file.version);
            is_same && entry.state == State::Drained && !entry.detached
        })
    }

    /// Whether a file has a verified copy of any version.
    pub fn has_copy(&self, path: &FilePath) -> bool {
        self.files.get(path).is_some_and(|entry| entry.copy().is_some())
    }

    /// Whether the copy of a file is known to be damaged or gone.
    pub fn is_damaged(&self, path: &FilePath) -> bool {
        self.files.get(path).is_some_and(|entry| entry.damaged)
    }

    /// Takes every entry from the store that made it, and drops those without a copy. If they are
    /// `detached`, copies stay whatever this store lacks.
    fn adopt(&mut self, store: &str, detached: bool) {
        self.store = store.to_string();
        (self.complete, self.everything) = (false, false);
        self.files.retain(|_, entry| entry.kind != Kind::File || entry.copy().is_some());
        for entry in self.files.values_mut() {
            if let Some(copy) = entry.copy() {
                entry.set_copy(copy);
            }
            entry.detached |= detached;
            entry.inode = 0;
            entry.version = 0;
        }
    }

    /// Returns the text of the file, with its checksum. Errors: a number that JSON does not have.
    pub fn text(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        if let Some(at) = checksum_place(&text) {
            let checksum = format!("{:08x}", checksum::crc32c(0, &text));
            text[at].copy_from_slice(checksum.as_bytes());
        }
        Ok(text)
    }
}

/// Whether the text of a manifest has the checksum that it says.
pub fn is_intact(text: &[u8]) -> bool {
    let Some(at) = checksum_place(text) else { return false };
    let mut without = text.to_vec();
    without[at.clone()].copy_from_slice(NO_CHECKSUM.as_bytes());
    format!("{:08x}", checksum::crc32c(0, &without)).as_bytes() == &text[at]
}

fn no_checksum() -> String {
    NO_CHECKSUM.to_string()
}

/// Reads the checksum of a file: `text` computes it anew.
fn forget_checksum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|_| no_checksum())
}

/// Reads what a log is called: it leads to no other directory.
fn read_log<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let log = String::deserialize(deserializer)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match log.bytes().all(is_plain) {
        true => Ok(Some(log)),
        false => Err(D::Error::custom("its log has a strange name")),
    }
}

/// Returns where the digits of the checksum are in the text of a manifest. They come before any
/// text of a user.
fn checksum_place(text: &[u8]) -> Option<Range<usize>> {
    let name = CHECKSUM.as_bytes();
    let begin = text.windows(name.len()).position(|part| part == name)? + name.len();
    let place = begin..begin + NO_CHECKSUM.len();
    (place.end <= text.len()).then_some(place)
}

impl Entry {
    /// Returns the verified copy at this name in the persist directory, of any version.
    pub fn copy(&self) -> Option<Copy> {
        match (self.kind, self.state, self.crc32c) {
            (Kind::File, State::Drained, Some(crc32c)) => Some(Copy {
                bytes: self.bytes,
                crc32c,
                mode: self.mode,
                mtime_ns: self.mtime_ns,
                version: self.version,
                extended: self.extended,
            }),
            (Kind::File, ..) => self.earlier.clone(),
            _ => None,
        }
    }

    fn lacks_checksum(&self) -> bool {
        (self.kind, self.state, self.crc32c) == (Kind::File, State::Drained, None)
    }

    /// Whether an earlier store of the job left it and this store has not attached it.
    pub fn is_of_earlier_store(&self) -> bool {
        self.detached && self.inode == 0
    }

    /// Turns this into the entry of a drained file with this copy.
    pub fn set_copy(&mut self, copy: Copy) {
        self.state = State::Drained;
        self.bytes = copy.bytes;
        self.crc32c = Some(copy.crc32c);
        self.mode = copy.mode;
        self.mtime_ns = copy.mtime_ns;
        self.version = copy.version;
        self.extended = copy.extended;
        self.earlier = None;
        self.reason = None;
    }

    /// Ties the copy to its file in the store.
    pub fn attach(&mut self, node: &Node) {
        (self.detached, self.torn) = (false, node.torn);
        // A whole copy stays one while somebody has its file open and has written nothing.
        self.unclosed &= node.open || node.unclean;
        self.inode = node.inode;
        if node.kind == Kind::File {
            if let Some(copy) = self.copy() {
                self.set_copy(copy);
            }
            self.version = node.version;
        }
    }

    /// Returns this entry with another mode and modification time.
    pub fn with_attributes(&self, mode: u32, mtime_ns: i64) -> Entry {
        let mut entry = Entry { mode, mtime_ns, ..self.clone() };
        if let Some(earlier) = &mut entry.earlier {
            (earlier.mode, earlier.mtime_ns) = (mode, mtime_ns);
        }
        entry
    }

    /// Returns the modification time to record for `found`: the time that was set if `found` shows
    /// it, else the time found.
    pub fn mtime_found(&self, found: &Found) -> i64 {
        match same_time(self.mtime_ns, found.mtime_ns) {
            true => self.mtime_ns,
            false => found.mtime_ns,
        }
    }

    /// Whether `found` in the persist directory is what this entry says was put there.
    pub fn is_ours(&self, found: &Found) -> bool {
        match self.kind {
            Kind::Directory => found.kind == Some(Kind::Directory),
            Kind::Symlink => {
                found.kind == Some(Kind::Symlink) && same_time(self.mtime_ns, found.mtime_ns)
            }
            Kind::File => self.copy().is_some_and(|copy| {
                found.kind == Some(Kind::File)
                    && found.bytes == copy.bytes
                    && same_time(copy.mtime_ns, found.mtime_ns)
            }),
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn write_some_checksum<S: Serializer>(
    checksum: &Option<u32>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match checksum {
        Some(checksum) => write_checksum(checksum, serializer),
        None => serializer.serialize_none(),
    }
}

fn read_some_checksum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    read_checksum(deserializer).map(Some)
}

/// An entry with its path: an element of the list in the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line<P, E> {
    path: P,
    #[serde(flatten)]
    entry: E,
}

impl Line<FilePath, Entry> {
    /// Returns the error of an entry that is drained and has no checksum.
    fn without_checksum<E: serde::de::Error>(&self) -> E {
        E::custom(format_args!("{} is drained and has no checksum", self.path))
    }
}

fn write_files<S: Serializer>(
    files: &BTreeMap<FilePath, Entry>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(files.iter().map(|(path, entry)| Line { path, entry }))
}

fn read_files<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<FilePath, Entry>, D::Error> {
    let lines = Vec::<Line<FilePath, Entry>>::deserialize(deserializer)?;
    if let Some(line) = lines.iter().find(|line| line.entry.lacks_checksum()) {
        return Err(line.without_checksum());
    }
    Ok(lines.into_iter().map(|line| (line.path, line.entry)).collect())
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        path::serialize_bytes(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Target, D::Error> {
        path::deserialize_bytes(deserializer).map(Target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn drained(version: u64) -> Entry {
        Entry {
            kind: Kind::File,
            state: State::Drained,
            inode: 7,
            version,
            mode: 0o640,
            mtime_ns: 12_000_000_034,
            bytes: 4,
            crc32c: Some(0xdead_beef),
            extended: Some(Carried { crc32c: 0x0bad_cafe, kept: true }),
            earlier: None,
            target: None,
            reason: None,
            detached: false,
            unclosed: false,
            damaged: false,
            torn: false,
        }
    }

    fn sample() -> Manifest {
        let mut manifest = Manifest::new("melt", "0123", "/cairn");
        let path = |bytes: &[u8]| FilePath::parse(bytes).expect("a valid path");
        manifest.files.insert(path(b"a/restart.1"), drained(3));
        let damaged = Entry { state: State::Quarantined, crc32c: None, ..drained(5) };
        manifest.files.insert(path(b"b\xff"), damaged);
        let link = Entry {
            kind: Kind::Symlink,
            crc32c: None,
            target: Some(Target(b"a/\xfe".to_vec())),
            ..drained(1)
        };
        manifest.files.insert(path(b"latest"), link);
        manifest
    }

    /// Mechanism: any number in a manifest was accepted, and the next one counted from it.
    /// Consequence: a number that overflowed the count ended the agent. Fix: such a manifest is
    /// refused.
    #[test]
    fn numbers_that_nothing_can_be_counted_from_are_refused() {
        let with = |id: u64, order: u64| {
            let fields = r#""family": "f", "step": null, "mtime": "0.000000000", "files": []"#;
            let text = format!(r#"{{"id": {id}, "order": {order}, {fields}}}"#);
            serde_json::from_str::<Checkpoint>(&text)
        };
        let most = (1 << 53) - 1;
        assert_eq!(with(most, most).expect("is read").id, most);
        for (id, order) in [(most + 1, 1), (u64::MAX, 1), (1, u64::MAX)] {
            with(id, order).expect_err("is refused");
        }
    }

    /// Mechanism: a store that was recovered with all of the cut took every copy for its own, also
    /// the evicted ones, and log sequence numbers of another recovery for its own. Consequence: the
    /// only copies of evicted files were removed. Fix: what is detached stays so; a position says
    /// of which recovery it is.
    #[test]
    fn recovered_store_takes_over_what_it_has_reached_and_never_what_was_detached() {
        let position = |medium: &str, epoch, lsn| LogPosition { medium: medium.into(), epoch, lsn };
        for (recovered, has_all) in [
            (Some(position("m", 2, 70)), true),
            (Some(position("m", 2, 69)), false),
            (Some(position("m", 3, 90)), false),
            (Some(position("n", 2, 90)), false),
            (None, false),
        ] {
            let mut found = sample();
            found.position = Some(position("m", 2, 70));
            let evicted = found.files.first_key_value().expect("a file").0.clone();
            found.files.get_mut(&evicted).expect("it is there").detached = true;
            let fresh = Manifest::new("melt", "4567", "/cairn");
            let resumed = Manifest::resume(Some(found), fresh, recovered.as_ref());
            assert_eq!(resumed.position, None);
            for (path, entry) in &resumed.files {
                assert_eq!(entry.detached, !has_all || *path == evicted, "{recovered:?} {path}");
            }
        }
    }

    #[test]
    fn entries_of_an_earlier_store_are_detached_and_those_without_a_copy_dropped() {
        let mut manifest = sample();
        manifest.adopt("4567", true);
        assert_eq!(manifest.files.len(), 2);
        assert!(manifest.files.values().all(|entry| entry.detached && entry.version == 0));
    }
}
