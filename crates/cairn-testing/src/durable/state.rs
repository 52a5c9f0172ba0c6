//! State of a namespace as programs see it, and which of these states a crash may leave.
//!
//! After a crash the namespace is in one of the states since the last sync:
//! - Names are as of one moment.
//! - Every file has a size and content that it had at some moment since then.
//! - Each byte that was overwritten in place and not synced may be old or new.
//! - Of a write in progress, the first part may be there.
//! - If several descriptions wrote pieces to one file, each description's pieces are there up to a
//!   moment of its own.
//! - An absent file is never there in part: it is absent, or complete, or what was made of it since
//!   it was emptied.

use cairn_core::{
    Attributes, Error, InodeId, MODE_DIRECTORY, MODE_SYMLINK, MODE_TYPE, OpenOptions, Position,
    ROOT, Result,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::OPEN;
use crate::driver::Process;
use crate::tier::CHECKSUM;

/// Bytes that are compared at once.
const PART_BYTES: usize = 512;

/// Content of a file, and whether a crash may lose bytes of it because they were overwritten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileState {
    pub content: Arc<Vec<u8>>,
    /// Number of overwrites. Between two states with the same number, bytes were only added or cut
    /// off.
    pub overwrites: u64,
    pub extended: Extended,
    /// Whether the file is absent; `elsewhere` returns the content that it has then.
    pub absent: bool,
}

/// Returns the content that an absent file of `bytes` bytes should have.
pub(super) fn elsewhere(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 + at * at / 5 + bytes) as u8 | 1).collect()
}

/// Extended attributes, which are as of the same moment as names.
pub(super) type Extended = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory(Extended),
    Symlink(Vec<u8>),
    /// Number that identifies the file, whatever its names.
    File(u64),
}

/// State that a program sees at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(super) names: BTreeMap<Vec<u8>, Node>,
    pub(super) files: BTreeMap<u64, FileState>,
}

impl State {
    /// Returns the content of the regular file with this name.
    pub fn content(&self, name: &[u8]) -> Option<&[u8]> {
        match self.names.get(name)? {
            Node::File(file) => self.files.get(file).map(|file| &file.content[..]),
            _ => None,
        }
    }

    fn sizes(&self) -> BTreeMap<u64, usize> {
        self.files.iter().map(|(&file, state)| (file, state.content.len())).collect()
    }
}

/// Prints names, with the sizes of files.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, node) in &self.names {
            let shown = String::from_utf8_lossy(&name[..name.len().min(8)]);
            match node {
                Node::Directory(_) => write!(f, " {shown}/")?,
                Node::Symlink(target) => write!(f, " {shown}@{}", target.len())?,
                Node::File(file) => {
                    let FileState { content, absent, .. } = &self.files[file];
                    let absent = if *absent { "?" } else { "" };
                    write!(f, " {shown}={file}:{}{absent}", content.len())?;
                }
            }
        }
        Ok(())
    }
}

/// The states since the last sync, oldest first.
pub type Window = Vec<Arc<State>>;

/// Content found in a namespace.
pub struct Seen {
    names: BTreeMap<Vec<u8>, Node>,
    files: BTreeMap<u64, Content>,
}

struct Content {
    bytes: Vec<u8>,
    /// Whether every block has a valid checksum.
    verified: bool,
    /// Whether blocks of it were in memory; then nothing of it was read.
    lost: bool,
    absent: bool,
    extended: Extended,
}

impl Seen {
    /// Converts the content found to a state.
    pub fn state(self) -> State {
        let whole = |Content { bytes, extended, absent, .. }: Content| FileState {
            content: bytes.into(),
            overwrites: 0,
            extended,
            absent,
        };
        let files = self.files.into_iter().map(|(file, content)| (file, whole(content)));
        State { names: self.names, files: files.collect() }
    }

    /// Returns the content found for each file of `state`, if names, kinds, links and extended
    /// attributes are those of `state`.
    fn matched<'s>(&'s self, state: &State) -> Option<BTreeMap<u64, &'s Content>> {
        let mut files = BTreeMap::new();
        let mut inodes = BTreeSet::new();
        if state.names.len() != self.names.len() {
            return None;
        }
        for ((name, node), (other, found)) in state.names.iter().zip(&self.names) {
            match (node, found) {
                _ if name != other => return None,
                (Node::File(file), Node::File(inode)) => {
                    let known = files.insert(*file, *inode);
                    let is_new = inodes.insert(*inode);
                    if known.map_or(!is_new, |known| known != *inode) {
                        return None;
                    }
                    if state.files[file].extended != self.files[inode].extended {
                        return None;
                    }
                }
                _ if node == found => {}
                _ => return None,
            }
        }
        Some(files.into_iter().map(|(file, inode)| (file, &self.files[&inode])).collect())
    }

    /// Returns the last state of `window` that fits the content found, with that content. `None` if
    /// none fits.
    pub fn latest_in(&self, window: &[Arc<State>]) -> Option<State> {
        // After an exchange of two files the names are the same; only the content differs.
        let fitting = window.iter().rev().find_map(|state| {
            let files = self.matched(state)?;
            let fits = files.iter().all(|(&file, found)| file_fits(window, file, found));
            fits.then_some((state, files))
        });
        let (state, files) = fitting?;
        let mut state = state.as_ref().clone();
        for (file, found) in files {
            let file = state.files.get_mut(&file).expect("it has a name");
            if *file.content != found.bytes {
                file.content = Arc::new(found.bytes.clone());
                file.overwrites += 1;
            }
            file.absent = found.absent;
        }
        Some(state)
    }
}

/// Checks that `process` sees a state that a crash may have left. Errors: a description of the
/// difference.
pub fn check(process: &Process, window: &[Arc<State>]) -> std::result::Result<(), String> {
    let said = |error: Error| format!("{error:?}");
    check_accounts(process)?;
    let seen = look(process).map_err(said)?;
    seen.check_all(window)
}

impl Seen {
    /// Checks that this is a state that a crash may have left. Errors: a description of the
    /// difference.
    pub fn check_all(&self, window: &[Arc<State>]) -> std::result::Result<(), String> {
        self.check(window, &|_, content| !content.lost)
    }

    /// As `check_all`, but only for files that checksums prove: each block has a checksum, and none
    /// was overwritten in part. After such an overwrite the checksum is computed again from what
    /// the media return.
    pub fn check_proven(&self, window: &[Arc<State>]) -> std::result::Result<(), String> {
        let overwritten = |file| {
            let mut states = window.iter().filter_map(|state| state.files.get(&file));
            states.any(|state| state.overwrites > 0)
        };
        self.check(window, &|file, content| content.verified && !overwritten(file))
    }

    fn check(
        &self,
        window: &[Arc<State>],
        counts: &dyn Fn(u64, &Content) -> bool,
    ) -> std::result::Result<(), String> {
        let candidates: Vec<_> = window.iter().filter_map(|state| self.matched(state)).collect();
        if candidates.is_empty() {
            let allowed: Vec<_> = window.iter().map(|state| &state.names).collect();
            return Err(format!("names {:?}, allowed {allowed:?}", self.names));
        }
        let misfits = |files: &BTreeMap<u64, &Content>| {
            let misfit = |(file, content): (&u64, &&Content)| {
                let fits = !counts(*file, content) || file_fits(window, *file, content);
                (!fits).then_some((*file, content.bytes.len()))
            };
            files.iter().filter_map(misfit).collect::<Vec<_>>()
        };
        let misfits: Vec<_> = candidates.iter().map(misfits).collect();
        match misfits.iter().any(Vec::is_empty) {
            true => Ok(()),
            false => {
                let sizes: Vec<_> = window.iter().map(|state| state.sizes()).collect();
                Err(format!("content of (file, size) {misfits:?}, allowed sizes {sizes:?}"))
            }
        }
    }
}

/// Checks that no block is lost and that no handle or orphan is left.
pub fn check_accounts(process: &Process) -> std::result::Result<(), String> {
    let report = process.fs.check().map_err(|error| format!("{error:?}"))?;
    let whole = report.free_blocks + report.file_blocks == report.capacity_blocks
        && (report.orphaned_blocks, report.reserved_blocks, report.handles) == (0, 0, 0);
    if whole { Ok(()) } else { Err(format!("not everything is accounted for: {report:?}")) }
}

/// Whether `found` is the content of the file at some moment.
fn file_fits(window: &[Arc<State>], file: u64, found: &Content) -> bool {
    let mut states: Vec<_> = window.iter().filter_map(|state| state.files.get(&file)).collect();
    states.dedup_by_key(|state| (Arc::as_ptr(&state.content), state.overwrites, state.absent));
    let is_found =
        |state: &&FileState| state.absent == found.absent && *state.content == found.bytes;
    states.iter().any(is_found)
        || !found.absent
            && states.split(|state| state.absent).any(|part| fits_between(part, &found.bytes))
}

/// Whether `content` is between those of these states; byte by byte if it was overwritten
/// meanwhile.
fn fits_between(states: &[&FileState], content: &[u8]) -> bool {
    let sized = |one: &FileState, next: &FileState| {
        let (one, next, found) = (one.content.len(), next.content.len(), content.len());
        (one..=next).contains(&found) || found == one || found == next
    };
    let mut steps = states.windows(2).filter(|pair| sized(pair[0], pair[1]));
    let overwritten = states.first().map(|s| s.overwrites) != states.last().map(|s| s.overwrites);
    if !overwritten {
        return steps.any(|pair| pair[1].content.starts_with(content));
    }
    let is_of_one = |at: usize, bytes: &[u8]| {
        states.iter().any(|state| state.content.get(at..at + bytes.len()) == Some(bytes))
    };
    let fits = |(at, part): (usize, &[u8])| {
        is_of_one(at, part)
            || part.iter().enumerate().all(|(byte, value)| is_of_one(at + byte, &[*value]))
    };
    // Compare whole parts first: that is fast, and nearly always enough.
    let parts = (0..).step_by(PART_BYTES).zip(content.chunks(PART_BYTES));
    steps.next().is_some() && parts.into_iter().all(fits)
}

/// Reads the whole namespace and verifies every checksum.
pub fn look(process: &Process) -> Result<Seen> {
    look_in(process, ROOT)
}

/// Reads everything in a directory. Paths are relative to it.
pub fn look_in(process: &Process, home: InodeId) -> Result<Seen> {
    let mut seen = Seen { names: BTreeMap::new(), files: BTreeMap::new() };
    let mut left = vec![(home, Vec::new())];
    while let Some((directory, prefix)) = left.pop() {
        let mut entries: Vec<(Vec<u8>, InodeId)> = Vec::new();
        process.fs.list(&process.caller(), directory, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.inode));
            true
        })?;
        for (name, inode) in entries {
            let path = [&prefix[..], &name].concat();
            let node = match process.fs.attributes(inode)?.mode & MODE_TYPE {
                MODE_DIRECTORY => {
                    left.push((inode, [&path[..], b"/"].concat()));
                    Node::Directory(extended(process, inode)?)
                }
                MODE_SYMLINK => {
                    let mut target = Vec::new();
                    process.fs.read_link(&process.caller(), home, &path, &mut target)?;
                    Node::Symlink(target)
                }
                _ => {
                    let file = u64::from(inode.0);
                    if let Entry::Vacant(place) = seen.files.entry(file) {
                        place.insert(read(process, home, &path)?);
                    }
                    Node::File(file)
                }
            };
            seen.names.insert(path, node);
        }
    }
    Ok(seen)
}

fn read(process: &Process, home: InodeId, path: &[u8]) -> Result<Content> {
    let attributes = process.fs.stat(&process.caller(), home, path, false)?;
    let extended = extended(process, attributes.inode)?;
    if let Some(absence) = attributes.absence {
        return absent(&attributes, absence.crc32c, extended);
    }
    let options = OpenOptions { write: false, create: false, ..OPEN };
    let opened = process.fs.open_file(&process.caller(), home, path, options, 0)?;
    if attributes.lost {
        process.close(opened.handle)?;
        let nothing =
            Content { bytes: Vec::new(), verified: false, absent: false, lost: true, extended };
        return Ok(nothing);
    }
    process.verify_blocks(opened.inode, opened.handle)?;
    let size = attributes.size;
    let block_bytes = u64::from(process.fs.geometry().hugeblock_bytes);
    let mut checksums = vec![None; size.div_ceil(block_bytes) as usize];
    process.fs.checksums(opened.inode, 0, &mut checksums)?;
    let (_, bytes) = process.read(&process.caller(), opened.handle, Position::At(0), size)?;
    process.close(opened.handle)?;
    let mut blocks = bytes.chunks(block_bytes as usize).zip(&checksums);
    let verified = blocks.all(|(block, sum)| sum.is_some() || block.iter().all(|&byte| byte == 0));
    Ok(Content { bytes, verified, lost: false, absent: false, extended })
}

fn absent(attributes: &Attributes, crc32c: u32, extended: Extended) -> Result<Content> {
    let bytes = elsewhere(attributes.size as usize);
    let is_sound = !attributes.lost && !attributes.unclean && crc32c == CHECKSUM(0, &bytes);
    match is_sound {
        true => Ok(Content { bytes, verified: true, lost: false, absent: true, extended }),
        false => Err(Error::Corrupt { what: "absent file" }),
    }
}

fn extended(process: &Process, inode: InodeId) -> Result<Extended> {
    let attributes = process.fs.all_extended(inode)?;
    Ok(attributes.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
}
