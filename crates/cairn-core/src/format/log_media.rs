//! The log on the media: a stream of words in blocks (docs/FORMAT.md).
//!
//! ```text
//! word 0  "cairnlog"    1  sequence    2  CRC32C << 32 | words used    3  brand    4.. 508 words of the stream
//! ```
//! Once block *n* of the stream is full, it is at place *n* modulo the length of the ring, and is
//! immutable. The last, partly filled block is written as a whole to two other places in turn, so
//! that a torn write leaves the previous version.
//!
//! Invariant: the stream ends at the first block that is missing, damaged or of another brand, and
//! a record counts only if all its blocks do.

use crate::format::error::Result;
use crate::format::layout::Checksum;
use crate::format::media::{MEDIA_BLOCK_BYTES, MEDIA_BLOCK_WORDS, Media, read_words, write_words};
use crate::format::record::sum_words;
use crate::format::superblock::Superblock;

const MAGIC: u64 = u64::from_le_bytes(*b"cairnlog");
const HEADER_WORDS: usize = 4;
/// Words of the stream in one block.
pub(crate) const PAYLOAD_WORDS: u64 = (MEDIA_BLOCK_WORDS - HEADER_WORDS) as u64;
/// Maximum number of blocks in one read.
const READ_BLOCKS: u64 = 64;

/// Returns the sequence number of the block that holds the word at `position`.
pub(crate) fn block_of(position: u64) -> u64 {
    position / PAYLOAD_WORDS
}

/// Returns the position of the first word in the block of `position`.
pub(crate) fn block_start(position: u64) -> u64 {
    position - position % PAYLOAD_WORDS
}

fn sum(block: &[u64], checksum: Checksum) -> u32 {
    let without_crc = |(at, &word)| if at == 2 { word & 0xffff_ffff } else { word };
    sum_words(checksum, 0, block.iter().enumerate().map(without_crc))
}

/// Writes the stream from `block_start(from)` to `to`; `word` returns the word at a position. The
/// partial block at the end goes to the place for `turn`. Durable only after a flush.
pub(crate) fn write(
    media: &dyn Media,
    superblock: &Superblock,
    (brand, checksum): (u64, Checksum),
    (from, to): (u64, u64),
    turn: u64,
    word: impl Fn(u64) -> u64,
) -> Result<()> {
    for sequence in block_of(from)..=block_of(to) {
        let start = sequence * PAYLOAD_WORDS;
        let used = (to - start).min(PAYLOAD_WORDS);
        if used == 0 {
            break;
        }
        let mut block = [0; MEDIA_BLOCK_WORDS];
        block[..HEADER_WORDS].copy_from_slice(&[MAGIC, sequence, used, brand]);
        for (place, position) in block[HEADER_WORDS..].iter_mut().zip(start..start + used) {
            *place = word(position);
        }
        block[2] |= u64::from(sum(&block, checksum)) << 32;
        let offset = match used {
            PAYLOAD_WORDS => superblock.log_block(sequence),
            _ => superblock.log_tail(turn),
        };
        write_words(media, offset, &block)?;
    }
    Ok(())
}

/// The valid part of the stream from the block of a position on.
pub(crate) struct Stream {
    /// Position of the first word.
    pub start: u64,
    /// Words from there on.
    pub words: Vec<u64>,
}

impl Stream {
    /// Reads the stream. Errors: `Io`: an unreadable block may hold what was promised last.
    pub(crate) fn read(
        media: &dyn Media,
        superblock: &Superblock,
        (brand, checksum): (u64, Checksum),
        position: u64,
    ) -> Result<Stream> {
        let mut stream = Stream { start: block_start(position), words: Vec::new() };
        let first = block_of(position);
        let mut sequence = first;
        let mut blocks = vec![0; READ_BLOCKS as usize * MEDIA_BLOCK_WORDS];
        'ring: while sequence - first < superblock.log_blocks {
            // Up to the end of the ring, and not past the first block.
            let contiguous = superblock.log_blocks - sequence % superblock.log_blocks;
            let count = READ_BLOCKS.min(contiguous).min(first + superblock.log_blocks - sequence);
            let read = &mut blocks[..count as usize * MEDIA_BLOCK_WORDS];
            read_words(media, superblock.log_block(sequence), read)?;
            for block in read.chunks_exact(MEDIA_BLOCK_WORDS) {
                match payload(block, sequence, brand, checksum) {
                    Some(words) if words.len() as u64 == PAYLOAD_WORDS => {
                        stream.words.extend(words);
                    }
                    _ => break 'ring,
                }
                sequence += 1;
            }
        }
        let mut longest = 0;
        let mut tail = [0; MEDIA_BLOCK_WORDS];
        let full = stream.words.len();
        for turn in 0..2 {
            read_words(media, superblock.log_tail(turn), &mut tail)?;
            let words = payload(&tail, sequence, brand, checksum).unwrap_or(&[]);
            if words.len() > longest {
                longest = words.len();
                stream.words.truncate(full);
                stream.words.extend(words);
            }
        }
        Ok(stream)
    }

    /// Returns the words from `position` on.
    pub(crate) fn from(&self, position: u64) -> &[u64] {
        let skip = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        self.words.get(skip..).unwrap_or(&[])
    }
}

/// The blocks of one brand on the media, wherever in the stream they belong.
pub(crate) struct Survey {
    /// Sequence numbers of the full blocks in the ring.
    pub full: Vec<u64>,
    /// Sequence numbers of the two partial blocks.
    pub tails: [Option<u64>; 2],
    /// Offset of a partial block that is neither blank nor valid, whatever its brand.
    pub torn_tail: Option<u64>,
}

impl Survey {
    /// Reads every block. An unreadable block counts as missing.
    pub(crate) fn take(
        media: &dyn Media,
        superblock: &Superblock,
        (brand, checksum): (u64, Checksum),
    ) -> Survey {
        let mut survey = Survey::of_tails(media, superblock, (brand, checksum));
        let mut block = [0; MEDIA_BLOCK_WORDS];
        for place in 0..superblock.log_blocks {
            let read = read_words(media, superblock.log_block(place), &mut block);
            let sequence = block[1];
            let whole = read.is_ok()
                && sequence % superblock.log_blocks == place
                && payload(&block, sequence, brand, checksum).is_some();
            survey.full.extend(whole.then_some(sequence));
        }
        survey
    }

    /// Reads the partial blocks only.
    pub(crate) fn of_tails(
        media: &dyn Media,
        superblock: &Superblock,
        (brand, checksum): (u64, Checksum),
    ) -> Survey {
        let mut survey = Survey { full: Vec::new(), tails: [None; 2], torn_tail: None };
        let mut block = [0; MEDIA_BLOCK_WORDS];
        for turn in 0..2 {
            let offset = superblock.log_tail(turn);
            if read_words(media, offset, &mut block).is_err()
                || payload(&block, block[1], block[3], checksum).is_none()
            {
                let blank = block.iter().all(|&word| word == 0);
                survey.torn_tail = survey.torn_tail.or((!blank).then_some(offset));
            } else if block[3] == brand {
                survey.tails[turn as usize] = Some(block[1]);
            }
        }
        survey
    }

    /// Returns the number of blocks found.
    pub(crate) fn count(&self) -> usize {
        self.full.len() + self.tails.iter().flatten().count()
    }
}

/// Returns the words of the stream in a block, if it is the valid block with this sequence number
/// and brand.
fn payload(block: &[u64], sequence: u64, brand: u64, checksum: Checksum) -> Option<&[u64]> {
    let used = block[2] & 0xffff_ffff;
    let valid = block[0] == MAGIC
        && block[1] == sequence
        && block[3] == brand
        && used <= PAYLOAD_WORDS
        && block[2] >> 32 == u64::from(sum(block, checksum));
    valid.then(|| &block[HEADER_WORDS..HEADER_WORDS + used as usize])
}

const _: () = assert!(MEDIA_BLOCK_BYTES == 8 * (HEADER_WORDS + PAYLOAD_WORDS as usize));
