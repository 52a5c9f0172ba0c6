//! The longest time that staging in inputs may take (`--stage-timeout`).
//!
//! Must stay true: the command ends soon after this time, although a read of a source that hangs
//! cannot be ended. What is staged by then is recorded.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{EXIT_FAILURE, Error, Result, StageError};
use crate::output::duration;

/// How long staging may go on after its time, until the command gives up what hangs.
const GRACE: Duration = Duration::from_secs(2);

/// A limit in time, and how far staging has got.
pub struct Limit {
    time: Option<(Instant, Duration)>,
    progress: Arc<StageProgress>,
}

#[derive(Default)]
struct StageProgress {
    here: AtomicUsize,
    total: AtomicUsize,
    has_ended: AtomicBool,
}

impl Limit {
    /// Begins to count the time.
    pub fn begin(timeout: Option<Duration>) -> Limit {
        let time =
            timeout.and_then(|timeout| Some((Instant::now().checked_add(timeout)?, timeout)));
        let progress = Arc::new(StageProgress::default());
        if let Some((end, timeout)) = time {
            let progress = Arc::clone(&progress);
            // Without the thread, only a source that hangs goes on for longer.
            let watch = move || {
                thread::sleep((end + GRACE).saturating_duration_since(Instant::now()));
                if !progress.has_ended.load(Ordering::Relaxed) {
                    crate::output::say!("cairn: {}; a source hangs", progress.late(timeout));
                    process::exit(EXIT_FAILURE);
                }
            };
            let _ = thread::Builder::new().name("stage-limit".to_string()).spawn(watch);
        }
        Limit { time, progress }
    }

    /// Sets the number of files to stage.
    pub fn set_total(&self, files: usize) {
        self.progress.total.store(files, Ordering::Relaxed);
    }

    /// Records that one more file is in the store.
    pub fn note_file(&self) {
        self.progress.here.fetch_add(1, Ordering::Relaxed);
    }

    /// Errors: the time is over.
    pub fn check(&self) -> Result<()> {
        match self.time {
            Some((end, timeout)) if Instant::now() > end => {
                Err(Error::Stage(self.progress.late(timeout)))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.progress.has_ended.store(true, Ordering::Relaxed);
    }
}

impl StageProgress {
    fn late(&self, timeout: Duration) -> StageError {
        let limit = duration::human(timeout.as_secs_f64());
        let (here, total) = (self.here.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        StageError::Late { limit, here, total }
    }
}
