//! Media with metadata only: how much room they need and how they are laid out.

use cairn_core::{Durability, Error, FurtherTier, Geometry, MediaOptions, Superblock, Timestamp};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const HUGEBLOCK: u64 = 32 << 10;

fn options(data_bytes: u64) -> MediaOptions {
    let mut further = [FurtherTier::default(); 3];
    further[0].blocks = (data_bytes / HUGEBLOCK) as u32;
    MediaOptions {
        hugeblock_bytes: HUGEBLOCK as u32,
        durability: Durability::Sync,
        mount: b"/cairn".to_vec(),
        zero_block_checksum: 0,
        identity: [1, 2],
        now: Timestamp(1),
        further,
        holds_data: false,
    }
}

fn inodes(bytes: u64, data_bytes: u64) -> u64 {
    let superblock = Superblock::plan(bytes, &options(data_bytes)).expect("there is room");
    assert!(superblock.data_offset <= superblock.bytes && superblock.bytes == bytes);
    assert_eq!(superblock.geometry.tier_blocks[0], 0);
    u64::from(superblock.geometry.inode_capacity)
}

#[test]
fn least_room_is_enough_and_less_is_refused() {
    for data_bytes in [MIB, GIB, 100 * GIB] {
        let least = Superblock::least_bytes_alone(&options(data_bytes));
        assert!(inodes(least, data_bytes) >= 1024);
        let refused = Superblock::plan(least - 1, &options(data_bytes));
        assert_eq!(refused, Err(Error::NoSpace), "{data_bytes}");
    }
}

/// Checks what the help of `cairn run` promises.
#[test]
fn room_is_2_mib_and_4_mib_for_each_gib_and_750_bytes_for_each_file() {
    for (data_bytes, files) in [(MIB, 1000), (GIB, 1000), (GIB, 100_000), (100 * GIB, 1_000_000)] {
        let promised = 2 * MIB + 4 * MIB * data_bytes.div_ceil(GIB) + 750 * files;
        let bytes = promised.next_multiple_of(4096);
        assert!(inodes(bytes, data_bytes) >= files, "{data_bytes} {files}");
    }
    assert_eq!(inodes(64 * GIB, GIB), 4 << 20);
}

/// Checks what the help of `cairn run` promises for metadata in memory.
#[test]
fn segment_takes_145_kib_for_each_gib_and_400_bytes_for_each_file() {
    let segment_bytes = |data_bytes: u64, inode_capacity: u32| {
        let tier_blocks = [(data_bytes / HUGEBLOCK) as u32, 0, 0, 0];
        Geometry { inode_capacity, ..Geometry::new(b"/cairn", tier_blocks, 0) }.segment_bytes()
    };
    let (few, many) = (100_000, 1_100_000);
    assert!(segment_bytes(GIB, many) - segment_bytes(GIB, few) <= 400 * u64::from(many - few));
    assert!(segment_bytes(101 * GIB, few) - segment_bytes(GIB, few) <= 100 * (145 << 10));
}

#[test]
fn no_tier_with_data_is_refused() {
    assert_eq!(Superblock::plan(GIB, &options(0)), Err(Error::Invalid));
}
