//! What threads of the target tell one another: new connections and finished work for an event loop,
//! and what a loop lends to the connection that it serves.
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

/// What is received at a time that is not data with a place of their own.
const SCRATCH_BYTES: usize = 64 << 10;

/// What one thread tells another that serves connections.
pub(crate) enum Letter {
    /// Serve this host.
    Connection(TcpStream),
    /// What that connection wanted was done.
    Done(u64, Outcome),
    /// Tell hosts of this.
    Change(Change),
    /// Finish what was begun, and end.
    Drain,
}

/// Where a loop is told things.
pub(crate) struct Mailbox {
    /// None once nobody reads them any more.
    letters: Mutex<Option<Vec<Letter>>>,
    pub(crate) bell: OwnedFd,
    /// How many connections the loop has or will have.
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

    /// Tells the loop. When that has ended, whoever is in the letter is let go.
    pub(crate) fn post(&self, letter: Letter) {
        match &mut *self.letters() {
            Some(letters) => letters.push(letter),
            None => return,
        }
        // If the bell cannot be rung any more often, it rings.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// What the loop was told since the last time.
    pub(crate) fn take(&self) -> Vec<Letter> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.letters().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The loop has ended.
    pub(crate) fn close(&self) {
        self.letters().take();
    }

    fn letters(&self) -> MutexGuard<'_, Option<Vec<Letter>>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a loop lends to the connection that it serves.
pub(crate) struct Hands {
    pub(crate) pool: Pool,
    /// What was received last.
    pub(crate) scratch: Vec<u8>,
    /// For what may wait for disks.
    pub(crate) workers: Arc<Workers>,
    /// For proofs, which no disk holds up.
    pub(crate) provers: Arc<Workers>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// When the events came.
    pub(crate) now: Instant,
}

impl Hands {
    pub(crate) fn new(
        memory_bytes: usize,
        workers: Arc<Workers>,
        provers: Arc<Workers>,
        mailbox: Arc<Mailbox>,
    ) -> Hands {
        let (pool, scratch) = (Pool::new(memory_bytes), vec![0; SCRATCH_BYTES]);
        Hands { pool, scratch, workers, provers, mailbox, now: Instant::now() }
    }
}

/// What a worker has done for a connection.
pub(crate) enum Outcome {
    /// A command of an I/O queue; how many bytes of the buffer go back.
    Io { entry: Entry, buffer: Buffer, result: std::result::Result<usize, Status> },
    /// What a host has sent to prove who it is was looked at.
    Checked { entry: Entry, check: Box<Check> },
}

impl Outcome {
    /// What is given back if nobody hears of it.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Outcome::Io { buffer, .. } => Some(buffer),
            Outcome::Checked { .. } => None,
        }
    }
}
