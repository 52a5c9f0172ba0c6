//! The commands of I/O queues.
//!
//! Must stay true: what changes a namespace is done while the host has a permit for it, and has not
//! been put out.

use cairn_nvme::wire::command::{RANGE_BYTES, decode_range};
use cairn_nvme::wire::reservation::decode_keys;
use cairn_nvme::wire::{Command, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::subsystem::{Controller, Subsystem};
use crate::workers::Lane;

/// What a host wants.
pub(crate) struct Task {
    /// Of which subsystem.
    pub(crate) subsystem: Arc<Subsystem>,
    /// Whose it is.
    pub(crate) controller: Arc<Controller>,
    /// What.
    pub(crate) command: Command,
    /// Nobody hears any more what was done.
    is_over: Arc<AtomicBool>,
    /// Of a flush: what is to be durable was stored before it was asked for, however late it is
    /// done.
    flush: u64,
}

impl Task {
    pub(crate) fn new(
        subsystem: Arc<Subsystem>,
        controller: Arc<Controller>,
        command: Command,
        is_over: Arc<AtomicBool>,
    ) -> Task {
        let flush = match command {
            Command::Flush { namespace } => {
                subsystem.namespace(namespace).map_or(0, |named| named.ask_flush())
            }
            _ => 0,
        };
        Task { subsystem, controller, command, is_over, flush }
    }

    /// Whether it never waits for anything.
    pub(crate) fn is_quick(&self) -> bool {
        let named =
            namespace_of(&self.command).and_then(|named| self.subsystem.namespace(named).ok());
        named.is_none_or(|namespace| namespace.is_memory())
    }

    /// Behind which others it waits.
    pub(crate) fn lane(&self) -> Lane {
        // The task keeps it where it is.
        let Some(place) = place_of(&self.subsystem, &self.command) else { return Lane::Any };
        match self.command {
            Command::Flush { .. } => Lane::Flushes(place),
            _ => Lane::Others(place),
        }
    }

    /// Does it with the data that came with it; what it returns is put at the beginning of
    /// `answer`, which has room for it, and so many bytes they are.
    pub(crate) fn execute(&self, data: &[u8], answer: &mut [u8]) -> Result<usize, Status> {
        let subsystem = &self.subsystem;
        match self.command {
            Command::Read { namespace, blocks } => {
                let namespace = subsystem.namespace(namespace)?;
                let length = (blocks.count as usize) << namespace.shape().block_shift;
                namespace.read(blocks, &mut answer[..length]).map(|()| length)
            }
            Command::ReservationReport { namespace, bytes } => {
                let mut report = subsystem.namespace(namespace)?.reservations().report();
                report.resize(bytes as usize, 0);
                answer[..report.len()].copy_from_slice(&report);
                Ok(report.len())
            }
            Command::Reserve { namespace, step } => {
                let reservations = subsystem.namespace(namespace)?.reservations();
                let (host, keys) = (self.controller.host(), decode_keys(data));
                let put_out =
                    reservations.execute(host, step, keys, || self.controller.is_enabled())?;
                subsystem.end_controllers_of(&put_out);
                Ok(0)
            }
            Command::EndController { namespace, instance } => {
                let namespace = subsystem.namespace(namespace)?;
                subsystem.end_controller(instance, self.controller.host());
                // Who gets a permit from now on finds that its controller has ended.
                namespace.reservations().settle();
                Ok(0)
            }
            _ => self.change(data).map(|()| 0),
        }
    }

    /// Does a command that only those may give who may write.
    fn change(&self, data: &[u8]) -> Result<(), Status> {
        let named = match self.command {
            Command::Flush { namespace }
            | Command::Write { namespace, .. }
            | Command::WriteZeroes { namespace, .. }
            | Command::Deallocate { namespace, .. } => self.subsystem.namespace(namespace)?,
            _ => return Err(Status::INVALID_OPCODE.for_good()),
        };
        let _permit = named.reservations().permit(self.controller.host())?;
        if !self.controller.is_enabled() {
            // Its host was put out, perhaps by one that has given the namespace back since.
            return Err(Status::RESERVATION_CONFLICT.for_good());
        }
        let is_over = || self.is_over.load(Ordering::Relaxed);
        let done = match self.command {
            Command::Write { blocks, is_durable, .. } => named.write(blocks, data, is_durable),
            Command::WriteZeroes { blocks, may_deallocate, .. } => {
                named.zero(blocks, may_deallocate, &is_over)
            }
            Command::Deallocate { ranges, .. } => {
                data.chunks_exact(RANGE_BYTES).take(ranges as usize).try_for_each(|range| {
                    let range = range.try_into().expect("chunks of that length");
                    named.deallocate(decode_range(range), &is_over)
                })
            }
            _ => named.end_flush(self.flush),
        };
        if named.takes_note_of_loss() {
            // Who connects again is told.
            self.subsystem.end_controllers();
        }
        done
    }
}

/// Where the namespace stands in memory that a command has to wait for.
pub(crate) fn place_of(subsystem: &Subsystem, command: &Command) -> Option<usize> {
    let namespace = subsystem.namespace(namespace_of(command)?).ok()?;
    (!namespace.is_memory()).then_some(Arc::as_ptr(namespace).addr())
}

/// The namespace that a command of an I/O queue is about.
fn namespace_of(command: &Command) -> Option<u32> {
    match *command {
        Command::Flush { namespace }
        | Command::Read { namespace, .. }
        | Command::Write { namespace, .. }
        | Command::WriteZeroes { namespace, .. }
        | Command::Deallocate { namespace, .. }
        | Command::Reserve { namespace, .. }
        | Command::ReservationReport { namespace, .. }
        | Command::EndController { namespace, .. } => Some(namespace),
        _ => None,
    }
}
