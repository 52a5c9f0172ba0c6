//! Commands: what each needs before it is executed, and who executes it.
//!
//! Must stay true: before the host has proven who it is, none of its commands is executed, and no
//! data are requested from it.

use cairn_nvme::wire::auth::MESSAGE_BYTES_MAX;
use cairn_nvme::wire::command::{QueueKind, RANGE_BYTES, RANGES_MAX};
use cairn_nvme::wire::{Command, DataPointer, Entry, Status};
use std::sync::Arc;

use crate::mailbox::Outcome;

use super::{Connection, Data, End, Proof, Role};
use crate::connection::transfer::Waiting;
use crate::mailbox::{Letter, LoopContext, Mailbox};
use crate::pool::{Buffer, Pool};
use crate::subsystem::io;
use crate::subsystem::{Controller, Subsystem};
use crate::workers::{Begin, Job, Lane, Workers};

/// Most data of a command that deallocates, bytes.
const RANGES_BYTES_MAX: u64 = (RANGES_MAX * RANGE_BYTES) as u64;
/// Size from which data of a namespace in memory are sent without a copy, bytes.
const STORED_BYTES_MIN: u64 = 32 << 10;

impl Connection {
    /// Executes a command that came with `data`, or arranges for the memory or data that it needs.
    pub(super) fn begin(
        &mut self,
        entry: &Entry,
        data: &[u8],
        is_intact: bool,
        hands: &mut LoopContext,
    ) -> Result<(), End> {
        if self.is_draining {
            // The host repeats the command on its next connection.
            return Ok(());
        }
        self.flow.advance()?;
        match self.needs(entry, data.len()) {
            Err(status) => self.answer(entry, Err(status)),
            Ok(_) if !is_intact => self.answer(entry, Err(Status::TRANSIENT_TRANSPORT)),
            Ok(needs) if needs.ask_bytes == 0 && needs.answer_bytes == 0 => {
                self.execute(entry, &needs.command, Data::InCapsule(data), hands)?;
            }
            Ok(needs) => {
                self.transfers.waiting.push_back(needs);
                self.resume(hands)?;
            }
        }
        Ok(())
    }

    /// Memory and data that a command still needs. `in_capsule` is the number of bytes that came
    /// with it. Errors: the status of a command that cannot be executed, or not now.
    fn needs(&self, entry: &Entry, in_capsule: usize) -> Result<Waiting, Status> {
        let kind = match self.role {
            Role::Io(..) => QueueKind::Io,
            _ => QueueKind::Admin,
        };
        let command = Command::decode(entry, kind).map_err(Status::for_good)?;
        self.admit(&command)?;
        let (ask_bytes, mut answer_bytes) = self.placement(entry, &command, in_capsule)?;
        if self.is_sent_as_stored(&command, answer_bytes) {
            answer_bytes = 0;
        }
        let (entry, answer_bytes) = (*entry, answer_bytes as usize);
        Ok(Waiting { entry, command, ask_bytes, answer_bytes })
    }

    /// Errors: the host must prove who it is before it may send this command.
    fn admit(&self, command: &Command) -> Result<(), Status> {
        match (command, &self.proof) {
            (_, Proof::None) => Ok(()),
            (
                Command::AuthenticationSend { bytes } | Command::AuthenticationReceive { bytes },
                Proof::Owed(_),
            ) => {
                let fits = *bytes as usize <= MESSAGE_BYTES_MAX;
                if fits { Ok(()) } else { Err(Status::INVALID_FIELD.for_good()) }
            }
            _ => Err(Status::AUTHENTICATION_REQUIRED.for_good()),
        }
    }

    /// Number of bytes to request from the host, and to send to it. Errors: the data descriptor
    /// does not match the command.
    fn placement(
        &self,
        entry: &Entry,
        command: &Command,
        in_capsule: usize,
    ) -> Result<(usize, u64), Status> {
        let block_bytes = match (command, &self.role) {
            (
                Command::Read { namespace, .. } | Command::Write { namespace, .. },
                Role::Io(subsystem, ..),
            ) => subsystem.namespace(*namespace)?.shape().block_bytes(),
            _ => 1,
        };
        let (bytes_out, bytes_in) = (command.bytes_out(block_bytes), command.bytes_in(block_bytes));
        if bytes_out.max(bytes_in) > self.limits().transfer_bytes() {
            return Err(Status::INVALID_FIELD.for_good());
        }
        // Linux sends room for the largest number of ranges, however few it uses.
        let room = match command {
            Command::Deallocate { .. } => RANGES_BYTES_MAX,
            _ => bytes_out.max(bytes_in),
        };
        let fits = |length: u32| (bytes_out.max(bytes_in)..=room).contains(&length.into());
        match entry.data_pointer()? {
            DataPointer::InCapsule { offset: 0, length } if bytes_out > 0 => {
                let is_there = length as usize == in_capsule && fits(length);
                if is_there { Ok((0, 0)) } else { Err(Status::DATA_LENGTH_INVALID.for_good()) }
            }
            DataPointer::Transport { length } if fits(length) => {
                Ok(if bytes_out > 0 { (length as usize, 0) } else { (0, bytes_in) })
            }
            // A command without data may have any descriptor.
            _ if bytes_out == 0 && bytes_in == 0 => Ok((0, 0)),
            _ => Err(Status::DATA_LENGTH_INVALID.for_good()),
        }
    }

    /// Whether the answer to a command is sent straight from the namespace's memory.
    fn is_sent_as_stored(&self, command: &Command, bytes: u64) -> bool {
        let (Command::Read { namespace, .. }, Role::Io(subsystem, ..)) = (command, &self.role)
        else {
            return false;
        };
        bytes >= STORED_BYTES_MIN
            && !self.outgoing.data_digest
            && subsystem.namespace(*namespace).is_ok_and(|namespace| namespace.is_memory())
    }

    /// Executes a command whose data, or room for whose answer, are in `data`.
    pub(super) fn execute(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: Data<'_>,
        hands: &mut LoopContext,
    ) -> Result<(), End> {
        if let Err(status) = self.admit(command) {
            hands.pool.give(data.into_buffer());
            self.answer(entry, Err(status));
            return Ok(());
        }
        if let Command::Connect { .. } = command {
            let connected = self.connect(command, data.bytes(), hands.now);
            hands.pool.give(data.into_buffer());
            self.answer_connect(entry, connected);
            return Ok(());
        }
        match std::mem::replace(&mut self.proof, Proof::None) {
            Proof::Owed(check) => return self.authenticate(entry, command, data, check, hands),
            proof => self.proof = proof,
        }
        match &mut self.role {
            Role::New => {
                hands.pool.give(data.into_buffer());
                self.answer(entry, Err(Status::SEQUENCE_ERROR));
            }
            Role::Admin(_) => self.execute_admin(entry, command, data.into_buffer(), hands),
            Role::Io(_, controller, _) if !controller.is_enabled() => {
                hands.pool.give(data.into_buffer());
                self.answer(entry, Err(Status::SEQUENCE_ERROR));
            }
            Role::Io(subsystem, controller, _) => {
                let (subsystem, controller) = (Arc::clone(subsystem), Arc::clone(controller));
                self.execute_io(entry, command, data, (subsystem, controller), hands);
            }
        }
        Ok(())
    }

    fn execute_admin(
        &mut self,
        entry: &Entry,
        command: &Command,
        mut buffer: Buffer,
        hands: &mut LoopContext,
    ) {
        let Role::Admin(admin) = &mut self.role else { return };
        let mut page = Vec::new();
        match admin.execute(entry.command_id(), command, self.socket.local(), &mut page) {
            // It completes when an event occurs.
            Ok(None) => hands.pool.give(buffer),
            Ok(Some(result)) if !page.is_empty() => {
                buffer[..page.len()].copy_from_slice(&page);
                self.answer_with(entry, result, buffer, page.len());
            }
            result => {
                hands.pool.give(buffer);
                self.answer(entry, result.map(Option::unwrap_or_default));
            }
        }
        self.tell_events();
    }

    fn execute_io(
        &mut self,
        entry: &Entry,
        command: &Command,
        data: Data<'_>,
        (subsystem, controller): (Arc<Subsystem>, Arc<Controller>),
        hands: &mut LoopContext,
    ) {
        subsystem.count(command);
        if let (Command::Read { namespace, blocks }, Data::InCapsule(_)) = (*command, &data) {
            // Such a read has no buffer, because it is sent without a copy.
            return self.answer_as_stored(entry, &subsystem, namespace, blocks);
        }
        let is_over = Arc::clone(&self.is_over);
        let task = io::Task::new(subsystem, controller, *command, is_over);
        let data = match task.is_quick() {
            true => data,
            false => data.kept(hands, self.place_of(command)),
        };
        match data {
            Data::InCapsule(bytes) => self.answer(entry, task.execute(bytes, &mut []).map(|_| 0)),
            Data::Received(buffer, length) if task.is_quick() => {
                let result = task.execute(&buffer[..length], &mut []);
                self.answer_io(entry, buffer, result, hands);
            }
            Data::Room(mut buffer) if task.is_quick() => {
                let result = task.execute(&[], &mut buffer);
                self.answer_io(entry, buffer, result, hands);
            }
            data => self.have_done(entry, task, data, hands),
        }
    }

    /// Has a worker execute a command.
    fn have_done(
        &mut self,
        entry: &Entry,
        task: io::Task,
        data: Data<'_>,
        hands: &mut LoopContext,
    ) {
        let length = data.bytes().len();
        let (entry, mut buffer) = (*entry, data.into_buffer());
        self.busy_bytes += buffer.len();
        self.beside_bytes += buffer.beside_bytes();
        let lane = task.lane();
        self.submit(&hands.workers, lane, &hands.mailbox, move |begin| {
            let result = match begin {
                Begin::LetGo => Err(Status::INTERNAL_ERROR),
                Begin::Work if length > 0 => task.execute(&buffer[..length], &mut []),
                Begin::Work => task.execute(&[], &mut buffer),
            };
            Outcome::Io { entry, buffer, result }
        });
    }

    pub(super) fn submit(
        &self,
        workers: &Arc<Workers>,
        lane: Lane,
        mailbox: &Arc<Mailbox>,
        work: impl FnOnce(Begin) -> Outcome + Send + 'static,
    ) {
        let (mailbox, token) = (Arc::clone(mailbox), self.token);
        let work = move |begin| mailbox.post(Letter::Done(token, work(begin)));
        workers.submit(Job { is_over: Arc::clone(&self.is_over), lane, work: Box::new(work) });
    }
}

impl Data<'_> {
    /// Copies data to a buffer that outlives this call, because workers wait for disks.
    fn kept(self, hands: &mut LoopContext, place: Option<usize>) -> Self {
        let Data::InCapsule(bytes) = self else { return self };
        let taken = hands.pool.take(bytes.len(), place);
        let mut buffer = taken.unwrap_or_else(|_| Pool::beside(bytes.len()));
        buffer[..bytes.len()].copy_from_slice(bytes);
        Data::Received(buffer, bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mechanism: the loop itself wrote data that came in a capsule if no buffer was free.
    ///
    /// Consequence: a slow disk stopped all hosts of the loop.
    ///
    /// Fix: such data get a buffer outside of the pool, and nothing is received from the host until
    /// it is free.
    #[test]
    fn data_of_a_capsule_leave_the_loop_even_when_the_pool_is_empty() {
        let (workers, mailbox) = (Workers::new(0), Mailbox::new().unwrap());
        let mut hands = LoopContext::new(0, Arc::clone(&workers), workers, mailbox);
        let Data::Received(buffer, 3) = Data::InCapsule(&[1, 2, 3]).kept(&mut hands, None) else {
            panic!("not in a buffer");
        };
        assert_eq!((&buffer[..3], buffer.beside_bytes()), (&[1, 2, 3][..], 3));
    }
}
