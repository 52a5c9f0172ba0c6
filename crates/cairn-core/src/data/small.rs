//! Small writes that continue a file within its last block: one lock instead of two.
//!
//! Most small writes append to a block that exists already. To plan and commit them separately
//! costs more than the copy. Here the bytes, which the caller has copied out of the application's
//! memory before, go to the tier under the lock: at most [`SMALL_BYTES_MAX`], into a block that is
//! mapped, so that neither a fault nor device I/O happens. If the process dies in the middle, the
//! undo leaves the file as it was, and the bytes are part of its tail. So this does not serve a
//! file without a tail, whose last block is zeroed to its end.

use crate::data::map::Stretch;
use crate::data::write::{PIECE_IN_PLACE, WritePiece};
use crate::engine::fs::Microfs;
use crate::engine::inode::{HAS_WAITING, SETTLING, WANTS_SETTLE};
use crate::engine::lease::keep_lease;
use crate::format::error::Result;
use crate::format::types::{Caller, HandleId, Position};
use crate::process::handle::{APPEND, MAY_WRITE, WROTE};

/// Longest write that may be stored under the lock, bytes.
pub const SMALL_BYTES_MAX: usize = 1024;

impl Microfs {
    /// Writes `length` bytes under one lock and returns their offset. Requires that they continue
    /// the file within a block it has, and that nobody else is writing to it. Returns `None`, with
    /// nothing done, otherwise: plan the write then.
    ///
    /// `store` puts the bytes in place and returns their checksum term. It must neither block nor
    /// fault, and returns `None` if it cannot store them.
    pub fn write_small(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u32,
        store: impl FnOnce(&WritePiece) -> Option<u32>,
    ) -> Result<Option<u64>> {
        debug_assert!((1..=SMALL_BYTES_MAX as u32).contains(&length));
        let mut seat = match at {
            Position::Cursor => self.free_lease_seat(handle),
            _ => None,
        };
        let mut lease = None;
        let written = self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, MAY_WRITE)?;
            inode.require_whole(tx)?;
            let alone = inode.pins(tx) == 0
                && !handle.lacks(tx)
                && tx.may_change_in_place(inode)
                && inode.flags(tx) & (SETTLING | WANTS_SETTLE | HAS_WAITING) == 0;
            let offset = tx.write_offset(inode, handle, at);
            let block_bytes = tx.layout.hugeblock_bytes;
            let start = offset & (block_bytes - 1);
            let continues = offset >= inode.size(tx).max(inode.written_end(tx))
                && inode.tail(tx).is_some_and(|tail| offset <= tail);
            let file_block = offset >> tx.layout.hugeblock_shift;
            let fits = start + u64::from(length) <= block_bytes && file_block < u64::from(u32::MAX);
            if !alone || !continues || !fits {
                return Ok(None);
            }
            let Stretch::Data(run) = tx.stretch(inode.map(tx), file_block as u32) else {
                return Ok(None);
            };
            if tx.is_redirected(inode) && tx.in_image(run.tier, run.first) {
                return Ok(None);
            }
            let (tier, block) = (run.tier, run.first);
            let piece = WritePiece { tier, block, start: start as u32, length, ..PIECE_IN_PLACE };
            let Some(term) = store(&piece) else { return Ok(None) };
            let end = offset + u64::from(length);
            tx.fold_checksum(run.tier, run.first, term);
            tx.open_stale_last_block(inode, caller.now);
            tx.log_write(Some(handle), caller.now, inode, (offset, u64::from(length)), None);
            inode.set_tail(tx, end);
            inode.set_written_end(tx, end);
            inode.set_size(tx, end);
            if handle.flags(tx) & APPEND != 0 {
                inode.set_appended_end(tx, end);
            }
            inode.touch_data(tx, caller);
            if at == Position::Cursor {
                handle.set_cursor(tx, end);
            }
            handle.add_flags(tx, WROTE);
            if let Some(seat) = &mut seat {
                let slot = tx.slot(caller.slot)?;
                lease = tx.grant_lease(seat, slot, handle, inode, (offset, end))?;
            }
            Ok(Some(offset))
        })?;
        keep_lease(seat, lease);
        Ok(written)
    }
}
