//! Replaying records: a namespace made again from what was written about it.
//!
//! The same code rebuilds a namespace after a crash and keeps the image a snapshot is written from. Records say which
//! inode and which blocks an operation took, so nothing is decided anew.
//! Invariants: nobody else uses the memory; a record is applied as a whole or, if it contradicts the image, is an error, and
//! the image is good for nothing. A right checksum is no reason to believe a record: whatever it says, an image that was a
//! namespace stays one or is refused.
//! Changes of a file that has no name any more are ignored: nobody can open it after a crash.
//! Until [`Image::settle`] ran, an image has no free list of inodes, and the tail fields hold the seal of the last block.

mod restore;

use crate::coalesce::Strides;
use crate::error::{Error, Result};
use crate::extended::is_well_formed;
use crate::fields::fields;
use crate::inode::{Inode, LOST, MAYBE_STALE, OPENED, UNCLEAN};
use crate::layout::{self, Checksum, Geometry, Layout, SlabKind};
use crate::map::{Extent, Stretch};
use crate::memory::Memory;
use crate::pool::BlockRun;
use crate::record::{NameBuffer, Operation, Record};
use crate::transaction::{Local, Transaction};
use crate::types::{
    Caller, Credentials, InodeId, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, MODE_TYPE,
    NAME_BYTES_MAX, PATH_BYTES_MAX, ROOT, SlotId, Timestamp,
};

/// In an image: somebody may have had the file open for writing.
const WRITING: u32 = 1 << 16;
/// In an image: the seal of the last block is valid.
const HAS_SEAL: u32 = 1 << 17;
/// What a snapshot keeps of an inode's flags.
const KEPT_FLAGS: u32 = UNCLEAN | OPENED | LOST | WRITING;
/// Pieces of a strided write attached in one transaction: each may split a node of every level of the tree.
const PIECES_BATCH: usize = 16;
/// Inodes backed at a time.
const BACKED_INODES: u32 = 4096;

fields!(Inode {
    // Same words as the tail.
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
    /// Records applied.
    pub records: u64,
}

/// What is left to do after a record.
enum Rest {
    /// A file to cut, and to free if it has no name.
    Cut { inode: InodeId, from_block: u32 },
    /// Pieces to give to a file, but for the first few.
    Pieces { inode: InodeId, strides: Strides, attached: usize },
}

impl Rest {
    /// Does a bounded part of it.
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
                    attach(tx, inode, piece)?;
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
    /// An image without even a root directory, in zeroed memory.
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

    /// Applies the records in `words` until they end or break off, and returns how many words that were.
    /// A symbolic link counts only with its target.
    /// Log records follow each other in LSN; those of a snapshot (`ordered` false) have none.
    pub(crate) fn replay(&mut self, words: &[u64], ordered: bool) -> Result<usize> {
        let mut at = 0;
        let mut buffer: NameBuffer = [0; PATH_BYTES_MAX + 1];
        while let Some((length, record)) = Record::decode(&words[at..], self.checksum) {
            if !record.operation.stands_in(ordered) {
                return contradiction("record in the wrong place");
            }
            if ordered {
                // Whole and valid, but not the next one: it was there before.
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

    /// Whether the target of a symbolic link comes next. A torn write may have left the one record without the other.
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

    /// Inodes in use, in ascending order.
    pub(crate) fn inodes(&self) -> Result<Vec<InodeId>> {
        self.transact(|tx| {
            let end = tx.records_end(SlabKind::Inode);
            Ok((1..end).map(InodeId).filter(|&id| tx.inode(id).is_ok()).collect())
        })
    }

    /// What a snapshot says about an inode: parameters of an `Inode` record.
    pub(crate) fn inode_record(&self, tx: &Transaction, inode: Inode) -> [u64; 13] {
        let flags = inode.flags(tx);
        let seal = match flags & HAS_SEAL {
            0 => 0,
            _ => 1 << 32 | u64::from(inode.sealed_crc(tx)),
        };
        let owner = Credentials { uid: inode.uid(tx), gid: inode.gid(tx) };
        let parent = if inode.is_directory(tx) { inode.parent(tx) } else { 0 };
        [
            u64::from(inode.id.0),
            u64::from(inode.mode(tx)) << 32 | u64::from(flags & KEPT_FLAGS),
            u64::from(inode.links(tx)),
            owner.pack(),
            u64::from(parent),
            inode.size(tx),
            inode.version(tx),
            inode.drained_version(tx),
            inode.accessed(tx),
            inode.modified(tx),
            inode.changed(tx),
            inode.born(tx),
            seal,
        ]
    }

    /// What a tier held that is `gone` with the node's memory is lost: files that had a part of it say so from now on.
    pub(crate) fn lose(&self, gone: &dyn Fn(u8) -> bool) -> Result<()> {
        for id in self.inodes()? {
            self.transact(|tx| {
                let inode = tx.inode(id)?;
                if inode.is_regular(tx) && tx.drop_lost_extents(inode, gone) {
                    inode.add_flags(tx, UNCLEAN | LOST);
                    set_seal(tx, inode, 0);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Makes the image a namespace that can be used: what a crash left open is unclean, blocks without a trustworthy
    /// checksum are stale, what stands behind the ends of files is their tails. Returns the seals of last blocks.
    pub(crate) fn settle(&self) -> Result<Vec<Seal>> {
        let mut seals = Vec::new();
        for id in self.inodes()? {
            let seal = self.transact(|tx| {
                let inode = tx.inode(id)?;
                if !inode.is_regular(tx) {
                    return Ok(None);
                }
                Ok(settle(tx, inode))
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

/// The checksum of a block, from the log.
pub(crate) struct Seal {
    /// A run of one.
    pub block: BlockRun,
    pub crc32c: u32,
}

/// Who replays: nobody in particular.
fn replayer(credentials: Credentials, now: Timestamp) -> Caller {
    Caller { slot: SlotId(0), credentials, now }
}

fn apply(tx: &mut Transaction, record: &Record, name: &[u8]) -> Result<Option<Rest>> {
    let p = record.parameters;
    let now = record.time;
    match record.operation {
        Operation::Create if p[2] as u32 & MODE_TYPE == MODE_SYMLINK => {
            contradiction("symbolic link without target")
        }
        Operation::Create => create(tx, p, name, now).map(|()| None),
        Operation::Symlink => {
            let parameters = [p[0], p[1], u64::from(MODE_SYMLINK | 0o777), p[2]];
            create(tx, &parameters, name, now).map(|()| None)
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
            take_name(tx, parent, name, inode, now)?;
            inode.set_changed(tx, now.0);
            forget(tx, parent, inode)
        }
        Operation::Link => {
            let (parent, inode) = (directory(tx, p[0])?, existing(tx, p[1])?);
            if inode.is_directory(tx) {
                return contradiction("second name of a directory");
            }
            give_name(tx, parent, name, inode, now).map(|()| None)
        }
        Operation::Rename => rename(tx, p, name, now),
        Operation::Exchange => exchange(tx, p, name, now).map(|()| None),
        Operation::Attributes => {
            let id = u32::try_from(p[0]).map_err(|_| Error::Corrupt { what: "inode number" })?;
            let Ok(inode) = tx.inode(InodeId(id)) else { return Ok(None) };
            if p[1] as u32 & MODE_TYPE != inode.kind(tx) {
                return contradiction("kind of an inode");
            }
            inode.set_mode(tx, p[1] as u32);
            inode.set_uid(tx, p[2] as u32);
            inode.set_gid(tx, p[3] as u32);
            inode.set_accessed(tx, p[4]);
            inode.set_modified(tx, p[5]);
            inode.set_changed(tx, now.0);
            Ok(None)
        }
        Operation::Extended => {
            if let Ok(inode) = existing(tx, p[0]) {
                set_extended(tx, inode, name)?;
                inode.set_changed(tx, now.0);
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
            attach_run(tx, inode, p[1], p[2]).map(|()| None)
        }
        Operation::Close
        | Operation::Truncate
        | Operation::Write
        | Operation::Drained
        | Operation::Opened
        | Operation::Sealed
        | Operation::Strides => match file_of(tx, record)? {
            Some(inode) => change_data(tx, record, inode),
            None => Ok(None),
        },
    }
}

/// The file whose data the record changes; `None` if there is nothing to change: it lost its last name before.
fn file_of(tx: &Transaction, record: &Record) -> Result<Option<Inode>> {
    match tx.inode(InodeId(record.parameters[0] as u32)) {
        Ok(inode) if inode.is_regular(tx) => Ok(Some(inode)),
        Ok(_) if record.operation != Operation::Close => contradiction("data of what is no file"),
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

/// Gives the inode's record back; its extents are gone.
fn release(tx: &mut Transaction, inode: Inode) -> Result<()> {
    tx.drop_extended(inode)?;
    if inode.is_symlink(tx) && inode.target(tx) != 0 {
        tx.free_text(inode.target(tx));
    }
    tx.set(inode.at, 0);
    tx.release_record(SlabKind::Inode);
    Ok(())
}

fn create(tx: &mut Transaction, p: &[u64], name: &[u8], now: Timestamp) -> Result<()> {
    let parent = directory(tx, p[0])?;
    let inode = claim(tx, p[1], p[2] as u32, &replayer(Credentials::unpack(p[3]), now))?;
    give_name(tx, parent, name, inode, now)?;
    if inode.is_directory(tx) {
        inode.set_parent(tx, parent.id.0);
        inode.add_link(tx)?;
        parent.add_link(tx)?;
    } else if inode.is_regular(tx) {
        inode.add_flags(tx, WRITING);
    }
    Ok(())
}

/// Adds `name` of `inode` to `parent`.
fn give_name(
    tx: &mut Transaction,
    parent: Inode,
    name: &[u8],
    inode: Inode,
    now: Timestamp,
) -> Result<()> {
    permit_name(name)?;
    tx.link_name(parent, name, inode, now)
}

fn permit_name(name: &[u8]) -> Result<()> {
    let is_proper = !matches!(name, b"" | b"." | b"..")
        && name.len() <= NAME_BYTES_MAX
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    match is_proper {
        true => Ok(()),
        false => contradiction("name that is none"),
    }
}

/// `moved` is about to be in `to`: it must not be above it.
fn permit_parent(tx: &Transaction, moved: Inode, to: Inode) -> Result<()> {
    let mut above = to;
    while moved.is_directory(tx) && above.id != ROOT {
        if above.id == moved.id {
            return contradiction("directory inside itself");
        }
        above = directory(tx, u64::from(above.parent(tx)))?;
    }
    Ok(())
}

/// Removes `name` of `inode` from `parent`.
fn take_name(
    tx: &mut Transaction,
    parent: Inode,
    name: &[u8],
    inode: Inode,
    now: Timestamp,
) -> Result<()> {
    match tx.find_name(parent.id, name).filter(|entry| entry.inode == inode.id) {
        Some(entry) => {
            tx.unlink_name(parent, entry, now);
            Ok(())
        }
        None => contradiction("name that is not there"),
    }
}

/// `inode` lost a name in `parent`; with the last one it goes.
fn forget(tx: &mut Transaction, parent: Inode, inode: Inode) -> Result<Option<Rest>> {
    if inode.is_directory(tx) {
        if inode.held(tx) != 0 {
            return contradiction("removed directory is not empty");
        }
        parent.drop_link(tx);
        release(tx, inode)?;
        return Ok(None);
    }
    inode.drop_link(tx);
    match (inode.links(tx), inode.is_regular(tx)) {
        (0, true) => Ok(Some(Rest::Cut { inode: inode.id, from_block: 0 })),
        (0, false) => {
            release(tx, inode)?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn two_names(names: &[u8]) -> Result<(&[u8], &[u8])> {
    match names.iter().position(|&byte| byte == 0) {
        Some(end) => Ok((&names[..end], &names[end + 1..])),
        None => contradiction("two names"),
    }
}

fn rename(tx: &mut Transaction, p: &[u64], names: &[u8], now: Timestamp) -> Result<Option<Rest>> {
    let (old, new) = two_names(names)?;
    let (from, moved, to) = (directory(tx, p[0])?, existing(tx, p[1])?, directory(tx, p[2])?);
    permit_parent(tx, moved, to)?;
    let mut cut = None;
    if p[3] != 0 {
        let victim = existing(tx, p[3])?;
        take_name(tx, to, new, victim, now)?;
        victim.set_changed(tx, now.0);
        cut = forget(tx, to, victim)?;
    }
    take_name(tx, from, old, moved, now)?;
    moved.drop_link(tx);
    give_name(tx, to, new, moved, now)?;
    change_parent(tx, moved, from, to)?;
    Ok(cut)
}

fn change_parent(tx: &mut Transaction, moved: Inode, from: Inode, to: Inode) -> Result<()> {
    if moved.is_directory(tx) && from.id != to.id {
        from.drop_link(tx);
        to.add_link(tx)?;
        moved.set_parent(tx, to.id.0);
    }
    Ok(())
}

fn exchange(tx: &mut Transaction, p: &[u64], names: &[u8], now: Timestamp) -> Result<()> {
    let (name, other_name) = two_names(names)?;
    let (parent, inode) = (directory(tx, p[0])?, existing(tx, p[1])?);
    let (other_parent, other) = (directory(tx, p[2])?, existing(tx, p[3])?);
    permit_parent(tx, inode, other_parent)?;
    permit_parent(tx, other, parent)?;
    for (parent, name, inode) in [(parent, name, inode), (other_parent, other_name, other)] {
        take_name(tx, parent, name, inode, now)?;
        inode.drop_link(tx);
    }
    give_name(tx, parent, name, other, now)?;
    give_name(tx, other_parent, other_name, inode, now)?;
    change_parent(tx, inode, parent, other_parent)?;
    change_parent(tx, other, other_parent, parent)
}

/// As `attach`, from a record.
fn attach_run(tx: &mut Transaction, inode: Inode, file_block: u64, run: u64) -> Result<()> {
    let file_block =
        u32::try_from(file_block).map_err(|_| Error::Corrupt { what: "file block" })?;
    attach(tx, inode, Extent { file_block, blocks: BlockRun::unpack(run) })
}

/// Gives the file blocks that must be free, where it must have a hole.
fn attach(tx: &mut Transaction, inode: Inode, extent: Extent) -> Result<()> {
    let Extent { file_block, blocks } = extent;
    let tier = tx.layout.tiers.get(blocks.tier as usize);
    let inside = tier.is_some_and(|tier| blocks.end() <= tier.blocks);
    let size_blocks = inode.size(tx).div_ceil(tx.layout.hugeblock_bytes);
    let end = file_block.checked_add(blocks.count);
    if blocks.count == 0 || !inside || end.is_none_or(|end| u64::from(end) > size_blocks) {
        return contradiction("run of blocks");
    }
    let free = (0..blocks.count).all(|index| !tx.is_used(blocks.tier, blocks.first + index));
    let hole = matches!(
        tx.stretch(inode.map(tx), file_block),
        Stretch::Hole(count) if count >= blocks.count
    );
    if !free || !hole {
        return contradiction("block given away twice");
    }
    tx.mark_used(blocks);
    tx.attach(inode, extent)
}

/// Gives a file or directory the extended attributes in `text` instead of those it has.
fn set_extended(tx: &mut Transaction, inode: Inode, text: &[u8]) -> Result<()> {
    let may_have_any = inode.is_regular(tx) || inode.is_directory(tx);
    match may_have_any && is_well_formed(text) {
        true => tx.store_extended(inode, text),
        false => contradiction("extended attributes"),
    }
}

fn set_seal(tx: &mut Transaction, inode: Inode, seal: u64) {
    match seal >> 32 {
        0 => inode.clear_flags(tx, HAS_SEAL),
        _ => {
            inode.add_flags(tx, HAS_SEAL);
            inode.set_sealed_crc(tx, seal as u32);
        }
    }
}

fn change_data(tx: &mut Transaction, record: &Record, inode: Inode) -> Result<Option<Rest>> {
    let p = record.parameters;
    match record.operation {
        Operation::Close => {
            inode.set_version(tx, p[1]);
            if p[2] & 1 != 0 {
                inode.add_flags(tx, UNCLEAN);
            }
            if p[2] & 2 == 0 {
                inode.clear_flags(tx, WRITING);
            }
        }
        Operation::Drained => inode.set_drained_version(tx, p[1]),
        Operation::Opened => inode.add_flags(tx, OPENED),
        Operation::Sealed => {
            inode.clear_flags(tx, OPENED);
            set_seal(tx, inode, p[1]);
        }
        Operation::Truncate => return truncate(tx, inode, p[1], record.time),
        Operation::Strides => return write_strides(tx, inode, p, record.time).map(Some),
        _ => write(tx, inode, p, record.time)?,
    }
    Ok(None)
}

fn write(tx: &mut Transaction, inode: Inode, p: &[u64], now: Timestamp) -> Result<()> {
    let Some(end) = p[1].checked_add(p[2]) else { return contradiction("end of a write") };
    grow(tx, inode, end, p[5], now)?;
    match p[4] {
        0 => Ok(()),
        run => attach_run(tx, inode, p[3], run),
    }
}

fn write_strides(tx: &mut Transaction, inode: Inode, p: &[u64], now: Timestamp) -> Result<Rest> {
    let shift = tx.layout.hugeblock_shift;
    let strides = p.first_chunk().and_then(|parameters| Strides::decode(parameters, shift));
    let Some(strides) = strides else { return contradiction("pieces of a write") };
    grow(tx, inode, u64::from(strides.end()) << shift, 0, now)?;
    Ok(Rest::Pieces { inode: inode.id, strides, attached: 0 })
}

/// A write ended at `end`, which may be behind that of the file, and left a seal of the block there.
fn grow(tx: &mut Transaction, inode: Inode, end: u64, seal: u64, now: Timestamp) -> Result<()> {
    if !file_fits(tx, end) {
        return contradiction("end of a write");
    }
    let shift = tx.layout.hugeblock_shift;
    let size = inode.size(tx).max(end);
    inode.set_size(tx, size);
    if end >> shift == size >> shift {
        set_seal(tx, inode, seal);
    }
    inode.add_flags(tx, WRITING);
    touch(tx, inode, now);
    Ok(())
}

fn truncate(tx: &mut Transaction, inode: Inode, size: u64, now: Timestamp) -> Result<Option<Rest>> {
    if !file_fits(tx, size) {
        return contradiction("size of a file");
    }
    let block_bytes = tx.layout.hugeblock_bytes;
    let shrinks = size < inode.size(tx);
    let last = (size >> tx.layout.hugeblock_shift) as u32;
    let cuts_block = size & (block_bytes - 1) != 0
        && matches!(tx.stretch(inode.map(tx), last), Stretch::Data(_));
    if size == 0 {
        inode.clear_flags(tx, UNCLEAN | LOST);
    }
    if shrinks && cuts_block {
        inode.add_flags(tx, OPENED);
    }
    set_seal(tx, inode, 0);
    inode.set_size(tx, size);
    inode.add_flags(tx, WRITING);
    touch(tx, inode, now);
    let from_block = size.div_ceil(block_bytes) as u32;
    Ok(Some(Rest::Cut { inode: inode.id, from_block }))
}

fn file_fits(tx: &Transaction, size: u64) -> bool {
    size <= u64::from(u32::MAX) << tx.layout.hugeblock_shift
}

fn touch(tx: &mut Transaction, inode: Inode, now: Timestamp) {
    inode.next_version(tx);
    inode.set_modified(tx, now.0);
    inode.set_changed(tx, now.0);
}

/// Turns what replaying noted about a file into what a namespace in use has.
fn settle(tx: &mut Transaction, inode: Inode) -> Option<Seal> {
    let flags = inode.flags(tx);
    let crc32c = inode.sealed_crc(tx);
    let size = inode.size(tx);
    inode.clear_flags(tx, WRITING | HAS_SEAL);
    if flags & WRITING != 0 {
        inode.add_flags(tx, UNCLEAN);
    }
    inode.set_written_end(tx, size);
    inode.set_appended_end(tx, size);
    inode.clear_tail(tx);
    let last = match tx.stretch(inode.map(tx), (size >> tx.layout.hugeblock_shift) as u32) {
        Stretch::Data(run) if size & (tx.layout.hugeblock_bytes - 1) != 0 => Some(run),
        _ => None,
    };
    if last.is_some() {
        inode.set_tail(tx, size);
    }
    if flags & OPENED != 0 {
        mark_all_stale(tx, inode);
        return None;
    }
    let run = last?;
    let block = BlockRun { count: 1, ..run };
    if flags & HAS_SEAL == 0 {
        tx.note_stale(inode, block);
        return None;
    }
    Some(Seal { block, crc32c })
}

fn mark_all_stale(tx: &mut Transaction, inode: Inode) {
    inode.add_flags(tx, MAYBE_STALE);
    let map = inode.map(tx);
    let mut next = tx.first_extent_from(map, 0);
    while let Some(extent) = next {
        tx.set_stale(extent.blocks, true);
        next = tx.first_extent_from(map, extent.file_block.saturating_add(1));
    }
}
