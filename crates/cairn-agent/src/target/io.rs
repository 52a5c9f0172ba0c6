//! The commands of I/O queues.
//!
//! Must stay true: what changes a namespace is done while the host has a permit for it.

use super::buffers::ensure;
use super::reservation::HostId;
use super::subsystem::Subsystem;
use cairn_device::nvme::wire::command::{RANGE_BYTES, decode_range};
use cairn_device::nvme::wire::reservation::decode_keys;
use cairn_device::nvme::wire::{Command, Status};

/// What a host wants.
pub(super) struct Asked<'a> {
    /// Who.
    pub(super) host: &'a HostId,
    /// What.
    pub(super) command: &'a Command,
    /// What came with it.
    pub(super) data: &'a [u8],
}

/// Does a command; what it returns is put at the beginning of `answer`, and so many bytes they are.
pub(super) fn execute(
    subsystem: &Subsystem,
    asked: &Asked<'_>,
    answer: &mut Vec<u8>,
) -> Result<usize, Status> {
    match *asked.command {
        Command::Read { namespace, blocks } => {
            let namespace = subsystem.namespace(namespace)?;
            let length = (blocks.count as usize) << namespace.shape().block_shift;
            ensure(answer, length);
            namespace.read(blocks, &mut answer[..length]).map(|()| length)
        }
        Command::ReservationReport { namespace, bytes } => {
            let mut report = subsystem.namespace(namespace)?.reservations().report();
            report.resize(bytes as usize, 0);
            ensure(answer, report.len());
            answer[..report.len()].copy_from_slice(&report);
            Ok(report.len())
        }
        Command::Reserve { namespace, step } => {
            let reservations = subsystem.namespace(namespace)?.reservations();
            reservations.execute(asked.host, step, decode_keys(asked.data)).map(|()| 0)
        }
        _ => change(subsystem, asked).map(|()| 0),
    }
}

/// Does a command that only those may give who may write.
fn change(subsystem: &Subsystem, asked: &Asked<'_>) -> Result<(), Status> {
    let named = match *asked.command {
        Command::Flush { namespace }
        | Command::Write { namespace, .. }
        | Command::WriteZeroes { namespace, .. }
        | Command::Deallocate { namespace, .. } => subsystem.namespace(namespace)?,
        _ => return Err(Status::INVALID_OPCODE.for_good()),
    };
    let _permit = named.reservations().permit(asked.host)?;
    match *asked.command {
        Command::Write { blocks, is_durable, .. } => named.write(blocks, asked.data, is_durable),
        Command::WriteZeroes { blocks, may_deallocate, .. } => named.zero(blocks, may_deallocate),
        Command::Deallocate { ranges, .. } => {
            asked.data.chunks_exact(RANGE_BYTES).take(ranges as usize).try_for_each(|range| {
                let range = range.try_into().expect("chunks of that length");
                named.zero(decode_range(range), true)
            })
        }
        _ => named.flush(),
    }
}
