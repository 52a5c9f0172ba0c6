//! Signals of a target. SIGTERM and SIGINT let it finish the requests it has accepted; a second one
//! ends it at once. SIGHUP makes it read the sizes of its files and devices again.
//!
//! Invariant: these signals are blocked in every thread of the target, so that none is lost.

use cairn_target::{Directory, Stop};
use std::sync::Arc;
use std::thread;

/// The blocked signals.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the signals. Precondition: this process has one thread.
    pub fn block() -> Signals {
        // SAFETY: an all-zero sigset_t is valid memory, and sigemptyset initialises it. The calls
        // write only to `set` and to the mask of this thread.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGHUP);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Signals(set)
        }
    }

    /// Starts a thread that waits for the signals.
    pub fn watch(self, stop: Stop, directory: Arc<Directory>) -> std::io::Result<()> {
        let watch = move || {
            self.wait_for_the_end(&directory);
            stop.drain();
            let signal = self.wait_for_the_end(&directory);
            std::process::exit(128 + signal)
        };
        thread::Builder::new().name("signals".to_string()).spawn(watch).map(drop)
    }

    fn wait_for_the_end(&self, directory: &Directory) -> i32 {
        loop {
            match self.wait() {
                libc::SIGHUP => directory.look_again(),
                signal => return signal,
            }
        }
    }

    fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: `block` initialised the set, and both pointers refer to live values.
        while unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } != 0 {}
        signal
    }
}
