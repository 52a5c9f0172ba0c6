//! Mapped files: what must stay in place while programs have a file in their address space.
//!
//! A mapping is an open-file description of its own. It outlives close and unlink, a forked child
//! inherits it, and the end of its process ends it. A death leaves a file unclean if it might have
//! been stored to.
//!
//! Invariants: blocks that leave a mapped file are not used again before its last mapping ends;
//! they wait in *limbo*. While a file is mapped for stores, no checksum of its blocks is declared
//! valid, and the bytes behind its end count as its tail, because a store can reach them.
//!
//! Does not map anything, and does not tell mappings what happens to the file: their processes
//! look.

use crate::data::map::Stretch;
use crate::data::read::{Lost, ReadPlan};
use crate::engine::fs::Microfs;
use crate::engine::inode::{self, Inode, MAPPED_TO_STORE};
use crate::engine::run::{BlockRun, RUN_BLOCKS_MAX};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{LIMBO_FIRST, SlabKind};
use crate::format::types::{Caller, HandleId, InodeId, SlotId, Timestamp};
use crate::process::handle::{Handle, MAPPED, MAY_READ, MAY_WRITE, WROTE};

/// Maximum number of blocks in one plan; each changes a bit that goes to the transaction's undo
/// area.
const PLAN_BLOCKS_MAX: u32 = RUN_BLOCKS_MAX;
/// Orphans in limbo examined when a mapping ends.
const LIMBO_BATCH: usize = 4096;

/// State by which a mapping finds out that its file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedState {
    /// Counts the times that blocks left the file.
    pub moves: u32,
    /// Counts the times that blocks were added.
    pub adds: u32,
    /// Size of the file, bytes.
    pub size: u64,
}

impl Transaction<'_> {
    fn mapping(&mut self, id: HandleId) -> Result<(Handle, Inode)> {
        let handle = self.handle(id)?;
        match handle.flags(self) & MAPPED {
            0 => Err(Error::BadHandle),
            _ => Ok((handle, handle.file(self, MAY_READ)?)),
        }
    }

    fn map_to_store(&mut self, handle: Handle, inode: Inode, caller: &Caller) -> Result<()> {
        inode.require_whole(self)?;
        handle.add_flags(self, MAY_WRITE | WROTE);
        let epoch = self.next_pin_epoch();
        handle.set_stored_to_since(self, epoch);
        self.store_in_image(inode);
        inode.add_flags(self, MAPPED_TO_STORE);
        self.note_stores(inode, caller);
        Ok(())
    }

    /// Records that bytes of the file may have changed. The log gets a write of length 0.
    fn note_stores(&mut self, inode: Inode, caller: &Caller) {
        inode.touch_data(self, caller);
        self.log_write(None, caller.now, inode, (0, 0), None);
    }

    /// Moves the tail of a file that is mapped for stores to its end: a store may reach the bytes
    /// behind the end in the last block.
    pub(crate) fn leave_tail_to_stores(&mut self, inode: Inode) {
        if inode.flags(self) & MAPPED_TO_STORE == 0 || inode.tail(self).is_some() {
            return;
        }
        let end = inode.size(self);
        let is_last = inode.written_end(self).max(inode.appended_end(self)) <= end;
        let block = (end >> self.layout.hugeblock_shift) as u32;
        if is_last && matches!(self.stretch(inode.map(self), block), Stretch::Data(_)) {
            inode.set_tail(self, end);
        }
    }

    /// Ends a mapping of `inode`; its description has already lost its `MAPPED` flag.
    pub(crate) fn mapping_ended(&mut self, inode: Inode, stored: bool, now: Timestamp) {
        if stored {
            inode.next_version(self);
            inode.set_modified(self, now);
            inode.set_changed(self, now);
        }
        let left = (1..self.records_end(SlabKind::Handle))
            .filter_map(|number| self.handle_numbered(number).ok())
            .filter(|handle| handle.inode(self) == inode.id.0)
            .map(|handle| handle.flags(self))
            .filter(|flags| flags & MAPPED != 0)
            .fold(0, |all, flags| all | flags);
        if left & MAY_WRITE == 0 {
            inode.clear_flags(self, MAPPED_TO_STORE);
        }
        if left == 0 {
            inode.clear_flags(self, inode::MAPPED);
            self.leave_limbo();
        }
    }

    /// Keeps the blocks of `orphan` until nobody has their former file mapped.
    pub(crate) fn put_in_limbo(&mut self, orphan: Inode) {
        let first = self.get(LIMBO_FIRST) as u32;
        orphan.add_flags(self, inode::ORPHAN);
        orphan.set_parent(self, first);
        self.set(LIMBO_FIRST, u64::from(orphan.id.0));
    }

    /// Takes orphans out of limbo whose former files nobody has mapped, a bounded number of them.
    pub(crate) fn leave_limbo(&mut self) {
        let mut before: Option<Inode> = None;
        let mut next = self.get(LIMBO_FIRST) as u32;
        for _ in 0..LIMBO_BATCH {
            if next == 0 || !self.has_room() {
                return;
            }
            let Ok(orphan) = self.inode(InodeId(next)) else {
                return self.mark_corrupt("limbo");
            };
            next = orphan.parent(self);
            let file = self.inode(InodeId(orphan.origin(self) as u32));
            if file.is_ok_and(|file| file.flags(self) & inode::MAPPED != 0) {
                before = Some(orphan);
                continue;
            }
            match before {
                Some(before) => before.set_parent(self, next),
                None => self.set(LIMBO_FIRST, u64::from(next)),
            }
            self.push_orphan(orphan);
        }
    }
}

impl Microfs {
    /// Maps the file behind `handle` for the caller's slot; the caller has checked that this is
    /// allowed. `to_store`: programs may write to the mapping. It ends with [`Microfs::release`].
    ///
    /// Errors: `Invalid` unless the file is regular; `Packed`; `Io`: blocks of a file that is to be
    /// stored to are lost.
    pub fn map_file(&self, caller: &Caller, handle: HandleId, to_store: bool) -> Result<HandleId> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.handle(handle)?.file(tx, MAY_READ)?;
            if !inode.is_regular(tx) {
                return Err(Error::Invalid);
            }
            inode.require_unpacked(tx)?;
            let writable = if to_store { MAY_WRITE } else { 0 };
            let mapping = tx.new_handle(slot, inode, MAY_READ | MAPPED | writable)?;
            tx.map_in_image(inode);
            inode.add_flags(tx, inode::MAPPED);
            if to_store {
                tx.map_to_store(mapping, inode, caller)?;
            }
            Ok(mapping.id)
        })
    }

    /// Allows stores to a mapping that was made for reading only. Errors: as `map_file`.
    pub fn allow_stores(&self, caller: &Caller, mapping: HandleId) -> Result<()> {
        self.transact(|tx| {
            let (handle, inode) = tx.mapping(mapping)?;
            if handle.flags(tx) & MAY_WRITE == 0 {
                let writers = inode.writers(tx);
                inode.set_writers(tx, writers.wrapping_add(1));
                tx.map_to_store(handle, inode, caller)?;
            }
            Ok(())
        })
    }

    /// Plans where the bytes are that a mapping shows. If the mapping may be stored to, their
    /// checksums become void. Errors: `Io`: the data there are lost.
    pub fn plan_mapping(
        &self,
        caller: &Caller,
        mapping: HandleId,
        offset: u64,
        length: u64,
    ) -> Result<ReadPlan> {
        let (plan, may_begin) = self.transact(|tx| {
            let (handle, inode) = tx.mapping(mapping)?;
            let most = u64::from(PLAN_BLOCKS_MAX - 1) << tx.layout.hugeblock_shift;
            let mut plan = ReadPlan::empty();
            tx.plan_bytes(inode, offset, length.min(most), Lost::Refused, &mut plan)?;
            if handle.flags(tx) & MAY_WRITE != 0 {
                mark_stale(tx, inode, &plan);
                tx.open_blocks(inode, caller.now);
                tx.leave_tail_to_stores(inode);
            }
            Ok((plan, tx.may_change_in_place(inode)))
        })?;
        if !may_begin {
            self.sync()?;
        }
        Ok(plan)
    }

    /// Checks that all writes that were planned before the mapping allowed stores have ended. Such
    /// writes do not know of the stores. Errors: `Busy` while one is in flight.
    pub fn await_writes_before(&self, mapping: HandleId) -> Result<()> {
        self.transact(|tx| {
            let (handle, inode) = tx.mapping(mapping)?;
            let since = handle.stored_to_since(tx);
            let in_flight =
                inode.pins(tx) != 0 && tx.pins_of(inode.id).any(|pin| pin.epoch(tx) <= since);
            if in_flight { Err(Error::Busy) } else { Ok(()) }
        })
    }

    /// Returns the state of a mapping's file.
    pub fn mapped_state(&self, mapping: HandleId) -> Result<MappedState> {
        self.transact(|tx| {
            let (_, inode) = tx.mapping(mapping)?;
            let (moves, adds) = (inode.moves(tx), inode.adds(tx));
            Ok(MappedState { moves, adds, size: inode.size(tx) })
        })
    }

    /// Whether any process has the file mapped.
    pub fn is_mapped(&self, inode: InodeId) -> Result<bool> {
        self.transact(|tx| Ok(tx.inode(inode)?.flags(tx) & inode::MAPPED != 0))
    }

    /// Returns the files that processes have mapped.
    pub fn mapped_files(&self) -> Result<Vec<InodeId>> {
        self.transact(|tx| {
            let mut files: Vec<InodeId> = (1..tx.records_end(SlabKind::Handle))
                .filter_map(|number| tx.handle_numbered(number).ok())
                .filter(|handle| handle.flags(tx) & MAPPED != 0)
                .map(|handle| InodeId(handle.inode(tx)))
                .collect();
            files.sort_unstable();
            files.dedup();
            Ok(files)
        })
    }

    /// Plans where the bytes of a file are, for the upkeep of its blocks. Lost data count as a
    /// hole.
    pub fn plan_of(&self, inode: InodeId, offset: u64, length: u64) -> Result<ReadPlan> {
        self.transact(|tx| {
            let inode = tx.recalled_inode(inode)?;
            let mut plan = ReadPlan::empty();
            tx.plan_bytes(inode, offset, length, Lost::Nowhere, &mut plan)?;
            Ok(plan)
        })
    }

    /// Plans a read of a file that the caller does not have open; records nothing. Errors:
    /// `NotFound`; `IsDirectory`; `Absent`; `Io`: the data there are lost.
    pub fn plan_read_of(&self, inode: InodeId, offset: u64, length: u64) -> Result<ReadPlan> {
        self.transact(|tx| {
            let inode = tx.recalled_inode(inode)?;
            if !inode.is_regular(tx) {
                return Err(Error::IsDirectory);
            }
            if inode.flags(tx) & inode::ABSENT != 0 {
                return Err(Error::Absent { inode: inode.id });
            }
            let mut plan = ReadPlan::empty();
            tx.plan_bytes(inode, offset, length, Lost::Refused, &mut plan)?;
            Ok(plan)
        })
    }

    /// Records that bytes of the file may have been stored through a mapping, so that the next
    /// [`Microfs::sync`] makes them durable. Returns false, with nothing done, if no mapping can
    /// store to it.
    pub fn note_mapped_stores(&self, caller: &Caller, inode: InodeId) -> Result<bool> {
        self.transact(|tx| {
            let inode = tx.recalled_inode(inode)?;
            let is_stored_to = inode.flags(tx) & MAPPED_TO_STORE != 0;
            if is_stored_to {
                tx.note_stores(inode, caller);
            }
            Ok(is_stored_to)
        })
    }

    /// Ends a mapping whose memory this process has unmapped. What is left is an open file: the
    /// caller seals the file that this returns, if any, and releases the description. Returns
    /// `None` if other processes still have the mapping, or it did not allow stores.
    pub fn end_mapping(
        &self,
        slot: SlotId,
        mapping: HandleId,
        now: Timestamp,
    ) -> Result<Option<InodeId>> {
        self.transact(|tx| {
            let slot: Slot = tx.slot(slot)?;
            let (handle, inode) = tx.mapping(mapping)?;
            if handle.references(tx) > 1 || !slot.holds(tx, handle.id) {
                return Ok(None);
            }
            let flags = handle.flags(tx);
            handle.set_flags(tx, flags & !MAPPED);
            // The word has another meaning without the `MAPPED` flag.
            handle.set_lacking(tx, 0);
            tx.mapping_ended(inode, flags & MAY_WRITE != 0, now);
            Ok((flags & MAY_WRITE != 0).then_some(inode.id))
        })
    }
}

/// Voids the checksums of a plan's blocks: a store may change them at any time.
fn mark_stale(tx: &mut Transaction, inode: Inode, plan: &ReadPlan) {
    let (shift, inside) = (tx.layout.hugeblock_shift, tx.layout.hugeblock_bytes - 1);
    for run in plan.runs() {
        if let Some((tier, offset)) = run.source {
            let count = ((offset & inside) + run.bytes).div_ceil(tx.layout.hugeblock_bytes) as u32;
            tx.note_stale(inode, BlockRun { tier, first: (offset >> shift) as u32, count });
        }
    }
}
