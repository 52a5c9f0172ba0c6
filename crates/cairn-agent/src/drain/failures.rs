//! Files that could not be drained: the reason, and the time of the next attempt.

use crate::model::error::{Error, Result, Severity};
use crate::model::protocol::Failed;
use cairn_job::file::path::FilePath;
use cairn_job::pass::backoff;
use std::collections::BTreeMap;
use std::time::Instant;

/// Growing delay between attempts, and when the next one is due.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    delay: backoff::Backoff,
    next: Instant,
}

impl Backoff {
    /// Starts the delay after a first failure.
    pub fn new() -> Backoff {
        let delay = backoff::Backoff::first();
        Backoff { delay, next: Instant::now() + delay.delay() }
    }

    /// Doubles the delay after another failure.
    pub fn grow(&mut self) {
        self.delay = self.delay.grown();
        self.next = Instant::now() + self.delay.delay();
    }

    /// When the next attempt is due.
    pub fn next(&self) -> Instant {
        self.next
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}

struct Failure {
    reason: String,
    backoff: Backoff,
}

/// The files that failed, with their delays.
#[derive(Default)]
pub struct Failures {
    files: BTreeMap<FilePath, Failure>,
    changed: u64,
}

impl Failures {
    /// Takes the result of a step on `path`. Returns the value if the step succeeded; None if the
    /// file must wait. Errors: those of the directory as a whole, and `Stopped`.
    pub fn settle<T>(&mut self, path: &FilePath, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => {
                self.files.remove(path);
                Ok(Some(value))
            }
            Err(Error::Changed { .. }) => {
                self.changed += 1;
                Ok(None)
            }
            Err(error) if error.repeats_pass() || error.severity() == Severity::Directory => {
                Err(error)
            }
            Err(error) => {
                self.note(path, error.to_string());
                Ok(None)
            }
        }
    }

    /// Returns the files that failed.
    pub fn paths(&self) -> impl Iterator<Item = &FilePath> {
        self.files.keys()
    }

    fn note(&mut self, path: &FilePath, reason: String) {
        match self.files.get_mut(path) {
            Some(failure) => {
                failure.reason = reason;
                failure.backoff.grow();
            }
            None => {
                self.files.insert(path.clone(), Failure { reason, backoff: Backoff::new() });
            }
        }
    }

    /// Whether `path` may be tried now.
    pub fn may_try(&self, path: &FilePath) -> bool {
        self.files.get(path).is_none_or(|failure| failure.backoff.next() <= Instant::now())
    }

    /// Forgets all failures, so that everything may be tried at once.
    pub fn forgive(&mut self) {
        self.files.clear();
    }

    /// Forgets the files that need no step any more (`needed` is false).
    pub fn retain(&mut self, needed: impl Fn(&FilePath) -> bool) {
        self.files.retain(|path, _| needed(path));
    }

    /// Returns the number of files that changed during the copy or were left, since the last call.
    pub fn take_changed(&mut self) -> u64 {
        std::mem::take(&mut self.changed)
    }

    /// Returns the files that failed and their reasons, for reports.
    pub fn list(&self) -> Vec<Failed> {
        let failed = |(path, failure): (&FilePath, &Failure)| Failed {
            path: path.clone(),
            reason: failure.reason.clone(),
            quarantined: false,
        };
        self.files.iter().map(failed).collect()
    }

    /// When the first retry is due.
    pub fn next_retry(&self) -> Option<Instant> {
        self.files.values().map(|failure| failure.backoff.next()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_error(code: i32) -> Error {
        Error::file("write", std::path::Path::new("/p/f"))(std::io::Error::from_raw_os_error(code))
    }

    #[test]
    fn trouble_with_the_directory_is_passed_on_and_trouble_with_a_file_is_kept() {
        let path = FilePath::parse(b"f").expect("a valid path");
        let mut failures = Failures::default();
        let full = failures.settle(&path, Err::<(), _>(file_error(libc::ENOSPC)));
        assert!(full.is_err() && failures.list().is_empty());
        let denied = failures.settle(&path, Err::<(), _>(file_error(libc::EACCES)));
        assert!(matches!(denied, Ok(None)) && !failures.may_try(&path));
        assert_eq!(failures.list()[0].reason, "cannot write /p/f: permission denied");
        let changed = Error::Changed { path: path.clone() };
        assert!(matches!(failures.settle(&path, Err::<(), _>(changed)), Ok(None)));
        assert_eq!((failures.take_changed(), failures.take_changed()), (1, 0));
        failures.settle(&path, Ok(())).expect("fine");
        assert!(failures.list().is_empty() && failures.may_try(&path));
    }
}
