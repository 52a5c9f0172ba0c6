//! Random operations on files and names, and the answers of the reference model.
//!
//! A step names an open file by its place in a table, so the model, Cairn and the kernel can take
//! the same step. The generator draws steps so that names collide, links lead everywhere and files
//! overlap.

use crate::model::{Facts, Kind, Model, Node, NodeId, Open, OpenId, ROOT};
use crate::random::Random;
use cairn_core::{Caller, Error, ExtendedUpdate, OpenOptions, RenameMode, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Index of an open file in the table of the test.
pub type Place = usize;

/// Directory where a path starts: an open file, or the root for `None`.
pub type Base = Option<Place>;

/// One operation.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Step {
    Open { base: Base, path: Vec<u8>, options: OpenOptions, mode: u32 },
    Close { open: Place },
    MakeDirectory { base: Base, path: Vec<u8>, mode: u32 },
    RemoveDirectory { base: Base, path: Vec<u8> },
    Unlink { base: Base, path: Vec<u8> },
    Link { old: (Base, Vec<u8>), new: (Base, Vec<u8>), follow: bool },
    Symlink { target: Vec<u8>, base: Base, path: Vec<u8> },
    ReadLink { base: Base, path: Vec<u8> },
    Rename { from: (Base, Vec<u8>), to: (Base, Vec<u8>), mode: RenameMode },
    Stat { base: Base, path: Vec<u8>, follow: bool },
    Access { base: Base, path: Vec<u8>, mask: u32 },
    SetMode { open: Place, mode: u32 },
    List { base: Base },
    SetExtended { open: Place, name: Vec<u8>, value: Vec<u8>, update: ExtendedUpdate },
    GetExtended { open: Place, name: Vec<u8> },
    RemoveExtended { open: Place, name: Vec<u8> },
    ListExtended { open: Place },
    Read { open: Place, at: Option<u64>, length: u64 },
    Write { open: Place, at: Option<u64>, bytes: Vec<u8> },
    Truncate { open: Place, size: u64 },
    Seek { open: Place, offset: i64, whence: i32 },
}

/// Result of a successful step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// Place of the opened file.
    Opened(Place),
    /// Attributes from `stat`.
    Facts(Facts),
    /// Target of a symbolic link.
    Target(Vec<u8>),
    /// Names in a directory with their types (`S_IFMT`).
    Names(BTreeMap<Vec<u8>, u32>),
    /// Value of an extended attribute.
    Value(Vec<u8>),
    /// Names of extended attributes.
    Attributes(BTreeSet<Vec<u8>>),
    /// Offset of the bytes read, and the bytes; the model decides whether it admits them.
    Bytes(u64, Vec<u8>),
    /// Offset of the bytes written, if known, and their count.
    Written(Option<u64>, u64),
    /// New cursor.
    Offset(u64),
}

/// The model with its table of open files.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The model.
    pub model: Model,
    /// Open files by place.
    pub opens: Vec<Option<OpenId>>,
}

impl Reference {
    /// Makes an empty file system.
    pub fn new(caller: &Caller) -> Reference {
        Reference { model: Model::new(caller), opens: Vec::new() }
    }

    /// Returns the description in a place. Errors: `BadHandle`.
    pub fn open(&self, place: Place) -> Result<OpenId> {
        self.opens.get(place).copied().flatten().ok_or(Error::BadHandle)
    }

    /// Returns the node that the description in a place refers to.
    pub fn node(&mut self, place: Place) -> Result<NodeId> {
        let open = self.open(place)?;
        Ok(self.model.description(open)?.node)
    }

    fn base(&mut self, base: Base) -> Result<NodeId> {
        base.map_or(Ok(ROOT), |place| self.node(place))
    }

    /// Puts a description in the first free place.
    pub fn put(&mut self, open: OpenId) -> Place {
        let place = self.free_place();
        if place == self.opens.len() {
            self.opens.push(None);
        }
        self.opens[place] = Some(open);
        place
    }

    /// Returns the place that the next opened file gets.
    pub fn free_place(&self) -> Place {
        self.opens.iter().position(Option::is_none).unwrap_or(self.opens.len())
    }

    /// Takes a step. `seen` is the result of the system under test. It decides the few things that
    /// system may choose: undecided bytes, the offset of an append while others are in flight, and
    /// how many bytes of a write find space.
    pub fn take(
        &mut self,
        caller: &Caller,
        step: &Step,
        seen: Option<&Outcome>,
    ) -> Result<Outcome> {
        match step {
            Step::Open { base, path, options, mode } => {
                let base = self.base(*base)?;
                let open = self.model.open(caller, base, path, *options, *mode)?;
                Ok(Outcome::Opened(self.put(open)))
            }
            Step::Close { open } => {
                let id = self.open(*open)?;
                self.model.release(caller.slot.0, id, true)?;
                self.forget_closed();
                Ok(Outcome::Done)
            }
            Step::MakeDirectory { base, path, mode } => {
                let base = self.base(*base)?;
                self.model.make_directory(caller, base, path, *mode).map(|_| Outcome::Done)
            }
            Step::RemoveDirectory { base, path } => {
                let base = self.base(*base)?;
                self.model.remove_directory(caller, base, path).map(|()| Outcome::Done)
            }
            Step::Unlink { base, path } => {
                let base = self.base(*base)?;
                self.model.unlink(caller, base, path).map(|()| Outcome::Done)
            }
            Step::Link { old, new, follow } => {
                let (from, to) = (self.base(old.0)?, self.base(new.0)?);
                let linked = self.model.link(caller, (from, &old.1), (to, &new.1), *follow);
                linked.map(|()| Outcome::Done)
            }
            Step::Symlink { target, base, path } => {
                let base = self.base(*base)?;
                self.model.symlink(caller, target, base, path).map(|_| Outcome::Done)
            }
            Step::ReadLink { base, path } => {
                let base = self.base(*base)?;
                self.model.read_link(caller, base, path).map(Outcome::Target)
            }
            Step::Rename { from, to, mode } => {
                let (old, new) = (self.base(from.0)?, self.base(to.0)?);
                let renamed = self.model.rename(caller, (old, &from.1), (new, &to.1), *mode);
                renamed.map(|()| Outcome::Done)
            }
            Step::Stat { base, path, follow } => {
                let base = self.base(*base)?;
                self.model.stat(caller, base, path, *follow).map(Outcome::Facts)
            }
            Step::Access { base, path, mask } => {
                let base = self.base(*base)?;
                self.model.access(caller, base, path, *mask, true).map(|()| Outcome::Done)
            }
            Step::SetMode { open, mode } => {
                let node = self.node(*open)?;
                self.model.set_mode(caller, node, *mode).map(|()| Outcome::Done)
            }
            Step::List { base } => {
                let base = self.base(*base)?;
                let entries = self.model.list(caller, base)?;
                let kind = |id: &NodeId| self.model.node(*id).mode() & cairn_core::MODE_TYPE;
                let names = entries.iter().map(|(name, id)| (name.clone(), kind(id))).collect();
                Ok(Outcome::Names(names))
            }
            Step::SetExtended { open, name, value, update } => {
                let node = self.node(*open)?;
                let set = self.model.set_extended(caller, node, name, value, *update);
                set.map(|()| Outcome::Done)
            }
            Step::GetExtended { open, name } => {
                let node = self.node(*open)?;
                self.model.get_extended(caller, node, name).map(Outcome::Value)
            }
            Step::RemoveExtended { open, name } => {
                let node = self.node(*open)?;
                self.model.remove_extended(caller, node, name).map(|()| Outcome::Done)
            }
            Step::ListExtended { open } => {
                let node = self.node(*open)?;
                let names = self.model.node(node).extended.keys().cloned();
                Ok(Outcome::Attributes(names.collect()))
            }
            Step::Read { open, at, length } => self.read(*open, *at, *length, seen),
            Step::Write { open, at, bytes } => self.write(caller, *open, *at, bytes, seen),
            Step::Truncate { open, size } => {
                let node = self.node(*open)?;
                self.model.truncate(caller, node, *size).map(|()| Outcome::Done)
            }
            Step::Seek { open, offset, whence } => self.seek(*open, *offset, *whence),
        }
    }

    fn read(
        &mut self,
        place: Place,
        at: Option<u64>,
        length: u64,
        seen: Option<&Outcome>,
    ) -> Result<Outcome> {
        let id = self.open(place)?;
        let open = self.model.description(id)?;
        if !open.options.read {
            return Err(Error::BadHandle);
        }
        let (node, offset) = (open.node, at.unwrap_or(open.cursor));
        let content = self.model.content(node)?;
        let count = content.readable(offset, length);
        let outcome = match seen {
            Some(Outcome::Bytes(from, bytes))
                if *from == offset
                    && bytes.len() as u64 == count
                    && content.admits(offset, bytes) =>
            {
                Outcome::Bytes(offset, bytes.clone())
            }
            _ => Outcome::Bytes(offset, content.certain(offset, count)),
        };
        if at.is_none() {
            self.model.description(id)?.cursor = offset + count;
        }
        Ok(outcome)
    }

    fn write(
        &mut self,
        caller: &Caller,
        place: Place,
        at: Option<u64>,
        bytes: &[u8],
        seen: Option<&Outcome>,
    ) -> Result<Outcome> {
        let (known, count) = match seen {
            Some(Outcome::Written(offset, count)) => (*offset, *count),
            _ => (None, bytes.len() as u64),
        };
        let write = self.place_write(place, at, known)?;
        let bytes = &bytes[..(count as usize).min(bytes.len())];
        self.model.content(write.node)?.write(write.offset, bytes, write.append);
        self.model.touch(caller, write.node);
        self.note_written(place, at, write.offset + bytes.len() as u64)?;
        Ok(Outcome::Written(known.map(|_| write.offset), bytes.len() as u64))
    }

    /// Returns the target of a write. `known` is the offset that the system under test used, if
    /// known.
    pub fn place_write(
        &mut self,
        place: Place,
        at: Option<u64>,
        known: Option<u64>,
    ) -> Result<WriteTarget> {
        let id = self.open(place)?;
        let open = self.model.description(id)?;
        if !open.options.write {
            return Err(Error::BadHandle);
        }
        let (node, append, offset) = (open.node, open.options.append, at.unwrap_or(open.cursor));
        let content = self.model.content(node)?;
        let offset = match (append, known) {
            (true, Some(known)) if content.may_append_at(known) => known,
            (true, _) => content.size(),
            (false, _) => offset,
        };
        Ok(WriteTarget { node, offset, append })
    }

    /// Records a write through `place` that ended at `end`; without `at` it moves the cursor.
    pub fn note_written(&mut self, place: Place, at: Option<u64>, end: u64) -> Result<()> {
        let id = self.open(place)?;
        let open = self.model.description(id)?;
        open.wrote = true;
        if at.is_none() {
            open.cursor = end;
        }
        Ok(())
    }

    /// Empties the places of descriptions without holders.
    pub fn forget_closed(&mut self) {
        for place in &mut self.opens {
            if place.is_some_and(|id| self.model.description(id).is_err()) {
                *place = None;
            }
        }
    }

    fn seek(&mut self, place: Place, offset: i64, whence: i32) -> Result<Outcome> {
        let id = self.open(place)?;
        let (node, cursor) = {
            let open = self.model.description(id)?;
            (open.node, open.cursor)
        };
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => cursor,
            _ => self.model.facts(node).size,
        };
        let target = i64::try_from(base).ok().and_then(|base| base.checked_add(offset));
        let target = target.and_then(|target| u64::try_from(target).ok()).ok_or(Error::Invalid)?;
        self.model.description(id)?.cursor = target;
        Ok(Outcome::Offset(target))
    }

    /// Returns the places of open files that `holder` holds and `test` accepts.
    pub fn places(&mut self, holder: u32, test: impl Fn(&Node, &Open) -> bool) -> Vec<Place> {
        let mut found = Vec::new();
        for place in 0..self.opens.len() {
            let Some(id) = self.opens[place] else { continue };
            let Ok(open) = self.model.description(id).cloned() else { continue };
            if open.holders.contains(&holder) && test(self.model.node(open.node), &open) {
                found.push(place);
            }
        }
        found
    }
}

/// Target of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// File.
    pub node: NodeId,
    /// Offset of the first byte.
    pub offset: u64,
    /// Whether it is an append.
    pub append: bool,
}

/// Generator of random steps.
#[derive(Clone, Debug)]
pub struct Generator {
    /// Source of randomness.
    pub random: Random,
    /// Largest offset of an ordinary write, bytes.
    pub reach: u64,
    /// Longest ordinary write, bytes.
    pub write_bytes: u64,
    /// Number of open files at which the generator closes one instead of opening another.
    pub opens_max: usize,
    /// Process that takes the steps. Steps use only the files it has open.
    pub holder: u32,
}

impl Generator {
    /// Returns a path of one to three components.
    pub fn path(&mut self) -> Vec<u8> {
        let mut path = Vec::new();
        for _ in 0..=self.random.below(3) {
            if !path.is_empty() {
                path.extend_from_slice(if self.random.one_in(12) { b"//" } else { b"/" });
            }
            let name: Vec<u8> = match self.random.below(40) {
                0 | 1 => b".".to_vec(),
                2..5 => b"..".to_vec(),
                5 => vec![b'n'; 255],
                6 if self.random.one_in(4) => vec![b'n'; 256],
                _ => vec![*self.random.pick(b"abcdef")],
            };
            path.extend_from_slice(&name);
        }
        if self.random.one_in(12) && path.len() < 256 {
            path.push(b'/');
        }
        path
    }

    fn base(&mut self, reference: &mut Reference) -> Base {
        let directories = reference.places(self.holder, |node, _| node.is_directory());
        if directories.is_empty() || !self.random.one_in(4) {
            return None;
        }
        Some(*self.random.pick(&directories))
    }

    fn options(&mut self) -> OpenOptions {
        let create = self.random.one_in(2);
        OpenOptions {
            read: !self.random.one_in(5),
            write: self.random.below(4) > 0,
            append: self.random.one_in(4),
            create,
            exclusive: create && self.random.one_in(4),
            truncate: self.random.one_in(6),
            directory: !create && self.random.one_in(5),
            no_follow: self.random.one_in(6),
            path_only: false,
            ..OpenOptions::NONE
        }
    }

    /// Returns an offset within reach: often a multiple of 4 KiB, seldom far away.
    pub fn offset(&mut self) -> u64 {
        match self.random.below(12) {
            0 => self.random.below(1 << 33),
            1..5 => self.random.below(self.reach / 4096 + 1) * 4096,
            _ => self.random.below(self.reach + 1),
        }
    }

    /// Returns a length for a read or write, bytes.
    pub fn length(&mut self) -> u64 {
        match self.random.below(6) {
            0 => 4096,
            1 => 4096 * (1 + self.random.below(4)),
            2 | 3 => 1 + self.random.below(100),
            _ => 1 + self.random.below(self.write_bytes),
        }
    }

    /// Returns the next step.
    pub fn step(&mut self, reference: &mut Reference) -> Step {
        let is_file = |node: &Node, _: &Open| matches!(node.kind, Kind::File(_));
        let files = reference.places(self.holder, is_file);
        let any = reference.places(self.holder, |_, _| true);
        let wants_file = self.random.below(100) < 55;
        if wants_file && !files.is_empty() {
            let open = *self.random.pick(&files);
            return self.file_step(open, reference);
        }
        if any.len() >= self.opens_max || !any.is_empty() && self.random.one_in(10) {
            return Step::Close { open: *self.random.pick(&any) };
        }
        self.name_step(reference, &any)
    }

    fn file_step(&mut self, open: Place, reference: &mut Reference) -> Step {
        let at = (!self.random.one_in(3)).then(|| self.offset());
        let writable = reference
            .open(open)
            .and_then(|id| reference.model.description(id).map(|open| open.options.write));
        match self.random.below(20) {
            0..9 => {
                let length = self.length() as usize;
                Step::Write { open, at, bytes: self.random.bytes(length) }
            }
            9..14 => Step::Read { open, at, length: self.length() },
            14..18 if writable == Ok(true) => {
                let size = if self.random.one_in(4) { 0 } else { self.offset() };
                Step::Truncate { open, size }
            }
            _ => {
                let whence = *self.random.pick(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END]);
                let offset = self.offset() as i64 - self.reach as i64 / 4;
                Step::Seek { open, offset, whence }
            }
        }
    }

    fn name_step(&mut self, reference: &mut Reference, any: &[Place]) -> Step {
        let base = self.base(reference);
        let path = self.path();
        match self.random.below(38) {
            0..8 => {
                let options = self.options();
                let mode = *self.random.pick(&[0o644, 0o600, 0o666, 0o444, 0o200, 0o755]);
                Step::Open { base, path, options, mode }
            }
            8..12 => {
                let mode = *self.random.pick(&[0o755, 0o755, 0o777, 0o1777, 0o700, 0o555, 0o311]);
                Step::MakeDirectory { base, path, mode }
            }
            12 | 13 => Step::RemoveDirectory { base, path },
            14..17 => Step::Unlink { base, path },
            17 | 18 => {
                let new = (self.base(reference), self.path());
                Step::Link { old: (base, path), new, follow: self.random.one_in(2) }
            }
            19 | 20 => Step::Symlink { target: self.path(), base, path },
            21 => Step::ReadLink { base, path },
            22..26 => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = if self.random.one_in(3) { *self.random.pick(&modes) } else { modes[0] };
                let to = (self.base(reference), self.path());
                // Two wrong paths: it is unspecified which error wins.
                let proper = |path: &[u8]| path.iter().filter(|&&byte| byte == b'n').count() < 256;
                match proper(&path) && proper(&to.1) {
                    true => Step::Rename { from: (base, path), to, mode },
                    false => Step::List { base },
                }
            }
            26 | 27 => Step::Stat { base, path, follow: self.random.one_in(2) },
            28 => Step::Access { base, path, mask: self.random.below(8) as u32 },
            29 if !any.is_empty() => {
                let mode = *self.random.pick(&[0o777, 0o755, 0o600, 0o000, 0o1777]);
                Step::SetMode { open: *self.random.pick(any), mode }
            }
            32.. if !any.is_empty() => {
                let open = *self.random.pick(any);
                self.extended_step(open)
            }
            _ => Step::List { base },
        }
    }

    /// Draws a step on extended attributes. There are few names, so that they collide, and short
    /// values, so that all of them fit.
    fn extended_step(&mut self, open: Place) -> Step {
        const VALUE_BYTES_MAX: u64 = 900;
        let longest = [&b"user."[..], &[b'n'; 250]].concat();
        let name = match self.random.below(24) {
            0 => Vec::new(),
            1 => b"user.".to_vec(),
            2 => b"nobodys.a".to_vec(),
            3 => [&longest[..], b"n"].concat(),
            4..7 => longest,
            7..15 => b"user.a".to_vec(),
            _ => b"user.b".to_vec(),
        };
        match self.random.below(6) {
            0..3 => {
                let most = *self.random.pick(&[1, 20, 60, VALUE_BYTES_MAX]);
                let length = self.random.below(most + 1) as usize;
                let (create, replace) = (self.random.one_in(4), self.random.one_in(4));
                let update = ExtendedUpdate { create, replace };
                Step::SetExtended { open, name, value: self.random.bytes(length), update }
            }
            3 => Step::GetExtended { open, name },
            4 => Step::RemoveExtended { open, name },
            _ => Step::ListExtended { open },
        }
    }
}
