//! NVMe over TCP on the wire, as values: PDUs, commands, completions and the pages they carry.
//!
//! References: "TCP" is the NVMe TCP Transport Specification 1.0, "Base" the NVMe Base
//! Specification 2.0, "NVM" the NVM Command Set Specification 1.0. Field names in capitals are
//! theirs.
//!
//! Invariant: no I/O, no clock, no panic on any input. All numbers are little-endian. Whatever a
//! peer can get wrong is checked where it is decoded. Reserved fields are sent as zeros and ignored
//! on receipt, as the specifications demand.

pub mod auth;
pub mod command;
pub mod completion;
pub mod fabrics;
pub mod identify;
pub mod pdu;
pub mod reservation;

pub use command::{Command, DataPointer, Entry};
pub use completion::{Completion, Status};
pub use fabrics::Nqn;

/// Reads the 16-bit number at `at`. Offsets are constants that lie within the caller's page.
fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(page, at))
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(page, at))
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(page, at))
}

fn array_at<const BYTES: usize>(page: &[u8], at: usize) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.copy_from_slice(&page[at..at + BYTES]);
    bytes
}

fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}
