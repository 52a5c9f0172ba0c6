//! Formatting a durable namespace, and recovering it from its media after the node's memory was
//! lost.
//!
//! Recovery: superblock → newest valid snapshot → log after it → drop what was in memory →
//! checksums of the blocks in use. Then a new snapshot under a new epoch, so that nothing that a
//! crash left behind the end of the log is ever taken for a part of it.
//!
//! Invariant: until that snapshot is durable, recovery changes nothing that another attempt would
//! read.

use crate::engine::run::BlockRun;
use crate::engine::transaction::store_half;
use crate::format::error::Result;
use crate::format::layout::{
    Checksum, Geometry, LOG_DURABLE, LOG_FROZEN, LOG_HEAD, LOG_LAST_BARRIER, LOG_START, LSN,
    MEDIA_EPOCH, PAGE_WORDS, SNAPSHOT_NUMBER,
};
use crate::format::log_media::{PAYLOAD_WORDS, block_of};
use crate::format::media::{MEDIA_BLOCK_BYTES, Media, read_words};
use crate::format::memory::Memory;
use crate::format::placement::Placement;
use crate::format::superblock::{MediaOptions, Superblock};
use crate::format::types::{Caller, Credentials, MODE_DIRECTORY, ROOT, SlotId, TIERS_MAX};
use crate::recovery::inspect::refuse_loss;
use crate::recovery::replay::{Image, Seal};
use crate::recovery::snapshot::{self, Header, Rebuilt};
use std::sync::atomic::Ordering;

/// Outcome of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Number of the newest snapshot.
    pub snapshot: u64,
    /// Whether its records are damaged; the snapshot before it and the log between led to the same
    /// state.
    pub fell_back: bool,
    /// Number of records replayed, those of the snapshot included.
    pub records: u64,
    /// LSN of the last operation.
    pub lsn: u64,
}

/// Makes an empty durable namespace on `media`, whose root directory belongs to `owner`. Whatever
/// was on the media is lost. Errors: `NoSpace` if the media are too small; `Invalid` options; `Io`.
pub fn format_media(
    media: &dyn Media,
    options: &MediaOptions,
    checksum: Checksum,
    owner: Credentials,
) -> Result<Superblock> {
    let superblock = Superblock::plan(media.bytes(), options)?;
    let geometry = &superblock.geometry;
    let memory = media.workspace(geometry.segment_bytes() as usize / 8)?;
    let image = Image::new(memory.as_ref(), geometry, checksum)?;
    image.transact(|tx| {
        let caller = Caller { slot: SlotId(0), credentials: owner, groups: &[], now: options.now };
        let root = tx.new_inode(MODE_DIRECTORY | 0o755, &caller)?;
        debug_assert_eq!(root.id, ROOT);
        root.set_links(tx, 2);
        root.set_parent(tx, ROOT.0);
        Ok(())
    })?;
    snapshot::write_first(media, &superblock, &image)?;
    superblock.write(media, checksum)?;
    media.flush()?;
    Ok(superblock)
}

/// Rebuilds the namespace of `media` in zeroed `memory`; from now on this namespace is the one that
/// writes to the media. Nobody else may use the media meanwhile. Errors: `Corrupt`;
/// `UnsupportedVersion`; `Io`; `NoSpace`.
pub fn recover(media: &dyn Media, memory: &dyn Memory, checksum: Checksum) -> Result<Recovered> {
    recover_placed(media, memory, checksum, Placement::default())
}

/// Does the same as `recover`, and sets the memory nodes that back the tier in memory: the media do
/// not record them.
pub fn recover_placed(
    media: &dyn Media,
    memory: &dyn Memory,
    checksum: Checksum,
    placement: Placement,
) -> Result<Recovered> {
    let superblock = Superblock::read(media, checksum)?;
    let geometry = Geometry { placement, ..superblock.geometry.clone() };
    let mut image = Image::new(memory, &geometry, checksum)?;
    let rebuilt = snapshot::rebuild(media, &superblock, &mut image)?;
    refuse_loss(media, &superblock, checksum, &rebuilt)?;
    snapshot::lose_memory(&superblock, &image)?;
    // Blocks of the old epoch are never continued.
    let position = (block_of(rebuilt.end) + 1) * PAYLOAD_WORDS;
    let next = rebuilt.next_epoch(position);
    let written = snapshot::write(media, &superblock, &image, next)?;
    put_into_use(media, &superblock, &mut image, Some(&written))?;
    Ok(Recovered::of(&image, &rebuilt))
}

/// Does the same as `recover` for reading only: the media are not written to, and must not be
/// through this namespace. Recovers what it can from damaged media;
/// [`inspect`](crate::recovery::inspect::inspect()) says whether that is all of it.
pub fn recover_read_only(
    media: &dyn Media,
    memory: &dyn Memory,
    checksum: Checksum,
) -> Result<Recovered> {
    let superblock = Superblock::read(media, checksum)?;
    let mut image = Image::new(memory, &superblock.geometry, checksum)?;
    let rebuilt = snapshot::rebuild(media, &superblock, &mut image)?;
    snapshot::lose_memory(&superblock, &image)?;
    put_into_use(media, &superblock, &mut image, None)?;
    Ok(Recovered::of(&image, &rebuilt))
}

impl Recovered {
    fn of(image: &Image<'_>, rebuilt: &Rebuilt) -> Recovered {
        Recovered {
            snapshot: rebuilt.newest.number,
            fell_back: rebuilt.fell_back,
            records: image.records,
            lsn: image.lsn,
        }
    }
}

fn put_into_use(
    media: &dyn Media,
    superblock: &Superblock,
    image: &mut Image<'_>,
    snapshot: Option<&Header>,
) -> Result<()> {
    let seals = image.settle()?;
    (0..TIERS_MAX as u8).try_for_each(|tier| load_checksums(media, superblock, image, tier))?;
    let words = image.memory.words();
    for &Seal { block: BlockRun { tier, first, .. }, crc32c } in &seals {
        let table = image.layout.tiers[usize::from(tier)].checksums;
        store_half(&words[table + first as usize / 2], first % 2 == 1, crc32c);
    }
    image.transact(|tx| {
        // The table on the media may be newer than what the log says about last blocks.
        for &Seal { block, .. } in &seals {
            tx.mark_checksums_dirty(block);
        }
        let lsn = image.lsn;
        tx.set(LSN, lsn);
        if let Some(header) = snapshot {
            for word in [LOG_HEAD, LOG_DURABLE, LOG_FROZEN, LOG_START, LOG_LAST_BARRIER] {
                tx.set(word, header.position);
            }
            tx.set(MEDIA_EPOCH, header.epoch);
            tx.set(SNAPSHOT_NUMBER, header.number);
        }
        Ok(())
    })
}

/// Reads the pages of a tier's table that hold checksums of blocks in use.
fn load_checksums(
    media: &dyn Media,
    superblock: &Superblock,
    image: &Image<'_>,
    tier: u8,
) -> Result<()> {
    let region = image.layout.tiers[usize::from(tier)];
    let used_words = (region.blocks as usize).div_ceil(64);
    let words = image.memory.words();
    let per_page = 2 * PAGE_WORDS / 64;
    let mut page_words = [0; PAGE_WORDS];
    for (page, first) in (0..used_words).step_by(per_page).enumerate() {
        let last = (first + per_page).min(used_words);
        let in_use = (first..last).any(|at| words[region.used + at].load(Ordering::Relaxed) != 0);
        if !in_use {
            continue;
        }
        let offset = superblock.checksums(tier) + (page * MEDIA_BLOCK_BYTES) as u64;
        read_words(media, offset, &mut page_words)?;
        let at = region.checksums + page * PAGE_WORDS;
        image.memory.back(at, PAGE_WORDS)?;
        for (shared, &word) in words[at..at + PAGE_WORDS].iter().zip(&page_words) {
            shared.store(word, Ordering::Relaxed);
        }
    }
    Ok(())
}
