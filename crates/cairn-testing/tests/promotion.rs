//! Promotions one at a time: which blocks move, and every change of a file that may come between
//! the plan of a promotion and its commit.
//!
//! Does not test that promotions are invisible otherwise; `model.rs` does.

use cairn_core::{Error, HandleId, InodeId, OpenOptions, Position, Promotion, ROOT, TIERS_MAX};
use cairn_testing::driver::Process;
use cairn_testing::world::{SUPERUSER, World};

const BLOCK_BYTES: usize = 4096;
/// Size of the first tier, a quarter of which is kept for writes, and of the second, blocks.
const FAST: u32 = 8;
const SLOW: u32 = 64;
const PROMOTED_MAX: u64 = 6;

/// A file on the second tier, with the process that wrote it.
struct Stage {
    world: World,
    process: Process,
    handle: HandleId,
    inode: InodeId,
    bytes: Vec<u8>,
}

fn sample(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 + salt * 3 + 1) as u8).collect()
}

impl Stage {
    /// Makes a file of `length` bytes.
    fn new(length: usize) -> Stage {
        Stage::tiered([FAST, SLOW, 0, 0], length)
    }

    fn tiered(tiers: [u32; TIERS_MAX], length: usize) -> Stage {
        let world = World::tiered(tiers, 64);
        let process = world.process(SUPERUSER);
        process.fs.bar(&[tiers[0]]).expect("is intact");
        let options =
            OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
        let opened = process.fs.open_file(&process.caller(), ROOT, b"file", options, 0o600);
        let opened = opened.expect("there is space");
        let (handle, inode) = (opened.handle, opened.inode);
        let stage = Stage { world, process, handle, inode, bytes: sample(length, 0) };
        stage.write(0, &stage.bytes);
        assert!(stage.process.seal(inode).expect("is intact"));
        stage.process.fs.bar(&[0]).expect("is intact");
        stage
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let process = &self.process;
        let at = Position::At(at as u64);
        let written = process.write(&process.caller(), self.handle, at, bytes);
        assert_eq!(written.expect("there is space").1, bytes.len() as u64);
    }

    fn plan(&self) -> Option<Promotion> {
        let (fs, caller) = (&self.process.fs, self.process.caller());
        fs.plan_promotion(&caller, self.inode, 0..u32::MAX).expect("there is room")
    }

    fn commit(&self, promotion: &Promotion) -> bool {
        let (fs, caller) = (&self.process.fs, self.process.caller());
        fs.commit_promotion(&caller, promotion).expect("is in flight")
    }

    /// Returns the tier of each run of the file.
    fn tiers(&self) -> Vec<u8> {
        let (caller, at) = (self.process.caller(), Position::At(0));
        let plan = self.process.fs.plan_read(&caller, self.handle, at, 1 << 30).expect("is open");
        plan.runs().iter().filter_map(|run| run.source).map(|(tier, _)| tier).collect()
    }

    fn used(&self) -> [u64; TIERS_MAX] {
        self.process.fs.check().expect("is intact");
        self.process.fs.usage().expect("is intact").used_blocks
    }

    fn promoted(&self) -> [u64; TIERS_MAX] {
        self.process.fs.usage().expect("is intact").promoted_blocks
    }

    /// Checks that the file has the expected bytes with matching checksums, and that no block is
    /// lost.
    fn holds(&self, expected: &[u8]) {
        let process = &self.process;
        let read = process.read(&process.caller(), self.handle, Position::At(0), 1 << 30);
        assert!(read.expect("is open").1 == expected, "{} bytes", expected.len());
        process.verify_blocks(self.inode, self.handle).expect("checksums are right");
        process.reclaim().expect("is intact");
        let report = process.fs.check().expect("is intact");
        let blocks = expected.len().div_ceil(BLOCK_BYTES) as u64;
        assert_eq!(report.capacity_blocks - report.free_blocks, blocks, "{report:?}");
    }
}

#[test]
fn blocks_move_to_the_faster_tier_and_nothing_else_changes() {
    let stage = Stage::new(3 * BLOCK_BYTES + 100);
    assert_eq!((stage.tiers(), stage.used()), (vec![1], [0, 4, 0, 0]));
    let before = stage.process.fs.attributes(stage.inode).expect("is there");
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Ok(4));
    assert_eq!((stage.tiers(), stage.used()), (vec![0], [4, 0, 0, 0]));
    assert_eq!(stage.promoted(), [0, 4, 0, 0]);
    stage.holds(&stage.bytes);
    assert_eq!(stage.process.fs.attributes(stage.inode), Ok(before));
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Ok(0), "it is there");
}

#[test]
fn blocks_within_an_extent_move_alone() {
    let stage = Stage::new(5 * BLOCK_BYTES);
    assert_eq!(stage.process.promote(stage.inode, 2..3), Ok(1));
    assert_eq!((stage.tiers(), stage.used()), (vec![1, 0, 1], [1, 4, 0, 0]));
    stage.holds(&stage.bytes);
}

#[test]
fn share_of_the_faster_tier_is_left_to_writes() {
    let stage = Stage::new(20 * BLOCK_BYTES);
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Err(Error::NoSpace));
    assert_eq!(stage.used(), [PROMOTED_MAX, 20 - PROMOTED_MAX, 0, 0]);
    stage.holds(&stage.bytes);
}

#[test]
fn faster_tier_that_is_full_gives_way_to_the_next_one_that_is_not() {
    let stage = Stage::tiered([FAST, 0, SLOW, SLOW], BLOCK_BYTES);
    stage.process.promote(stage.inode, 0..1).expect("there is room");
    assert_eq!(stage.tiers(), [0]);
    let stage = Stage::tiered([1, FAST, SLOW, 0], 10 * BLOCK_BYTES);
    // The first 8 blocks are on the second tier, and the first tier has none to spare.
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Err(Error::NoSpace));
    assert_eq!(stage.used(), [0, 8, 2, 0]);
    let size = 6 * BLOCK_BYTES;
    stage.process.truncate(&stage.process.caller(), stage.inode, size as u64).expect("is open");
    stage.holds(&stage.bytes[..size]);
}

#[test]
fn blocks_that_are_barred_are_not_taken() {
    let stage = Stage::new(BLOCK_BYTES);
    stage.process.fs.bar(&[PROMOTED_MAX as u32]).expect("is intact");
    let refused = stage.process.promote(stage.inode, 0..u32::MAX);
    assert_eq!(refused, Err(Error::NoSpace));
    stage.process.fs.bar(&[PROMOTED_MAX as u32 - 1]).expect("is intact");
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Ok(1));
}

#[test]
fn blocks_without_a_checksum_stay() {
    let stage = Stage::new(4 * BLOCK_BYTES);
    stage.write(BLOCK_BYTES + 7, &[9]);
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Ok(3));
    assert_eq!(stage.tiers(), [0, 1, 0]);
    assert!(stage.process.seal(stage.inode).expect("is intact"));
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Ok(1));
    let mut expected = stage.bytes.clone();
    expected[BLOCK_BYTES + 7] = 9;
    stage.holds(&expected);
}

#[test]
fn file_that_is_written_to_stays() {
    let stage = Stage::new(2 * BLOCK_BYTES);
    let process = &stage.process;
    let caller = process.caller();
    let write = process.begin_write(&caller, stage.handle, Position::At(0), &[5; 10]).unwrap();
    assert!(stage.plan().is_none());
    process.abort(&caller, &write).expect("is in flight");
}

/// A mapping shows the blocks at the places they had when it was made.
#[test]
fn file_that_is_mapped_stays() {
    let stage = Stage::new(2 * BLOCK_BYTES);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let promotion = stage.plan().expect("it can be promoted");
    let mapping = fs.map_file(&caller, stage.handle, false).expect("is open");
    assert!(!stage.commit(&promotion));
    assert!(stage.plan().is_none());
    fs.release(caller.slot, mapping, caller.now).expect("is mapped");
    assert_eq!(stage.process.promote(stage.inode, 0..u32::MAX), Ok(2));
    stage.holds(&stage.bytes);
}

#[test]
fn reader_that_copied_what_was_moved_plans_again() {
    let stage = Stage::new(BLOCK_BYTES);
    let fs = &stage.process.fs;
    let plan = fs.plan_read(&stage.process.caller(), stage.handle, Position::At(0), 10).unwrap();
    let promotion = stage.plan().expect("it can be promoted");
    assert!(stage.process.copy_promoted(&promotion).expect("the heap does not fail"));
    assert!(fs.read_is_valid(&plan));
    assert!(stage.commit(&promotion));
    assert!(!fs.read_is_valid(&plan));
}

#[test]
fn file_that_changes_between_plan_and_commit_stays_where_it_is() {
    let length = 2 * BLOCK_BYTES + 100;
    let replaced = |at: usize, bytes: &[u8]| {
        let mut expected = sample(length, 0);
        expected.resize(length.max(at + bytes.len()), 0);
        expected[at..at + bytes.len()].copy_from_slice(bytes);
        expected
    };
    type Change = fn(&Stage);
    let cases: [(&str, Change, Vec<u8>); 6] = [
        ("overwritten", |stage| stage.write(5, &[1; 9]), replaced(5, &[1; 9])),
        (
            "overwritten as a whole",
            |stage| stage.write(0, &[1; BLOCK_BYTES]),
            replaced(0, &[1; BLOCK_BYTES]),
        ),
        ("continued", |stage| stage.write(stage.bytes.len(), b"more"), replaced(length, b"more")),
        ("written far behind", |stage| stage.write(9000, b"more"), replaced(9000, b"more")),
        (
            "cut",
            |stage| stage.process.truncate(&stage.process.caller(), stage.inode, 100).unwrap(),
            sample(length, 0)[..100].to_vec(),
        ),
        (
            "promoted by somebody else",
            |stage| assert_eq!(stage.process.promote(stage.inode, 1..2), Ok(1)),
            sample(length, 0),
        ),
    ];
    for (name, change, expected) in cases {
        for copies_first in [true, false] {
            let stage = Stage::new(length);
            let promotion = stage.plan().expect("it can be promoted");
            let copy = || stage.process.copy_promoted(&promotion).expect("the heap does not fail");
            if copies_first {
                assert!(copy());
            }
            change(&stage);
            if !copies_first {
                copy();
            }
            assert!(!stage.commit(&promotion), "{name}");
            stage.holds(&expected);
            assert_eq!(
                stage.process.fs.commit_promotion(&stage.process.caller(), &promotion),
                Err(Error::Invalid),
                "it is over"
            );
        }
    }
}

#[test]
fn tail_that_is_zeroed_meanwhile_is_zeros_in_the_copy_too() {
    let stage = Stage::new(BLOCK_BYTES);
    let caller = stage.process.caller();
    stage.process.truncate(&caller, stage.inode, 100).expect("is open");
    assert!(stage.process.seal(stage.inode).expect("is intact"));
    let promotion = stage.plan().expect("it can be promoted");
    assert!(stage.process.copy_promoted(&promotion).expect("the heap does not fail"));
    stage.process.settle(&caller, stage.inode).expect("nobody writes");
    assert!(stage.commit(&promotion));
    stage.process.truncate(&caller, stage.inode, 200).expect("is open");
    stage.holds(&[&stage.bytes[..100], &[0; 100]].concat());
}

#[test]
fn file_that_is_removed_meanwhile_leaves_nothing() {
    let stage = Stage::new(2 * BLOCK_BYTES);
    let promotion = stage.plan().expect("it can be promoted");
    let (process, caller) = (&stage.process, stage.process.caller());
    process.fs.unlink(&caller, ROOT, b"file").expect("is there");
    process.close(stage.handle).expect("is open");
    assert!(!stage.commit(&promotion));
    process.reclaim().expect("is intact");
    assert_eq!(stage.used(), [0; TIERS_MAX]);
}

#[test]
fn promotion_that_is_given_up_leaves_nothing() {
    let stage = Stage::new(2 * BLOCK_BYTES);
    let (fs, caller) = (&stage.process.fs, stage.process.caller());
    let promotion = stage.plan().expect("it can be promoted");
    assert_eq!(stage.used(), [2, 2, 0, 0], "it has its blocks");
    fs.abort_promotion(&caller, &promotion).expect("is in flight");
    assert_eq!((stage.used(), stage.promoted()), ([0, 2, 0, 0], [0; TIERS_MAX]));
    stage.holds(&stage.bytes);
}

#[test]
fn whoever_promotes_dies_and_no_block_is_lost() {
    let stage = Stage::new(2 * BLOCK_BYTES);
    let agent = stage.world.process(SUPERUSER);
    let (caller, inode) = (agent.caller(), stage.inode);
    let planned = agent.fs.plan_promotion(&caller, inode, 0..u32::MAX).expect("there is room");
    assert!(agent.copy_promoted(&planned.expect("it can be promoted")).expect("copies"));
    assert_eq!(stage.used(), [2, 2, 0, 0]);
    stage.process.reap(agent.slot).expect("it is dead");
    assert_eq!(stage.used(), [0, 2, 0, 0]);
    stage.holds(&stage.bytes);
}

#[test]
fn readers_note_what_they_read_on_slower_tiers_only_if_somebody_wants_to_know() {
    let stage = Stage::new(5 * BLOCK_BYTES);
    let fs = &stage.process.fs;
    let read = |first: u64, blocks: u64| {
        let (at, block_bytes) = (Position::At(first * BLOCK_BYTES as u64), BLOCK_BYTES as u64);
        let plan = fs.plan_read(&stage.process.caller(), stage.handle, at, blocks * block_bytes);
        fs.note_read(&plan.expect("is open"));
    };
    read(0, 5);
    assert_eq!((fs.reads_noted(), fs.take_read_note()), (0, None));
    fs.promote_reads(true).expect("metadata are in memory");
    read(1, 1);
    read(3, 1);
    assert_eq!(fs.reads_noted(), 2);
    assert_eq!(fs.take_read_note(), Some((stage.inode, 1..4)));
    assert_eq!(fs.take_read_note(), None);
    stage.process.promote(stage.inode, 0..u32::MAX).expect("there is room");
    read(0, 5);
    assert_eq!((fs.reads_noted(), fs.take_read_note()), (2, None), "it is on the first tier");
}
