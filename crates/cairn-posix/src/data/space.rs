//! Space for a write that finds none: packs small files into shared blocks, and waits for the agent
//! to free space, if the agent has offered to.
//!
//! Must stay true: the wait is bounded, and a signal handler ends it as it does for a slow device.
//! Then what was written before counts, or else the call returns `EINTR`; the wait goes on if the
//! handler was installed with `SA_RESTART`. A caller that dies or jumps out of the wait leaves
//! nothing behind but a descriptor of its own process. Without an offer nothing waits.

use std::time::Duration;

use cairn_core::{InodeId, Moment, Prospect};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys;

use crate::error::{Errno, Result};
use crate::kernel::gate;
use crate::mount::Mount;

const FULL: Errno = Errno(libc::ENOSPC);
/// Interval between checks for space.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Repeats `attempt` until it finds space. Errors: `ENOSPC` when no more space can be expected,
/// `EINTR`, those of `attempt`.
#[cold]
pub fn wait<T>(mount: &Mount, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let fs = mount.fs();
    // Packing small files costs nobody anything.
    loop {
        let has_packed = mount.pack();
        // Try in any case: another process may have packed files.
        match attempt() {
            Err(FULL) if has_packed => {}
            Err(FULL) => break,
            tried => return tried,
        }
    }
    if fs.space_patience_ms() == 0 {
        return Err(FULL);
    }
    // The wait needs a descriptor; without one it is not possible.
    let ticker = Descriptor::from_raw(sys::ticker(LOOK_EVERY).map_err(|_| FULL)?).raise();
    let mut waiter = fs.begin_waiting(now());
    let ended = loop {
        let mut ticks = [0_u8; 8];
        match gate::outside_unless_interrupted(|| sys::read(ticker.raw(), &mut ticks)) {
            None | Some(Err(sys::Errno(libc::EINTR))) => break Err(Errno(libc::EINTR)),
            // The application has closed the descriptor.
            Some(Err(_)) => break Err(FULL),
            Some(Ok(_)) => {}
        }
        // Asked before the attempt, so that space freed before the hope ended is found.
        let hope = fs.space_hope(&waiter, now());
        let tried = attempt();
        if tried.as_ref().err() != Some(&FULL) {
            break tried;
        }
        if hope == Prospect::None {
            // An agent that was killed may have held blocks of removed files.
            break if mount.reap() { attempt() } else { tried };
        }
        fs.keep_waiting(&mut waiter, now());
    };
    fs.end_waiting(waiter);
    ended
}

/// Gives a packed file a block of its own. Errors: as `wait`.
#[cold]
pub fn unpack(mount: &Mount, inode: InodeId) -> Result<()> {
    match mount.unpack(inode) {
        Err(FULL) => wait(mount, || mount.unpack(inode)),
        unpacked => unpacked,
    }
}

fn now() -> Moment {
    Moment(sys::monotonic_ms())
}
