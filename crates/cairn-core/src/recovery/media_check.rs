//! Opening a durable namespace, and the check that its media are still the same.
//!
//! Does not recover.

use crate::engine::durable::Durable;
use crate::engine::fs::Microfs;
use crate::format::error::{Error, Result};
use crate::format::layout::{Checksum, MEDIA_EPOCH};
use crate::format::media::Media;
use crate::format::memory::Memory;
use crate::format::superblock::Superblock;
use crate::recovery::snapshot;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Checks whether media are still those of an open namespace.
#[derive(Clone)]
pub struct MediaCheck {
    superblock: Superblock,
    checksum: Checksum,
    epoch: Option<u64>,
}

impl MediaCheck {
    /// Creates the check for the media with this superblock, from which the namespace in `memory`
    /// was made.
    pub fn new(memory: &dyn Memory, superblock: Superblock, checksum: Checksum) -> MediaCheck {
        let epoch = memory.words().get(MEDIA_EPOCH).map(|word| word.load(Ordering::Relaxed));
        MediaCheck { superblock, checksum, epoch }
    }

    /// Whether another store recovered the media. False for media without a valid snapshot. Errors:
    /// `Io`.
    pub fn was_recovered(&self, media: &dyn Media) -> Result<bool> {
        let found = snapshot::epoch(media, &self.superblock, self.checksum)?;
        Ok(found.is_some() && found != self.epoch)
    }

    /// Checks the media. Errors: `Corrupt` if another store recovered them, or they hold something
    /// else; `Io`.
    pub fn check(&self, media: &dyn Media) -> Result<()> {
        match snapshot::epoch(media, &self.superblock, self.checksum)? == self.epoch {
            true => Ok(()),
            false => Err(Error::Corrupt { what: "media that another store recovered meanwhile" }),
        }
    }
}

impl Microfs {
    /// Opens an existing namespace that was made by
    /// [`recover`](crate::recovery::recover::recover()) from this media. The media of its `further`
    /// tiers, where they have any, hold the data of these. Errors: as `open`; `Invalid` if the
    /// namespace is not durable.
    pub fn open_durable(
        memory: Box<dyn Memory>,
        checksum: Checksum,
        media: Arc<dyn Media>,
        further: Vec<Arc<dyn Media>>,
    ) -> Result<Microfs> {
        let superblock = Superblock::read(media.as_ref(), checksum)?;
        let first = Arc::clone(&media);
        let (fs, check) = Microfs::open_unseen(memory, checksum, media, further, superblock)?;
        check.check(first.as_ref()).map(|()| fs)
    }

    /// Does the same as `open_durable` for media that cannot be read yet. The media must pass the
    /// returned check before anything on them is used.
    pub fn open_unseen(
        memory: Box<dyn Memory>,
        checksum: Checksum,
        media: Arc<dyn Media>,
        further: Vec<Arc<dyn Media>>,
        superblock: Superblock,
    ) -> Result<(Microfs, MediaCheck)> {
        let check = MediaCheck::new(memory.as_ref(), superblock.clone(), checksum);
        let durable = Durable::new(media, further, superblock);
        Ok((Microfs::open_any(memory, checksum, Some(durable))?, check))
    }
}
