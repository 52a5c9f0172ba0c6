//! Upkeep of a namespace beside the calls of programs: sealing blocks, freeing orphans, counting.

use crate::data::map::Stretch;
use crate::engine::fs::Microfs;
use crate::engine::inode::{ABSENT, MAPPED_TO_STORE, MAYBE_STALE};
use crate::engine::run::BlockRun;
use crate::format::error::Result;
use crate::format::layout::{ATTACH_COUNT, ORPHAN_COUNT, PIN_COUNT, PROMOTED, SlabKind};
use crate::format::record::Operation;
use crate::format::types::{InodeId, SlotId, TIERS_MAX, Timestamp};
use crate::space::parts::PartUsage;
use std::array::from_fn;
use std::sync::atomic::Ordering;

/// Maximum number of stale blocks returned by one call.
const STALE_BATCH: usize = 64;
/// Extents examined under one lock.
const SCAN_BATCH: usize = 256;

/// A block whose checksum must be recomputed from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct StaleBlock {
    /// Index of the block in the file, hugeblocks.
    pub file_block: u32,
    /// Tier of the block.
    pub tier: u8,
    /// Index of the block on the tier.
    pub block: u32,
    /// Bytes that belong to the file; the rest of the block counts as zeros.
    pub bytes: u32,
}

/// Usage of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Unit of allocation, bytes.
    pub hugeblock_bytes: u64,
    /// Hugeblocks of each tier.
    pub total_blocks: [u64; TIERS_MAX],
    /// Hugeblocks in use on each tier, including orphaned and reserved ones.
    pub used_blocks: [u64; TIERS_MAX],
    /// Hugeblocks that were read on each tier and moved to a faster one.
    pub promoted_blocks: [u64; TIERS_MAX],
    /// Parts of the tier in memory; one if it is not divided among memory nodes.
    pub parts: Vec<PartUsage>,
    /// Inodes in use.
    pub inodes: u64,
    /// Maximum number of inodes.
    pub inode_capacity: u64,
    /// Deleted or emptied files whose blocks are not free yet.
    pub orphans: u64,
    /// Open-file descriptions.
    pub handles: u64,
    /// Process slots in use.
    pub processes: u64,
    /// Writes between plan and commit.
    pub pins: u64,
    /// Number of times a process attached since the namespace was made.
    pub attachments: u64,
}

impl Microfs {
    /// Fills `found` with blocks of `inode` whose checksums are void, at most 64. Returns the
    /// version of the data they belong to. Finds none in a file that some mapping may be stored to.
    /// Leaves out blocks whose checksums an image has as they were: they stay void.
    pub fn stale_blocks(&self, inode: InodeId, found: &mut Vec<StaleBlock>) -> Result<u64> {
        found.clear();
        found.reserve(STALE_BATCH);
        let mut file_block = 0;
        let mut first_version = None;
        let mut keeps_some = false;
        loop {
            let (version, next) = self.transact(|tx| {
                let inode = tx.recalled_inode(inode)?;
                let version = inode.version(tx);
                let unchanged = *first_version.get_or_insert(version) == version;
                if inode.flags(tx) & (MAYBE_STALE | MAPPED_TO_STORE) != MAYBE_STALE
                    || !inode.is_regular(tx)
                {
                    return Ok((version, None));
                }
                let map = inode.map(tx);
                for _ in 0..SCAN_BATCH {
                    let run = match tx.stretch(map, file_block) {
                        Stretch::Data(run) => run,
                        Stretch::Hole(u32::MAX) => {
                            let is_clean = found.is_empty() && !keeps_some;
                            if is_clean && unchanged && inode.pins(tx) == 0 {
                                inode.clear_flags(tx, MAYBE_STALE);
                                tx.close_blocks(inode);
                            }
                            return Ok((version, None));
                        }
                        Stretch::Hole(count) => {
                            file_block = file_block.saturating_add(count);
                            continue;
                        }
                    };
                    for index in 0..run.count {
                        if found.len() == STALE_BATCH {
                            return Ok((version, None));
                        }
                        if !tx.is_stale(run.tier, run.first + index) {
                            continue;
                        }
                        if tx.is_checksum_of_image(inode, run.tier, run.first + index) {
                            // The checksum stays void until the image has ended.
                            keeps_some = true;
                        } else {
                            let start = u64::from(file_block + index) << tx.layout.hugeblock_shift;
                            let left = inode.size(tx).saturating_sub(start);
                            found.push(StaleBlock {
                                file_block: file_block + index,
                                tier: run.tier,
                                block: run.first + index,
                                bytes: left.min(tx.layout.hugeblock_bytes) as u32,
                            });
                        }
                    }
                    let Some(next) = file_block.checked_add(run.count) else {
                        return Ok((version, None));
                    };
                    file_block = next;
                }
                Ok((version, Some(file_block)))
            })?;
            if next.is_none() {
                return Ok(version);
            }
        }
    }

    /// Seals blocks with checksums computed from their bytes. Returns false, with nothing done, if
    /// the data changed since `version` or are being written.
    pub fn seal(&self, inode: InodeId, version: u64, blocks: &[(StaleBlock, u32)]) -> Result<bool> {
        let may_begin = self.transact(|tx| Ok(tx.may_change_in_place(tx.inode(inode)?)))?;
        if !may_begin {
            self.sync()?;
        }
        self.transact(|tx| {
            let inode = tx.recalled_inode(inode)?;
            let is_stored_to = inode.flags(tx) & MAPPED_TO_STORE != 0;
            if inode.version(tx) != version || tx.is_written(inode) || is_stored_to {
                return Ok(false);
            }
            let map = inode.map(tx);
            for (stale, checksum) in blocks {
                let holds = matches!(
                    tx.stretch(map, stale.file_block),
                    Stretch::Data(run) if run.tier == stale.tier && run.first == stale.block
                );
                if !holds {
                    return Ok(false);
                }
                if tx.is_checksum_of_image(inode, stale.tier, stale.block) {
                    continue;
                }
                let old = tx.checksum(stale.tier, stale.block);
                tx.fold_checksum(stale.tier, stale.block, old ^ checksum);
                let run = BlockRun { tier: stale.tier, first: stale.block, count: 1 };
                tx.set_stale(run, false);
            }
            Ok(true)
        })
    }

    /// Fills `found` with the checksums of consecutive file blocks; `None` for holes and stale
    /// blocks. Bytes past the end of the file count as zeros, whatever the last block holds there.
    pub fn checksums(
        &self,
        inode: InodeId,
        first_file_block: u32,
        found: &mut [Option<u32>],
    ) -> Result<()> {
        self.transact(|tx| {
            let inode = tx.recalled_inode(inode)?;
            if inode.is_packed(tx) {
                found.fill(None);
                if let Some(found) = found.first_mut().filter(|_| first_file_block == 0) {
                    *found = Some(inode.packed_checksum(tx));
                }
                return Ok(());
            }
            let map = inode.map(tx);
            let mut at = 0;
            while at < found.len() {
                let file_block = first_file_block.saturating_add(at as u32);
                let left = found.len() - at;
                match tx.stretch(map, file_block) {
                    Stretch::Hole(count) => {
                        let count = left.min(count.max(1) as usize);
                        found[at..at + count].fill(None);
                        at += count;
                    }
                    Stretch::Data(run) => {
                        for index in 0..run.count.min(left as u32) {
                            let block = run.first + index;
                            found[at] = (!tx.is_stale(run.tier, block))
                                .then(|| tx.checksum(run.tier, block));
                            at += 1;
                        }
                        if run.count == 0 {
                            tx.mark_corrupt("empty extent");
                            return Ok(());
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Frees a bounded batch of orphaned blocks, warm for `slot`. Returns true if more can be freed
    /// at once. On a durable tier, blocks wait until a `sync` has made durable that they are free.
    pub fn reclaim(&self, slot: Option<SlotId>) -> Result<bool> {
        self.transact(|tx| {
            let slot = slot.map(|slot| tx.slot(slot)).transpose()?;
            tx.leave_limbo();
            tx.reclaim_batch(slot)
        })
    }

    /// Returns the number of deleted or emptied files whose blocks are not free yet. Takes no lock.
    pub fn orphans(&self) -> u64 {
        self.memory().words()[ORPHAN_COUNT].load(Ordering::Relaxed)
    }

    /// Records that `version` of the file is drained and verified. Does nothing if the file has
    /// another version, or is gone and its record used by another file. Does nothing for an absent
    /// file, which counts as drained in any case.
    pub fn mark_drained(&self, inode: InodeId, version: u64, now: Timestamp) -> Result<()> {
        self.transact(|tx| {
            let inode = tx.inode(inode)?;
            let is_it = inode.is_regular(tx) && inode.links(tx) > 0 && inode.version(tx) == version;
            if !is_it || inode.flags(tx) & ABSENT != 0 {
                return Ok(());
            }
            inode.set_drained_version(tx, version);
            tx.log(Operation::Drained, now, &[u64::from(inode.id.0), version], &[]);
            Ok(())
        })
    }

    /// Returns the usage of the namespace.
    pub fn usage(&self) -> Result<Usage> {
        self.transact(|tx| {
            let tiers = tx.layout.tiers;
            Ok(Usage {
                hugeblock_bytes: tx.layout.hugeblock_bytes,
                total_blocks: tiers.map(|tier| u64::from(tier.blocks)),
                used_blocks: tiers.map(|tier| tx.get(tier.counters)),
                promoted_blocks: from_fn(|tier| tx.get(PROMOTED + tier)),
                parts: tx.part_usage(),
                inodes: tx.records_in_use(SlabKind::Inode),
                inode_capacity: u64::from(tx.layout.slab(SlabKind::Inode).capacity),
                orphans: tx.get(ORPHAN_COUNT),
                handles: tx.records_in_use(SlabKind::Handle),
                processes: tx.records_in_use(SlabKind::Slot),
                pins: tx.get(PIN_COUNT),
                attachments: tx.get(ATTACH_COUNT),
            })
        })
    }
}
