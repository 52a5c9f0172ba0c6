//! Small writes over bytes that a file has: one lock instead of two.
//!
//! Planning and committing apart costs several times what the copy does. So the bytes, which the
//! caller has copied out of the application's memory before, go to the tier under the lock, as in
//! `small.rs`. If the process dies in the middle, some of them are there, as if it had died in the
//! middle of the transfer of a planned write: nothing may count on the old ones by then. So this
//! serves only
//!
//! - blocks whose checksum is void already. The version, by which whoever is computing a new one
//!   sees that it is of bytes that were there before, changes for good before any byte does;
//! - descriptions through which was written before, which makes the file unclean if their process
//!   dies;
//! - namespaces in memory. Their log need not hear of bytes that change: nobody makes a file from
//!   it again, and whoever follows it looks when the file is closed.
//!
//! The first write to a block is planned, and makes all of that true for those that follow it.

use crate::data::map::Stretch;
use crate::data::small::SMALL_BYTES_MAX;
use crate::data::write::{PIECE_IN_PLACE, WriteKind, WritePiece};
use crate::engine::fs::Microfs;
use crate::engine::inode::{HAS_WAITING, SETTLING, WANTS_SETTLE};
use crate::format::error::Result;
use crate::format::types::{Caller, HandleId};
use crate::process::handle::{APPEND, MAY_WRITE, WROTE};
use crate::space::pool::BlockRun;

impl Microfs {
    /// Writes `length` bytes, at most [`SMALL_BYTES_MAX`], at `offset` at once if the file has
    /// bytes in their place, in one block whose checksum is void, and nobody else is writing to it;
    /// false, and nothing done, otherwise: plan the write then.
    ///
    /// `store` puts the bytes in place; it must neither block nor fault, and returns false if it
    /// cannot do that.
    pub fn overwrite_small(
        &self,
        caller: &Caller,
        handle: HandleId,
        offset: u64,
        length: u32,
        store: impl FnOnce(&WritePiece) -> bool,
    ) -> Result<bool> {
        debug_assert!((1..=SMALL_BYTES_MAX as u32).contains(&length));
        if self.layout().durable {
            return Ok(false);
        }
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, MAY_WRITE)?;
            inode.require_whole(tx)?;
            let is_alone = inode.pins(tx) == 0
                && !handle.lacks(tx)
                && inode.flags(tx) & (SETTLING | WANTS_SETTLE | HAS_WAITING) == 0;
            let wrote = handle.flags(tx) & (WROTE | APPEND) == WROTE;
            let start = offset & (tx.layout.hugeblock_bytes - 1);
            let is_inside = start + u64::from(length) <= tx.layout.hugeblock_bytes
                && offset.saturating_add(u64::from(length)) <= inode.size(tx);
            if !is_alone || !wrote || !is_inside {
                return Ok(false);
            }
            let file_block = (offset >> tx.layout.hugeblock_shift) as u32;
            let Stretch::Data(run) = tx.stretch(inode.map(tx), file_block) else {
                return Ok(false);
            };
            let goes_to_copy = tx.is_redirected(inode) && tx.in_image(run.tier, run.first);
            if goes_to_copy || !tx.is_stale(run.tier, run.first) {
                return Ok(false);
            }
            let blocks = BlockRun { count: 1, ..run };
            tx.write_in_image(inode, blocks);
            tx.note_change_of_one(run.tier, run.first);
            let (tier, block, kind) = (run.tier, run.first, WriteKind::Overwrite);
            let piece =
                WritePiece { tier, block, start: start as u32, length, kind, ..PIECE_IN_PLACE };
            inode.next_version_for_good(tx);
            if !store(&piece) {
                return Ok(false);
            }
            inode.touch_data(tx, caller);
            Ok(true)
        })
    }
}
