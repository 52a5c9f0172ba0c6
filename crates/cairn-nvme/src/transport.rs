//! Transport of commands and their data. The trait does not depend on TCP: RDMA and local PCIe
//! controllers fit behind it.
//!
//! Invariant: a submitted command ends exactly once: `poll` returns it, or an error ends all
//! commands. Until then the transport may use the command's memory.

use std::time::{Duration, Instant};

use super::error::Result;
use super::wire::{Completion, Entry};

/// Memory of a command's data. Lengths are multiples of 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// No data.
    None,
    /// Sent to the controller.
    Out {
        /// First byte.
        address: *const u8,
        /// Number of bytes.
        length: usize,
    },
    /// Received from the controller.
    In {
        /// First byte.
        address: *mut u8,
        /// Number of bytes.
        length: usize,
    },
}

impl Data {
    /// Data that are sent to the controller.
    pub fn of(bytes: &[u8]) -> Data {
        match bytes {
            [] => Data::None,
            _ => Data::Out { address: bytes.as_ptr(), length: bytes.len() },
        }
    }

    /// Memory for data that are received from the controller.
    pub fn into(bytes: &mut [u8]) -> Data {
        Data::In { address: bytes.as_mut_ptr(), length: bytes.len() }
    }

    /// Number of bytes.
    pub fn length(&self) -> usize {
        match *self {
            Data::None => 0,
            Data::Out { length, .. } | Data::In { length, .. } => length,
        }
    }
}

/// Identifier of a command in its queue. It is not reused before `poll` has returned the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandId(pub u16);

/// Time limits for commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Time limit of each command.
    pub each: Duration,
    /// Deadline for all commands together, if there is one.
    pub all: Option<Instant>,
}

impl Limit {
    /// Deadline of a command that is sent at `now`.
    pub fn deadline(&self, now: Instant) -> Instant {
        let own = now + self.each;
        self.all.map_or(own, |all| all.min(own))
    }
}

/// A submission queue and its completion queue.
pub trait Transport {
    /// Most commands under way at the same time.
    fn depth(&self) -> usize;

    /// Number of commands under way.
    fn under_way(&self) -> usize;

    /// Submits a command. It is sent at the latest when `poll` is called and no command has ended.
    /// The number of commands under way must be below `depth`. Errors: all commands have ended, and
    /// the queue is unusable from then on.
    ///
    /// # Safety
    /// Nobody else accesses the data's memory until `poll` returns the command, `poll` or `submit`
    /// fails, or the transport is abandoned or dropped. Others may read data that are sent.
    unsafe fn submit(&mut self, entry: Entry, data: Data) -> Result<CommandId>;

    /// Returns the next command that ended. Waits for one until `deadline`. Errors: as `submit`.
    fn poll(&mut self, deadline: Instant) -> Result<Option<Completion>>;

    /// Ends all commands and stops using their memory.
    fn abandon(&mut self);
}
