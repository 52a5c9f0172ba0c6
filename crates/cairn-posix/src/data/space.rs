//! A write that finds no space has small files share blocks, and waits for the agent to make some,
//! if that has offered to.
//!
//! Must stay true: the wait is bounded, and a signal handler ends it as it ends that for a slow
//! device: what was written before counts, else it is `EINTR`, or the wait goes on if the handler
//! was installed so. Nothing is left behind by whoever dies or jumps out of it but a descriptor of
//! its own process. Without an offer nothing waits.

use std::time::Duration;

use cairn_core::{Hope, InodeId, Moment};
use cairn_device::descriptor::Descriptor;
use cairn_device::sys;

use crate::error::{Errno, Result};
use crate::kernel::gate;
use crate::mount::Mount;

const FULL: Errno = Errno(libc::ENOSPC);
/// How often space is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Who does not wait for space to be made waits so long for what the agent only holds, which it
/// lets go at its next look.
const HELD_MS: u32 = 100;

/// Tries again what found no space until it finds some. Errors: `ENOSPC` when there is no hope any
/// more, `EINTR`, those of `attempt`.
#[cold]
pub fn wait<T>(mount: &Mount, attempt: impl Fn() -> Result<T>) -> Result<T> {
    wait_at_most(u32::MAX, mount, attempt)
}

/// The same for a moment.
#[cold]
pub fn wait_for_held<T>(mount: &Mount, attempt: impl Fn() -> Result<T>) -> Result<T> {
    wait_at_most(HELD_MS, mount, attempt)
}

/// Gives a packed file a block of its own. Errors: as `wait`.
#[cold]
pub fn unpack(mount: &Mount, inode: InodeId) -> Result<()> {
    match mount.unpack(inode) {
        Err(FULL) => wait(mount, || mount.unpack(inode)),
        unpacked => unpacked,
    }
}

fn wait_at_most<T>(most_ms: u32, mount: &Mount, attempt: impl Fn() -> Result<T>) -> Result<T> {
    let fs = mount.fs();
    // What small files need less than they have is nobody's loss.
    loop {
        let has_packed = mount.pack();
        // In any case: somebody else may have done it.
        match attempt() {
            Err(FULL) if has_packed => {}
            Err(FULL) => break,
            tried => return tried,
        }
    }
    if fs.space_patience_ms() == 0 {
        return Err(FULL);
    }
    // Without a descriptor for it nothing can be waited for.
    let ticker = Descriptor::from_raw(sys::ticker(LOOK_EVERY).map_err(|_| FULL)?).raise();
    let began = now();
    let mut waiter = fs.begin_waiting(began);
    let ended = loop {
        let mut ticks = [0_u8; 8];
        match gate::outside_unless_interrupted(|| sys::read(ticker.raw(), &mut ticks)) {
            None | Some(Err(sys::Errno(libc::EINTR))) => break Err(Errno(libc::EINTR)),
            // The application has closed it.
            Some(Err(_)) => break Err(FULL),
            Some(Ok(_)) => {}
        }
        // Asked first: what was made before the hope ended is found.
        let is_over = now().since(began) >= most_ms;
        let hope = fs.space_hope(&waiter, now());
        let tried = attempt();
        if tried.as_ref().err() != Some(&FULL) {
            break tried;
        }
        if is_over || hope == Hope::None {
            // An agent that was killed may have held what was removed.
            break if mount.reap() { attempt() } else { tried };
        }
        fs.keep_waiting(&mut waiter, now());
    };
    fs.end_waiting(waiter);
    ended
}

fn now() -> Moment {
    Moment(sys::monotonic_ms())
}
