//! Hostile media with valid checksums: recovery reports them and stops.
//!
//! Mechanism: recovery trusted everything with a valid checksum.
//!
//! Consequence: a recovered namespace had names like `..`, a name twice, unreachable directories or
//! blocks behind the end of a file, and failed its own check. A symbolic link without target kept
//! the log from ever being truncated. A number at its limit ended the process.
//!
//! Fix: each record is checked against the namespace it changes, the records of a snapshot against
//! each other, and numbers against what can follow. Found by `make fuzz`, targets `log` and
//! `media`.

use cairn_core::{Error, MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, Operation, ROOT};
use cairn_testing::faulty::Image;
use cairn_testing::random::Random;
use cairn_testing::recovery::recover_and_use;
use cairn_testing::sealed::{self, Places};

const MEDIA_BYTES: u64 = 4 << 20;
const EPOCH: u64 = 1;
const FIRST_SLOT: u64 = 0;
const IN_ROOT: u64 = ROOT.0 as u64;
const DIRECTORY: u64 = (MODE_DIRECTORY | 0o755) as u64;
const FILE: u64 = (MODE_REGULAR | 0o644) as u64;
const LINK: u64 = (MODE_SYMLINK | 0o777) as u64;
/// A run of one block, the first of the tier.
const RUN: u64 = 1 << 36;

/// A record.
#[derive(Clone)]
struct Said {
    operation: Operation,
    parameters: Vec<u64>,
    name: Vec<u8>,
}

fn said(operation: Operation, parameters: &[u64], name: &[u8]) -> Said {
    Said { operation, parameters: parameters.to_vec(), name: name.to_vec() }
}

/// A log record that creates an inode with mode `mode` in `parent`.
fn created(parent: u64, number: u64, mode: u64, name: &[u8]) -> Said {
    said(Operation::Create, &[parent, number, mode, 0], name)
}

/// A snapshot record of an inode.
fn inode(number: u64, mode: u64, links: u64, parent: u64, size: u64) -> Said {
    let parameters = [number, mode << 32, links, 0, parent, size, 1, 0, 1, 1, 1, 1, 0];
    said(Operation::Inode, &parameters, b"")
}

/// A snapshot record of a name of inode `number` in `parent`.
fn named(parent: u64, number: u64, name: &[u8]) -> Said {
    said(Operation::Name, &[parent, number], name)
}

fn words(records: &[Said]) -> Vec<u64> {
    let mut words = Vec::new();
    for (lsn, record) in (1..).zip(records) {
        let operation = record.operation as u64;
        sealed::append(&mut words, operation, lsn, &record.parameters, &record.name);
    }
    words
}

#[track_caller]
fn assert_refused(image: Image, why: &'static str) {
    assert_eq!(recover_and_use(image), Err(Error::Corrupt { what: why }));
}

/// Asserts that an empty namespace whose log has `records` is refused.
#[track_caller]
fn assert_log_refused(records: &[Said], why: &'static str) {
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    sealed::put_log(&image, &Places::of(&superblock), EPOCH, &words(records));
    assert_refused(image, why);
}

/// Asserts that a snapshot is refused that has `records` behind a root directory with `root_links`
/// links.
#[track_caller]
fn assert_snapshot_refused(root_links: u64, records: &[Said], why: &'static str) {
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    let root = inode(IN_ROOT, DIRECTORY, root_links, IN_ROOT, 0);
    let all = [&[root], records].concat();
    sealed::put_snapshot(&image, &Places::of(&superblock), FIRST_SLOT, &words(&all));
    assert_refused(image, why);
}

#[test]
fn names_in_the_log_are_none_then_it_is_refused() {
    let long = [b'a'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &long] {
        assert_log_refused(&[created(IN_ROOT, 2, FILE, name)], "name that is none");
    }
}

#[test]
fn names_in_the_log_make_no_tree_then_it_is_refused() {
    let file = created(IN_ROOT, 2, FILE, b"a");
    let directory = created(IN_ROOT, 2, DIRECTORY, b"a");
    let below = created(2, 3, DIRECTORY, b"b");
    assert_log_refused(&[file.clone(), created(2, 3, FILE, b"b")], "name in what is no directory");
    assert_log_refused(&[file, created(IN_ROOT, 3, FILE, b"a")], "name given twice");
    let link = said(Operation::Link, &[IN_ROOT, 2], b"b");
    assert_log_refused(&[directory.clone(), link], "second name of a directory");
    for change in [
        said(Operation::Rename, &[IN_ROOT, 2, 3, 0], b"a\0c"),
        said(Operation::Exchange, &[IN_ROOT, 2, 2, 3], b"a\0b"),
    ] {
        let records = [directory.clone(), below.clone(), change];
        assert_log_refused(&records, "directory inside itself");
    }
}

#[test]
fn inodes_in_the_log_make_no_sense_then_it_is_refused() {
    let file = created(IN_ROOT, 2, FILE, b"a");
    let link = said(Operation::Symlink, &[IN_ROOT, 2, 0], b"a");
    let target = |text| said(Operation::Target, &[2], text);
    let becomes_directory = said(Operation::Attributes, &[2, DIRECTORY, 0, 0, 0, 0], b"");
    // One block for file block 5, by a write of 100 bytes at 0.
    let beyond_its_end = said(Operation::Write, &[2, 0, 100, 5, RUN, 0], b"");
    let of_snapshots = inode(2, DIRECTORY, 2, IN_ROOT, 0);
    assert_log_refused(&[file.clone(), becomes_directory], "kind of an inode");
    assert_log_refused(&[created(IN_ROOT, 2, LINK, b"a")], "symbolic link without target");
    assert_log_refused(&[file.clone(), target(b"b")], "target of a symbolic link");
    assert_log_refused(&[link.clone(), target(b"")], "target of a symbolic link");
    assert_log_refused(&[link, target(b"b"), target(b"c")], "target of a symbolic link");
    assert_log_refused(&[file, beyond_its_end], "run of blocks");
    assert_log_refused(&[of_snapshots], "record in the wrong place");
}

#[test]
fn pieces_of_a_write_in_the_log_make_no_sense_then_it_is_refused() {
    const BLOCK: u64 = 4096;
    let file = created(IN_ROOT, 2, FILE, b"a");
    let run = |first: u64, count: u64| count << 36 | first;
    let strides = |number, [offset, length, stride, run, piece]: [u64; 5]| {
        let [offset, length, stride, piece] =
            [offset, length, stride, piece].map(|blocks| blocks.wrapping_mul(BLOCK));
        said(Operation::Strides, &[number, offset, length, stride, run, piece], b"")
    };
    let proper = [4, 40, 3, run(7, 40), 2];
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    let records = words(&[file.clone(), strides(2, proper)]);
    sealed::put_log(&image, &Places::of(&superblock), EPOCH, &records);
    assert_eq!(recover_and_use(image), Ok(()));

    let tier_blocks = u64::from(superblock.geometry.tier_blocks[0]);
    for (why, records) in [
        ("pieces of a write", vec![strides(2, [4, 39, 3, run(7, 40), 2])]),
        ("pieces of a write", vec![strides(2, [4, 40, 2, run(7, 40), 2])]),
        ("pieces of a write", vec![strides(2, [4, 40, 3, run(7, 40), 0])]),
        ("pieces of a write", vec![strides(2, [4, 2, 3, run(7, 2), 2])]),
        ("pieces of a write", vec![strides(2, [4, 0, 3, 0, 2])]),
        ("pieces of a write", vec![strides(2, [4, 40, 1 << 28, run(7, 40), 2])]),
        ("pieces of a write", vec![strides(2, [u64::MAX, 40, 3, run(7, 40), 2])]),
        ("run of blocks", vec![strides(2, [4, 40, 3, run(tier_blocks - 39, 40), 2])]),
        ("run of blocks", vec![strides(2, [4, 40, 3, 1 << 60 | run(7, 40), 2])]),
        // Some of the blocks belong to the file already.
        (
            "block given away twice",
            vec![strides(2, proper), strides(2, [200, 4, 3, run(46, 4), 2])],
        ),
        ("block given away twice", vec![strides(2, proper), strides(2, [0, 8, 4, run(60, 8), 2])]),
        ("data of what is no file", vec![strides(IN_ROOT, proper)]),
    ] {
        assert_log_refused(&[std::slice::from_ref(&file), &records].concat(), why);
    }
}

#[test]
fn blocks_that_are_replaced_in_the_log_make_no_sense_then_it_is_refused() {
    const BLOCK: u64 = 4096;
    let file = created(IN_ROOT, 2, FILE, b"a");
    let run = |first: u64, count: u64| count << 36 | first;
    let written = |operation, [offset, length, file_block, run]: [u64; 4]| {
        said(operation, &[2, offset, length, file_block, run, 0], b"")
    };
    let before = written(Operation::Write, [0, 8 * BLOCK, 0, run(7, 8)]);
    let replaced = |parameters| written(Operation::Replace, parameters);
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    let proper = [
        replaced([2 * BLOCK, 3 * BLOCK, 2, run(20, 3)]),
        replaced([8 * BLOCK - 9, 10, 7, run(23, 1)]),
        replaced([0, 0, 1, run(9, 1)]),
    ];
    let records = words(&[&[file.clone(), before.clone()], &proper[..2]].concat());
    sealed::put_log(&image, &Places::of(&superblock), EPOCH, &records);
    assert_eq!(recover_and_use(image), Ok(()));
    // The last record uses a block again that the first one freed.
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    let records = words(&[&[file.clone(), before.clone()], &proper[..]].concat());
    sealed::put_log(&image, &Places::of(&superblock), EPOCH, &records);
    assert_eq!(recover_and_use(image), Ok(()));

    let tier_blocks = u64::from(superblock.geometry.tier_blocks[0]);
    for (why, record) in [
        ("block given away twice", [0, BLOCK, 0, run(8, 1)]),
        ("block given away twice", [0, BLOCK, 0, run(7, 1)]),
        ("run of blocks", [0, BLOCK, 0, 0]),
        ("run of blocks", [0, BLOCK, 0, run(tier_blocks, 1)]),
        ("run of blocks", [0, BLOCK, 0, 1 << 60 | run(20, 1)]),
        ("run of blocks", [0, BLOCK, 8, run(20, 1)]),
        ("run of blocks", [0, BLOCK, 7, run(20, 2)]),
        ("blocks that are replaced", [0, 12 * BLOCK, 7, run(20, 2)]),
        ("blocks that are replaced", [0, 12 * BLOCK, 9, run(20, 1)]),
        ("end of a write", [u64::MAX, BLOCK, 0, run(20, 1)]),
        ("end of a write", [u64::MAX - BLOCK, BLOCK, 0, run(20, 1)]),
        ("file block", [0, BLOCK, 1 << 32, run(20, 1)]),
    ] {
        assert_log_refused(&[file.clone(), before.clone(), replaced(record)], why);
    }
}

#[test]
fn names_in_a_snapshot_make_no_tree_then_it_is_refused() {
    let file = inode(2, FILE, 1, 0, 0);
    let directory = inode(2, DIRECTORY, 2, IN_ROOT, 0);
    let (one, other) = (named(IN_ROOT, 2, b"a"), named(IN_ROOT, 2, b"b"));
    let mutual = [
        inode(2, DIRECTORY, 3, 3, 0),
        inode(3, DIRECTORY, 3, 2, 0),
        named(3, 2, b"a"),
        named(2, 3, b"b"),
    ];
    assert_snapshot_refused(2, std::slice::from_ref(&file), "links of a file");
    assert_snapshot_refused(2, &[file.clone(), one.clone(), other.clone()], "links of a file");
    assert_snapshot_refused(3, &[], "links of a directory");
    assert_snapshot_refused(2, &[directory.clone(), one.clone()], "links of a directory");
    assert_snapshot_refused(4, &[directory.clone(), one.clone(), other], "links of a directory");
    assert_snapshot_refused(2, &[directory], "links of a directory");
    let elsewhere = inode(2, DIRECTORY, 2, 7, 0);
    assert_snapshot_refused(3, &[elsewhere, one], "parent of a directory");
    assert_snapshot_refused(2, &mutual, "directory inside itself");
    assert_snapshot_refused(2, &[file, named(IN_ROOT, 2, b".")], "name that is none");
}

#[test]
fn inodes_in_a_snapshot_make_no_sense_then_it_is_refused() {
    let name = named(IN_ROOT, 2, b"a");
    let link = inode(2, LINK, 1, 0, 0);
    let endless = inode(2, FILE, 1, 0, u64::MAX);
    let file = inode(2, FILE, 1, 0, 5000);
    let beyond_its_end = said(Operation::Extent, &[2, 2, RUN], b"");
    let of_root = said(Operation::Extent, &[IN_ROOT, 0, RUN], b"");
    let of_logs = created(IN_ROOT, 2, FILE, b"a");
    assert_snapshot_refused(2, &[link, name.clone()], "symbolic link without target");
    assert_snapshot_refused(2, &[endless, name.clone()], "size of a file");
    assert_snapshot_refused(2, &[file, name, beyond_its_end], "run of blocks");
    assert_snapshot_refused(2, &[of_root], "blocks of what is no file");
    assert_snapshot_refused(2, &[of_logs], "record in the wrong place");
}

#[test]
fn extended_attributes_on_media_make_no_sense_then_they_are_refused() {
    const ONE: &[u8] = b"\x06\x01\0user.av";
    let why = "extended attributes";
    let attributes = |number, text: &[u8]| said(Operation::Extended, &[number], text);
    let link = said(Operation::Symlink, &[IN_ROOT, 2, 0], b"a");
    let target = said(Operation::Target, &[2], b"b");
    assert_log_refused(&[link, target, attributes(2, ONE)], why);
    let twice = [ONE, ONE].concat();
    for text in [&ONE[..9], b"\x05\0\0user.", b"\x07\0\0other.a", &twice] {
        assert_log_refused(&[attributes(IN_ROOT, text)], why);
        assert_snapshot_refused(2, &[attributes(IN_ROOT, text)], why);
    }
    assert_snapshot_refused(2, &[attributes(IN_ROOT, b"")], why);
    assert_snapshot_refused(2, &[attributes(IN_ROOT, ONE), attributes(IN_ROOT, ONE)], why);
    let of_nobody = attributes(2, ONE);
    assert_snapshot_refused(2, &[of_nobody], "record of an inode that is not there");
}

#[test]
fn snapshot_without_root_directory_is_recovered_then_it_is_refused() {
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    sealed::put_snapshot(&image, &Places::of(&superblock), FIRST_SLOT, &[]);
    assert_refused(image, "record of an inode that is not there");
}

#[test]
fn snapshot_counts_too_far_to_go_on_then_it_is_refused() {
    const NUMBER: u64 = 1;
    const EPOCH: u64 = 8;
    for (word, last) in [(NUMBER, u64::MAX - 1), (EPOCH, u64::MAX)] {
        let (image, superblock) = sealed::empty(MEDIA_BYTES);
        let places = Places::of(&superblock);
        sealed::write(&image, places.slot(FIRST_SLOT) + word * 8, &[last]);
        sealed::seal_snapshot(&image, &places, FIRST_SLOT);
        assert_refused(image, "no valid snapshot");
    }
}

#[test]
fn superblock_promises_more_inodes_than_the_media_can_hold_then_it_is_refused() {
    const INODES: u64 = 7;
    let (image, superblock) = sealed::empty(MEDIA_BYTES);
    let places = Places::of(&superblock);
    for copy in [0, 1] {
        sealed::write(&image, places.superblock(copy) + INODES * 8, &[u64::from(u32::MAX) >> 4]);
        sealed::seal_superblock(&image, places.superblock(copy));
    }
    assert_refused(image, "media shorter than its superblock says");
}

/// The superblock lists tiers whose blocks do not exist, no tier with data, or so many blocks that
/// no memory has room for their tables.
#[test]
fn superblock_says_anything_of_its_tiers_then_it_is_refused_or_harmless() {
    const VERSION: u64 = 1;
    const TIERS: std::ops::Range<u64> = 45..57;
    let mut random = Random::new(7);
    let (empty, superblock) = sealed::empty(MEDIA_BYTES);
    let places = Places::of(&superblock);
    let mut recovered = 0;
    for _ in 0..400 {
        let image = empty.clone();
        let changes = (0..random.below(4) + 1).map(|_| {
            let word = TIERS.start + random.below(TIERS.end - TIERS.start);
            let value = match random.below(3) {
                0 => random.below(1 << 10),
                1 => u64::MAX >> random.below(64),
                _ => random.draw() >> random.below(64),
            };
            (word, value)
        });
        for (word, value) in changes.chain([(VERSION, 2)]).collect::<Vec<_>>() {
            for copy in [0, 1] {
                sealed::write(&image, places.superblock(copy) + word * 8, &[value]);
            }
        }
        for copy in [0, 1] {
            sealed::seal_superblock(&image, places.superblock(copy));
        }
        recovered += u64::from(recover_and_use(image).is_ok());
    }
    assert!((1..300).contains(&recovered), "{recovered}");
}
