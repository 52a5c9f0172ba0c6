//! Results of commands: completion queue entries and status codes (Base 3.3.3.2).

use core::fmt;

use super::{put, u16_at, u64_at};

/// Length of a completion queue entry, bytes.
pub const COMPLETION_BYTES: usize = 16;

/// A completion queue entry (CQE).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// Result of the command, DW0 in the lower half.
    pub result: u64,
    /// SQHD: head of the submission queue.
    pub queue_head: u16,
    /// CID.
    pub command_id: u16,
    /// Status of the command.
    pub status: Status,
}

impl Completion {
    /// Decodes an entry. The phase tag has no meaning on message-based transports.
    pub fn decode(bytes: &[u8; COMPLETION_BYTES]) -> Completion {
        Completion {
            result: u64_at(bytes, 0),
            queue_head: u16_at(bytes, 8),
            command_id: u16_at(bytes, 12),
            status: Status(u16_at(bytes, 14) >> 1),
        }
    }

    /// Encodes the entry.
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut bytes = [0; COMPLETION_BYTES];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.queue_head.to_le_bytes());
        put(&mut bytes, 12, &self.command_id.to_le_bytes());
        put(&mut bytes, 14, &(self.status.0 << 1).to_le_bytes());
        bytes
    }
}

/// A status field without the phase tag: status code (SC) in the lowest byte, its type (SCT) above.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Status(pub u16);

impl Status {
    /// Successful Completion.
    pub const SUCCESS: Status = Status(0);
    /// Invalid Command Opcode.
    pub const INVALID_OPCODE: Status = Status(0x001);
    /// Invalid Field in Command.
    pub const INVALID_FIELD: Status = Status(0x002);
    /// Data Transfer Error.
    pub const DATA_TRANSFER_ERROR: Status = Status(0x004);
    /// Internal Error.
    pub const INTERNAL_ERROR: Status = Status(0x006);
    /// Command Aborted due to SQ Deletion: the queue is ending.
    pub const QUEUE_ENDED: Status = Status(0x008);
    /// Invalid Namespace or Format.
    pub const INVALID_NAMESPACE: Status = Status(0x00b);
    /// Command Sequence Error.
    pub const SEQUENCE_ERROR: Status = Status(0x00c);
    /// Data SGL Length Invalid.
    pub const DATA_LENGTH_INVALID: Status = Status(0x00f);
    /// SGL Descriptor Type Invalid.
    pub const DESCRIPTOR_INVALID: Status = Status(0x011);
    /// Host Identifier Inconsistent Format.
    pub const HOST_ID_INCONSISTENT: Status = Status(0x018);
    /// Transient Transport Error.
    pub const TRANSIENT_TRANSPORT: Status = Status(0x022);
    /// LBA Out of Range.
    pub const OUT_OF_RANGE: Status = Status(0x080);
    /// Capacity Exceeded.
    pub const CAPACITY_EXCEEDED: Status = Status(0x081);
    /// Reservation Conflict.
    pub const RESERVATION_CONFLICT: Status = Status(0x083);
    /// Asynchronous Event Request Limit Exceeded.
    pub const TOO_MANY_EVENT_REQUESTS: Status = Status(0x105);
    /// Invalid Log Page.
    pub const INVALID_LOG_PAGE: Status = Status(0x109);
    /// Connect Controller Busy.
    pub const CONTROLLER_BUSY: Status = Status(0x181);
    /// Connect Invalid Parameters.
    pub const CONNECT_INVALID: Status = Status(0x182);
    /// Connect Invalid Host.
    pub const HOST_INVALID: Status = Status(0x184);
    /// Authentication Required.
    pub const AUTHENTICATION_REQUIRED: Status = Status(0x191);
    /// Asymmetric Access Persistent Loss.
    pub const PERSISTENT_LOSS: Status = Status(0x301);
    /// Asymmetric Access Inaccessible.
    pub const INACCESSIBLE: Status = Status(0x302);
    /// Asymmetric Access Transition.
    pub const TRANSITION: Status = Status(0x303);

    /// DNR: the same command would fail again.
    const DO_NOT_RETRY: u16 = 1 << 14;
    /// SCT and SC.
    const CODE: u16 = 0x7ff;

    /// Whether the command succeeded.
    pub fn is_success(self) -> bool {
        self.code() == Status::SUCCESS
    }

    /// The status without hints (DNR, M, CRD).
    pub fn code(self) -> Status {
        Status(self.0 & Status::CODE)
    }

    /// The status with DNR set: the same command would fail again.
    pub fn for_good(self) -> Status {
        Status(self.0 | Status::DO_NOT_RETRY)
    }

    /// Whether the same command may succeed when it is sent again.
    pub fn may_be_retried(self) -> bool {
        let is_transient = matches!(
            self.code(),
            Status::TRANSIENT_TRANSPORT
                | Status::TRANSITION
                | Status::INACCESSIBLE
                // On another queue: the end of this one is not the command's fault.
                | Status::QUEUE_ENDED
        );
        is_transient && self.0 & Status::DO_NOT_RETRY == 0
    }

    /// Name of the code in the specification, for codes that occur in practice.
    fn name(self) -> Option<&'static str> {
        let names = [
            (Status::SUCCESS, "successful"),
            (Status::INVALID_OPCODE, "invalid command opcode"),
            (Status::INVALID_FIELD, "invalid field in command"),
            (Status::DATA_TRANSFER_ERROR, "data transfer error"),
            (Status::INTERNAL_ERROR, "internal error"),
            (Status::INVALID_NAMESPACE, "invalid namespace or format"),
            (Status::SEQUENCE_ERROR, "command sequence error"),
            (Status::DATA_LENGTH_INVALID, "data SGL length invalid"),
            (Status::DESCRIPTOR_INVALID, "SGL descriptor type invalid"),
            (Status(0x020), "namespace is write protected"),
            (Status::TRANSIENT_TRANSPORT, "transient transport error"),
            (Status::OUT_OF_RANGE, "LBA out of range"),
            (Status::HOST_ID_INCONSISTENT, "host identifier of another format"),
            (Status::RESERVATION_CONFLICT, "reserved for another host"),
            (Status::CAPACITY_EXCEEDED, "capacity exceeded"),
            (Status(0x082), "namespace not ready"),
            (Status::TOO_MANY_EVENT_REQUESTS, "too many asynchronous event requests"),
            (Status::INVALID_LOG_PAGE, "invalid log page"),
            (Status(0x180), "connect: incompatible format"),
            (Status::CONTROLLER_BUSY, "connect: controller busy"),
            (Status::CONNECT_INVALID, "connect: invalid parameters"),
            (Status::HOST_INVALID, "connect: this host may not use the subsystem"),
            (Status::AUTHENTICATION_REQUIRED, "authentication required"),
            (Status(0x280), "write fault"),
            (Status(0x281), "unrecovered read error"),
            (Status::PERSISTENT_LOSS, "asymmetric access: persistent loss"),
            (Status::INACCESSIBLE, "asymmetric access: inaccessible"),
            (Status::TRANSITION, "asymmetric access: transition"),
        ];
        names.into_iter().find(|(status, _)| *status == self.code()).map(|(_, name)| name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = (self.code().0 >> 8, self.0 & 0xff);
        match self.name() {
            Some(name) => write!(formatter, "{name} ({kind:x}h/{code:02x}h)"),
            None => write!(formatter, "status {kind:x}h/{code:02x}h"),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Status({:#05x}: {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_read_back_and_hints_are_no_part_of_the_code() {
        let status = Status::OUT_OF_RANGE.for_good();
        let entry = Completion { result: 0x1_0000_0002, queue_head: 7, command_id: 0xfffe, status };
        assert_eq!(Completion::decode(&entry.encode()), entry);
        assert_eq!(status.code(), Status::OUT_OF_RANGE);
        assert!(!status.is_success() && !status.may_be_retried());
        assert!(Status::TRANSIENT_TRANSPORT.may_be_retried());
        assert!(!Status::TRANSIENT_TRANSPORT.for_good().may_be_retried());
        assert_eq!(status.to_string(), "LBA out of range (0h/80h)");
    }
}
