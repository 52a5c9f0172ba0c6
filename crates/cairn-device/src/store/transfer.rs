//! Executes write plans of the core: moves bytes from a caller's memory to the tiers.
//!
//! Invariant: before a plan is committed, every byte of its fresh blocks is written, except those
//! that the plan leaves to the file's tail. The stored checksum covers the bytes that were stored.
//!
//! Does not take the lock, does not allocate, and does not commit.

use core::ops::Range;

use cairn_core::{Error, Result, WriteKind, WritePiece, WritePlan};
use cairn_platform::checksum;

use crate::device::{self, Device};
use crate::store::namespace::Namespace;

/// Memory that a write takes its bytes from, front to back.
///
/// # Safety
/// `take` returns memory that is readable for as long as the source exists, or an address of the
/// application at which a failed read is forgiven (`cairn_platform::address`). It is no part of a
/// device's mapping.
pub unsafe trait Source {
    /// Consumes up to `most` contiguous bytes; a length of 0 means that none are left.
    fn take(&mut self, most: usize) -> (*const u8, usize);

    /// Number of contiguous bytes that come next.
    fn at_hand(&self) -> usize;

    /// Consumes `length` bytes piece by piece. Errors: `Fault` if there are fewer.
    fn for_each(
        &mut self,
        length: usize,
        mut act: impl FnMut(*const u8, usize) -> Result<()>,
    ) -> Result<()> {
        let mut left = length;
        while left > 0 {
            let (start, taken) = self.take(left);
            if taken == 0 {
                return Err(Error::Fault);
            }
            act(start, taken)?;
            left -= taken;
        }
        Ok(())
    }
}

// SAFETY: a slice is readable memory of this process.
unsafe impl Source for &[u8] {
    fn take(&mut self, most: usize) -> (*const u8, usize) {
        let (taken, rest) = self.split_at(most.min(self.len()));
        *self = rest;
        (taken.as_ptr(), taken.len())
    }

    fn at_hand(&self) -> usize {
        self.len()
    }
}

impl Namespace {
    /// Carries out `plan` with the next bytes of `source`. Returns true if bytes of a block were
    /// overwritten, so that its checksum may be void. Errors: those of the tiers; `Fault` for
    /// unreadable memory. After an error the plan must be aborted.
    pub fn store(&self, plan: &mut WritePlan, source: &mut impl Source) -> Result<bool> {
        let block_bytes = self.fs.geometry().hugeblock_bytes;
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
                self.store_blocks(&piece, count, source)?;
                continue;
            }
            let device = self.tier(piece.tier)?;
            let before = self.copy_before(device, &piece)?;
            let raw = store_piece(device, &piece, block_bytes, plan.is_stored_to(), source)?;
            let raw = checksum::join(before, raw, u64::from(piece.length));
            let raw = self.copy_after(device, &piece, raw)?;
            let trailing = u64::from(block_bytes - piece.start - piece.length - piece.copy_after);
            match piece.kind {
                WriteKind::Fill => filled = Some((piece, checksum::shift(raw, trailing))),
                WriteKind::Overwrite if piece.length < block_bytes => {}
                WriteKind::Fresh | WriteKind::Overwrite => {
                    let sum = checksum::of_sparse_block(raw, trailing, u64::from(block_bytes));
                    self.fs.store_checksum(piece.tier, piece.block, sum)?;
                }
            }
        }
        drop(pieces);
        if let Some((piece, term)) = filled {
            plan.fold(&piece, term);
        }
        Ok(overwrote)
    }

    /// Stores the bytes of a write under a lease. Returns their checksum term.
    #[inline]
    pub fn store_leased(&self, piece: &WritePiece, source: &mut impl Source) -> Result<u32> {
        let block_bytes = self.fs.geometry().hugeblock_bytes;
        let device = self.tier(piece.tier)?;
        let raw = match store_piece(device, piece, block_bytes, false, source) {
            Ok(raw) => raw,
            Err(error) => return zero_again(device, piece, block_bytes).and(Err(error)),
        };
        Ok(checksum::shift(raw, u64::from(block_bytes - piece.start - piece.length)))
    }

    /// Stores `count` whole blocks, beginning with that of `first`. Their bytes are contiguous in
    /// the source.
    fn store_blocks(&self, first: &WritePiece, count: u32, source: &mut impl Source) -> Result<()> {
        let block_bytes = self.fs.geometry().hugeblock_bytes;
        let (start, _) = source.take(count as usize * block_bytes as usize);
        let offset = u64::from(first.block) * u64::from(block_bytes);
        let mut block = first.block;
        let mut store = |raw| {
            let sum = checksum::of_sparse_block(raw, 0, u64::from(block_bytes));
            self.fs.store_checksum(first.tier, block, sum)?;
            block += 1;
            Ok(())
        };
        let device = self.tier(first.tier)?;
        // SAFETY: the source vouches for its memory, and at least so many contiguous bytes were
        // left in it.
        unsafe {
            device.write_blocks(offset, start, block_bytes as usize, count as usize, &mut store)
        }
    }

    /// Copies the bytes before a piece from the block that it replaces, and returns their raw
    /// checksum.
    #[inline]
    fn copy_before(&self, device: &dyn Device, piece: &WritePiece) -> Result<u32> {
        match piece.copy_from {
            None => Ok(0),
            Some(source) => self.copy_part(device, piece, source, 0..piece.start),
        }
    }

    /// Copies the bytes after a piece in the same way. `raw` is the checksum of everything before
    /// them.
    #[inline]
    fn copy_after(&self, device: &dyn Device, piece: &WritePiece, raw: u32) -> Result<u32> {
        let Some(source) = piece.copy_from else { return Ok(raw) };
        let end = piece.start + piece.length;
        let after = self.copy_part(device, piece, source, end..end + piece.copy_after)?;
        Ok(checksum::join(raw, after, u64::from(piece.copy_after)))
    }

    #[cold]
    fn copy_part(
        &self,
        device: &dyn Device,
        piece: &WritePiece,
        (tier, block): (u8, u32),
        bytes: Range<u32>,
    ) -> Result<u32> {
        let block_bytes = u64::from(self.fs.geometry().hugeblock_bytes);
        let place = |block: u32| u64::from(block) * block_bytes + u64::from(bytes.start);
        device::copy((self.tier(tier)?, place(block)), (device, place(piece.block)), bytes.len())
    }
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

/// Stores one piece, and zeros around it. Returns the raw checksum of its bytes.
#[inline]
fn store_piece(
    device: &dyn Device,
    piece: &WritePiece,
    block_bytes: u32,
    is_mapped: bool,
    source: &mut impl Source,
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
        // SAFETY: the source vouches for its memory.
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

/// Zeroes what was stored under a lease before it failed: the next write there relies on zeros.
#[cold]
fn zero_again(device: &dyn Device, piece: &WritePiece, block_bytes: u32) -> Result<()> {
    let start = u64::from(piece.block) * u64::from(block_bytes) + u64::from(piece.start);
    device.zero(start, piece.length as usize)
}
