//! Media without faults: what a power failure left, or what a test starts from.

use cairn_core::{Media, Memory, Result};
use cairn_device::Workspace;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pages::Pages;
use super::tier::ByteMedia;
use super::{assert_whole_blocks, check_range};

/// The bytes of media. Images share their common pages, so a clone, a change and a crash image are
/// cheap. Every write is durable at once.
pub struct Image {
    pages: Mutex<Pages>,
}

impl Image {
    /// Returns media of `bytes` bytes, a multiple of the media block, all of them `fill`.
    pub fn filled(bytes: u64, fill: u8) -> Image {
        Image::from(Pages::filled(bytes, fill))
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let pages = self.lock();
        let mut bytes = vec![0; pages.bytes() as usize];
        pages.read(0, &mut bytes);
        bytes
    }

    pub(super) fn pages(&self) -> Pages {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Pages> for Image {
    fn from(pages: Pages) -> Image {
        Image { pages: Mutex::new(pages) }
    }
}

impl Clone for Image {
    fn clone(&self) -> Image {
        Image::from(self.pages())
    }
}

impl Media for Image {
    fn bytes(&self) -> u64 {
        self.lock().bytes()
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        assert_whole_blocks(offset, target.len());
        self.read_bytes(offset, target)
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        assert_whole_blocks(offset, source.len());
        self.write_bytes(offset, source)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Workspace::new(words)?))
    }
}

impl ByteMedia for Image {
    fn read_bytes(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let pages = self.lock();
        check_range(&pages, offset, target.len())?;
        pages.read(offset, target);
        Ok(())
    }

    fn write_bytes(&self, offset: u64, source: &[u8]) -> Result<()> {
        let mut pages = self.lock();
        check_range(&pages, offset, source.len())?;
        pages.write(offset, source);
        Ok(())
    }
}
