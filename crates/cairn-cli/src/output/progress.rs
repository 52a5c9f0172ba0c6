//! Progress of long work: a bar on a terminal, an occasional line in a log.

use crate::size::human;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Minimum time between two lines in a log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Progress of one step, in bytes.
pub struct Progress {
    label: String,
    bar: Option<ProgressBar>,
    total_bytes: u64,
    done_bytes: u64,
    logged_at: Instant,
    quiet: bool,
}

impl Progress {
    /// Starts a step. `quiet` shows nothing, for `--json`.
    pub fn new(label: &str, total_bytes: u64, quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template(
                "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
            );
            let bar = ProgressBar::new(total_bytes);
            bar.set_style(style.expect("the template is well-formed"));
            bar.set_message(label.to_string());
            bar
        });
        let logged_at = Instant::now();
        Progress { label: label.to_string(), bar, total_bytes, done_bytes: 0, logged_at, quiet }
    }

    /// Sets the number of bytes done and the total.
    pub fn set(&mut self, done_bytes: u64, total_bytes: u64) {
        self.done_bytes = done_bytes;
        self.total_bytes = total_bytes;
        if let Some(bar) = &self.bar {
            bar.set_length(total_bytes);
            bar.set_position(done_bytes);
        } else if !self.quiet && self.logged_at.elapsed() >= LOG_EVERY {
            self.logged_at = Instant::now();
            let (done, total) = (human(done_bytes), human(total_bytes));
            crate::output::say!("cairn: {}: {done} of {total}", self.label);
        }
    }

    /// Adds to the number of bytes done; raises the total if it is exceeded.
    pub fn advance(&mut self, bytes: u64) {
        self.set(self.done_bytes + bytes, self.total_bytes.max(self.done_bytes + bytes));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
