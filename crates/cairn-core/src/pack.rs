//! Packing: where there is no room, files that need little of their hugeblock share one, so that small files take what they hold.
//!
//! The first file of a *pack* gives its hugeblock to an inode of its own without a name, and others' bytes are put behind its own.
//! A packed file has no blocks; it says where in which pack its bytes are, and what the checksum of its block was. A pack
//! has a link for each of its files, and goes with the last one. Nothing in it ever moves, and nothing is written over.
//! Must stay true: a packed file is neither open for writing, nor mapped, nor cut but to nothing: who wants that has it
//! unpacked before (`Packed`). A packer holds the pack open while it copies into it, so that the block is nobody else's.
//! Not where metadata are durable: the log has no record of it. Does not decide when, and does not move bytes.

use crate::error::{Error, Result};
use crate::fs::Microfs;
use crate::handle::PATH_ONLY;
use crate::inode::{Inode, NAMELESS, PACKED};
use crate::layout::{PACKED_TO, SlabKind};
use crate::map::{Extent, Stretch};
use crate::pin::Reservation;
use crate::pool::BlockRun;
use crate::process::Slot;
use crate::promote::State;
use crate::transaction::Transaction;
use crate::types::{Caller, HandleId, InodeId, MODE_REGULAR};
use std::sync::atomic::Ordering;

/// A packed file fills at most this part of a hugeblock: one in so many.
const SMALL_SHARE: u64 = 2;
/// Inodes looked at under one lock.
const INODES_BATCH: u32 = 1024;
/// Flags of a pack.
const PACK: u32 = PACKED | NAMELESS;

/// A small file, and where its bytes are.
#[derive(Debug)]
pub struct SmallFile {
    inode: InodeId,
    /// Its length in bytes.
    pub bytes: u32,
    /// Tier and byte offset on it.
    pub source: (u8, u64),
    /// CRC32C of its bytes followed by zeros up to a hugeblock.
    pub crc32c: u32,
    state: State,
}

/// A pack that is being filled.
#[derive(Debug)]
pub struct Pack {
    inode: InodeId,
    handle: HandleId,
    tier: u8,
    block: u32,
    /// Bytes of it that files have.
    filled: u32,
}

/// A packed file that is to have a block of its own again.
#[derive(Debug)]
pub struct Unpacking {
    /// What it is.
    pub file: SmallFile,
    /// Tier and number of the hugeblock to which its bytes go, followed by zeros.
    pub target: (u8, u32),
    reservation: Reservation,
}

impl Inode {
    pub(crate) fn is_packed(self, tx: &Transaction) -> bool {
        self.flags(tx) & PACK == PACKED
    }

    /// Whether it holds the bytes of packed files.
    pub(crate) fn is_pack(self, tx: &Transaction) -> bool {
        self.flags(tx) & PACK == PACK
    }

    /// Checksum of the block that a packed file had.
    pub(crate) fn packed_checksum(self, tx: &Transaction) -> u32 {
        self.written_end(tx) as u32
    }

    /// Errors: `Packed`.
    pub(crate) fn require_unpacked(self, tx: &Transaction) -> Result<()> {
        match self.is_packed(tx) {
            true => Err(Error::Packed { inode: self.id }),
            false => Ok(()),
        }
    }

    /// The file's bytes are in `pack` from byte `at` on, from now on.
    fn enter_pack(self, tx: &mut Transaction, (pack, at): (Inode, u32), crc32c: u32) -> Result<()> {
        pack.add_link(tx)?;
        self.note_move(tx);
        self.clear_tail(tx);
        self.set_written_end(tx, u64::from(crc32c));
        self.set_appended_end(tx, u64::from(pack.id.0) << 32 | u64::from(at));
        self.add_flags(tx, PACKED);
        Ok(())
    }
}

impl Transaction<'_> {
    /// The pack of a packed file, and from which byte on its bytes are there; none, and the namespace is corrupt, if there is none.
    pub(crate) fn pack_of(&self, inode: Inode) -> Option<(Inode, u64)> {
        let place = inode.appended_end(self);
        let pack = self.inode(InodeId((place >> 32) as u32)).ok();
        let at = u64::from(place as u32);
        let holds = |pack: &Inode| {
            pack.is_pack(self) && at.saturating_add(inode.stored_size(self)) <= pack.size(self)
        };
        let found = pack.filter(holds).map(|pack| (pack, at));
        if found.is_none() {
            self.mark_corrupt("pack of a small file");
        }
        found
    }

    /// The map that has the file's bytes, and from which byte on.
    pub(crate) fn data_of(&self, inode: Inode) -> (u32, u64) {
        match inode.is_packed(self).then(|| self.pack_of(inode)).flatten() {
            Some((pack, at)) => (pack.map(self), at),
            None => (inode.map(self), 0),
        }
    }

    /// The file has nothing in a pack any more, if it had. Its pack goes if it was the last one.
    pub(crate) fn leave_pack(&mut self, inode: Inode, slot: Option<Slot>) {
        if !inode.is_packed(self) {
            return;
        }
        let pack = self.pack_of(inode);
        inode.note_move(self);
        inode.clear_flags(self, PACKED);
        let size = inode.stored_size(self);
        inode.set_written_end(self, size);
        inode.set_appended_end(self, size);
        if let Some((pack, _)) = pack {
            pack.drop_link(self);
            if pack.links(self) == 0 && pack.opens(self) == 0 {
                self.dispose_inode(pack, slot);
            }
        }
    }

    /// The inode as something to pack: a file on `tier` that is small, quiet and sealed, and needs no more than `room` bytes.
    fn small_file(&mut self, id: InodeId, tier: u8, room: u64) -> Result<Option<SmallFile>> {
        let Ok(inode) = self.inode(id) else { return Ok(None) };
        // Before the lease is recalled: that is not worth it.
        if !inode.is_regular(self) || inode.held(self) != 1 || inode.writers(self) != 0 {
            return Ok(None);
        }
        self.recall(inode)?;
        let Some(state) = State::of(self, inode) else { return Ok(None) };
        let bytes = inode.size(self);
        let is_small = (1..=room.min(self.layout.hugeblock_bytes / SMALL_SHARE)).contains(&bytes);
        let Stretch::Data(run) = self.stretch(inode.map(self), 0) else { return Ok(None) };
        let is_meant = is_small
            && inode.flags(self) & PACK == 0
            && inode.links(self) > 0
            && run.tier == tier
            && !self.is_stale(run.tier, run.first);
        let source = (run.tier, u64::from(run.first) << self.layout.hugeblock_shift);
        let crc32c = self.checksum(run.tier, run.first);
        let file = SmallFile { inode: id, bytes: bytes as u32, source, crc32c, state };
        Ok(is_meant.then_some(file))
    }
}

impl Microfs {
    /// Makes the block of a small file that of a pack, if there is another file that fits behind it: that one is to be copied next.
    /// None: there are no two such files. A pack is ended by [`Microfs::end_pack`].
    pub fn begin_pack(&self, caller: &Caller) -> Result<Option<(Pack, SmallFile)>> {
        if self.layout().durable {
            return Ok(None);
        }
        for tier in (0..).zip(&self.layout().tiers).filter(|(_, it)| it.blocks > 0).map(|it| it.0) {
            let Some(first) = self.find_small(tier, u64::MAX)? else { continue };
            // Each is at most half as long as a block.
            let Some(second) = self.find_small(tier, u64::MAX)? else { continue };
            if second.inode == first.inode {
                continue;
            }
            if let Some(pack) = self.begin_pack_with(caller, &first)? {
                return Ok(Some((pack, second)));
            }
        }
        Ok(None)
    }

    /// None, and nothing done, if the file changed.
    fn begin_pack_with(&self, caller: &Caller, first: &SmallFile) -> Result<Option<Pack>> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let Ok(inode) = tx.recalled_inode(first.inode) else { return Ok(None) };
            if State::of(tx, inode) != Some(first.state) || inode.writers(tx) != 0 {
                return Ok(None);
            }
            let pack = tx.new_inode(MODE_REGULAR, caller)?;
            let (map, held, pack_map) = (inode.map(tx), inode.held(tx), pack.map(tx));
            inode.set_map(tx, pack_map);
            inode.set_held(tx, 0);
            pack.set_map(tx, map);
            pack.set_held(tx, held);
            pack.add_flags(tx, PACK);
            pack.set_size(tx, u64::from(first.bytes));
            let (tier, offset) = first.source;
            let block = (offset >> tx.layout.hugeblock_shift) as u32;
            // What is in it has checksums of its own.
            tx.set_stale(BlockRun { tier, first: block, count: 1 }, true);
            inode.enter_pack(tx, (pack, 0), first.crc32c)?;
            let handle = tx.new_handle(slot, pack, PATH_ONLY)?.id;
            Ok(Some(Pack { inode: pack.id, handle, tier, block, filled: first.bytes }))
        })
    }

    /// A file that fits into what is left of a pack.
    pub fn next_for_pack(&self, pack: &Pack) -> Result<Option<SmallFile>> {
        let room = self.layout().hugeblock_bytes.saturating_sub(u64::from(pack.filled));
        self.find_small(pack.tier, room)
    }

    /// Where the bytes of the next file go: a tier, and a byte offset on it.
    pub fn pack_target(&self, pack: &Pack) -> (u8, u64) {
        let start = u64::from(pack.block) << self.layout().hugeblock_shift;
        (pack.tier, start + u64::from(pack.filled))
    }

    /// Has the file, whose bytes were copied, be in the pack, and frees its block; false, and nothing done, if it changed.
    pub fn put_in_pack(&self, caller: &Caller, pack: &mut Pack, file: &SmallFile) -> Result<bool> {
        let filled = self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let Ok(inode) = tx.recalled_inode(file.inode) else { return Ok(None) };
            let holder = tx.inode(pack.inode)?;
            let is_same = State::of(tx, inode) == Some(file.state) && inode.writers(tx) == 0;
            let filled = u64::from(pack.filled) + u64::from(file.bytes);
            let fits = holder.is_pack(tx) && filled <= tx.layout.hugeblock_bytes;
            if !is_same || !fits || inode.links(tx) == 0 {
                return Ok(None);
            }
            tx.free_first_extent(inode, Some(slot));
            holder.set_size(tx, filled);
            inode.enter_pack(tx, (holder, pack.filled), file.crc32c)?;
            Ok(Some(filled as u32))
        })?;
        pack.filled = filled.unwrap_or(pack.filled);
        Ok(filled.is_some())
    }

    /// The pack stays as it is.
    pub fn end_pack(&self, caller: &Caller, pack: &Pack) -> Result<()> {
        self.release(caller.slot, pack.handle, caller.now)
    }

    /// Plans to give a packed file a block of its own; `None` if it is packed no more.
    /// Errors: `NoSpace`; `Busy` if too many writes of this process are in flight.
    pub fn plan_unpacking(&self, caller: &Caller, inode: InodeId) -> Result<Option<Unpacking>> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let Ok(inode) = tx.recalled_inode(inode) else { return Ok(None) };
            let Some((pack, at)) = inode.is_packed(tx).then(|| tx.pack_of(inode)).flatten() else {
                return Ok(None);
            };
            let state = State::of(tx, inode).ok_or(Error::Busy)?;
            let Stretch::Data(run) = tx.stretch(pack.map(tx), 0) else {
                tx.mark_corrupt("pack without a block");
                return Ok(None);
            };
            let start = u64::from(run.first) << tx.layout.hugeblock_shift;
            let file = SmallFile {
                inode: inode.id,
                bytes: inode.size(tx) as u32,
                source: (run.tier, start + at),
                crc32c: inode.packed_checksum(tx),
                state,
            };
            let blocks = tx.allocate_shared(slot, 1).ok_or(Error::NoSpace)?;
            let reservation = tx.reserve(slot, blocks)?;
            Ok(Some(Unpacking { file, target: (blocks.tier, blocks.first), reservation }))
        })
    }

    /// Gives the file the block that its bytes were copied to, whose checksum is stored; false, and nothing done, if it changed. The
    /// unpacking is over unless this fails.
    pub fn commit_unpacking(&self, caller: &Caller, unpacking: &Unpacking) -> Result<bool> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = tx.reserved(slot, unpacking.reservation)?;
            let file = &unpacking.file;
            let inode = tx.recalled_inode(file.inode).ok();
            let is_same = |inode: &Inode| State::of(tx, *inode) == Some(file.state);
            let Some(inode) = inode.filter(|inode| inode.is_packed(tx)).filter(is_same) else {
                tx.abandon_pin(slot, pin);
                return Ok(false);
            };
            let (tier, first) = unpacking.target;
            let blocks = BlockRun { tier, first, count: 1 };
            pin.clear(tx);
            tx.leave_pack(inode, Some(slot));
            tx.note_change(blocks);
            tx.attach(inode, Extent { file_block: 0, blocks })?;
            Ok(true)
        })
    }

    /// Gives up an unpacking whose copy failed.
    pub fn abort_unpacking(&self, caller: &Caller, unpacking: &Unpacking) -> Result<()> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = tx.reserved(slot, unpacking.reservation)?;
            tx.abandon_pin(slot, pin);
            Ok(())
        })
    }

    /// The next file to pack, behind the one that was found last, wherever that was done: all are looked at once.
    fn find_small(&self, tier: u8, room: u64) -> Result<Option<SmallFile>> {
        let place = &self.memory().words()[PACKED_TO];
        let mut next = place.load(Ordering::Relaxed) as u32;
        let mut left = u32::MAX;
        while left > 0 {
            let (found, looked_at, end) = self.transact(|tx| {
                let end = tx.records_end(SlabKind::Inode);
                if next >= end {
                    next = 1;
                }
                let numbers = next..end.min(next.saturating_add(INODES_BATCH.min(left)));
                let count = numbers.len() as u32;
                for number in numbers {
                    if let Some(file) = tx.small_file(InodeId(number), tier, room)? {
                        return Ok((Some(file), 0, end));
                    }
                    if !tx.has_room() {
                        return Ok((None, number + 1 - next, end));
                    }
                }
                Ok((None, count.max(1), end))
            })?;
            if let Some(file) = found {
                place.store(u64::from(file.inode.0) + 1, Ordering::Relaxed);
                return Ok(Some(file));
            }
            next = next.saturating_add(looked_at);
            left = left.min(end).saturating_sub(looked_at);
        }
        Ok(None)
    }
}
