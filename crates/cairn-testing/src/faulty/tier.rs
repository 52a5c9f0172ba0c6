//! The data part of media as the tier that a driver moves bytes to, so that data and metadata crash
//! together.

use crate::tier::Tier;
use cairn_core::{Media, Result};
use std::sync::Arc;

/// The way from an object known as another trait's to media; Rust converts the objects itself from
/// 1.86 on.
pub trait AsMedia {
    /// The same object.
    fn as_media(self: Arc<Self>) -> Arc<dyn Media>;
}

impl<M: Media + 'static> AsMedia for M {
    fn as_media(self: Arc<Self>) -> Arc<dyn Media> {
        self
    }
}

/// Media that can be reached at any byte; a write reads, changes and writes the sectors it touches.
pub trait ByteMedia: Media + AsMedia {
    /// Fetches bytes. Errors: as `Media::read`.
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()>;
    /// Stores bytes. Errors: as `Media::write`.
    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()>;
}

/// The bytes of media from `data_offset` on.
pub struct MediaTier {
    media: Arc<dyn ByteMedia>,
    data_offset: u64,
}

impl MediaTier {
    /// The tier whose block 0 is at `data_offset`.
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
