//! Reading: plan under the lock, let the caller copy the bytes, then check that they were the
//! file's.
//!
//! A read plan names the blocks and pins nothing. After the copy the reader checks one word: if
//! blocks left the file meanwhile, that counted as a move, and the reader plans again. Bytes that
//! were never written read as zeros, unless they may have been written and lost with a tier: then
//! they cannot be read.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, LOST};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::types::{Caller, HandleId, InodeId, Position};
use crate::process::handle::MAY_READ;
use std::sync::atomic::{Ordering, fence};

/// Maximum number of runs in a read plan.
const READ_RUNS_MAX: usize = 8;

/// Part of a read: bytes from a tier, or zeros.
#[derive(Clone, Copy, Debug)]
pub struct ReadRun {
    /// Length in bytes.
    pub bytes: u64,
    /// Tier and byte offset on it; `None` for zeros.
    pub source: Option<(u8, u64)>,
}

/// Where the bytes of a read are.
#[derive(Clone, Copy, Debug)]
pub struct ReadPlan {
    /// The file.
    pub inode: InodeId,
    /// First byte.
    pub offset: u64,
    /// Bytes covered. Fewer than asked at the end of the file, or when the file is scattered. 0 at
    /// or behind the end.
    pub length: u64,
    moves_word: usize,
    moves: u64,
    run_count: usize,
    runs: [ReadRun; READ_RUNS_MAX],
}

impl ReadPlan {
    /// Creates an empty plan, to be filled.
    pub fn empty() -> ReadPlan {
        ReadPlan {
            inode: InodeId(0),
            offset: 0,
            length: 0,
            moves_word: 0,
            moves: 0,
            run_count: 0,
            runs: [ReadRun { bytes: 0, source: None }; READ_RUNS_MAX],
        }
    }

    /// Returns the parts, in file order.
    pub fn runs(&self) -> &[ReadRun] {
        &self.runs[..self.run_count]
    }
}

/// How a plan treats lost bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The plan ends there; if the first byte is lost, planning fails (`Io`).
    Refused,
    /// They count as a hole.
    Nowhere,
}

impl Transaction<'_> {
    /// Plans a read of up to `length` bytes of a file from `offset` on. Errors: `Io`: the first
    /// byte is lost.
    pub(crate) fn plan_bytes(
        &self,
        inode: Inode,
        offset: u64,
        length: u64,
        lost: Lost,
        plan: &mut ReadPlan,
    ) -> Result<()> {
        plan.inode = inode.id;
        plan.offset = offset;
        plan.moves_word = inode.at + 6;
        plan.moves = u64::from(inode.moves(self));
        let end = inode.size(self).min(offset.saturating_add(length));
        plan_runs(self, inode, end, lost, plan)
    }
}

impl Microfs {
    /// Plans a read of up to `length` bytes. Errors: `Io`: the data there are lost.
    pub fn plan_read(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
    ) -> Result<ReadPlan> {
        let mut plan = ReadPlan::empty();
        self.plan_read_into(caller, handle, at, length, &mut plan)?;
        Ok(plan)
    }

    /// Does the same as `plan_read` into an existing plan: a small read takes only as long as
    /// copying a plan a few times.
    pub fn plan_read_into(
        &self,
        caller: &Caller,
        handle: HandleId,
        at: Position,
        length: u64,
        plan: &mut ReadPlan,
    ) -> Result<()> {
        self.transact(|tx| {
            let handle = tx.handle(handle)?;
            let inode = handle.file(tx, MAY_READ)?;
            if !inode.is_regular(tx) {
                return Err(Error::IsDirectory);
            }
            let offset = match at {
                Position::Cursor => handle.cursor(tx),
                Position::End => inode.size(tx),
                Position::At(offset) | Position::Again(offset) => offset,
            };
            tx.plan_bytes(inode, offset, length, Lost::Refused, plan)?;
            if at == Position::Cursor {
                handle.set_cursor(tx, plan.offset + plan.length);
            }
            // As with `relatime`, only the first read after a change is recorded, even one at the
            // end of the file.
            if length > 0 && inode.accessed(tx) <= inode.modified(tx) {
                inode.set_accessed(tx, caller.now);
            }
            Ok(())
        })
    }

    /// Whether the bytes just copied by `plan` were the file's. False if blocks of the file moved
    /// meanwhile.
    pub fn read_is_valid(&self, plan: &ReadPlan) -> bool {
        fence(Ordering::Acquire);
        let layout = self.memory().words()[plan.moves_word].load(Ordering::Relaxed);
        layout >> 32 == plan.moves
    }
}

/// Fills in the runs of a plan. Errors: `Io`: the first byte is lost.
fn plan_runs(
    tx: &Transaction,
    inode: Inode,
    end: u64,
    lost: Lost,
    plan: &mut ReadPlan,
) -> Result<()> {
    let refuses = lost == Lost::Refused && inode.flags(tx) & LOST != 0;
    let shift = tx.layout.hugeblock_shift;
    let (map, base) = tx.data_of(inode);
    let mut at = plan.offset;
    plan.run_count = 0;
    while at < end && plan.run_count < READ_RUNS_MAX {
        let place = base + at;
        let block = (place >> shift) as u32;
        let inside = place & (tx.layout.hugeblock_bytes - 1);
        let (count, source) = match tx.stretch(map, block) {
            Stretch::Data(run) => {
                let offset = (u64::from(run.first) << shift) + inside;
                (run.count, Some((run.tier, offset)))
            }
            Stretch::Hole(_) if refuses => match plan.run_count {
                0 => return Err(Error::Io),
                _ => break,
            },
            Stretch::Hole(count) => (count, None),
        };
        let bytes = ((u64::from(count) << shift) - inside).min(end - at);
        if bytes == 0 {
            tx.mark_corrupt("empty extent");
            break;
        }
        plan.runs[plan.run_count] = ReadRun { bytes, source };
        plan.run_count += 1;
        at += bytes;
    }
    plan.length = at.saturating_sub(plan.offset);
    Ok(())
}
