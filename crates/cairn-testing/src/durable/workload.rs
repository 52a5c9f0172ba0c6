//! Random operations of the processes of a namespace, and for each the state that programs should
//! see.
//!
//! An operation is prepared, its outcome is noted, and then it is carried out. So the outcome of an
//! interrupted operation is already noted. If a process dies in an operation, the others reap it,
//! and what they see decides which state it left.

mod absent;

use cairn_core::{
    Durability, ExtendedUpdate, HandleId, ImageState, InodeId, OpenOptions, Position, ROOT,
    RenameMode, Result,
};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use self::absent::Brought;
use super::crew::{Crew, Died};
use super::state::{Extended, FileState, Node, State, Window, look, look_in};
use super::{OPEN, Setting, TARGET_BYTES_MAX};
use crate::driver::Process;
use crate::random::Random;

/// Largest file, in blocks.
const FILE_BLOCKS_MAX: u64 = 16;

/// A prepared operation; it returns true if it made everything before it durable.
type Act<'w> = Box<dyn FnOnce(&mut Workload<'w>) -> Result<bool> + 'w>;

/// A description of a file, held open by a process.
#[derive(Clone, Copy)]
struct Open {
    pid_slot: usize,
    handle: HandleId,
    file: u64,
    appends: bool,
    /// Distinguishes several descriptions of one process that write pieces of one file.
    lane: usize,
}

/// Random operations and the states that they should lead to.
pub struct Workload<'w> {
    crew: Crew,
    setting: &'w Setting,
    /// Directory that contains its names.
    home: InodeId,
    random: Random,
    state: State,
    window: Window,
    open: Vec<Open>,
    brought: Vec<Brought>,
    /// Number of the image that was begun last, and the state at its cut.
    cut: Option<(u64, Arc<State>)>,
    next_file: u64,
    /// Index of the process whose turn it is.
    turn: usize,
}

impl<'w> Workload<'w> {
    /// Returns a workload on a namespace in state `state`, all of it durable.
    pub fn new(crew: Crew, setting: &'w Setting, state: State, seed: u64) -> Workload<'w> {
        let window = vec![Arc::new(state)];
        let mut workload = Workload::resume(crew, setting, ROOT, window, seed);
        if setting.mortal {
            workload.replace_last().expect("a process can be replaced");
        }
        workload
    }

    /// Returns a workload in the directory `home`, which is in the last state of `window`. A crash
    /// may leave any state of the window.
    pub fn resume(
        crew: Crew,
        setting: &'w Setting,
        home: InodeId,
        window: Window,
        seed: u64,
    ) -> Workload<'w> {
        let state = window.last().expect("there is a state").as_ref().clone();
        let files = window.iter().flat_map(|state| state.files.keys());
        Workload {
            crew,
            setting,
            home,
            random: Random::new(seed),
            next_file: files.max().map_or(1, |last| last + 1),
            window,
            state,
            open: Vec::new(),
            brought: Vec::new(),
            cut: None,
            turn: 0,
        }
    }

    /// Returns the states that a crash may leave.
    pub fn window(&self) -> Window {
        self.window.clone()
    }

    /// The processes of the workload.
    pub fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Prepares an operation, tells `note` which states a crash may leave from its beginning on,
    /// and carries the operation out. Errors: those of the operation, which should succeed if the
    /// media do.
    pub fn step(&mut self, note: &mut dyn FnMut(Window)) -> Result<()> {
        let before = self.window.len() - 1;
        self.turn = self.random.below(self.crew.processes.len() as u64) as usize;
        let act = self.draw();
        self.push_state();
        note(self.window.clone());
        let synced = match catch_unwind(AssertUnwindSafe(|| act(self))) {
            Ok(result) => result?,
            Err(payload) if payload.is::<Died>() => self.wait_until_unused(before, note)?,
            Err(payload) => resume_unwind(payload),
        };
        let changed = self.window.len() > before + 1;
        if synced || changed && self.setting.durability == Durability::Operation {
            self.window.drain(..self.window.len() - 1);
            note(self.window.clone());
        }
        Ok(())
    }

    fn push_state(&mut self) {
        if self.window.last().is_none_or(|last| **last != self.state) {
            self.window.push(Arc::new(self.state.clone()));
        }
    }

    /// Handles the death of the last process in an operation that began in state `before` of the
    /// window. Returns true if the state that it left is durable.
    fn wait_until_unused(&mut self, before: usize, note: &mut dyn FnMut(Window)) -> Result<bool> {
        let last = self.crew.processes.len() - 1;
        assert_eq!(self.turn, last, "only the last one is mortal");
        self.open.retain(|open| open.pid_slot != last);
        self.brought.retain(|brought| brought.pid_slot != last);
        self.replace_last()?;
        let seen = look(&self.crew.processes[0])?;
        let left = seen.latest_in(&self.window[before..]);
        self.state = left.expect("a death leaves the state before the operation, or after it");
        let known = |open: &Open| self.state.files.contains_key(&open.file);
        self.open.retain(known);
        self.push_state();
        note(self.window.clone());
        let syncs = self.setting.durability == Durability::Operation || self.random.one_in(2);
        if syncs {
            self.crew.processes[0].fs.sync()?;
        }
        Ok(syncs)
    }

    fn replace_last(&mut self) -> Result<()> {
        self.crew.replace_last(Crew::short_life(&mut self.random))
    }

    fn process(&self) -> &Process {
        &self.crew.processes[self.turn]
    }

    fn draw(&mut self) -> Act<'w> {
        match self.random.below(if self.setting.absent { 30 } else { 23 }) {
            0..4 => self.append(),
            4..6 => self.overwrite(),
            6..8 => self.strides(),
            8 => self.truncate(),
            9 => self.unlink(),
            10..12 => self.rename(),
            12 => self.link(),
            13 => self.directory(),
            14..16 => self.symlink(),
            16 => self.close(),
            17 | 18 => self.extended(),
            19 => Box::new(|this| this.process().fs.sync().map(|()| true)),
            20 | 21 => Box::new(|this| this.begin_or_end_image().map(|()| false)),
            23 | 24 => self.make_absent(),
            25 | 26 => self.release_data(),
            27.. => self.bring(),
            _ if self.random.one_in(4) => {
                Box::new(|this| this.process().fs.write_snapshot().map(|()| false))
            }
            _ => Box::new(|this| this.process().reclaim().map(|()| false)),
        }
    }

    /// Begins an image, or ends the one that is held and checks that it still shows the state at
    /// the cut. While an image is held, writes go to other blocks.
    fn begin_or_end_image(&mut self) -> Result<()> {
        let fs = &self.process().fs;
        match fs.image() {
            ImageState::None => {
                let number = fs.begin_image()?;
                self.cut = Some((number, Arc::new(self.state.clone())));
            }
            ImageState::Held(number) => {
                let known = self.cut.take().filter(|(cut, _)| *cut == number);
                if let Some((_, state)) = known.filter(|_| self.crew.was_recovered()) {
                    let seen = look_in(&self.crew.image()?, self.home)?;
                    assert!(seen.latest_in(&[state]).is_some(), "the image is not of the cut");
                }
                self.process().fs.end_image()?;
            }
            ImageState::Lost(..) => fs.end_image()?,
        }
        Ok(())
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.setting.hugeblock_bytes)
    }

    fn pick_name(&mut self) -> &'w [u8] {
        let setting = self.setting;
        self.random.pick::<Vec<u8>>(&setting.names)
    }

    fn parent_exists(&self, name: &[u8]) -> bool {
        !name.starts_with(b"dir/")
            || self
                .state
                .names
                .get(&b"dir"[..])
                .is_some_and(|node| matches!(node, Node::Directory(_)))
    }

    fn nothing() -> Act<'w> {
        Box::new(|_| Ok(false))
    }

    /// Picks a name that is, or could become, that of a file.
    fn file_name(&mut self) -> Option<&'w [u8]> {
        let name = self.pick_name();
        let usable = match self.state.names.get(name) {
            None => self.parent_exists(name) && name != b"dir" && name != b"link",
            Some(node) => matches!(node, Node::File(_)),
        };
        usable.then_some(name)
    }

    /// Picks a file to write to, or returns another operation to carry out instead.
    fn file_to_change(&mut self) -> std::result::Result<(&'w [u8], u64), Act<'w>> {
        let Some(name) = self.file_name() else { return Err(Self::nothing()) };
        let file = self.file_at(name);
        if self.state.files[&file].absent {
            return Err(self.disturb_absent(name, file));
        }
        Ok((name, file))
    }

    fn file_at(&mut self, name: &[u8]) -> u64 {
        if let Some(Node::File(file)) = self.state.names.get(name) {
            return *file;
        }
        let file = self.next_file;
        self.next_file += 1;
        self.state.names.insert(name.to_vec(), Node::File(file));
        let content = Arc::default();
        self.state.files.insert(file, FileState { content, ..FileState::default() });
        // The file is created before it is written to, so a crash may leave it empty.
        self.push_state();
        file
    }

    fn open(&mut self, name: &[u8], file: u64, appends: bool) -> Result<HandleId> {
        self.open_lane(name, file, appends, 0)
    }

    fn open_lane(
        &mut self,
        name: &[u8],
        file: u64,
        appends: bool,
        lane: usize,
    ) -> Result<HandleId> {
        let pid_slot = self.turn;
        let fits = |open: &&Open| {
            (open.pid_slot, open.file, open.appends, open.lane) == (pid_slot, file, appends, lane)
        };
        if let Some(open) = self.open.iter().find(fits) {
            return Ok(open.handle);
        }
        let options = OpenOptions { append: appends, ..OPEN };
        let caller = self.process().caller();
        let handle = self.process().fs.open_file(&caller, self.home, name, options, 0o644)?.handle;
        self.open.push(Open { pid_slot, handle, file, appends, lane });
        Ok(handle)
    }

    fn change(&mut self, file: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let state = self.state.files.get_mut(&file).expect("the file has a name");
        let mut content = state.content.as_ref().clone();
        change(&mut content);
        state.content = Arc::new(content);
    }

    fn append(&mut self) -> Act<'w> {
        let (name, file) = match self.file_to_change() {
            Ok(found) => found,
            Err(instead) => return instead,
        };
        let at = self.state.files[&file].content.len() as u64;
        if at > FILE_BLOCKS_MAX * self.block_bytes() {
            return self.truncate_file(name, file);
        }
        let length = match self.random.below(3) {
            0 => self.random.below(200) + 1,
            1 => self.random.below(3000) + 1,
            _ => self.random.below(4 * self.block_bytes()) + 1,
        };
        let bytes = self.random.bytes(length as usize);
        self.change(file, |content| content.extend(&bytes));
        let appends = self.random.one_in(3);
        let position = if appends { Position::Cursor } else { Position::At(at) };
        Box::new(move |this| {
            let handle = this.open(name, file, appends)?;
            this.write(handle, position, &bytes)
        })
    }

    fn overwrite(&mut self) -> Act<'w> {
        let (name, file) = match self.file_to_change() {
            Ok(found) => found,
            Err(instead) => return instead,
        };
        let size = self.state.files[&file].content.len() as u64;
        // Sometimes past the end, which leaves a hole.
        let at = self.random.below(size + 3 * self.block_bytes());
        let length = self.random.below(2 * self.block_bytes()) + 1;
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
            let handle = this.open(name, file, false)?;
            this.write(handle, Position::At(at), &bytes)
        })
    }

    /// Several descriptions write beyond the end of a file, each every n-th piece. Sometimes a
    /// piece of the stride is left as a hole.
    fn strides(&mut self) -> Act<'w> {
        const ROUNDS: u64 = 3;
        let (name, file) = match self.file_to_change() {
            Ok(found) => found,
            Err(instead) => return instead,
        };
        let first = (self.state.files[&file].content.len() as u64).div_ceil(self.block_bytes());
        if first > FILE_BLOCKS_MAX {
            return self.truncate_file(name, file);
        }
        let piece = self.random.below(2) + 1;
        let lanes = self.random.below(2) + 2;
        let writers = lanes - self.random.below(2);
        let mut writes = Vec::new();
        let mut next = first;
        for _ in 0..ROUNDS {
            for lane in 0..writers {
                // Sometimes a piece is short, or not where the next one should be.
                let blocks = if self.random.one_in(6) { 1 } else { piece };
                let at = (next + lane * piece) * self.block_bytes();
                let bytes = self.random.bytes((blocks * self.block_bytes()) as usize);
                writes.push((lane as usize, at, bytes));
            }
            next += lanes * piece + u64::from(self.random.one_in(4));
        }
        self.note_pieces(file, &writes);
        Box::new(move |this| {
            for (lane, at, bytes) in writes {
                let handle = this.open_lane(name, file, false, lane)?;
                this.write(handle, Position::At(at), &bytes)?;
            }
            Ok(false)
        })
    }

    /// Pushes the states of such writes. Each description's writes are there up to a moment of its
    /// own, so any piece may be missing, as if its bytes were overwritten zeros.
    fn note_pieces(&mut self, file: u64, writes: &[(usize, u64, Vec<u8>)]) {
        let end = writes.last().map_or(0, |(_, at, bytes)| *at as usize + bytes.len());
        self.change(file, |content| content.resize(end, 0));
        self.push_state();
        self.state.files.get_mut(&file).expect("it was just changed").overwrites += 1;
        for (_, at, bytes) in writes {
            self.change(file, |content| {
                content[*at as usize..][..bytes.len()].copy_from_slice(bytes)
            });
            self.push_state();
        }
    }

    fn write(&mut self, handle: HandleId, at: Position, bytes: &[u8]) -> Result<bool> {
        let written = self.process().write(&self.process().caller(), handle, at, bytes);
        let (_, count) = written?;
        assert_eq!(count, bytes.len() as u64, "there is space");
        Ok(false)
    }

    fn truncate(&mut self) -> Act<'w> {
        let (name, file) = match self.file_to_change() {
            Ok(found) => found,
            Err(instead) => return instead,
        };
        self.truncate_file(name, file)
    }

    fn truncate_file(&mut self, name: &'w [u8], file: u64) -> Act<'w> {
        let size = self.state.files[&file].content.len() as u64;
        let to = self.random.below(size + size / 4 + 2);
        self.change(file, |content| content.resize(to as usize, 0));
        // A later write beyond the new end goes where older bytes were before the truncation.
        self.state.files.get_mut(&file).expect("it has a name").overwrites += 1;
        Box::new(move |this| {
            let handle = this.open(name, file, false)?;
            let inode = this.process().fs.handle(handle)?.inode;
            this.process().truncate(&this.process().caller(), inode, to).map(|()| false)
        })
    }

    fn unlink(&mut self) -> Act<'w> {
        let name = self.pick_name();
        match self.state.names.get(name) {
            None => Self::nothing(),
            Some(Node::Directory(_)) => {
                if self.state.names.keys().any(|other| other.starts_with(b"dir/")) {
                    return Self::nothing();
                }
                self.state.names.remove(name);
                Box::new(move |this| {
                    let caller = this.process().caller();
                    this.process().fs.remove_directory(&caller, this.home, name).map(|()| false)
                })
            }
            Some(_) => {
                self.state.names.remove(name);
                self.forget_nameless();
                Box::new(move |this| {
                    let caller = this.process().caller();
                    this.process().fs.unlink(&caller, this.home, name).map(|()| false)
                })
            }
        }
    }

    /// Drops files without a name from the state; their descriptions stay open.
    fn forget_nameless(&mut self) {
        let State { names, files } = &mut self.state;
        files.retain(|file, _| names.values().any(|node| *node == Node::File(*file)));
        let files = &self.state.files;
        self.open.retain(|open| files.contains_key(&open.file));
    }

    fn rename(&mut self) -> Act<'w> {
        let (from, to) = (self.pick_name(), self.pick_name());
        let movable = |node: Option<&Node>| !matches!(node, Some(Node::Directory(_)));
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
            let caller = this.process().caller();
            this.process()
                .fs
                .rename(&caller, (this.home, from), (this.home, to), mode)
                .map(|()| false)
        })
    }

    fn link(&mut self) -> Act<'w> {
        let (from, to) = (self.pick_name(), self.pick_name());
        let Some(node @ Node::File(_)) = self.state.names.get(from).cloned() else {
            return Self::nothing();
        };
        if self.state.names.contains_key(to) || to == b"dir" || !self.parent_exists(to) {
            return Self::nothing();
        }
        self.state.names.insert(to.to_vec(), node);
        Box::new(move |this| {
            let caller = this.process().caller();
            this.process()
                .fs
                .link(&caller, (this.home, from), (this.home, to), false)
                .map(|()| false)
        })
    }

    fn directory(&mut self) -> Act<'w> {
        if self.state.names.contains_key(&b"dir"[..]) {
            return Self::nothing();
        }
        self.state.names.insert(b"dir".to_vec(), Node::Directory(Extended::new()));
        Box::new(|this| {
            let caller = this.process().caller();
            this.process().fs.make_directory(&caller, this.home, b"dir", 0o755).map(|_| false)
        })
    }

    fn symlink(&mut self) -> Act<'w> {
        if self.state.names.contains_key(&b"link"[..]) {
            return Self::nothing();
        }
        let length = *self.random.pick(&[10, 300, TARGET_BYTES_MAX]);
        let length = self.random.below(length as u64) as usize + 1;
        let target: Vec<u8> = self.random.bytes(length).iter().map(|byte| byte % 26 + 97).collect();
        self.state.names.insert(b"link".to_vec(), Node::Symlink(target.clone()));
        Box::new(move |this| {
            let caller = this.process().caller();
            this.process().fs.symlink(&caller, &target, this.home, b"link").map(|_| false)
        })
    }

    /// Sets or removes an extended attribute of a file or directory.
    fn extended(&mut self) -> Act<'w> {
        let path = self.pick_name();
        let Some(node) = self.state.names.get_mut(path) else { return Self::nothing() };
        let attributes = match node {
            Node::Directory(attributes) => attributes,
            Node::File(file) => match self.state.files.get_mut(file) {
                Some(file) => &mut file.extended,
                None => return Self::nothing(),
            },
            Node::Symlink(_) => return Self::nothing(),
        };
        let name = *self.random.pick(&[&b"user.a"[..], b"user.another"]);
        let value = if attributes.contains_key(name) && self.random.one_in(3) {
            attributes.remove(name);
            None
        } else {
            let most = *self.random.pick(&[0, 30, 300, 2000]);
            let length = self.random.below(most + 1) as usize;
            let value = self.random.bytes(length);
            attributes.insert(name.to_vec(), value.clone());
            Some(value)
        };
        Box::new(move |this| {
            let (process, caller) = (this.process(), this.process().caller());
            let inode = process.fs.resolve(&caller, this.home, path, false)?;
            match value {
                Some(value) => {
                    let update = ExtendedUpdate::default();
                    process.fs.set_extended(&caller, inode, name, &value, update)?;
                }
                None => process.fs.remove_extended(&caller, inode, name)?,
            }
            Ok(false)
        })
    }

    fn close(&mut self) -> Act<'w> {
        let mine: Vec<usize> =
            (0..self.open.len()).filter(|&at| self.open[at].pid_slot == self.turn).collect();
        if mine.is_empty() {
            return Self::nothing();
        }
        let index = *self.random.pick(&mine);
        let seals = self.random.one_in(2);
        Box::new(move |this| {
            let Open { handle, .. } = this.open.remove(index);
            if seals {
                let inode = this.process().fs.handle(handle)?.inode;
                this.process().seal(inode)?;
            }
            this.process().close(handle).map(|()| false)
        })
    }
}
