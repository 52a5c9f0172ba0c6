//! The file tier: hugeblocks in a part of a medium's file.
//!
//! Invariant: a range is checked against the tier before anything is transferred. The checksum of a
//! write is of the bytes that were stored, because they are summed on the way into the buffer that
//! is written, or into the file's mapping. A block that was summed in place is durable after the
//! next flush, whoever stored it.
//!
//! Does not sum or transfer anything under the core's lock: no byte of a file is ever warm.

use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use std::sync::Arc;

use cairn_core::{Error, MEDIA_BLOCK_BYTES, Media, Result};
use cairn_platform::copy::{copy_crc, copy_out};
use cairn_platform::sys::{Errno, SysResult};
use cairn_platform::{address, checksum};

use crate::device::{Device, Mappable};
use crate::media::media_file::MediaFile;
use crate::media::medium::MediumKind;
use crate::media::staging::STAGING_BYTES;

/// A tier in a part of a file.
#[derive(Debug)]
pub struct FileTier {
    file: Arc<MediaFile>,
    data_offset: u64,
    bytes: u64,
}

impl FileTier {
    /// Returns the tier in `bytes` of `file` from `data_offset` on. Errors: `EINVAL` if these are
    /// not whole pages of the file.
    pub fn new(file: Arc<MediaFile>, data_offset: u64, bytes: u64) -> SysResult<FileTier> {
        let is_whole = |value: u64| value % MEDIA_BLOCK_BYTES as u64 == 0;
        let fits = data_offset.checked_add(bytes).is_some_and(|end| end <= Media::bytes(&*file));
        match is_whole(data_offset) && is_whole(bytes) && fits {
            true => Ok(FileTier { file, data_offset, bytes }),
            false => Err(Errno(libc::EINVAL)),
        }
    }

    /// Returns the medium's file.
    pub fn file(&self) -> &Arc<MediaFile> {
        &self.file
    }

    /// Returns the offset in the file of a range of the tier. Errors: `Corrupt` for a range
    /// outside.
    fn place(&self, offset: u64, length: usize) -> Result<u64> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.bytes => Ok(self.data_offset + offset),
            _ => Err(Error::Corrupt { what: "range outside its tier" }),
        }
    }
}

/// Raw checksum of what is stored piece by piece; `None` once a piece could not be read.
#[derive(Clone, Copy, Debug)]
struct Sum(Option<u32>);

impl Default for Sum {
    fn default() -> Sum {
        Sum(Some(0))
    }
}

impl Sum {
    /// Returns the checksum of nothing yet, for a source that is readable as a whole. Without that
    /// check a buffer that is filled in part would be stored. Errors: `Fault`.
    fn of(source: *const u8, length: usize) -> Result<Sum> {
        match address::readable(source, length) == length {
            true => Ok(Sum::default()),
            false => Err(Error::Fault),
        }
    }

    fn follow(&mut self, sum: Option<u32>, bytes: usize) {
        self.0 = self.0.zip(sum).map(|(raw, sum)| checksum::join(raw, sum, bytes as u64));
    }

    /// Returns the checksum. Errors: `Fault` if the source became unreadable after the check.
    fn get(&self) -> Result<u32> {
        self.0.ok_or(Error::Fault)
    }
}

impl Device for FileTier {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    unsafe fn write(&self, offset: u64, source: *const u8, length: usize) -> Result<u32> {
        let mut sum = Sum::of(source, length)?;
        self.file.store(self.place(offset, length)?, length, |buffer, done, bytes| {
            // SAFETY: the piece lies inside the caller's source and inside the buffer, which is
            // ours alone.
            sum.follow(unsafe { copy_crc(buffer, source.add(done), bytes) }, bytes);
        })?;
        sum.get()
    }

    unsafe fn write_blocks(
        &self,
        offset: u64,
        source: *const u8,
        block_bytes: usize,
        count: usize,
        take: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        let at_once = (STAGING_BYTES / block_bytes).max(1);
        let mut sums = [Sum::of(source, count * block_bytes)?; STAGING_BYTES / MEDIA_BLOCK_BYTES];
        for first in (0..count).step_by(at_once) {
            let sums = &mut sums[..at_once.min(count - first)];
            let (at, length) = (first * block_bytes, sums.len() * block_bytes);
            sums.fill(Sum::default());
            self.file.store(
                self.place(offset + at as u64, length)?,
                length,
                |buffer, done, bytes| {
                    for part in (0..bytes).step_by(block_bytes) {
                        let length = block_bytes.min(bytes - part);
                        // SAFETY: as in `write`.
                        let sum = unsafe {
                            copy_crc(buffer.add(part), source.add(at + done + part), length)
                        };
                        sums[(done + part) / block_bytes].follow(sum, length);
                    }
                },
            )?;
            sums.iter().try_for_each(|sum| take(sum.get()?))?;
        }
        Ok(())
    }

    unsafe fn write_mapped(&self, offset: u64, source: *const u8, length: usize) -> Result<u32> {
        let mut sum = Sum::of(source, length)?;
        self.file.store_mapped(self.place(offset, length)?, length, |buffer, done, bytes| {
            // SAFETY: as in `write`.
            sum.follow(unsafe { copy_crc(buffer, source.add(done), bytes) }, bytes);
        })?;
        sum.get()
    }

    fn zero_mapped(&self, offset: u64, length: usize) -> Result<()> {
        self.file.store_mapped(self.place(offset, length)?, length, |buffer, _, bytes| {
            // SAFETY: as in `zero`.
            unsafe { buffer.write_bytes(0, bytes) };
        })
    }

    fn write_warm(&self, _offset: u64, _bytes: &[u8]) -> bool {
        false
    }

    unsafe fn read(&self, offset: u64, target: *mut u8, length: usize) -> Result<()> {
        let mut is_there = true;
        self.file.load(self.place(offset, length)?, length, |buffer, done, bytes| {
            // SAFETY: the piece lies inside the caller's target and inside the buffer, which is
            // ours alone.
            is_there &= unsafe { copy_out(target.add(done), buffer, bytes) };
        })?;
        if is_there { Ok(()) } else { Err(Error::Fault) }
    }

    unsafe fn read_unverified(&self, offset: u64, target: *mut u8, length: usize) -> Result<bool> {
        // SAFETY: promised by the caller.
        match self.file.unless_unreachable(|| unsafe { self.read(offset, target, length) }) {
            Err(Error::Io) if self.file.may_be_stale() => {}
            result => return result.map(|()| false),
        }
        let mut is_there = true;
        self.file.load_unverified(self.place(offset, length)?, length, |buffer, done, bytes| {
            // SAFETY: as in `read`.
            is_there &= unsafe { copy_out(target.add(done), buffer, bytes) };
        })?;
        if is_there { Ok(true) } else { Err(Error::Fault) }
    }

    fn zero(&self, offset: u64, length: usize) -> Result<()> {
        self.file.store(self.place(offset, length)?, length, |buffer, _, bytes| {
            // SAFETY: the buffer is ours alone and has room for the piece.
            unsafe { buffer.write_bytes(0, bytes) };
        })
    }

    fn checksum(&self, offset: u64, length: usize) -> Result<u32> {
        let (mut sum, place) = (0, self.place(offset, length)?);
        // The process that stored them may have died before it wrote them back.
        self.file.write_back(place, length)?;
        self.file.load(place, length, |buffer, _, bytes| {
            // SAFETY: the piece was just read into the buffer, which is ours alone; or it lies in
            // the mapping, as in `RamDevice::checksum`.
            sum = checksum::crc32c(sum, unsafe { core::slice::from_raw_parts(buffer, bytes) });
        })?;
        Ok(sum)
    }

    fn flush(&self) -> Result<()> {
        self.file.flush()?;
        match self.is_synchronous() {
            // Nobody has written back the stores that programs made themselves.
            Some(true) => self.file.flush_by_kernel(),
            _ => Ok(()),
        }
    }

    fn prefault(&self, offset: u64, length: usize) -> Result<()> {
        // The file was allocated whole when it was made.
        self.place(offset, length).map(drop)
    }

    fn serve(&self, stop: &AtomicBool) {
        self.file.serve(stop);
    }

    fn servers(&self) -> usize {
        self.file.servers()
    }

    fn reads_ahead(&self) -> bool {
        self.file.reads_ahead()
    }

    fn want(&self, offset: u64, length: usize) {
        if let Ok(at) = self.place(offset, length) {
            self.file.want(at, length);
        }
    }

    fn show(&self, offset: u64, length: usize, may_be_stored_to: bool) -> Result<()> {
        self.file.show(self.place(offset, length)?, length, may_be_stored_to)
    }

    fn write_back(&self, offset: u64, length: usize) -> Result<()> {
        match self.shows_copies() {
            true => self.file.write_back(self.place(offset, length)?, length),
            false => Ok(()),
        }
    }

    fn evict_unmapped(
        &self,
        mapped: &dyn Fn() -> Result<Vec<Range<u64>>>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let in_file =
            |range: Range<u64>| self.data_offset + range.start..self.data_offset + range.end;
        let mapped = || Ok(mapped()?.into_iter().map(in_file).collect());
        self.file.evict_unmapped(&mapped, goes_on)
    }

    fn has_lost_writes(&self) -> bool {
        self.file.has_lost_writes()
    }

    fn silent_for(&self) -> Option<Duration> {
        self.file.silent_for()
    }

    fn is_gone(&self) -> bool {
        self.file.is_gone()
    }

    fn is_synchronous(&self) -> Option<bool> {
        self.file.is_synchronous()
    }

    fn descriptors(&self, visit: &mut dyn FnMut(i32)) {
        self.file.descriptors(visit);
    }

    fn mappable(&self) -> Option<Mappable> {
        let (descriptor, first, copies) = match self.file.kind() {
            MediumKind::Remote => {
                let (descriptor, first) = self.file.shown_at()?;
                (descriptor, first, self.file.shows())
            }
            _ => (self.file.ordinary(), 0, false),
        };
        let in_memory = self.file.kind() == MediumKind::Dax;
        Some(Mappable { descriptor, offset: first + self.data_offset, in_memory, copies })
    }
}

#[cfg(test)]
mod tests;
