//! Data part of media as the tier that a driver moves bytes to, so that data and metadata crash
//! together.

use cairn_core::{Media, Result};
use std::sync::Arc;

use crate::tier::Tier;

/// Converts an object of a subtrait to media. Rust does this by itself only from 1.86 on.
pub trait AsMedia {
    /// Returns the same object.
    fn as_media(self: Arc<Self>) -> Arc<dyn Media>;
}

impl<M: Media + 'static> AsMedia for M {
    fn as_media(self: Arc<Self>) -> Arc<dyn Media> {
        self
    }
}

/// Media with access at any byte. A write reads, changes and writes the sectors that it touches.
pub trait ByteMedia: Media + AsMedia {
    /// Reads bytes. Errors: as `Media::read`.
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()>;
    /// Writes bytes. Errors: as `Media::write`.
    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()>;
}

/// The bytes of media from `data_offset` on.
pub struct MediaTier {
    media: Arc<dyn ByteMedia>,
    data_offset: u64,
}

impl MediaTier {
    /// Returns the tier whose block 0 is at `data_offset`.
    pub fn new(media: Arc<dyn ByteMedia>, data_offset: u64) -> MediaTier {
        MediaTier { media, data_offset }
    }
}

impl Tier for MediaTier {
    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.media.read_bytes(self.data_offset + offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        self.media.write_bytes(self.data_offset + offset, source)
    }
}
