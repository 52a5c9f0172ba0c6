//! Media as the core sees them: blocks that are read, written and flushed, and survive the loss of
//! the node's memory.
//!
//! A crash keeps any subset of the sectors written since the last flush; each sector is either the
//! old or the new one as a whole. On persistent memory a crash keeps any subset of the words.
//! Everything else is an error or a fault that checksums must find.
//!
//! Does not move the bytes of files; `cairn-device` does, on the same media.

use crate::format::error::Result;
use crate::format::memory::{HeapMemory, Memory};
use crate::format::types::ProcessIdentity;

/// Unit of every access, bytes.
pub const MEDIA_BLOCK_BYTES: usize = 4096;
/// Unit of every access, words.
pub(crate) const MEDIA_BLOCK_WORDS: usize = MEDIA_BLOCK_BYTES / 8;
/// Unit that a crash of a disk keeps whole, bytes.
pub const SECTOR_BYTES: usize = 512;

/// The media of a durable tier. Offsets and lengths are multiples of [`MEDIA_BLOCK_BYTES`].
pub trait Media: Send + Sync {
    /// Size in bytes, metadata and data.
    fn bytes(&self) -> u64;

    /// Reads bytes at `offset`. Errors: `Io`; `Corrupt` for a range outside the media.
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()>;

    /// Writes bytes at `offset`; durable only after `flush`. Errors: as `read`.
    fn write(&self, offset: u64, source: &[u8]) -> Result<()>;

    /// Returns when everything written before, by any process, is durable. Errors: `Io`: it may or
    /// may not be durable, and must be written again.
    fn flush(&self) -> Result<()>;

    /// Gives `owner`, whose work the caller waits for, time to go on; `round` counts the calls.
    /// Returns true if `owner` does not exist any more.
    fn wait_for(&self, owner: ProcessIdentity, round: u32) -> bool {
        let _ = (owner, round);
        std::thread::yield_now();
        false
    }

    /// Returns zeroed private memory to rebuild a namespace in. Errors: `NoSpace`.
    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(HeapMemory::new(words)))
    }
}

/// Writes words at a media block, little-endian, padded with zeros to whole blocks.
pub(crate) fn write_words(media: &dyn Media, offset: u64, words: &[u64]) -> Result<()> {
    let mut bytes = Vec::with_capacity((words.len() * 8).next_multiple_of(MEDIA_BLOCK_BYTES));
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(MEDIA_BLOCK_BYTES), 0);
    media.write(offset, &bytes)
}

/// Reads whole media blocks as words.
pub(crate) fn read_words(media: &dyn Media, offset: u64, words: &mut [u64]) -> Result<()> {
    debug_assert_eq!(words.len() % MEDIA_BLOCK_WORDS, 0);
    let mut bytes = vec![0; words.len() * 8];
    media.read(offset, &mut bytes)?;
    for (word, source) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(source);
        *word = u64::from_le_bytes(bytes);
    }
    Ok(())
}
