//! Operation log: what happened, in order, one compact record per change (NVMe-CR, section III-E).
//!
//! On the RAM tier the log is a ring in the meta segment that the agent tails; on a durable tier the same records
//! go to the device. Record, in words (docs/FORMAT.md):
//!
//! ```text
//! 0  CRC32C << 32 | length in words << 16 | operation
//! 1  LSN     2  time     3..  parameters     then  name length, name bytes, zero padded
//! ```
//! Consecutive writes through one handle extend its last record while no barrier came between (record
//! coalescing). Invariant: a record is whole before `LOG_HEAD` covers it; barriers are never extended or crossed.
//! Does not decide when anything is flushed.

use crate::error::Result;
use crate::fs::Microfs;
use crate::handle::Handle;
use crate::layout::{LOG_HEAD, LOG_LAST_BARRIER, LOG_WORDS, LSN};
use crate::pool::BlockRun;
use crate::transaction::Transaction;
use crate::types::{InodeId, Timestamp};
use std::sync::atomic::Ordering;

/// What a record says. The numbers are on media: never change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// inode, version: the last description open for writing through some handle was closed.
    Close = 1,
    /// directory, inode, mode; name.
    Create = 2,
    /// directory, inode; name. The name is gone.
    Unlink = 3,
    /// old directory, inode, new directory, replaced inode or 0; new name.
    Rename = 4,
    /// directory, inode; name.
    Link = 5,
    /// directory, inode; name. A `Target` record follows.
    Symlink = 6,
    /// inode; the target of a symbolic link.
    Target = 7,
    /// inode, size.
    Truncate = 8,
    /// inode, offset, length, first file block, packed run of the blocks added (0 = none).
    Write = 9,
    /// inode, mode, owner, group, access and modification time.
    Attributes = 10,
    /// directory, inode; name. As `Unlink`, but drained copies stay.
    Evict = 11,
    /// inode, version: drained and verified.
    Drained = 12,
}

impl Operation {
    fn decode(number: u16) -> Option<Operation> {
        use Operation::*;
        [
            Close, Create, Unlink, Rename, Link, Symlink, Target, Truncate, Write, Attributes,
            Evict, Drained,
        ]
        .into_iter()
        .find(|operation| *operation as u16 == number)
    }

    /// Whether coalescing must not cross this operation.
    pub fn is_barrier(self) -> bool {
        !matches!(self, Operation::Write | Operation::Attributes | Operation::Drained)
    }
}

/// Longest record: a symbolic link's target and a few parameters.
const RECORD_WORDS_MAX: usize = 600;
const FIXED_WORDS: usize = 3;
const WRITE_WORDS: u64 = (FIXED_WORDS + 5 + 1) as u64;
/// Records handed out by one call of `read_log`.
const READ_BATCH: usize = 128;

/// A record as read back: operation, LSN and the first parameter, which names the inode or directory.
#[derive(Clone, Copy, Debug)]
pub struct LogRecord {
    /// What happened.
    pub operation: Operation,
    /// Its place in the order of all operations.
    pub lsn: u64,
    /// When.
    pub time: Timestamp,
    /// The first two parameters.
    pub parameters: [u64; 2],
}

/// How far a reader of the log got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRead {
    /// Everything up to the cursor was seen.
    Read,
    /// Records were overwritten before they were read: look at the whole namespace again.
    Overrun,
}

impl Transaction<'_> {
    /// The log's head, as far from overflow as any namespace that was ever used.
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
        let length = FIXED_WORDS + parameters.len() + 1 + name.len().div_ceil(8);
        debug_assert!(length <= RECORD_WORDS_MAX);
        let head = self.checked_log_head();
        let lsn = self.get(LSN).wrapping_add(1);
        let mut at = head + 1;
        let mut put = |tx: &mut Self, value: u64| {
            let word = tx.log_word(at);
            tx.set_unlogged(word, value);
            at += 1;
        };
        put(self, lsn);
        put(self, now.0);
        for &parameter in parameters {
            put(self, parameter);
        }
        put(self, name.len() as u64);
        for chunk in name.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            put(self, u64::from_le_bytes(bytes));
        }
        let header = self.record_header(head, operation, length as u64);
        let word = self.log_word(head);
        self.set_unlogged(word, header);
        self.set(LSN, lsn);
        self.set(LOG_HEAD, head + length as u64);
        if operation.is_barrier() {
            self.set(LOG_LAST_BARRIER, head + 1);
        }
    }

    /// Logs a write; extends the handle's last record if this continues it.
    pub(crate) fn log_write(
        &mut self,
        handle: Option<Handle>,
        now: Timestamp,
        inode: InodeId,
        range: (u64, u64),
        added: Option<(u32, BlockRun)>,
    ) {
        if let Some(handle) = handle {
            if self.extend_write(handle, inode, range, added) {
                return;
            }
            let head = self.checked_log_head();
            handle.set_log_position(self, head + 1);
        }
        let (file_block, run) = added.map_or((0, 0), |(block, run)| (block, run.pack()));
        let (offset, length) = range;
        let parameters = [u64::from(inode.0), offset, length, u64::from(file_block), run];
        self.log(Operation::Write, now, &parameters, &[]);
    }

    fn extend_write(
        &mut self,
        handle: Handle,
        inode: InodeId,
        (offset, length): (u64, u64),
        added: Option<(u32, BlockRun)>,
    ) -> bool {
        let Some(position) = handle.log_position(self).checked_sub(1) else { return false };
        let head = self.checked_log_head();
        let in_window = position < head
            && position + (LOG_WORDS / 2) as u64 > head
            && position + 1 > self.get(LOG_LAST_BARRIER);
        if !in_window {
            return false;
        }
        let parameter = |tx: &Self, index: u64| tx.get(tx.log_word(position + 3 + index));
        let (old_offset, old_length) = (parameter(self, 1), parameter(self, 2));
        let continues = old_offset.checked_add(old_length) == Some(offset);
        if parameter(self, 0) != u64::from(inode.0) || !continues {
            return false;
        }
        let mut run = parameter(self, 4);
        let mut file_block = parameter(self, 3);
        if let Some((added_block, added)) = added {
            let old = BlockRun::unpack(run);
            if run == 0 {
                (file_block, run) = (u64::from(added_block), added.pack());
            } else if old.tier == added.tier
                && old.end() == added.first
                && file_block.checked_add(u64::from(old.count)) == Some(u64::from(added_block))
                && old.count + added.count <= crate::pool::RUN_BLOCKS_MAX
            {
                run = BlockRun { count: old.count + added.count, ..old }.pack();
            } else {
                return false;
            }
        }
        for (index, value) in [(2, old_length + length), (3, file_block), (4, run)] {
            let word = self.log_word(position + 3 + index);
            self.set(word, value);
        }
        let header = self.record_header(position, Operation::Write, WRITE_WORDS);
        let word = self.log_word(position);
        self.set(word, header);
        true
    }

    /// Word 0 of the record at `position`, computed over the words that follow it.
    fn record_header(&self, position: u64, operation: Operation, length: u64) -> u64 {
        let shape = length << 16 | operation as u64;
        let mut crc = (self.checksum)(0, &shape.to_le_bytes());
        let mut bytes = [0; 64];
        let mut filled = 0;
        for index in 1..length {
            let word = self.get(self.log_word(position + index));
            bytes[filled..filled + 8].copy_from_slice(&word.to_le_bytes());
            filled += 8;
            if filled == bytes.len() || index + 1 == length {
                crc = (self.checksum)(crc, &bytes[..filled]);
                filled = 0;
            }
        }
        u64::from(crc) << 32 | shape
    }

    /// Reads the record at `position`: its length in words and its content.
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
            time: Timestamp(word(2)),
            parameters: [word(3), word(4)],
        };
        Some((length, record))
    }
}

impl Microfs {
    /// Number of words ever appended to the log; read without the lock.
    pub fn log_head(&self) -> u64 {
        self.memory().words()[LOG_HEAD].load(Ordering::Relaxed)
    }

    /// Visits the records from `cursor` on and moves it past them. Start with the `log_head` of the moment from
    /// which changes matter. A cursor that was overrun is moved to the end.
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
