//! A call that needs data which are still elsewhere waits until the agent has brought them (`cairn
//! run --stage=on-demand`).
//!
//! Must stay true: a signal handler ends the wait as it ends that for a slow device: `EINTR`, or
//! the wait goes on if the handler was installed so. Data that cannot be had, or that nobody brings
//! any more, are `EIO`. Nothing is left behind by whoever dies or jumps out of it but a descriptor
//! of its own process, and that the file is brought before others.

use std::time::Duration;

use cairn_core::{Absence, Error, Hope, InodeId, Moment};
use cairn_device::descriptor::Descriptor;
use cairn_device::sys;

use crate::data::space;
use crate::error::{Errno, Result};
use crate::kernel::gate;
use crate::mount::Mount;

/// How often is looked whether the data are there.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What `attempt` gives once it needs no data that are absent, and no file that is packed. Errors:
/// `EINTR`, `EIO`; `ENOSPC` for a packed file that cannot have a block of its own.
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
    // Without a descriptor for it nothing can be waited for.
    let ticker = Descriptor::from_raw(sys::ticker(LOOK_EVERY).map_err(|_| FAILED)?).raise();
    let began = Moment(sys::monotonic_ms());
    let mut known = fs.want_absent(inode);
    loop {
        match known {
            Ok(Some(Absence { unavailable: true, .. })) => return Err(FAILED),
            Ok(Some(_)) => {}
            // It is there, or was emptied or removed: the call shall see.
            Ok(None) | Err(_) => match attempt() {
                Err(Error::Absent { inode: other }) if other != inode => {
                    inode = other;
                    known = fs.want_absent(inode);
                    continue;
                }
                Err(Error::Absent { .. }) => {}
                done => return Ok(done),
            },
        }
        if fs.absence_hope(began, Moment(sys::monotonic_ms())) == Hope::None {
            return Err(FAILED);
        }
        let mut ticks = [0_u8; 8];
        match gate::outside_unless_interrupted(|| sys::read(ticker.raw(), &mut ticks)) {
            None | Some(Err(sys::Errno(libc::EINTR))) => return Err(Errno(libc::EINTR)),
            // The application has closed it.
            Some(Err(_)) => return Err(FAILED),
            Some(Ok(_)) => {}
        }
        known = fs.absence(inode);
    }
}
