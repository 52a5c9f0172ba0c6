//! A durable namespace with a tier in memory. Its data on that tier are lost with the node's memory
//! and reported as lost; everything else is unchanged.

use cairn_core::inspect;
use cairn_core::{
    Attributes, Error, HandleId, InodeId, MEDIA_BLOCK_BYTES, Media, NumaPolicy, OpenOptions,
    PartUsage, Placement, Position, ROOT, Superblock, recover_placed,
};
use cairn_testing::driver::Process;
use cairn_testing::durable::{Setting, Tiers, attach, memory, recover_and_attach};
use cairn_testing::faulty::{ByteMedia, Image};
use cairn_testing::tier::CHECKSUM;
use std::sync::Arc;

const BLOCK: usize = 4096;
const OPTIONS: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    create: true,
    exclusive: false,
    truncate: false,
    directory: false,
    no_follow: true,
    path_only: false,
    ..OpenOptions::NONE
};

/// Media whose second tier is in memory.
struct Node {
    media: Arc<Image>,
    superblock: Superblock,
}

impl Node {
    fn new(tiers: Tiers) -> Node {
        let setting = Setting { tiers, in_memory: true, ..Setting::simple() };
        let (image, superblock) = setting.format();
        Node { media: Arc::new(image), superblock }
    }

    fn start(&self) -> Process {
        recover_and_attach(self.media.clone(), &self.superblock).expect("it can be recovered").0
    }

    /// As `start`, with the second tier divided among memory nodes 0 and 3.
    fn start_divided(&self) -> Process {
        let placement = Placement { policy: NumaPolicy::Local, nodes: 0b1001, tier: 1 };
        let memory = memory(&self.superblock);
        recover_placed(self.media.as_ref(), &memory, CHECKSUM, placement).expect("it can be");
        attach(memory, self.media.clone(), &self.superblock, 1).expect("it is sound")
    }

    /// Ends the only process and fills the second tier with garbage.
    fn lose_memory(&self, process: Process) {
        drop(process);
        let [first, second, ..] = self.superblock.geometry.tier_blocks;
        let start = self.superblock.data_offset + u64::from(first) * BLOCK as u64;
        let garbage = vec![0xa5; second as usize * BLOCK];
        self.media.write_bytes(start, &garbage).expect("it lies inside");
    }
}

fn content(salt: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 5 + at * at / 3) as u8 ^ salt | 1).collect()
}

fn open(process: &Process, name: &[u8]) -> (InodeId, HandleId) {
    let opened = process.fs.open_file(&process.caller(), ROOT, name, OPTIONS, 0o644);
    let opened = opened.expect("it opens");
    (opened.inode, opened.handle)
}

/// Writes and closes a file and makes it durable.
fn put(process: &Process, name: &[u8], bytes: &[u8]) {
    let (inode, handle) = open(process, name);
    let written = process.write(&process.caller(), handle, Position::At(0), bytes);
    assert_eq!(written.expect("there is room"), (0, bytes.len() as u64));
    assert!(process.seal(inode).expect("it can be read"));
    process.close(handle).expect("it closes");
    process.fs.sync().expect("it is written");
}

fn read(process: &Process, name: &[u8], at: usize, length: usize) -> Result<Vec<u8>, Error> {
    let (_, handle) = open(process, name);
    let read = process.read(&process.caller(), handle, Position::At(at as u64), length as u64);
    process.close(handle).expect("it closes");
    read.map(|(_, bytes)| bytes)
}

fn attributes(process: &Process, name: &[u8]) -> Attributes {
    process.fs.stat(&process.caller(), ROOT, name, false).expect("it is there")
}

fn used_blocks(process: &Process) -> [u64; 2] {
    let usage = process.fs.usage().expect("it is sound");
    [usage.used_blocks[0], usage.used_blocks[1]]
}

/// Checks that `name` exists with `length` bytes and is marked as lost and unclean.
fn expect_lost(process: &Process, name: &[u8], length: usize) {
    let found = attributes(process, name);
    assert!(found.lost && found.unclean && found.size == length as u64, "{found:?}");
    let (inode, handle) = open(process, name);
    for at in [0, length - 1, length] {
        let written = process.write(&process.caller(), handle, Position::At(at as u64), b"new");
        assert_eq!(written, Err(Error::Io), "write at {at}");
    }
    assert_eq!(process.fs.seek(handle, 0, libc::SEEK_DATA), Ok(0));
    assert_eq!(process.fs.seek(handle, 0, libc::SEEK_HOLE), Ok(length as u64));
    assert!(process.seal(inode).expect("what is left can be read"));
    process.close(handle).expect("it closes");
}

#[test]
fn what_stood_in_memory_is_an_error_and_what_stood_on_the_media_is_there() {
    let node = Node::new(Tiers::Spilling);
    let [first_blocks, ..] = node.superblock.geometry.tier_blocks;
    let kept = content(1, 3 * BLOCK + 100);
    let torn = content(2, (first_blocks as usize + 10) * BLOCK + 7);
    let gone = content(3, 5 * BLOCK);
    let process = node.start();
    for (name, bytes) in [(b"kept", &kept), (b"torn", &torn), (b"gone", &gone)] {
        put(&process, name, bytes);
        assert_eq!(read(&process, name, 0, bytes.len()).as_ref(), Ok(bytes));
    }
    node.lose_memory(process);

    let process = node.start();
    process.fs.check().expect("it is sound");
    assert_eq!(read(&process, b"kept", 0, kept.len()), Ok(kept.clone()));
    let found = attributes(&process, b"kept");
    assert!(!found.lost && !found.unclean, "{found:?}");
    let whole = (first_blocks - 4) as usize * BLOCK;
    assert_eq!(read(&process, b"torn", 0, whole).as_deref(), Ok(&torn[..whole]));
    for at in [whole, whole + 1, torn.len() - 1] {
        assert_eq!(read(&process, b"torn", at, 1), Err(Error::Io), "at {at}");
    }
    assert_eq!(read(&process, b"gone", 0, 1), Err(Error::Io));
    expect_lost(&process, b"torn", torn.len());
    expect_lost(&process, b"gone", gone.len());
    assert_eq!(used_blocks(&process), [u64::from(first_blocks), 0], "what is lost takes no room");
}

/// Mechanism: a query for the blocks of a file failed if part of the file was lost.
///
/// Consequence: the agent gave back no memory of mapped files while such a file was mapped, and
/// fsync of the rest of it failed.
///
/// Fix: the lost part has no place.
#[test]
fn what_is_left_of_a_file_is_found_beside_what_is_lost() {
    let node = Node::new(Tiers::Spilling);
    let [first_blocks, ..] = node.superblock.geometry.tier_blocks;
    let torn = content(2, (first_blocks as usize + 10) * BLOCK + 7);
    let process = node.start();
    put(&process, b"torn", &torn);
    node.lose_memory(process);

    let process = node.start();
    let inode = attributes(&process, b"torn").inode;
    let (mut at, mut found_bytes) = (0, 0);
    while at < torn.len() as u64 {
        let plan = process.fs.plan_of(inode, at, u64::MAX).expect("some of it is left");
        assert_ne!(plan.length, 0, "at {at}");
        let found = plan.runs().iter().filter(|run| run.source.is_some());
        found_bytes += found.map(|run| run.bytes).sum::<u64>();
        at += plan.length;
    }
    assert_eq!(at, torn.len() as u64);
    assert_eq!(found_bytes, u64::from(first_blocks) * BLOCK as u64);
}

#[test]
fn tier_in_memory_may_be_divided_among_memory_nodes_of_another_machine_each_time() {
    for tiers in [Tiers::Spilling, Tiers::Apart] {
        let node = Node::new(tiers);
        let [first_blocks, ..] = node.superblock.geometry.tier_blocks;
        let bytes = content(6, (first_blocks as usize + 9) * BLOCK);
        let process = node.start_divided();
        put(&process, b"file", &bytes);
        let check = |process: &Process, used: [u64; 2]| {
            process.fs.check().expect("it is sound");
            let parts = process.fs.usage().expect("it is sound").parts;
            let found = parts.iter().map(|part: &PartUsage| (part.node, part.used_blocks));
            assert_eq!(found.collect::<Vec<_>>(), [(Some(0), used[0]), (Some(3), used[1])]);
        };
        check(&process, [9, 0]);
        assert_eq!(read(&process, b"file", 0, bytes.len()).as_ref(), Ok(&bytes));
        node.lose_memory(process);
        let process = node.start_divided();
        expect_lost(&process, b"file", bytes.len());
        check(&process, [0, 0]);
        node.lose_memory(process);
        expect_lost(&node.start(), b"file", bytes.len());
    }
}

#[test]
fn lost_file_stays_lost_until_it_is_emptied() {
    let node = Node::new(Tiers::Apart);
    let bytes = content(4, 9 * BLOCK + 1);
    let process = node.start();
    put(&process, b"file", &bytes);
    put(&process, b"other", &bytes);
    node.lose_memory(process);
    for _ in 0..2 {
        let process = node.start();
        expect_lost(&process, b"file", bytes.len());
        process.fs.write_snapshot().expect("there is room");
        node.lose_memory(process);
    }
    let process = node.start();
    let (inode, handle) = open(&process, b"other");
    let cut = process.truncate(&process.caller(), inode, 100);
    cut.expect("it can be cut");
    process.close(handle).expect("it closes");
    expect_lost(&process, b"other", 100);
    let (inode, handle) = open(&process, b"file");
    process.truncate(&process.caller(), inode, 0).expect("it can be emptied");
    process.close(handle).expect("it closes");
    put(&process, b"file", &bytes);
    let found = attributes(&process, b"file");
    assert!(!found.lost && !found.unclean, "{found:?}");
    assert_eq!(read(&process, b"file", 0, bytes.len()).as_ref(), Ok(&bytes));
    process.fs.check().expect("it is sound");
    node.lose_memory(process);
    expect_lost(&node.start(), b"file", bytes.len());
}

#[test]
fn empty_files_holes_and_names_are_not_lost() {
    let node = Node::new(Tiers::Apart);
    let process = node.start();
    put(&process, b"file", b"data");
    let (inode, handle) = open(&process, b"hole");
    process.truncate(&process.caller(), inode, 3 * BLOCK as u64).expect("it grows");
    process.close(handle).expect("it closes");
    process.fs.symlink(&process.caller(), b"file", ROOT, b"link").expect("there is room");
    process.fs.sync().expect("it is written");
    node.lose_memory(process);
    let process = node.start();
    assert_eq!(read(&process, b"hole", 0, 3 * BLOCK), Ok(vec![0; 3 * BLOCK]));
    assert!(!attributes(&process, b"hole").lost && !attributes(&process, b"link").lost);
    expect_lost(&process, b"file", 4);
}

/// The records of the newest snapshot are damaged. Recovery repeats in the same place what it did
/// before it wrote that snapshot.
#[test]
fn recovery_from_the_older_snapshot_loses_what_the_one_before_lost() {
    let node = Node::new(Tiers::Apart);
    let bytes = content(5, 20 * BLOCK);
    let process = node.start();
    put(&process, b"old", &bytes);
    // After a second flush the next epoch begins with the other place of the log's tail.
    put(&process, b"older", b"");
    node.lose_memory(process);
    let process = node.start();
    // This file gets the blocks that the lost file had.
    put(&process, b"new", &bytes);
    node.lose_memory(process);
    let inspection = inspect(node.media.as_ref(), CHECKSUM).expect("media without faults");
    let slots = inspection.expect("there is a superblock").slots;
    let newest = slots.iter().max_by_key(|slot| slot.snapshot.map(|snapshot| snapshot.number));
    let records = newest.expect("there are two").offset + MEDIA_BLOCK_BYTES as u64;
    node.media.write(records, &[0x5a; MEDIA_BLOCK_BYTES]).expect("media without faults");
    let recovered = recover_and_attach(node.media.clone(), &node.superblock);
    let (process, found) = recovered.expect("the older one and both logs lead there");
    assert!(found.fell_back);
    expect_lost(&process, b"old", bytes.len());
    expect_lost(&process, b"new", bytes.len());
    process.fs.check().expect("it is sound");
}
