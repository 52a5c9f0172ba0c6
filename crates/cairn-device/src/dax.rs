//! A tier's file in the address space, as a durable medium: `dax:PATH`.
//!
//! On a file system in persistent memory (DAX) the mapping is that memory, and with `MAP_SYNC` the
//! file system has made durable where its pages are before it lets anybody store there. Then bytes
//! are durable as soon as the processor has written back the cache lines that hold them. Whoever
//! stores does that at once, while it knows the lines and they are in its cache, and waits for it
//! (`sfence`): a fence concerns one processor, and who flushes is mostly on another. Elsewhere the
//! mapping is the page cache, and the kernel's flush of the file makes it durable, whoever stored.
//! Must stay true: nothing is stored where the file has no space; that would be SIGBUS and not an
//! error.
//! Does not find out whether it has; `MediaFile::mapped` does.

use cairn_core::{MEDIA_BLOCK_BYTES, Result};

use crate::descriptor::Descriptor;
use crate::mapping::Mapping;
use crate::sys::SysResult;

/// The bytes of a tier's file.
#[derive(Debug)]
pub(crate) struct DaxMapping {
    mapping: Mapping,
    is_synchronous: bool,
}

impl DaxMapping {
    /// Maps the first `bytes` of `file`, which has them.
    pub fn new(file: Descriptor, bytes: usize) -> SysResult<DaxMapping> {
        let (mapping, is_synchronous) = match lines::CAN_BE_WRITTEN_BACK {
            true => Mapping::synchronous(file, bytes)?,
            false => (Mapping::new(file, bytes)?, false),
        };
        #[cfg(test)]
        let is_synchronous = is_synchronous || tests::pretends();
        Ok(DaxMapping { mapping, is_synchronous })
    }

    /// Whether stores are durable when they were written back; if not, a flush of the file makes
    /// them so.
    pub fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }

    /// Where the byte at `offset`, or the end, is mapped. Errors: the range leaves the mapping.
    pub fn range(&self, offset: u64, length: usize) -> Result<*mut u8> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.mapping.check(offset, length)?;
        // SAFETY: `offset` is at most the mapping's length.
        Ok(unsafe { self.mapping.address().as_ptr().add(offset) })
    }

    /// Returns when what was stored in a range, by whomever, is durable, if that is for the
    /// processor to do.
    pub fn write_back(&self, offset: u64, length: usize) -> Result<()> {
        let start = self.range(offset, length)?;
        if self.is_synchronous {
            // SAFETY: the range lies in the mapping.
            unsafe { lines::write_back(start, length) };
            #[cfg(test)]
            tests::note(self, offset, length);
        }
        Ok(())
    }

    /// The mapped file.
    pub fn descriptor(&self) -> i32 {
        self.mapping.file().raw()
    }
}

/// Whether `file`, which has a page, lies in memory that `MAP_SYNC` is given for.
pub(crate) fn is_synchronous(file: &Descriptor) -> SysResult<bool> {
    Ok(DaxMapping::new(file.duplicate()?, MEDIA_BLOCK_BYTES)?.is_synchronous)
}

/// Cache lines of x86-64.
#[cfg(target_arch = "x86_64")]
mod lines {
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};
    use core::sync::atomic::{AtomicU8, Ordering};

    /// Whether a program can write lines back.
    pub(super) const CAN_BE_WRITTEN_BACK: bool = true;
    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// How a line is written back.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    #[repr(u8)]
    pub(super) enum Way {
        /// One after the other, and out of the cache: every processor can.
        Flush = 1,
        /// Many at a time, and out of the cache.
        FlushOptimised = 2,
        /// Many at a time; they stay in the cache.
        WriteBack = 3,
    }

    /// The best way of this processor; detected once.
    pub(super) fn best() -> Way {
        static KNOWN: AtomicU8 = AtomicU8::new(0);
        match KNOWN.load(Ordering::Relaxed) {
            1 => Way::Flush,
            2 => Way::FlushOptimised,
            3 => Way::WriteBack,
            _ => {
                let way = detect();
                KNOWN.store(way as u8, Ordering::Relaxed);
                way
            }
        }
    }

    #[cold]
    fn detect() -> Way {
        const LEAF: u32 = 7;
        const CLFLUSHOPT: u32 = 1 << 23;
        const CLWB: u32 = 1 << 24;
        // SAFETY: every processor of x86-64 has the instruction; the leaf is asked for only if it
        // is there.
        #[allow(unused_unsafe, reason = "unsafe in older compilers")]
        let features = unsafe {
            match __cpuid(0).eax >= LEAF {
                true => __cpuid_count(LEAF, 0).ebx,
                false => 0,
            }
        };
        match features {
            _ if features & CLWB != 0 => Way::WriteBack,
            _ if features & CLFLUSHOPT != 0 => Way::FlushOptimised,
            _ => Way::Flush,
        }
    }

    /// Returns when every line of the range is in memory.
    ///
    /// # Safety
    /// The range is mapped.
    pub(super) unsafe fn write_back(start: *const u8, length: usize) {
        // SAFETY: the way was detected, and the caller vouches for the range.
        unsafe { write_back_by(best(), start, length) };
    }

    /// # Safety
    /// As `write_back`; this processor has the way.
    pub(super) unsafe fn write_back_by(way: Way, start: *const u8, length: usize) {
        for line in of(start.addr(), length) {
            // SAFETY: the line holds a byte of the range, so it is mapped; no byte of it changes.
            unsafe {
                match way {
                    Way::WriteBack => asm!("clwb [{}]", in(reg) line, options(nostack)),
                    Way::FlushOptimised => asm!("clflushopt [{}]", in(reg) line, options(nostack)),
                    Way::Flush => asm!("clflush [{}]", in(reg) line, options(nostack)),
                }
            }
        }
        // SAFETY: every processor of x86-64 has it.
        #[allow(unused_unsafe, reason = "unsafe in older compilers")]
        unsafe {
            _mm_sfence();
        }
    }

    /// Addresses of the lines that hold a byte of a range.
    pub(super) fn of(start: usize, length: usize) -> impl Iterator<Item = usize> {
        let first = start / LINE * LINE;
        let end = if length == 0 { first } else { start + length };
        (first..end).step_by(LINE)
    }
}

/// Cache lines of processors that are not known to let programs write them back. Those of 64-bit
/// ARM do if they have `dc cvap`; without one to try that on, the kernel does it.
#[cfg(not(target_arch = "x86_64"))]
mod lines {
    pub(super) const CAN_BE_WRITTEN_BACK: bool = false;

    /// # Safety
    /// None: it is not called.
    pub(super) unsafe fn write_back(_start: *const u8, _length: usize) {}
}

#[cfg(test)]
mod tests;
