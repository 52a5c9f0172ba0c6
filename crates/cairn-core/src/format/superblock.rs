//! The superblock: identity and layout of a durable tier's media (docs/FORMAT.md).
//!
//! ```text
//! superblock | copy | log tails (2 blocks) | log ring | snapshot slot 0 | slot 1 | checksums of each tier | data
//! ```
//! The media hold all metadata of a namespace, and the data of its first tier, if that has any.
//! Further tiers have media of their own, or are memory and are lost with it.
//!
//! Invariant: the layout follows from the superblock alone, which is written once and never
//! changed. It is used only if its checksum is right and every region lies inside the media.

use crate::format::error::{Error, Result};
use crate::format::layout::{Checksum, Durability, Geometry, LOG_WORDS};
use crate::format::media::{MEDIA_BLOCK_BYTES, MEDIA_BLOCK_WORDS, Media, read_words, write_words};
use crate::format::types::{TIERS_MAX, Timestamp};

/// Version of the media that this build formats; the newest one it knows.
pub const MEDIA_VERSION: u32 = 5;
/// Oldest version of media that this build can use.
const OLDEST_VERSION: u32 = 1;
/// First version whose log and snapshots may hold extended attributes.
const VERSION_OF_EXTENDED: u32 = 3;
/// First version with absent files.
const VERSION_OF_ABSENT: u32 = 4;
/// First version with blocks that replace others.
const VERSION_OF_REPLACED: u32 = 5;
/// Magic of a superblock: "cairndev".
pub const MEDIA_MAGIC: u64 = u64::from_le_bytes(*b"cairndev");

const BLOCK: u64 = MEDIA_BLOCK_BYTES as u64;
/// Offsets of the superblock and its copy.
pub(crate) const COPIES: [u64; 2] = [0, BLOCK];
/// Size of the log ring: one part in this many of the media, within these limits.
const LOG_SHARE: u64 = 64;
/// Size of the log ring on media without data: one part in this many of a snapshot slot.
const LOG_SHARE_ALONE: u64 = 8;
const LOG_BLOCKS_MIN: u64 = 3 * LOG_WORDS as u64 * 8 / BLOCK;
const LOG_BLOCKS_MAX: u64 = (256 << 20) / BLOCK;
/// One inode per this many bytes of the media, within these limits.
const BYTES_PER_INODE: u64 = 32 << 10;
const INODES_MIN: u64 = 1024;
const INODES_MAX: u64 = 4 << 20;
/// Bytes of a snapshot slot per inode and per extent. An inode has two names at most on average, or
/// one of two records. There is at most one extent per block. So a snapshot always fits, and the
/// log can always be cut. Extended attributes use records of names, too, and need no more for each
/// record.
const SLOT_BYTES_PER_INODE: u64 = 352;
const SLOT_BYTES_PER_BLOCK: u64 = 56;
/// Beyond this a slot does not grow with the number of blocks, because long extents are the rule.
const SLOT_BYTES_MAX: u64 = 2 << 30;

/// Error for media that have no superblock at all.
pub(crate) const NO_MAGIC: Error = Error::Corrupt { what: "no Cairn media (wrong magic)" };

const W_MAGIC: usize = 0;
const W_VERSION: usize = 1;
const W_CHECKSUM: usize = 2;
const W_IDENTITY: usize = 3;
const W_BYTES: usize = 5;
const W_HUGEBLOCK: usize = 6;
const W_INODES: usize = 7;
const W_ZERO_CHECKSUM: usize = 8;
const W_CREATED: usize = 9;
const W_MOUNT_BYTES: usize = 10;
const W_MOUNT: usize = 11;
const W_LOG_BLOCKS: usize = 43;
const W_SLOT_BLOCKS: usize = 44;
const W_DATA: usize = 45;
const W_DATA_BLOCKS: usize = 46;
const W_DURABILITY: usize = 47;
/// For each further tier, its number of blocks and the two words of its identity.
const W_FURTHER: usize = 48;
const FURTHER_WORDS: usize = 3;

/// A tier behind the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FurtherTier {
    /// Number of hugeblocks; 0 = absent.
    pub blocks: u32,
    /// Random number that identifies its media; `None`: the tier is memory.
    pub identity: Option<[u64; 2]>,
}

/// Options for formatting media.
#[derive(Clone, Debug)]
pub struct MediaOptions {
    /// Unit of allocation, bytes.
    pub hugeblock_bytes: u32,
    /// When an operation is durable.
    pub durability: Durability,
    /// Absolute path below which the namespace appears.
    pub mount: Vec<u8>,
    /// CRC32C of a hugeblock of zeros.
    pub zero_block_checksum: u32,
    /// Random number that identifies this store.
    pub identity: [u64; 2],
    /// Time of formatting.
    pub now: Timestamp,
    /// Tiers behind this one.
    pub further: [FurtherTier; TIERS_MAX - 1],
    /// Whether the media hold data, and not metadata only.
    pub holds_data: bool,
}

impl MediaOptions {
    /// Returns the number of hugeblocks in the tiers behind the first one.
    fn further_blocks(&self) -> u64 {
        self.further.iter().map(|tier| u64::from(tier.blocks)).sum()
    }
}

/// Contents of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format.
    pub version: u32,
    /// Random number that identifies this store.
    pub identity: [u64; 2],
    /// Time of formatting.
    pub created: Timestamp,
    /// Size of the media, bytes.
    pub bytes: u64,
    /// Geometry of the namespace.
    pub geometry: Geometry,
    /// Media blocks in the log ring.
    pub log_blocks: u64,
    /// Media blocks in each snapshot slot.
    pub slot_blocks: u64,
    /// Offset of the first hugeblock, bytes.
    pub data_offset: u64,
    /// Identities of the media of the tiers behind the first one; `None`: memory, or no tier.
    pub further: [Option<[u64; 2]>; TIERS_MAX - 1],
}

impl Superblock {
    /// Lays out media of `bytes`. Errors: `NoSpace` if they are too small to hold anything;
    /// `Invalid` options.
    pub fn plan(bytes: u64, options: &MediaOptions) -> Result<Superblock> {
        let hugeblock = u64::from(options.hugeblock_bytes);
        if !options.hugeblock_bytes.is_power_of_two() || hugeblock < BLOCK {
            return Err(Error::Invalid);
        }
        let bytes = bytes / BLOCK * BLOCK;
        let superblock = match options.holds_data {
            true => Superblock::plan_with_data(bytes, options)?,
            false => Superblock::plan_alone(bytes, options)?,
        };
        superblock.geometry.validate()?;
        Ok(superblock)
    }

    /// Returns the smallest size in bytes of media that hold metadata only.
    pub fn least_bytes_alone(options: &MediaOptions) -> u64 {
        Superblock::alone(INODES_MIN, options).data_offset
    }

    fn plan_with_data(bytes: u64, options: &MediaOptions) -> Result<Superblock> {
        let hugeblock = u64::from(options.hugeblock_bytes);
        // The table of checksums is laid out for more blocks than remain behind it.
        let most = bytes / hugeblock;
        let all_bytes = bytes.saturating_add(options.further_blocks() * hugeblock);
        let inodes = (all_bytes / BYTES_PER_INODE).clamp(INODES_MIN, INODES_MAX);
        let log_blocks = (bytes / BLOCK / LOG_SHARE).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_MAX);
        let slot_blocks = slot_blocks(inodes, most + options.further_blocks());
        let mut superblock = Superblock::new(options, inodes, log_blocks, slot_blocks);
        superblock.bytes = bytes;
        superblock.geometry.tier_blocks[0] = u32::try_from(most).map_err(|_| Error::Invalid)?;
        superblock.data_offset = superblock.tables_end().next_multiple_of(hugeblock);
        let blocks = bytes.saturating_sub(superblock.data_offset) / hugeblock;
        superblock.geometry.tier_blocks[0] = blocks as u32;
        if blocks == 0 { Err(Error::NoSpace) } else { Ok(superblock) }
    }

    /// Lays out media for metadata only, with as many inodes as fit.
    fn plan_alone(bytes: u64, options: &MediaOptions) -> Result<Superblock> {
        let fits = |inodes: u64| Superblock::alone(inodes, options).data_offset <= bytes;
        if !fits(INODES_MIN) {
            return Err(Error::NoSpace);
        }
        let (mut fitting, mut most) = (INODES_MIN, INODES_MAX);
        while fitting < most {
            let inodes = (fitting + most).div_ceil(2);
            match fits(inodes) {
                true => fitting = inodes,
                false => most = inodes - 1,
            }
        }
        Ok(Superblock { bytes, ..Superblock::alone(fitting, options) })
    }

    /// Lays out metadata for `inodes` inodes and nothing behind them.
    fn alone(inodes: u64, options: &MediaOptions) -> Superblock {
        let slot_blocks = slot_blocks(inodes, options.further_blocks());
        let log_blocks = (slot_blocks / LOG_SHARE_ALONE).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_MAX);
        let mut superblock = Superblock::new(options, inodes, log_blocks, slot_blocks);
        superblock.data_offset = superblock.tables_end();
        superblock
    }

    /// Creates a superblock without data; the data offset is not set yet.
    fn new(options: &MediaOptions, inodes: u64, log_blocks: u64, slot_blocks: u64) -> Superblock {
        let [second, third, fourth] = options.further.map(|tier| tier.blocks);
        let tier_blocks = [0, second, third, fourth];
        Superblock {
            version: MEDIA_VERSION,
            identity: options.identity,
            created: options.now,
            bytes: 0,
            geometry: Geometry {
                hugeblock_bytes: options.hugeblock_bytes,
                inode_capacity: inodes as u32,
                durability: Some(options.durability),
                ..Geometry::new(&options.mount, tier_blocks, options.zero_block_checksum)
            },
            log_blocks,
            slot_blocks,
            data_offset: 0,
            further: options.further.map(|tier| tier.identity),
        }
    }

    /// Whether files may have extended attributes: all builds that can use media of this version
    /// know the records.
    pub(crate) fn holds_extended(&self) -> bool {
        self.version >= VERSION_OF_EXTENDED
    }

    /// Whether files may be absent: as `holds_extended`.
    pub(crate) fn holds_absent(&self) -> bool {
        self.version >= VERSION_OF_ABSENT
    }

    /// Whether blocks of files may be replaced: as `holds_extended`.
    pub(crate) fn holds_replaced(&self) -> bool {
        self.version >= VERSION_OF_REPLACED
    }

    /// Whether the data on the tier survive the loss of memory.
    pub fn survives(&self, tier: u8) -> bool {
        tier == 0 || self.further.get(usize::from(tier) - 1).is_some_and(Option::is_some)
    }

    /// Writes the superblock and its copy. Durable only after a flush.
    pub(crate) fn write(&self, media: &dyn Media, checksum: Checksum) -> Result<()> {
        let geometry = &self.geometry;
        let mut words = [0; MEDIA_BLOCK_WORDS];
        words[W_MAGIC] = MEDIA_MAGIC;
        words[W_VERSION] = u64::from(self.version);
        words[W_IDENTITY..W_IDENTITY + 2].copy_from_slice(&self.identity);
        words[W_BYTES] = self.bytes;
        words[W_HUGEBLOCK] = u64::from(geometry.hugeblock_bytes);
        words[W_INODES] = u64::from(geometry.inode_capacity);
        words[W_ZERO_CHECKSUM] = u64::from(geometry.zero_block_checksum);
        words[W_CREATED] = self.created.to_bits();
        words[W_MOUNT_BYTES] = geometry.mount.len() as u64;
        for (index, &byte) in geometry.mount.iter().enumerate() {
            words[W_MOUNT + index / 8] |= u64::from(byte) << (8 * (index % 8));
        }
        words[W_DURABILITY] = Durability::encode(geometry.durability);
        words[W_LOG_BLOCKS] = self.log_blocks;
        words[W_SLOT_BLOCKS] = self.slot_blocks;
        words[W_DATA] = self.data_offset;
        words[W_DATA_BLOCKS] = u64::from(geometry.tier_blocks[0]);
        for (index, identity) in self.further.iter().enumerate() {
            let tier = &mut words[W_FURTHER + index * FURTHER_WORDS..][..FURTHER_WORDS];
            tier[0] = u64::from(geometry.tier_blocks[index + 1]);
            tier[1..].copy_from_slice(&identity.unwrap_or_default());
        }
        words[W_CHECKSUM] = u64::from(sum(&words, checksum));
        COPIES.iter().try_for_each(|&offset| write_words(media, offset, &words))
    }

    /// Reads the superblock or, if it is damaged, its copy. Errors: `Corrupt` or
    /// `UnsupportedVersion`: this build cannot use these media.
    pub fn read(media: &dyn Media, checksum: Checksum) -> Result<Superblock> {
        let mut first_error = None;
        for offset in COPIES {
            match Superblock::read_at(media, checksum, offset) {
                Ok(superblock) => return Ok(superblock),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(Error::Io))
    }

    /// Reads the superblock at `offset`, which is one of `COPIES`. Errors: as `read`.
    pub(crate) fn read_at(
        media: &dyn Media,
        checksum: Checksum,
        offset: u64,
    ) -> Result<Superblock> {
        let mut words = [0; MEDIA_BLOCK_WORDS];
        read_words(media, offset, &mut words)?;
        Superblock::decode(&words, media.bytes(), checksum)
    }

    fn decode(words: &[u64], media_bytes: u64, checksum: Checksum) -> Result<Superblock> {
        let corrupt = |what| Err(Error::Corrupt { what });
        if words[W_MAGIC] != MEDIA_MAGIC {
            return Err(NO_MAGIC);
        }
        let known = u64::from(OLDEST_VERSION)..=u64::from(MEDIA_VERSION);
        if !known.contains(&words[W_VERSION]) {
            let found = u32::try_from(words[W_VERSION]).unwrap_or(u32::MAX);
            return Err(Error::UnsupportedVersion { found, supported: MEDIA_VERSION });
        }
        if words[W_CHECKSUM] != u64::from(sum(words, checksum)) {
            return corrupt("superblock checksum");
        }
        let small = |at: usize| {
            u32::try_from(words[at]).map_err(|_| Error::Corrupt { what: "superblock field" })
        };
        let mount_bytes = (words[W_MOUNT_BYTES] as usize).min((W_LOG_BLOCKS - W_MOUNT) * 8);
        let mount: Vec<u8> =
            (0..mount_bytes).map(|at| words[W_MOUNT + at / 8].to_le_bytes()[at % 8]).collect();
        let mut geometry = Geometry::new(&mount, [0; TIERS_MAX], small(W_ZERO_CHECKSUM)?);
        geometry.hugeblock_bytes = small(W_HUGEBLOCK)?;
        geometry.inode_capacity = small(W_INODES)?;
        geometry.tier_blocks[0] = small(W_DATA_BLOCKS)?;
        let mut further = [None; TIERS_MAX - 1];
        for (index, tier) in further.iter_mut().enumerate() {
            let at = W_FURTHER + index * FURTHER_WORDS;
            geometry.tier_blocks[index + 1] = small(at)?;
            *tier = Some([words[at + 1], words[at + 2]]).filter(|&identity| identity != [0; 2]);
        }
        geometry.durability = Durability::decode(words[W_DURABILITY])?;
        geometry.validate().map_err(|_| Error::Corrupt { what: "superblock geometry" })?;
        let superblock = Superblock {
            version: words[W_VERSION] as u32,
            identity: [words[W_IDENTITY], words[W_IDENTITY + 1]],
            created: Timestamp::from_bits(words[W_CREATED]),
            bytes: words[W_BYTES],
            log_blocks: words[W_LOG_BLOCKS],
            slot_blocks: words[W_SLOT_BLOCKS],
            data_offset: words[W_DATA],
            further,
            geometry,
        };
        match superblock.fits(media_bytes) {
            true => Ok(superblock),
            false => corrupt("media shorter than its superblock says"),
        }
    }

    /// Whether all regions are in order and inside the media, and the media are large enough for
    /// the number of inodes.
    fn fits(&self, media_bytes: u64) -> bool {
        let hugeblock = u64::from(self.geometry.hugeblock_bytes);
        let blocks = u64::from(self.geometry.tier_blocks[0]);
        let reasonable = self.geometry.durability.is_some()
            && self.log_blocks >= 2
            && self.slot_blocks >= 2
            && u64::from(self.geometry.inode_capacity) * SLOT_BYTES_PER_INODE <= media_bytes
            && self.log_blocks <= media_bytes / BLOCK
            && self.slot_blocks <= media_bytes / BLOCK;
        reasonable
            && self.data_offset % BLOCK == 0
            && self.tables_end() <= self.data_offset
            && blocks
                .checked_mul(hugeblock)
                .and_then(|data| data.checked_add(self.data_offset))
                .is_some_and(|end| end <= self.bytes.min(media_bytes))
    }

    /// Returns the brand for the checksums of log blocks and snapshots. By it, those of another
    /// store, or from before the last recovery, are not taken for current ones.
    pub(crate) fn brand(&self, epoch: u64) -> u64 {
        self.identity[0]
            ^ self.identity[1].rotate_left(32)
            ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the offset of one of the two places of the partial log block.
    pub(crate) fn log_tail(&self, turn: u64) -> u64 {
        (2 + turn % 2) * BLOCK
    }

    /// Returns the offset of a full log block.
    pub(crate) fn log_block(&self, sequence: u64) -> u64 {
        (4 + sequence % self.log_blocks) * BLOCK
    }

    /// Returns the offset of a snapshot slot.
    pub(crate) fn slot(&self, number: u64) -> u64 {
        (4 + self.log_blocks + number % 2 * self.slot_blocks) * BLOCK
    }

    /// Returns the offset of a tier's table of checksums.
    pub(crate) fn checksums(&self, tier: u8) -> u64 {
        let before = &self.geometry.tier_blocks[..usize::from(tier)];
        let tables: u64 = before.iter().map(|&blocks| table_bytes(blocks)).sum();
        (4 + self.log_blocks + 2 * self.slot_blocks) * BLOCK + tables
    }

    fn tables_end(&self) -> u64 {
        const LAST: usize = TIERS_MAX - 1;
        self.checksums(LAST as u8) + table_bytes(self.geometry.tier_blocks[LAST])
    }
}

/// Returns the size of a table of checksums in bytes: whole media blocks.
fn table_bytes(blocks: u32) -> u64 {
    (u64::from(blocks) * 4).next_multiple_of(BLOCK)
}

/// Returns the number of media blocks in a snapshot slot.
fn slot_blocks(inodes: u64, blocks: u64) -> u64 {
    let extents = (blocks * SLOT_BYTES_PER_BLOCK).min(SLOT_BYTES_MAX);
    (inodes * SLOT_BYTES_PER_INODE + extents).div_ceil(BLOCK) + 1
}

fn sum(words: &[u64], checksum: Checksum) -> u32 {
    words.iter().enumerate().fold(0, |crc, (at, word)| match at {
        W_CHECKSUM => crc,
        _ => checksum(crc, &word.to_le_bytes()),
    })
}
