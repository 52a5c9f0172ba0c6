//! The application's memory in a call, and what moves between it and the tiers: reads as a plan
//! says, and small writes under one lock. `Namespace::store` executes plans of writes.
//!
//! Invariant: an address of the application that cannot be accessed is `EFAULT`, never a signal.
//!
//! Does not take the lock and does not allocate.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use cairn_core::{Caller, HandleId, Position, ReadPlan, SMALL_BYTES_MAX, WritePiece};
use cairn_device::store::transfer::Source;
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
            if !address::passes_range_check(buffers.entry(index).iov_base) {
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

// SAFETY: the constructors were promised memory of the application, whose faults are forgiven.
unsafe impl Source for Buffers<'_> {
    #[inline]
    fn take(&mut self, most: usize) -> (*const u8, usize) {
        let (start, length) = Buffers::take(self, most);
        (start, length)
    }

    #[inline]
    fn at_hand(&self) -> usize {
        Buffers::take(&mut { *self }, usize::MAX).1
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
