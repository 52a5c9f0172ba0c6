//! Makes the checksums of arbitrary media content valid, so that the code behind the checksum tests
//! is reached.
//!
//! Written from docs/FORMAT.md and not from the core, so that an error of the core does not hide
//! itself here.
//!
//! Does not judge whether the sealed content makes sense.

use crate::durable::Setting;
use crate::faulty::{ByteMedia, Image};
use crate::tier::CHECKSUM;
use cairn_core::{MEDIA_BLOCK_BYTES, Superblock};
use std::ops::Range;

/// Words of a media block.
pub const BLOCK_WORDS: usize = MEDIA_BLOCK_BYTES / 8;
const LOG_HEADER_WORDS: usize = 4;
/// Words of a log block that carry the log's stream.
pub const PAYLOAD_WORDS: usize = BLOCK_WORDS - LOG_HEADER_WORDS;
/// Number of parameters of each operation, from operation 1 on.
pub const PARAMETERS: [usize; 23] =
    [3, 4, 2, 4, 2, 3, 1, 2, 6, 6, 2, 2, 4, 1, 2, 13, 2, 3, 6, 1, 4, 1, 6];

const LOG_MAGIC: u64 = u64::from_le_bytes(*b"cairnlog");
const BLOCK: u64 = MEDIA_BLOCK_BYTES as u64;
const SUPERBLOCKS: [u64; 2] = [0, BLOCK];
const LOG_TAILS: [u64; 2] = [2 * BLOCK, 3 * BLOCK];
const LOG_RING: u64 = 4 * BLOCK;

/// Offsets of the structures on media with the layout of a superblock.
pub struct Places {
    superblock: Superblock,
}

impl Places {
    /// Returns the offsets for the layout of `superblock`.
    pub fn of(superblock: &Superblock) -> Places {
        Places { superblock: superblock.clone() }
    }

    /// Returns the offset of one of the two superblocks.
    pub fn superblock(&self, copy: u64) -> u64 {
        SUPERBLOCKS[copy as usize % 2]
    }

    /// Returns the offset of the full log block with sequence number `sequence`.
    pub fn log_block(&self, sequence: u64) -> u64 {
        LOG_RING + sequence % self.superblock.log_blocks * BLOCK
    }

    /// Returns the offset of one of the two places of the last log block.
    pub fn log_tail(&self, turn: u64) -> u64 {
        LOG_TAILS[turn as usize % 2]
    }

    /// Returns the offset of the first block of snapshot `number`.
    pub fn slot(&self, number: u64) -> u64 {
        let blocks = self.superblock.log_blocks + number % 2 * self.superblock.slot_blocks;
        LOG_RING + blocks * BLOCK
    }

    /// Returns the offset of the table of checksums.
    pub fn checksums(&self) -> u64 {
        self.slot(0) + 2 * self.superblock.slot_blocks * BLOCK
    }

    /// Returns the mark of all log blocks of an epoch.
    pub fn brand(&self, epoch: u64) -> u64 {
        let [first, second] = self.superblock.identity;
        first ^ second.rotate_left(32) ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Reads `count` words at a byte offset of the image.
pub fn read(image: &Image, offset: u64, count: usize) -> Vec<u64> {
    let mut bytes = vec![0; count * 8];
    image.read_bytes(offset, &mut bytes).expect("the place is on the image");
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    bytes.chunks_exact(8).map(word).collect()
}

/// Writes words at a byte offset of the image.
pub fn write(image: &Image, offset: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    image.write_bytes(offset, &bytes).expect("the place is on the image");
}

fn sum(words: impl IntoIterator<Item = u64>) -> u64 {
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    u64::from(CHECKSUM(0, &bytes))
}

/// Stores the checksum of a superblock or of the first block of a snapshot. Both have it in word 2,
/// over all other words.
fn seal_first_block(block: &mut [u64]) {
    block[2] = sum(block.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, word)| *word));
}

/// Stores a valid checksum in the superblock at `offset`.
pub fn seal_superblock(image: &Image, offset: u64) {
    let mut block = read(image, offset, BLOCK_WORDS);
    seal_first_block(&mut block);
    write(image, offset, &block);
}

/// Seals the records in `words`, up to the first record with an impossible length.
pub fn seal_records(words: &mut [u64]) {
    let mut at = 0;
    while at < words.len() {
        let length = (words[at] >> 16 & 0xffff) as usize;
        if length == 0 || length > words.len() - at {
            return;
        }
        let record = &mut words[at..at + length];
        record[0] &= 0xffff_ffff;
        record[0] |= sum(record.iter().copied()) << 32;
        at += length;
    }
}

/// Returns the byte range of the records of a snapshot. The first block says how many words they
/// have; the range is limited to the space of the snapshot.
pub fn snapshot_records(image: &Image, places: &Places, slot: u64) -> Range<u64> {
    let start = places.slot(slot) + BLOCK;
    let room = (places.superblock.slot_blocks - 1) * BLOCK_WORDS as u64;
    let words = read(image, places.slot(slot), BLOCK_WORDS)[6].min(room);
    start..start + words * 8
}

/// Seals the records of a snapshot, their common checksum, and its first block.
pub fn seal_snapshot(image: &Image, places: &Places, slot: u64) {
    let range = snapshot_records(image, places, slot);
    let mut records = read(image, range.start, ((range.end - range.start) / 8) as usize);
    seal_records(&mut records);
    write(image, range.start, &records);
    let mut first = read(image, places.slot(slot), BLOCK_WORDS);
    first[7] = sum(records);
    seal_first_block(&mut first);
    write(image, places.slot(slot), &first);
}

/// Writes `records` as those of a snapshot and seals it.
pub fn put_snapshot(image: &Image, places: &Places, slot: u64, records: &[u64]) {
    let mut first = read(image, places.slot(slot), BLOCK_WORDS);
    first[6] = records.len() as u64;
    write(image, places.slot(slot), &first);
    write(image, places.slot(slot) + BLOCK, records);
    seal_snapshot(image, places, slot);
}

fn seal_log_block(block: &mut [u64]) {
    block[2] &= 0xffff_ffff;
    block[2] |= sum(block.iter().copied()) << 32;
}

/// Seals the log blocks at `offsets` and the records in the stream that these blocks form.
pub fn seal_log(image: &Image, offsets: &[u64]) {
    let mut blocks: Vec<Vec<u64>> =
        offsets.iter().map(|&offset| read(image, offset, BLOCK_WORDS)).collect();
    let mut stream: Vec<u64> =
        blocks.iter().flat_map(|block| block[LOG_HEADER_WORDS..].iter().copied()).collect();
    seal_records(&mut stream);
    for ((block, payload), &offset) in
        blocks.iter_mut().zip(stream.chunks(PAYLOAD_WORDS)).zip(offsets)
    {
        block[LOG_HEADER_WORDS..].copy_from_slice(payload);
        seal_log_block(block);
        write(image, offset, block);
    }
}

/// Writes `stream` as the log of an epoch, from the beginning of the log.
pub fn put_log(image: &Image, places: &Places, epoch: u64, stream: &[u64]) {
    for (sequence, payload) in stream.chunks(PAYLOAD_WORDS).enumerate() {
        let sequence = sequence as u64;
        let mut block = vec![0; BLOCK_WORDS];
        block[..LOG_HEADER_WORDS].copy_from_slice(&[
            LOG_MAGIC,
            sequence,
            payload.len() as u64,
            places.brand(epoch),
        ]);
        block[LOG_HEADER_WORDS..][..payload.len()].copy_from_slice(payload);
        seal_log_block(&mut block);
        let offset = match payload.len() {
            PAYLOAD_WORDS => places.log_block(sequence),
            _ => places.log_tail(0),
        };
        write(image, offset, &block);
    }
}

/// Appends a sealed record to `words`. The number of parameters need not be right.
pub fn append(words: &mut Vec<u64>, operation: u64, lsn: u64, parameters: &[u64], name: &[u8]) {
    let first = words.len();
    words.extend([0, lsn, lsn.wrapping_mul(10)]);
    words.extend(parameters);
    words.push(name.len() as u64);
    for chunk in name.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        words.push(u64::from_le_bytes(bytes));
    }
    words[first] = ((words.len() - first) as u64) << 16 | operation;
    seal_records(&mut words[first..]);
}

/// Returns freshly formatted media of `bytes` bytes.
pub fn empty(bytes: u64) -> (Image, Superblock) {
    let image = Image::filled(bytes, 0xdb);
    let superblock = Setting::simple().make_on(&image);
    (image, superblock)
}
