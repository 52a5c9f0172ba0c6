//! Disk with a volatile cache: after a power failure it holds the durable bytes and any subset of
//! the sectors written since the last flush. In persistent memory it is words instead of sectors.
//!
//! Must stay true: only an `Effect` changes a disk, so that a recorded run and its replay cannot
//! differ.

use super::image::Image;
use super::pages::Pages;
use super::survivors::Survivors;
use std::ops::Range;
use std::sync::Arc;

/// A write of whole sectors that is not flushed yet.
#[derive(Clone)]
pub(super) struct Write {
    pub offset: u64,
    pub bytes: Arc<[u8]>,
}

/// Effect of an access on the disk.
pub(super) enum Effect {
    /// Wrote sectors, in several pieces if some of them were left out.
    Write(Vec<Write>),
    /// Flushed: these sectors are durable, the others are lost.
    Settle(Survivors),
    /// Claimed to have flushed.
    Nothing,
    /// Flipped a bit, counted from the start of the media, wherever its sector is kept.
    Flip(u64),
}

impl Effect {
    /// Whether it is an operation, before and after which the power can fail.
    pub fn is_operation(&self) -> bool {
        !matches!(self, Effect::Flip(_))
    }
}

#[derive(Clone)]
pub(super) struct Disk {
    /// Size of a sector in bytes, a power of two.
    sector_bytes: usize,
    durable: Pages,
    pending: Vec<Write>,
}

impl Disk {
    /// Returns a disk on which everything is durable.
    pub fn new(durable: Pages, sector_bytes: usize) -> Disk {
        Disk { sector_bytes, durable, pending: Vec::new() }
    }

    /// Size of a sector in bytes.
    pub fn sector_bytes(&self) -> usize {
        self.sector_bytes
    }

    pub fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Write(writes) => self.pending.extend_from_slice(writes),
            Effect::Settle(survivors) => {
                land(&mut self.durable, &self.pending, survivors, self.sector_bytes);
                self.pending.clear();
            }
            Effect::Nothing => {}
            Effect::Flip(bit) => self.flip(*bit),
        }
    }

    /// Number of sectors of each write since the last flush, in order.
    pub fn pending(&self) -> Vec<usize> {
        lengths(&self.pending, self.sector_bytes)
    }

    /// Returns what is on the disk after a power failure.
    pub fn image(&self, survivors: &Survivors) -> Image {
        let mut pages = self.durable.clone();
        land(&mut pages, &self.pending, survivors, self.sector_bytes);
        Image::from(pages)
    }

    fn flip(&mut self, bit: u64) {
        self.durable.flip(bit);
        for write in &mut self.pending {
            if let Some(at) = (bit / 8).checked_sub(write.offset) {
                let mut bytes = write.bytes.to_vec();
                if let Some(byte) = bytes.get_mut(at as usize) {
                    *byte ^= 1 << (bit % 8);
                    write.bytes = bytes.into();
                }
            }
        }
    }
}

fn lengths(writes: &[Write], sector_bytes: usize) -> Vec<usize> {
    writes.iter().map(|write| write.bytes.len() / sector_bytes).collect()
}

/// Writes the surviving sectors to `pages`.
fn land(pages: &mut Pages, pending: &[Write], survivors: &Survivors, sector_bytes: usize) {
    if *survivors == Survivors::None {
        return;
    }
    let lengths = lengths(pending, sector_bytes);
    let mask = survivors.mask(&lengths);
    let mut first = 0;
    for (write, length) in pending.iter().zip(lengths) {
        for run in surviving_runs(&mask[first..][..length], sector_bytes) {
            pages.write(write.offset + run.start as u64, &write.bytes[run]);
        }
        first += length;
    }
}

/// Returns the surviving byte ranges of a write, with adjacent sectors joined.
pub(super) fn surviving_runs(
    mask: &[bool],
    sector_bytes: usize,
) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    mask.chunk_by(|left, right| left == right).filter_map(move |run| {
        let start = at;
        at += run.len() * sector_bytes;
        run[0].then_some(start..at)
    })
}
