//! A workload on a durable namespace, and what may be left of it after a crash.
//!
//! `Workload` carries out random operations and keeps, for each, the state a program would see. After a crash the
//! namespace must be one of the states since the last `sync`: names as of one moment; every file with a size and content it
//! had at some moment since then. Bytes overwritten in place and not synced may be old or new, one by one.
//! Does not know about media; `crash.rs` makes the crashes.

use crate::driver::{Clock, Process};
use crate::random::Random;
use crate::tier::{CHECKSUM, Tier};
use crate::world::SUPERUSER;
use cairn_core::{
    Durability, Error, HandleId, InodeId, MODE_DIRECTORY, MODE_SYMLINK, MODE_TYPE, Media,
    MediaOptions, Microfs, OpenOptions, Position, ProcessIdentity, ROOT, RenameMode, Result,
    Superblock, Timestamp, format_media,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Hugeblock of the namespaces made here.
pub const BLOCK_BYTES: u32 = 4096;
const NAMES: [&[u8]; 6] = [b"a", b"b", b"dir", b"dir/a", b"dir/b", b"link"];
const OPEN: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    create: true,
    exclusive: false,
    truncate: false,
    directory: false,
    no_follow: true,
    path_only: false,
};

/// Options of a small durable namespace.
pub fn options() -> MediaOptions {
    MediaOptions {
        hugeblock_bytes: BLOCK_BYTES,
        durability: Durability::Sync,
        mount: crate::path::MOUNT.to_vec(),
        zero_block_checksum: CHECKSUM(0, &[0; BLOCK_BYTES as usize]),
        identity: [0x1234_5678, 0x9abc_def0],
        now: Timestamp(1),
    }
}

/// Makes an empty durable namespace.
pub fn format(media: &dyn Media) -> Superblock {
    format_media(media, &options(), CHECKSUM, SUPERUSER).expect("the media is large enough")
}

/// A process of a durable namespace.
pub fn attach(fs: Microfs, pid: u32, tier: Arc<dyn Tier>) -> Result<Process> {
    let identity = ProcessIdentity { pid, pid_namespace: 1, start_time: 7 };
    Process::attach(fs, identity, SUPERUSER, tier, Clock::default())
}

/// Content of a file, and which of its bytes may be lost by a crash because they were overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    content: Arc<Vec<u8>>,
    /// Counts overwrites: between two states with the same number bytes were only added or cut.
    overwrites: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory,
    Symlink(Vec<u8>),
    /// The number stands for the file, whatever its names.
    File(u64),
}

/// What a program sees at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    names: BTreeMap<Vec<u8>, Node>,
    files: BTreeMap<u64, FileState>,
}

/// The states since the last sync, oldest first.
pub type Window = Vec<Arc<State>>;

/// An operation that was prepared; true if it made everything before it durable.
type Act<'p> = Box<dyn FnOnce(&mut Workload<'p>) -> Result<bool>>;

/// Random operations of one process and what they should lead to.
pub struct Workload<'p> {
    process: &'p Process,
    random: Random,
    state: State,
    window: Window,
    open: Vec<(HandleId, u64)>,
    next_file: u64,
}

impl<'p> Workload<'p> {
    /// A workload on an empty namespace.
    pub fn new(process: &'p Process, seed: u64) -> Workload<'p> {
        let state = State::default();
        Workload {
            process,
            random: Random::new(seed),
            window: vec![Arc::new(state.clone())],
            state,
            open: Vec::new(),
            next_file: 1,
        }
    }

    /// The states that a crash may leave.
    pub fn window(&self) -> Window {
        self.window.clone()
    }

    /// Prepares an operation; `note` is told what may be left from its beginning on; then it is carried out. False:
    /// the media failed.
    pub fn step(&mut self, note: &mut dyn FnMut(Window)) -> bool {
        let before = self.state.clone();
        let act = self.draw();
        if self.state != before {
            self.window.push(Arc::new(self.state.clone()));
        }
        note(self.window.clone());
        match act(self) {
            Ok(synced) => {
                if synced {
                    self.window.drain(..self.window.len() - 1);
                    note(self.window.clone());
                }
                true
            }
            Err(Error::Io) => false,
            Err(error) => panic!("an operation that should work: {error:?}"),
        }
    }

    fn draw(&mut self) -> Act<'p> {
        match self.random.below(16) {
            0..4 => self.append(),
            4..6 => self.overwrite(),
            6 => self.truncate(),
            7 => self.unlink(),
            8..10 => self.rename(),
            10 => self.link(),
            11 => self.directory(),
            12 => self.symlink(),
            13 => self.close(),
            14 => Box::new(|this| this.process.fs.sync().map(|()| true)),
            _ if self.random.one_in(4) => {
                Box::new(|this| this.process.fs.write_snapshot().map(|()| false))
            }
            _ => Box::new(|this| this.process.reclaim().map(|()| false)),
        }
    }

    fn parent_exists(&self, name: &[u8]) -> bool {
        !name.starts_with(b"dir/") || self.state.names.get(&b"dir"[..]) == Some(&Node::Directory)
    }

    fn nothing() -> Act<'p> {
        Box::new(|_| Ok(false))
    }

    /// A name that is or could be a file's.
    fn file_name(&mut self) -> Option<&'static [u8]> {
        let name = *self.random.pick(&NAMES);
        let usable = match self.state.names.get(name) {
            None => self.parent_exists(name) && name != b"dir" && name != b"link",
            Some(node) => matches!(node, Node::File(_)),
        };
        usable.then_some(name)
    }

    fn file_at(&mut self, name: &[u8]) -> u64 {
        if let Some(Node::File(file)) = self.state.names.get(name) {
            return *file;
        }
        let file = self.next_file;
        self.next_file += 1;
        self.state.names.insert(name.to_vec(), Node::File(file));
        let content = Arc::default();
        self.state.files.insert(file, FileState { content, overwrites: 0 });
        file
    }

    fn open(&mut self, name: &[u8], file: u64) -> Result<HandleId> {
        if let Some((handle, _)) = self.open.iter().find(|(_, open)| *open == file) {
            return Ok(*handle);
        }
        let caller = self.process.caller();
        let opened = self.process.fs.open_file(&caller, ROOT, name, OPEN, 0o644)?;
        self.open.push((opened.handle, file));
        Ok(opened.handle)
    }

    fn change(&mut self, file: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let state = self.state.files.get_mut(&file).expect("the file has a name");
        let mut content = state.content.as_ref().clone();
        change(&mut content);
        state.content = Arc::new(content);
    }

    fn append(&mut self) -> Act<'p> {
        let Some(name) = self.file_name() else { return Self::nothing() };
        let file = self.file_at(name);
        let length = match self.random.below(3) {
            0 => self.random.below(200) + 1,
            1 => self.random.below(3000) + 1,
            _ => self.random.below(4 * u64::from(BLOCK_BYTES)) + 1,
        };
        let bytes = self.random.bytes(length as usize);
        let at = self.state.files[&file].content.len() as u64;
        self.change(file, |content| content.extend(&bytes));
        Box::new(move |this| {
            let handle = this.open(name, file)?;
            this.write(handle, at, &bytes)
        })
    }

    fn overwrite(&mut self) -> Act<'p> {
        let Some(name) = self.file_name() else { return Self::nothing() };
        let file = self.file_at(name);
        let size = self.state.files[&file].content.len() as u64;
        // Sometimes past the end: a hole.
        let at = self.random.below(size + 3 * u64::from(BLOCK_BYTES));
        let length = self.random.below(2 * u64::from(BLOCK_BYTES)) + 1;
        let bytes = self.random.bytes(length as usize);
        self.change(file, |content| {
            let end = at as usize + bytes.len();
            if content.len() < end {
                content.resize(end, 0);
            }
            content[at as usize..end].copy_from_slice(&bytes);
        });
        if at < size {
            let state = self.state.files.get_mut(&file).expect("it was just changed");
            state.overwrites += 1;
        }
        Box::new(move |this| {
            let handle = this.open(name, file)?;
            this.write(handle, at, &bytes)
        })
    }

    fn write(&mut self, handle: HandleId, at: u64, bytes: &[u8]) -> Result<bool> {
        let written = self.process.write(&self.process.caller(), handle, Position::At(at), bytes);
        let (_, count) = written?;
        assert_eq!(count, bytes.len() as u64, "there is space");
        Ok(false)
    }

    fn truncate(&mut self) -> Act<'p> {
        let Some(name) = self.file_name() else { return Self::nothing() };
        let file = self.file_at(name);
        let size = self.state.files[&file].content.len() as u64;
        let to = self.random.below(size + size / 4 + 2);
        self.change(file, |content| content.resize(to as usize, 0));
        // What is written behind a cut goes where bytes stood before it.
        self.state.files.get_mut(&file).expect("it has a name").overwrites += 1;
        Box::new(move |this| {
            let handle = this.open(name, file)?;
            let inode = this.process.fs.handle(handle)?.inode;
            this.process.truncate(&this.process.caller(), inode, to).map(|()| false)
        })
    }

    fn unlink(&mut self) -> Act<'p> {
        let name = *self.random.pick(&NAMES);
        match self.state.names.get(name) {
            None => Self::nothing(),
            Some(Node::Directory) => {
                if self.state.names.keys().any(|other| other.starts_with(b"dir/")) {
                    return Self::nothing();
                }
                self.state.names.remove(name);
                Box::new(move |this| {
                    let caller = this.process.caller();
                    this.process.fs.remove_directory(&caller, ROOT, name).map(|()| false)
                })
            }
            Some(_) => {
                self.state.names.remove(name);
                self.forget_nameless();
                Box::new(move |this| {
                    let caller = this.process.caller();
                    this.process.fs.unlink(&caller, ROOT, name).map(|()| false)
                })
            }
        }
    }

    /// Drops files without a name from the state; their descriptions stay open.
    fn forget_nameless(&mut self) {
        let State { names, files } = &mut self.state;
        files.retain(|file, _| names.values().any(|node| *node == Node::File(*file)));
        let files = &self.state.files;
        self.open.retain(|(_, file)| files.contains_key(file));
    }

    fn rename(&mut self) -> Act<'p> {
        let (from, to) = (*self.random.pick(&NAMES), *self.random.pick(&NAMES));
        let movable = |node: Option<&Node>| !matches!(node, Some(Node::Directory));
        let (old, new) = (self.state.names.get(from).cloned(), self.state.names.get(to).cloned());
        let Some(moved) = old.clone() else { return Self::nothing() };
        if from == to || to == b"dir" || !self.parent_exists(to) || old == new {
            return Self::nothing();
        }
        if !movable(old.as_ref()) || !movable(new.as_ref()) {
            return Self::nothing();
        }
        let exchange = new.is_some() && self.random.one_in(3);
        self.state.names.insert(to.to_vec(), moved);
        match new.filter(|_| exchange) {
            Some(other) => self.state.names.insert(from.to_vec(), other),
            None => self.state.names.remove(from),
        };
        self.forget_nameless();
        let mode = if exchange { RenameMode::Exchange } else { RenameMode::Replace };
        Box::new(move |this| {
            let caller = this.process.caller();
            this.process.fs.rename(&caller, (ROOT, from), (ROOT, to), mode).map(|()| false)
        })
    }

    fn link(&mut self) -> Act<'p> {
        let (from, to) = (*self.random.pick(&NAMES), *self.random.pick(&NAMES));
        let Some(node @ Node::File(_)) = self.state.names.get(from).cloned() else {
            return Self::nothing();
        };
        if self.state.names.contains_key(to) || to == b"dir" || !self.parent_exists(to) {
            return Self::nothing();
        }
        self.state.names.insert(to.to_vec(), node);
        Box::new(move |this| {
            let caller = this.process.caller();
            this.process.fs.link(&caller, (ROOT, from), (ROOT, to), false).map(|()| false)
        })
    }

    fn directory(&mut self) -> Act<'p> {
        if self.state.names.contains_key(&b"dir"[..]) {
            return Self::nothing();
        }
        self.state.names.insert(b"dir".to_vec(), Node::Directory);
        Box::new(|this| {
            let caller = this.process.caller();
            this.process.fs.make_directory(&caller, ROOT, b"dir", 0o755).map(|_| false)
        })
    }

    fn symlink(&mut self) -> Act<'p> {
        if self.state.names.contains_key(&b"link"[..]) {
            return Self::nothing();
        }
        let length = self.random.below(300) as usize + 1;
        let target: Vec<u8> = self.random.bytes(length).iter().map(|byte| byte % 26 + 97).collect();
        self.state.names.insert(b"link".to_vec(), Node::Symlink(target.clone()));
        Box::new(move |this| {
            let caller = this.process.caller();
            this.process.fs.symlink(&caller, &target, ROOT, b"link").map(|_| false)
        })
    }

    fn close(&mut self) -> Act<'p> {
        if self.open.is_empty() {
            return Self::nothing();
        }
        let index = self.random.below(self.open.len() as u64) as usize;
        let seals = self.random.one_in(2);
        Box::new(move |this| {
            let (handle, _) = this.open.remove(index);
            if seals {
                let inode = this.process.fs.handle(handle)?.inode;
                this.process.seal(inode)?;
            }
            this.process.close(handle).map(|()| false)
        })
    }
}

/// Whether what `process` sees is what a crash may have left; says what is not.
pub fn check(process: &Process, window: &[Arc<State>]) -> std::result::Result<(), String> {
    let said = |error: Error| format!("{error:?}");
    process.fs.check().map_err(said)?;
    let seen = look(process).map_err(said)?;
    let like = |state: &&Arc<State>| {
        state.names.len() == seen.len()
            && state
                .names
                .iter()
                .zip(&seen)
                .all(|((name, node), (other, found))| name == other && same_kind(node, found))
    };
    let candidates: Vec<_> = window.iter().filter(like).collect();
    if candidates.is_empty() {
        let names = |state: &State| format!("{:?}", state.names);
        let allowed: Vec<_> = window.iter().map(|state| names(state)).collect();
        return Err(format!("names {:?}, allowed {allowed:#?}", seen.keys()));
    }
    let fits = |state: &&&Arc<State>| {
        state.names.iter().all(|(name, node)| match (node, &seen[name]) {
            (Node::File(file), Found::File(content)) => file_fits(window, *file, content),
            _ => true,
        })
    };
    if !candidates.iter().any(|state| fits(&state)) {
        let lengths = seen.iter().map(|(name, found)| match found {
            Found::File(content) => (String::from_utf8_lossy(name), content.len()),
            _ => (String::from_utf8_lossy(name), 0),
        });
        let lengths = lengths.collect::<Vec<_>>();
        return Err(format!("content of a file, of {lengths:?} in {} states", window.len()));
    }
    Ok(())
}

/// Whether `content` is that of the file at some moment; byte by byte if it was overwritten meanwhile.
fn file_fits(window: &[Arc<State>], file: u64, content: &[u8]) -> bool {
    let states: Vec<_> = window.iter().filter_map(|state| state.files.get(&file)).collect();
    if states.iter().any(|state| *state.content == content) {
        return true;
    }
    let overwritten = states.first().map(|s| s.overwrites) != states.last().map(|s| s.overwrites);
    let sized = states.iter().any(|state| state.content.len() == content.len());
    overwritten
        && sized
        && content.iter().enumerate().all(|(at, byte)| {
            states.iter().any(|state| state.content.get(at).is_some_and(|one| one == byte))
        })
}

enum Found {
    Directory,
    Symlink(Vec<u8>),
    File(Vec<u8>),
}

fn same_kind(node: &Node, found: &Found) -> bool {
    match (node, found) {
        (Node::Directory, Found::Directory) | (Node::File(_), Found::File(_)) => true,
        (Node::Symlink(target), Found::Symlink(seen)) => target == seen,
        _ => false,
    }
}

/// Everything there is, with every checksum verified.
fn look(process: &Process) -> Result<BTreeMap<Vec<u8>, Found>> {
    let mut found = BTreeMap::new();
    let mut left = vec![(ROOT, Vec::new())];
    while let Some((directory, prefix)) = left.pop() {
        let mut entries: Vec<(Vec<u8>, InodeId)> = Vec::new();
        process.fs.list(&process.caller(), directory, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.inode));
            true
        })?;
        for (name, inode) in entries {
            let path = [&prefix[..], &name].concat();
            let kind = process.fs.attributes(inode)?.mode & MODE_TYPE;
            let one = match kind {
                MODE_DIRECTORY => {
                    left.push((inode, [&path[..], b"/"].concat()));
                    Found::Directory
                }
                MODE_SYMLINK => {
                    let mut target = Vec::new();
                    process.fs.read_link(&process.caller(), ROOT, &path, &mut target)?;
                    Found::Symlink(target)
                }
                _ => Found::File(read(process, &path)?),
            };
            found.insert(path, one);
        }
    }
    Ok(found)
}

fn read(process: &Process, path: &[u8]) -> Result<Vec<u8>> {
    let options = OpenOptions { write: false, create: false, ..OPEN };
    let opened = process.fs.open_file(&process.caller(), ROOT, path, options, 0)?;
    process.verify_blocks(opened.inode, opened.handle)?;
    let size = process.fs.attributes(opened.inode)?.size;
    let (_, content) = process.read(&process.caller(), opened.handle, Position::At(0), size)?;
    process.close(opened.handle)?;
    Ok(content)
}
