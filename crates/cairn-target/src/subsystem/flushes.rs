//! Makes the bytes of a namespace durable: one sync for all flushes that wait, and none that
//! succeeds after one has failed.
//!
//! Invariant: a flush succeeds only if it was requested before a successful sync began. The kernel
//! reports bytes that it could not write only once, and forgets them. After that every flush fails.

use cairn_nvme::wire::Status;
use std::io::Result as IoResult;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Flushes of a namespace.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    /// Number of flushes that were requested.
    asked: AtomicU64,
    /// Number of flushes that have ended. Locked while a sync is under way.
    ended: Mutex<u64>,
    has_failed: AtomicBool,
}

impl Flushes {
    /// Requests a flush of everything stored so far. Returns its number.
    pub(crate) fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Completes flush `number`. Calls `sync`, unless a sync that began after the request has
    /// covered it. Errors: some bytes are not durable, and never will be.
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

    /// Records that bytes were lost.
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
