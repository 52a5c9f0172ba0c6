//! Interface of a tier. `RamDevice` and `FileTier` implement it.
//!
//! Invariant: an implementation checks every range against its own size before it touches anything,
//! and never turns a failure into success.
//!
//! Does not allocate blocks and does not remember checksums; the core does both.

use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::time::Duration;

use cairn_core::Result;
use cairn_platform::checksum;

/// Location at which the bytes of a tier can be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mappable {
    /// The file, open for reading and writing, still owned by the device.
    pub descriptor: i32,
    /// Offset of the tier's first byte in that file.
    pub offset: u64,
    /// Whether writes go through the same memory as the mapping. If not, a mapping must not be read
    /// ahead (`MADV_RANDOM`, see `media_file`), and nothing is written behind from the first
    /// mapping on.
    pub in_memory: bool,
    /// Whether the file holds copies of the ranges that were passed to `show`, for as long as
    /// anybody may have them mapped. Stores to a copy reach the tier by `write_back`.
    pub copies: bool,
}

/// One tier of a namespace, addressed by bytes from its start.
///
/// Concurrent calls on different ranges are independent. If ranges overlap, each byte is that of
/// one of the calls. The core's plans keep writers of one block apart.
pub trait Device: Send + Sync {
    /// Size of the tier in bytes.
    fn bytes(&self) -> u64;

    /// Stores bytes and returns their raw checksum (`checksum::raw`).
    /// Errors: `NoSpace` (nothing or a part was stored), `Fault`, `Corrupt` for a range outside.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes, which are not part of this device's mapping.
    unsafe fn write(&self, offset: u64, source: *const u8, length: usize) -> Result<u32>;

    /// Stores consecutive blocks of `block_bytes` and passes the raw checksum of each to `take`, in
    /// order. Errors: as `write`.
    ///
    /// # Safety
    /// As `write`, for `count` blocks.
    unsafe fn write_blocks(
        &self,
        offset: u64,
        source: *const u8,
        block_bytes: usize,
        count: usize,
        take: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        for at in (0..count).map(|index| index * block_bytes) {
            // SAFETY: the block lies inside what the caller vouches for.
            take(unsafe { self.write(offset + at as u64, source.add(at), block_bytes) }?)?;
        }
        Ok(())
    }

    /// As `write`, for bytes that programs may store to through a mapping at the same time.
    ///
    /// # Safety
    /// As `write`.
    unsafe fn write_mapped(&self, offset: u64, source: *const u8, length: usize) -> Result<u32> {
        // SAFETY: promised by the caller.
        unsafe { self.write(offset, source, length) }
    }

    /// As `zero`, for bytes that programs may store to through a mapping at the same time.
    fn zero_mapped(&self, offset: u64, length: usize) -> Result<()> {
        self.zero(offset, length)
    }

    /// Stores a few bytes if this process needs no page fault, no I/O and no wait for it. Returns
    /// false, and stores nothing, otherwise.
    fn write_warm(&self, offset: u64, bytes: &[u8]) -> bool;

    /// Reads bytes into `target`. Errors: as `write`.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes, which are not part of this device's mapping, and no
    /// Rust reference to them is alive.
    unsafe fn read(&self, offset: u64, target: *mut u8, length: usize) -> Result<()>;

    /// As `read`, for a caller that checks each byte against a checksum and uses no others. It also
    /// reads where earlier writes may have been lost, so that the bytes may be older. Returns
    /// whether that is so. Errors: as `read`; while a machine that has not answered is not to be
    /// asked again, the error comes at once.
    ///
    /// # Safety
    /// As `read`.
    unsafe fn read_unverified(&self, offset: u64, target: *mut u8, length: usize) -> Result<bool> {
        // SAFETY: promised by the caller.
        unsafe { self.read(offset, target, length) }.map(|()| false)
    }

    /// Makes a range read as zeros. Errors: as `write`.
    fn zero(&self, offset: u64, length: usize) -> Result<()>;

    /// Returns the standard CRC32C of a range. Errors: as `read`.
    fn checksum(&self, offset: u64, length: usize) -> Result<u32>;

    /// Makes everything written before as durable as the tier allows, and then returns. That
    /// includes stores of programs through their own mappings, except those that `write_back` has
    /// to bring to the tier first.
    fn flush(&self) -> Result<()>;

    /// Does in advance the work that would make the first use of a range slow. Errors: `NoSpace`;
    /// `Corrupt` for a range outside.
    fn prefault(&self, offset: u64, length: usize) -> Result<()>;

    /// Gives the memory of a range that holds nothing back to the system. The range reads as zeros
    /// from then on. Does nothing for a tier that is not memory. Errors: `Corrupt` for a range
    /// outside.
    fn give_back(&self, offset: u64, length: usize) -> Result<()> {
        let _ = (offset, length);
        Ok(())
    }

    /// Writes what programs have staged to the device and reads what they want ahead, until `stop`
    /// is set. Returns at once for a device whose writes do not return before their bytes are
    /// stored. `servers` says how many threads should call it.
    fn serve(&self, stop: &AtomicBool) {
        let _ = stop;
    }

    /// Number of threads in `serve` that keep the device busy.
    fn servers(&self) -> usize {
        0
    }

    /// Whether `want` has any effect.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Requests a read-ahead of bytes that will be read soon, and returns at once. Ranges that
    /// cannot be read ahead are skipped.
    fn want(&self, offset: u64, length: usize) {
        let _ = (offset, length);
    }

    /// Prepares whole pages for a mapping by programs, which may store to it if `may_be_stored_to`.
    /// From then on the mapping shows a write when the write returns. Errors: `Io` if an earlier
    /// write is lost; `NoSpace`.
    fn show(&self, offset: u64, length: usize, may_be_stored_to: bool) -> Result<()> {
        let _ = (offset, length, may_be_stored_to);
        Ok(())
    }

    /// Writes to the tier what programs have stored in a range through mappings. Does nothing where
    /// a mapping is the tier's own memory. Errors: as `write`.
    fn write_back(&self, offset: u64, length: usize) -> Result<()> {
        let _ = (offset, length);
        Ok(())
    }

    /// Whether programs map copies of the tier's bytes, which `write_back` and `evict_unmapped`
    /// write to the tier.
    fn shows_copies(&self) -> bool {
        self.mappable().is_some_and(|mappable| mappable.copies)
    }

    /// Writes shown pages that are not mapped any more back to the tier and frees their memory.
    /// Does a bounded part of it, and stops when `goes_on` returns false. `mapped` returns the
    /// ranges that programs have mapped. Errors: those of `mapped`; as `write` if some pages could
    /// not be written, while the others were.
    fn evict_unmapped(
        &self,
        mapped: &dyn Fn() -> Result<Vec<Range<u64>>>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let _ = (mapped, goes_on);
        Ok(())
    }

    /// Whether bytes of an earlier write are lost. Then every later write fails.
    fn has_lost_writes(&self) -> bool {
        false
    }

    /// Time for which a call of this process has waited for a machine that does not answer; `None`
    /// if its last calls were answered.
    fn silent_for(&self) -> Option<Duration> {
        None
    }

    /// Whether the tier's machine has told this process that it does not have the tier any more.
    fn is_gone(&self) -> bool {
        false
    }

    /// For a mapped file: true if a store is durable when it returns (`MAP_SYNC`), false if only
    /// after a flush. `None` for any other tier.
    fn is_synchronous(&self) -> Option<bool> {
        None
    }

    /// Calls `visit` with each descriptor that the device keeps open.
    fn descriptors(&self, visit: &mut dyn FnMut(i32));

    /// Returns where the tier's bytes can be mapped; `None` if nowhere.
    fn mappable(&self) -> Option<Mappable>;
}

/// Copies bytes from one place of a tier to another, which may be in another tier, through a buffer
/// of this call. The ranges do not overlap. Returns the raw checksum of the bytes.
pub fn copy(source: (&dyn Device, u64), target: (&dyn Device, u64), length: usize) -> Result<u32> {
    let mut buffer = [0_u8; 16 << 10];
    let (mut done, mut raw) = (0, 0);
    while done < length {
        let part = &mut buffer[..(length - done).min(16 << 10)];
        // SAFETY: the buffer is private to this call, holds that many bytes and is no part of a
        // device.
        let sum = unsafe {
            source.0.read(source.1 + done as u64, part.as_mut_ptr(), part.len())?;
            target.0.write(target.1 + done as u64, part.as_ptr(), part.len())?
        };
        raw = checksum::join(raw, sum, part.len() as u64);
        done += part.len();
    }
    Ok(raw)
}
