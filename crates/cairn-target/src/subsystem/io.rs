//! Commands of I/O queues.
//!
//! Invariant: a command changes a namespace only while its host has a permit and has not been
//! preempted.

use cairn_nvme::wire::command::{RANGE_BYTES, decode_range};
use cairn_nvme::wire::reservation::decode_keys;
use cairn_nvme::wire::{Command, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::subsystem::{Controller, Subsystem};
use crate::workers::Lane;

/// A command to execute.
pub(crate) struct Task {
    /// Subsystem of the command.
    pub(crate) subsystem: Arc<Subsystem>,
    /// Controller that received it.
    pub(crate) controller: Arc<Controller>,
    /// The command.
    pub(crate) command: Command,
    /// Whether the connection is over, so that nobody waits for the result.
    is_over: Arc<AtomicBool>,
    /// Number of a flush. It covers what was stored before the command came, however late the
    /// command is executed.
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

    /// Whether it never blocks.
    pub(crate) fn is_quick(&self) -> bool {
        let named =
            namespace_of(&self.command).and_then(|named| self.subsystem.namespace(named).ok());
        named.is_none_or(|namespace| namespace.is_memory())
    }

    /// Lane of the command.
    pub(crate) fn lane(&self) -> Lane {
        // The task keeps the namespace alive, and so its address.
        let Some(place) = place_of(&self.subsystem, &self.command) else { return Lane::Any };
        match self.command {
            Command::Flush { .. } => Lane::Flushes(place),
            _ => Lane::Others(place),
        }
    }

    /// Executes the command with its data. Writes what it returns to the beginning of `answer`,
    /// which must have room for it. Returns the number of those bytes.
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
                // Whoever gets a permit from now on finds that its controller has ended.
                namespace.reservations().settle();
                Ok(0)
            }
            _ => self.change(data).map(|()| 0),
        }
    }

    /// Executes a command that needs permission to write.
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
            // The host was preempted, perhaps by a host that has given the namespace back since.
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
            // Hosts learn of the loss when they connect again.
            self.subsystem.end_controllers();
        }
        done
    }
}

/// Address of a command's namespace, if the command may block on it.
pub(crate) fn place_of(subsystem: &Subsystem, command: &Command) -> Option<usize> {
    let namespace = subsystem.namespace(namespace_of(command)?).ok()?;
    (!namespace.is_memory()).then_some(Arc::as_ptr(namespace).addr())
}

/// Namespace of an I/O command.
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
