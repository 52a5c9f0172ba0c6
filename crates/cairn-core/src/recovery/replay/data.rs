//! Records of the log that change the data of files: blocks, lengths, seals, extended attributes.

use super::{HAS_SEAL, Rest, Seal, WRITING, contradiction};
use crate::data::coalesce::Strides;
use crate::data::map::{Extent, Stretch};
use crate::engine::inode::{ABSENT, Inode, LOST, MAYBE_STALE, OPENED, TORN, UNCLEAN};
use crate::engine::run::BlockRun;
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::record::{Operation, Record};
use crate::format::types::Timestamp;
use crate::namespace::extended::is_well_formed;

/// Maximum number of pieces of a file that one record replaces: each may split a node on every
/// level of the tree.
const REPLACED_PIECES_MAX: usize = 16;

/// Does the same as `attach` for the values of a record.
pub(super) fn attach_run(
    tx: &mut Transaction,
    inode: Inode,
    file_block: u64,
    run: u64,
) -> Result<()> {
    let file_block =
        u32::try_from(file_block).map_err(|_| Error::Corrupt { what: "file block" })?;
    attach(tx, inode, Extent { file_block, blocks: BlockRun::unpack(run) })
}

/// Adds blocks to a file. Refuses blocks that are not free, and places that are not a hole.
pub(super) fn attach(tx: &mut Transaction, inode: Inode, extent: Extent) -> Result<()> {
    let Extent { file_block, blocks } = extent;
    take_free(tx, inode, extent)?;
    let hole = matches!(
        tx.stretch(inode.map(tx), file_block),
        Stretch::Hole(count) if count >= blocks.count
    );
    if !hole {
        return contradiction("block given away twice");
    }
    tx.attach(inode, extent)
}

/// Marks the blocks of an extent as used. Refuses blocks that are not free, and places that are not
/// below the file's size.
fn take_free(tx: &mut Transaction, inode: Inode, extent: Extent) -> Result<()> {
    let Extent { file_block, blocks } = extent;
    let tier = tx.layout.tiers.get(blocks.tier as usize);
    let inside = tier.is_some_and(|tier| blocks.end() <= tier.blocks);
    let size_blocks = inode.size(tx).div_ceil(tx.layout.hugeblock_bytes);
    let end = file_block.checked_add(blocks.count);
    if blocks.count == 0 || !inside || end.is_none_or(|end| u64::from(end) > size_blocks) {
        return contradiction("run of blocks");
    }
    if (0..blocks.count).any(|index| tx.is_used(blocks.tier, blocks.first + index)) {
        return contradiction("block given away twice");
    }
    tx.mark_used(blocks);
    Ok(())
}

/// Replaces blocks of a file with free ones, and frees the old ones.
fn replace(tx: &mut Transaction, inode: Inode, extent: Extent) -> Result<()> {
    let Extent { file_block, blocks } = extent;
    take_free(tx, inode, extent)?;
    let mut done = 0;
    // What one write replaces is in few pieces: it was in one when the record was written.
    for _ in 0..REPLACED_PIECES_MAX {
        let Stretch::Data(old) = tx.stretch(inode.map(tx), file_block + done) else { break };
        let count = old.count.min(blocks.count - done);
        let piece = BlockRun { first: blocks.first + done, count, ..blocks };
        tx.replace_blocks(inode, file_block + done, piece)?;
        done += count;
        if done == blocks.count {
            return Ok(());
        }
    }
    contradiction("blocks that are replaced")
}

/// Replaces the extended attributes of a file or directory by those in `text`.
pub(super) fn set_extended(tx: &mut Transaction, inode: Inode, text: &[u8]) -> Result<()> {
    let may_have_any = inode.is_regular(tx) || inode.is_directory(tx);
    match may_have_any && is_well_formed(text) {
        true => tx.store_extended(inode, text),
        false => contradiction("extended attributes"),
    }
}

pub(super) fn set_seal(tx: &mut Transaction, inode: Inode, seal: u64) {
    match seal >> 32 {
        0 => inode.clear_flags(tx, HAS_SEAL),
        _ => {
            inode.add_flags(tx, HAS_SEAL);
            inode.set_sealed_crc(tx, seal as u32);
        }
    }
}

pub(super) fn change(tx: &mut Transaction, record: &Record, inode: Inode) -> Result<Option<Rest>> {
    let p = record.parameters;
    match record.operation {
        Operation::Close => {
            inode.set_version(tx, p[1]);
            match p[2] & 1 {
                0 => inode.clear_flags(tx, UNCLEAN),
                _ => inode.add_flags(tx, UNCLEAN | TORN),
            }
            if p[2] & 2 == 0 {
                inode.clear_flags(tx, WRITING);
            }
        }
        // For an absent file this field holds something else.
        Operation::Drained if inode.flags(tx) & ABSENT != 0 => {}
        Operation::Drained => inode.set_drained_version(tx, p[1]),
        // Whoever changes it in place has it open, and closes it in order or not at all.
        Operation::Opened => inode.add_flags(tx, OPENED | WRITING),
        Operation::Sealed => {
            inode.clear_flags(tx, OPENED);
            set_seal(tx, inode, p[1]);
        }
        Operation::Truncate => return truncate(tx, inode, p[1], record.time),
        Operation::Absent => return begin_absence(tx, inode, p).map(Some),
        Operation::Present => end_absence(tx, inode)?,
        Operation::Strides => return write_strides(tx, inode, p, record.time).map(Some),
        Operation::Replace => write_replacement(tx, inode, p, record.time)?,
        _ => write(tx, inode, p, record.time)?,
    }
    Ok(None)
}

/// Makes a file absent; its times do not change.
fn begin_absence(tx: &mut Transaction, inode: Inode, p: &[u64]) -> Result<Rest> {
    if !file_fits(tx, p[1]) || p[2] > u64::from(u32::MAX) {
        return contradiction("data that are elsewhere");
    }
    inode.clear_flags(tx, UNCLEAN | TORN | LOST | WRITING);
    inode.add_flags(tx, ABSENT);
    set_seal(tx, inode, 0);
    inode.set_size(tx, p[1]);
    inode.set_drained_version(tx, p[2]);
    inode.set_version(tx, p[3]);
    Ok(Rest::Cut { inode: inode.id, from_block: 0 })
}

fn end_absence(tx: &mut Transaction, inode: Inode) -> Result<()> {
    if inode.flags(tx) & ABSENT == 0 {
        return contradiction("data that were here before");
    }
    inode.clear_flags(tx, ABSENT | UNCLEAN | TORN | WRITING);
    let version = inode.version(tx);
    inode.set_drained_version(tx, version);
    Ok(())
}

pub(super) fn write(tx: &mut Transaction, inode: Inode, p: &[u64], now: Timestamp) -> Result<()> {
    let Some(end) = p[1].checked_add(p[2]) else { return contradiction("end of a write") };
    grow(tx, inode, end, p[5], now)?;
    match p[4] {
        0 => Ok(()),
        run => attach_run(tx, inode, p[3], run),
    }
}

/// Does the same as `write` for blocks that replace others. With length 0 it changes nothing else:
/// the file has the same data.
fn write_replacement(tx: &mut Transaction, inode: Inode, p: &[u64], now: Timestamp) -> Result<()> {
    let Some(end) = p[1].checked_add(p[2]) else { return contradiction("end of a write") };
    if p[2] > 0 {
        grow(tx, inode, end, p[5], now)?;
    }
    let file_block = u32::try_from(p[3]).map_err(|_| Error::Corrupt { what: "file block" })?;
    replace(tx, inode, Extent { file_block, blocks: BlockRun::unpack(p[4]) })
}

pub(super) fn write_strides(
    tx: &mut Transaction,
    inode: Inode,
    p: &[u64],
    now: Timestamp,
) -> Result<Rest> {
    let shift = tx.layout.hugeblock_shift;
    let strides = p.first_chunk().and_then(|parameters| Strides::decode(parameters, shift));
    let Some(strides) = strides else { return contradiction("pieces of a write") };
    grow(tx, inode, u64::from(strides.end()) << shift, 0, now)?;
    Ok(Rest::Pieces { inode: inode.id, strides, attached: 0 })
}

/// Applies a write that ended at `end`, which may be behind the end of the file, and left `seal` of
/// the block there.
pub(super) fn grow(
    tx: &mut Transaction,
    inode: Inode,
    end: u64,
    seal: u64,
    now: Timestamp,
) -> Result<()> {
    if !file_fits(tx, end) {
        return contradiction("end of a write");
    }
    let shift = tx.layout.hugeblock_shift;
    let size = inode.size(tx).max(end);
    inode.set_size(tx, size);
    if end >> shift == size >> shift {
        set_seal(tx, inode, seal);
    }
    inode.add_flags(tx, WRITING);
    // Data that are staged in are no change.
    if inode.flags(tx) & ABSENT == 0 {
        touch(tx, inode, now);
    }
    Ok(())
}

pub(super) fn truncate(
    tx: &mut Transaction,
    inode: Inode,
    size: u64,
    now: Timestamp,
) -> Result<Option<Rest>> {
    if !file_fits(tx, size) {
        return contradiction("size of a file");
    }
    let block_bytes = tx.layout.hugeblock_bytes;
    let shrinks = size < inode.size(tx);
    let last = (size >> tx.layout.hugeblock_shift) as u32;
    let cuts_block = size & (block_bytes - 1) != 0
        && matches!(tx.stretch(inode.map(tx), last), Stretch::Data(_));
    if size == 0 {
        inode.clear_flags(tx, UNCLEAN | TORN | LOST);
        inode.drop_absence(tx);
    } else if inode.flags(tx) & ABSENT != 0 {
        return contradiction("size of a file whose data are elsewhere");
    }
    if shrinks && cuts_block {
        inode.add_flags(tx, OPENED);
    }
    set_seal(tx, inode, 0);
    inode.set_size(tx, size);
    inode.add_flags(tx, WRITING);
    touch(tx, inode, now);
    let from_block = size.div_ceil(block_bytes) as u32;
    Ok(Some(Rest::Cut { inode: inode.id, from_block }))
}

pub(super) fn file_fits(tx: &Transaction, size: u64) -> bool {
    size <= u64::from(u32::MAX) << tx.layout.hugeblock_shift
}

pub(super) fn touch(tx: &mut Transaction, inode: Inode, now: Timestamp) {
    inode.next_version(tx);
    inode.set_modified(tx, now);
    inode.set_changed(tx, now);
}

/// Turns the notes of replay about a file into the state of a namespace in use.
pub(super) fn settle(tx: &mut Transaction, inode: Inode) -> Option<Seal> {
    let flags = inode.flags(tx);
    let crc32c = inode.sealed_crc(tx);
    let size = inode.size(tx);
    inode.clear_flags(tx, WRITING | HAS_SEAL);
    if flags & WRITING != 0 && flags & ABSENT == 0 {
        inode.add_flags(tx, UNCLEAN | TORN);
        inode.next_version(tx);
    }
    inode.set_written_end(tx, size);
    inode.set_appended_end(tx, size);
    inode.clear_tail(tx);
    let last = match tx.stretch(inode.map(tx), (size >> tx.layout.hugeblock_shift) as u32) {
        Stretch::Data(run) if size & (tx.layout.hugeblock_bytes - 1) != 0 => Some(run),
        _ => None,
    };
    if last.is_some() {
        inode.set_tail(tx, size);
    }
    if flags & OPENED != 0 {
        mark_all_stale(tx, inode);
        return None;
    }
    let run = last?;
    let block = BlockRun { count: 1, ..run };
    if flags & HAS_SEAL == 0 {
        tx.note_stale(inode, block);
        return None;
    }
    Some(Seal { block, crc32c })
}

pub(super) fn mark_all_stale(tx: &mut Transaction, inode: Inode) {
    inode.add_flags(tx, MAYBE_STALE);
    let map = inode.map(tx);
    let mut next = tx.first_extent_from(map, 0);
    while let Some(extent) = next {
        tx.set_stale(extent.blocks, true);
        next = tx.first_extent_from(map, extent.file_block.saturating_add(1));
    }
}
