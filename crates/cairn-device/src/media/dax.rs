//! A tier's file mapped into the address space, as a durable medium: `dax:PATH`.
//!
//! On a file system in persistent memory (DAX) the mapping is that memory. With `MAP_SYNC` the file
//! system makes the location of a page durable before it lets anybody store to it. Then bytes are
//! durable as soon as the processor has written back the cache lines that hold them. The process
//! that stores writes them back at once, while it knows the lines and they are in its cache, and
//! waits (`sfence`): a fence concerns one processor, and the process that flushes usually runs on
//! another. On other file systems the mapping is the page cache: the kernel's flush of the file
//! makes it durable, whoever stored.
//!
//! Must stay true: nothing is stored where the file has no space. Such a store would raise SIGBUS
//! instead of returning an error.
//!
//! Does not check that the file has its space; `MediaFile::mapped` does.

use cairn_core::{MEDIA_BLOCK_BYTES, Result};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::mapping::Mapping;
use cairn_platform::sys::SysResult;

/// Mapping of a tier's file.
#[derive(Debug)]
pub(crate) struct DaxMapping {
    mapping: Mapping,
    is_synchronous: bool,
}

impl DaxMapping {
    /// Maps the first `bytes` of `file`. The file has at least that many.
    pub fn new(file: Descriptor, bytes: usize) -> SysResult<DaxMapping> {
        let (mapping, is_synchronous) = match lines::CAN_BE_WRITTEN_BACK {
            true => Mapping::synchronous(file, bytes)?,
            false => (Mapping::new(file, bytes)?, false),
        };
        #[cfg(test)]
        let is_synchronous = is_synchronous || tests::pretends();
        Ok(DaxMapping { mapping, is_synchronous })
    }

    /// Whether stores are durable once they are written back. If not, a flush of the file makes
    /// them durable.
    pub fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }

    /// Returns the address of the byte at `offset`, which may be the end. Errors: the range leaves
    /// the mapping.
    pub fn range(&self, offset: u64, length: usize) -> Result<*mut u8> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.mapping.check(offset, length)?;
        // SAFETY: `offset` is at most the mapping's length.
        Ok(unsafe { self.mapping.address().as_ptr().add(offset) })
    }

    /// Makes everything stored in a range durable, whoever stored it, and then returns. Does
    /// nothing if the mapping is not synchronous. Errors: the range leaves the mapping.
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

    /// Returns the descriptor of the mapped file.
    pub fn descriptor(&self) -> i32 {
        self.mapping.file().raw()
    }
}

/// Whether the kernel grants `MAP_SYNC` for `file`. The file has at least one page.
pub(crate) fn is_synchronous(file: &Descriptor) -> SysResult<bool> {
    Ok(DaxMapping::new(file.duplicate()?, MEDIA_BLOCK_BYTES)?.is_synchronous)
}

/// Cache lines of x86-64.
#[cfg(target_arch = "x86_64")]
mod lines {
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};
    use core::sync::atomic::{AtomicU8, Ordering};

    /// Whether a program can write cache lines back.
    pub(super) const CAN_BE_WRITTEN_BACK: bool = true;
    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// Instruction that writes a line back.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    #[repr(u8)]
    pub(super) enum Way {
        /// `clflush`: one line after the other, and out of the cache. Every processor has it.
        Flush = 1,
        /// `clflushopt`: many lines at a time, and out of the cache.
        FlushOptimised = 2,
        /// `clwb`: many lines at a time; they stay in the cache.
        WriteBack = 3,
    }

    /// Returns the best instruction that this processor has; detected once.
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
        // SAFETY: every x86-64 processor has the instruction; the leaf is read only if it exists.
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

    /// Writes every line of the range back to memory and waits for that.
    ///
    /// # Safety
    /// The range is mapped.
    pub(super) unsafe fn write_back(start: *const u8, length: usize) {
        // SAFETY: the way was detected, and the caller vouches for the range.
        unsafe { write_back_by(best(), start, length) };
    }

    /// # Safety
    /// As `write_back`; this processor has the instruction `way`.
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
        // SAFETY: every x86-64 processor has the instruction.
        #[allow(unused_unsafe, reason = "unsafe in older compilers")]
        unsafe {
            _mm_sfence();
        }
    }

    /// Returns the addresses of the lines that hold a byte of a range.
    pub(super) fn of(start: usize, length: usize) -> impl Iterator<Item = usize> {
        let first = start / LINE * LINE;
        let end = if length == 0 { first } else { start + length };
        (first..end).step_by(LINE)
    }
}

/// Processors on which Cairn leaves the write-back to the kernel. 64-bit ARM with `dc cvap` could
/// do it, but there was none to test on.
#[cfg(not(target_arch = "x86_64"))]
mod lines {
    pub(super) const CAN_BE_WRITTEN_BACK: bool = false;

    /// # Safety
    /// No requirement: nothing calls it.
    pub(super) unsafe fn write_back(_start: *const u8, _length: usize) {}
}

#[cfg(test)]
mod tests;
