//! Replay: a namespace is rebuilt from records.
//!
//! The same code rebuilds a namespace after a crash and keeps the image that a snapshot is written
//! from. Records say which inode and which blocks an operation took, so nothing is decided anew.
//!
//! Invariants: nobody else uses the memory. A record is applied as a whole. If it contradicts the
//! image, that is an error, and the image is of no use. A right checksum is no reason to believe a
//! record: whatever it says, an image that was a namespace stays one or is refused.
//!
//! Changes of a file that has lost its last name are ignored: nobody can open it after a crash.
//!
//! `names.rs` has the records that change names, `data.rs` those that change data of files,
//! `restore.rs` those of a snapshot. Until [`Image::settle`] ran, an image has no free list of
//! inodes, and the tail fields hold the seal of the last block.

mod data;
mod names;
mod restore;

use crate::data::coalesce::Strides;
use crate::engine::fields::fields;
use crate::engine::inode::{ABSENT, Inode, LOST, OPENED, TORN, UNCLEAN};
use crate::engine::run::BlockRun;
use crate::engine::transaction::{Local, Transaction};
use crate::format::error::{Error, Result};
use crate::format::layout::{self, Checksum, Geometry, Layout, SlabKind};
use crate::format::memory::Memory;
use crate::format::record::{NameBuffer, Operation, Record};
use crate::format::types::{
    Caller, Credentials, InodeId, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, MODE_TYPE,
    PATH_BYTES_MAX, SlotId, Timestamp,
};

/// In an image: somebody may have had the file open for writing.
const WRITING: u32 = 1 << 16;
/// In an image: the seal of the last block is valid.
const HAS_SEAL: u32 = 1 << 17;
/// Inode flags that a snapshot keeps.
const KEPT_FLAGS: u32 = UNCLEAN | TORN | OPENED | LOST | ABSENT | WRITING;
/// Pieces of a strided write attached in one transaction: each may split a node on every level of
/// the tree.
const PIECES_BATCH: usize = 16;
/// Inodes backed at a time.
const BACKED_INODES: u32 = 4096;

fields!(Inode {
    // Same word as the tail.
    sealed_crc, set_sealed_crc: low 15;
});

/// A namespace being rebuilt.
pub(crate) struct Image<'m> {
    pub memory: &'m dyn Memory,
    pub layout: Layout,
    pub checksum: Checksum,
    local: Local,
    backed_inodes: u32,
    /// LSN of the last record applied.
    pub lsn: u64,
    /// Number of records applied.
    pub records: u64,
}

/// Work that is left after a record.
enum Rest {
    /// Cut a file, and free it if it has no name.
    Cut { inode: InodeId, from_block: u32 },
    /// Attach the pieces behind the first `attached` ones to a file.
    Pieces { inode: InodeId, strides: Strides, attached: usize },
}

impl Rest {
    /// Does a bounded part of the work. Returns what is left.
    fn reduce(self, tx: &mut Transaction) -> Result<Option<Rest>> {
        match self {
            Rest::Cut { inode: id, from_block } => {
                let inode = tx.inode(id)?;
                let more = tx.drop_extents(inode, from_block)?;
                if !more && inode.links(tx) == 0 {
                    release(tx, inode)?;
                }
                Ok(more.then_some(Rest::Cut { inode: id, from_block }))
            }
            Rest::Pieces { inode: id, strides, attached } => {
                let inode = tx.inode(id)?;
                let mut pieces = strides.pieces().skip(attached).peekable();
                for piece in pieces.by_ref().take(PIECES_BATCH) {
                    data::attach(tx, inode, piece)?;
                }
                let attached = attached + PIECES_BATCH;
                let more = pieces.peek().is_some();
                Ok(more.then_some(Rest::Pieces { inode: id, strides, attached }))
            }
        }
    }
}

fn contradiction<T>(what: &'static str) -> Result<T> {
    Err(Error::Corrupt { what })
}

impl<'m> Image<'m> {
    /// Creates an image without even a root directory, in zeroed memory.
    pub(crate) fn new(
        memory: &'m dyn Memory,
        geometry: &Geometry,
        checksum: Checksum,
    ) -> Result<Image<'m>> {
        memory.back(0, layout::PAGE_WORDS)?;
        let layout = layout::write_header(memory, geometry, checksum)?;
        for (first, count) in layout.eager_ranges() {
            memory.back(first, count)?;
        }
        let local = Local::new();
        Ok(Image { memory, layout, checksum, local, backed_inodes: 0, lsn: 0, records: 0 })
    }

    pub(crate) fn transact<R>(
        &self,
        change: impl FnOnce(&mut Transaction) -> Result<R>,
    ) -> Result<R> {
        let mut tx = Transaction::new(self.memory, &self.layout, self.checksum, &self.local);
        tx.begin()?;
        tx.forgo_undo();
        match change(&mut tx) {
            Ok(value) => tx.commit().map(|()| value),
            Err(error) => Err(tx.corruption().unwrap_or(error)),
        }
    }

    /// Applies the records in `words` until they end or break off. Returns the number of words
    /// applied. A symbolic link counts only with its target. Log records have consecutive LSNs;
    /// those of a snapshot (`ordered` false) have none.
    pub(crate) fn replay(&mut self, words: &[u64], ordered: bool) -> Result<usize> {
        let mut at = 0;
        let mut buffer: NameBuffer = [0; PATH_BYTES_MAX + 1];
        while let Some((length, record)) = Record::decode(&words[at..], self.checksum) {
            if !record.operation.stands_in(ordered) {
                return contradiction("record in the wrong place");
            }
            if ordered {
                // Whole and valid, but not the next one: it is older.
                if record.lsn != self.lsn.wrapping_add(1) {
                    break;
                }
                if record.operation == Operation::Symlink
                    && !self.target_follows(&words[at + length..], &record)
                {
                    break;
                }
                self.lsn = record.lsn;
            }
            let name = record.name(&mut buffer);
            self.apply(&record, name, ordered)?;
            self.records += 1;
            at += length;
        }
        Ok(at)
    }

    /// Whether the target of a symbolic link comes next. A torn write may have left one record
    /// without the other.
    fn target_follows(&self, words: &[u64], link: &Record) -> bool {
        Record::decode(words, self.checksum).is_some_and(|(_, next)| {
            next.operation == Operation::Target
                && next.lsn == link.lsn.wrapping_add(1)
                && next.parameters[0] == link.parameters[1]
        })
    }

    fn apply(&mut self, record: &Record, name: &[u8], is_of_log: bool) -> Result<()> {
        if let Operation::Create | Operation::Symlink | Operation::Inode = record.operation {
            let at = usize::from(record.operation != Operation::Inode);
            self.back_inode(record.parameters[at])?;
        }
        let mut rest = self.transact(|tx| match record.operation {
            Operation::Extended if !is_of_log => {
                restore::extended(tx, record.parameters, name).map(|()| None)
            }
            _ => apply(tx, record, name),
        })?;
        while let Some(left) = rest {
            rest = self.transact(|tx| left.reduce(tx))?;
        }
        Ok(())
    }

    fn back_inode(&mut self, index: u64) -> Result<()> {
        let region = self.layout.slab(SlabKind::Inode);
        if index >= u64::from(region.capacity) {
            return contradiction("inode number");
        }
        if index as u32 >= self.backed_inodes {
            let end = (index as u32 + 1).next_multiple_of(BACKED_INODES).min(region.capacity);
            let count = (end - self.backed_inodes) as usize;
            let first = self.backed_inodes as usize;
            self.memory.back(
                region.first_word + first * region.record_words,
                count * region.record_words,
            )?;
            self.backed_inodes = end;
        }
        Ok(())
    }

    /// Returns the inodes in use, in ascending order.
    pub(crate) fn inodes(&self) -> Result<Vec<InodeId>> {
        self.transact(|tx| {
            let end = tx.records_end(SlabKind::Inode);
            Ok((1..end).map(InodeId).filter(|&id| tx.inode(id).is_ok()).collect())
        })
    }

    /// Returns an inode as a snapshot records it: the parameters of an `Inode` record.
    pub(crate) fn inode_record(&self, tx: &Transaction, inode: Inode) -> [u64; 13] {
        let flags = inode.flags(tx);
        let seal = match flags & HAS_SEAL {
            0 => 0,
            _ => 1 << 32 | u64::from(inode.sealed_crc(tx)),
        };
        let parent = if inode.is_directory(tx) { inode.parent(tx) } else { 0 };
        [
            u64::from(inode.id.0),
            u64::from(inode.mode(tx)) << 32 | u64::from(flags & KEPT_FLAGS),
            u64::from(inode.links(tx)),
            inode.owner(tx).pack(),
            u64::from(parent),
            inode.size(tx),
            inode.version(tx),
            inode.drained_version(tx),
            inode.accessed(tx).to_bits(),
            inode.modified(tx).to_bits(),
            inode.changed(tx).to_bits(),
            inode.born(tx).to_bits(),
            seal,
        ]
    }

    /// Drops blocks on tiers that are `gone` with the node's memory. Marks files that had some
    /// there as lost.
    pub(crate) fn lose(&self, gone: &dyn Fn(u8) -> bool) -> Result<()> {
        for id in self.inodes()? {
            self.transact(|tx| {
                let inode = tx.inode(id)?;
                if inode.is_regular(tx) && tx.drop_lost_extents(inode, gone) {
                    inode.add_flags(tx, UNCLEAN | TORN | LOST);
                    data::set_seal(tx, inode, 0);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes the image a namespace that can be used. Files that a crash left open become unclean,
    /// blocks without a trustworthy checksum become stale, and bytes behind the ends of files
    /// become their tails. Returns the seals of last blocks.
    pub(crate) fn settle(&self) -> Result<Vec<Seal>> {
        let mut seals = Vec::new();
        for id in self.inodes()? {
            let seal = self.transact(|tx| {
                let inode = tx.inode(id)?;
                if !inode.is_regular(tx) {
                    return Ok(None);
                }
                Ok(data::settle(tx, inode))
            })?;
            seals.extend(seal);
        }
        self.transact(|tx| {
            let end = tx.records_end(SlabKind::Inode);
            let free: Vec<u32> =
                (1..end).rev().filter(|&index| tx.inode(InodeId(index)).is_err()).collect();
            for &index in &free {
                let inode = Inode { id: InodeId(index), at: tx.record(SlabKind::Inode, index) };
                tx.set_unlogged(inode.at + 4, u64::from(index) << 32);
            }
            tx.rebuild_free_list(SlabKind::Inode, free.into_iter());
            Ok(())
        })?;
        Ok(seals)
    }
}

/// Checksum of a block, from the log.
pub(crate) struct Seal {
    /// A run of one block.
    pub block: BlockRun,
    pub crc32c: u32,
}

/// Returns the caller of replayed operations: no process.
fn replayer(credentials: Credentials, now: Timestamp) -> Caller {
    Caller { slot: SlotId(0), credentials, groups: &[], now }
}

fn apply(tx: &mut Transaction, record: &Record, name: &[u8]) -> Result<Option<Rest>> {
    let p = record.parameters;
    let now = record.time;
    match record.operation {
        Operation::Create if p[2] as u32 & MODE_TYPE == MODE_SYMLINK => {
            contradiction("symbolic link without target")
        }
        Operation::Create => names::create(tx, p, name, now).map(|()| None),
        Operation::Symlink => {
            let parameters = [p[0], p[1], u64::from(MODE_SYMLINK | 0o777), p[2]];
            names::create(tx, &parameters, name, now).map(|()| None)
        }
        Operation::Target => {
            let inode = existing(tx, p[0])?;
            if !inode.is_symlink(tx) || inode.target(tx) != 0 || name.is_empty() {
                return contradiction("target of a symbolic link");
            }
            let text = tx.store_text(name, inode.id)?;
            inode.set_target(tx, text);
            inode.set_size(tx, name.len() as u64);
            Ok(None)
        }
        Operation::Unlink | Operation::Evict => {
            let (parent, inode) = (directory(tx, p[0])?, existing(tx, p[1])?);
            names::take_name(tx, parent, name, inode, now)?;
            inode.set_changed(tx, now);
            names::forget(tx, parent, inode)
        }
        Operation::Link => {
            let (parent, inode) = (directory(tx, p[0])?, existing(tx, p[1])?);
            if inode.is_directory(tx) {
                return contradiction("second name of a directory");
            }
            names::give_name(tx, parent, name, inode, now).map(|()| None)
        }
        Operation::Rename => names::rename(tx, p, name, now),
        Operation::Exchange => names::exchange(tx, p, name, now).map(|()| None),
        Operation::Attributes => {
            let id = u32::try_from(p[0]).map_err(|_| Error::Corrupt { what: "inode number" })?;
            let Ok(inode) = tx.inode(InodeId(id)) else { return Ok(None) };
            if p[1] as u32 & MODE_TYPE != inode.kind(tx) {
                return contradiction("kind of an inode");
            }
            inode.set_mode(tx, p[1] as u32);
            inode.set_uid(tx, p[2] as u32);
            inode.set_gid(tx, p[3] as u32);
            inode.set_accessed(tx, Timestamp::from_bits(p[4]));
            inode.set_modified(tx, Timestamp::from_bits(p[5]));
            inode.set_changed(tx, now);
            Ok(None)
        }
        Operation::Extended => {
            if let Ok(inode) = existing(tx, p[0]) {
                data::set_extended(tx, inode, name)?;
                inode.set_changed(tx, now);
            }
            Ok(None)
        }
        Operation::Inode => restore::inode(tx, p).map(|()| None),
        Operation::Name => restore::name(tx, p, name).map(|()| None),
        Operation::Extent => {
            let inode = existing(tx, p[0])?;
            if !inode.is_regular(tx) {
                return contradiction("blocks of what is no file");
            }
            data::attach_run(tx, inode, p[1], p[2]).map(|()| None)
        }
        Operation::Close
        | Operation::Truncate
        | Operation::Write
        | Operation::Drained
        | Operation::Opened
        | Operation::Sealed
        | Operation::Strides
        | Operation::Replace
        | Operation::Absent
        | Operation::Present => match file_of(tx, record)? {
            Some(inode) => data::change(tx, record, inode),
            None => Ok(None),
        },
    }
}

/// Returns the file whose data the record changes; `None` if it lost its last name before, so that
/// there is nothing to change.
fn file_of(tx: &Transaction, record: &Record) -> Result<Option<Inode>> {
    match tx.inode(InodeId(record.parameters[0] as u32)) {
        Ok(inode) if inode.is_regular(tx) => Ok(Some(inode)),
        // The record of a close or drain may be of an earlier file with this number.
        Ok(_) if !matches!(record.operation, Operation::Close | Operation::Drained) => {
            contradiction("data of what is no file")
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

fn existing(tx: &Transaction, id: u64) -> Result<Inode> {
    let id = u32::try_from(id).map_err(|_| Error::Corrupt { what: "inode number" })?;
    tx.inode(InodeId(id))
        .map_err(|_| Error::Corrupt { what: "record of an inode that is not there" })
}

fn directory(tx: &Transaction, id: u64) -> Result<Inode> {
    let inode = existing(tx, id)?;
    match inode.is_directory(tx) {
        true => Ok(inode),
        false => contradiction("name in what is no directory"),
    }
}

fn claim(tx: &mut Transaction, id: u64, mode: u32, caller: &Caller) -> Result<Inode> {
    let index = id as u32;
    if tx.inode(InodeId(index)).is_ok() || !tx.claim_record(SlabKind::Inode, index) {
        return contradiction("inode made twice");
    }
    if !matches!(mode & MODE_TYPE, MODE_DIRECTORY | MODE_REGULAR | MODE_SYMLINK) {
        return contradiction("kind of an inode");
    }
    let inode = Inode { id: InodeId(index), at: tx.record(SlabKind::Inode, index) };
    tx.begin_inode(inode, mode, caller);
    inode.set_map(tx, index);
    Ok(inode)
}

/// Frees the inode's record. Precondition: its extents are gone.
fn release(tx: &mut Transaction, inode: Inode) -> Result<()> {
    tx.drop_extended(inode)?;
    if inode.is_symlink(tx) && inode.target(tx) != 0 {
        tx.free_text(inode.target(tx));
    }
    tx.set(inode.at, 0);
    tx.release_record(SlabKind::Inode);
    Ok(())
}
