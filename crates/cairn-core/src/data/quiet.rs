//! Quiet files: nobody changes them while their bytes are copied. Checked before the copy and again
//! before it counts.

use crate::engine::inode::{
    ABSENT, HAS_WAITING, Inode, LOST, MAPPED, ORPHAN, SETTLING, WANTS_SETTLE,
};
use crate::engine::transaction::Transaction;

/// State of a file that must not change while its blocks are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quiet {
    version: u64,
    layout: u64,
}

impl Quiet {
    /// Returns the state of a quiet file. Returns `None` while somebody changes the file or has it
    /// mapped: a mapping shows the blocks where they are.
    pub(crate) fn of(tx: &Transaction, inode: Inode) -> Option<Quiet> {
        const CHANGES: u32 =
            ORPHAN | SETTLING | WANTS_SETTLE | HAS_WAITING | LOST | MAPPED | ABSENT;
        let is_quiet =
            inode.is_regular(tx) && inode.pins(tx) == 0 && inode.flags(tx) & CHANGES == 0;
        let (version, layout) = (inode.version(tx), inode.layout(tx));
        is_quiet.then_some(Quiet { version, layout })
    }
}
