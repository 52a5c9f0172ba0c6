//! Reads media formats 1 to 5 from their description (docs/FORMAT.md), without the code that reads
//! and writes them.
//!
//! Invariant: nothing here uses a constant or function of `cairn-core` that is part of the format.

use cairn_core::Media;
use cairn_testing::faulty::Image;
use cairn_testing::tier::CHECKSUM;
use std::collections::BTreeMap;

const BLOCK: u64 = 4096;
const PAYLOAD_WORDS: u64 = 508;
/// Number of parameters of record types 1 to 23.
const PARAMETERS: [usize; 23] =
    [3, 4, 2, 4, 2, 3, 1, 2, 6, 6, 2, 2, 4, 1, 2, 13, 2, 3, 6, 1, 4, 1, 6];
const EXTENDED: u16 = 20;

fn text(name: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*name)
}

fn words(image: &Image, offset: u64, count: u64) -> Vec<u64> {
    let mut bytes = vec![0; (count * 8).next_multiple_of(BLOCK) as usize];
    image.read(offset, &mut bytes).expect("it lies inside");
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    bytes.chunks(8).map(word).take(count as usize).collect()
}

fn sum(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    u64::from(CHECKSUM(0, &bytes))
}

/// Returns the CRC32C of a block without the word `at` that holds it.
fn sum_without(block: &[u64], at: usize) -> u64 {
    sum(&[&block[..at], &block[at + 1..]].concat())
}

/// Parameters of the last record of each operation.
type Operations = BTreeMap<u16, Vec<u64>>;

/// Words of the superblock.
pub struct Superblock(Vec<u64>);

impl Superblock {
    pub fn read(image: &Image) -> Superblock {
        let block = words(image, 0, 512);
        assert_eq!(block, words(image, BLOCK, 512), "the copy differs");
        assert_eq!(block[0], text(b"cairndev"));
        assert_eq!(block[2], sum_without(&block, 2));
        assert!(block[57..].iter().all(|&word| word == 0), "nothing is left over");
        Superblock(block)
    }

    /// Returns the version of the format.
    pub fn version(&self) -> u64 {
        self.0[1]
    }

    /// Returns hugeblocks and identity of each further tier.
    pub fn further(&self) -> &[u64] {
        &self.0[48..57]
    }

    /// Returns identity, media bytes, hugeblock bytes, inodes, data blocks, durability.
    pub fn shape(&self) -> [u64; 7] {
        [3, 4, 5, 6, 7, 46, 47].map(|at| self.0[at])
    }

    /// Returns the mount prefix.
    pub fn mount(&self) -> Vec<u8> {
        let bytes = self.0[11..43].iter().flat_map(|word| word.to_le_bytes());
        bytes.take(self.0[10] as usize).collect()
    }

    /// Returns the offset of the first hugeblock.
    pub fn data(&self) -> u64 {
        self.0[45]
    }

    fn slot(&self, number: u64) -> u64 {
        (4 + self.0[43] + number * self.0[44]) * BLOCK
    }

    /// Returns the offset of the first table of checksums.
    pub fn checksums(&self) -> u64 {
        self.slot(2)
    }

    fn brand(&self, epoch: u64) -> u64 {
        self.0[3] ^ self.0[4].rotate_left(32) ^ epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the words of the log from `position` to its end.
    fn log(&self, image: &Image, position: u64, epoch: u64) -> Vec<u64> {
        let valid = |block: &[u64], sequence: u64| {
            let mut summed = block.to_vec();
            summed[2] &= 0xffff_ffff;
            block[..2] == [text(b"cairnlog"), sequence]
                && block[3] == self.brand(epoch)
                && block[2] >> 32 == sum(&summed)
        };
        let mut log = Vec::new();
        let mut sequence = position / PAYLOAD_WORDS;
        loop {
            let block = words(image, (4 + sequence % self.0[43]) * BLOCK, 512);
            if !valid(&block, sequence) {
                break;
            }
            assert_eq!(block[2] & 0xffff_ffff, PAYLOAD_WORDS, "a block in the ring is full");
            log.extend(&block[4..]);
            sequence += 1;
        }
        let tails = [2, 3].map(|place| words(image, place * BLOCK, 512));
        let tails = tails.iter().filter(|block| valid(block, sequence));
        if let Some(block) = tails.max_by_key(|block| block[2] & 0xffff_ffff) {
            log.extend(&block[4..4 + (block[2] & 0xffff_ffff) as usize]);
        }
        log.split_off((position % PAYLOAD_WORDS) as usize)
    }
}

/// A snapshot.
pub struct Snapshot {
    pub number: u64,
    pub position: u64,
    pub lsn: u64,
    pub epoch: u64,
    /// Operations of its records.
    pub operations: Operations,
}

/// Returns the snapshots in both slots, the older one first.
pub fn snapshots(image: &Image, superblock: &Superblock) -> [Snapshot; 2] {
    let mut snapshots = [0, 1].map(|slot| {
        let block = words(image, superblock.slot(slot), 512);
        assert_eq!((block[0], block[1] % 2), (text(b"cairnsnp"), slot));
        assert_eq!((block[2], block[3]), (sum_without(&block, 2), superblock.brand(0)));
        let content = words(image, superblock.slot(slot) + BLOCK, block[6]);
        assert_eq!(block[7], sum(&content));
        let (operations, rest) = read_records(&content, None);
        assert_eq!(rest, 0, "a snapshot ends with a record");
        let (number, position, lsn, epoch) = (block[1], block[4], block[5], block[8]);
        Snapshot { number, position, lsn, epoch, operations }
    });
    snapshots.sort_by_key(|snapshot| snapshot.number);
    snapshots
}

/// Returns the operations in the log after a snapshot.
pub fn log(image: &Image, superblock: &Superblock, snapshot: &Snapshot) -> Operations {
    let log = superblock.log(image, snapshot.position, snapshot.epoch);
    let (operations, rest) = read_records(&log, Some(snapshot.lsn));
    assert_eq!(rest, 0, "the log ends with a record");
    operations
}

/// Returns the operations of the records in `words` and the number of words left. LSNs follow
/// `lsn`; without it they are 0.
fn read_records(words: &[u64], mut lsn: Option<u64>) -> (Operations, usize) {
    let mut operations = Operations::new();
    let mut rest = words;
    while let Some(&header) = rest.first() {
        let (operation, length) = (header as u16, (header >> 16 & 0xffff) as usize);
        if length > rest.len() || !(1..=PARAMETERS.len()).contains(&operation.into()) {
            break;
        }
        let (record, behind) = rest.split_at(length);
        let shape = header & 0xffff_ffff;
        assert_eq!(header >> 32, sum(&[&[shape], &record[1..]].concat()));
        lsn = lsn.map(|lsn| lsn + 1);
        assert_eq!(record[1], lsn.unwrap_or(0), "LSNs ascend by one");
        let name_at = 3 + PARAMETERS[usize::from(operation) - 1];
        let name_words = record[name_at].div_ceil(8) as usize;
        assert_eq!(length, name_at + 1 + name_words, "operation {operation}");
        if operation == EXTENDED {
            let bytes = record[name_at + 1..].iter().flat_map(|word| word.to_le_bytes());
            check_extended(&bytes.take(record[name_at] as usize).collect::<Vec<u8>>());
        }
        operations.insert(operation, record[3..name_at].to_vec());
        rest = behind;
    }
    (operations, rest.len())
}

/// Checks extended attributes: names of the namespace in ascending order, each with its value.
fn check_extended(text: &[u8]) {
    let (mut last, mut rest): (&[u8], _) = (b"", text);
    while let [name_bytes, low, high, behind @ ..] = rest {
        let (name, behind) = behind.split_at(usize::from(*name_bytes));
        assert!(name > last && name.starts_with(b"user.") && name.len() > 5, "{name:?}");
        (last, rest) = (name, &behind[usize::from(u16::from_le_bytes([*low, *high]))..]);
    }
    assert_eq!(rest, b"", "attributes end with a value");
}
