//! Reads and writes of whole pages, and of ranges that are not split further, of a file, a device
//! or a namespace on another machine.
//!
//! Invariant: a call transfers the whole range, or returns an error.

use std::ops::Range;

use cairn_core::Error;
use cairn_nvme as nvme;
use cairn_nvme::shared::SharedRemote;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno, SysResult};

use super::PAGE;
use crate::media::staging::STAGING_BYTES;

/// Medium of whole pages. At each page there is one transfer at a time.
#[derive(Clone, Copy)]
pub(super) enum Pages<'a> {
    Device(&'a Descriptor),
    Remote(&'a SharedRemote),
}

impl Pages<'_> {
    /// # Safety
    /// `target` is writable for `length` bytes and nobody else uses them.
    pub(super) unsafe fn read(self, target: *mut u8, length: usize, at: u64) -> SysResult<()> {
        match self {
            // SAFETY: promised by the caller.
            Pages::Device(device) => unsafe { read_all(device, target, length, at) },
            // SAFETY: as above.
            Pages::Remote(remote) => unsafe { remote.read(target, length, at) }.map_err(errno_of),
        }
    }

    /// # Safety
    /// `source` is readable for `length` bytes.
    pub(super) unsafe fn write(self, source: *const u8, length: usize, at: u64) -> SysResult<()> {
        match self {
            // SAFETY: promised by the caller.
            Pages::Device(device) => unsafe { write_all(device, source, length, at) },
            // SAFETY: as above.
            Pages::Remote(remote) => unsafe { remote.write(source, length, at) }.map_err(errno_of),
        }
    }
}

/// Returns the errno that the kernel would report for a device of its own.
pub(super) fn errno_of(error: nvme::Error) -> Errno {
    match error {
        nvme::Error::System { errno: errno @ Errno(libc::EFAULT), .. } => errno,
        _ => Errno(libc::EIO),
    }
}

/// Core's error for a failed command.
pub(crate) fn error_of(error: nvme::Error) -> Error {
    match error {
        nvme::Error::System { errno: Errno(libc::EFAULT), .. } => Error::Fault,
        nvme::Error::Invalid => Error::Invalid,
        _ => Error::Io,
    }
}

/// # Safety
/// `source` is readable for `length` bytes.
pub(super) unsafe fn write_all(
    file: &Descriptor,
    source: *const u8,
    length: usize,
    at: u64,
) -> SysResult<()> {
    transfer_all(length, |done| {
        // SAFETY: `done` is less than `length`; the kernel only reads.
        unsafe { sys::pwrite_raw(file.raw(), source.add(done), length - done, at + done as u64) }
    })
}

/// # Safety
/// `target` is writable for `length` bytes and nobody else uses them.
pub(crate) unsafe fn read_all(
    file: &Descriptor,
    target: *mut u8,
    length: usize,
    at: u64,
) -> SysResult<()> {
    transfer_all(length, |done| {
        // SAFETY: `done` is less than `length`, and the bytes are the caller's.
        unsafe { sys::pread_raw(file.raw(), target.add(done), length - done, at + done as u64) }
    })
}

/// Calls `transfer` with the number of bytes done until all `length` bytes are. A page that was
/// transferred in part is done again, because direct I/O can continue only at a page boundary.
pub(super) fn transfer_all(
    length: usize,
    mut transfer: impl FnMut(usize) -> SysResult<usize>,
) -> SysResult<()> {
    let mut done = 0;
    loop {
        match transfer(done) {
            Ok(count) if count == length - done => return Ok(()),
            Ok(count) if count >= PAGE => done += count / PAGE * PAGE,
            // A device that transfers less than a page at a time is broken.
            Ok(_) => return Err(Errno(libc::EIO)),
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Writes private bytes.
pub(crate) fn put(file: &Descriptor, at: u64, bytes: &[u8]) -> SysResult<()> {
    // SAFETY: the slice is readable.
    unsafe { write_all(file, bytes.as_ptr(), bytes.len(), at) }
}

/// Writes zeros to a range.
pub(crate) fn put_zeros(file: &Descriptor, range: Range<u64>) -> SysResult<()> {
    let zeros = vec![0; STAGING_BYTES];
    let mut at = range.start;
    while at < range.end {
        let length = (zeros.len() as u64).min(range.end - at) as usize;
        put(file, at, &zeros[..length])?;
        at += length as u64;
    }
    Ok(())
}
