//! Layout of the meta segment (docs/FORMAT.md has the same map).
//!
//! ```text
//! page 0        lock | static header (CRC32C) | slab headers | counters
//! undo          pre-images of the running transaction
//! log           ring of operation records
//! tier tables   per tier: used bitmap, full-word bitmap, stale bitmap, changed bitmap, checksums
//! slabs         handles, process slots, inodes, names, tree nodes
//! ```
//!
//! Invariant: every region starts on a page and follows from the static header alone. The header is
//! checked against its CRC and the segment's length before anything else is read.

use crate::format::error::{Error, Result};
use crate::format::memory::{LOCK_WORDS, Memory};
use crate::format::placement::{Placement, part_blocks};
use crate::format::types::TIERS_MAX;
use std::sync::atomic::Ordering;

/// Version of the meta segment written by this build.
pub const FORMAT_VERSION: u32 = 10;
/// Magic of a meta segment: "cairnfs1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"cairnfs1");
/// Smallest hugeblock, bytes.
pub const HUGEBLOCK_BYTES_MIN: u32 = 4 << 10;
/// Largest hugeblock, bytes.
pub const HUGEBLOCK_BYTES_MAX: u32 = 16 << 20;
/// Default hugeblock, bytes (NVMe-CR, section IV-B).
pub const HUGEBLOCK_BYTES_DEFAULT: u32 = 32 << 10;
/// Longest mount prefix, bytes.
pub const MOUNT_BYTES_MAX: usize = 255;

pub(crate) const PAGE_WORDS: usize = 512;
/// Number of block checksums in a page of their table.
pub(crate) const CHECKSUMS_PER_PAGE: usize = 2 * PAGE_WORDS;
pub(crate) const UNDO_WORDS: usize = 16 << 10;
pub(crate) const LOG_WORDS: usize = 32 << 10;

// Static header, behind the words of the lock.
const H_MAGIC: usize = LOCK_WORDS;
const H_VERSION: usize = 9;
const H_HUGEBLOCK: usize = 10;
const H_ZERO_CHECKSUM: usize = 11;
const H_TIER_BLOCKS: usize = 12;
const H_INODE_CAPACITY: usize = 16;
const H_SEGMENT_WORDS: usize = 17;
const H_MOUNT_BYTES: usize = 18;
const H_MOUNT: usize = 19;
const H_DURABILITY: usize = 51;
/// Three words: policy, nodes, tier.
const H_PLACEMENT: usize = 60;
const H_CHECKSUM: usize = 63;

// Dynamic words of page 0.
pub(crate) const DYNAMIC_FIRST: usize = 64;
pub(crate) const SLAB_HEADERS: usize = DYNAMIC_FIRST;
pub(crate) const SLAB_HEADER_WORDS: usize = 4;
pub(crate) const LSN: usize = 96;
pub(crate) const LOG_HEAD: usize = 97;
pub(crate) const LOG_LAST_BARRIER: usize = 98;
pub(crate) const NAMES_ROOT: usize = 99;
pub(crate) const EXTENTS_ROOT: usize = 100;
pub(crate) const ORPHAN_FIRST: usize = 101;
pub(crate) const ORPHAN_COUNT: usize = 102;
pub(crate) const PIN_COUNT: usize = 103;
pub(crate) const PIN_EPOCH: usize = 104;
pub(crate) const ATTACH_COUNT: usize = 105;
/// First orphan in limbo: blocks that left files that are mapped.
pub(crate) const LIMBO_FIRST: usize = 106;
pub(crate) const EXTENDED_ROOT: usize = 107;
/// Number of open-file descriptions in transit between processes.
pub(crate) const FLIGHT_COUNT: usize = 108;
/// Number of the image that the namespace holds, 0 for none; and the number of the image that was
/// begun last. See `image.rs`.
pub(crate) const IMAGE: usize = 109;
pub(crate) const IMAGE_COUNT: usize = 110;
/// Checksum of the metadata while nobody changes them, see `metadata_checksum.rs`; 0: none. Every
/// transaction reads this word and `IMAGE`.
pub(crate) const META_SUM: usize = 111;
/// Words of a cache line.
const LINE_WORDS: usize = 8;
const _: () = assert!(IMAGE / LINE_WORDS == META_SUM / LINE_WORDS && META_SUM < TIER_COUNTERS);
/// Pin epoch at the cut of an image.
pub(crate) const IMAGE_PINS: usize = 143;
/// The image that was given up, and why: number << 8 | reason. Then two counters, see
/// `Microfs::barriers`: events counted while an image is held, and those that are always counted.
pub(crate) const IMAGE_LOST: usize = 224;
pub(crate) const IMAGE_BARRIERS: usize = 225;
pub(crate) const SYNCS: usize = 226;
/// Log position when a file was last opened for changes in place, or later.
pub(crate) const OPENED_AT: usize = 135;
/// Log positions in words. `LOG_DURABLE`: all before it is on the media. `LOG_FROZEN`: a flush in
/// progress covers all before it, and no record before it changes any more. `LOG_START`: recovery
/// starts here.
pub(crate) const LOG_DURABLE: usize = 128;
pub(crate) const LOG_FROZEN: usize = 129;
pub(crate) const LOG_START: usize = 130;
/// Not 0: a write to the media failed, and nothing becomes durable any more.
pub(crate) const MEDIA_FAILED: usize = 131;
/// Epoch: distinguishes what was written since the last recovery from what earlier processes left.
pub(crate) const MEDIA_EPOCH: usize = 132;
/// Number of the newest snapshot.
pub(crate) const SNAPSHOT_NUMBER: usize = 133;
/// Number of partial log blocks written; says which of their two places is next.
pub(crate) const LOG_TAILS: usize = 134;
/// Claims of the process that flushes and of the one that writes a snapshot: three words each, see
/// `claim.rs`.
pub(crate) const FLUSH_CLAIM: usize = 136;
pub(crate) const SNAPSHOT_CLAIM: usize = 140;
/// Not 0: readers leave notes of reads on slower tiers, see `promote.rs`; and the number of notes
/// left.
pub(crate) const PROMOTES: usize = 144;
pub(crate) const READS_NOTED: usize = 145;
/// Inode at which the search for files to pack goes on; pack that may be filled further; pack that
/// somebody fills: see `pack.rs`. All are hints.
pub(crate) const PACKED_TO: usize = 146;
pub(crate) const LAST_PACK: usize = 147;
pub(crate) const FILLED_PACK: usize = 189;
/// Number of blocks promoted from each tier.
pub(crate) const PROMOTED: usize = 148;
/// Read notes, two words each: inode << 32 | first file block, and the end.
pub(crate) const READ_NOTES: usize = 152;
pub(crate) const READ_PLACES: usize = 16;
/// Milliseconds that it is worth waiting for space; time at which space was last reported to be
/// made; start of the last search that found none. Further on, one word for each waiter. See
/// `space.rs`.
pub(crate) const SPACE_PATIENCE: usize = 184;
pub(crate) const SPACE_BEAT: usize = 185;
pub(crate) const SPACE_IN_VAIN: usize = 186;
/// Time of the last report that absent files are staged in; number of waits for absent data that
/// have begun: see `absent.rs`.
pub(crate) const ABSENCE_BEAT: usize = 187;
pub(crate) const ABSENCE_WISHES: usize = 188;
pub(crate) const SPACE_WAITERS: usize = 192;
pub(crate) const SPACE_PLACES: usize = 32;
const _: () = assert!(ABSENCE_WISHES < FILLED_PACK && FILLED_PACK < SPACE_WAITERS);
const _: () = assert!(PROMOTED + TIERS_MAX <= READ_NOTES);
const _: () = assert!(READ_NOTES + 2 * READ_PLACES <= SPACE_PATIENCE);
const _: () = assert!(SPACE_WAITERS + SPACE_PLACES <= IMAGE_LOST && SYNCS < PART_COUNTERS);
pub(crate) const TIER_COUNTERS: usize = 112;
const TIER_COUNTER_WORDS: usize = 4;
pub(crate) const TIER_COUNTERS_END: usize = TIER_COUNTERS + TIERS_MAX * TIER_COUNTER_WORDS;
/// Counters like those of a tier, for each part of the tier in memory if it has several; up to the
/// end of the page.
pub(crate) const PART_COUNTERS: usize = 256;
pub(crate) const PART_COUNTER_WORDS: usize = 4;
const _: () = assert!(PART_COUNTERS + u64::BITS as usize * PART_COUNTER_WORDS <= PAGE_WORDS);

/// Parameters of a namespace; fixed when it is formatted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Unit of allocation in bytes, a power of two.
    pub hugeblock_bytes: u32,
    /// Hugeblocks of each tier, in order of preference. 0: the tier is absent or, if it is a
    /// durable first one, holds metadata only.
    pub tier_blocks: [u32; TIERS_MAX],
    /// Largest number of inodes.
    pub inode_capacity: u32,
    /// Absolute path below which the namespace appears.
    pub mount: Vec<u8>,
    /// CRC32C of a hugeblock of zeros.
    pub zero_block_checksum: u32,
    /// Set if the first tier survives the loss of memory: log and snapshots are on its media.
    pub durability: Option<Durability>,
    /// Memory nodes that back the tier in memory.
    pub placement: Placement,
}

/// When an operation on a durable tier survives the loss of the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Once `Microfs::sync` was called after it.
    Sync = 1,
    /// Once it returns (NVMe-CR, section III-E).
    Operation = 2,
}

impl Durability {
    pub(crate) fn encode(durability: Option<Durability>) -> u64 {
        durability.map_or(0, |durability| durability as u64)
    }

    pub(crate) fn decode(word: u64) -> Result<Option<Durability>> {
        match word {
            0 => Ok(None),
            1 => Ok(Some(Durability::Sync)),
            2 => Ok(Some(Durability::Operation)),
            _ => Err(Error::Corrupt { what: "durability" }),
        }
    }
}

/// A kind of fixed-size record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlabKind {
    Handle = 0,
    Slot = 1,
    Inode = 2,
    Name = 3,
    Node = 4,
}

pub(crate) const SLAB_KINDS: [SlabKind; 5] =
    [SlabKind::Handle, SlabKind::Slot, SlabKind::Inode, SlabKind::Name, SlabKind::Node];

/// Region of the records of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlabRegion {
    pub header: usize,
    pub first_word: usize,
    pub record_words: usize,
    pub capacity: u32,
    /// Maximum number of records that one transaction takes; kept backed ahead of use.
    pub reserve: u32,
}

/// Tables of one tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierRegion {
    pub blocks: u32,
    pub used: usize,
    pub full: usize,
    pub stale: usize,
    /// Bits of blocks that may have changed since the last cut, see `changes.rs`.
    pub changed: usize,
    /// One bit for each page of `checksums` that differs from the media.
    pub dirty: usize,
    pub checksums: usize,
    /// Word with the number of used blocks; the words of the pool (pool.rs) follow it.
    pub counters: usize,
}

/// Word offsets of all regions.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub durable: bool,
    /// False only in measurements.
    pub logs: bool,
    pub hugeblock_bytes: u64,
    pub hugeblock_shift: u32,
    pub undo: usize,
    pub log: usize,
    pub tiers: [TierRegion; TIERS_MAX],
    /// Placement of the tier in memory; and the size of each part but the last, if the tier is
    /// divided (parts.rs).
    pub placement: Placement,
    pub part_blocks: Option<u32>,
    pub slabs: [SlabRegion; SLAB_KINDS.len()],
    pub segment_words: usize,
}

pub(crate) const HANDLE_WORDS: usize = 8;
pub(crate) const HANDLES_MAX: u32 = 32 << 10;
pub(crate) const SLOT_WORDS: usize = 1024;
/// Maximum number of processes that use the namespace at the same time: ranks of the largest nodes,
/// each with some helpers.
pub(crate) const SLOTS_MAX: u32 = 4096;
pub(crate) const INODE_WORDS: usize = 16;
pub(crate) const NAME_WORDS: usize = 8;
pub(crate) const NODE_WORDS: usize = 256;

impl Geometry {
    /// Creates the geometry of a namespace at `mount` with default limits and the given tiers.
    pub fn new(mount: &[u8], tier_blocks: [u32; TIERS_MAX], zero_block_checksum: u32) -> Geometry {
        Geometry {
            hugeblock_bytes: HUGEBLOCK_BYTES_DEFAULT,
            tier_blocks,
            inode_capacity: 4 << 20,
            mount: mount.to_vec(),
            zero_block_checksum,
            durability: None,
            placement: Placement::default(),
        }
    }

    /// Returns the size in bytes for the sparse meta segment.
    pub fn segment_bytes(&self) -> u64 {
        Layout::new(self).segment_words as u64 * 8
    }

    /// Returns the size in bytes for the sparse shadow of the meta segment, where pages are saved
    /// while an image is held.
    pub fn shadow_bytes(&self) -> u64 {
        shadow_words(Layout::new(self).segment_words) as u64 * 8
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let hugeblock_fits = self.hugeblock_bytes.is_power_of_two()
            && (HUGEBLOCK_BYTES_MIN..=HUGEBLOCK_BYTES_MAX).contains(&self.hugeblock_bytes);
        let mount_fits = self.mount.len() >= 2
            && self.mount.len() <= MOUNT_BYTES_MAX
            && self.mount[0] == b'/'
            && self.mount.last() != Some(&b'/');
        let inodes_fit = (16..=1 << 28).contains(&self.inode_capacity);
        // The first tier of a durable namespace may hold metadata only.
        let first_with_data = usize::from(self.tier_blocks[0] == 0 && self.durability.is_some());
        let holds_data = self.tier_blocks[first_with_data] > 0;
        match hugeblock_fits && mount_fits && inodes_fit && holds_data {
            true => Ok(()),
            false => Err(Error::Invalid),
        }
    }
}

impl Layout {
    pub(crate) fn new(geometry: &Geometry) -> Layout {
        let mut next = PAGE_WORDS;
        let mut region = |words: usize| {
            let first = next;
            next += words.next_multiple_of(PAGE_WORDS);
            first
        };
        let undo = region(UNDO_WORDS);
        let log = region(LOG_WORDS);
        let mut tier = 0;
        let tiers = geometry.tier_blocks.map(|blocks| {
            let bitmap_words = (blocks as usize).div_ceil(64);
            tier += 1;
            TierRegion {
                blocks,
                used: region(bitmap_words),
                full: region(bitmap_words.div_ceil(64)),
                stale: region(bitmap_words),
                changed: region(changed_words(blocks)),
                dirty: region((blocks as usize).div_ceil(CHECKSUMS_PER_PAGE).div_ceil(64)),
                checksums: region((blocks as usize).div_ceil(2)),
                counters: TIER_COUNTERS + (tier - 1) * TIER_COUNTER_WORDS,
            }
        });
        let inodes = geometry.inode_capacity;
        let slabs = SLAB_KINDS.map(|kind| {
            let (record_words, capacity, reserve) = match kind {
                SlabKind::Handle => (HANDLE_WORDS, HANDLES_MAX, 4),
                SlabKind::Slot => (SLOT_WORDS, SLOTS_MAX, 1),
                SlabKind::Inode => (INODE_WORDS, inodes, 4),
                SlabKind::Name => (NAME_WORDS, inodes.saturating_mul(2).max(1024), 96),
                SlabKind::Node => (NODE_WORDS, (inodes / 16).max(1024), 64),
            };
            SlabRegion {
                header: SLAB_HEADERS + kind as usize * SLAB_HEADER_WORDS,
                first_word: region(record_words * capacity as usize),
                record_words,
                capacity,
                reserve,
            }
        });
        Layout {
            durable: geometry.durability.is_some(),
            logs: true,
            hugeblock_bytes: u64::from(geometry.hugeblock_bytes),
            hugeblock_shift: geometry.hugeblock_bytes.trailing_zeros(),
            undo,
            log,
            tiers,
            placement: geometry.placement,
            part_blocks: part_blocks(geometry),
            slabs,
            segment_words: next,
        }
    }

    pub(crate) fn slab(&self, kind: SlabKind) -> &SlabRegion {
        &self.slabs[kind as usize]
    }

    /// Returns the word ranges that are used from the start and are therefore backed at once.
    pub(crate) fn eager_ranges(&self) -> Vec<(usize, usize)> {
        let mut ranges = vec![(0, PAGE_WORDS), (self.undo, UNDO_WORDS), (self.log, LOG_WORDS)];
        for tier in self.tiers.iter().filter(|tier| tier.blocks > 0) {
            ranges.push((tier.used, tier.checksums - tier.used));
        }
        ranges
    }
}

/// CRC32C routine: `(seed, bytes)`, seed 0 to start.
pub type Checksum = fn(seed: u32, bytes: &[u8]) -> u32;

fn header_checksum(memory: &dyn Memory, checksum: Checksum) -> u32 {
    memory.words()[H_MAGIC..H_CHECKSUM]
        .iter()
        .fold(0, |crc, word| checksum(crc, &word.load(Ordering::Relaxed).to_le_bytes()))
}

/// Writes the static header. The segment must be zeroed and not yet visible to others.
pub(crate) fn write_header(
    memory: &dyn Memory,
    geometry: &Geometry,
    checksum: Checksum,
) -> Result<Layout> {
    geometry.validate()?;
    let layout = Layout::new(geometry);
    if memory.words().len() < layout.segment_words {
        return Err(Error::NoSpace);
    }
    let put = |at: usize, value: u64| memory.words()[at].store(value, Ordering::Relaxed);
    put(H_MAGIC, MAGIC);
    put(H_VERSION, u64::from(FORMAT_VERSION));
    put(H_HUGEBLOCK, u64::from(geometry.hugeblock_bytes));
    put(H_ZERO_CHECKSUM, u64::from(geometry.zero_block_checksum));
    for (tier, &blocks) in geometry.tier_blocks.iter().enumerate() {
        put(H_TIER_BLOCKS + tier, u64::from(blocks));
    }
    put(H_INODE_CAPACITY, u64::from(geometry.inode_capacity));
    put(H_SEGMENT_WORDS, layout.segment_words as u64);
    put(H_DURABILITY, Durability::encode(geometry.durability));
    for (index, word) in geometry.placement.encode().into_iter().enumerate() {
        put(H_PLACEMENT + index, word);
    }
    put(H_MOUNT_BYTES, geometry.mount.len() as u64);
    for (index, chunk) in geometry.mount.chunks(8).enumerate() {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        put(H_MOUNT + index, u64::from_le_bytes(bytes));
    }
    put(H_CHECKSUM, u64::from(header_checksum(memory, checksum)));
    Ok(layout)
}

/// Reads and checks the static header.
/// Errors: `Corrupt`, `UnsupportedVersion`.
pub(crate) fn read_header(memory: &dyn Memory, checksum: Checksum) -> Result<Geometry> {
    let words = memory.words();
    if words.len() < PAGE_WORDS {
        return Err(Error::Corrupt { what: "segment shorter than its header" });
    }
    let get = |at: usize| words[at].load(Ordering::Relaxed);
    if get(H_MAGIC) != MAGIC {
        return Err(Error::Corrupt { what: "no Cairn segment (wrong magic)" });
    }
    if get(H_VERSION) != u64::from(FORMAT_VERSION) {
        let found = u32::try_from(get(H_VERSION)).unwrap_or(u32::MAX);
        return Err(Error::UnsupportedVersion { found, supported: FORMAT_VERSION });
    }
    if get(H_CHECKSUM) != u64::from(header_checksum(memory, checksum)) {
        return Err(Error::Corrupt { what: "header checksum" });
    }
    let small = |at: usize| {
        u32::try_from(get(at)).map_err(|_| Error::Corrupt { what: "header field out of range" })
    };
    let mount_bytes = small(H_MOUNT_BYTES)? as usize;
    if mount_bytes > MOUNT_BYTES_MAX {
        return Err(Error::Corrupt { what: "mount prefix length" });
    }
    let mount = (0..mount_bytes).map(|at| get(H_MOUNT + at / 8).to_le_bytes()[at % 8]).collect();
    let mut tier_blocks = [0; TIERS_MAX];
    for (tier, blocks) in tier_blocks.iter_mut().enumerate() {
        *blocks = small(H_TIER_BLOCKS + tier)?;
    }
    let geometry = Geometry {
        hugeblock_bytes: small(H_HUGEBLOCK)?,
        tier_blocks,
        inode_capacity: small(H_INODE_CAPACITY)?,
        mount,
        zero_block_checksum: small(H_ZERO_CHECKSUM)?,
        durability: Durability::decode(get(H_DURABILITY))?,
        placement: Placement::decode([0, 1, 2].map(|index| get(H_PLACEMENT + index)))?,
    };
    geometry.validate().map_err(|_| Error::Corrupt { what: "geometry" })?;
    if Layout::new(&geometry).segment_words > words.len() {
        return Err(Error::Corrupt { what: "segment shorter than its geometry" });
    }
    Ok(geometry)
}

/// Places beyond one per page: for pages that were saved twice because their process died.
pub(crate) const SPARE_PLACES: usize = 1024;

/// Returns the number of words in the shadow of a segment of `segment_words` words.
pub fn shadow_words(segment_words: usize) -> usize {
    let pages = segment_words / PAGE_WORDS;
    let places = pages + SPARE_PLACES;
    let tables = pages.next_multiple_of(PAGE_WORDS) + places.next_multiple_of(PAGE_WORDS);
    PAGE_WORDS + tables + places * PAGE_WORDS
}

pub(crate) const BLOCKS_PER_PAGE: u32 = (PAGE_WORDS as u32 - 1) * u64::BITS;

/// Number of words for the change bits of `blocks` blocks.
pub(crate) fn changed_words(blocks: u32) -> usize {
    blocks.div_ceil(BLOCKS_PER_PAGE) as usize * PAGE_WORDS
}
