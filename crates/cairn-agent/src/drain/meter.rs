//! Progress of a drain, and the request to stop it: shared by its threads and whoever watches.

use crate::drain::pace::Pace;
use crate::model::error::{Error, Result};
use crate::model::protocol::{Progress, Stalled};
use cairn_job::file::path::FilePath;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// A thread without progress for this long is reported as stalled.
pub const STALLED: Duration = Duration::from_secs(5);

/// File in the persist directory that a thread works on.
#[derive(Debug)]
struct Work {
    thread: ThreadId,
    path: FilePath,
    /// Time of the last progress.
    moved: Instant,
    /// Whether the thread waits for the store.
    is_in_store: bool,
}

/// Counters of the pass under way.
#[derive(Default)]
pub struct Meter {
    files_total: AtomicU64,
    files_done: AtomicU64,
    bytes_total: AtomicU64,
    bytes_done: AtomicU64,
    bytes_ever: AtomicU64,
    stopping: AtomicBool,
    gives_way: AtomicBool,
    is_asked: AtomicBool,
    work: Mutex<Vec<Work>>,
    left_out: Mutex<Arc<HashSet<FilePath>>>,
    /// How fast the drain may go.
    pub pace: Pace,
}

impl Meter {
    /// Begins a new pass: resets its counters.
    pub fn reset(&self) {
        for counter in [&self.files_total, &self.files_done, &self.bytes_total, &self.bytes_done] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Sets the files that are not to be drained, now or later.
    pub fn leave_out(&self, files: HashSet<FilePath>) {
        *self.left_out.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(files);
    }

    /// Files that are not to be drained, as of the last look.
    pub fn left_out(&self) -> Arc<HashSet<FilePath>> {
        Arc::clone(&self.left_out.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds to the totals of the pass.
    pub fn expect(&self, files: u64, bytes: u64) {
        self.files_total.fetch_add(files, Ordering::Relaxed);
        self.bytes_total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts copied bytes.
    pub fn copied(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        self.bytes_ever.fetch_add(bytes, Ordering::Relaxed);
        self.moves();
    }

    /// Records that this thread works on `path` in the persist directory, where it may hang. Lasts
    /// until the returned value is dropped.
    pub fn at(&self, path: &FilePath) -> AtWork<'_> {
        let thread = thread::current().id();
        let (path, moved, is_in_store) = (path.clone(), Instant::now(), false);
        self.work().push(Work { thread, path, moved, is_in_store });
        AtWork(self)
    }

    /// Records progress of this thread.
    pub fn moves(&self) {
        let thread = thread::current().id();
        let mut work = self.work();
        if let Some(own) = work.iter_mut().find(|work| work.thread == thread) {
            own.moved = Instant::now();
        }
    }

    /// Records whether this thread waits for the store. Such a wait does not count as a stall of
    /// the persist directory.
    pub fn is_in_store(&self, is_in_store: bool) {
        let thread = thread::current().id();
        for own in self.work().iter_mut().filter(|work| work.thread == thread) {
            (own.moved, own.is_in_store) = (Instant::now(), is_in_store);
        }
    }

    /// Records progress of this thread. Errors: `Stopped` if it is to give up.
    pub fn get_on(&self) -> Result<()> {
        self.moves();
        if self.is_stopping() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Returns the work without progress, longest first.
    pub fn stalled(&self) -> Vec<Stalled> {
        let work = self.work();
        let plain = |work: &Work| (work.moved.elapsed(), work.path.clone());
        let outside = work.iter().filter(|work| !work.is_in_store);
        let mut found: Vec<_> = outside.map(plain).filter(|(since, _)| *since >= STALLED).collect();
        found.sort_by(|a, b| b.cmp(a));
        let told = |(since, path): (Duration, FilePath)| Stalled { path, for_s: since.as_secs() };
        found.into_iter().map(told).collect()
    }

    fn work(&self) -> MutexGuard<'_, Vec<Work>> {
        // Plain values: a panic leaves them valid.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a file that was copied or has failed.
    pub fn finished_file(&self) {
        self.files_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters of the pass.
    pub fn progress(&self) -> Progress {
        Progress {
            files_total: self.files_total.load(Ordering::Relaxed),
            files_done: self.files_done.load(Ordering::Relaxed),
            bytes_total: self.bytes_total.load(Ordering::Relaxed),
            bytes_done: self.bytes_done.load(Ordering::Relaxed),
        }
    }

    /// Bytes copied in all passes.
    pub fn copied_ever(&self) -> u64 {
        self.bytes_ever.load(Ordering::Relaxed)
    }

    /// Sets whether the present work stops as soon as a request comes in.
    pub fn yield_if_awaited(&self, gives_way: bool) {
        self.gives_way.store(gives_way, Ordering::Relaxed);
    }

    /// Sets whether a request waits that has not begun.
    pub fn note_asked(&self, is_asked: bool) {
        self.is_asked.store(is_asked, Ordering::Relaxed);
    }

    /// Asks the copying threads to stop soon.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether to stop.
    pub fn is_stopping(&self) -> bool {
        let gives_way = self.gives_way.load(Ordering::Relaxed);
        self.stopping.load(Ordering::Relaxed) || gives_way && self.is_asked.load(Ordering::Relaxed)
    }
}

/// Marks a thread as at work until it is dropped.
pub struct AtWork<'a>(&'a Meter);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let thread = thread::current().id();
        self.0.work().retain(|work| work.thread != thread);
    }
}
