//! The RAM tier: a data segment in shared memory.
//!
//! The first touch of a page in a process costs more than copying it. So a hugeblock that is cold
//! in this process is transferred by `pwrite` and `pread`, which need no mapping. At the second
//! access it is populated, and from then on bytes are copied to and from the mapping. On a file
//! system of huge pages, blocks are populated at the first access, 2 MiB at a time.
//!
//! Must stay true: the mapping is touched only in blocks that this process has populated, so that a
//! full file system is `NoSpace` and never a signal. Nothing ever punches holes into the segment.
//!
//! Does not keep checksum and data consistent if another thread changes the source during the write
//! of a cold block: the checksum is then of either state.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, Ordering};

use cairn_core::{Error, Result};
use cairn_platform::checksum;
use cairn_platform::copy::{copy_crc, copy_out};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::mapping::{LocalTable, Mapping, Populate};
use cairn_platform::sys::{self, Errno, SysResult};

use crate::device::{Device, Mappable};

/// Warmth of a block that this process has not accessed.
const COLD: u8 = 0;
/// Warmth of a block that was accessed once, through the descriptor.
const SEEN: u8 = 1;
/// Warmth of a block that is present in this process's page tables.
const WARM: u8 = 2;

/// Bytes handed to the kernel before their checksum is computed: they are in the second-level cache
/// then.
const PIECE_BYTES: usize = 128 * 1024;
/// Number of bytes beyond a call's own range in which neighbours are populated, so that small calls
/// share the cost.
const POPULATE_AHEAD_BYTES: usize = 1 << 20;
/// Number of bytes that are populated at once with huge pages.
const HUGE_BYTES: usize = 2 << 20;

static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

/// A tier in a shared-memory file.
#[derive(Debug)]
pub struct RamDevice {
    mapping: Mapping,
    /// Warmth of each hugeblock in this process.
    warmth: LocalTable,
    hugeblock_bytes: usize,
    huge_pages: bool,
}

impl RamDevice {
    /// Returns the tier in `file`, which has `bytes` and consists of hugeblocks of the given size.
    /// `huge_pages` says whether its file system was mounted with them.
    pub fn new(
        file: Descriptor,
        bytes: u64,
        hugeblock_bytes: u32,
        huge_pages: bool,
    ) -> SysResult<RamDevice> {
        let length = usize::try_from(bytes).map_err(|_| Errno(libc::EFBIG))?;
        let hugeblock_bytes = hugeblock_bytes as usize;
        if !hugeblock_bytes.is_power_of_two() || length % hugeblock_bytes != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let warmth = LocalTable::new(length / hugeblock_bytes)?;
        let mapping = Mapping::new(file, length)?;
        Ok(RamDevice { mapping, warmth, hugeblock_bytes, huge_pages })
    }

    /// Number of blocks that are warm in this process, for tests and statistics.
    pub fn warm_blocks(&self) -> usize {
        self.warmth.entries().iter().filter(|state| state.load(Ordering::Relaxed) == WARM).count()
    }

    /// Whether the segment lies on a file system of huge pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    fn check(&self, offset: u64, length: usize) -> Result<Range<usize>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(start..self.mapping.check(start, length)?)
    }

    fn address(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.mapping.bytes());
        // SAFETY: every caller's offset passed `check`, so it is inside the mapping.
        unsafe { self.mapping.address().as_ptr().add(offset) }
    }

    /// Calls `transfer` for consecutive parts of `range`, and says for each whether it is present
    /// in this process. `through_descriptor` is false where cold blocks must be populated instead.
    fn for_each_part(
        &self,
        range: Range<usize>,
        purpose: Populate,
        through_descriptor: bool,
        transfer: &mut dyn FnMut(Range<usize>, bool) -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let (kind, blocks) = self.alike(at, range.end);
            let end = (blocks.end * self.hugeblock_bytes).min(range.end);
            let states = &self.warmth.entries()[blocks.clone()];
            let present = match kind {
                WARM => true,
                COLD if through_descriptor && !self.huge_pages => false,
                _ => self.warm_up(blocks, purpose, through_descriptor)?,
            };
            transfer(at..end, present)?;
            if !present {
                mark(states, SEEN);
            }
            at = end;
        }
        Ok(())
    }

    /// Whether the range lies in one block and that block is warm.
    fn is_in_warm_block(&self, range: &Range<usize>) -> bool {
        let shift = self.hugeblock_bytes.trailing_zeros();
        let block = range.start >> shift;
        !range.is_empty()
            && (range.end - 1) >> shift == block
            && self.warmth.entries()[block].load(Ordering::Relaxed) == WARM
    }

    /// Returns the warmth of the block at byte `at`, and the run of blocks with the same warmth
    /// from it on, up to byte `end`.
    fn alike(&self, at: usize, end: usize) -> (u8, Range<usize>) {
        let first = at / self.hugeblock_bytes;
        let states = &self.warmth.entries()[first..end.div_ceil(self.hugeblock_bytes)];
        let kind = states[0].load(Ordering::Relaxed);
        let same = |state: &&AtomicU8| state.load(Ordering::Relaxed) == kind;
        // The first block counts even if another thread has just warmed it.
        (kind, first..first + 1 + states[1..].iter().take_while(same).count())
    }

    /// Populates blocks and the neighbours that are due. Returns false if there is no space for
    /// that, but the bytes can be transferred `through_descriptor`.
    fn warm_up(
        &self,
        blocks: Range<usize>,
        purpose: Populate,
        through_descriptor: bool,
    ) -> Result<bool> {
        let wider = if self.huge_pages { self.huge_page_of(&blocks) } else { self.ahead(&blocks) };
        for blocks in [wider, blocks] {
            let start = blocks.start * self.hugeblock_bytes;
            let length = blocks.len() * self.hugeblock_bytes;
            match self.mapping.populate(start, length, purpose) {
                Ok(()) => {
                    mark(&self.warmth.entries()[blocks], WARM);
                    return Ok(true);
                }
                // There may be no space for the neighbours only, or not for our blocks either.
                Err(Error::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        if through_descriptor { Ok(false) } else { Err(Error::NoSpace) }
    }

    /// Returns `blocks` and the following ones that were accessed once.
    fn ahead(&self, blocks: &Range<usize>) -> Range<usize> {
        let states = &self.warmth.entries()[blocks.end..];
        let seen = |state: &&AtomicU8| state.load(Ordering::Relaxed) == SEEN;
        let limit = POPULATE_AHEAD_BYTES / self.hugeblock_bytes;
        blocks.start..blocks.end + states.iter().take(limit).take_while(seen).count()
    }

    /// Returns `blocks` widened to whole huge pages.
    fn huge_page_of(&self, blocks: &Range<usize>) -> Range<usize> {
        let page = (HUGE_BYTES / self.hugeblock_bytes).max(1);
        let end = blocks.end.next_multiple_of(page).min(self.warmth.entries().len());
        blocks.start / page * page..end
    }

    /// Makes a range present, however cold it is.
    fn present(&self, range: Range<usize>, purpose: Populate) -> Result<()> {
        self.for_each_part(range, purpose, false, &mut |_, _| Ok(()))
    }

    /// Whether cold blocks of the range may be written through the descriptor: past RLIMIT_FSIZE
    /// such a write raises a signal. Asks the kernel only if a block is not warm.
    fn may_pwrite(&self, range: &Range<usize>) -> bool {
        let blocks = range.start / self.hugeblock_bytes..range.end.div_ceil(self.hugeblock_bytes);
        let states = &self.warmth.entries()[blocks];
        states.iter().all(|state| state.load(Ordering::Relaxed) == WARM)
            || sys::soft_limit(libc::RLIMIT_FSIZE).is_ok_and(|limit| range.end as u64 <= limit)
    }

    /// # Safety
    /// As `Device::write`.
    unsafe fn pwrite(&self, offset: usize, source: *const u8, length: usize) -> Result<()> {
        let mut done = 0;
        while done < length {
            let file = self.mapping.file().raw();
            // SAFETY: `done < length`, so the rest of the source is the caller's.
            let rest = unsafe { source.add(done) };
            // SAFETY: the kernel checks that the source is readable.
            match unsafe { sys::pwrite_raw(file, rest, length - done, (offset + done) as u64) } {
                Ok(0) => return Err(Error::Io),
                Ok(count) => done += count,
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// # Safety
    /// As `Device::read`.
    unsafe fn pread(&self, offset: usize, target: *mut u8, length: usize) -> Result<()> {
        let mut done = 0;
        while done < length {
            let file = self.mapping.file().raw();
            // SAFETY: `done < length`, so the rest of the target is the caller's.
            let rest = unsafe { target.add(done) };
            // SAFETY: the kernel checks that the target is writable; no reference to it is alive.
            match unsafe { sys::pread_raw(file, rest, length - done, (offset + done) as u64) } {
                Ok(0) => return Err(Error::Io),
                Ok(count) => done += count,
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Stores through the descriptor, in pieces of `PIECE_BYTES`. The kernel reads each piece
    /// first, so that a bad address is an error. The checksum is computed after that: it finds the
    /// piece in the second-level cache.
    ///
    /// # Safety
    /// As `Device::write`.
    unsafe fn write_cold(&self, offset: usize, source: *const u8, length: usize) -> Result<u32> {
        let mut state = 0;
        let mut done = 0;
        while done < length {
            let part = PIECE_BYTES.min(length - done);
            // SAFETY: the part lies inside the caller's source, which the kernel just read.
            unsafe {
                let start = source.add(done);
                self.pwrite(offset + done, start, part)?;
                state = checksum::update(state, core::slice::from_raw_parts(start, part));
            }
            done += part;
        }
        Ok(state)
    }
}

fn found(is_there: bool) -> Result<()> {
    if is_there { Ok(()) } else { Err(Error::Fault) }
}

fn mark(states: &[AtomicU8], state: u8) {
    states.iter().for_each(|entry| entry.store(state, Ordering::Relaxed));
}

impl Device for RamDevice {
    fn bytes(&self) -> u64 {
        self.mapping.bytes() as u64
    }

    unsafe fn write(&self, offset: u64, source: *const u8, length: usize) -> Result<u32> {
        let range = self.check(offset, length)?;
        if self.is_in_warm_block(&range) {
            // SAFETY: the range is present and as long as the caller's source.
            let sum = unsafe { copy_crc(self.address(range.start), source, length) };
            return sum.ok_or(Error::Fault);
        }
        let (first, may_pwrite) = (range.start, self.may_pwrite(&range));
        let mut raw = 0;
        self.for_each_part(range, Populate::Write, may_pwrite, &mut |part, present| {
            // SAFETY: the part is inside the range, hence inside the caller's source; a present
            // part of the mapping can be written without a fault.
            let sum = unsafe {
                let start = source.add(part.start - first);
                match present {
                    true => {
                        copy_crc(self.address(part.start), start, part.len()).ok_or(Error::Fault)?
                    }
                    false => self.write_cold(part.start, start, part.len())?,
                }
            };
            raw = checksum::join(raw, sum, part.len() as u64);
            Ok(())
        })?;
        Ok(raw)
    }

    fn write_warm(&self, offset: u64, bytes: &[u8]) -> bool {
        let Ok(range) = self.check(offset, bytes.len()) else { return false };
        let blocks = range.start / self.hugeblock_bytes..range.end.div_ceil(self.hugeblock_bytes);
        let mut states = self.warmth.entries()[blocks].iter();
        if !states.all(|state| state.load(Ordering::Relaxed) == WARM) {
            return false;
        }
        // SAFETY: the range is a present part of our mapping, which no slice can be part of.
        unsafe {
            let target = self.address(range.start);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
        true
    }

    unsafe fn read(&self, offset: u64, target: *mut u8, length: usize) -> Result<()> {
        let range = self.check(offset, length)?;
        let first = range.start;
        if self.is_in_warm_block(&range) {
            // SAFETY: the range is present, as long as the caller's target, and can be read without
            // a fault.
            return found(unsafe { copy_out(target, self.address(first), length) });
        }
        self.for_each_part(range, Populate::Read, true, &mut |part, present| {
            // SAFETY: the part is inside the range, hence inside the caller's target; a present
            // part of the mapping can be read without a fault.
            unsafe {
                let start = target.add(part.start - first);
                if !present {
                    return self.pread(part.start, start, part.len());
                }
                found(copy_out(start, self.address(part.start), part.len()))
            }
        })
    }

    fn zero(&self, offset: u64, length: usize) -> Result<()> {
        let range = self.check(offset, length)?;
        let may_pwrite = self.may_pwrite(&range);
        self.for_each_part(range, Populate::Write, may_pwrite, &mut |part, present| {
            if present {
                // SAFETY: a present part of our mapping; the caller's plan owns the range.
                unsafe { core::ptr::write_bytes(self.address(part.start), 0, part.len()) };
                return Ok(());
            }
            for start in part.clone().step_by(ZEROS.len()) {
                let length = ZEROS.len().min(part.end - start);
                // SAFETY: the source is a static at least as long.
                unsafe { self.pwrite(start, ZEROS.as_ptr(), length)? };
            }
            Ok(())
        })
    }

    fn checksum(&self, offset: u64, length: usize) -> Result<u32> {
        let range = self.check(offset, length)?;
        if length == 0 {
            return Ok(0);
        }
        self.present(range.clone(), Populate::Read)?;
        let start = self.address(range.start);
        // SAFETY: the range is present. Another process may be writing it; the sum is then of a
        // mixture, and the core discards it because the block's version changed.
        Ok(checksum::crc32c(0, unsafe { core::slice::from_raw_parts(start, length) }))
    }

    fn flush(&self) -> Result<()> {
        // A RAM tier promises that each byte survives every process, and that holds already.
        Ok(())
    }

    fn prefault(&self, offset: u64, length: usize) -> Result<()> {
        let range = self.check(offset, length)?;
        // If pages were only allocated, their first user would have to clear them.
        self.mapping.populate(range.start, range.len(), Populate::Write)?;
        self.mapping.depopulate(range.start, range.len())
    }

    fn give_back(&self, offset: u64, length: usize) -> Result<()> {
        let range = self.check(offset, length)?;
        Ok(self.mapping.punch(range.start, range.len())?)
    }

    fn descriptors(&self, visit: &mut dyn FnMut(i32)) {
        visit(self.mapping.file().raw());
    }

    fn mappable(&self) -> Option<Mappable> {
        Some(Mappable {
            descriptor: self.mapping.file().raw(),
            offset: 0,
            in_memory: true,
            copies: false,
        })
    }
}

#[cfg(test)]
mod tests;
