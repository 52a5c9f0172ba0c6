//! Counters of a target. Counting takes no lock.
//!
//! Does not show them; `metrics.rs` does.

use cairn_nvme::wire::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of a subsystem.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: Counter,
    pub(crate) writes: Counter,
    pub(crate) flushes: Counter,
    pub(crate) others: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) written_bytes: Counter,
    /// Commands that were refused or failed.
    pub(crate) errors: Counter,
    /// Hosts that are not allowed, or could not prove who they are.
    pub(crate) strangers: Counter,
}

impl Counters {
    /// Number of writes that have begun.
    #[cfg(test)]
    pub(crate) fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// Counts a command of an I/O queue with `bytes` of data.
    pub(crate) fn count(&self, command: &Command, bytes: u64) {
        match command {
            Command::Read { .. } => {
                self.reads.add(1);
                self.read_bytes.add(bytes);
            }
            Command::Write { .. } => {
                self.writes.add(1);
                self.written_bytes.add(bytes);
            }
            Command::Flush { .. } => self.flushes.add(1),
            _ => self.others.add(1),
        }
    }
}

/// Counters of all connections.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Accepted connections.
    pub(crate) accepted: Counter,
    /// Connections that were refused because there were too many.
    pub(crate) refused: Counter,
    /// Connections that ended.
    pub(crate) ended: Counter,
    /// Connections that ended because the host broke the rules.
    pub(crate) malformed: Counter,
    /// Commands that waited for memory.
    pub(crate) waits: Counter,
}
