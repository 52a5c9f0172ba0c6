//! Extents: which blocks hold which part of a file.
//!
//! An extent is one tree entry: high word = map number and file block, low word = packed block run.
//!
//! Invariant: extents of a map do not overlap; `held` of the inode is the number of blocks they
//! hold.

use crate::engine::inode::{Inode, LOST, MAPPED, MAYBE_STALE};
use crate::engine::run::{BlockRun, RUN_BLOCKS_MAX};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::engine::tree::{Key, Tree, high, key, low};
use crate::format::error::Result;
use crate::format::layout::{
    EXTENTS_ROOT, LOG_DURABLE, LOG_HEAD, ORPHAN_COUNT, ORPHAN_FIRST, PIN_COUNT, SlabKind,
};
use crate::format::types::{Caller, InodeId, MODE_REGULAR};

const EXTENTS: Tree = Tree { root_word: EXTENTS_ROOT };
/// Maximum number of extents changed in one transaction.
pub(crate) const EXTENT_BATCH: usize = 64;
/// Number of orphans examined to find one whose blocks may be used again.
const ORPHANS_LOOKED_AT: usize = 16;
/// A deleted file with more extents or blocks than this leaves them to `reclaim`.
const INLINE_FREE_EXTENTS: usize = 8;
const INLINE_FREE_BLOCKS: u32 = 4096;

/// Consecutive file blocks held by consecutive blocks of a tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub file_block: u32,
    pub blocks: BlockRun,
}

/// What a file has from a file block on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stretch {
    /// These blocks.
    Data(BlockRun),
    /// A hole of this many file blocks.
    Hole(u32),
}

/// Blocks that leave a file because others take their place.
pub(crate) struct Replaced {
    inode: Inode,
    orphan: Option<Inode>,
}

impl Replaced {
    /// Starts with no blocks.
    pub(crate) fn of(inode: Inode) -> Replaced {
        Replaced { inode, orphan: None }
    }
}

fn entry(map: u32, extent: Extent) -> Key {
    key(u64::from(map) << 32 | u64::from(extent.file_block), extent.blocks.pack())
}

fn start(map: u32, file_block: u32) -> Key {
    key(u64::from(map) << 32 | u64::from(file_block), 0)
}

fn end(map: u32, file_block: u32) -> Key {
    key(u64::from(map) << 32 | u64::from(file_block), u64::MAX)
}

/// Decodes a tree entry, if it is an extent of `map`. The extent is not empty, and lies within its
/// tier and below the highest file block, so callers need not check that.
fn decode(tx: &Transaction, map: u32, found: Key) -> Option<Extent> {
    if (high(found) >> 32) as u32 != map {
        return None;
    }
    let extent = Extent { file_block: high(found) as u32, blocks: BlockRun::unpack(low(found)) };
    let BlockRun { tier, first, count } = extent.blocks;
    let tier_blocks = tx.layout.tiers.get(tier as usize).map_or(0, |tier| tier.blocks);
    let plausible = count > 0
        && first.checked_add(count).is_some_and(|end| end <= tier_blocks)
        && extent.file_block.checked_add(count).is_some();
    if !plausible {
        tx.mark_corrupt("extent out of range");
        return None;
    }
    Some(extent)
}

impl Transaction<'_> {
    fn last_extent_to(&self, map: u32, file_block: u32) -> Option<Extent> {
        decode(self, map, EXTENTS.floor(self, end(map, file_block))?)
    }

    /// Returns the first extent that starts at or after `file_block`.
    pub(crate) fn first_extent_from(&self, map: u32, file_block: u32) -> Option<Extent> {
        decode(self, map, EXTENTS.ceiling(self, start(map, file_block))?)
    }

    /// Returns what the file has from `file_block` on.
    pub(crate) fn stretch(&self, map: u32, file_block: u32) -> Stretch {
        if let Some(extent) = self.last_extent_to(map, file_block) {
            let inside = file_block - extent.file_block;
            if inside < extent.blocks.count {
                return Stretch::Data(BlockRun {
                    first: extent.blocks.first.saturating_add(inside),
                    count: extent.blocks.count - inside,
                    ..extent.blocks
                });
            }
        }
        match self.first_extent_from(map, file_block) {
            Some(next) if next.file_block > file_block => {
                Stretch::Hole(next.file_block - file_block)
            }
            Some(_) => {
                self.mark_corrupt("order of extents");
                Stretch::Hole(u32::MAX)
            }
            None => Stretch::Hole(u32::MAX),
        }
    }

    /// Adds an extent to the file. Precondition: the file has a hole there.
    pub(crate) fn attach(&mut self, inode: Inode, extent: Extent) -> Result<()> {
        let map = inode.map(self);
        let held = inode.held(self);
        inode.set_held(self, held.saturating_add(extent.blocks.count));
        let before = extent.file_block.checked_sub(1);
        if let Some(last) = before.and_then(|block| self.last_extent_to(map, block)) {
            let adjoins = last.file_block.checked_add(last.blocks.count) == Some(extent.file_block)
                && last.blocks.tier == extent.blocks.tier
                && last.blocks.first.checked_add(last.blocks.count) == Some(extent.blocks.first)
                && last.blocks.count + extent.blocks.count <= RUN_BLOCKS_MAX;
            if adjoins {
                let count = last.blocks.count + extent.blocks.count;
                let joined = Extent { blocks: BlockRun { count, ..last.blocks }, ..last };
                return EXTENTS.replace(self, entry(map, last), entry(map, joined));
            }
        }
        EXTENTS.insert(self, entry(map, extent))
    }

    /// Takes the part of the last extent that is at or past `from_block` out of the file.
    fn take_last(&mut self, inode: Inode, from_block: u32) -> Result<Option<Extent>> {
        let map = inode.map(self);
        let Some(extent) = self.last_extent_to(map, u32::MAX) else { return Ok(None) };
        if extent.file_block.saturating_add(extent.blocks.count) <= from_block {
            return Ok(None);
        }
        let keep = from_block.saturating_sub(extent.file_block);
        let gone = BlockRun {
            first: extent.blocks.first.saturating_add(keep),
            count: extent.blocks.count - keep,
            ..extent.blocks
        };
        if !EXTENTS.remove(self, entry(map, extent)) {
            self.mark_corrupt("extent is not in its tree");
        }
        if keep > 0 {
            let rest = BlockRun { count: keep, ..extent.blocks };
            EXTENTS.insert(self, entry(map, Extent { blocks: rest, ..extent }))?;
        }
        let held = inode.held(self);
        inode.set_held(self, held.saturating_sub(gone.count));
        Ok(Some(Extent { file_block: extent.file_block + keep, blocks: gone }))
    }

    /// Frees the blocks of the file at or past `from_block`, a bounded number of extents. Returns
    /// true if more are left. Only while nobody else uses the namespace.
    pub(crate) fn drop_extents(&mut self, inode: Inode, from_block: u32) -> Result<bool> {
        for _ in 0..EXTENT_BATCH {
            if !self.has_room() {
                return Ok(true);
            }
            match self.take_last(inode, from_block)? {
                Some(extent) => self.free_blocks(None, extent.blocks),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Frees the blocks of the file on tiers that are `gone`. Returns false if there are none. Only
    /// while nobody else uses the namespace.
    pub(crate) fn drop_lost_extents(&mut self, inode: Inode, gone: &dyn Fn(u8) -> bool) -> bool {
        let map = inode.map(self);
        let held = inode.held(self);
        let mut next = self.first_extent_from(map, 0);
        while let Some(extent) = next {
            if gone(extent.blocks.tier) {
                self.remove_extent(inode, extent);
                self.free_blocks(None, extent.blocks);
            }
            next = self.first_extent_from(map, extent.file_block.saturating_add(1));
        }
        inode.held(self) < held
    }

    fn remove_extent(&mut self, inode: Inode, extent: Extent) {
        if !EXTENTS.remove(self, entry(inode.map(self), extent)) {
            self.mark_corrupt("extent is not in its tree");
        }
        let held = inode.held(self);
        inode.set_held(self, held.saturating_sub(extent.blocks.count));
    }

    /// Replaces the consecutive blocks that the file has from `file_block` on with `blocks`, and
    /// frees the old ones.
    pub(crate) fn replace_blocks(
        &mut self,
        inode: Inode,
        file_block: u32,
        blocks: BlockRun,
    ) -> Result<()> {
        self.note_change(blocks);
        if let Some(old) = self.exchange_blocks(inode, file_block, blocks)? {
            self.free_blocks(None, old);
        }
        Ok(())
    }

    /// Replaces blocks of `replaced.inode` that are in an image. The old blocks are free once no
    /// write in flight that was planned before this may still store into them, and the image has
    /// ended.
    pub(crate) fn redirect(
        &mut self,
        replaced: &mut Replaced,
        added: Extent,
        (caller, slot): (&Caller, Slot),
    ) -> Result<()> {
        let Extent { file_block, blocks } = added;
        let inode = replaced.inode;
        inode.note_move(self);
        let Some(old) = self.exchange_blocks(inode, file_block, blocks)? else { return Ok(()) };
        // One of the pins is that of the write that ends here.
        if inode.pins(self) <= 1 && !self.layout.durable {
            self.free_blocks(Some(slot), old);
            return Ok(());
        }
        let orphan = match replaced.orphan {
            Some(orphan) => orphan,
            None => *replaced.orphan.insert(self.new_orphan(inode, caller)?),
        };
        // The record of this follows.
        let head = self.get(LOG_HEAD);
        orphan.set_freed_at(self, head.saturating_add(1));
        self.attach(orphan, Extent { file_block, blocks: old })
    }

    /// Replaces the consecutive blocks that the file has from `file_block` on with `blocks`, and
    /// returns the old ones.
    fn exchange_blocks(
        &mut self,
        inode: Inode,
        file_block: u32,
        blocks: BlockRun,
    ) -> Result<Option<BlockRun>> {
        let found = self.last_extent_to(inode.map(self), file_block);
        let holds = |extent: &Extent| {
            let inside = file_block - extent.file_block;
            inside.saturating_add(blocks.count) <= extent.blocks.count
        };
        let Some(extent) = found.filter(holds) else {
            self.mark_corrupt("blocks that are replaced");
            return Ok(None);
        };
        let before = file_block - extent.file_block;
        let part = |from: u32, count: u32| Extent {
            file_block: extent.file_block + from,
            blocks: BlockRun { first: extent.blocks.first + from, count, ..extent.blocks },
        };
        let behind = before + blocks.count;
        self.remove_extent(inode, extent);
        for rest in [
            part(0, before),
            Extent { file_block, blocks },
            part(behind, extent.blocks.count - behind),
        ] {
            if rest.blocks.count > 0 {
                self.attach(inode, rest)?;
            }
        }
        Ok(Some(part(before, blocks.count).blocks))
    }

    /// Takes extents at or past `from_block` out of the file, last first, at most [`EXTENT_BATCH`].
    /// Returns the lowest file block that was taken out, and whether more are left.
    pub(crate) fn cut_extents(
        &mut self,
        inode: Inode,
        from_block: u32,
        caller: &Caller,
        slot: Slot,
    ) -> Result<(u32, bool)> {
        let map = inode.map(self);
        let mut lowest = u32::MAX;
        let mut orphan = None;
        for _ in 0..EXTENT_BATCH {
            if !self.has_room() {
                break;
            }
            let Some(Extent { file_block, blocks: gone }) = self.take_last(inode, from_block)?
            else {
                return Ok((lowest, false));
            };
            lowest = file_block;
            inode.note_move(self);
            if !self.is_in_use(inode) && !self.layout.durable {
                self.free_blocks(Some(slot), gone);
                continue;
            }
            let orphan = match orphan {
                Some(orphan) => orphan,
                None => *orphan.insert(self.new_orphan(inode, caller)?),
            };
            self.attach(orphan, Extent { file_block: lowest, blocks: gone })?;
        }
        let more = self
            .last_extent_to(map, u32::MAX)
            .is_some_and(|last| last.file_block.saturating_add(last.blocks.count) > from_block);
        Ok((lowest, more))
    }

    /// Empties the file in one step: moves its blocks to an orphan, or frees them if they are few.
    pub(crate) fn cut_all(&mut self, inode: Inode, caller: &Caller, slot: Slot) -> Result<()> {
        self.leave_pack(inode, Some(slot));
        if inode.held(self) == 0 {
            return Ok(());
        }
        if !self.is_in_use(inode) && self.free_few_extents(inode, Some(slot)) {
            inode.note_move(self);
            return Ok(());
        }
        let orphan = self.new_orphan(inode, caller)?;
        let (map, held) = (inode.map(self), inode.held(self));
        let orphan_map = orphan.map(self);
        inode.set_map(self, orphan_map);
        inode.set_held(self, 0);
        inode.note_move(self);
        orphan.set_map(self, map);
        orphan.set_held(self, held);
        Ok(())
    }

    /// Frees the file's blocks if it has only a few extents. Returns false, with nothing done,
    /// otherwise.
    fn free_few_extents(&mut self, inode: Inode, slot: Option<Slot>) -> bool {
        let map = inode.map(self);
        // On a durable tier a block may be used again only when the record that freed it is on the
        // media.
        if self.layout.durable || inode.held(self) > INLINE_FREE_BLOCKS {
            return false;
        }
        let mut count = 0;
        let mut next = self.first_extent_from(map, 0);
        while let Some(extent) = next {
            count += 1;
            if count > INLINE_FREE_EXTENTS {
                return false;
            }
            next = self.first_extent_from(map, extent.file_block.saturating_add(1));
        }
        for _ in 0..count {
            self.free_first_extent(inode, slot);
        }
        true
    }

    /// Frees the blocks of the first extent. Returns false if there is none.
    pub(crate) fn free_first_extent(&mut self, inode: Inode, slot: Option<Slot>) -> bool {
        let map = inode.map(self);
        let Some(extent) = self.first_extent_from(map, 0) else { return false };
        self.remove_extent(inode, extent);
        self.free_blocks(slot, extent.blocks);
        true
    }

    /// Takes file blocks from `range.0` to before `range.1` out of the file, last first, at most
    /// [`EXTENT_BATCH`] pieces. Returns true if more may be left.
    pub(crate) fn take_out(
        &mut self,
        inode: Inode,
        range: (u32, u32),
        caller: &Caller,
        slot: Slot,
    ) -> Result<bool> {
        let mut orphan = None;
        for _ in 0..EXTENT_BATCH {
            if !self.has_room() {
                return Ok(true);
            }
            let Some(gone) = self.take_within(inode, range)? else { return Ok(false) };
            inode.note_move(self);
            if !self.is_in_use(inode) {
                self.free_blocks(Some(slot), gone.blocks);
                continue;
            }
            let orphan = match orphan {
                Some(orphan) => orphan,
                None => *orphan.insert(self.new_orphan(inode, caller)?),
            };
            self.attach(orphan, gone)?;
        }
        Ok(true)
    }

    /// Takes the part of the range that the last extent in it holds out of the file. The extent's
    /// parts before and behind the range stay.
    fn take_within(&mut self, inode: Inode, (from, end): (u32, u32)) -> Result<Option<Extent>> {
        let map = inode.map(self);
        let last = end.checked_sub(1).filter(|_| from < end);
        let Some(extent) = last.and_then(|last| self.last_extent_to(map, last)) else {
            return Ok(None);
        };
        let extent_end = extent.file_block + extent.blocks.count;
        if extent_end <= from {
            return Ok(None);
        }
        let part = |first: u32, end: u32| Extent {
            file_block: first,
            blocks: BlockRun {
                first: extent.blocks.first + (first - extent.file_block),
                count: end - first,
                ..extent.blocks
            },
        };
        let gone = part(extent.file_block.max(from), extent_end.min(end));
        self.remove_extent(inode, extent);
        for (first, end) in [(extent.file_block, gone.file_block), (end, extent_end)] {
            if first < end {
                self.attach(inode, part(first, end))?;
            }
        }
        Ok(Some(gone))
    }

    /// Whether somebody may reach the file's blocks without asking for them again: a pin or a
    /// mapping.
    fn is_in_use(&self, inode: Inode) -> bool {
        inode.pins(self) != 0 || inode.flags(self) & MAPPED != 0
    }

    /// Makes an orphan for the blocks that leave `inode`, stamped with the pins that may still
    /// write to them.
    fn new_orphan(&mut self, inode: Inode, caller: &Caller) -> Result<Inode> {
        let orphan = self.new_inode(MODE_REGULAR, caller)?;
        // The record of the cut follows in this transaction.
        let head = self.get(LOG_HEAD);
        self.stamp_orphan(orphan, inode, head.saturating_add(1));
        match inode.flags(self) & MAPPED {
            0 => self.push_orphan(orphan),
            _ => self.put_in_limbo(orphan),
        }
        Ok(orphan)
    }

    /// Records that the blocks of `orphan` were those of `origin`. They are free after a crash,
    /// too, once the log is durable up to `freed_at`.
    fn stamp_orphan(&mut self, orphan: Inode, origin: Inode, freed_at: u64) {
        let epoch = self.next_pin_epoch();
        orphan.set_origin(self, u64::from(origin.id.0));
        orphan.set_written_end(self, epoch);
        orphan.set_freed_at(self, freed_at);
    }

    /// Whether the record that freed an orphan's blocks may still be lost.
    fn awaits_log(&self, orphan: Inode) -> bool {
        self.layout.durable && orphan.freed_at(self) > self.get(LOG_DURABLE)
    }

    /// Frees `inode`, to which nothing refers any more: at once if it is small, else in batches.
    pub(crate) fn dispose_inode(&mut self, inode: Inode, slot: Option<Slot>) {
        // A close in another thread may overtake a read. The read must not return what these blocks
        // hold next.
        inode.note_move(self);
        self.leave_pack(inode, slot);
        if inode.pins(self) == 0 && self.free_few_extents(inode, slot) {
            self.free_inode(inode);
        } else {
            // The record that removed the last name is already in the log.
            let head = self.get(LOG_HEAD);
            self.stamp_orphan(inode, inode, head);
            self.push_orphan(inode);
        }
    }

    /// Whether a write to the orphan's former file is in flight that was planned before the blocks
    /// left it.
    fn is_written_to(&self, orphan: Inode) -> bool {
        let (origin, epoch) = (InodeId(orphan.origin(self) as u32), orphan.written_end(self));
        let is_written = |file: Inode| file.pins(self) > 0;
        self.get(PIN_COUNT) > 0
            && self.inode(origin).is_ok_and(is_written)
            && self.pins_of(origin).any(|pin| pin.epoch(self) <= epoch)
    }

    /// Returns the first orphan, of the first few, whose blocks may be used again, and its
    /// predecessor in the list.
    fn first_ready_orphan(&self) -> Result<Option<(Option<Inode>, Inode)>> {
        let (mut before, mut next) = (None, self.get(ORPHAN_FIRST) as u32);
        for _ in 0..ORPHANS_LOOKED_AT {
            if next == 0 {
                break;
            }
            let orphan = self.inode(InodeId(next))?;
            if !self.is_written_to(orphan) && !self.awaits_log(orphan) {
                return Ok(Some((before, orphan)));
            }
            (before, next) = (Some(orphan), orphan.parent(self));
        }
        Ok(None)
    }

    /// Frees up to [`EXTENT_BATCH`] extents of an orphan that nothing holds back. Returns true if
    /// there are more orphans.
    pub(crate) fn reclaim_batch(&mut self, slot: Option<Slot>) -> Result<bool> {
        let Some((before, orphan)) = self.first_ready_orphan()? else { return Ok(false) };
        for _ in 0..EXTENT_BATCH {
            if !self.has_room() {
                break;
            }
            if self.free_first_extent(orphan, slot) {
                continue;
            }
            let next = orphan.parent(self);
            let count = self.get(ORPHAN_COUNT);
            match before {
                Some(before) => before.set_parent(self, next),
                None => self.set(ORPHAN_FIRST, u64::from(next)),
            }
            self.set(ORPHAN_COUNT, count.saturating_sub(1));
            self.free_inode(orphan);
            break;
        }
        Ok(self.get(ORPHAN_FIRST) != 0)
    }

    /// Returns the offset of the next data at or after `from`. A hole that may be lost data counts
    /// as data, so that reading it fails.
    pub(crate) fn next_data(&self, inode: Inode, from: u64, size: u64) -> Option<u64> {
        let shift = self.layout.hugeblock_shift;
        let block = (from >> shift) as u32;
        if inode.is_packed(self) {
            return (from < size).then_some(from);
        }
        let offset = match self.stretch(inode.map(self), block) {
            Stretch::Data(_) => from,
            Stretch::Hole(_) if inode.flags(self) & LOST != 0 => from,
            Stretch::Hole(count) => u64::from(block.checked_add(count)?) << shift,
        };
        (offset < size).then_some(offset)
    }

    /// Returns the offset of the next hole at or after `from`; the end of the file counts as one.
    pub(crate) fn next_hole(&self, inode: Inode, from: u64, size: u64) -> u64 {
        if inode.flags(self) & LOST != 0 || inode.is_packed(self) {
            return size;
        }
        let shift = self.layout.hugeblock_shift;
        let mut offset = from;
        for _ in 0..=self.records_in_use(SlabKind::Node) * 32 {
            if offset >= size {
                return size;
            }
            let block = (offset >> shift) as u32;
            match self.stretch(inode.map(self), block) {
                Stretch::Hole(_) => return offset,
                Stretch::Data(run) => offset = (u64::from(block) + u64::from(run.count)) << shift,
            }
        }
        size
    }

    /// Marks the checksums of `run` void, and notes in the inode that it may have stale blocks.
    pub(crate) fn note_stale(&mut self, inode: Inode, run: BlockRun) {
        self.set_stale(run, true);
        self.note_change(run);
        if inode.flags(self) & MAYBE_STALE == 0 {
            inode.add_flags(self, MAYBE_STALE);
        }
    }
}
