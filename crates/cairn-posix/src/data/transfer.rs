//! Moves bytes between the application's memory and the tiers, as a plan of the core says.
//!
//! Invariant: before a plan is committed, every byte of its fresh blocks is written, except those
//! that the plan leaves to the file's tail. The stored checksum covers the bytes that were stored.
//!
//! Does not take the lock and does not allocate.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Range;

use cairn_core::{
    Caller, HandleId, Position, ReadPlan, SMALL_BYTES_MAX, WriteKind, WritePiece, WritePlan,
};
use cairn_device::Device;
use cairn_device::device::copy;
use cairn_platform::checksum;
use cairn_platform::copy::{copy_crc, prefetch};

use crate::error::{Errno, Result};
use crate::kernel::address;
use crate::mount::Mount;

/// Longest list of buffers that the kernel accepts (`IOV_MAX`).
const BUFFERS_MAX: usize = 1024;

/// The application's memory for one call: a list of buffers, consumed front to back.
#[derive(Clone, Copy)]
pub struct Buffers<'a> {
    list: *const libc::iovec,
    count: usize,
    /// Bytes of the first buffer already consumed.
    consumed: usize,
    lifetime: PhantomData<&'a libc::iovec>,
}

impl<'a> Buffers<'a> {
    /// Returns the buffers of `list`. Errors: `EINVAL` and `EFAULT` as `readv(2)`.
    ///
    /// # Safety
    /// `list` points to `count` initialised entries that stay unchanged for 'a. Each describes
    /// memory of the application that may be accessed as the call that uses it implies.
    pub unsafe fn new(list: *const libc::iovec, count: i32) -> Result<Buffers<'a>> {
        let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
        if count > BUFFERS_MAX {
            return Err(Errno(libc::EINVAL));
        }
        address::check_readable(list, count * size_of::<libc::iovec>())?;
        let buffers = Buffers { list, count, consumed: 0, lifetime: PhantomData };
        for index in 0..count {
            if !address::is_passable(buffers.entry(index).iov_base) {
                return Err(Errno(libc::EFAULT));
            }
        }
        let total = (0..count).try_fold(0_isize, |sum, index| {
            sum.checked_add(isize::try_from(buffers.entry(index).iov_len).ok()?)
        });
        total.map(|_| buffers).ok_or(Errno(libc::EINVAL))
    }

    /// Returns a list of one buffer.
    ///
    /// # Safety
    /// The entry describes memory of the application that may be accessed as the call that uses it
    /// implies.
    pub unsafe fn one(entry: &'a libc::iovec) -> Buffers<'a> {
        Buffers { list: entry, count: 1, consumed: 0, lifetime: PhantomData }
    }

    fn entry(&self, index: usize) -> libc::iovec {
        // SAFETY: the constructor was promised `count` entries, and callers keep `index` below it.
        unsafe { *self.list.add(index) }
    }

    /// Number of bytes not consumed yet.
    pub fn remaining(&self) -> usize {
        let total = (0..self.count)
            .fold(0, |sum: usize, index| sum.saturating_add(self.entry(index).iov_len));
        total - self.consumed
    }

    /// Prefetches the first bytes into the cache while their transfer is being planned.
    pub fn prefetch(&self) {
        if self.count > 0 {
            let first = self.entry(0);
            prefetch(first.iov_base.cast(), first.iov_len);
        }
    }

    /// Returns how many of the next `length` bytes the process may read.
    #[inline]
    pub fn readable(&self, length: usize) -> usize {
        self.reachable(length, |start, bytes| address::readable(start, bytes))
    }

    /// Returns how many of the next `length` bytes the process may write. The check may change
    /// them, so they must be about to be overwritten.
    #[inline]
    pub fn overwritable(&self, length: usize) -> usize {
        self.reachable(length, address::overwritable)
    }

    #[inline]
    fn reachable(&self, length: usize, count: impl Fn(*mut u8, usize) -> usize) -> usize {
        if self.count > 0 {
            let first = self.entry(0);
            if first.iov_len - self.consumed >= length {
                return count(first.iov_base.cast::<u8>().wrapping_add(self.consumed), length);
            }
        }
        self.reachable_in_list(length, count)
    }

    fn reachable_in_list(&self, length: usize, count: impl Fn(*mut u8, usize) -> usize) -> usize {
        let mut good = 0;
        // Ends with the first buffer that is not reachable as a whole.
        let _ = { *self }.for_each(length, |start, bytes| {
            let found = count(start, bytes);
            good += found;
            if found == bytes { Ok(()) } else { Err(Errno(libc::EFAULT)) }
        });
        good
    }

    /// Number of contiguous bytes that come next.
    fn at_hand(&self) -> usize {
        { *self }.take(usize::MAX).1
    }

    /// Consumes up to `most` contiguous bytes; a length of 0 means that none are left.
    fn take(&mut self, most: usize) -> (*mut u8, usize) {
        while self.count > 0 {
            let entry = self.entry(0);
            let length = (entry.iov_len - self.consumed).min(most);
            if length > 0 {
                let start = entry.iov_base.cast::<u8>().wrapping_add(self.consumed);
                self.consumed += length;
                return (start, length);
            }
            self.list = self.list.wrapping_add(1);
            self.count -= 1;
            self.consumed = 0;
        }
        (core::ptr::null_mut(), 0)
    }

    /// Consumes `length` bytes piece by piece. Errors: `EFAULT` if there are fewer.
    fn for_each(
        &mut self,
        length: usize,
        mut act: impl FnMut(*mut u8, usize) -> Result<()>,
    ) -> Result<()> {
        let mut left = length;
        while left > 0 {
            let (start, taken) = self.take(left);
            if taken == 0 {
                return Err(Errno(libc::EFAULT));
            }
            act(start, taken)?;
            left -= taken;
        }
        Ok(())
    }
}

/// Carries out a read plan.
pub fn read(mount: &Mount, plan: &ReadPlan, target: &mut Buffers) -> Result<()> {
    for run in plan.runs() {
        let Some((tier, offset)) = run.source else {
            target.for_each(run.bytes as usize, |start, length| {
                address::check_overwritable(start, length)?;
                // SAFETY: the application passed the buffer to be written by this call.
                unsafe { start.write_bytes(0, length) };
                Ok(())
            })?;
            continue;
        };
        let device = mount.tier(tier)?;
        let mut at = offset;
        target.for_each(run.bytes as usize, |start, length| {
            // SAFETY: the application passed the buffer to be written by this call.
            unsafe { device.read(at, start, length) }?;
            at += length as u64;
            Ok(())
        })?;
    }
    Ok(())
}

/// Carries out a write plan. Returns true if bytes of a block were overwritten, so that its
/// checksum may be void.
pub fn write(mount: &Mount, plan: &mut WritePlan, source: &mut Buffers) -> Result<bool> {
    let block_bytes = mount.fs().geometry().hugeblock_bytes;
    let mut overwrote = false;
    let mut filled = None;
    let mut pieces = plan.pieces().peekable();
    while let Some(piece) = pieces.next() {
        overwrote |= piece.kind == WriteKind::Overwrite;
        let most = source.at_hand() / block_bytes as usize;
        if most > 1 && is_whole(&piece, block_bytes) && !plan.is_stored_to() {
            let mut count = 1;
            let mut follows = |count| {
                let next = pieces.next_if(|next| continues(&piece, count, next, block_bytes));
                next.is_some()
            };
            while (count as usize) < most && follows(count) {
                count += 1;
            }
            write_blocks(mount, &piece, count, source)?;
            continue;
        }
        let device = mount.tier(piece.tier)?;
        let before = copy_before(mount, device, &piece)?;
        let raw = write_piece(device, &piece, block_bytes, plan.is_stored_to(), source)?;
        let raw = checksum::join(before, raw, u64::from(piece.length));
        let raw = copy_after(mount, device, &piece, raw)?;
        let trailing = u64::from(block_bytes - piece.start - piece.length - piece.copy_after);
        match piece.kind {
            WriteKind::Fill => filled = Some((piece, checksum::shift(raw, trailing))),
            WriteKind::Overwrite if piece.length < block_bytes => {}
            WriteKind::Fresh | WriteKind::Overwrite => {
                let sum = checksum::of_sparse_block(raw, trailing, u64::from(block_bytes));
                mount.fs().store_checksum(piece.tier, piece.block, sum)?;
            }
        }
    }
    drop(pieces);
    if let Some((piece, term)) = filled {
        plan.fold(&piece, term);
    }
    Ok(overwrote)
}

/// Whether a piece replaces the content of a whole block.
fn is_whole(piece: &WritePiece, block_bytes: u32) -> bool {
    piece.length == block_bytes && piece.kind != WriteKind::Fill
}

/// Whether `next` is the block after `count` whole ones that begin with `first`.
fn continues(first: &WritePiece, count: u32, next: &WritePiece, block_bytes: u32) -> bool {
    is_whole(next, block_bytes)
        && (next.tier, next.block, next.kind) == (first.tier, first.block + count, first.kind)
}

/// Writes all of `source`, at most `SMALL_BYTES_MAX`, at the cursor under one lock. Returns false,
/// with nothing done, if the write does not simply continue the file.
pub fn write_small(
    mount: &Mount,
    caller: &Caller,
    handle: HandleId,
    source: &Buffers,
    length: usize,
) -> Result<bool> {
    let mut room = [const { MaybeUninit::<u8>::uninit() }; SMALL_BYTES_MAX];
    let mut copied = 0;
    let mut raw = 0;
    { *source }.for_each(length, |start, bytes| {
        // SAFETY: `for_each` hands out `length` bytes in all, which is at most the size of `room`.
        // The application passed the buffer to be read by this call.
        let sum = unsafe { copy_crc(room.as_mut_ptr().add(copied).cast(), start, bytes) };
        let sum = sum.ok_or(Errno(libc::EFAULT))?;
        raw = checksum::join(raw, sum, bytes as u64);
        copied += bytes;
        Ok(())
    })?;
    // SAFETY: the first `copied` bytes were just written.
    let bytes = unsafe { core::slice::from_raw_parts(room.as_ptr().cast::<u8>(), copied) };
    let block_bytes = u64::from(mount.fs().geometry().hugeblock_bytes);
    let written =
        mount.fs().write_small(caller, handle, Position::Cursor, copied as u32, |piece| {
            let offset = u64::from(piece.block) * block_bytes + u64::from(piece.start);
            let trailing = block_bytes - u64::from(piece.start) - u64::from(piece.length);
            let stored = mount.tier(piece.tier).ok()?.write_warm(offset, bytes);
            stored.then(|| checksum::shift(raw, trailing))
        })?;
    Ok(written.is_some())
}

/// Moves the bytes of a write under a lease; returns their checksum term.
pub fn write_leased(mount: &Mount, piece: &WritePiece, mut source: Buffers) -> Result<u32> {
    let block_bytes = mount.fs().geometry().hugeblock_bytes;
    let device = mount.tier(piece.tier)?;
    let raw = match write_piece(device, piece, block_bytes, false, &mut source) {
        Ok(raw) => raw,
        Err(errno) => return zero_again(device, piece, block_bytes).and(Err(errno)),
    };
    Ok(checksum::shift(raw, u64::from(block_bytes - piece.start - piece.length)))
}

/// Zeroes what was stored under a lease before it failed: the next write there relies on zeros.
#[cold]
fn zero_again(device: &dyn Device, piece: &WritePiece, block_bytes: u32) -> Result<()> {
    let start = u64::from(piece.block) * u64::from(block_bytes) + u64::from(piece.start);
    Ok(device.zero(start, piece.length as usize)?)
}

/// Writes all of `source`, at most `SMALL_BYTES_MAX`, at an offset under one lock. Returns false,
/// with nothing done, unless the bytes are in a block that was already overwritten since it was
/// sealed.
pub fn overwrite_small(
    mount: &Mount,
    caller: &Caller,
    handle: HandleId,
    offset: u64,
    source: &Buffers,
    length: usize,
) -> Result<bool> {
    let mut room = [const { MaybeUninit::<u8>::uninit() }; SMALL_BYTES_MAX];
    let mut copied = 0;
    { *source }.for_each(length, |start, bytes| {
        // SAFETY: `for_each` hands out `length` bytes in all, which is at most the size of `room`.
        // The application passed the buffer to be read by this call.
        unsafe { address::fetch(room.as_mut_ptr().add(copied).cast(), start, bytes) }?;
        copied += bytes;
        Ok(())
    })?;
    // SAFETY: the first `copied` bytes were just written.
    let bytes = unsafe { core::slice::from_raw_parts(room.as_ptr().cast::<u8>(), copied) };
    let block_bytes = u64::from(mount.fs().geometry().hugeblock_bytes);
    let store = |piece: &WritePiece| {
        let at = u64::from(piece.block) * block_bytes + u64::from(piece.start);
        mount.tier(piece.tier).is_ok_and(|device| device.write_warm(at, bytes))
    };
    Ok(mount.fs().overwrite_small(caller, handle, offset, copied as u32, store)?)
}

/// Writes `count` whole blocks, beginning with that of `first`, whose bytes are contiguous in one
/// buffer.
fn write_blocks(mount: &Mount, first: &WritePiece, count: u32, source: &mut Buffers) -> Result<()> {
    let block_bytes = mount.fs().geometry().hugeblock_bytes;
    let (start, _) = source.take(count as usize * block_bytes as usize);
    let offset = u64::from(first.block) * u64::from(block_bytes);
    let mut block = first.block;
    let mut store = |raw| {
        let sum = checksum::of_sparse_block(raw, 0, u64::from(block_bytes));
        mount.fs().store_checksum(first.tier, block, sum)?;
        block += 1;
        Ok(())
    };
    let device = mount.tier(first.tier)?;
    // SAFETY: the application passed the buffer to be read by this call, and at least so many
    // contiguous bytes are left in it.
    let written = unsafe {
        device.write_blocks(offset, start, block_bytes as usize, count as usize, &mut store)
    };
    Ok(written?)
}

/// Copies the bytes before a piece from the block that it replaces, and returns their raw checksum.
#[inline]
fn copy_before(mount: &Mount, device: &dyn Device, piece: &WritePiece) -> Result<u32> {
    match piece.copy_from {
        None => Ok(0),
        Some(source) => copy_part(mount, device, piece, source, 0..piece.start),
    }
}

/// Copies the bytes after a piece in the same way. `raw` is the checksum of everything before them.
#[inline]
fn copy_after(mount: &Mount, device: &dyn Device, piece: &WritePiece, raw: u32) -> Result<u32> {
    let Some(source) = piece.copy_from else { return Ok(raw) };
    let end = piece.start + piece.length;
    let after = copy_part(mount, device, piece, source, end..end + piece.copy_after)?;
    Ok(checksum::join(raw, after, u64::from(piece.copy_after)))
}

#[cold]
fn copy_part(
    mount: &Mount,
    device: &dyn Device,
    piece: &WritePiece,
    (tier, block): (u8, u32),
    bytes: Range<u32>,
) -> Result<u32> {
    let block_bytes = u64::from(mount.fs().geometry().hugeblock_bytes);
    let place = |block: u32| u64::from(block) * block_bytes + u64::from(bytes.start);
    let source = (mount.tier(tier)?, place(block));
    Ok(copy(source, (device, place(piece.block)), bytes.len())?)
}

/// Writes one piece and returns the raw checksum of its bytes.
fn write_piece(
    device: &dyn Device,
    piece: &WritePiece,
    block_bytes: u32,
    is_mapped: bool,
    source: &mut Buffers,
) -> Result<u32> {
    let block_offset = u64::from(piece.block) * u64::from(block_bytes);
    let end = piece.start + piece.length;
    if piece.zero_before > 0 {
        device.zero(block_offset, piece.zero_before as usize)?;
    }
    if piece.zero_after > 0 {
        let behind = u64::from(end + piece.copy_after);
        device.zero(block_offset + behind, piece.zero_after as usize)?;
    }
    let mut at = block_offset + u64::from(piece.start);
    let mut raw = 0;
    source.for_each(piece.length as usize, |start, length| {
        // SAFETY: the application passed the buffer to be read by this call.
        let sum = unsafe {
            match is_mapped {
                true => device.write_mapped(at, start, length),
                false => device.write(at, start, length),
            }
        }?;
        raw = checksum::join(raw, sum, length as u64);
        at += length as u64;
        Ok(())
    })?;
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_consumed_in_order_and_empty_ones_skipped() {
        let mut bytes = *b"abcdef";
        let base = bytes.as_mut_ptr();
        let entry =
            |at: usize, iov_len| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len };
        let list = [entry(0, 2), entry(0, 0), entry(2, 3)];
        // SAFETY: the list describes `bytes`, which outlives it.
        let mut buffers = unsafe { Buffers::new(list.as_ptr(), 3) }.unwrap();
        assert_eq!(buffers.remaining(), 5);
        let mut seen = Vec::new();
        buffers
            .for_each(4, |start, length| {
                seen.push((start as usize - base as usize, length));
                Ok(())
            })
            .unwrap();
        assert_eq!(seen, [(0, 2), (2, 2)]);
        assert_eq!(buffers.remaining(), 1);
        assert_eq!(buffers.for_each(2, |_, _| Ok(())), Err(Errno(libc::EFAULT)));
    }

    #[test]
    fn lists_that_the_kernel_refuses_are_refused() {
        let entry = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: usize::MAX };
        // SAFETY: the list holds one entry; nothing is accessed.
        let refused =
            unsafe { [Buffers::new(&entry, 1).is_err(), Buffers::new(&entry, -1).is_err()] };
        assert_eq!(refused, [true, true]);
    }
}
