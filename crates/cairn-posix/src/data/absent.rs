//! Waits for data that are elsewhere until the agent has fetched them.
//!
//! Must stay true: a signal handler ends the wait as it does for a slow device. The call returns
//! `EINTR`, or the wait goes on if the handler was installed with `SA_RESTART`. Data that cannot be
//! fetched, or that no agent fetches any more, are `EIO`. A caller that dies or jumps out of the
//! wait leaves nothing behind but a descriptor of its own process, and the request to fetch the
//! file before others.

use std::time::Duration;

use cairn_core::{Absence, Error, InodeId, Moment, Prospect};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys;

use crate::data::space;
use crate::error::{Errno, Result};
use crate::kernel::gate;
use crate::mount::Mount;

/// Interval between checks whether the data are there.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Repeats `attempt` until it needs no absent data and no packed file, and returns its result.
/// Errors: `EINTR`, `EIO`; `ENOSPC` if a packed file cannot get a block of its own.
pub fn wait<T>(
    mount: &Mount,
    mut attempt: impl FnMut() -> cairn_core::Result<T>,
) -> Result<cairn_core::Result<T>> {
    loop {
        let done = match attempt() {
            Err(Error::Absent { inode }) => wait_for(mount, inode, &mut attempt)?,
            done => done,
        };
        match done {
            Err(Error::Packed { inode }) => space::unpack(mount, inode)?,
            done => return Ok(done),
        }
    }
}

#[cold]
fn wait_for<T>(
    mount: &Mount,
    mut inode: InodeId,
    attempt: &mut impl FnMut() -> cairn_core::Result<T>,
) -> Result<cairn_core::Result<T>> {
    const FAILED: Errno = Errno(libc::EIO);
    let fs = mount.fs();
    // The wait needs a descriptor; without one it is not possible.
    let ticker = Descriptor::from_raw(sys::ticker(LOOK_EVERY).map_err(|_| FAILED)?).raise();
    let began = Moment(sys::monotonic_ms());
    let mut known = fs.request_stage_in(inode);
    loop {
        match known {
            Ok(Some(Absence { unavailable: true, .. })) => return Err(FAILED),
            // They came and gave up their room again since the last look.
            Ok(Some(Absence { wanted: false, .. })) => drop(fs.request_stage_in(inode)),
            Ok(Some(_)) => {}
            // The data are there, or the file was emptied or removed; the call finds out which.
            Ok(None) | Err(_) => match attempt() {
                Err(Error::Absent { inode: other }) if other != inode => {
                    inode = other;
                    known = fs.request_stage_in(inode);
                    continue;
                }
                // They were there for a moment, and gave up their room again.
                Err(Error::Absent { .. }) => drop(fs.request_stage_in(inode)),
                done => return Ok(done),
            },
        }
        if fs.absence_prospect(began, Moment(sys::monotonic_ms())) == Prospect::None {
            return Err(FAILED);
        }
        let mut ticks = [0_u8; 8];
        match gate::outside_unless_interrupted(|| sys::read(ticker.raw(), &mut ticks)) {
            None | Some(Err(sys::Errno(libc::EINTR))) => return Err(Errno(libc::EINTR)),
            // The application has closed the descriptor.
            Some(Err(_)) => return Err(FAILED),
            Some(Ok(_)) => {}
        }
        known = fs.absence(inode);
    }
}
