//! What a tier must be able to do. RAM and files, mapped or not, implement it here; NVMe will.
//!
//! Must stay true: an implementation checks every range against its own size before it touches
//! anything; it never turns a failure into success.
//! Does not allocate blocks and does not remember checksums; the core does both.

use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::time::Duration;

use cairn_core::Result;

use crate::checksum;

/// Where the bytes of a tier can be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mappable {
    /// The file, open for reading and writing, still owned by the device.
    pub descriptor: i32,
    /// Where the tier's first byte stands in it.
    pub offset: u64,
    /// Whoever writes does that in the same memory. Otherwise what is mapped must not be read ahead
    /// (`MADV_RANDOM`): see `media_file`; and nothing is written behind from the first mapping on.
    pub in_memory: bool,
    /// What stands there are copies of ranges that `show` was asked for, as long as anybody may
    /// have them mapped; what is stored there reaches the tier by `write_back`.
    pub copies: bool,
}

/// One tier of a namespace, addressed by bytes from its start.
///
/// Concurrent calls on different ranges are independent. On overlapping ranges the bytes are those
/// of either call; the core's plans keep writers of one block apart.
pub trait Device: Send + Sync {
    /// Size of the tier.
    fn bytes(&self) -> u64;

    /// Stores bytes and returns their raw checksum (`checksum::raw`).
    /// Errors: `NoSpace` (nothing or a part was stored), `Fault`, `Corrupt` for a range outside.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes, which are not part of this device's mapping.
    unsafe fn write(&self, offset: u64, source: *const u8, length: usize) -> Result<u32>;

    /// Stores consecutive blocks of `block_bytes` and hands out the raw checksum of each, in order.
    /// Errors: as `write`.
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

    /// As `write`, of bytes that programs may store to through a mapping at the same time.
    ///
    /// # Safety
    /// As `write`.
    unsafe fn write_mapped(&self, offset: u64, source: *const u8, length: usize) -> Result<u32> {
        // SAFETY: promised by the caller.
        unsafe { self.write(offset, source, length) }
    }

    /// As `zero`, of bytes that programs may store to through a mapping at the same time.
    fn zero_mapped(&self, offset: u64, length: usize) -> Result<()> {
        self.zero(offset, length)
    }

    /// Stores a few bytes if that takes neither a fault nor I/O nor a wait in this process; false,
    /// and nothing done, otherwise.
    fn write_warm(&self, offset: u64, bytes: &[u8]) -> bool;

    /// Fetches bytes. Errors: as `write`.
    ///
    /// # Safety
    /// `target` is writable for `length` bytes, which are not part of this device's mapping, and
    /// no Rust reference to them is alive.
    unsafe fn read(&self, offset: u64, target: *mut u8, length: usize) -> Result<()>;

    /// As `read`, for who compares each byte with a checksum and uses no others: also where what
    /// was written may have been lost, so that what stands there is older. Whether that is so.
    /// Errors: as `read`; where a machine has not answered, at once for as long as it is not to be
    /// asked again.
    ///
    /// # Safety
    /// As `read`.
    unsafe fn read_doubted(&self, offset: u64, target: *mut u8, length: usize) -> Result<bool> {
        // SAFETY: promised by the caller.
        unsafe { self.read(offset, target, length) }.map(|()| false)
    }

    /// Makes a range read as zeros. Errors: as `write`.
    fn zero(&self, offset: u64, length: usize) -> Result<()>;

    /// Standard CRC32C of a range. Errors: as `read`.
    fn checksum(&self, offset: u64, length: usize) -> Result<u32>;

    /// Returns when everything written before is as durable as the tier can make it, also what
    /// programs have stored by way of mappings of their own, but for what `write_back` has to bring
    /// there first.
    fn flush(&self) -> Result<()>;

    /// Does now what would make the first use of a range slow. Errors: `NoSpace`; `Corrupt` for a
    /// range outside.
    fn prefault(&self, offset: u64, length: usize) -> Result<()>;

    /// Brings what programs have written to where it belongs, and fetches what they want, until
    /// `stop` is set, for a device whose writes return before; else returns at once. As many
    /// threads may as `servers` says keep it busy.
    fn serve(&self, stop: &AtomicBool) {
        let _ = stop;
    }

    /// How many threads `serve` takes to keep the device busy.
    fn servers(&self) -> usize {
        0
    }

    /// Whether `want` does anything.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Has bytes read that will be asked for soon, while the caller goes on. What cannot be, is
    /// not.
    fn want(&self, offset: u64, length: usize) {
        let _ = (offset, length);
    }

    /// Prepares for programs that see a range, whole pages, through a mapping, and may store to it
    /// if it `may_be_stored_to`: from now on what a write stored is there when it returns. Errors:
    /// what was written before is lost (`Io`); `NoSpace`.
    fn show(&self, offset: u64, length: usize, may_be_stored_to: bool) -> Result<()> {
        let _ = (offset, length, may_be_stored_to);
        Ok(())
    }

    /// Brings to the tier what programs have stored in a range by way of mappings; nothing where
    /// these are the tier's own memory. Errors: as `write`.
    fn write_back(&self, offset: u64, length: usize) -> Result<()> {
        let _ = (offset, length);
        Ok(())
    }

    /// Whether programs have copies of the tier's bytes mapped, which `write_back` and `put_away`
    /// bring there.
    fn shows_copies(&self) -> bool {
        self.mappable().is_some_and(|mappable| mappable.copies)
    }

    /// Brings to the tier what was shown and is no longer mapped, a bounded part of it, and gives
    /// back its memory, while `goes_on` says so. `mapped` says of which ranges programs have
    /// mappings. Errors: its own; as `write`, of some, and the others went.
    fn put_away(
        &self,
        mapped: &dyn Fn() -> Result<Vec<Range<u64>>>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let _ = (mapped, goes_on);
        Ok(())
    }

    /// Whether something is lost that a write had stored: then every later one fails.
    fn has_lost(&self) -> bool {
        false
    }

    /// For how long a call of this process has waited, the last ones in vain, for a machine that
    /// does not answer.
    fn silent_for(&self) -> Option<Duration> {
        None
    }

    /// Whether the machine that it is on has told this process that it does not have it any more.
    fn is_gone(&self) -> bool {
        false
    }

    /// Of a file that is mapped: whether what is stored there is durable when the store returns
    /// (`MAP_SYNC`), or after a flush. None of anything else.
    fn is_synchronous(&self) -> Option<bool> {
        None
    }

    /// Calls `visit` with each descriptor the device keeps open.
    fn descriptors(&self, visit: &mut dyn FnMut(i32));

    /// Where the tier's bytes can be mapped; `None` if nowhere.
    fn mappable(&self) -> Option<Mappable>;
}

/// Copies bytes from one place of a tier to another, perhaps of another tier, through a buffer of
/// this call; the ranges do not overlap. Returns their raw checksum.
pub fn copy(source: (&dyn Device, u64), target: (&dyn Device, u64), length: usize) -> Result<u32> {
    let mut buffer = [0_u8; 16 << 10];
    let (mut done, mut raw) = (0, 0);
    while done < length {
        let part = &mut buffer[..(length - done).min(16 << 10)];
        // SAFETY: the buffer is memory of this call alone and holds so many bytes; it is no part of
        // a device.
        let sum = unsafe {
            source.0.read(source.1 + done as u64, part.as_mut_ptr(), part.len())?;
            target.0.write(target.1 + done as u64, part.as_ptr(), part.len())?
        };
        raw = checksum::join(raw, sum, part.len() as u64);
        done += part.len();
    }
    Ok(raw)
}
