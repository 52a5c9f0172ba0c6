//! A tier whose bytes are on the heap, and a segment that several simulated processes share.

use cairn_core::{Checksum, Geometry, HeapMemory, Memory, Result};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

/// The checksum routine that tests hand to the core.
pub const CHECKSUM: Checksum = cairn_device::checksum::crc32c;

/// Bytes that a driver moves to and from. Ranges are those of the core's plans: outside the tier is
/// a bug.
pub trait Tier: Send + Sync {
    /// Fetches bytes. Errors: `Io`.
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()>;
    /// Stores bytes. Errors: `Io`; some of them may be stored.
    fn write(&self, offset: u64, source: &[u8]) -> Result<()>;
}

/// A tier on the heap, full of garbage at first: whatever shows up unwritten was never zeroed.
pub struct HeapTier {
    bytes: Mutex<Vec<u8>>,
}

impl HeapTier {
    /// The bytes of all tiers of a namespace, one after another.
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

/// Makes every word zero in time that grows with the pages in use, not with the segment. Nobody
/// else may use it.
pub fn clear(memory: &HeapMemory) {
    const PAGE_BYTES: usize = 4096;
    let words = memory.words();
    let start = words.as_ptr() as usize;
    let whole =
        start.next_multiple_of(PAGE_BYTES)..(start + size_of_val(words)) & !(PAGE_BYTES - 1);
    let (before, behind) = ((whole.start - start) / 8, (whole.end - start) / 8);
    // SAFETY: the pages lie inside the words, which are private memory of this process that the
    // allocator got from the kernel without a file: given back, they read as zeros, and a zeroed
    // atomic is a valid one.
    let given_back =
        unsafe { libc::madvise(whole.start as *mut _, whole.len(), libc::MADV_DONTNEED) };
    assert_eq!(given_back, 0, "{}", std::io::Error::last_os_error());
    for word in words[..before].iter().chain(&words[behind..]) {
        word.store(0, Ordering::Relaxed);
    }
}

/// A small namespace: `blocks` hugeblocks of 4 KiB, at most `inodes` inodes.
pub fn small_geometry(blocks: u32, inodes: u32) -> Geometry {
    let hugeblock_bytes = 4 << 10;
    let zeros = vec![0; hugeblock_bytes as usize];
    let mut geometry = Geometry::new(crate::path::MOUNT, [blocks, 0, 0, 0], CHECKSUM(0, &zeros));
    geometry.hugeblock_bytes = hugeblock_bytes;
    geometry.inode_capacity = inodes;
    geometry
}
