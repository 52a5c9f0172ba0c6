//! Messages between threads of the target: new connections and finished work for an event loop.
//! Also the resources that a loop lends to the connection that it serves.
//!
//! Does not serve anything.

use std::fmt;
use std::io::Result;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cairn_nvme::wire::{Entry, Status};
use rustix::event::EventfdFlags;

use crate::guard::Check;
use crate::notices::Change;
use crate::pool::{Buffer, Pool};
use crate::workers::Workers;

/// Most bytes received at a time, apart from data that go straight to their buffer.
const SCRATCH_BYTES: usize = 64 << 10;

/// Message to a thread that serves connections.
pub(crate) enum Letter {
    /// Serve this host.
    Connection(TcpStream),
    /// A worker has finished for the connection with that token.
    Done(u64, Outcome),
    /// Tell hosts of this change.
    Change(Change),
    /// Finish the commands that were begun, and end.
    Drain,
}

/// Mailbox of an event loop.
pub(crate) struct Mailbox {
    /// `None` once the loop has ended.
    letters: Mutex<Option<Vec<Letter>>>,
    pub(crate) bell: OwnedFd,
    /// Number of connections that the loop has or is about to get.
    pub(crate) connections: AtomicUsize,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Mailbox")
    }
}

impl Mailbox {
    pub(crate) fn new() -> Result<Arc<Mailbox>> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (letters, connections) = (Mutex::new(Some(Vec::new())), AtomicUsize::new(0));
        Ok(Arc::new(Mailbox { letters, bell, connections }))
    }

    /// Sends a message. If the loop has ended, the message is dropped, and so is a connection in
    /// it.
    pub(crate) fn post(&self, letter: Letter) {
        match &mut *self.letters() {
            Some(letters) => letters.push(letter),
            None => return,
        }
        // If the counter is full, the bell is ringing already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Takes all messages since the last call.
    pub(crate) fn take(&self) -> Vec<Letter> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.letters().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records that the loop has ended.
    pub(crate) fn close(&self) {
        self.letters().take();
    }

    fn letters(&self) -> MutexGuard<'_, Option<Vec<Letter>>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resources that a loop lends to the connection that it serves.
pub(crate) struct LoopContext {
    pub(crate) pool: Pool,
    /// Buffer for bytes that were just received.
    pub(crate) scratch: Vec<u8>,
    /// Threads for work that may wait for disks.
    pub(crate) workers: Arc<Workers>,
    /// Threads for proofs, which do not wait for disks.
    pub(crate) provers: Arc<Workers>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Time at which the current events came.
    pub(crate) now: Instant,
}

impl LoopContext {
    pub(crate) fn new(
        memory_bytes: usize,
        workers: Arc<Workers>,
        provers: Arc<Workers>,
        mailbox: Arc<Mailbox>,
    ) -> LoopContext {
        let (pool, scratch) = (Pool::new(memory_bytes), vec![0; SCRATCH_BYTES]);
        LoopContext { pool, scratch, workers, provers, mailbox, now: Instant::now() }
    }
}

/// Outcome of work for a connection.
pub(crate) enum Outcome {
    /// A command of an I/O queue. `result` is the number of bytes of the buffer to return.
    Io { entry: Entry, buffer: Buffer, result: std::result::Result<usize, Status> },
    /// A message of a host's authentication was checked.
    Checked { entry: Entry, check: Box<Check> },
}

impl Outcome {
    /// Returns the buffer, for an outcome whose connection is gone.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Outcome::Io { buffer, .. } => Some(buffer),
            Outcome::Checked { .. } => None,
        }
    }
}
