//! Records that no core would write, with valid checksums, in a snapshot and in the log behind it.
//!
//! The input chooses them: records of existing and missing inodes, blocks given away twice, invalid
//! names, directories moved into themselves, unbounded sizes.

use crate::faulty::Image;
use crate::random::Random;
use crate::recovery;
use crate::sealed::{self, PARAMETERS, Places};
use cairn_core::{
    MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, NAME_BYTES_MAX, Operation, PATH_BYTES_MAX,
};
use std::cell::OnceCell;

const MEDIA_BYTES: u64 = 4 << 20;
/// Most records in the snapshot, and most in the log.
const RECORDS_MAX: u64 = 48;
/// Inode numbers below this one are the usual ones.
const INODES: u64 = 10;
const EPOCH: u64 = 1;

thread_local! {
    /// Empty media shared by all runs of the thread.
    static EMPTY: OnceCell<(Image, Places)> = const { OnceCell::new() };
}

/// Writes the records that the input describes and recovers.
pub(super) fn run(input: &[u8]) {
    let mut choices = Random::from_choices(input);
    let image = EMPTY.with(|empty| {
        let (image, places) = empty.get_or_init(|| {
            let (image, superblock) = sealed::empty(MEDIA_BYTES);
            (image, Places::of(&superblock))
        });
        let image = image.clone();
        if choices.one_in(3) {
            add_to_snapshot(&image, places, &mut choices);
        }
        let mut log = Vec::new();
        for lsn in 1..=choices.below(RECORDS_MAX + 1) {
            let operation = choices.below(PARAMETERS.len() as u64) + 1;
            append(&mut log, operation, lsn, &mut choices);
        }
        sealed::put_log(&image, places, EPOCH, &log);
        image
    });
    let _ = recovery::recover_and_use(image);
}

/// Adds records of the input to the snapshot, behind the root directory.
fn add_to_snapshot(image: &Image, places: &Places, choices: &mut Random) {
    let root = sealed::snapshot_records(image, places, 0);
    let mut records = sealed::read(image, root.start, ((root.end - root.start) / 8) as usize);
    let of_snapshots = [
        Operation::Inode,
        Operation::Inode,
        Operation::Name,
        Operation::Extent,
        Operation::Target,
        Operation::Extended,
    ];
    for _ in 0..choices.below(RECORDS_MAX + 1) {
        let operation = *choices.pick(&of_snapshots) as u64;
        append(&mut records, operation, 0, choices);
    }
    sealed::put_snapshot(image, places, 0, &records);
}

fn append(words: &mut Vec<u64>, operation: u64, lsn: u64, choices: &mut Random) {
    let count = PARAMETERS[operation as usize - 1];
    let mut parameters = match operation {
        19 => strides(choices).to_vec(),
        _ => (0..count).map(|place| parameter(operation, place, choices)).collect(),
    };
    if choices.one_in(16) {
        let place = choices.below(count as u64) as usize;
        parameters[place] = choices.draw();
    }
    let name = match operation {
        4 | 13 => [&name(choices)[..], b"\0", &name(choices)].concat(),
        2 | 3 | 5 | 6 | 7 | 11 | 17 => name(choices),
        20 => extended(choices),
        _ => Vec::new(),
    };
    let name = &name[..name.len().min(PATH_BYTES_MAX)];
    sealed::append(words, operation, lsn, &parameters, name);
}

/// Returns a possible value for a parameter of an operation.
fn parameter(operation: u64, place: usize, choices: &mut Random) -> u64 {
    const INODE: u64 = 0;
    const MODE: u64 = 1;
    const SIZE: u64 = 2;
    const BLOCK: u64 = 3;
    const RUN: u64 = 4;
    const SMALL: u64 = 5;
    let kind = match (operation, place) {
        (_, 0) | (2..=6 | 11 | 13 | 17, 1) | (4 | 13, 2 | 3) => INODE,
        (2, 2) | (10, 1) => MODE,
        // Some of these files are absent: their data are elsewhere.
        (16, 1) => return mode(choices) << 32 | choices.below(2) << 12 | choices.below(1 << 8),
        (16, 4) => INODE,
        (8 | 21, 1) | (9 | 23, 1 | 2) | (16, 5) => SIZE,
        (9 | 23, 3) | (18, 1) => BLOCK,
        (9 | 23, 4) | (18, 2) => RUN,
        _ => SMALL,
    };
    match kind {
        INODE => choices.below(INODES),
        MODE => mode(choices),
        SIZE => match choices.below(4) {
            0 => choices.draw(),
            _ => choices.below(5) * 4096 + choices.below(2) * 100,
        },
        BLOCK => choices.below(6),
        RUN => match choices.below(4) {
            0 => 0,
            _ => (choices.below(4) + 1) << 36 | choices.below(64),
        },
        _ => choices.below(4),
    }
}

/// Returns plausible parameters of a strided write.
fn strides(choices: &mut Random) -> [u64; 6] {
    const BLOCK_BYTES: u64 = 4096;
    let piece = choices.below(3) + 1;
    let stride = piece + choices.below(3) + 1;
    // Up to 20 pieces, so that one transaction does not suffice.
    let count = piece + choices.below(20 * piece) + 1;
    let run = count << 36 | choices.below(64);
    let [offset, length, stride, piece] =
        [choices.below(6), count, stride, piece].map(|blocks| blocks * BLOCK_BYTES);
    [choices.below(INODES), offset, length, stride, run, piece]
}

fn mode(choices: &mut Random) -> u64 {
    let kinds =
        [MODE_DIRECTORY, MODE_DIRECTORY, MODE_REGULAR, MODE_REGULAR, MODE_SYMLINK, 0o060_000];
    u64::from(*choices.pick(&kinds) | 0o755)
}

/// Returns encoded extended attributes, seldom with a wrong length.
fn extended(choices: &mut Random) -> Vec<u8> {
    let mut text = Vec::new();
    for name in [b"user.a", b"user.b", b"user.a"].iter().take(choices.below(4) as usize) {
        let length = choices.below(80) as usize;
        let value = choices.bytes(length);
        text.extend([name.len() as u8, value.len() as u8, u8::from(choices.one_in(16))]);
        text.extend(name.iter().chain(&value));
    }
    text
}

fn name(choices: &mut Random) -> Vec<u8> {
    match choices.below(24) {
        0 => Vec::new(),
        1 => b".".to_vec(),
        2 => b"..".to_vec(),
        3 => b"a/b".to_vec(),
        4 => b"a\0b".to_vec(),
        5 => vec![b'n'; NAME_BYTES_MAX + choices.below(2) as usize],
        6 => vec![b'n'; PATH_BYTES_MAX],
        _ => vec![*choices.pick(b"abds")],
    }
}
