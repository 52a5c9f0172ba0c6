//! Media in memory, for rows that measure the core and not a disk.
//!
//! Pages exist only once they are written, so the media may be as large as a real tier.
//!
//! Does not lose any data; the media of the library's `faulty.rs` do.

use cairn_core::{Error, Media, Memory, Result};
use cairn_device::Workspace;
use std::sync::atomic::Ordering;

/// Media in memory.
pub struct MemoryMedia(Workspace);

impl MemoryMedia {
    /// Makes zeroed media of `bytes` bytes.
    pub fn new(bytes: u64) -> MemoryMedia {
        MemoryMedia(Workspace::new(bytes as usize / 8).expect("address space"))
    }

    fn range(&self, offset: u64, length: usize) -> Result<std::ops::Range<usize>> {
        let first = offset as usize / 8;
        let range = first..first + length / 8;
        match range.end <= self.0.words().len() {
            true => Ok(range),
            false => Err(Error::Corrupt { what: "range outside the media" }),
        }
    }
}

impl Media for MemoryMedia {
    fn bytes(&self) -> u64 {
        self.0.words().len() as u64 * 8
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let words = &self.0.words()[self.range(offset, target.len())?];
        for (bytes, word) in target.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Ok(())
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        let words = &self.0.words()[self.range(offset, source.len())?];
        for (bytes, word) in source.chunks_exact(8).zip(words) {
            let bytes = bytes.try_into().expect("eight bytes");
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Workspace::new(words)?))
    }
}
