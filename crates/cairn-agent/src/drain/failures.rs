//! Files that could not be drained: why, and when to try again.

use crate::model::error::{Error, Result, Severity};
use crate::model::path::FilePath;
use crate::model::protocol::Failed;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Delay before the first repetition; it doubles each time.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// The delay grows no further than this.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// A growing delay between attempts.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    delay: Duration,
    next: Instant,
}

impl Backoff {
    /// After a first failure.
    pub fn new() -> Backoff {
        Backoff { delay: RETRY_FIRST, next: Instant::now() + RETRY_FIRST }
    }

    /// After another failure.
    pub fn grow(&mut self) {
        self.delay = (self.delay * 2).min(RETRY_MAX);
        self.next = Instant::now() + self.delay;
    }

    /// When to try again.
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

/// The files in trouble.
#[derive(Default)]
pub struct Failures {
    files: BTreeMap<FilePath, Failure>,
    changed: u64,
}

impl Failures {
    /// Sorts the result of a step on `path`: the value if it went well, None if this file must
    /// wait.
    /// Errors: those of the directory as a whole, and `Stopped`.
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
            Err(error @ Error::Stopped) => Err(error),
            Err(error) if error.severity() == Severity::Directory => Err(error),
            Err(error) => {
                self.note(path, error.to_string());
                Ok(None)
            }
        }
    }

    /// The files in trouble.
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

    /// Whether the time has come to try `path` (again).
    pub fn may_try(&self, path: &FilePath) -> bool {
        self.files.get(path).is_none_or(|failure| failure.backoff.next() <= Instant::now())
    }

    /// Everything may be tried at once.
    pub fn forgive(&mut self) {
        self.files.clear();
    }

    /// Forgets files that need no step any more.
    pub fn retain(&mut self, needed: impl Fn(&FilePath) -> bool) {
        self.files.retain(|path, _| needed(path));
    }

    /// So many files are left to a pass that knows what has changed meanwhile.
    pub fn leave(&mut self, files: u64) {
        self.changed += files;
    }

    /// The number of files that changed while they were copied, or were left, since the last call.
    pub fn take_changed(&mut self) -> u64 {
        std::mem::take(&mut self.changed)
    }

    /// The files in trouble, for people.
    pub fn list(&self) -> Vec<Failed> {
        let failed = |(path, failure): (&FilePath, &Failure)| Failed {
            path: path.clone(),
            reason: failure.reason.clone(),
            quarantined: false,
        };
        self.files.iter().map(failed).collect()
    }

    /// When the next of them is to be tried again.
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
