//! Where the bytes of a file stand, for whoever copies them past the store: CRUISE's data region
//! and list of chunks (section III-D), with a generation, so that the copy need not stop the
//! writers.
//!
//! Invariant: of two looks at a file that give the same even generation, nothing has changed a byte
//! or a place between. Odd: a write is in flight, or a mapping may be stored to.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, MAPPED_TO_STORE};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::SlabKind;
use crate::format::types::{Attributes, InodeId, MODE_REGULAR, Timestamp};
use std::sync::atomic::{Ordering, fence};

/// Hugeblocks looked at under one lock.
const BATCH: usize = 256;
/// Inodes looked at under one lock.
const INODES_BATCH: u32 = 1024;

/// A piece of a file in one hugeblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Where it is in the file, bytes.
    pub offset: u64,
    /// Bytes that belong to the file.
    pub length: u32,
    /// Its tier.
    pub tier: u8,
    /// Where it is on that tier, bytes.
    pub tier_offset: u64,
    /// CRC32C of the piece followed by zeros up to a hugeblock; `None` while that is void.
    pub crc32c: Option<u32>,
}

/// A look at the regions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// See the head of this module.
    pub generation: u64,
    /// Length of the file, bytes.
    pub size: u64,
    /// Regions found.
    pub count: usize,
}

/// How many files of a namespace are safe where they are drained to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Regular files with a name.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of those, not drained in their newest version.
    pub undrained_files: u64,
    /// Their bytes.
    pub undrained_bytes: u64,
    /// Of the undrained ones, those that never will be: the writer died, or found no room, or a
    /// part is lost.
    pub unclean_files: u64,
    /// Files whose data are still where they were drained to; they count as drained.
    pub absent_files: u64,
    /// Their bytes.
    pub absent_bytes: u64,
}

impl Transaction<'_> {
    fn generation(&self, inode: Inode) -> u64 {
        let is_changing = self.is_written(inode) || inode.flags(self) & MAPPED_TO_STORE != 0;
        let changes = inode.version(self).wrapping_add(u64::from(inode.moves(self)));
        changes.wrapping_mul(2).wrapping_add(u64::from(is_changing))
    }

    /// Fills `found` with the regions from file block `block` on.
    fn regions(&self, inode: Inode, mut block: u32, found: &mut [Region]) -> usize {
        let (shift, block_bytes) = (self.layout.hugeblock_shift, self.layout.hugeblock_bytes);
        let size = inode.size(self);
        let map = inode.map(self);
        let mut count = 0;
        while count < found.len() && u64::from(block) << shift < size {
            let run = match self.stretch(map, block) {
                Stretch::Data(run) => run,
                Stretch::Hole(u32::MAX) => break,
                Stretch::Hole(blocks) => {
                    block = block.saturating_add(blocks.max(1));
                    continue;
                }
            };
            for index in 0..run.count.min((found.len() - count) as u32) {
                let offset = u64::from(block) << shift;
                if offset >= size {
                    break;
                }
                let place = run.first + index;
                let is_void = self.is_stale(run.tier, place);
                found[count] = Region {
                    offset,
                    length: (size - offset).min(block_bytes) as u32,
                    tier: run.tier,
                    tier_offset: u64::from(place) << shift,
                    crc32c: (!is_void).then(|| self.checksum(run.tier, place)),
                };
                count += 1;
                block = block.saturating_add(1);
            }
            if run.count == 0 {
                self.mark_corrupt("empty extent");
                break;
            }
        }
        count
    }
}

impl Microfs {
    /// The regions of a file from the hugeblock on in which `offset` is, holes left out, at most
    /// 256 of them.
    /// Errors: `NotFound`; `IsDirectory`; `Io`: a part of the file is lost; `Absent`; `Packed`.
    pub fn regions(&self, inode: InodeId, offset: u64, found: &mut [Region]) -> Result<Look> {
        // What the caller has copied before was read before the words that are looked at now.
        fence(Ordering::SeqCst);
        let most = found.len().min(BATCH);
        self.transact(|tx| {
            let inode = tx.recalled_inode(inode)?;
            if !inode.is_regular(tx) {
                return Err(Error::IsDirectory);
            }
            inode.require_whole(tx)?;
            let block = u32::try_from(offset >> tx.layout.hugeblock_shift).unwrap_or(u32::MAX);
            Ok(Look {
                count: tx.regions(inode, block, &mut found[..most]),
                generation: tx.generation(inode),
                size: inode.size(tx),
            })
        })
    }

    /// Counts what is drained, in batches: what changes meanwhile may be counted as before or
    /// after.
    pub fn survey(&self) -> Result<Survey> {
        self.survey_since(Timestamp(i64::MAX), &mut |_| {})
    }

    /// The same, and shows those of the files that were changed at `since` or later.
    pub fn survey_since(
        &self,
        since: Timestamp,
        show: &mut dyn FnMut(&Attributes),
    ) -> Result<Survey> {
        let mut survey = Survey::default();
        let mut next = 0u32;
        loop {
            let end = self.transact(|tx| {
                let end = tx.records_end(SlabKind::Inode);
                for number in next..end.min(next.saturating_add(INODES_BATCH)) {
                    if let Ok(inode) = tx.inode(InodeId(number)) {
                        tx.recall(inode)?;
                        let counted = survey.add(tx, inode);
                        counted.filter(|found| found.changed >= since).iter().for_each(&mut *show);
                    }
                }
                Ok(end)
            })?;
            next = next.saturating_add(INODES_BATCH);
            if next >= end {
                return Ok(survey);
            }
        }
    }
}

impl Survey {
    /// Counts a regular file with a name; what it is.
    fn add(&mut self, tx: &Transaction, inode: Inode) -> Option<Attributes> {
        let attributes = inode.attributes(tx);
        if inode.kind(tx) != MODE_REGULAR || attributes.links == 0 || inode.is_pack(tx) {
            return None;
        }
        self.files += 1;
        self.bytes += attributes.size;
        if attributes.absence.is_some() {
            self.absent_files += 1;
            self.absent_bytes += attributes.size;
        }
        if !attributes.is_drained() {
            self.undrained_files += 1;
            self.undrained_bytes += attributes.size;
            self.unclean_files += u64::from(attributes.unclean || attributes.lost);
        }
        Some(attributes)
    }
}
