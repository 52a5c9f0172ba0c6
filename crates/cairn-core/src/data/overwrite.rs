//! Small writes over bytes that a file has: one lock instead of two.
//!
//! To plan and commit separately costs several times what the copy does. So the bytes, which the
//! caller has copied out of the application's memory before, go to the tier under the lock, as in
//! `small.rs`. If the process dies in the middle, only some of them are there, as after a death in
//! the transfer of a planned write. By then nothing may rely on the old bytes. So this serves only
//!
//! - blocks whose checksum is already void. The inode's version changes before any byte does, and
//!   an undo does not restore it. Whoever computes a new checksum sees by the version that it is of
//!   older bytes;
//! - descriptions that were written through before, so that the file becomes unclean if their
//!   process dies;
//! - namespaces in memory. Their log need not record that bytes change: no file is rebuilt from it,
//!   and its readers look when the file is closed.
//!
//! The first write to a block is planned, and makes all of that true for the later ones.

use crate::data::map::Stretch;
use crate::data::small::SMALL_BYTES_MAX;
use crate::data::write::{PIECE_IN_PLACE, WriteKind, WritePiece};
use crate::engine::fs::Microfs;
use crate::engine::inode::{HAS_WAITING, SETTLING, WANTS_SETTLE};
use crate::engine::run::BlockRun;
use crate::format::error::Result;
use crate::format::types::{Caller, HandleId};
use crate::process::handle::{APPEND, MAY_WRITE, WROTE};

impl Microfs {
    /// Writes `length` bytes, at most [`SMALL_BYTES_MAX`], at `offset` under one lock. Requires
    /// that the file has bytes in their place, in one block whose checksum is void, and that nobody
    /// else is writing to it. Returns false, with nothing written, otherwise: plan the write then.
    ///
    /// `store` puts the bytes in place. It must neither block nor fault, and returns false if it
    /// cannot store them.
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
            inode.next_version_without_undo(tx);
            if !store(&piece) {
                return Ok(false);
            }
            inode.touch_data(tx, caller);
            Ok(true)
        })
    }
}
