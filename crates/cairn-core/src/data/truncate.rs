//! Truncation: a file gets another size, one bounded step at a time.
//!
//! Blocks past the new end leave the file. Bytes behind the end in the last block become the file's
//! tail (`settle.rs`), so a truncation moves no byte. Emptying takes one step whatever the size:
//! the file swaps its map with that of an orphan.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{ABSENT, Inode, LOST, OPENED, ORPHAN, TORN, UNCLEAN};
use crate::engine::run::BlockRun;
use crate::engine::slot::Slot;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::record::Operation;
use crate::format::types::{Caller, InodeId};

/// Outcome of one step of a truncation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// The file has its new size.
    Done,
    /// A bounded part was done; call again.
    More,
}

impl Transaction<'_> {
    /// Empties a regular file.
    pub(crate) fn truncate_to_zero(
        &mut self,
        inode: Inode,
        caller: &Caller,
        slot: Slot,
    ) -> Result<()> {
        self.recall(inode)?;
        self.cut_all(inode, caller, slot)?;
        inode.clear_tail(self);
        inode.clear_flags(self, UNCLEAN | TORN | LOST);
        inode.drop_absence(self);
        self.finish_truncate(inode, 0, caller);
        Ok(())
    }

    fn finish_truncate(&mut self, inode: Inode, size: u64, caller: &Caller) {
        let appended = inode.appended_end(self);
        if size < inode.size(self).max(appended) {
            inode.set_written_end(self, size);
        }
        inode.set_appended_end(self, appended.min(size));
        inode.set_size(self, size);
        self.leave_tail_to_stores(inode);
        inode.touch_data(self, caller);
        self.log(Operation::Truncate, caller.now, &[u64::from(inode.id.0), size], &[]);
        if inode.flags(self) & OPENED != 0 {
            self.note_opened();
        }
    }
}

impl Microfs {
    /// Gives a regular file a new size, one bounded step at a time. The caller has checked the
    /// right to write.
    /// Errors: `Unsettled`: settle the tail first; `Absent` unless `size` is 0.
    pub fn truncate(&self, caller: &Caller, inode: InodeId, size: u64) -> Result<Truncation> {
        self.transact(|tx| {
            let done = Self::truncate_step(tx, caller, inode, size)?;
            let inode = tx.inode(inode)?;
            if done == Truncation::Done && inode.writers(tx) == 0 {
                // There is no description whose close would log this.
                tx.log_close(inode, caller.now);
            }
            Ok(done)
        })
    }

    fn truncate_step(
        tx: &mut Transaction,
        caller: &Caller,
        inode: InodeId,
        size: u64,
    ) -> Result<Truncation> {
        let slot = tx.slot(caller.slot)?;
        let inode = tx.recalled_inode(inode)?;
        let shift = tx.layout.hugeblock_shift;
        if inode.flags(tx) & ORPHAN != 0 {
            return Err(Error::NotFound);
        }
        if !inode.is_regular(tx) {
            return Err(if inode.is_directory(tx) { Error::IsDirectory } else { Error::Invalid });
        }
        if size > u64::from(u32::MAX) << shift {
            return Err(Error::FileTooLarge);
        }
        if size == 0 {
            tx.truncate_to_zero(inode, caller, slot)?;
            return Ok(Truncation::Done);
        }
        if inode.flags(tx) & ABSENT != 0 {
            return Err(Error::Absent { inode: inode.id });
        }
        inode.require_unpacked(tx)?;
        // Appends that wait for an earlier one are cut, too.
        if size >= inode.size(tx).max(inode.appended_end(tx)) {
            if inode.tail(tx).is_some_and(|tail| size > tail) {
                return Err(Error::Unsettled);
            }
            tx.open_stale_last_block(inode, caller.now);
            tx.finish_truncate(inode, size, caller);
            return Ok(Truncation::Done);
        }
        let first_gone = size.div_ceil(tx.layout.hugeblock_bytes) as u32;
        let (lowest, more) = tx.cut_extents(inode, first_gone, caller, slot)?;
        if more {
            inode.clear_tail(tx);
            tx.finish_truncate(inode, u64::from(lowest) << shift, caller);
            return Ok(Truncation::More);
        }
        match tx.stretch(inode.map(tx), (size >> shift) as u32) {
            Stretch::Data(block) if size & (tx.layout.hugeblock_bytes - 1) != 0 => {
                inode.set_tail(tx, size);
                inode.note_move(tx);
                if tx.layout.durable {
                    // Replay does the same for the record of the truncation (replay.rs).
                    inode.add_flags(tx, OPENED);
                }
                tx.note_stale(inode, BlockRun { count: 1, ..block });
            }
            _ => inode.clear_tail(tx),
        }
        tx.finish_truncate(inode, size, caller);
        Ok(Truncation::Done)
    }
}
