//! Messages while a command waits.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// A wait that takes longer is announced.
pub const SAID_AFTER: Duration = Duration::from_secs(2);
/// A file system that takes longer to answer is named.
const SLOW_AFTER: Duration = Duration::from_secs(5);

/// Runs the first operation of a command in a directory and returns its result. Prints a message if
/// it takes long, because the file system may not answer.
pub fn waited_for<T>(path: &Path, first: impl FnOnce() -> T) -> T {
    let (answer, answered) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let say = move || {
            if answered.recv_timeout(SLOW_AFTER) == Err(RecvTimeoutError::Timeout) {
                crate::output::say!("cairn: waiting for {}, which does not answer", path.display());
            }
        };
        // If the thread cannot be started, no message is printed.
        let _ = thread::Builder::new().spawn_scoped(scope, say);
        let came_to = first();
        drop(answer);
        came_to
    })
}
