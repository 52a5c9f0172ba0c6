//! Inputs of a job: files and directories outside that are staged into its store before programs
//! run, and what each staged name is a copy of (`inputs.json` in the store's directory).
//!
//! Must stay true: a name counts as an unchanged input only while it leads to the inode that was
//! made for it, with its data, mode and time. Whatever a program changed, renamed, linked or made
//! again is the program's own, and is drained like anything else. A name that is still to come
//! counts as an input only while it leads to what was there before, or to what has the length and
//! time, or the target, of the source. If the record is lost, nothing counts as an input.
//!
//! Does not copy anything: the command stages files whole, and the agent on demand.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::model::error::{Error, Result};
use crate::model::store_file::{self, MustSurvive, Version};
use cairn_job::file::node::{Kind, Node};
use cairn_job::file::path::{FilePath, deserialize_bytes, serialize_bytes};

/// Name of the record in a store's directory.
pub const INPUTS_FILE: &str = "inputs.json";
/// Version of the record's format.
const FORMAT: u32 = 1;
/// Largest record that is read, in bytes: some millions of files.
const BYTES_MAX: usize = 1 << 30;
/// Permission bits.
const MODE: u32 = 0o7777;

/// Inputs of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inputs {
    format: u32,
    /// What the user named, in order.
    pub named: Vec<Input>,
    /// What was staged, or is to be, by path in the store.
    #[serde(serialize_with = "write_list", deserialize_with = "read_list")]
    pub staged: BTreeMap<FilePath, Staged>,
}

/// A file or directory to stage in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Where it is, absolute.
    #[serde(serialize_with = "write_path", deserialize_with = "read_path")]
    pub source: PathBuf,
    /// Path that it gets in the store.
    pub path: FilePath,
}

/// What was staged under one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// What it is a copy of, absolute; empty for a directory above inputs.
    #[serde(serialize_with = "write_path", deserialize_with = "read_path")]
    pub source: PathBuf,
    /// Content of the source when it was read, or is to be read.
    pub content: Content,
    /// What was made of it; None if that is still to come.
    pub made: Option<Made>,
    /// Inode and version of what the name led to when this was planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<(u32, u64)>,
}

/// Content of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// A regular file in this state.
    File(SourceState),
    /// A directory with these permission bits.
    Directory(u32),
    /// A symbolic link with this target.
    Symlink(
        #[serde(serialize_with = "serialize_bytes", deserialize_with = "deserialize_bytes")]
        Vec<u8>,
    ),
}

/// A name in the store as it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Inode number.
    pub inode: u32,
    /// Version of the data.
    pub version: u64,
    /// Permission bits.
    pub mode: u32,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// CRC32C of a file's data; None while they are absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<u32>,
}

/// What tells whether a file outside has changed. Without its device number, which is another one
/// on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Time of the last change of the inode, nanoseconds since the epoch.
    pub ctime_ns: i64,
}

impl SourceState {
    /// Returns the state of a file outside.
    pub fn of(found: &Metadata) -> SourceState {
        SourceState {
            inode: found.ino(),
            bytes: found.len(),
            mtime_ns: nanoseconds(found.mtime(), found.mtime_nsec()),
            ctime_ns: nanoseconds(found.ctime(), found.ctime_nsec()),
        }
    }
}

/// Returns a time in nanoseconds since the epoch; the nearest one that can be said.
fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Opens a source for reading, without waiting for anything that took its name.
pub fn open_source(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

impl Content {
    /// Kind of the source.
    pub fn kind(&self) -> Kind {
        match self {
            Content::File(_) => Kind::File,
            Content::Directory(_) => Kind::Directory,
            Content::Symlink(_) => Kind::Symlink,
        }
    }

    /// Whether a name in the store looks as if it had been made of this content.
    pub fn looks_like(&self, node: &Node) -> bool {
        match self {
            Content::File(state) => {
                let there = (node.kind, node.bytes, node.mtime_ns);
                there == (Kind::File, state.bytes, state.mtime_ns)
            }
            Content::Directory(_) => node.kind == Kind::Directory,
            Content::Symlink(target) => node.kind == Kind::Symlink && node.target == *target,
        }
    }
}

impl Staged {
    /// Whether a name in the store is as it was made. If it is still to come: whether it leads to
    /// what was there before, or to what a command that was cut off made.
    pub fn is_unchanged(&self, node: &Node) -> bool {
        let Some(made) = self.made else {
            return self.before == Some((node.inode, node.version))
                || self.content.looks_like(node);
        };
        if (made.inode, self.content.kind()) != (node.inode, node.kind) {
            return false;
        }
        let has_mode = made.mode == node.mode & MODE;
        match &self.content {
            Content::File(_) => {
                has_mode && (made.version, made.mtime_ns) == (node.version, node.mtime_ns)
            }
            Content::Directory(_) => has_mode,
            Content::Symlink(target) => node.target == *target,
        }
    }
}

impl Inputs {
    /// Loads the record of the store in `directory`; empty if there is none. Errors: `File`,
    /// `Json`, or one of a newer version of Cairn.
    pub fn load(directory: &Path) -> Result<Inputs> {
        let path = directory.join(INPUTS_FILE);
        let bytes = match store_file::read(&path, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Inputs::default()),
            read => read.map_err(Error::file("read", &path))?,
        };
        let json = |source| Error::Json { path: path.clone(), source };
        let inputs: Inputs = serde_json::from_slice(&bytes).map_err(json)?;
        match inputs.format {
            FORMAT => Ok(inputs),
            _ => {
                let newer = io::Error::other("a newer version of Cairn has written it");
                Err(Error::file("read", &path)(newer))
            }
        }
    }

    /// The same for those who only ask what is an input: if the record cannot be read, nothing is,
    /// and everything counts as the job's own.
    pub fn known(directory: &Path) -> Inputs {
        Inputs::load(directory).unwrap_or_default()
    }

    /// Returns the version of the record in `directory`, which changes with each `save`.
    pub fn version(directory: &Path) -> Option<Version> {
        store_file::version(&directory.join(INPUTS_FILE))
    }

    /// Replaces the record of the store in `directory`.
    pub fn save(&mut self, directory: &Path) -> Result<()> {
        self.format = FORMAT;
        store_file::replace_json(&directory.join(INPUTS_FILE), self, MustSurvive::Process)
    }

    /// Adds what the user names for a run. What was named for the same paths before does not count
    /// any more.
    pub fn name(&mut self, inputs: &[Input]) {
        self.named.retain(|known| !inputs.iter().any(|input| input.path == known.path));
        self.named.extend_from_slice(inputs);
    }

    /// Whether nothing was staged.
    pub fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// Whether `path` in the store is an input that nobody has changed.
    pub fn is_unchanged(&self, path: &FilePath, node: &Node) -> bool {
        self.staged.get(path).is_some_and(|staged| staged.is_unchanged(node))
    }
}

/// Writes a path as text, or as digits if it is none.
pub fn write_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_bytes(path.as_os_str().as_bytes(), serializer)
}

/// Reads what [`write_path`] wrote.
pub fn read_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(OsString::from_vec(deserialize_bytes(deserializer)?).into())
}

fn write_list<S: Serializer>(
    staged: &BTreeMap<FilePath, Staged>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(staged)
}

fn read_list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<FilePath, Staged>, D::Error> {
    Ok(Vec::<(FilePath, Staged)>::deserialize(deserializer)?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    fn node(inode: u32, version: u64) -> Node {
        Node { bytes: 1, version, ..Node::new(inode, Kind::File) }
    }

    fn staged(content: Content, made: Option<Made>) -> Staged {
        Staged { source: "/pfs/a".into(), content, made, before: None }
    }

    const STATE: SourceState = SourceState { inode: 9, bytes: 1, mtime_ns: 0, ctime_ns: 3 };
    const MADE: Made = Made { inode: 5, version: 6, mode: 0o644, mtime_ns: 0, crc32c: Some(4) };

    #[test]
    fn only_what_is_as_it_was_staged_counts_as_an_input() {
        let mut inputs = Inputs::default();
        inputs.staged.insert(path("in/a"), staged(Content::File(STATE), Some(MADE)));
        let in_place = path("in/a");
        assert!(inputs.is_unchanged(&in_place, &node(5, 6)));
        assert!(!inputs.is_unchanged(&in_place, &node(5, 7)), "was written to");
        assert!(!inputs.is_unchanged(&in_place, &node(8, 6)), "was replaced");
        assert!(!inputs.is_unchanged(&path("out/a"), &node(5, 6)), "was renamed or linked");
        assert!(!inputs.is_unchanged(&in_place, &Node { mode: 0o600, ..node(5, 6) }), "chmod");
        assert!(!inputs.is_unchanged(&in_place, &Node { mtime_ns: 1, ..node(5, 6) }), "touch");
        let link = |target: &str| Node {
            kind: Kind::Symlink,
            target: target.as_bytes().to_vec(),
            ..node(5, 6)
        };
        inputs.staged.insert(path("l"), staged(Content::Symlink(b"a".to_vec()), Some(MADE)));
        assert!(inputs.is_unchanged(&path("l"), &link("a")));
        assert!(!inputs.is_unchanged(&path("l"), &link("b")), "another link with that inode");
        assert!(!inputs.is_unchanged(&path("l"), &node(5, 6)), "a file with that inode");
        let directory = |mode| Node { kind: Kind::Directory, mode, ..node(5, 0) };
        inputs.staged.insert(path("in"), staged(Content::Directory(0o644), Some(MADE)));
        assert!(inputs.is_unchanged(&path("in"), &directory(0o644)));
        assert!(!inputs.is_unchanged(&path("in"), &directory(0o755)), "chmod");
    }

    #[test]
    fn what_is_still_to_come_counts_as_an_input_and_is_told_from_what_a_user_put_there() {
        let mut inputs = Inputs::default();
        let to_come = Staged { before: Some((7, 1)), ..staged(Content::File(STATE), None) };
        inputs.staged.insert(path("a"), to_come.clone());
        assert!(inputs.is_unchanged(&path("a"), &node(3, 3)), "was just made");
        let own = Node { bytes: 2, ..node(3, 3) };
        assert!(!inputs.is_unchanged(&path("a"), &own), "is drained, and never lost");
        assert!(to_come.is_unchanged(&node(7, 1)), "was there before");
        assert!(to_come.is_unchanged(&node(3, 3)), "has the length and time of the source");
        assert!(!to_come.is_unchanged(&Node { bytes: 2, ..node(3, 3) }));
    }

    #[test]
    fn record_is_read_as_it_was_written_and_one_of_a_newer_version_is_refused() {
        let directory = std::env::temp_dir().join(format!("cairn-inputs-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a scratch directory");
        assert_eq!(Inputs::load(&directory).expect("loads"), Inputs::default());
        let mut inputs = Inputs::default();
        let input = |source: &str| Input { source: source.into(), path: path("mesh") };
        inputs.name(&[input("/pfs/old"), input("/pfs/other")]);
        assert_eq!(inputs.named.len(), 2);
        inputs.name(&[input("/pfs/new")]);
        assert_eq!(inputs.named, [input("/pfs/new")]);
        let odd = FilePath::parse(b"in/\xff").expect("a valid path");
        let source = PathBuf::from(OsString::from_vec(b"/pfs/\xff".to_vec()));
        let file = Staged { source, ..staged(Content::File(STATE), Some(MADE)) };
        inputs.staged.insert(odd, file);
        inputs.save(&directory).expect("saves");
        assert_eq!(Inputs::load(&directory).expect("loads"), inputs);
        let text = r#"{"format":2}"#;
        std::fs::write(directory.join(INPUTS_FILE), text).expect("writes");
        let error = Inputs::load(&directory).expect_err("is newer").to_string();
        assert!(error.contains("newer version"), "{error}");
        std::fs::remove_dir_all(directory).expect("removes");
    }
}
