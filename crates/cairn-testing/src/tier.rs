//! A tier on the heap, and the memory segment that several simulated processes share.

use cairn_core::{Checksum, Geometry, HeapMemory, Memory, Result};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// Checksum routine that tests give to the core.
pub const CHECKSUM: Checksum = cairn_platform::checksum::crc32c;

/// Bytes of a tier. Ranges come from the core's plans, so a range outside the tier is a bug.
pub trait Tier: Send + Sync {
    /// Reads bytes. Errors: `Io`.
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()>;
    /// Writes bytes. Errors: `Io`; some of the bytes may have been written.
    fn write(&self, offset: u64, source: &[u8]) -> Result<()>;
}

/// A tier on the heap. It starts full of garbage, so a read shows every byte that was never zeroed.
pub struct HeapTier {
    bytes: Mutex<Vec<u8>>,
}

impl HeapTier {
    /// Makes the bytes of all tiers of a namespace, one tier behind the other.
    pub fn new(geometry: &Geometry) -> HeapTier {
        let blocks: usize = geometry.tier_blocks.iter().map(|&blocks| blocks as usize).sum();
        let bytes = blocks * geometry.hugeblock_bytes as usize;
        HeapTier { bytes: Mutex::new(vec![0xdb; bytes]) }
    }
}

impl Tier for HeapTier {
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        target.copy_from_slice(&bytes[offset as usize..][..target.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes[offset as usize..][..source.len()].copy_from_slice(source);
        Ok(())
    }
}

/// Sets every word to zero. The time grows with the pages in use, not with the size of the segment.
/// Nobody else may use the segment meanwhile.
pub fn clear(memory: &HeapMemory) {
    const PAGE_BYTES: usize = 4096;
    let words = memory.words();
    let start = words.as_ptr() as usize;
    let whole =
        start.next_multiple_of(PAGE_BYTES)..(start + size_of_val(words)) & !(PAGE_BYTES - 1);
    let (before, behind) = ((whole.start - start) / 8, (whole.end - start) / 8);
    // SAFETY: the pages lie inside the words, which are private anonymous memory of this process.
    // After `MADV_DONTNEED` they read as zeros, and zero is a valid atomic word.
    let given_back =
        unsafe { libc::madvise(whole.start as *mut _, whole.len(), libc::MADV_DONTNEED) };
    assert_eq!(given_back, 0, "{}", std::io::Error::last_os_error());
    for word in words[..before].iter().chain(&words[behind..]) {
        word.store(0, Ordering::Relaxed);
    }
}

/// Returns the geometry of a small namespace: `blocks` hugeblocks of 4 KiB, at most `inodes`
/// inodes.
pub fn small_geometry(blocks: u32, inodes: u32) -> Geometry {
    let hugeblock_bytes = 4 << 10;
    let zeros = vec![0; hugeblock_bytes as usize];
    let mut geometry = Geometry::new(crate::path::MOUNT, [blocks, 0, 0, 0], CHECKSUM(0, &zeros));
    geometry.hugeblock_bytes = hugeblock_bytes;
    geometry.inode_capacity = inodes;
    geometry
}
