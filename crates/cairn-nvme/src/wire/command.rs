//! Commands: submission queue entries (Base 3.3.3.1; Fabrics commands Base 6, NVM commands NVM
//! 3.2).
//!
//! Invariant: `Command::decode(command.encode())` is the command. What an entry says about its data
//! is checked before anybody relies on it.
//!
//! Does not choose command identifiers or how data travel; the transport does.

use super::reservation::Step;
use super::{Status, put, u16_at, u32_at, u64_at};

/// Length of a submission queue entry, bytes.
pub const ENTRY_BYTES: usize = 64;
/// Most logical blocks of one read, write or write zeroes (NLB is 16 bits, 0's based).
pub const BLOCKS_MAX: u32 = 1 << 16;
/// Most ranges of one Dataset Management command.
pub const RANGES_MAX: usize = 256;
/// Length of one range of a Dataset Management command, bytes.
pub const RANGE_BYTES: usize = 16;

/// PSDT: an SGL describes the data. Message-based transports have nothing else.
const SGL_FLAG: u8 = 0x40;
const AT_SGL: usize = 24;
/// SGL Data Block descriptor with an offset into the capsule (TCP figure 13).
const SGL_IN_CAPSULE: u8 = 0x01;
/// Transport SGL Data Block descriptor (TCP figure 14).
const SGL_TRANSPORT: u8 = 0x5a;

// Opcodes of admin commands (Base 5).
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const SET_FEATURES: u8 = 0x09;
const GET_FEATURES: u8 = 0x0a;
const ASYNC_EVENT_REQUEST: u8 = 0x0c;
const KEEP_ALIVE: u8 = 0x18;
const FABRICS: u8 = 0x7f;
// Types of Fabrics commands (Base 6).
const PROPERTY_SET: u8 = 0x00;
const CONNECT: u8 = 0x01;
const PROPERTY_GET: u8 = 0x04;
const AUTHENTICATION_SEND: u8 = 0x05;
const AUTHENTICATION_RECEIVE: u8 = 0x06;
/// SPSP0, SPSP1 and SECP: NVMe's own authentication protocols.
const SECURITY_PROTOCOL: [u8; 3] = [1, 1, 0xe9];
// Opcodes of I/O commands (NVM 3.1).
const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const RESERVATION_REGISTER: u8 = 0x0d;
const RESERVATION_REPORT: u8 = 0x0e;
const RESERVATION_ACQUIRE: u8 = 0x11;
const RESERVATION_RELEASE: u8 = 0x15;
/// A vendor-specific opcode: Cairn's own.
const END_CONTROLLER: u8 = 0xc0;

/// FUA of a read or write.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// DEAC of a write zeroes: the blocks may be deallocated if they then read as zeros.
const MAY_DEALLOCATE: u32 = 1 << 25;
/// AD of Dataset Management.
const DEALLOCATE: u32 = 1 << 2;
/// EDS of Reservation Report: host identifiers have 16 bytes.
const EXTENDED: u32 = 1;
/// RAE of Get Log Page.
const RETAIN_EVENT: u32 = 1 << 15;

/// Kind of a queue. It determines which commands the queue takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// The admin queue.
    Admin,
    /// An I/O queue.
    Io,
}

/// A submission queue entry (SQE) as it is transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub [u8; ENTRY_BYTES]);

/// Location of a command's data (SGL1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPointer {
    /// Behind the entry, in the same capsule.
    InCapsule {
        /// Distance from the end of the entry, bytes.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Transferred separately.
    Transport {
        /// Number of bytes.
        length: u32,
    },
}

impl Entry {
    /// CID.
    pub fn command_id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// Sets CID.
    pub fn set_command_id(&mut self, id: u16) {
        put(&mut self.0, 2, &id.to_le_bytes());
    }

    /// Sets SGL1.
    pub fn set_data_pointer(&mut self, pointer: DataPointer) {
        let (offset, length, kind) = match pointer {
            DataPointer::InCapsule { offset, length } => (offset, length, SGL_IN_CAPSULE),
            DataPointer::Transport { length } => (0, length, SGL_TRANSPORT),
        };
        put(&mut self.0, AT_SGL, &offset.to_le_bytes());
        put(&mut self.0, AT_SGL + 8, &length.to_le_bytes());
        self.0[AT_SGL + 15] = kind;
    }

    /// Returns SGL1. Errors: a descriptor type that does not exist on this transport.
    pub fn data_pointer(&self) -> Result<DataPointer, Status> {
        let (offset, length) = (u64_at(&self.0, AT_SGL), u32_at(&self.0, AT_SGL + 8));
        match self.0[AT_SGL + 15] {
            SGL_IN_CAPSULE => Ok(DataPointer::InCapsule { offset, length }),
            SGL_TRANSPORT => Ok(DataPointer::Transport { length }),
            _ => Err(Status::DESCRIPTOR_INVALID),
        }
    }

    fn opcode(&self) -> u8 {
        self.0[0]
    }

    fn namespace(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// Command dword `index`, 10 to 15.
    fn dword(&self, index: usize) -> u32 {
        u32_at(&self.0, index * 4)
    }

    fn set_dword(&mut self, index: usize, value: u32) {
        put(&mut self.0, index * 4, &value.to_le_bytes());
    }

    fn new(opcode: u8, namespace: u32) -> Entry {
        let mut entry = Entry([0; ENTRY_BYTES]);
        (entry.0[0], entry.0[1]) = (opcode, SGL_FLAG);
        put(&mut entry.0, 4, &namespace.to_le_bytes());
        entry
    }

    fn fabrics(kind: u8) -> Entry {
        // FCTYPE takes the place of the first byte of NSID.
        Entry::new(FABRICS, u32::from(kind))
    }
}

/// Consecutive logical blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// SLBA: the first block.
    pub first: u64,
    /// Number of blocks: 1 to `BLOCKS_MAX`.
    pub count: u32,
}

/// A command to a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Connect: creates a queue on this connection (Base 6.3). Carries `fabrics::ConnectData`.
    Connect {
        /// QID; 0 is the admin queue.
        queue: u16,
        /// Entries of the submission queue, at least 2.
        entries: u32,
        /// CATTR bit 2: the controller does not report the head of the submission queue, and may
        /// therefore complete a command by C2HData.
        without_flow_control: bool,
        /// KATO, milliseconds; 0: no timeout. Always 0 for I/O queues.
        keep_alive_ms: u32,
    },
    /// Property Get (Base 6.4).
    PropertyGet {
        /// Offset of the property.
        property: u32,
        /// Whether the property has 8 bytes; otherwise it has 4.
        is_wide: bool,
    },
    /// Property Set (Base 6.6) of a property of 4 bytes.
    PropertySet {
        /// Offset of the property.
        property: u32,
        /// New value.
        value: u32,
    },
    /// Authentication Send (Base 6.2). Carries an `auth::Message`.
    AuthenticationSend {
        /// TL: number of bytes, at least 4.
        bytes: u32,
    },
    /// Authentication Receive (Base 6.1). Returns an `auth::Message`, followed by zeros.
    AuthenticationReceive {
        /// AL: number of bytes, at least 4.
        bytes: u32,
    },
    /// Identify (Base 5.17). Returns 4096 bytes.
    Identify {
        /// CNS: the page.
        page: u8,
        /// NSID, for pages that depend on it.
        namespace: u32,
    },
    /// Get Log Page (Base 5.16).
    GetLogPage {
        /// LID.
        page: u8,
        /// Number of bytes: a multiple of 4, at least 4.
        bytes: u64,
        /// First byte: a multiple of 4.
        offset: u64,
        /// RAE: reading the page does not clear the event that announced a change.
        retains_event: bool,
    },
    /// Set Features (Base 5.27).
    SetFeatures {
        /// FID.
        feature: u8,
        /// CDW11.
        value: u32,
    },
    /// Get Features (Base 5.15).
    GetFeatures {
        /// FID.
        feature: u8,
    },
    /// Keep Alive (Base 5.18).
    KeepAlive,
    /// Asynchronous Event Request (Base 5.2): completes when an event occurs.
    AsyncEventRequest,
    /// Flush (Base 7.1).
    Flush {
        /// NSID.
        namespace: u32,
    },
    /// Read (NVM 3.2.4).
    Read {
        /// NSID.
        namespace: u32,
        /// Blocks to read.
        blocks: Blocks,
    },
    /// Write (NVM 3.2.6).
    Write {
        /// NSID.
        namespace: u32,
        /// Blocks to write.
        blocks: Blocks,
        /// FUA: the data are durable when the command completes.
        is_durable: bool,
    },
    /// Write Zeroes (NVM 3.2.8).
    WriteZeroes {
        /// NSID.
        namespace: u32,
        /// Blocks to zero.
        blocks: Blocks,
        /// DEAC.
        may_deallocate: bool,
    },
    /// Dataset Management with the attribute Deallocate (NVM 3.2.3). Carries the ranges.
    Deallocate {
        /// NSID.
        namespace: u32,
        /// Number of ranges: 1 to `RANGES_MAX`.
        ranges: u32,
    },
    /// Reservation Register, Acquire or Release (Base 7.2, 7.3, 7.5). Carries keys.
    Reserve {
        /// NSID.
        namespace: u32,
        /// Kind of command, and its action.
        step: Step,
    },
    /// Reservation Report (Base 7.4) with host identifiers of 16 bytes. Returns
    /// `reservation::Report`.
    ReservationReport {
        /// NSID.
        namespace: u32,
        /// Number of bytes: a multiple of 4, at least 4.
        bytes: u64,
    },
    /// Cairn's own: ends another controller of the same host. When this completes, no command sent
    /// to that controller changes the namespace any more.
    EndController {
        /// NSID.
        namespace: u32,
        /// Its `identify::Controller::instance`. A controller that does not exist counts as ended.
        instance: u64,
    },
}

impl Command {
    /// Encodes the command as an entry without identifier and data pointer.
    pub fn encode(&self) -> Entry {
        match *self {
            Command::Connect { queue, entries, without_flow_control, keep_alive_ms } => {
                assert!((2..=1 << 16).contains(&entries), "SQSIZE is 16 bits, 0's based");
                let mut entry = Entry::fabrics(CONNECT);
                put(&mut entry.0, 42, &queue.to_le_bytes());
                put(&mut entry.0, 44, &((entries - 1) as u16).to_le_bytes());
                entry.0[46] = if without_flow_control { 1 << 2 } else { 0 };
                put(&mut entry.0, 48, &keep_alive_ms.to_le_bytes());
                entry
            }
            Command::PropertyGet { property, is_wide } => {
                let mut entry = Entry::fabrics(PROPERTY_GET);
                entry.0[40] = u8::from(is_wide);
                entry.set_dword(11, property);
                entry
            }
            Command::PropertySet { property, value } => {
                let mut entry = Entry::fabrics(PROPERTY_SET);
                entry.set_dword(11, property);
                entry.set_dword(12, value);
                entry
            }
            Command::AuthenticationSend { bytes } => authentication(AUTHENTICATION_SEND, bytes),
            Command::AuthenticationReceive { bytes } => {
                authentication(AUTHENTICATION_RECEIVE, bytes)
            }
            Command::Identify { page, namespace } => {
                let mut entry = Entry::new(IDENTIFY, namespace);
                entry.set_dword(10, u32::from(page));
                entry
            }
            Command::GetLogPage { page, bytes, offset, retains_event } => {
                get_log_page(page, bytes, offset, retains_event)
            }
            Command::SetFeatures { feature, value } => {
                let mut entry = Entry::new(SET_FEATURES, 0);
                entry.set_dword(10, u32::from(feature));
                entry.set_dword(11, value);
                entry
            }
            Command::GetFeatures { feature } => {
                let mut entry = Entry::new(GET_FEATURES, 0);
                entry.set_dword(10, u32::from(feature));
                entry
            }
            Command::KeepAlive => Entry::new(KEEP_ALIVE, 0),
            Command::AsyncEventRequest => Entry::new(ASYNC_EVENT_REQUEST, 0),
            Command::Flush { namespace } => Entry::new(FLUSH, namespace),
            Command::Read { namespace, blocks } => on_blocks(READ, namespace, blocks, 0),
            Command::Write { namespace, blocks, is_durable } => {
                on_blocks(WRITE, namespace, blocks, flag(is_durable, FORCE_UNIT_ACCESS))
            }
            Command::WriteZeroes { namespace, blocks, may_deallocate } => {
                on_blocks(WRITE_ZEROES, namespace, blocks, flag(may_deallocate, MAY_DEALLOCATE))
            }
            Command::Deallocate { namespace, ranges } => {
                assert!((1..=RANGES_MAX as u32).contains(&ranges), "NR is 8 bits, 0's based");
                let mut entry = Entry::new(DATASET_MANAGEMENT, namespace);
                entry.set_dword(10, ranges - 1);
                entry.set_dword(11, DEALLOCATE);
                entry
            }
            Command::Reserve { namespace, step } => {
                let (opcode, action) = match step {
                    Step::Register(action) => (RESERVATION_REGISTER, action),
                    Step::Acquire(action) => (RESERVATION_ACQUIRE, action),
                    Step::Release(action) => (RESERVATION_RELEASE, action),
                };
                let mut entry = Entry::new(opcode, namespace);
                entry.set_dword(10, action);
                entry
            }
            Command::ReservationReport { namespace, bytes } => {
                assert!(bytes % 4 == 0 && (4..=1 << 34).contains(&bytes), "NUMD counts dwords");
                let mut entry = Entry::new(RESERVATION_REPORT, namespace);
                entry.set_dword(10, (bytes / 4 - 1) as u32);
                entry.set_dword(11, EXTENDED);
                entry
            }
            Command::EndController { namespace, instance } => {
                let mut entry = Entry::new(END_CONTROLLER, namespace);
                put(&mut entry.0, 40, &instance.to_le_bytes());
                entry
            }
        }
    }

    /// Decodes an entry of a queue of that kind. Errors: the status with which the controller
    /// completes a command that it does not understand.
    pub fn decode(entry: &Entry, queue: QueueKind) -> Result<Command, Status> {
        match (queue, entry.opcode()) {
            (_, FABRICS) => Command::decode_fabrics(entry),
            (QueueKind::Admin, _) => Command::decode_admin(entry),
            (QueueKind::Io, _) => Command::decode_io(entry),
        }
    }

    fn decode_fabrics(entry: &Entry) -> Result<Command, Status> {
        match entry.0[4] {
            CONNECT => {
                let is_known = u16_at(&entry.0, 40) == 0;
                let entries = u32::from(u16_at(&entry.0, 44)) + 1;
                match is_known && entries >= 2 {
                    true => Ok(Command::Connect {
                        queue: u16_at(&entry.0, 42),
                        entries,
                        without_flow_control: entry.0[46] & 1 << 2 != 0,
                        keep_alive_ms: u32_at(&entry.0, 48),
                    }),
                    false => Err(Status::CONNECT_INVALID),
                }
            }
            PROPERTY_GET => {
                let is_wide = property_size(entry)?;
                Ok(Command::PropertyGet { property: entry.dword(11), is_wide })
            }
            PROPERTY_SET => match property_size(entry)? {
                false => {
                    Ok(Command::PropertySet { property: entry.dword(11), value: entry.dword(12) })
                }
                // No property of 8 bytes may be set over a fabric.
                true => Err(Status::INVALID_FIELD),
            },
            kind @ (AUTHENTICATION_SEND | AUTHENTICATION_RECEIVE) => {
                let bytes = entry.dword(11);
                match entry.0[41..44] == SECURITY_PROTOCOL && bytes >= 4 {
                    true if kind == AUTHENTICATION_SEND => {
                        Ok(Command::AuthenticationSend { bytes })
                    }
                    true => Ok(Command::AuthenticationReceive { bytes }),
                    false => Err(Status::INVALID_FIELD),
                }
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn decode_admin(entry: &Entry) -> Result<Command, Status> {
        let low = entry.dword(10) as u8;
        match entry.opcode() {
            IDENTIFY => Ok(Command::Identify { page: low, namespace: entry.namespace() }),
            GET_LOG_PAGE => {
                let dwords =
                    u64::from(entry.dword(11) as u16) << 16 | u64::from(entry.dword(10) >> 16);
                let offset = u64::from(entry.dword(13)) << 32 | u64::from(entry.dword(12));
                match offset % 4 {
                    0 => Ok(Command::GetLogPage {
                        page: low,
                        bytes: (dwords + 1) * 4,
                        offset,
                        retains_event: entry.dword(10) & RETAIN_EVENT != 0,
                    }),
                    _ => Err(Status::INVALID_FIELD),
                }
            }
            SET_FEATURES => Ok(Command::SetFeatures { feature: low, value: entry.dword(11) }),
            GET_FEATURES => Ok(Command::GetFeatures { feature: low }),
            KEEP_ALIVE => Ok(Command::KeepAlive),
            ASYNC_EVENT_REQUEST => Ok(Command::AsyncEventRequest),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn decode_io(entry: &Entry) -> Result<Command, Status> {
        let namespace = entry.namespace();
        let blocks =
            Blocks { first: u64_at(&entry.0, 40), count: u32::from(entry.dword(12) as u16) + 1 };
        let is_set = |flag| entry.dword(12) & flag != 0;
        match entry.opcode() {
            FLUSH => Ok(Command::Flush { namespace }),
            READ => Ok(Command::Read { namespace, blocks }),
            WRITE => {
                let is_durable = is_set(FORCE_UNIT_ACCESS);
                Ok(Command::Write { namespace, blocks, is_durable })
            }
            WRITE_ZEROES => {
                let may_deallocate = is_set(MAY_DEALLOCATE);
                Ok(Command::WriteZeroes { namespace, blocks, may_deallocate })
            }
            // The other attributes are hints about future use.
            DATASET_MANAGEMENT if entry.dword(11) & DEALLOCATE != 0 => {
                let ranges = u32::from(entry.dword(10) as u8) + 1;
                Ok(Command::Deallocate { namespace, ranges })
            }
            DATASET_MANAGEMENT => Err(Status::INVALID_FIELD),
            RESERVATION_REGISTER => Ok(reserve(namespace, Step::Register(entry.dword(10)))),
            RESERVATION_ACQUIRE => Ok(reserve(namespace, Step::Acquire(entry.dword(10)))),
            RESERVATION_RELEASE => Ok(reserve(namespace, Step::Release(entry.dword(10)))),
            RESERVATION_REPORT if entry.dword(11) & EXTENDED == 0 => {
                Err(Status::HOST_ID_INCONSISTENT)
            }
            RESERVATION_REPORT => {
                let bytes = (u64::from(entry.dword(10)) + 1) * 4;
                Ok(Command::ReservationReport { namespace, bytes })
            }
            END_CONTROLLER => {
                Ok(Command::EndController { namespace, instance: u64_at(&entry.0, 40) })
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Number of bytes that the controller receives with the command, for logical blocks of
    /// `block_bytes`.
    pub fn bytes_out(&self, block_bytes: u64) -> u64 {
        match self {
            Command::Connect { .. } => super::fabrics::CONNECT_DATA_BYTES as u64,
            Command::AuthenticationSend { bytes } => u64::from(*bytes),
            Command::Write { blocks, .. } => u64::from(blocks.count) * block_bytes,
            Command::Deallocate { ranges, .. } => u64::from(*ranges) * RANGE_BYTES as u64,
            Command::Reserve { step: Step::Release(_), .. } => 8,
            Command::Reserve { .. } => 16,
            _ => 0,
        }
    }

    /// Number of bytes that the controller returns, for logical blocks of `block_bytes`.
    pub fn bytes_in(&self, block_bytes: u64) -> u64 {
        match self {
            Command::Identify { .. } => super::identify::PAGE_BYTES as u64,
            Command::GetLogPage { bytes, .. } | Command::ReservationReport { bytes, .. } => *bytes,
            Command::AuthenticationReceive { bytes } => u64::from(*bytes),
            Command::Read { blocks, .. } => u64::from(blocks.count) * block_bytes,
            _ => 0,
        }
    }
}

fn reserve(namespace: u32, step: Step) -> Command {
    Command::Reserve { namespace, step }
}

fn flag(is_set: bool, flag: u32) -> u32 {
    if is_set { flag } else { 0 }
}

fn authentication(kind: u8, bytes: u32) -> Entry {
    let mut entry = Entry::fabrics(kind);
    put(&mut entry.0, 41, &SECURITY_PROTOCOL);
    entry.set_dword(11, bytes);
    entry
}

fn on_blocks(opcode: u8, namespace: u32, blocks: Blocks, flags: u32) -> Entry {
    assert!((1..=BLOCKS_MAX).contains(&blocks.count), "NLB is 16 bits, 0's based");
    let mut entry = Entry::new(opcode, namespace);
    put(&mut entry.0, 40, &blocks.first.to_le_bytes());
    entry.set_dword(12, (blocks.count - 1) | flags);
    entry
}

fn get_log_page(page: u8, bytes: u64, offset: u64, retains_event: bool) -> Entry {
    assert!(bytes % 4 == 0 && (4..=1 << 34).contains(&bytes), "NUMD counts dwords, 0's based");
    let dwords = bytes / 4 - 1;
    let mut entry = Entry::new(GET_LOG_PAGE, 0);
    let low = (dwords as u32) << 16 | flag(retains_event, RETAIN_EVENT) | u32::from(page);
    entry.set_dword(10, low);
    entry.set_dword(11, (dwords >> 16) as u32);
    entry.set_dword(12, offset as u32);
    entry.set_dword(13, (offset >> 32) as u32);
    entry
}

/// Whether an entry is about a property of 8 bytes.
fn property_size(entry: &Entry) -> Result<bool, Status> {
    match entry.0[40] & 7 {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Encodes a range of a Dataset Management command. Here `count` may be any 32-bit number.
pub fn encode_range(blocks: Blocks) -> [u8; RANGE_BYTES] {
    let mut range = [0; RANGE_BYTES];
    put(&mut range, 4, &blocks.count.to_le_bytes());
    put(&mut range, 8, &blocks.first.to_le_bytes());
    range
}

/// Inverse of `encode_range`.
pub fn decode_range(range: &[u8; RANGE_BYTES]) -> Blocks {
    Blocks { first: u64_at(range, 8), count: u32_at(range, 4) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::reservation;

    #[test]
    fn every_command_is_read_back_as_it_was_written() {
        let blocks = Blocks { first: 0x1234_5678_9abc, count: BLOCKS_MAX };
        let admin = [
            Command::Connect {
                queue: 3,
                entries: 1 << 16,
                without_flow_control: true,
                keep_alive_ms: 5000,
            },
            Command::PropertyGet { property: 0x1c, is_wide: false },
            Command::PropertyGet { property: 0, is_wide: true },
            Command::PropertySet { property: 0x14, value: 0x46_0001 },
            Command::AuthenticationSend { bytes: 72 },
            Command::AuthenticationReceive { bytes: 4096 },
            Command::Identify { page: 2, namespace: 0xffff_fffe },
            Command::GetLogPage {
                page: 0x70,
                bytes: 1 << 20,
                offset: 1 << 33,
                retains_event: true,
            },
            Command::GetLogPage { page: 4, bytes: 4, offset: 0, retains_event: false },
            Command::SetFeatures { feature: 7, value: 0x3_0003 },
            Command::GetFeatures { feature: 7 },
            Command::KeepAlive,
            Command::AsyncEventRequest,
        ];
        let io = [
            Command::Flush { namespace: 1 },
            Command::Read { namespace: 2, blocks },
            Command::Write { namespace: 3, blocks, is_durable: true },
            Command::WriteZeroes { namespace: 4, blocks, may_deallocate: true },
            Command::Deallocate { namespace: 5, ranges: RANGES_MAX as u32 },
            reserve(6, Step::Register(reservation::REPLACE | reservation::ANY_KEY)),
            reserve(7, Step::Acquire(reservation::PREEMPT | reservation::WRITE_EXCLUSIVE)),
            reserve(8, Step::Release(reservation::CLEAR)),
            Command::ReservationReport { namespace: 9, bytes: 4096 },
            Command::EndController { namespace: 10, instance: 1 << 63 | 5 },
        ];
        let queues = [(QueueKind::Admin, &admin[..]), (QueueKind::Io, &io[..])];
        for (queue, command) in
            queues.iter().flat_map(|(queue, all)| all.iter().map(move |c| (queue, c)))
        {
            let entry = command.encode();
            assert_eq!(Command::decode(&entry, *queue), Ok(*command));
            assert_eq!(entry.0[1], SGL_FLAG, "data are described by an SGL");
        }
    }

    #[test]
    fn entry_of_a_write_is_what_the_specification_shows() {
        let blocks = Blocks { first: 0x0102, count: 8 };
        let mut entry = Command::Write { namespace: 1, blocks, is_durable: false }.encode();
        entry.set_command_id(0x0304);
        entry.set_data_pointer(DataPointer::Transport { length: 4096 });
        let mut expected = [0; ENTRY_BYTES];
        expected[..5].copy_from_slice(&[0x01, 0x40, 0x04, 0x03, 1]);
        (expected[33], expected[39]) = (0x10, 0x5a);
        (expected[40], expected[41], expected[48]) = (0x02, 0x01, 7);
        assert_eq!(entry.0, expected);
        assert_eq!(entry.command_id(), 0x0304);
        assert_eq!(entry.data_pointer(), Ok(DataPointer::Transport { length: 4096 }));
    }

    #[test]
    fn data_pointers_of_memory_buses_are_refused() {
        let mut entry = Command::KeepAlive.encode();
        for kind in [0x00, 0x10, 0x40, 0x50] {
            entry.0[AT_SGL + 15] = kind;
            assert_eq!(entry.data_pointer(), Err(Status::DESCRIPTOR_INVALID), "{kind:#x}");
        }
    }
}
