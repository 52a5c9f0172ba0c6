//! What makes the bytes of a namespace durable: one call for all who wait for it, and none that
//! succeeds after one has failed.
//!
//! Must stay true: who is told that bytes are durable has asked before the call began that made
//! them so. The kernel tells of bytes that it could not write only once, and forgets them: after
//! that nobody is told that anything is durable.

use cairn_nvme::wire::Status;
use std::io::Result as IoResult;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Flushes of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// How many were asked for.
    asked: AtomicU64,
    /// How many of those have ended; locked while one is under way.
    ended: Mutex<u64>,
    has_failed: AtomicBool,
}

impl Flushes {
    /// What was stored before this is to be durable; the number of the flush.
    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends the flush of that number, with `sync` unless one that began later has done so. Errors:
    /// not all is durable, and never will be.
    pub(crate) fn end(
        &self,
        number: u64,
        sync: impl FnOnce() -> IoResult<()>,
    ) -> Result<(), Status> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended < number && !self.has_failed() {
            let asked = self.asked.load(Ordering::SeqCst);
            match sync() {
                Ok(()) => *ended = asked,
                Err(_) => self.fail(),
            }
        }
        if self.has_failed() { Err(Status::INTERNAL_ERROR.for_good()) } else { Ok(()) }
    }

    /// Something was lost.
    pub(crate) fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn one_call_ends_all_that_were_asked_for_before_it_and_no_other() {
        let (flushes, calls) = (Flushes::default(), AtomicUsize::new(0));
        let count = || {
            calls.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let (begun, is_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        thread::scope(|scope| {
            let first = flushes.ask();
            let flushes = &flushes;
            scope.spawn(move || {
                let sync = || {
                    begun.send(()).expect("it waits");
                    may_go_on.recv().expect("it is told");
                    count()
                };
                assert_eq!(flushes.end(first, sync), Ok(()));
            });
            is_begun.recv().expect("it is called");
            let later: Vec<u64> = (0..8).map(|_| flushes.ask()).collect();
            go_on.send(()).expect("it waits");
            for number in later {
                scope.spawn(move || assert_eq!(flushes.end(number, count), Ok(())));
            }
        });
        assert_eq!(calls.into_inner(), 2, "one for the first, one for all that came while it ran");
    }
}
