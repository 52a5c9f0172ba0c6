//! Open-file descriptions, shared by every process that inherited one.
//!
//! A handle has a cursor, flags and a reference count; each process of the job counts once, however
//! many descriptors it has. Two fields stay with the record while it is free. One is the inode
//! number of the handle's placeholder, because the placeholder file stays, too. The other is the
//! count of its openings, which is part of the handle's id: a call that goes on after a close in
//! another thread does not take a later description with the same number for its own.

use crate::engine::fields::fields;
use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, LOST, UNCLEAN};
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::{HANDLES_MAX, SlabKind};
use crate::format::record::Operation;
use crate::format::types::{
    HandleId, HandleInfo, Holding, InodeId, ProcessIdentity, SlotId, Timestamp,
};

pub(crate) const MAY_READ: u32 = 1;
pub(crate) const MAY_WRITE: u32 = 2;
pub(crate) const APPEND: u32 = 4;
pub(crate) const PATH_ONLY: u32 = 8;
/// Data were, or may have been, written through this handle.
pub(crate) const WROTE: u32 = 16;
/// Stands for a mapping, see `mapped.rs`.
pub(crate) const MAPPED: u32 = 32;
/// A process that had it died while other processes had it, too.
const LOST_ONE: u32 = 64;
/// In transit between processes, see `fd_passing.rs`.
pub(crate) const IN_FLIGHT: u32 = 128;
/// The file was unclean when it was opened for writing through this handle (dead writers may have
/// been reaped for that open): an orderly close ends the unclean state.
const TAKES_OVER: u32 = 256;
/// First bit, and number, of the bits kept for the application; they mean nothing here.
const STATUS_SHIFT: u32 = 9;
const STATUS_BITS: u32 = 15;
/// First bit of the value that `Inode::unclean_count` had when the handle was opened.
const UNCLEAN_COUNT_SHIFT: u32 = STATUS_SHIFT + STATUS_BITS;
const _: () = assert!(UNCLEAN_COUNT_SHIFT + 8 == u32::BITS);

// A handle's number takes half of its id, and is never all ones.
const _: () = assert!(HANDLES_MAX < 1 << 16);

/// Bits of the offset of a lack.
const LACK_BITS: u32 = 48;

/// A write of a program that was refused for want of room.
struct Lack {
    /// Offset of its first byte; the lowest one of several such writes.
    offset: u64,
    /// Whether the file was cut since.
    was_cut: bool,
}

/// An open-file description in use.
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    pub id: HandleId,
    pub at: usize,
}

fields!(Handle {
    inode, set_inode: high 0;
    flags, set_flags: low 0;
    cursor, set_cursor: word 1;
    references, set_references: high 2;
    // Number of openings of this record: tells them apart, see `HandleId`.
    opening, set_opening: low 2;
    placeholder, set_placeholder: word 3;
    // Log position + 1 of the last `Write` record made through this handle; 0 = none.
    log_position, set_log_position: word 4;
    // Of a mapping that may be stored to: pin epoch since which it may be.
    stored_to_since, set_stored_to_since: word 5;
    // Of any other description: its lack, see `Lack`; else 0.
    lacking, set_lacking: word 5;
    // Number of leases in a row that were recalled before they were used; and number of writes
    // until the next lease may be given.
    vain_leases, set_vain_leases: high 6;
    lease_after, set_lease_after: low 6;
    // Kernel inode number of the file that travels for it, see `fd_passing.rs`.
    token, set_token: word 7;
});

impl Handle {
    pub(crate) fn add_flags(self, tx: &mut Transaction, flags: u32) {
        let old = self.flags(tx);
        self.set_flags(tx, old | flags);
    }

    /// Records that a process that had this description died. If data were written through it, the
    /// file becomes unclean, no matter who closes it last.
    fn note_death(self, tx: &mut Transaction) -> Result<()> {
        self.add_flags(tx, LOST_ONE);
        if self.flags(tx) & (WROTE | MAY_WRITE) == WROTE | MAY_WRITE {
            tx.recalled_inode(InodeId(self.inode(tx)))?.mark_unclean(tx);
        }
        Ok(())
    }

    pub(crate) fn add_reference(self, tx: &mut Transaction) {
        let references = self.references(tx);
        self.set_references(tx, references.wrapping_add(1));
    }

    /// Whether a write through the handle was refused for want of room, and has not been repeated.
    pub(crate) fn lacks(self, tx: &Transaction) -> bool {
        self.lacking(tx) != 0 && self.flags(tx) & MAPPED == 0
    }

    fn lack(self, tx: &Transaction, inode: Inode) -> Option<Lack> {
        let kept = Some(self.lacking(tx)).filter(|_| self.lacks(tx))?;
        let offset = (kept & ((1 << LACK_BITS) - 1)).saturating_sub(1);
        Some(Lack { offset, was_cut: (kept >> LACK_BITS) as u16 != inode.moves(tx) as u16 })
    }

    /// Forgets the lack if a write from `offset` to `end` covers it. If this write is refused, too,
    /// the lack is noted again.
    pub(crate) fn note_write(self, tx: &mut Transaction, inode: Inode, offset: u64, end: u64) {
        let Some(lack) = self.lack(tx, inode) else { return };
        let appends = self.flags(tx) & APPEND != 0;
        if appends || (offset..end).contains(&lack.offset) {
            self.set_lacking(tx, 0);
        }
    }

    /// Returns the open file, without a lease on it. Errors: `BadHandle` unless the handle allows
    /// all of `wanted`.
    pub(crate) fn file(self, tx: &mut Transaction, wanted: u32) -> Result<Inode> {
        if self.flags(tx) & (wanted | PATH_ONLY) != wanted {
            return Err(Error::BadHandle);
        }
        tx.recalled_inode(InodeId(self.inode(tx)))
    }
}

impl Transaction<'_> {
    /// Logs the state of a file when a description of it is closed, or when it is truncated while
    /// nobody has it open for writing.
    pub(crate) fn log_close(&mut self, inode: Inode, now: Timestamp) {
        let unclean = inode.flags(self) & UNCLEAN != 0;
        let state = u64::from(unclean) | u64::from(inode.writers(self) > 0) << 1;
        let parameters = [u64::from(inode.id.0), inode.version(self), state];
        self.log(Operation::Close, now, &parameters, &[]);
    }

    /// Returns the handle `id`. Errors: `BadHandle` if it is not open, or if a later opening has
    /// its number.
    pub(crate) fn handle(&self, id: HandleId) -> Result<Handle> {
        let handle = self.handle_numbered(id.number())?;
        match handle.id == id {
            true => Ok(handle),
            false => Err(Error::BadHandle),
        }
    }

    /// Returns the open handle that has this number. Errors: `BadHandle` if none is open.
    pub(crate) fn handle_numbered(&self, number: u32) -> Result<Handle> {
        let at = self.find_record(SlabKind::Handle, number).ok_or(Error::BadHandle)?;
        let handle = self.handle_at(number, at);
        match handle.references(self) {
            0 => Err(Error::BadHandle),
            _ => Ok(handle),
        }
    }

    fn handle_at(&self, number: u32, at: usize) -> Handle {
        let record = Handle { id: HandleId(number), at };
        Handle { id: HandleId::new(number, record.opening(self)), at }
    }

    /// Returns what `process` has open by `handle`, if that is a regular file.
    pub(crate) fn holding(&self, process: ProcessIdentity, handle: HandleId) -> Option<Holding> {
        let handle = self.handle(handle).ok()?;
        let flags = handle.flags(self);
        let inode = self.inode(InodeId(handle.inode(self))).ok()?;
        (inode.is_regular(self) && flags & PATH_ONLY == 0).then(|| Holding {
            process,
            handle: handle.id,
            inode: inode.id,
            write: flags & MAY_WRITE != 0,
            cursor: handle.cursor(self),
            size: inode.size(self),
            version: inode.version(self),
            born: inode.born(self),
        })
    }

    /// Opens `inode` for `slot`. Returns the new handle.
    pub(crate) fn new_handle(&mut self, slot: Slot, inode: Inode, flags: u32) -> Result<Handle> {
        let taken = self.take(SlabKind::Handle, Error::TooManyHandles)?;
        let at = self.record(SlabKind::Handle, taken.index);
        let opening = Handle { id: HandleId(taken.index), at }.opening(self).wrapping_add(1);
        let handle = Handle { id: HandleId::new(taken.index, opening), at };
        self.set(handle.at, u64::from(inode.id.0) << 32 | u64::from(flags));
        self.set_fresh(handle.at + 1, &[0]);
        self.set(handle.at + 2, 1 << 32 | u64::from(opening));
        self.set_fresh(handle.at + 4, &[0, 0, 0]);
        slot.set_holds(self, handle.id, true);
        let opens = inode.opens(self);
        inode.set_opens(self, opens.wrapping_add(1));
        if flags & MAY_WRITE != 0 && inode.flags(self) & UNCLEAN != 0 {
            handle.add_flags(self, TAKES_OVER | inode.unclean_count(self) << UNCLEAN_COUNT_SHIFT);
        }
        if flags & MAY_WRITE != 0 {
            let writers = inode.writers(self);
            inode.set_writers(self, writers.wrapping_add(1));
        }
        Ok(handle)
    }

    /// Drops the reference of `slot`; the last one closes the description. Returns true if that
    /// closes a description through which data were written.
    ///
    /// `clean` false: the process died without an orderly end. If the file was written to through
    /// this description, it becomes unclean, even if other processes still have the description. It
    /// also becomes unclean if a write was refused for want of room and not repeated, unless the
    /// file was cut since and ends before that write. The orderly close of a description that was
    /// opened after the file became unclean ends the unclean state.
    pub(crate) fn release_handle(
        &mut self,
        slot: Slot,
        id: HandleId,
        clean: bool,
        now: Timestamp,
    ) -> Result<bool> {
        let handle = self.handle(id)?;
        if !slot.holds(self, id) {
            return Err(Error::BadHandle);
        }
        slot.set_holds(self, id, false);
        slot.end_stream(self, id);
        self.drop_reference(handle, Some(slot), clean, now)
    }

    /// Drops the reference of a description in transit. Returns the same as
    /// [`Transaction::release_handle`]. If a process that had the description died before, its end
    /// counts as unclean.
    pub(crate) fn land_handle(&mut self, handle: Handle, now: Timestamp) -> Result<bool> {
        let flags = handle.flags(self);
        handle.set_flags(self, flags & !IN_FLIGHT);
        self.drop_reference(handle, None, flags & LOST_ONE == 0, now)
    }

    fn drop_reference(
        &mut self,
        handle: Handle,
        slot: Option<Slot>,
        clean: bool,
        now: Timestamp,
    ) -> Result<bool> {
        let inode = self.recalled_inode(InodeId(handle.inode(self)))?;
        let references = handle.references(self);
        handle.set_references(self, references - 1);
        if references > 1 {
            if !clean {
                handle.note_death(self)?;
            }
            return Ok(false);
        }
        let flags = handle.flags(self);
        let lack = handle.lack(self, inode);
        let is_short = lack.is_some_and(|lack| !lack.was_cut || lack.offset < inode.size(self));
        self.set(handle.at, 0);
        self.give_back(SlabKind::Handle, handle.id.number());
        let opens = inode.opens(self);
        inode.set_opens(self, opens.saturating_sub(1));
        if flags & MAPPED != 0 {
            self.mapping_ended(inode, flags & MAY_WRITE != 0, now);
        }
        if flags & MAY_WRITE != 0 {
            let writers = inode.writers(self);
            inode.set_writers(self, writers.saturating_sub(1));
            let came_after = flags & TAKES_OVER != 0
                && flags >> UNCLEAN_COUNT_SHIFT == inode.unclean_count(self);
            if !clean && flags & WROTE != 0 || is_short {
                inode.mark_unclean(self);
            } else if clean && came_after && inode.flags(self) & LOST == 0 {
                inode.clear_flags(self, UNCLEAN);
            }
            self.log_close(inode, now);
        }
        self.retire_if_unreachable(inode, slot)?;
        if flags & WROTE != 0 {
            self.count_barrier();
        }
        Ok(flags & WROTE != 0)
    }
}

impl Microfs {
    /// Records that this process refers to `handle`: it inherited or received a descriptor. Returns
    /// whether it did not before.
    pub fn retain(&self, slot: SlotId, handle: HandleId) -> Result<bool> {
        self.transact(|tx| {
            let slot = tx.slot(slot)?;
            let handle = tx.handle(handle)?;
            let is_new = !slot.holds(tx, handle.id);
            if is_new {
                slot.set_holds(tx, handle.id, true);
                handle.add_reference(tx);
            }
            Ok(is_new)
        })
    }

    /// Drops the reference of this process, which has closed its last descriptor of `handle`. If
    /// the first tier is durable, what was written through the handle is durable when this returns.
    /// Errors: `Io`: the handle is closed, but the data are not durable.
    pub fn release(&self, slot: SlotId, handle: HandleId, now: Timestamp) -> Result<()> {
        let wrote = self.transact(|tx| {
            let slot = tx.slot(slot)?;
            tx.release_handle(slot, handle, true, now)
        })?;
        match wrote {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Returns the open handle that has this number. Errors: `BadHandle` if none is open.
    pub fn handle_numbered(&self, number: u32) -> Result<HandleId> {
        self.transact(|tx| Ok(tx.handle_numbered(number)?.id))
    }

    /// Returns the state of `handle`.
    pub fn handle(&self, handle: HandleId) -> Result<HandleInfo> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let flags = handle.flags(tx);
            // The lease is recalled, so that the cursor is up to date.
            let inode = tx.recalled_inode(InodeId(handle.inode(tx)))?;
            Ok(HandleInfo {
                inode: inode.id,
                read: flags & MAY_READ != 0,
                write: flags & MAY_WRITE != 0,
                append: flags & APPEND != 0,
                path_only: flags & PATH_ONLY != 0,
                is_directory: inode.is_directory(tx),
                cursor: handle.cursor(tx),
                placeholder: handle.placeholder(tx),
                status: flags >> STATUS_SHIFT & ((1 << STATUS_BITS) - 1),
            })
        })
    }

    /// Turns appending on or off (`F_SETFL`).
    pub fn set_append(&self, handle: HandleId, append: bool) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let flags = handle.flags(tx) & !APPEND;
            handle.set_flags(tx, if append { flags | APPEND } else { flags });
            Ok(())
        })
    }

    /// Keeps `status` with the description: up to 15 bits that mean nothing here.
    pub fn set_status(&self, handle: HandleId, status: u32) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let mask = (1 << STATUS_BITS) - 1;
            let flags = handle.flags(tx) & !(mask << STATUS_SHIFT);
            handle.set_flags(tx, flags | (status & mask) << STATUS_SHIFT);
            Ok(())
        })
    }

    /// Announces a change of the data through this handle by other means than a write. If the
    /// process dies from now on, the file becomes unclean.
    pub fn note_change(&self, handle: HandleId) -> Result<()> {
        self.transact(|tx| {
            tx.handle(handle)?.add_flags(tx, WROTE);
            Ok(())
        })
    }

    /// Notes that a process that used this handle died without an orderly end. If data were written
    /// through the handle, the file becomes unclean. For servers that hold handles for other
    /// processes; a process with a slot of its own is reaped instead.
    pub fn note_death(&self, handle: HandleId) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            handle.note_death(tx)
        })
    }

    /// Notes that a program's write through this handle at `offset` was refused for want of room,
    /// or because the tier failed. Unless the write is repeated, or the file is cut before it, the
    /// file becomes unclean when the handle is closed.
    pub fn note_refused_write(&self, handle: HandleId, offset: u64) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let inode = tx.inode(InodeId(handle.inode(tx)))?;
            let lower = handle.lack(tx, inode).filter(|lack| !lack.was_cut);
            let offset = lower.map_or(offset, |lack| lack.offset.min(offset));
            if handle.flags(tx) & MAPPED == 0 {
                let offset = offset.min((1 << LACK_BITS) - 2);
                handle.set_lacking(tx, u64::from(inode.moves(tx)) << LACK_BITS | (offset + 1));
            }
            Ok(())
        })
    }

    /// Forgets the lack: the refused data were written in another way.
    pub fn forget_refused_write(&self, handle: HandleId) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            if handle.lacks(tx) {
                handle.set_lacking(tx, 0);
            }
            Ok(())
        })
    }

    /// Records the kernel inode number of the handle's placeholder.
    pub fn set_placeholder(&self, handle: HandleId, kernel_inode: u64) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            handle.set_placeholder(tx, kernel_inode);
            Ok(())
        })
    }

    /// Returns the open handle whose placeholder has this kernel inode number.
    pub fn handle_by_placeholder(&self, kernel_inode: u64) -> Result<Option<HandleId>> {
        self.transact(|tx| {
            let end = tx.records_end(SlabKind::Handle);
            let open = (1..end).filter_map(|number| tx.handle_numbered(number).ok());
            let found = open.into_iter().find(|handle| handle.placeholder(tx) == kernel_inode);
            Ok(found.map(|handle| handle.id))
        })
    }

    /// Sets the shared cursor from `from` back to `to`, because fewer bytes were read than planned.
    /// Does nothing if somebody else has moved it meanwhile.
    pub fn step_back(&self, handle: HandleId, from: u64, to: u64) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            if handle.cursor(tx) == from {
                handle.set_cursor(tx, to);
            }
            Ok(())
        })
    }

    /// Sets the shared cursor and returns it. `whence` is `SEEK_SET`, `SEEK_CUR`, `SEEK_END`,
    /// `SEEK_DATA` or `SEEK_HOLE`.
    pub fn seek(&self, handle: HandleId, offset: i64, whence: i32) -> Result<u64> {
        const SEEK_SET: i32 = 0;
        const SEEK_CUR: i32 = 1;
        const SEEK_END: i32 = 2;
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, 0)?;
            let size = inode.size(tx);
            let relative_to = |base: u64| {
                i64::try_from(base)
                    .ok()
                    .and_then(|base| base.checked_add(offset))
                    .and_then(|sum| u64::try_from(sum).ok())
                    .ok_or(Error::Invalid)
            };
            let target = match whence {
                SEEK_SET => relative_to(0)?,
                SEEK_CUR => relative_to(handle.cursor(tx))?,
                SEEK_END => relative_to(size)?,
                SEEK_DATA | SEEK_HOLE => {
                    let from = u64::try_from(offset).map_err(|_| Error::NoSuchOffset)?;
                    if from >= size || !inode.is_regular(tx) {
                        return Err(Error::NoSuchOffset);
                    }
                    match whence == SEEK_DATA {
                        true => tx.next_data(inode, from, size).ok_or(Error::NoSuchOffset)?,
                        false => tx.next_hole(inode, from, size),
                    }
                }
                _ => return Err(Error::Invalid),
            };
            handle.set_cursor(tx, target);
            Ok(target)
        })
    }
}
