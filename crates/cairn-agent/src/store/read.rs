//! Reads whole files from the store and checks every sealed block on the way.
//!
//! Must stay true: data are copied into private memory and checked there before they are handed on,
//! so later changes in the store do not affect them. A file that changed meanwhile is reported as
//! changed, not as damaged. A file that is removed meanwhile keeps no space because of the read: it
//! is held open only to find its blocks.
//!
//! Does not care where the bytes go.

use cairn_core::{Attributes, ReadPlan};
use cairn_platform::checksum;
use cairn_platform::direct::Aligned;
use std::ops::Range;

use crate::model::error::{Error, Result};
use crate::store::volume::OpenFile;

/// Number of bytes handed on at a time, unless a hugeblock is larger.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Number of attempts if the blocks of a file move during a read.
const ATTEMPTS_MAX: usize = 64;

/// A part of a file.
pub struct Chunk<'a> {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// Begins with the bytes of the part, except those of known pieces. The consumer may take the
    /// memory and leave other memory of the same length here, unless the part is a hole.
    pub memory: &'a mut Aligned,
    /// Whether nothing was ever written here: all bytes are zeros.
    pub is_hole: bool,
    /// CRC32C of the file up to the end of this part.
    pub crc32c: u32,
    /// Whether every block so far was compared with its checksum.
    pub is_checked: bool,
}

impl Chunk<'_> {
    /// Returns the bytes of the part.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

/// Where a read continues.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Version that the file must have.
    pub version: u64,
    /// Number of bytes read before; a multiple of the hugeblock.
    pub offset: u64,
    /// Their CRC32C.
    pub crc32c: u32,
}

/// Unit in which ranges count as known: a piece of this length, or a hugeblock if that is larger,
/// is known as a whole or not at all.
pub const PIECE_BYTES: u64 = 32 << 10;

/// Ranges of a file that the reader has already, so that they need not be read.
#[derive(Default)]
pub struct Known {
    ranges: Vec<Range<u64>>,
}

impl Known {
    /// Keeps the parts of `ranges` before `end`. `ranges` must be sorted and must not touch each
    /// other.
    pub fn new(mut ranges: Vec<Range<u64>>, end: u64) -> Known {
        ranges.retain(|range| range.start < end);
        ranges.iter_mut().for_each(|range| range.end = range.end.min(end));
        Known { ranges }
    }

    /// Whether any byte of `range` is known.
    pub fn touches(&self, range: &Range<u64>) -> bool {
        let next = self.ranges.partition_point(|known| known.end <= range.start);
        self.ranges.get(next).is_some_and(|known| known.start < range.end)
    }

    /// Whether the whole `range` is known.
    pub fn has(&self, range: &Range<u64>) -> bool {
        let next = self.ranges.partition_point(|known| known.end < range.end);
        self.ranges.get(next).is_some_and(|known| known.start <= range.start)
    }
}

/// Result of reading a whole file.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Attributes at the beginning of the read; the data have this version.
    pub attributes: Attributes,
    /// CRC32C of the whole file.
    pub crc32c: u32,
    /// Number of blocks whose checksum was compared.
    pub checked_blocks: u64,
    /// Number of blocks without a valid checksum, because somebody is writing to them.
    pub open_blocks: u64,
}

/// Buffers for reading one file after another.
#[derive(Default)]
pub struct Buffer {
    bytes: Aligned,
    checksums: Vec<Option<u32>>,
    /// For each block: whether any part of it came from a tier.
    written: Vec<bool>,
    /// For each block: whether it is known, has a checksum and is not read.
    known: Vec<bool>,
    /// Zeros for holes, as long as a part.
    zeros: Aligned,
}

impl Buffer {
    /// Lends the memory for other uses in between; `put_back` returns it. Its content is undefined.
    pub(crate) fn lend(&mut self) -> Aligned {
        self.bytes.grow(CHUNK_BYTES as usize);
        std::mem::take(&mut self.bytes)
    }

    /// Takes memory back, so that the next file needs none of its own.
    pub(crate) fn put_back(&mut self, memory: Aligned) {
        self.bytes = memory;
    }
}

/// Reads all of `file` and passes it to `consume` part by part, in order. Errors: `Changed` if it
/// was written to meanwhile, `Damaged` at the first block whose checksum is wrong, those of
/// `consume`.
pub fn read_whole(
    file: &OpenFile<'_>,
    buffer: &mut Buffer,
    consume: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
) -> Result<Summary> {
    read_from(file, (None, &Known::default()), buffer, consume)
}

/// Like `read_whole`, but from `start` on, and without the bytes of known pieces whose blocks all
/// have checksums. The checksum in the summary covers the whole file; its counts cover what was
/// read.
pub fn read_from(
    file: &OpenFile<'_>,
    (start, known): (Option<Start>, &Known),
    buffer: &mut Buffer,
    consume: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
) -> Result<Summary> {
    let volume = file.volume;
    let attributes = file.attributes()?;
    let first = Start { version: attributes.version, offset: 0, crc32c: 0 };
    let Start { version, mut offset, crc32c } = start.unwrap_or(first);
    if version != attributes.version || offset > attributes.size {
        return Err(file.changed());
    }
    if attributes.writers == 0 {
        volume.seal(&file.path, file.inode)?;
    }
    let block_bytes = volume.hugeblock_bytes();
    let chunk_bytes = CHUNK_BYTES.max(block_bytes);
    buffer.bytes.grow(chunk_bytes as usize);
    buffer.checksums.resize((chunk_bytes / block_bytes) as usize, None);
    let mut summary = Summary { attributes, crc32c, checked_blocks: 0, open_blocks: 0 };
    while offset < attributes.size {
        offset += skip_hole(file, buffer, offset, &mut summary, consume)?;
        let length = chunk_bytes.min(attributes.size - offset);
        if length == 0 {
            break;
        }
        find_known(file, buffer, known, (offset, length))?;
        let may_be_stale = read_chunk(file, buffer, offset, length)?;
        check_chunk(file, buffer, offset, length, &mut summary)?;
        if may_be_stale && summary.open_blocks > 0 {
            // Earlier writes may be lost, and no checksum can tell.
            return Err(file.failed("read", cairn_core::Error::Io));
        }
        let is_hole = !buffer.written.contains(&true);
        let is_checked = summary.open_blocks == 0;
        let (memory, length, crc32c) = (&mut buffer.bytes, length as usize, summary.crc32c);
        consume(Chunk { offset, length, memory, is_hole, crc32c, is_checked })?;
        offset += length as u64;
    }
    match file.attributes()?.version == attributes.version {
        true => Ok(summary),
        false => Err(file.changed()),
    }
}

/// Passes on whole parts of a hole at `offset` without looking at single blocks. Returns their
/// length.
fn skip_hole(
    file: &OpenFile<'_>,
    buffer: &mut Buffer,
    offset: u64,
    summary: &mut Summary,
    consume: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
) -> Result<u64> {
    let part_bytes = buffer.bytes.len() as u64;
    let rest = summary.attributes.size - offset;
    let plan = file.plan_read(offset, rest)?;
    let hole = plan.runs().first().filter(|run| run.source.is_none());
    let hole_bytes = hole.map_or(0, |run| run.bytes.min(rest));
    let parts = hole_bytes / part_bytes;
    if parts > 0 {
        file.let_go();
        buffer.zeros.grow(part_bytes as usize);
        buffer.zeros.fill(0);
    }
    for part in 0..parts {
        summary.crc32c = checksum::combine(summary.crc32c, checksum::zeros(part_bytes), part_bytes);
        let (memory, length, crc32c) = (&mut buffer.zeros, part_bytes as usize, summary.crc32c);
        let is_checked = summary.open_blocks == 0;
        let offset = offset + part * part_bytes;
        consume(Chunk { offset, length, memory, is_hole: true, crc32c, is_checked })?;
    }
    Ok(parts * part_bytes)
}

/// Finds the blocks of a part that need not be read: those of known pieces whose checksums are all
/// stored.
fn find_known(
    file: &OpenFile<'_>,
    buffer: &mut Buffer,
    known: &Known,
    (offset, length): (u64, u64),
) -> Result<()> {
    let block_bytes = file.volume.hugeblock_bytes();
    let block_count = length.div_ceil(block_bytes) as usize;
    buffer.known.clear();
    buffer.known.resize(block_count, false);
    if known.ranges.is_empty() {
        return Ok(());
    }
    stored_checksums(file, &mut buffer.checksums[..block_count], offset)?;
    let piece_bytes = PIECE_BYTES.max(block_bytes);
    for start in (0..length / piece_bytes).map(|piece| piece * piece_bytes) {
        let end = start + piece_bytes;
        let blocks = (start / block_bytes) as usize..(end / block_bytes) as usize;
        let is_sealed = buffer.checksums[blocks.clone()].iter().all(Option::is_some);
        if is_sealed && known.has(&(offset + start..offset + end)) {
            buffer.known[blocks].fill(true);
        }
    }
    Ok(())
}

fn stored_checksums(file: &OpenFile<'_>, found: &mut [Option<u32>], offset: u64) -> Result<()> {
    let first_block = (offset / file.volume.hugeblock_bytes()) as u32;
    let checksums = file.volume.fs().checksums(file.inode, first_block, found);
    checksums.map_err(|error| file.failed("read the checksums of", error))
}

/// Fills the buffer with `length` bytes from `offset`, except known blocks, and zeros the rest of
/// the last block. Returns whether any of the bytes may be older than what was written.
fn read_chunk(file: &OpenFile<'_>, buffer: &mut Buffer, offset: u64, length: u64) -> Result<bool> {
    let volume = file.volume;
    let block_bytes = volume.hugeblock_bytes();
    let block_count = length.div_ceil(block_bytes) as usize;
    buffer.written.clear();
    buffer.written.resize(block_count, false);
    let padded = block_count * block_bytes as usize;
    buffer.bytes[length as usize..padded].fill(0);
    let (mut done, mut attempts, mut may_be_stale) = (0, 0, false);
    while done < length {
        let block = (done / block_bytes) as usize;
        let is_known = buffer.known[block];
        let same = buffer.known[block..].iter().take_while(|known| **known == is_known).count();
        let end = length.min((block + same) as u64 * block_bytes);
        if is_known {
            buffer.written[block..block + same].fill(true);
            done = end;
            continue;
        }
        let plan = file.plan_read(offset + done, end - done)?;
        if plan.length == 0 {
            return Err(file.changed());
        }
        file.let_go();
        let target = &mut buffer.bytes[done as usize..(done + plan.length) as usize];
        may_be_stale |= transfer(file, &plan, target)?;
        if volume.fs().read_is_valid(&plan) {
            note_written(&plan, offset, block_bytes, &mut buffer.written);
            done += plan.length;
            continue;
        }
        attempts += 1;
        if attempts == ATTEMPTS_MAX {
            return Err(file.changed());
        }
    }
    Ok(may_be_stale)
}

/// Copies the runs of `plan` into `target`, which is exactly as long. Returns whether any of the
/// bytes may be older than what was written.
fn transfer(file: &OpenFile<'_>, plan: &ReadPlan, target: &mut [u8]) -> Result<bool> {
    let volume = file.volume;
    let (mut rest, mut may_be_stale) = (target, false);
    for run in plan.runs() {
        let (part, tail) = rest.split_at_mut(run.bytes as usize);
        match run.source {
            None => part.fill(0),
            Some((tier, offset)) => {
                let failed = |source| Error::Tier {
                    path: volume.outer_path(&file.path),
                    tier: volume.shown_tier(tier),
                    source,
                };
                let device = volume.tier(tier).map_err(failed)?;
                // SAFETY: `part` is writable for its whole length and no one else refers to it; the
                // device checks that the range lies within the tier.
                let read = unsafe { device.read_unverified(offset, part.as_mut_ptr(), part.len()) };
                may_be_stale |= read.map_err(failed)?;
            }
        }
        rest = tail;
    }
    Ok(may_be_stale)
}

/// Marks the blocks of the part at `chunk_offset` that have data on a tier.
fn note_written(plan: &ReadPlan, chunk_offset: u64, block_bytes: u64, written: &mut [bool]) {
    let mut at = plan.offset - chunk_offset;
    for run in plan.runs() {
        let end = at + run.bytes;
        if run.source.is_some() {
            let blocks = (at / block_bytes) as usize..end.div_ceil(block_bytes) as usize;
            written[blocks].fill(true);
        }
        at = end;
    }
}

/// Compares the blocks in the buffer with their checksums, and adds them to the file's checksum.
fn check_chunk(
    file: &OpenFile<'_>,
    buffer: &mut Buffer,
    offset: u64,
    length: u64,
    summary: &mut Summary,
) -> Result<()> {
    let volume = file.volume;
    let block_bytes = volume.hugeblock_bytes();
    let block_count = buffer.written.len();
    let stored = &mut buffer.checksums[..block_count];
    stored_checksums(file, stored, offset)?;
    let zero_checksum = volume.fs().geometry().zero_block_checksum;
    for (index, (&stored, &written)) in stored.iter().zip(&buffer.written).enumerate() {
        let start = index * block_bytes as usize;
        let block = &buffer.bytes[start..start + block_bytes as usize];
        let computed = match (stored, written) {
            (Some(stored), _) if buffer.known[index] => stored,
            (_, true) => checksum::crc32c(0, block),
            (_, false) => zero_checksum,
        };
        match stored {
            Some(stored) if stored != computed => {
                return Err(mismatch(file, offset + start as u64, stored, computed, summary));
            }
            Some(_) => summary.checked_blocks += u64::from(!buffer.known[index]),
            None => summary.open_blocks += u64::from(written),
        }
        let inside = block_bytes.min(length - start as u64);
        let of_data = match inside == block_bytes {
            true => computed,
            false => checksum::crc32c(0, &block[..inside as usize]),
        };
        summary.crc32c = checksum::combine(summary.crc32c, of_data, inside);
    }
    Ok(())
}

/// Returns the error for a wrong checksum: damage only if nobody wrote to the file.
fn mismatch(
    file: &OpenFile<'_>,
    offset: u64,
    stored: u32,
    computed: u32,
    summary: &Summary,
) -> Error {
    match file.attributes() {
        Ok(now)
            if now.version == summary.attributes.version
                && now.writers == 0
                && file.is_still_there() =>
        {
            Error::Damaged { path: file.volume.outer_path(&file.path), offset, stored, computed }
        }
        Ok(_) => file.changed(),
        Err(error) => error,
    }
}
