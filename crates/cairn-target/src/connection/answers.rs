//! Answers to a host, queued until they can be sent.

use cairn_nvme::wire::command::Blocks;
use cairn_nvme::wire::pdu::{Header, Transfer};
use cairn_nvme::wire::{Command, Completion, Entry, Status};
use cairn_platform::checksum;
use std::sync::Arc;

use super::{Connection, Role};
use crate::counters::Counters;
use crate::mailbox::LoopContext;
use crate::pool::Buffer;
use crate::subsystem::{Refusal, Subsystem};

impl Connection {
    /// Updates the counters of the connection's subsystem.
    pub(super) fn counted(&self, count: impl FnOnce(&Counters)) {
        match &self.role {
            Role::New => {}
            Role::Admin(admin) => count(admin.subsystem().counters()),
            Role::Io(subsystem, ..) => count(subsystem.counters()),
        }
    }

    /// Completes a command that returns no data.
    pub(super) fn answer(&mut self, entry: &Entry, result: Result<u64, Status>) {
        self.answer_connect(entry, result.map_err(Refusal::from));
    }

    /// As `answer`. A failed Connect may have a result as well.
    pub(super) fn answer_connect(&mut self, entry: &Entry, result: Result<u64, Refusal>) {
        let (result, status) = match result {
            Ok(result) => (result, Status::SUCCESS),
            Err(Refusal { status, result }) => {
                self.counted(|counters| counters.errors.add(1));
                (result, status)
            }
        };
        let queue_head = self.flow.end();
        let command_id = entry.command_id();
        self.say(&Header::Response(Completion { result, queue_head, command_id, status }));
    }

    /// Completes event requests for which there is an event.
    pub(super) fn tell_events(&mut self) {
        while let Role::Admin(admin) = &mut self.role {
            let Some((id, event)) = admin.next_event() else { break };
            let mut entry = Command::AsyncEventRequest.encode();
            entry.set_command_id(id);
            self.answer(&entry, Ok(event));
        }
    }

    /// Completes a command of an I/O queue. Returns the first bytes of the buffer, as many as
    /// `result` says.
    pub(super) fn answer_io(
        &mut self,
        entry: &Entry,
        buffer: Buffer,
        result: Result<usize, Status>,
        hands: &mut LoopContext,
    ) {
        match result {
            Ok(length) if length > 0 => self.answer_with(entry, 0, buffer, length),
            result => {
                hands.pool.give(buffer);
                self.answer(entry, result.map(|_| 0));
            }
        }
    }

    /// Completes a command that returns the first `length` bytes of a buffer.
    pub(super) fn answer_with(
        &mut self,
        entry: &Entry,
        result: u64,
        buffer: Buffer,
        length: usize,
    ) {
        let digest = self.outgoing.data_digest.then(|| checksum::crc32c(0, &buffer[..length]));
        self.say_data_follow(entry, length);
        self.outbox.push_buffer(buffer, length);
        if let Some(digest) = digest {
            self.outbox.push(&digest.to_le_bytes());
        }
        self.end_data(entry, result);
    }

    /// Completes a read of a namespace in memory; its bytes are sent without a copy.
    pub(super) fn answer_as_stored(
        &mut self,
        entry: &Entry,
        subsystem: &Subsystem,
        number: u32,
        blocks: Blocks,
    ) {
        let namespace = subsystem.namespace(number);
        let found = namespace.and_then(|found| found.range(blocks).map(|range| (found, range)));
        match found {
            Err(status) => self.answer(entry, Err(status)),
            Ok((namespace, (offset, length))) => {
                self.say_data_follow(entry, length as usize);
                self.outbox.push_stored(Arc::clone(namespace), offset, length as usize);
                self.end_data(entry, 0);
            }
        }
    }

    /// Queues the header of a C2HData PDU that carries all the data of the command. Without flow
    /// control it also completes the command.
    fn say_data_follow(&mut self, entry: &Entry, length: usize) {
        let command_id = entry.command_id();
        let transfer = Transfer { command_id, tag: 0, offset: 0, length: length as u32 };
        let is_success = !self.flow.is_controlled;
        let header = Header::ControllerData { transfer, is_last: true, is_success };
        self.outbox.push(header.encode(length, self.outgoing).bytes());
    }

    fn end_data(&mut self, entry: &Entry, result: u64) {
        match self.flow.is_controlled {
            true => self.answer(entry, Ok(result)),
            false => drop(self.flow.end()),
        }
    }

    /// Queues a PDU without data.
    pub(super) fn say(&mut self, header: &Header) {
        self.outbox.push(header.encode(0, self.outgoing).bytes());
    }
}
