//! Snapshots: the namespace at a position in the log, so that recovery begins there (NVMe-CR,
//! section III-F).
//!
//! ```text
//! first block   0 "cairnsnp"  1 number  2 CRC32C  3 brand  4 position in the log  5 LSN  6 words  7 CRC32C of them  8 epoch
//! then          records, as in the log: every inode, every name and link target, every extent, extended attributes
//! ```
//! Two slots take turns. A snapshot is made from an *image* that was replayed from the media, never
//! from the memory that programs work on, so nobody waits for it.
//!
//! Invariant: a slot's first block is written only when the records are durable; the newest valid
//! slot counts.

use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::layout::Checksum;
use crate::format::log_media::Stream;
use crate::format::media::{MEDIA_BLOCK_BYTES, MEDIA_BLOCK_WORDS, Media, read_words, write_words};
use crate::format::memory::Memory;
use crate::format::record::{Operation, RECORD_WORDS_MAX, encode, sum_words};
use crate::format::superblock::Superblock;
use crate::format::types::{InodeId, NAME_BYTES_MAX, PATH_BYTES_MAX, Timestamp};
use crate::namespace::extended::ExtendedAttributes;
use crate::recovery::replay::Image;

const MAGIC: u64 = u64::from_le_bytes(*b"cairnsnp");
/// Words written or read at once.
const CHUNK_WORDS: usize = 64 * MEDIA_BLOCK_WORDS;

/// The first block of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Number of the snapshot, ascending; selects the slot.
    pub number: u64,
    /// Position in the log at which replay goes on.
    pub position: u64,
    /// LSN of the last record contained.
    pub lsn: u64,
    /// Tells the log that follows from what a crash left behind.
    pub epoch: u64,
    /// Number of words in its records.
    pub words: u64,
    content: u32,
}

impl Header {
    fn encode(&self, superblock: &Superblock, checksum: Checksum) -> [u64; MEDIA_BLOCK_WORDS] {
        let mut block = [0; MEDIA_BLOCK_WORDS];
        let brand = superblock.brand(0);
        let content = u64::from(self.content);
        block[..9].copy_from_slice(&[
            MAGIC,
            self.number,
            0,
            brand,
            self.position,
            self.lsn,
            self.words,
            content,
            self.epoch,
        ]);
        block[2] = u64::from(sum(&block, checksum));
        block
    }

    pub(crate) fn read(
        media: &dyn Media,
        superblock: &Superblock,
        checksum: Checksum,
        slot: u64,
    ) -> Result<Option<Header>> {
        let mut block = [0; MEDIA_BLOCK_WORDS];
        read_words(media, superblock.slot(slot), &mut block)?;
        let expected = u64::from(sum(&block, checksum));
        let room = (superblock.slot_blocks - 1) * MEDIA_BLOCK_WORDS as u64;
        let valid = block[0] == MAGIC
            && block[2] == expected
            && block[3] == superblock.brand(0)
            && block[1] % 2 == slot
            && block[1].max(block[4]).max(block[8]) < u64::MAX / 2
            && block[6] <= room;
        Ok(valid.then_some(Header {
            number: block[1],
            position: block[4],
            lsn: block[5],
            words: block[6],
            content: block[7] as u32,
            epoch: block[8],
        }))
    }
}

fn sum(block: &[u64], checksum: Checksum) -> u32 {
    sum_words(
        checksum,
        0,
        block.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, &word)| word),
    )
}

/// Returns the headers of the valid slots, newest first. The records of a slot may be damaged
/// nevertheless. Errors: `Io`: an unreadable header may be the newest, and going on from the other
/// would lose what came between.
fn headers(media: &dyn Media, superblock: &Superblock, checksum: Checksum) -> Result<Vec<Header>> {
    let mut found = Vec::new();
    for slot in 0..2 {
        found.extend(Header::read(media, superblock, checksum, slot)?);
    }
    found.sort_by_key(|header| std::cmp::Reverse(header.number));
    Ok(found)
}

/// Whether nothing was ever written to a slot.
pub(crate) fn is_blank(media: &dyn Media, superblock: &Superblock, slot: u64) -> bool {
    let mut block = [0; MEDIA_BLOCK_WORDS];
    let read = read_words(media, superblock.slot(slot), &mut block);
    read.is_ok() && block.iter().all(|&word| word == 0)
}

/// Returns the epoch of the newest snapshot, which began with the last recovery of the media.
pub(crate) fn epoch(
    media: &dyn Media,
    superblock: &Superblock,
    checksum: Checksum,
) -> Result<Option<u64>> {
    Ok(headers(media, superblock, checksum)?.first().map(|header| header.epoch))
}

/// Reads the records of a snapshot. Errors: `Corrupt` if they are damaged; `Io`.
pub(crate) fn read(
    media: &dyn Media,
    superblock: &Superblock,
    checksum: Checksum,
    header: &Header,
) -> Result<Vec<u64>> {
    let length = header.words as usize;
    let mut words = vec![0; length.next_multiple_of(MEDIA_BLOCK_WORDS)];
    let mut offset = superblock.slot(header.number) + MEDIA_BLOCK_BYTES as u64;
    for chunk in words.chunks_mut(CHUNK_WORDS) {
        read_words(media, offset, chunk)?;
        offset += chunk.len() as u64 * 8;
    }
    words.truncate(length);
    match sum_words(checksum, 0, words.iter().copied()) == header.content {
        true => Ok(words),
        false => Err(Error::Corrupt { what: "snapshot checksum" }),
    }
}

/// Outcome of rebuilding an image from media.
pub(crate) struct Rebuilt {
    /// The newest snapshot.
    pub newest: Header,
    /// Position at which the log ends.
    pub end: u64,
    /// The newest snapshot's records are damaged; the snapshot before it and the log between led to
    /// the same state.
    pub fell_back: bool,
}

impl Rebuilt {
    /// Returns the header of the next snapshot, up to `position`. Its slot is not the one that was
    /// read from, which is needed until the new snapshot is durable.
    pub(crate) fn next(&self, position: u64) -> Header {
        let number = self.newest.number + if self.fell_back { 2 } else { 1 };
        Header { number, position, ..self.newest }
    }

    /// Returns the header of the first snapshot of the next epoch.
    pub(crate) fn next_epoch(&self, position: u64) -> Header {
        Header { epoch: self.newest.epoch + 1, ..self.next(position) }
    }
}

/// Replays the newest snapshot that can be read, and the log after it, into `image`. Errors:
/// `Corrupt` if no snapshot leads to the state of the newest one; `Io`.
pub(crate) fn rebuild(
    media: &dyn Media,
    superblock: &Superblock,
    image: &mut Image<'_>,
) -> Result<Rebuilt> {
    let headers = headers(media, superblock, image.checksum)?;
    let newest = *headers.first().ok_or(Error::Corrupt { what: "no valid snapshot" })?;
    let mut first_error = None;
    for header in headers {
        let words = match read(media, superblock, image.checksum, &header) {
            Ok(words) => words,
            Err(error) => {
                first_error = first_error.or(Some(error));
                continue;
            }
        };
        if image.replay(&words, false)? != words.len() {
            return Err(Error::Corrupt { what: "snapshot record" });
        }
        image.check_snapshot()?;
        image.lsn = header.lsn;
        let mut end = replay_log(media, superblock, &header, image)?;
        if header.epoch != newest.epoch && image.lsn == newest.lsn {
            // A recovery from this snapshot wrote the newest one: the log goes on after that.
            lose_memory(superblock, image)?;
            end = replay_log(media, superblock, &newest, image)?;
        }
        if image.lsn < newest.lsn {
            // The newer snapshot is at fault; if it could not be read, that may pass.
            let missing = Error::Corrupt { what: "log between two snapshots" };
            return Err(first_error.unwrap_or(missing));
        }
        return Ok(Rebuilt { newest, end, fell_back: first_error.is_some() });
    }
    Err(first_error.unwrap_or(Error::Corrupt { what: "no valid snapshot" }))
}

/// Drops what was on tiers in memory: between two epochs the node's memory was lost.
pub(crate) fn lose_memory(superblock: &Superblock, image: &Image<'_>) -> Result<()> {
    let is_gone = |tier| !superblock.survives(tier);
    let mut tiers = superblock.geometry.tier_blocks.iter().zip(0..);
    match tiers.any(|(&blocks, tier)| blocks > 0 && is_gone(tier)) {
        true => image.lose(&is_gone),
        false => Ok(()),
    }
}

/// Replays the log after a snapshot. Returns the position at which it ends.
fn replay_log(
    media: &dyn Media,
    superblock: &Superblock,
    header: &Header,
    image: &mut Image<'_>,
) -> Result<u64> {
    let brand = (superblock.brand(header.epoch), image.checksum);
    let stream = Stream::read(media, superblock, brand, header.position)?;
    let replayed = image.replay(stream.from(header.position), true)?;
    Ok(header.position + replayed as u64)
}

/// Writes `image` as a snapshot. `header` has everything but the size, checksum and LSN of the
/// records. Returns the complete header.
pub(crate) fn write(
    media: &dyn Media,
    superblock: &Superblock,
    image: &Image<'_>,
    mut header: Header,
) -> Result<Header> {
    // The newest snapshot may be of a writer that died before it was durable, and this one replaces
    // the other.
    media.flush()?;
    let mut writer = Writer {
        media,
        checksum: image.checksum,
        offset: superblock.slot(header.number) + MEDIA_BLOCK_BYTES as u64,
        end: superblock.slot(header.number) + superblock.slot_blocks * MEDIA_BLOCK_BYTES as u64,
        pending: Vec::with_capacity(CHUNK_WORDS + RECORD_WORDS_MAX),
        words: 0,
        crc: 0,
    };
    dump(image, &mut writer)?;
    writer.write_out(writer.pending.len())?;
    header.words = writer.words;
    header.content = writer.crc;
    header.lsn = image.lsn;
    media.flush()?;
    write_words(media, superblock.slot(header.number), &header.encode(superblock, image.checksum))?;
    media.flush()?;
    Ok(header)
}

/// Makes the next snapshot from the newest one and the log; reads nothing but the media.
pub(crate) fn advance(
    media: &dyn Media,
    superblock: &Superblock,
    checksum: Checksum,
) -> Result<Header> {
    let words = superblock.geometry.segment_bytes() as usize / 8;
    let memory: Box<dyn Memory> = media.workspace(words)?;
    let mut image = Image::new(memory.as_ref(), &superblock.geometry, checksum)?;
    let rebuilt = rebuild(media, superblock, &mut image)?;
    write(media, superblock, &image, rebuilt.next(rebuilt.end))
}

/// Writes the snapshot of a namespace that has nothing but a root directory.
pub(crate) fn write_first(
    media: &dyn Media,
    superblock: &Superblock,
    image: &Image<'_>,
) -> Result<Header> {
    let header = Header { number: 0, position: 0, lsn: 0, epoch: 1, words: 0, content: 0 };
    write(media, superblock, image, header)
}

struct Writer<'a> {
    media: &'a dyn Media,
    checksum: Checksum,
    offset: u64,
    end: u64,
    pending: Vec<u64>,
    words: u64,
    crc: u32,
}

impl Writer<'_> {
    fn put(&mut self, operation: Operation, parameters: &[u64], name: &[u8]) -> Result<()> {
        let stamp = (0, Timestamp(0));
        encode(&mut self.pending, self.checksum, operation, stamp, parameters, name);
        match self.pending.len() >= CHUNK_WORDS {
            true => self.write_out(CHUNK_WORDS),
            false => Ok(()),
        }
    }

    fn write_out(&mut self, count: usize) -> Result<()> {
        let bytes = (count as u64 * 8).next_multiple_of(MEDIA_BLOCK_BYTES as u64);
        if self.offset + bytes > self.end {
            return Err(Error::NoSpace);
        }
        write_words(self.media, self.offset, &self.pending[..count])?;
        self.crc = sum_words(self.checksum, self.crc, self.pending.drain(..count));
        self.offset += bytes;
        self.words += count as u64;
        Ok(())
    }
}

fn dump(image: &Image<'_>, writer: &mut Writer<'_>) -> Result<()> {
    let inodes = image.inodes()?;
    for &id in &inodes {
        let parameters = image.transact(|tx| Ok(image.inode_record(tx, tx.inode(id)?)))?;
        writer.put(Operation::Inode, &parameters, &[])?;
    }
    for &id in &inodes {
        dump_content(image, writer, id)?;
        dump_extended(image, writer, id)?;
    }
    Ok(())
}

/// Writes the names of a directory, the extents of a file, or the target of a symbolic link.
fn dump_content(image: &Image<'_>, writer: &mut Writer<'_>, id: InodeId) -> Result<()> {
    let number = u64::from(id.0);
    let mut text = [0; PATH_BYTES_MAX];
    image.transact(|tx| {
        let inode = tx.inode(id)?;
        if inode.is_directory(tx) {
            return dump_names(tx, writer, id, &mut text[..NAME_BYTES_MAX]);
        }
        if inode.is_symlink(tx) {
            let length = tx.copy_text(inode.target(tx), &mut text);
            return writer.put(Operation::Target, &[number], &text[..length]);
        }
        let map = inode.map(tx);
        let mut next = tx.first_extent_from(map, 0);
        while let Some(extent) = next {
            let run = extent.blocks.pack();
            writer.put(Operation::Extent, &[number, u64::from(extent.file_block), run], &[])?;
            next = tx.first_extent_from(map, extent.file_block.saturating_add(1));
        }
        Ok(())
    })
}

fn dump_extended(image: &Image<'_>, writer: &mut Writer<'_>, id: InodeId) -> Result<()> {
    let mut attributes = ExtendedAttributes::default();
    image.transact(|tx| {
        tx.read_extended(tx.inode(id)?, &mut attributes);
        match attributes.as_bytes() {
            [] => Ok(()),
            text => writer.put(Operation::Extended, &[u64::from(id.0)], text),
        }
    })
}

fn dump_names(
    tx: &Transaction,
    writer: &mut Writer<'_>,
    directory: InodeId,
    text: &mut [u8],
) -> Result<()> {
    let mut position = 0;
    while let Some(entry) = tx.next_name(directory, position) {
        let length = tx.copy_name(entry, text);
        let parameters = [u64::from(directory.0), u64::from(entry.inode.0)];
        writer.put(Operation::Name, &parameters, &text[..length])?;
        position = entry.hash;
    }
    Ok(())
}
