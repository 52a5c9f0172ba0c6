//! How far a drain has got, and the wish to stop it: shared by its threads and whoever watches.

use crate::pace::Pace;
use crate::protocol::Progress;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters of the pass under way.
#[derive(Default)]
pub struct Meter {
    files_total: AtomicU64,
    files_done: AtomicU64,
    bytes_total: AtomicU64,
    bytes_done: AtomicU64,
    bytes_ever: AtomicU64,
    stopping: AtomicBool,
    /// How fast it may go.
    pub pace: Pace,
}

impl Meter {
    /// A new pass begins.
    pub fn reset(&self) {
        for counter in [&self.files_total, &self.files_done, &self.bytes_total, &self.bytes_done] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// So much more is to be copied.
    pub fn expect(&self, files: u64, bytes: u64) {
        self.files_total.fetch_add(files, Ordering::Relaxed);
        self.bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes were copied.
    pub fn copied(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        self.bytes_ever.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A file is done, one way or another.
    pub fn finished_file(&self) {
        self.files_done.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters now.
    pub fn progress(&self) -> Progress {
        Progress {
            files_total: self.files_total.load(Ordering::Relaxed),
            files_done: self.files_done.load(Ordering::Relaxed),
            bytes_total: self.bytes_total.load(Ordering::Relaxed),
            bytes_done: self.bytes_done.load(Ordering::Relaxed),
        }
    }

    /// Bytes that were copied in all passes.
    pub fn copied_ever(&self) -> u64 {
        self.bytes_ever.load(Ordering::Relaxed)
    }

    /// Asks whoever copies to give up soon.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether to give up.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
