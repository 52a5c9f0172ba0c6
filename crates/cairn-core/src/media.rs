//! What survives the loss of the node's memory, as the core sees it: blocks that are read, written and flushed.
//!
//! A crash keeps any subset of the sectors written since the last flush; a sector is either the old or the new one
//! as a whole. Everything else is an error or a fault that checksums must find.
//! Does not move the bytes of files; `cairn-device` does, on the same media.

use crate::error::Result;

/// Unit of every access, bytes.
pub const MEDIA_BLOCK_BYTES: usize = 4096;
/// What a crash leaves whole, bytes.
pub const SECTOR_BYTES: usize = 512;

/// The media of a durable tier. Offsets and lengths are multiples of [`MEDIA_BLOCK_BYTES`].
pub trait Media: Send + Sync {
    /// Size in bytes, metadata and data.
    fn bytes(&self) -> u64;

    /// Fetches bytes. Errors: `Io`; `Corrupt` for a range outside.
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()>;

    /// Stores bytes; durable only after `flush`. Errors: as `read`.
    fn write(&self, offset: u64, source: &[u8]) -> Result<()>;

    /// Returns when everything written before, by any process, is durable. Errors: `Io`: it may or may not be, and
    /// must be written again.
    fn flush(&self) -> Result<()>;
}
