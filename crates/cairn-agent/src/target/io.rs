//! The commands of I/O queues.

use super::buffers::ensure;
use super::subsystem::Subsystem;
use cairn_device::nvme::wire::command::{RANGE_BYTES, decode_range};
use cairn_device::nvme::wire::{Command, Status};

/// Does a command with the data that came with it; what it returns is put at the beginning of `answer`, and so many bytes
/// they are.
pub(super) fn execute(
    subsystem: &Subsystem,
    command: &Command,
    data: &[u8],
    answer: &mut Vec<u8>,
) -> Result<usize, Status> {
    match *command {
        Command::Read { namespace, blocks } => {
            let namespace = subsystem.namespace(namespace)?;
            let length = (blocks.count as usize) << namespace.shape().block_shift;
            ensure(answer, length);
            namespace.read(blocks, &mut answer[..length]).map(|()| length)
        }
        _ => change(subsystem, command, data).map(|()| 0),
    }
}

/// Does a command that returns nothing.
fn change(subsystem: &Subsystem, command: &Command, data: &[u8]) -> Result<(), Status> {
    match *command {
        Command::Flush { namespace } => subsystem.namespace(namespace)?.flush(),
        Command::Write { namespace, blocks, is_durable } => {
            subsystem.namespace(namespace)?.write(blocks, data, is_durable)
        }
        Command::WriteZeroes { namespace, blocks, may_deallocate } => {
            subsystem.namespace(namespace)?.zero(blocks, may_deallocate)
        }
        Command::Deallocate { namespace, ranges } => {
            let namespace = subsystem.namespace(namespace)?;
            data.chunks_exact(RANGE_BYTES).take(ranges as usize).try_for_each(|range| {
                let range = range.try_into().expect("chunks of that length");
                namespace.zero(decode_range(range), true)
            })
        }
        _ => Err(Status::INVALID_OPCODE.for_good()),
    }
}
