//! Moves bytes to and from a tier's file or device: in pieces, through a buffer, a transit area, or
//! a mapping.
//!
//! Invariant: whole pages travel by direct I/O. A part of a page of a file goes through the page
//! cache. A part of a page of a device is written with the rest of its page, in a turn at that
//! page.
//!
//! Does not open anything and does not know labels.

use core::sync::atomic::AtomicBool;
use core::time::Duration;
use std::ops::Range;

use cairn_core::{Error, Result};
use cairn_nvme::shared::SharedRemote;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno, SysResult};

use super::pages::{Pages, error_of, read_all, write_all};
use super::{MediaFile, PAGE};
use crate::media::medium::MediumKind;
use crate::media::staging::{Buffer, STAGING_BYTES};
use crate::media::transit::{Transit, Turn};

/// Distance up to which a long read has its next parts read ahead.
const AHEAD_BYTES: usize = 4 * STAGING_BYTES;

impl MediaFile {
    /// Stores `length` bytes from `offset` on. `fill` writes them, piece after piece. Its arguments
    /// are an address, the number of bytes before this piece, and the number of bytes to write.
    /// With write-behind the bytes may still be in transit when this returns. Errors: `NoSpace` or
    /// `Io` (nothing or a part was stored), `FileTooLarge` past the process's limit, `Corrupt` for
    /// a range outside.
    pub fn store(
        &self,
        offset: u64,
        length: usize,
        fill: impl FnMut(*mut u8, usize, usize),
    ) -> Result<()> {
        self.store_by_way_of(self.transit.as_ref(), offset, length, fill)
    }

    pub(super) fn store_by_way_of(
        &self,
        transit: Option<&Transit>,
        offset: u64,
        length: usize,
        mut fill: impl FnMut(*mut u8, usize, usize),
    ) -> Result<()> {
        self.check(offset, length)?;
        if let Some(mapping) = &self.mapping {
            fill(mapping.range(offset, length)?, 0, length);
            return mapping.write_back(offset, length);
        }
        self.kind.check_limit(offset + length as u64)?;
        self.settle(offset, length)?;
        let stored = self.noted(self.store_pieces(transit, offset, length, fill));
        // Even after a failure: what was read ahead of this range may be old.
        if let Some(transit) = &self.transit {
            transit.forget(&(offset..offset + length as u64));
        }
        stored
    }

    fn store_pieces(
        &self,
        transit: Option<&Transit>,
        offset: u64,
        length: usize,
        mut fill: impl FnMut(*mut u8, usize, usize),
    ) -> Result<()> {
        for (at, done, bytes) in pieces(offset, length) {
            let mut fill = |address| fill(address, done, bytes);
            match transit {
                Some(transit) if transit.stage(at, bytes, &self.putter(), &mut fill)? => continue,
                _ => {}
            }
            let buffer = self.staging.take()?;
            let address = in_buffer(&buffer, at);
            fill(address);
            let _turn = self.turn(at, bytes)?;
            self.put(address, at, bytes)?;
        }
        Ok(())
    }

    /// As `store`, for bytes that programs may store to through a mapping meanwhile. All of it goes
    /// through the page cache: a direct write cannot drop a page that becomes dirty under it, and
    /// the next flush would report that as an error. If the file itself is mapped, no transfer
    /// bypasses the cache anyway.
    pub fn store_mapped(
        &self,
        offset: u64,
        length: usize,
        mut fill: impl FnMut(*mut u8, usize, usize),
    ) -> Result<()> {
        if self.direct.is_none() {
            return self.store(offset, length, fill);
        }
        self.check(offset, length)?;
        self.kind.check_limit(offset + length as u64)?;
        self.settle(offset, length)?;
        for (at, done, bytes) in pieces(offset, length) {
            let buffer = self.staging.take()?;
            let address = in_buffer(&buffer, at);
            fill(address, done, bytes);
            // Page by page, so that the cache holds single pages.
            for (page, part) in pages(at, bytes) {
                // SAFETY: the part lies within the piece.
                unsafe { write_all(&self.ordinary, address.add(part.start), part.len(), page) }
                    .map_err(|errno| self.kind.failure(errno))?;
            }
        }
        Ok(())
    }

    /// Returns a turn that lets this thread write a piece. On a device nobody else writes to its
    /// pages as long as the turn lasts; other media need none. Errors: `Busy`.
    pub(super) fn turn(&self, at: u64, bytes: usize) -> Result<Option<Turn<'_>>> {
        let needed = self.transit.as_ref().filter(|_| self.kind.is_device());
        needed.map(|transit| transit.turn(&pages_of(at, bytes))).transpose()
    }

    /// Writes a piece that stands at `address`, which has the same offset in its page as `at`. In
    /// memory, the rest of the piece's first and last page may change.
    fn put(&self, address: *mut u8, at: u64, bytes: usize) -> SysResult<()> {
        match (&self.remote, &self.direct) {
            (Some(remote), _) => self.write_remote(remote, address, at, bytes),
            (None, Some(device)) if self.kind == MediumKind::Block => {
                self.put_pages(Pages::Device(device), address, at, bytes)
            }
            _ => self.put_parts(address, at, bytes),
        }
    }

    /// As `put`, in whole pages. The rest of the first and the last page is read from the device.
    pub(super) fn put_pages(
        &self,
        device: Pages<'_>,
        address: *mut u8,
        at: u64,
        bytes: usize,
    ) -> SysResult<()> {
        let pages = pages_of(at, bytes);
        let length = (pages.end - pages.start) as usize;
        let before = (at - pages.start) as usize;
        // SAFETY: `address` is as far into a page as `at`.
        let first = unsafe { address.sub(before) };
        let (piece, last) = (before..before + bytes, length.saturating_sub(PAGE));
        for page in core::iter::once(0).chain((last > 0).then_some(last)) {
            let within = |at: usize| at.clamp(page, page + PAGE);
            let margins = [page..within(piece.start), within(piece.end)..page + PAGE];
            if margins.iter().all(Range::is_empty) {
                continue;
            }
            let buffer = self.staging.take()?;
            // SAFETY: the buffer is longer than a page.
            unsafe { device.read(buffer.address(), PAGE, pages.start + page as u64)? };
            for margin in margins {
                // SAFETY: the margin lies in that page and outside the piece; the buffer is a
                // separate one.
                unsafe {
                    let known = buffer.address().add(margin.start - page);
                    core::ptr::copy_nonoverlapping(known, first.add(margin.start), margin.len());
                }
            }
        }
        // SAFETY: the pages of the piece are the caller's.
        unsafe { device.write(first, length, pages.start) }
            .map_err(|errno| self.kind.failure(errno))
    }

    fn put_parts(&self, address: *const u8, at: u64, bytes: usize) -> SysResult<()> {
        for (part, file) in self.parts(at, bytes) {
            // SAFETY: the part lies within the piece.
            let (address, at) = (unsafe { address.add(part.start) }, at + part.start as u64);
            // SAFETY: as above.
            unsafe { write_all(file, address, part.len(), at) }
                .map_err(|errno| self.kind.failure(errno))?;
        }
        Ok(())
    }

    /// Reads `length` bytes from `offset` on and passes them to `take`, piece after piece, with the
    /// arguments of `fill` in `store`. Errors: as `store`.
    pub fn load(
        &self,
        offset: u64,
        length: usize,
        take: impl FnMut(*const u8, usize, usize),
    ) -> Result<()> {
        self.noted(self.load_pieces(offset, length, take))
    }

    fn load_pieces(
        &self,
        offset: u64,
        length: usize,
        mut take: impl FnMut(*const u8, usize, usize),
    ) -> Result<()> {
        self.check(offset, length)?;
        if let Some(mapping) = &self.mapping {
            take(mapping.range(offset, length)?, 0, length);
            return Ok(());
        }
        self.settle(offset, length)?;
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            done += match self.read_ahead(at, length - done, &mut |address, bytes| {
                take(address, done, bytes);
            }) {
                0 => {
                    let bytes = piece_at(at, length - done);
                    let buffer = self.staging.take()?;
                    let address = in_buffer(&buffer, at);
                    self.get(address, at, bytes)?;
                    take(address, done, bytes);
                    bytes
                }
                bytes => bytes,
            };
        }
        Ok(())
    }

    /// Runs `act`, which can be done later as well, unless the medium is on another machine that
    /// does not answer: see `SharedRemote`.
    pub fn unless_unreachable<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.remote {
            Some(remote) => remote.unless_unreachable(act).unwrap_or(Err(Error::Io)),
            None => act(),
        }
    }

    /// Returns the time for which another machine has not answered a call of this process.
    pub fn silent_for(&self) -> Option<Duration> {
        self.remote.as_ref().and_then(SharedRemote::silent_for)
    }

    /// Whether another machine has said that it does not have this tier any more.
    pub fn is_gone(&self) -> bool {
        self.remote.as_ref().is_some_and(SharedRemote::is_gone)
    }

    /// As `load`, for a caller that checks the bytes against a checksum, because earlier writes may
    /// be lost. Reads only what the target has, and nothing that is in transit.
    pub fn load_unverified(
        &self,
        offset: u64,
        length: usize,
        mut take: impl FnMut(*const u8, usize, usize),
    ) -> Result<()> {
        self.check(offset, length)?;
        let remote = self.remote.as_ref().ok_or(Error::Io)?;
        for (at, done, bytes) in pieces(offset, length) {
            let buffer = self.staging.take()?;
            let pages = pages_of(at, bytes);
            let whole = (pages.end - pages.start) as usize;
            // SAFETY: a buffer has room for the pages of a piece, and is ours alone.
            unsafe { remote.read_unverified(buffer.address(), whole, pages.start) }
                .map_err(error_of)?;
            take(in_buffer(&buffer, at), done, bytes);
        }
        Ok(())
    }

    /// Whether this process has found out that bytes stored on another machine, and not yet
    /// durable, may be lost.
    pub fn may_be_stale(&self) -> bool {
        self.remote.as_ref().is_some_and(SharedRemote::may_be_stale)
    }

    /// Returns the result of an access. If it failed and earlier stores may be lost, first tells
    /// every process of the store; then nothing becomes durable any more.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if let (Err(_), Some(transit), true) = (&result, &self.transit, self.may_be_stale()) {
            transit.lose();
        }
        result
    }

    /// Hands out what was read ahead at `at`, and requests a read-ahead of what follows, up
    /// to `length` bytes. Returns the number of bytes handed out.
    fn read_ahead(&self, at: u64, length: usize, take: &mut dyn FnMut(*const u8, usize)) -> usize {
        let Some(transit) = &self.transit else { return 0 };
        if length > STAGING_BYTES {
            transit.want(at..at + length.min(AHEAD_BYTES) as u64);
        }
        transit.hand_out(at, length, &self.getter(), take)
    }

    /// Requests a read-ahead of a range. A range outside the tier is ignored.
    pub fn want(&self, offset: u64, length: usize) {
        if let (Some(transit), Ok(())) = (&self.transit, self.check(offset, length)) {
            transit.want(offset..offset + length as u64);
        }
    }

    /// Whether `want` has any effect.
    pub fn reads_ahead(&self) -> bool {
        self.transit.is_some()
    }

    /// Reads a piece to `address`, which has the same offset in its page as `at`. In memory, the
    /// rest of the piece's first and last page may change.
    fn get(&self, address: *mut u8, at: u64, bytes: usize) -> SysResult<()> {
        if let Some(remote) = &self.remote {
            return self.read_remote(remote, address, at, bytes);
        }
        for (part, file) in self.parts(at, bytes) {
            // SAFETY: the part lies within the piece.
            let (address, at) = (unsafe { address.add(part.start) }, at + part.start as u64);
            // SAFETY: as above.
            unsafe { read_all(file, address, part.len(), at)? };
        }
        Ok(())
    }

    /// Writes what was staged and reads what is wanted ahead, until `stop` is set. Returns at once
    /// without a transit area.
    pub fn serve(&self, stop: &AtomicBool) {
        if let Some(remote) = &self.remote {
            // A server takes its connection early, before other processes have taken all. If none
            // can be made at this point, it is made when it is needed.
            let _ = remote.reach();
        }
        if let Some(transit) = &self.transit {
            transit.serve(&self.putter(), &self.getter(), stop);
        }
    }

    /// Number of threads for `serve`. A disk that gets the next transfer before it has done the
    /// last is never idle; more than that makes some disks slower (docs/BENCHMARKS.md). A
    /// connection serves one thread at a time.
    pub fn servers(&self) -> usize {
        match (&self.transit, &self.remote) {
            (None, _) => 0,
            (Some(_), Some(_)) => 1,
            (Some(_), None) => 2,
        }
    }

    /// Whether some bytes could not be written behind, or may be lost on another machine.
    pub fn has_lost_writes(&self) -> bool {
        self.transit.as_ref().is_some_and(Transit::has_lost_writes) || self.may_be_stale()
    }

    /// Makes the file hold every write, the earlier ones and each later one when it returns.
    /// Errors: as `Media::flush`.
    pub fn settle_for_mapping(&self) -> Result<()> {
        match &self.transit {
            Some(transit) => transit.settle_for_mapping(&self.putter()),
            None => Ok(()),
        }
    }

    /// Has the kernel make durable everything stored in the file, whoever stored it. Errors: `Io`.
    pub(crate) fn flush_by_kernel(&self) -> Result<()> {
        #[cfg(test)]
        super::tests::FLUSHES.set(super::tests::FLUSHES.get() + 1);
        if let Some(remote) = &self.remote {
            return self.noted(remote.flush().map_err(error_of));
        }
        loop {
            match sys::fdatasync(self.ordinary.raw()) {
                Err(Errno(libc::EINTR)) => {}
                result => return Ok(result?),
            }
        }
    }

    fn settle(&self, offset: u64, length: usize) -> Result<()> {
        match &self.transit {
            Some(transit) => transit.settle(offset..offset + length as u64, &self.putter()),
            None => Ok(()),
        }
    }

    /// `put` for ranges that another process has stored.
    pub(super) fn putter(&self) -> impl Fn(*mut u8, u64, usize) -> Result<()> {
        |address, at, bytes| {
            self.check(at, bytes)?;
            self.kind.check_limit(at + bytes as u64)?;
            let _turn = self.turn(at, bytes)?;
            self.put(address, at, bytes).map_err(|errno| match errno.0 {
                // The trouble is this process's, not the file's.
                libc::EBADF | libc::ENOMEM | libc::EPERM => Error::Busy,
                _ => errno.into(),
            })
        }
    }

    /// `get` for ranges that another process will load.
    fn getter(&self) -> impl Fn(*mut u8, u64, usize) -> Result<()> {
        |address, at, bytes| {
            self.check(at, bytes)?;
            self.settle(at, bytes)?;
            Ok(self.get(address, at, bytes)?)
        }
    }

    pub(super) fn check(&self, offset: u64, length: usize) -> Result<()> {
        match offset.checked_add(length as u64) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Corrupt { what: "range outside its tier" }),
        }
    }

    /// Returns the non-empty parts of `bytes` at `at` and the descriptor that each goes through: a
    /// part of a page, whole pages, a part of a page.
    fn parts(
        &self,
        at: u64,
        bytes: usize,
    ) -> impl Iterator<Item = (core::ops::Range<usize>, &Descriptor)> {
        let direct = self.direct.as_ref().unwrap_or(&self.ordinary);
        let head = (PAGE - at as usize % PAGE) % PAGE;
        let body = head.min(bytes);
        let tail = body + (bytes - body) / PAGE * PAGE;
        [(0..body, &self.ordinary), (body..tail, direct), (tail..bytes, &self.ordinary)]
            .into_iter()
            .filter(|(part, _)| !part.is_empty())
    }
}

/// Returns the pieces of a range, each of which fits into a buffer: offset, number of bytes before
/// it, and length.
pub(super) fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let (at, before) = (offset + done as u64, done);
        let bytes = piece_at(at, length - done);
        done += bytes;
        (bytes > 0).then_some((at, before, bytes))
    })
}

/// Returns the range of pages in which `bytes` at `at` lie.
pub(super) fn pages_of(at: u64, bytes: usize) -> Range<u64> {
    let page = PAGE as u64;
    at / page * page..(at + bytes as u64).next_multiple_of(page)
}

/// Returns the parts of a range that lie in one page each: offset in the file, and place in the
/// range.
fn pages(at: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let (start, place) = (done, at + done as u64);
        done = bytes.min(start + PAGE - place as usize % PAGE);
        (start < done).then_some((place, start..done))
    })
}

/// Number of bytes, up to `length` at `at`, that fit into a buffer.
fn piece_at(at: u64, length: usize) -> usize {
    (STAGING_BYTES - at as usize % PAGE).min(length)
}

/// Returns the address in the buffer of the byte at `at`, which has the same offset in its page as
/// in the file.
pub(super) fn in_buffer(buffer: &Buffer<'_>, at: u64) -> *mut u8 {
    // SAFETY: the offset is less than a page, and a buffer is longer.
    unsafe { buffer.address().add(at as usize % PAGE) }
}
