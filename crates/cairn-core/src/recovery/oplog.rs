//! Operation log: all changes in order, one compact record each (NVMe-CR, section III-E).
//!
//! The log is a ring in the meta segment that the agent tails. On a durable tier `flush.rs` writes
//! the same words to the media. A write through a handle extends the handle's last record while
//! nothing else came between (record coalescing; `coalesce.rs` says which writes).
//!
//! Invariant: a record is whole before `LOG_HEAD` covers it. Only writes are extended, across
//! nothing but other writes, and never once a flush has taken them.
//!
//! Does not decide when anything is flushed.

use crate::data::coalesce::{Parameters, Written, continued};
use crate::data::map::{Extent, Stretch};
use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, OPENED};
use crate::engine::transaction::Transaction;
use crate::format::error::Result;
use crate::format::layout::{
    LOG_DURABLE, LOG_FROZEN, LOG_HEAD, LOG_LAST_BARRIER, LOG_WORDS, LSN, MEDIA_EPOCH, OPENED_AT,
};
use crate::format::log_media::block_start;
use crate::format::record::{self, FIXED_WORDS, Operation, RECORD_WORDS_MAX};
use crate::format::types::Timestamp;
use crate::process::handle::Handle;
use std::sync::atomic::Ordering;

/// Words of a write's record, of either kind.
const WRITE_WORDS: u64 = (FIXED_WORDS + size_of::<Parameters>() / 8 + 1) as u64;
/// Maximum number of records that `read_log` reads under one lock.
const READ_BATCH: usize = 128;
/// Maximum number of words that one transaction may append: a symbolic link's two records.
pub(crate) const APPEND_WORDS_MAX: u64 = 2 * RECORD_WORDS_MAX as u64;

/// A record as read back: operation, LSN, time and the first two parameters, of which the first
/// names the inode or directory.
#[derive(Clone, Copy, Debug)]
pub struct LogRecord {
    /// What happened.
    pub operation: Operation,
    /// Position in the order of all operations.
    pub lsn: u64,
    /// Time of the operation.
    pub time: Timestamp,
    /// The first two parameters.
    pub parameters: [u64; 2],
}

/// Outcome of reading the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRead {
    /// Everything up to the cursor was read.
    Read,
    /// Records were overwritten before they were read: scan the whole namespace again.
    Overrun,
}

impl Transaction<'_> {
    /// Returns the log's head. A head that no used namespace could have reached marks the
    /// transaction corrupt.
    fn checked_log_head(&self) -> u64 {
        let head = self.get(LOG_HEAD);
        if head > u64::MAX / 2 {
            self.mark_corrupt("log head");
            return 0;
        }
        head
    }

    fn log_word(&self, position: u64) -> usize {
        self.layout.log + position as usize % LOG_WORDS
    }

    /// Appends a record.
    pub(crate) fn log(
        &mut self,
        operation: Operation,
        now: Timestamp,
        parameters: &[u64],
        name: &[u8],
    ) {
        if !self.layout.logs {
            return;
        }
        let length = FIXED_WORDS + parameters.len() + 1 + name.len().div_ceil(8);
        debug_assert!(length <= RECORD_WORDS_MAX && parameters.len() == operation.parameters());
        let head = self.checked_log_head();
        let lsn = self.get(LSN).wrapping_add(1);
        let mut at = head + 1;
        let mut put = |tx: &mut Self, value: u64| {
            let word = tx.log_word(at);
            tx.set_unlogged(word, value);
            at += 1;
        };
        put(self, lsn);
        put(self, now.to_bits());
        for &parameter in parameters {
            put(self, parameter);
        }
        for word in record::name_words(name) {
            put(self, word);
        }
        let header = self.record_header(head, operation, length as u64);
        let word = self.log_word(head);
        self.set_unlogged(word, header);
        self.set(LSN, lsn);
        self.set(LOG_HEAD, head + length as u64);
        if operation != Operation::Write {
            self.set(LOG_LAST_BARRIER, head + 1);
        }
    }

    /// Notes that the file that the last record names may be changed in place once that record is
    /// on the media.
    pub(crate) fn note_opened(&mut self) {
        let head = self.get(LOG_HEAD);
        self.set(OPENED_AT, head);
    }

    /// Logs that blocks of `inode` are about to be changed in place.
    pub(crate) fn open_blocks(&mut self, inode: Inode, now: Timestamp) {
        if self.layout.durable && inode.flags(self) & OPENED == 0 {
            inode.add_flags(self, OPENED);
            self.log(Operation::Opened, now, &[u64::from(inode.id.0)], &[]);
            self.note_opened();
        }
    }

    /// Called before `inode` grows. If the checksum of its last block is void and the log does not
    /// say so, as after a recovery without its seal, logs that the blocks are open. Otherwise the
    /// block's checksum would be trusted once it is not the last block.
    pub(crate) fn open_stale_last_block(&mut self, inode: Inode, now: Timestamp) {
        let size = inode.size(self);
        if !self.layout.durable || size & (self.layout.hugeblock_bytes - 1) == 0 {
            return;
        }
        match self.stretch(inode.map(self), (size >> self.layout.hugeblock_shift) as u32) {
            Stretch::Data(run) if self.is_stale(run.tier, run.first) => {
                self.open_blocks(inode, now);
            }
            _ => {}
        }
    }

    /// Logs that all blocks of `inode` have valid checksums.
    pub(crate) fn close_blocks(&mut self, inode: Inode) {
        if inode.flags(self) & OPENED != 0 {
            inode.clear_flags(self, OPENED);
            let seal = self.last_block_seal(inode, inode.size(self));
            let now = inode.modified(self);
            self.log(Operation::Sealed, now, &[u64::from(inode.id.0), seal], &[]);
        }
    }

    /// Whether blocks of `inode` may be changed in place. On a durable tier only once the media say
    /// so, so that nobody trusts their checksums after a crash.
    pub(crate) fn may_change_in_place(&self, inode: Inode) -> bool {
        !self.layout.durable
            || inode.flags(self) & OPENED == 0
            || self.get(OPENED_AT) <= self.get(LOG_DURABLE)
    }

    /// Whether the ring has room for what a transaction may append, without overwriting words that
    /// are not on the media.
    pub(crate) fn log_has_room(&self) -> bool {
        let kept = block_start(self.get(LOG_DURABLE));
        self.checked_log_head().saturating_sub(kept) + APPEND_WORDS_MAX <= LOG_WORDS as u64
    }

    /// Returns the seal of a file's last block: 1 << 32 | CRC32C if the block is partly filled and
    /// has a valid checksum, else 0. It changes with every append, so the table on the media cannot
    /// be trusted for this block.
    pub(crate) fn last_block_seal(&self, inode: Inode, end: u64) -> u64 {
        if end & (self.layout.hugeblock_bytes - 1) == 0 {
            return 0;
        }
        match self.stretch(inode.map(self), (end >> self.layout.hugeblock_shift) as u32) {
            Stretch::Data(run) if !self.is_stale(run.tier, run.first) => {
                1 << 32 | u64::from(self.checksum(run.tier, run.first))
            }
            _ => 0,
        }
    }

    /// Logs a write. Extends the handle's last record if the write continues it.
    pub(crate) fn log_write(
        &mut self,
        handle: Option<Handle>,
        now: Timestamp,
        inode: Inode,
        (offset, length): (u64, u64),
        added: Option<Extent>,
    ) {
        if !self.layout.logs {
            return;
        }
        let seal = match self.layout.durable {
            true => self.last_block_seal(inode, offset + length),
            false => 0,
        };
        let written = Written { offset, length, added, seal };
        if let Some(handle) = handle {
            if self.extend_write(handle, now, inode, &written) {
                return;
            }
            let head = self.checked_log_head();
            handle.set_log_position(self, head + 1);
        }
        self.log(Operation::Write, now, &written.parameters(inode.id.0), &[]);
    }

    /// Logs a write to blocks that replaced others; with length 0, the replacement only.
    pub(crate) fn log_replacement(
        &mut self,
        now: Timestamp,
        inode: Inode,
        (offset, length): (u64, u64),
        added: Extent,
    ) {
        let seal = match self.layout.durable {
            true => self.last_block_seal(inode, offset + length),
            false => 0,
        };
        let written = Written { offset, length, added: Some(added), seal };
        self.log(Operation::Replace, now, &written.parameters(inode.id.0), &[]);
    }

    fn extend_write(
        &mut self,
        handle: Handle,
        now: Timestamp,
        inode: Inode,
        written: &Written,
    ) -> bool {
        let Some(position) = handle.log_position(self).checked_sub(1) else { return false };
        if !self.may_extend(position) {
            return false;
        }
        let first = position + FIXED_WORDS as u64;
        let old = std::array::from_fn(|index| self.get(self.log_word(first + index as u64)));
        let operation = Operation::decode(self.get(self.log_word(position)) as u16);
        let is_of_inode = old[0] == u64::from(inode.id.0);
        let Some((operation, parameters)) = operation
            .filter(|_| is_of_inode)
            .and_then(|operation| continued(operation, &old, written, self.layout.hugeblock_shift))
        else {
            return false;
        };
        let time = (position + 2, now.to_bits());
        for (at, value) in std::iter::once(time).chain((first..).zip(parameters)) {
            let word = self.log_word(at);
            self.set(word, value);
        }
        let header = self.record_header(position, operation, WRITE_WORDS);
        let word = self.log_word(position);
        self.set(word, header);
        true
    }

    /// Whether the record of a write at `position` may be changed: no flush has taken it, only
    /// writes came after it, and it is not so old that a reader of the ring loses it soon.
    fn may_extend(&self, position: u64) -> bool {
        let head = self.checked_log_head();
        position < head
            && position + (LOG_WORDS / 2) as u64 > head
            && position >= self.get(LOG_FROZEN)
            && position + 1 > self.get(LOG_LAST_BARRIER)
    }

    fn record_header(&self, position: u64, operation: Operation, length: u64) -> u64 {
        record::header(self.checksum, operation, length, |index| {
            self.get(self.log_word(position + index))
        })
    }

    /// Reads the record at `position`. Returns its length in words and its content.
    fn record_at(&self, position: u64) -> Option<(u64, LogRecord)> {
        let header = self.get(self.log_word(position));
        let length = header >> 16 & 0xffff;
        let operation = Operation::decode(header as u16)?;
        let plausible = (FIXED_WORDS as u64..=RECORD_WORDS_MAX as u64).contains(&length);
        if !plausible || self.record_header(position, operation, length) != header {
            return None;
        }
        let word = |index: u64| self.get(self.log_word(position + index));
        let record = LogRecord {
            operation,
            lsn: word(1),
            time: Timestamp::from_bits(word(2)),
            parameters: [word(3), word(4)],
        };
        Some((length, record))
    }
}

impl Microfs {
    /// Returns the number of words ever appended to the log. Takes no lock.
    pub fn log_head(&self) -> u64 {
        self.memory().words()[LOG_HEAD].load(Ordering::Relaxed)
    }

    /// Returns the LSN of the last operation. A namespace that is recovered continues with the LSN
    /// that its media knew. Takes no lock.
    pub fn last_lsn(&self) -> u64 {
        self.memory().words()[LSN].load(Ordering::Relaxed)
    }

    /// Returns how often the namespace was recovered from its media, from 1. Takes no lock.
    pub fn media_epoch(&self) -> u64 {
        self.memory().words()[MEDIA_EPOCH].load(Ordering::Relaxed)
    }

    /// Visits the records from `cursor` on and moves `cursor` past them. Start with the `log_head`
    /// of the moment from which changes matter. A cursor that was overrun is moved to the end.
    pub fn read_log(&self, cursor: &mut u64, visit: &mut dyn FnMut(LogRecord)) -> Result<LogRead> {
        let mut records = Vec::with_capacity(READ_BATCH);
        loop {
            records.clear();
            let outcome = self.transact(|tx| {
                let head = tx.checked_log_head();
                if head.wrapping_sub(*cursor) > LOG_WORDS as u64 - RECORD_WORDS_MAX as u64 {
                    *cursor = head;
                    return Ok(LogRead::Overrun);
                }
                while *cursor < head && records.len() < READ_BATCH {
                    let Some((length, record)) = tx.record_at(*cursor) else {
                        *cursor = head;
                        return Ok(LogRead::Overrun);
                    };
                    *cursor += length;
                    records.push(record);
                }
                Ok(LogRead::Read)
            })?;
            records.iter().for_each(|record| visit(*record));
            if outcome == LogRead::Overrun || records.len() < READ_BATCH {
                return Ok(outcome);
            }
        }
    }
}
