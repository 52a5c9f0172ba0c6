//! What carries commands and their data: the same for TCP now, for RDMA and a controller in this
//! machine later.
//!
//! Must stay true: a command that was submitted ends once, by `poll`, or with all others when an
//! error is returned; only then does the transport let go of its memory.

use std::time::{Duration, Instant};

use super::error::Result;
use super::wire::{Completion, Entry};

/// The memory of a command's data. Lengths are multiples of 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// There are none.
    None,
    /// Sent to the controller.
    Out {
        /// The first byte.
        address: *const u8,
        /// How many.
        length: usize,
    },
    /// Received from the controller.
    In {
        /// The first byte.
        address: *mut u8,
        /// How many.
        length: usize,
    },
}

impl Data {
    /// Bytes that are sent.
    pub fn of(bytes: &[u8]) -> Data {
        match bytes {
            [] => Data::None,
            _ => Data::Out { address: bytes.as_ptr(), length: bytes.len() },
        }
    }

    /// Room for bytes that are received.
    pub fn into(bytes: &mut [u8]) -> Data {
        Data::In { address: bytes.as_mut_ptr(), length: bytes.len() }
    }

    /// How many bytes.
    pub fn length(&self) -> usize {
        match *self {
            Data::None => 0,
            Data::Out { length, .. } | Data::In { length, .. } => length,
        }
    }
}

/// Which command of a queue; not used again before `poll` has returned it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandId(pub u16);

/// How long commands may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Each of them.
    pub each: Duration,
    /// Until when all of them must have ended, if that is so.
    pub all: Option<Instant>,
}

impl Limit {
    /// When a command that is sent now must have ended.
    pub fn deadline(&self, now: Instant) -> Instant {
        let own = now + self.each;
        self.all.map_or(own, |all| all.min(own))
    }
}

/// A submission and a completion queue.
pub trait Transport {
    /// How many commands may be under way at the same time.
    fn depth(&self) -> usize;

    /// How many are.
    fn under_way(&self) -> usize;

    /// Sends a command, at the latest when `poll` is called while none has ended. There must be
    /// fewer under way than `depth`. Errors: all commands have ended, and the queue is of no use
    /// any more.
    ///
    /// # Safety
    /// Nobody else accesses the data's memory until `poll` returns the command, `poll` or `submit`
    /// fails, or the transport is abandoned or dropped; of data that are sent others may read.
    unsafe fn submit(&mut self, entry: Entry, data: Data) -> Result<CommandId>;

    /// The next command that ended; waits for one until `deadline`. Errors: as `submit`.
    fn poll(&mut self, deadline: Instant) -> Result<Option<Completion>>;

    /// Ends all commands and lets go of their memory.
    fn abandon(&mut self);
}
