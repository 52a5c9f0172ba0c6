//! Regions: where the bytes of a file are, for tools that copy them past the store. These are
//! CRUISE's data region and list of chunks (section III-D), with a generation, so that the copy
//! need not stop the writers.
//!
//! Invariant: if two looks at a file give the same even generation, no byte and no place changed in
//! between. An odd generation means that a write is in flight, or a mapping may be stored to.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{Inode, MAPPED_TO_STORE};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::SlabKind;
use crate::format::types::{Attributes, InodeId, MODE_REGULAR, Timestamp};
use std::sync::atomic::{Ordering, fence};

/// Hugeblocks examined under one lock.
const BATCH: usize = 256;
/// Inodes examined under one lock.
const INODES_BATCH: u32 = 1024;

/// A piece of a file in one hugeblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Bytes that belong to the file.
    pub length: u32,
    /// Tier.
    pub tier: u8,
    /// Offset on that tier, bytes.
    pub tier_offset: u64,
    /// CRC32C of the piece followed by zeros up to a hugeblock; `None` while the checksum is void.
    pub crc32c: Option<u32>,
}

/// Result of one look at the regions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Generation of the file; see the head of this module.
    pub generation: u64,
    /// Length of the file, bytes.
    pub size: u64,
    /// Number of regions found.
    pub count: usize,
}

/// How many files of a namespace are drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Regular files with a name.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files that are not drained in their newest version.
    pub undrained_files: u64,
    /// Bytes of the undrained files.
    pub undrained_bytes: u64,
    /// Files that are not what their programs wanted: the writer died, or found no room, or a part
    /// is lost.
    pub unclean_files: u64,
    /// Files whose data are still where they were drained to; they count as drained.
    pub absent_files: u64,
    /// Bytes of the absent files.
    pub absent_bytes: u64,
}

impl Transaction<'_> {
    fn generation(&self, inode: Inode) -> u64 {
        let is_changing = self.is_written(inode) || inode.flags(self) & MAPPED_TO_STORE != 0;
        let changes = inode.version(self).wrapping_add(u64::from(inode.moves(self)));
        changes.wrapping_mul(2).wrapping_add(u64::from(is_changing))
    }

    /// Fills `found` with the regions from file block `block` on. Returns their number.
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
    /// Fills `found` with the regions of a file, from the hugeblock that has `offset` on, at most
    /// 256 of them. Holes are left out. Errors: `NotFound`; `IsDirectory`; `Io`: a part of the file
    /// is lost; `Absent`; `Packed`.
    pub fn regions(&self, inode: InodeId, offset: u64, found: &mut [Region]) -> Result<Look> {
        // The caller's earlier copies happen before this look at the words.
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

    /// Counts what is drained. Works in batches: a change meanwhile may be counted as before or
    /// after.
    pub fn survey(&self) -> Result<Survey> {
        self.survey_since(Timestamp(i64::MAX), &mut |_| {})
    }

    /// Does the same, and shows the files that were changed at `since` or later.
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
    /// Counts a regular file with a name, and returns its attributes; `None` for any other inode.
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
        }
        self.unclean_files += u64::from(attributes.unclean || attributes.lost);
        Some(attributes)
    }
}
