//! Whole pages, and what else is not cut any more, read from and written to a file, a device or a
//! namespace on another machine.
//!
//! Must stay true: all of a range is transferred, or it is an error.

use std::ops::Range;

use super::PAGE;
use crate::descriptor::Descriptor;
use crate::nvme;
use crate::nvme::shared::SharedRemote;
use crate::staging::STAGING_BYTES;
use crate::sys::{self, Errno, SysResult};

/// What whole pages are read from and written to, one transfer at a time at each page.
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

/// What the kernel would say of a device of its own.
pub(super) fn errno_of(error: nvme::Error) -> Errno {
    match error {
        nvme::Error::System { errno: errno @ Errno(libc::EFAULT), .. } => errno,
        _ => Errno(libc::EIO),
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

/// Repeats `transfer`, which is told how much is done, until `length` bytes are. What it did of a
/// page is done again: direct I/O goes on at a page only.
pub(super) fn transfer_all(
    length: usize,
    mut transfer: impl FnMut(usize) -> SysResult<usize>,
) -> SysResult<()> {
    let mut done = 0;
    loop {
        match transfer(done) {
            Ok(count) if count == length - done => return Ok(()),
            Ok(count) if count >= PAGE => done += count / PAGE * PAGE,
            // A device that goes on with less than a page at a time is broken.
            Ok(_) => return Err(Errno(libc::EIO)),
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Writes bytes of our own.
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
