//! Data that the host was asked for (R2T), and commands that wait for memory.
//!
//! Invariant: requested data have their place in a buffer, and arrive in order, in time and once. A
//! command waits only for memory that others will give back.

use cairn_nvme::wire::pdu::{Fault, Malformed, Transfer};
use cairn_nvme::wire::{Command, Entry};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::connection::debt::Debt;
use crate::pool::Buffer;

/// A command whose data were requested.
pub(crate) struct Awaited {
    pub(crate) entry: Entry,
    pub(crate) command: Command,
    pub(crate) buffer: Buffer,
    pub(crate) length: usize,
    arrived: usize,
    tag: u16,
    is_damaged: bool,
}

/// A command that needs memory before it is executed, or before its data are requested.
pub(crate) struct Waiting {
    pub(crate) entry: Entry,
    pub(crate) command: Command,
    /// Number of bytes that the host still has to send.
    pub(crate) ask_bytes: usize,
    /// Number of bytes of the answer that need a buffer.
    pub(crate) answer_bytes: usize,
}

/// Transfers of a connection.
#[derive(Default)]
pub(crate) struct Transfers {
    pub(crate) waiting: VecDeque<Waiting>,
    /// Commands whose data were requested, by the tag of their R2T.
    awaited: HashMap<u16, Awaited>,
    awaited_bytes: usize,
    /// Debt of the host for all requested data.
    debt: Debt,
    next_tag: u16,
}

impl Transfers {
    /// Whether the host has data to send.
    pub(crate) fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Whether `bytes` more may be requested. A single command may exceed the limit.
    pub(crate) fn has_room(&self, bytes: usize, bytes_max: usize) -> bool {
        self.awaited_bytes == 0 || self.awaited_bytes + bytes <= bytes_max
    }

    /// Records that the data of a command are requested. Returns the content of the R2T.
    pub(crate) fn ask(&mut self, waiting: &Waiting, buffer: Buffer, now: Instant) -> Transfer {
        while self.awaited.contains_key(&self.next_tag) {
            self.next_tag = self.next_tag.wrapping_add(1);
        }
        let (tag, length) = (self.next_tag, waiting.ask_bytes);
        self.next_tag = self.next_tag.wrapping_add(1);
        self.awaited_bytes += length;
        self.debt.begin(now);
        let (entry, command) = (waiting.entry, waiting.command);
        let (arrived, is_damaged) = (0, false);
        let awaited = Awaited { entry, command, buffer, length, arrived, tag, is_damaged };
        self.awaited.insert(tag, awaited);
        Transfer { command_id: entry.command_id(), tag, offset: 0, length: length as u32 }
    }

    /// Accepts a data PDU. Returns the command, and the offset of the data in its buffer. Errors:
    /// these data were not asked for, or are not next.
    pub(crate) fn begin(
        &mut self,
        transfer: &Transfer,
        is_last: bool,
        bytes_max: u32,
    ) -> Result<(Awaited, usize), Malformed> {
        let malformed = |fault, what| Malformed { fault, what };
        let unknown = malformed(Fault::HeaderField(10), "data that nobody asked for");
        let awaited = self.awaited.get(&transfer.tag).ok_or(unknown)?;
        if awaited.entry.command_id() != transfer.command_id {
            return Err(malformed(Fault::HeaderField(8), "data of another command"));
        }
        if transfer.length > bytes_max {
            return Err(malformed(Fault::LimitExceeded, "more data in a PDU than MAXH2CDATA"));
        }
        if transfer.offset as usize != awaited.arrived {
            return Err(malformed(Fault::Sequence, "data that do not follow the last ones"));
        }
        let end = awaited.arrived + transfer.length as usize;
        if end > awaited.length {
            return Err(malformed(Fault::OutOfRange, "data that were not asked for"));
        }
        if is_last != (end == awaited.length) {
            return Err(malformed(Fault::Sequence, "LAST_PDU where the data do not end"));
        }
        let mut awaited = self.awaited.remove(&transfer.tag).ok_or(unknown)?;
        let start = std::mem::replace(&mut awaited.arrived, end);
        Ok((awaited, start))
    }

    /// Records that a data PDU is complete. Returns the command if it was the last one, and whether
    /// all its data were intact.
    pub(crate) fn end(&mut self, mut awaited: Awaited, is_intact: bool) -> Option<(Awaited, bool)> {
        awaited.is_damaged |= !is_intact;
        if awaited.arrived < awaited.length {
            self.awaited.insert(awaited.tag, awaited);
            return None;
        }
        self.awaited_bytes -= awaited.length;
        if self.awaited_bytes == 0 {
            self.debt.end();
        }
        let is_intact = !awaited.is_damaged;
        Some((awaited, is_intact))
    }

    /// Records that `bytes` of a body have arrived.
    pub(crate) fn arrived(&mut self, bytes: usize, now: Instant) {
        self.debt.pay(bytes, now);
    }

    /// Time from which the time of a host counts that has data to send.
    pub(crate) fn awaited_since(&self) -> Option<Instant> {
        self.debt.since()
    }

    /// Drops all commands and returns their buffers.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Buffer> {
        self.waiting.clear();
        self.awaited.drain().map(|(_, awaited)| awaited.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use std::time::Duration;

    #[test]
    fn host_that_sends_steadily_has_its_time_and_one_that_stops_has_no_more_than_others() {
        const PIECE: usize = 128 << 10;
        let (mut transfers, mut pool) = (Transfers::default(), Pool::new(1 << 20));
        let command = Command::AsyncEventRequest;
        let waiting =
            Waiting { entry: command.encode(), command, ask_bytes: 1 << 20, answer_bytes: 0 };
        let begun = Instant::now();
        let mut transfer = transfers.ask(&waiting, pool.take(1 << 20, None).unwrap(), begun);
        let mut now = begun;
        for number in 0..7 {
            now += Duration::from_secs(2);
            (transfer.offset, transfer.length) = (number * PIECE as u32, PIECE as u32);
            let (awaited, _) = transfers.begin(&transfer, false, 1 << 20).unwrap();
            transfers.arrived(PIECE, now);
            assert!(transfers.end(awaited, true).is_none());
            assert_eq!(transfers.awaited_since(), Some(now));
        }
        now += Duration::from_secs(20);
        (transfer.offset, transfer.length) = (7 * PIECE as u32, PIECE as u32);
        let (awaited, _) = transfers.begin(&transfer, true, 1 << 20).unwrap();
        assert_eq!(transfers.awaited_since(), Some(now - Duration::from_secs(20)));
        transfers.arrived(PIECE, now);
        assert!(transfers.end(awaited, true).is_some());
        assert_eq!(transfers.awaited_since(), None);
    }
}
