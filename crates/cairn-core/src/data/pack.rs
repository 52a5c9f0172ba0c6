//! Packing: when space is short, small files share a hugeblock, so that each takes about as much as
//! it holds.
//!
//! The first file of a *pack* gives its hugeblock to a nameless inode, and the bytes of other files
//! are put behind its own. A packed file has no blocks. It records the pack, where in the pack its
//! bytes are, and what the checksum of its block was. A pack has a link for each of its files, and
//! is freed with the last one. Files do not move within a pack. Other files fill the gaps that
//! files leave, and the emptiest pack is emptied into another one. So small files take what they
//! hold, except for gaps that are too small for any of them.
//!
//! Must stay true: a packed file is neither open for writing nor mapped, and is only cut to
//! nothing. For anything else it is unpacked first (`Packed`). A packer holds the pack open while
//! it copies into it, so that nobody else gets the block. A pack is filled further only if the last
//! packer reported the end of its copies. Gaps are filled only if no image has the block. Metadata
//! are not durable: the log has no record for packing.
//!
//! Does not decide when to pack, and does not move bytes.

use crate::data::map::{Extent, Stretch};
use crate::data::quiet::Quiet;
use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, MAYBE_STALE, NAMELESS, PACKED};
use crate::engine::run::BlockRun;
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{FILLED_PACK, LAST_PACK, PACKED_TO, SlabKind};
use crate::format::types::{Caller, HandleId, InodeId, MODE_REGULAR};
use crate::process::handle::PATH_ONLY;
use crate::process::pin::Reservation;
use std::iter::once;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A packed file takes at most one part in this many of a hugeblock.
const SMALL_SHARE: u64 = 2;
/// Room of less than one part in this many of a hugeblock is not used.
const ROOM_SHARE: u32 = 128;
/// Inodes examined under one lock.
const INODES_BATCH: u32 = 1024;
/// Inodes examined to find one more file for a pack. Bounded, so that a new small file in a full
/// store does not cost a scan of all inodes.
const LOOKS_FOR_NEXT: u32 = 4096;
/// Flags of a pack.
const PACK: u32 = PACKED | NAMELESS;

/// A small file, and the place of its bytes.
#[derive(Debug)]
pub struct SmallFile {
    inode: InodeId,
    /// Length in bytes.
    pub bytes: u32,
    /// Tier and byte offset on it.
    pub source: (u8, u64),
    /// CRC32C of its bytes followed by zeros up to a hugeblock; `None` if it is not known.
    pub crc32c: Option<u32>,
    /// Pack that the file is in.
    pack: Option<InodeId>,
    /// Its block is in an image, which may have more bytes of it than the file has.
    in_image: bool,
    quiet: Quiet,
}

/// A pack that is being filled.
#[derive(Debug)]
pub struct Pack {
    inode: InodeId,
    handle: HandleId,
    tier: u8,
    block: u32,
    /// Byte ranges of the block that no file uses.
    room: Vec<Range<u32>>,
    /// Pack that is to be emptied into this one.
    victim: Option<InodeId>,
}

impl Pack {
    /// Returns the index of the smallest room that `bytes` fit into.
    fn room_for(&self, bytes: u32) -> Option<usize> {
        let fitting = self.room.iter().enumerate().filter(|(_, room)| room.len() >= bytes as usize);
        fitting.min_by_key(|(_, room)| room.len()).map(|(index, _)| index)
    }

    /// Whether the file may be put into it: a file that has a block, or one from the pack that is
    /// to be emptied.
    fn takes(&self, file: &SmallFile) -> bool {
        (file.pack.is_none() || file.pack == self.victim) && self.room_for(file.bytes).is_some()
    }
}

/// A pack that nobody fills, and the number of its bytes that files use.
type Idle = (InodeId, u64);

/// The emptiest packs of a tier.
#[derive(Default)]
struct Emptiest {
    of_all: Option<Idle>,
    /// The two emptiest packs whose gaps may be filled.
    usable: [Option<Idle>; 2],
}

impl Emptiest {
    fn note(&mut self, idle: Idle, is_usable: bool) {
        let is_less = |known: &Option<Idle>| known.is_none_or(|known| idle.1 < known.1);
        if is_less(&self.of_all) {
            self.of_all = Some(idle);
        }
        let [first, second] = &mut self.usable;
        if is_usable && is_less(first) {
            *second = first.replace(idle);
        } else if is_usable && is_less(second) {
            *second = Some(idle);
        }
    }

    /// Returns the pack to fill, and the pack to empty into it if all its bytes may fit.
    fn pair(&self, block_bytes: u64) -> Option<(InodeId, Option<InodeId>)> {
        let victim = self.of_all?;
        let others = self.usable.into_iter().flatten();
        match others.clone().find(|usable| usable.0 != victim.0) {
            Some((id, bytes)) if bytes + victim.1 <= block_bytes => Some((id, Some(victim.0))),
            _ => others.map(|(id, _)| (id, None)).next(),
        }
    }
}

/// A packed file that is to have a block of its own again.
#[derive(Debug)]
pub struct Unpacking {
    /// The packed file.
    pub file: SmallFile,
    /// Tier and number of the hugeblock to which its bytes go, followed by zeros.
    pub target: (u8, u32),
    reservation: Reservation,
}

impl Inode {
    pub(crate) fn is_packed(self, tx: &Transaction) -> bool {
        self.flags(tx) & PACK == PACKED
    }

    /// Whether the inode is a pack: it holds the bytes of packed files.
    pub(crate) fn is_pack(self, tx: &Transaction) -> bool {
        self.flags(tx) & PACK == PACK
    }

    /// Checksum that the block of a packed file had.
    pub(crate) fn packed_checksum(self, tx: &Transaction) -> u32 {
        self.written_end(tx) as u32
    }

    /// Checks that the file is not packed. Errors: `Packed`.
    pub(crate) fn require_unpacked(self, tx: &Transaction) -> Result<()> {
        match self.is_packed(tx) {
            true => Err(Error::Packed { inode: self.id }),
            false => Ok(()),
        }
    }

    /// Records that the file's bytes are in `pack` from byte `at` on.
    fn enter_pack(self, tx: &mut Transaction, (pack, at): (Inode, u32), crc32c: u32) -> Result<()> {
        pack.add_link(tx)?;
        let held = pack.written_end(tx).saturating_add(self.size(tx));
        pack.set_written_end(tx, held);
        self.note_move(tx);
        self.clear_tail(tx);
        self.set_written_end(tx, u64::from(crc32c));
        self.set_appended_end(tx, u64::from(pack.id.0) << 32 | u64::from(at));
        self.clear_flags(tx, MAYBE_STALE);
        self.add_flags(tx, PACKED);
        Ok(())
    }

    /// Whether the inode is a pack that nobody fills.
    fn is_idle_pack(self, tx: &Transaction) -> bool {
        self.is_pack(tx) && self.links(tx) > 0 && self.opens(tx) == 0
    }
}

impl Transaction<'_> {
    /// Returns the pack of a packed file and the byte offset of its bytes there. If there is no
    /// such pack, marks the namespace corrupt and returns `None`.
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

    /// Returns the map that has the file's bytes, and the byte offset of the first one there.
    pub(crate) fn data_of(&self, inode: Inode) -> (u32, u64) {
        match inode.is_packed(self).then(|| self.pack_of(inode)).flatten() {
            Some((pack, at)) => (pack.map(self), at),
            None => (inode.map(self), 0),
        }
    }

    /// Returns the block of a pack.
    fn block_of(&self, pack: Inode) -> Option<BlockRun> {
        match self.stretch(pack.map(self), 0) {
            Stretch::Data(run) => Some(BlockRun { count: 1, ..run }),
            Stretch::Hole(_) => {
                self.mark_corrupt("pack without a block");
                None
            }
        }
    }

    /// Takes a file out of its pack, if it is in one. Frees the pack with its last file.
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
        let Some((pack, _)) = pack else { return };
        let held = pack.written_end(self).saturating_sub(size);
        pack.set_written_end(self, held);
        pack.drop_link(self);
        if pack.links(self) == 0 && pack.opens(self) == 0 {
            self.dispose_inode(pack, slot);
        }
    }

    /// Returns the inode as something to pack: a file on `tier` that is small and quiet, with a
    /// block of its own or in a pack.
    fn small_file(&mut self, id: InodeId, tier: u8) -> Result<Option<SmallFile>> {
        let Ok(inode) = self.inode(id) else { return Ok(None) };
        let is_packed = inode.is_packed(self);
        // Checked first, so that no lease is recalled for a file that cannot be packed.
        let may_be = inode.is_regular(self)
            && (is_packed || inode.held(self) == 1)
            && !inode.is_pack(self)
            && inode.writers(self) == 0
            && inode.links(self) > 0;
        if !may_be {
            return Ok(None);
        }
        self.recall(inode)?;
        let Some(quiet) = Quiet::of(self, inode) else { return Ok(None) };
        let bytes = inode.size(self);
        if !(1..=self.layout.hugeblock_bytes / SMALL_SHARE).contains(&bytes) {
            return Ok(None);
        }
        let (run, at, crc32c, pack) = if is_packed {
            let Some((pack, at)) = self.pack_of(inode) else { return Ok(None) };
            let Some(run) = self.block_of(pack) else { return Ok(None) };
            (run, at, Some(inode.packed_checksum(self)), Some(pack.id))
        } else {
            let Stretch::Data(run) = self.stretch(inode.map(self), 0) else { return Ok(None) };
            let is_sealed = !self.is_stale(run.tier, run.first);
            (run, 0, is_sealed.then(|| self.checksum(run.tier, run.first)), None)
        };
        let source = (run.tier, (u64::from(run.first) << self.layout.hugeblock_shift) + at);
        let in_image = self.in_image(run.tier, run.first);
        let file =
            SmallFile { inode: id, bytes: bytes as u32, source, crc32c, pack, in_image, quiet };
        Ok((run.tier == tier).then_some(file))
    }
}

impl Microfs {
    /// Begins to fill a pack: the one that was filled last, a new one from the block of a small
    /// file, or one with gaps that files left. Returns it with the file to copy next; `None` if
    /// nothing can be packed. [`Microfs::end_pack`] ends it.
    pub fn begin_pack(&self, caller: &Caller) -> Result<Option<(Pack, SmallFile)>> {
        if self.layout().durable {
            return Ok(None);
        }
        if let Some(begun) = self.go_on_with_pack(caller)? {
            return Ok(Some(begun));
        }
        for tier in (0..).zip(&self.layout().tiers).filter(|(_, it)| it.blocks > 0).map(|it| it.0) {
            if let Some(begun) = self.begin_new_pack(caller, tier)? {
                return Ok(Some(begun));
            }
            if let Some(begun) = self.refill_pack(caller, tier)? {
                return Ok(Some(begun));
            }
        }
        Ok(None)
    }

    /// Goes on with the pack that was filled last, behind everything that was ever put into it.
    fn go_on_with_pack(&self, caller: &Caller) -> Result<Option<(Pack, SmallFile)>> {
        let last = InodeId(self.pack_word(LAST_PACK).load(Ordering::Relaxed) as u32);
        let block_bytes = self.layout().hugeblock_bytes as u32;
        let opened = self.transact(|tx| {
            let found = tx.inode(last).ok().filter(|inode| inode.is_idle_pack(tx));
            let Some(inode) = found else { return Ok(None) };
            let end = inode.size(tx) as u32;
            self.open_pack(tx, caller, inode, once(end..block_bytes.max(end)).collect())
        })?;
        let Some(pack) = opened else { return Ok(None) };
        self.with_first(caller, pack)
    }

    /// Returns the pack with the first file that it takes, or ends it if there is none.
    fn with_first(&self, caller: &Caller, pack: Pack) -> Result<Option<(Pack, SmallFile)>> {
        match self.find_small(pack.tier, u32::MAX, |file| pack.takes(file))? {
            Some(file) => Ok(Some((pack, file))),
            None => self.end_pack(caller, &pack, true).map(|()| None),
        }
    }

    /// Makes a pack of the block of a file, if there is a second file for it.
    fn begin_new_pack(&self, caller: &Caller, tier: u8) -> Result<Option<(Pack, SmallFile)>> {
        // The bytes of the first file are not copied, so its checksum must be known. What is behind
        // them is overwritten, so the block must not be in an image.
        let is_first =
            |file: &SmallFile| file.pack.is_none() && file.crc32c.is_some() && !file.in_image;
        while let Some(first) = self.find_small(tier, u32::MAX, is_first)? {
            // Each is at most half as long as a block, so both fit.
            let is_other = |file: &SmallFile| file.pack.is_none() && file.inode != first.inode;
            let Some(second) = self.find_small(tier, u32::MAX, is_other)? else { break };
            if let Some(pack) = self.begin_pack_with(caller, &first)? {
                return Ok(Some((pack, second)));
            }
        }
        Ok(None)
    }

    /// Fills the gaps that files have left in one of the emptiest packs.
    fn refill_pack(&self, caller: &Caller, tier: u8) -> Result<Option<(Pack, SmallFile)>> {
        let mut emptiest = Emptiest::default();
        self.each_inode(|tx, inode| {
            let block = inode.is_idle_pack(tx).then(|| tx.block_of(inode)).flatten();
            if let Some(run) = block.filter(|run| run.tier == tier) {
                let is_usable = inode.appended_end(tx) == 0 && !tx.in_image(tier, run.first);
                emptiest.note((inode.id, inode.written_end(tx)), is_usable);
            }
        })?;
        let Some((target, victim)) = emptiest.pair(self.layout().hugeblock_bytes) else {
            return Ok(None);
        };
        let opened = self.transact(|tx| {
            let found = tx.inode(target).ok().filter(|inode| inode.is_idle_pack(tx));
            let Some(inode) = found else { return Ok(None) };
            let is_of_image = tx.block_of(inode).is_none_or(|run| tx.in_image(tier, run.first));
            match is_of_image {
                true => Ok(None),
                false => self.open_pack(tx, caller, inode, Vec::new()),
            }
        })?;
        let Some(mut pack) = opened else { return Ok(None) };
        // From now on files only leave the pack.
        let mut taken = Vec::new();
        self.each_inode(|tx, inode| {
            if inode.is_packed(tx) && (inode.appended_end(tx) >> 32) as u32 == target.0 {
                let at = inode.appended_end(tx) as u32;
                taken.push(at..at.saturating_add(inode.stored_size(tx) as u32));
            }
        })?;
        pack.room = room_between(taken, self.layout().hugeblock_bytes as u32);
        pack.victim = victim;
        self.with_first(caller, pack)
    }

    /// Calls `show` for all inodes in use, a batch of them under one lock.
    fn each_inode(&self, mut show: impl FnMut(&Transaction, Inode)) -> Result<()> {
        let mut next = 1_u32;
        loop {
            let end = self.transact_unlogged(|tx| {
                let end = tx.records_end(SlabKind::Inode);
                for number in next..end.min(next.saturating_add(INODES_BATCH)) {
                    if let Ok(inode) = tx.inode(InodeId(number)) {
                        show(tx, inode);
                    }
                }
                Ok(end)
            })?;
            next = next.saturating_add(INODES_BATCH);
            if next >= end {
                return Ok(());
            }
        }
    }

    /// Opens a pack that nobody fills; `None` if it may not be filled.
    fn open_pack(
        &self,
        tx: &mut Transaction,
        caller: &Caller,
        inode: Inode,
        room: Vec<Range<u32>>,
    ) -> Result<Option<Pack>> {
        let Some(run) = tx.block_of(inode).filter(|_| inode.appended_end(tx) == 0) else {
            return Ok(None);
        };
        // Stays set until `end_pack` reports that all copies have ended.
        inode.set_appended_end(tx, 1);
        let slot = tx.slot(caller.slot)?;
        let handle = tx.new_handle(slot, inode, PATH_ONLY)?.id;
        self.pack_word(FILLED_PACK).store(u64::from(inode.id.0), Ordering::Relaxed);
        let (tier, block) = (run.tier, run.first);
        Ok(Some(Pack { inode: inode.id, handle, tier, block, room, victim: None }))
    }

    /// Makes a pack of the block of `first`. Returns `None`, with nothing done, if the file
    /// changed.
    fn begin_pack_with(&self, caller: &Caller, first: &SmallFile) -> Result<Option<Pack>> {
        self.transact(|tx| {
            let Ok(inode) = tx.recalled_inode(first.inode) else { return Ok(None) };
            let (tier, offset) = first.source;
            let block = (offset >> tx.layout.hugeblock_shift) as u32;
            let may_be = tx.is_as_found(inode, first) && !tx.in_image(tier, block);
            let Some(crc32c) = first.crc32c.filter(|_| may_be) else { return Ok(None) };
            let pack = tx.new_inode(MODE_REGULAR, caller)?;
            let (map, held, pack_map) = (inode.map(tx), inode.held(tx), pack.map(tx));
            inode.set_map(tx, pack_map);
            inode.set_held(tx, 0);
            pack.set_map(tx, map);
            pack.set_held(tx, held);
            pack.add_flags(tx, PACK);
            pack.set_size(tx, u64::from(first.bytes));
            let run = BlockRun { tier, first: block, count: 1 };
            // Each file in the pack has its own checksum. The block's stored checksum stays as it
            // was.
            tx.set_stale(run, true);
            inode.enter_pack(tx, (pack, 0), crc32c)?;
            let room = once(first.bytes..tx.layout.hugeblock_bytes as u32).collect();
            self.open_pack(tx, caller, pack, room)
        })
    }

    /// Returns one more file that fits into the rest of a pack, if one is found soon.
    pub fn next_for_pack(&self, pack: &Pack) -> Result<Option<SmallFile>> {
        let least = (self.layout().hugeblock_bytes as u32 / ROOM_SHARE).max(1);
        let looks = if pack.victim.is_some() { u32::MAX } else { LOOKS_FOR_NEXT };
        match pack.room_for(least) {
            Some(_) => self.find_small(pack.tier, looks, |file| pack.takes(file)),
            None => Ok(None),
        }
    }

    /// Returns the tier and byte offset to which the bytes of a file are to be copied. Errors:
    /// `Invalid` if the pack has no room for it.
    pub fn pack_target(&self, pack: &Pack, file: &SmallFile) -> Result<(u8, u64)> {
        let room = pack.room_for(file.bytes).ok_or(Error::Invalid)?;
        let start = u64::from(pack.block) << self.layout().hugeblock_shift;
        Ok((pack.tier, start + u64::from(pack.room[room].start)))
    }

    /// Moves a file into the pack, once its bytes, with this checksum, were copied there. Frees the
    /// place it had. Returns false, with nothing done, if the file changed. A damaged file stays
    /// damaged: it keeps the checksum that its bytes should have.
    pub fn put_in_pack(
        &self,
        caller: &Caller,
        pack: &mut Pack,
        (file, crc32c): (&SmallFile, u32),
    ) -> Result<bool> {
        let room = pack.room_for(file.bytes).ok_or(Error::Invalid)?;
        let at = pack.room[room].start;
        let is_in = self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let Ok(inode) = tx.recalled_inode(file.inode) else { return Ok(false) };
            let holder = tx.inode(pack.inode)?;
            if !tx.is_as_found(inode, file) || !holder.is_pack(tx) {
                return Ok(false);
            }
            match file.pack {
                Some(_) => tx.leave_pack(inode, Some(slot)),
                None => {
                    tx.free_first_extent(inode, Some(slot));
                }
            }
            let end = holder.size(tx).max(u64::from(at + file.bytes));
            holder.set_size(tx, end);
            inode.enter_pack(tx, (holder, at), file.crc32c.unwrap_or(crc32c))?;
            Ok(true)
        })?;
        if is_in {
            pack.room[room].start += file.bytes;
        }
        Ok(is_in)
    }

    /// Ends the filling of a pack. `is_sound`: all copies into it have ended, so that it may be
    /// filled further.
    pub fn end_pack(&self, caller: &Caller, pack: &Pack, is_sound: bool) -> Result<()> {
        let said = self.transact(|tx| {
            if is_sound {
                tx.inode(pack.inode)?.set_appended_end(tx, 0);
            }
            Ok(())
        });
        if is_sound {
            self.pack_word(LAST_PACK).store(u64::from(pack.inode.0), Ordering::Relaxed);
        }
        self.release(caller.slot, pack.handle, caller.now).and(said)
    }

    /// Whether somebody fills a pack, so that more space will be free soon.
    pub fn is_packing(&self) -> Result<bool> {
        let filled = self.pack_word(FILLED_PACK).load(Ordering::Relaxed) as u32;
        self.transact_unlogged(|tx| {
            let found = tx.inode(InodeId(filled)).ok();
            Ok(found.is_some_and(|inode| inode.is_pack(tx) && inode.opens(tx) > 0))
        })
    }

    /// Plans to give a packed file a block of its own. Returns `None` if it has one, which includes
    /// the case that it just got its pack's block back. Errors: `NoSpace`; `Busy` if the file is
    /// being changed, or too many writes of this process are in flight.
    pub fn plan_unpacking(&self, caller: &Caller, inode: InodeId) -> Result<Option<Unpacking>> {
        let planned = self.plan_unpacking_once(caller, inode);
        let has_no_room = planned.as_ref().err() == Some(&Error::NoSpace);
        match has_no_room && self.give_image_up_for_room(false)? {
            true => self.plan_unpacking_once(caller, inode),
            false => planned,
        }
    }

    fn plan_unpacking_once(&self, caller: &Caller, inode: InodeId) -> Result<Option<Unpacking>> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let Ok(inode) = tx.recalled_inode(inode) else { return Ok(None) };
            let Some((pack, at)) = inode.is_packed(tx).then(|| tx.pack_of(inode)).flatten() else {
                return Ok(None);
            };
            let quiet = Quiet::of(tx, inode).ok_or(Error::Busy)?;
            let Some(run) = tx.block_of(pack) else { return Ok(None) };
            // The stored checksum of a pack's block is still that of its first file.
            let crc32c = inode.packed_checksum(tx);
            let is_as_it_was = at == 0 && tx.checksum(run.tier, run.first) == crc32c;
            // Nobody copies into the pack any more, as a thread may whose process has just ended,
            // and no image has the bytes behind the file.
            let is_left_alone = pack.links(tx) == 1
                && pack.opens(tx) == 0
                && pack.appended_end(tx) == 0
                && !tx.in_image(run.tier, run.first);
            if is_as_it_was && is_left_alone {
                tx.take_block_back(inode, pack, (slot, run));
                return Ok(None);
            }
            let start = u64::from(run.first) << tx.layout.hugeblock_shift;
            let file = SmallFile {
                inode: inode.id,
                bytes: inode.size(tx) as u32,
                source: (run.tier, start + at),
                crc32c: Some(crc32c),
                pack: Some(pack.id),
                in_image: false,
                quiet,
            };
            let blocks = tx.allocate_shared(slot, 1).ok_or(Error::NoSpace)?;
            let reservation = tx.reserve(slot, blocks)?;
            Ok(Some(Unpacking { file, target: (blocks.tier, blocks.first), reservation }))
        })
    }

    /// Gives the file the block that its bytes were copied to, whose checksum is stored. Returns
    /// false, with nothing done, if the file changed. Unless this fails, the unpacking is over.
    pub fn commit_unpacking(&self, caller: &Caller, unpacking: &Unpacking) -> Result<bool> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let pin = tx.reserved(slot, unpacking.reservation)?;
            let file = &unpacking.file;
            let found = tx.recalled_inode(file.inode).ok();
            let Some(inode) = found.filter(|inode| tx.is_as_found(*inode, file)) else {
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

    /// Returns the next file to pack for which `is_meant` holds. Starts behind the inode that was
    /// found last, in any process, and examines at most `looks` inodes, each at most once.
    fn find_small(
        &self,
        tier: u8,
        looks: u32,
        is_meant: impl Fn(&SmallFile) -> bool,
    ) -> Result<Option<SmallFile>> {
        let place = self.pack_word(PACKED_TO);
        let mut next = place.load(Ordering::Relaxed) as u32;
        let mut left = looks;
        while left > 0 {
            let (found, looked_at, end) = self.transact_unlogged(|tx| {
                let end = tx.records_end(SlabKind::Inode);
                if next >= end {
                    next = 1;
                }
                let numbers = next..end.min(next.saturating_add(INODES_BATCH.min(left)));
                let count = numbers.len() as u32;
                for number in numbers {
                    if let Some(file) = tx.small_file(InodeId(number), tier)?.filter(&is_meant) {
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

    fn pack_word(&self, word: usize) -> &AtomicU64 {
        &self.memory().words()[word]
    }
}

impl Transaction<'_> {
    /// Whether the file is still as it was found, and may be packed or is packed.
    fn is_as_found(&self, inode: Inode, found: &SmallFile) -> bool {
        Quiet::of(self, inode) == Some(found.quiet)
            && inode.writers(self) == 0
            && inode.links(self) > 0
            && inode.is_packed(self) == found.pack.is_some()
    }

    /// Gives the block of a pack back to its last file, whose bytes are the first in it. The stored
    /// checksum of the block is valid for the file.
    fn take_block_back(&mut self, inode: Inode, pack: Inode, (slot, run): (Slot, BlockRun)) {
        let (map, held, inode_map) = (pack.map(self), pack.held(self), inode.map(self));
        pack.set_map(self, inode_map);
        pack.set_held(self, 0);
        inode.set_map(self, map);
        inode.set_held(self, held);
        self.note_change(run);
        self.set_stale(run, false);
        self.leave_pack(inode, Some(slot));
        // Other files' bytes were put behind its own.
        let size = inode.size(self);
        inode.set_tail(self, size);
    }
}

/// Returns the free ranges of a block in which `taken`, ranges that do not overlap, are in use.
fn room_between(mut taken: Vec<Range<u32>>, block_bytes: u32) -> Vec<Range<u32>> {
    taken.sort_by_key(|range| range.start);
    let mut room = Vec::with_capacity(taken.len() + 1);
    let mut from = 0;
    for range in taken {
        if range.start > from {
            room.push(from..range.start);
        }
        from = from.max(range.end);
    }
    if from < block_bytes {
        room.push(from..block_bytes);
    }
    room
}
