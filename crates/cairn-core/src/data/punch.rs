//! Punching holes: blocks in the middle of a file leave it, one bounded step at a time.
//!
//! Only where metadata are in memory: the log has no record for a file that loses blocks and keeps
//! its size.

use crate::data::truncate::Truncation;
use crate::engine::fs::Microfs;
use crate::engine::inode::MAPPED;
use crate::format::error::{Error, Result};
use crate::format::record::Operation;
use crate::format::types::{Caller, InodeId};

impl Microfs {
    /// Takes the blocks that a regular file has from file block `from` to before `end` out of it;
    /// they read as zeros from then on. Does not punch parts of blocks, nor blocks behind the end
    /// of the file. The caller has checked the right to write. Errors: `Invalid` for other files,
    /// and if the namespace is durable; `Busy` if the file is mapped: a mapping that may be stored
    /// to keeps its blocks.
    pub fn punch(
        &self,
        caller: &Caller,
        inode: InodeId,
        from: u32,
        end: u32,
    ) -> Result<Truncation> {
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let inode = tx.recalled_inode(inode)?;
            if tx.layout.durable || !inode.is_regular(tx) {
                return Err(Error::Invalid);
            }
            if inode.flags(tx) & MAPPED != 0 {
                return Err(Error::Busy);
            }
            let size = inode.size(tx);
            let end = end.min((size >> tx.layout.hugeblock_shift) as u32);
            let more = tx.take_out(inode, (from, end), caller, slot)?;
            inode.touch_data(tx, caller);
            // The record makes readers of the log look at the file again.
            tx.log(Operation::Truncate, caller.now, &[u64::from(inode.id.0), size], &[]);
            Ok(if more { Truncation::More } else { Truncation::Done })
        })
    }
}
