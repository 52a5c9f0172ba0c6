//! SIGTERM and SIGINT have a target finish what it has accepted; a second one ends it at once.
//! SIGHUP has it look how large its files and devices are by now.
//!
//! Must stay true: all are blocked in every thread of the target, so that none is lost.

use cairn_agent::target::{Directory, Stop};
use std::sync::Arc;
use std::thread;

/// The signals, which are blocked.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks them. To be called while this process has one thread.
    pub fn block() -> Signals {
        // SAFETY: all zeros are a set, which is then made empty; the calls write to it alone, and
        // to the mask of this thread.
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

    /// Waits for them from now on.
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
        // SAFETY: the set was made by `block`, and the number is ours.
        while unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } != 0 {}
        signal
    }
}
