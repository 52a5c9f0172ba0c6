//! Records: one change of a namespace each, as words in the log and in snapshots (docs/FORMAT.md).
//!
//! ```text
//! 0  CRC32C << 32 | length in words << 16 | operation
//! 1  LSN     2  time     3..  parameters     then  name length, name bytes, zero padded
//! ```
//!
//! Invariant: a record that decodes has a valid checksum, and the length and number of parameters
//! of its operation.
//!
//! Does not know what a record means; `replay.rs` does.

use crate::format::layout::Checksum;
use crate::format::text;
use crate::format::types::{PATH_BYTES_MAX, Timestamp};

/// Kind of a record. The numbers are on media: never change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// inode, version, flags (1 unclean, 2 others have it open for writing): a description open for
    /// writing was closed.
    Close = 1,
    /// directory, inode, mode, owner << 32 | group; name.
    Create = 2,
    /// directory, inode; name. The name is gone.
    Unlink = 3,
    /// old directory, inode, new directory, replaced inode or 0; old name, a zero byte, new name.
    Rename = 4,
    /// directory, inode; name.
    Link = 5,
    /// directory, inode, owner << 32 | group; name. A `Target` record follows.
    Symlink = 6,
    /// inode; the target of a symbolic link.
    Target = 7,
    /// inode, size.
    Truncate = 8,
    /// inode, offset, length, first file block, packed run of the blocks added (0 = none), seal of
    /// the file's last block.
    Write = 9,
    /// inode, mode, owner, group, access and modification time.
    Attributes = 10,
    /// directory, inode; name. As `Unlink`, but drained copies stay.
    Evict = 11,
    /// inode, version: this version was drained and verified.
    Drained = 12,
    /// directory, inode, other directory, other inode; name, a zero byte, other name. The two
    /// exchanged places.
    Exchange = 13,
    /// inode: blocks of it may be overwritten in place from now on, so their checksums are void.
    Opened = 14,
    /// inode, seal of its last block: all its blocks have valid checksums again.
    Sealed = 15,
    /// In snapshots. inode, mode << 32 | flags, links, owner << 32 | group, parent directory, size,
    /// version, drained version, access, modification, change and birth time, seal of the last
    /// block.
    Inode = 16,
    /// In snapshots. directory, inode; name.
    Name = 17,
    /// In snapshots. inode, file block, packed run.
    Extent = 18,
    /// inode, offset, bytes written in all, bytes from the start of one piece to the next, packed
    /// run of the blocks added, bytes of a piece. A write of pieces, see `coalesce.rs`.
    Strides = 19,
    /// inode; all its extended attributes, encoded as in `extended.rs`. Also in snapshots, where it
    /// is not empty.
    Extended = 20,
    /// inode, size, CRC32C of the data, version: the data are elsewhere, and those that were here
    /// are dropped.
    Absent = 21,
    /// inode: its data are here.
    Present = 22,
    /// As `Write`, with blocks that replace others, which are free from then on. With length 0,
    /// only the replacement happened.
    Replace = 23,
}

const OPERATIONS: [(Operation, usize); 23] = [
    (Operation::Close, 3),
    (Operation::Create, 4),
    (Operation::Unlink, 2),
    (Operation::Rename, 4),
    (Operation::Link, 2),
    (Operation::Symlink, 3),
    (Operation::Target, 1),
    (Operation::Truncate, 2),
    (Operation::Write, 6),
    (Operation::Attributes, 6),
    (Operation::Evict, 2),
    (Operation::Drained, 2),
    (Operation::Exchange, 4),
    (Operation::Opened, 1),
    (Operation::Sealed, 2),
    (Operation::Inode, 13),
    (Operation::Name, 2),
    (Operation::Extent, 3),
    (Operation::Strides, 6),
    (Operation::Extended, 1),
    (Operation::Absent, 4),
    (Operation::Present, 1),
    (Operation::Replace, 6),
];

impl Operation {
    pub(crate) fn decode(number: u16) -> Option<Operation> {
        let index = usize::from(number).checked_sub(1)?;
        OPERATIONS.get(index).map(|(operation, _)| *operation)
    }

    pub(crate) fn parameters(self) -> usize {
        OPERATIONS[self as usize - 1].1
    }

    /// Whether such a record belongs in the log (`log`) or in snapshots (not `log`).
    pub(crate) fn stands_in(self, log: bool) -> bool {
        match self {
            Operation::Target | Operation::Extended => true,
            Operation::Inode | Operation::Name | Operation::Extent => !log,
            _ => log,
        }
    }

    /// Whether a reader of the log must look at what the record names. Coalescing extends a record
    /// across writes only.
    pub fn is_barrier(self) -> bool {
        !matches!(
            self,
            Operation::Write
                | Operation::Strides
                | Operation::Replace
                | Operation::Attributes
                | Operation::Extended
                | Operation::Drained
        )
    }
}

/// Maximum length of a record, words: two names, a symbolic link's target, or a file's extended
/// attributes, and a few parameters.
pub(crate) const RECORD_WORDS_MAX: usize = 600;
/// Words before the parameters.
pub(crate) const FIXED_WORDS: usize = 3;

/// Bytes summed by one call of the checksum routine: enough for nearly every record, and an eighth
/// of a media block.
const SUMMED_BYTES: usize = 512;

/// Continues the checksum `crc` over words, little-endian.
pub(crate) fn sum_words(checksum: Checksum, mut crc: u32, words: impl Iterator<Item = u64>) -> u32 {
    let mut bytes = [0; SUMMED_BYTES];
    let mut filled = 0;
    for word in words {
        bytes[filled..filled + 8].copy_from_slice(&word.to_le_bytes());
        filled += 8;
        if filled == bytes.len() {
            crc = checksum(crc, &bytes);
            filled = 0;
        }
    }
    if filled > 0 { checksum(crc, &bytes[..filled]) } else { crc }
}

/// Returns word 0 of a record, computed over the words that follow it.
pub(crate) fn header(
    checksum: Checksum,
    operation: Operation,
    length: u64,
    word: impl Fn(u64) -> u64,
) -> u64 {
    let shape = length << 16 | operation as u64;
    let crc = sum_words(checksum, 0, std::iter::once(shape).chain((1..length).map(word)));
    u64::from(crc) << 32 | shape
}

/// A decoded record.
pub(crate) struct Record<'w> {
    pub operation: Operation,
    pub lsn: u64,
    pub time: Timestamp,
    /// As many as the operation has.
    pub parameters: &'w [u64],
    name_bytes: usize,
    name: &'w [u64],
}

/// Room for a name or a link target.
pub(crate) type NameBuffer = [u8; PATH_BYTES_MAX + 1];

impl<'w> Record<'w> {
    /// Decodes the record at the start of `words`. Returns its length and the record; `None` if
    /// there is no whole and valid one.
    pub(crate) fn decode(words: &'w [u64], checksum: Checksum) -> Option<(usize, Record<'w>)> {
        let shape = *words.first()?;
        let operation = Operation::decode(shape as u16)?;
        let length = (shape >> 16 & 0xffff) as usize;
        let name_at = FIXED_WORDS + operation.parameters();
        if length <= name_at || length > RECORD_WORDS_MAX {
            return None;
        }
        let record = words.get(..length)?;
        if header(checksum, operation, length as u64, |index| record[index as usize]) != shape {
            return None;
        }
        let name = &record[name_at + 1..];
        let name_bytes = usize::try_from(record[name_at]).ok()?;
        if name_bytes > PATH_BYTES_MAX || name_bytes.div_ceil(8) != name.len() {
            return None;
        }
        let parameters = &record[FIXED_WORDS..name_at];
        let time = Timestamp::from_bits(record[2]);
        Some((length, Record { operation, lsn: record[1], time, parameters, name_bytes, name }))
    }

    /// Copies the name into `buffer` and returns it.
    pub(crate) fn name<'b>(&self, buffer: &'b mut NameBuffer) -> &'b [u8] {
        for (bytes, word) in buffer.chunks_mut(8).zip(self.name) {
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        &buffer[..self.name_bytes]
    }
}

/// Returns the words of a name: its length, then its bytes.
pub(crate) fn name_words(name: &[u8]) -> impl Iterator<Item = u64> {
    std::iter::once(name.len() as u64).chain(text::words(name))
}

/// Appends a record to `words`.
pub(crate) fn encode(
    words: &mut Vec<u64>,
    checksum: Checksum,
    operation: Operation,
    (lsn, time): (u64, Timestamp),
    parameters: &[u64],
    name: &[u8],
) {
    debug_assert_eq!(parameters.len(), operation.parameters());
    let first = words.len();
    words.extend([0, lsn, time.to_bits()]);
    words.extend(parameters);
    words.extend(name_words(name));
    let length = (words.len() - first) as u64;
    words[first] = header(checksum, operation, length, |index| words[first + index as usize]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Good enough to notice a changed bit.
    fn checksum(seed: u32, bytes: &[u8]) -> u32 {
        bytes.iter().fold(seed ^ 0x9e37, |sum, &byte| {
            (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193).rotate_left(5)
        })
    }

    #[test]
    fn operations_are_found_by_their_numbers() {
        for (index, (operation, _)) in OPERATIONS.iter().enumerate() {
            assert_eq!(*operation as usize, index + 1);
            assert_eq!(Operation::decode(*operation as u16), Some(*operation));
        }
        assert_eq!((Operation::decode(0), Operation::decode(24)), (None, None));
    }

    #[test]
    fn record_that_was_encoded_is_decoded_and_no_changed_or_cut_one_is() {
        let mut words = Vec::new();
        let stamp = (7, Timestamp(-8));
        encode(&mut words, checksum, Operation::Unlink, stamp, &[1, 2], b"a name of 18 bytes");
        let (length, record) = Record::decode(&words, checksum).unwrap();
        assert_eq!((length, record.lsn, record.parameters), (words.len(), 7, &[1, 2][..]));
        assert_eq!(record.time, Timestamp(-8));
        assert_eq!(record.name(&mut [0; PATH_BYTES_MAX + 1]), b"a name of 18 bytes");
        for cut in 0..words.len() {
            assert!(Record::decode(&words[..cut], checksum).is_none());
        }
        for word in 0..words.len() {
            for bit in 0..64 {
                words[word] ^= 1 << bit;
                assert!(Record::decode(&words, checksum).is_none(), "{word} {bit}");
                words[word] ^= 1 << bit;
            }
        }
    }
}
