//! Inputs of a job: files and directories outside that are staged into its store before programs
//! run, and what each staged file is a copy of (`inputs.json` in the store's directory).
//!
//! Must stay true: a file counts as an unchanged input only while it has the path, inode and
//! version that it was staged with. Whatever a program changed, renamed or linked is the program's
//! own file, and is drained like any other. If the record is lost, nothing counts as an input.
//!
//! Does not copy anything: the command stages files whole, and the agent on demand.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::model::error::{Error, Result};
use crate::model::path::FilePath;
use crate::model::store_file::{self, MustSurvive, Version};
use crate::store::node::{Kind, Node};

/// Name of the record in a store's directory.
pub const INPUTS_FILE: &str = "inputs.json";
/// Version of the record's format.
const FORMAT: u32 = 1;
/// Largest record that is read, in bytes: some millions of files.
const BYTES_MAX: usize = 1 << 30;

/// Inputs of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inputs {
    format: u32,
    /// What the user named, in order.
    pub named: Vec<Input>,
    /// Staged files, by path in the store.
    pub files: BTreeMap<FilePath, StagedFile>,
    /// Inode numbers of directories and symbolic links that were made for them, by path.
    pub others: BTreeMap<FilePath, u32>,
}

/// A file or directory to stage in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Where it is, absolute.
    pub source: PathBuf,
    /// Path that it gets in the store.
    pub path: FilePath,
}

/// A staged file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedFile {
    /// The file that it is a copy of, absolute.
    pub source: PathBuf,
    /// State of that file when it was read, or is to be read.
    pub state: SourceState,
    /// CRC32C of its data; None while they are absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<u32>,
    /// Inode number in the store.
    pub inode: u32,
    /// Version of the data in the store.
    pub version: u64,
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

impl StagedFile {
    /// Opens the file that it is a copy of, without waiting for anything that took its name.
    pub fn open(&self) -> io::Result<File> {
        open_source(&self.source)
    }
}

/// Opens a source for reading, without waiting for anything that took its name.
pub fn open_source(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

impl SourceState {
    /// Returns the state of a file outside.
    pub fn of(found: &Metadata) -> SourceState {
        let ns = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000) + rest;
        SourceState {
            inode: found.ino(),
            bytes: found.len(),
            mtime_ns: ns(found.mtime(), found.mtime_nsec()),
            ctime_ns: ns(found.ctime(), found.ctime_nsec()),
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
        self.files.is_empty() && self.others.is_empty()
    }

    /// Whether the file at `path` in the store is as it was staged. A directory is, whatever was
    /// put into it.
    pub fn is_unchanged(&self, path: &FilePath, node: &Node) -> bool {
        match node.kind {
            Kind::File => self
                .files
                .get(path)
                .is_some_and(|staged| (staged.inode, staged.version) == (node.inode, node.version)),
            Kind::Directory | Kind::Symlink => self.others.get(path) == Some(&node.inode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::extended::Extended;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    fn node(inode: u32, version: u64) -> Node {
        Node {
            inode,
            kind: Kind::File,
            bytes: 1,
            mode: 0o644,
            mtime_ns: 0,
            links: 1,
            renamed: false,
            version,
            unclean: false,
            torn: false,
            open: false,
            drained: false,
            absence: None,
            target: Vec::new(),
            extended: Extended::default(),
        }
    }

    #[test]
    fn only_what_is_as_it_was_staged_counts_as_an_input() {
        let state = SourceState { inode: 9, bytes: 1, mtime_ns: 2, ctime_ns: 3 };
        let staged =
            StagedFile { source: "/pfs/a".into(), state, crc32c: Some(4), inode: 5, version: 6 };
        let mut inputs = Inputs::default();
        inputs.files.insert(path("in/a"), staged);
        assert!(inputs.is_unchanged(&path("in/a"), &node(5, 6)));
        assert!(!inputs.is_unchanged(&path("in/a"), &node(5, 7)), "was written to");
        assert!(!inputs.is_unchanged(&path("in/a"), &node(8, 6)), "was replaced");
        assert!(!inputs.is_unchanged(&path("out/a"), &node(5, 6)), "was renamed or linked");
        let directory = |inode| Node { kind: Kind::Directory, ..node(inode, 0) };
        inputs.others.insert(path("in"), 7);
        assert!(inputs.is_unchanged(&path("in"), &directory(7)));
        assert!(!inputs.is_unchanged(&path("in"), &directory(8)), "was made again");
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
        inputs.save(&directory).expect("saves");
        assert_eq!(Inputs::load(&directory).expect("loads"), inputs);
        let text = r#"{"format":2}"#;
        std::fs::write(directory.join(INPUTS_FILE), text).expect("writes");
        let error = Inputs::load(&directory).expect_err("is newer").to_string();
        assert!(error.contains("newer version"), "{error}");
        std::fs::remove_dir_all(directory).expect("removes");
    }
}
