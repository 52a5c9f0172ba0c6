//! Few records for many writes. A write through a description extends the description's last
//! record, whatever others write in between. What is recovered is what was written.

use cairn_core::{Error, HandleId, Position, ROOT, Superblock, recover_read_only};
use cairn_testing::driver::Process;
use cairn_testing::durable::{Crew, Setting, memory, recover_and_attach};
use cairn_testing::faulty::Image;
use cairn_testing::tier::CHECKSUM;
use cairn_testing::world::READ_WRITE;
use std::sync::Arc;

/// Unit of allocation.
const BLOCK_BYTES: usize = 4096;
/// Number of blocks reserved at a time on media as small as these.
const STRETCH_BLOCKS: u64 = 256;
const MEDIA_BYTES: u64 = 64 << 20;

/// A namespace that processes share, on its own media.
struct Shared {
    media: Arc<Image>,
    superblock: Superblock,
    crew: Crew,
}

impl Shared {
    fn new(media_bytes: u64, processes: usize) -> Shared {
        let media = Arc::new(Image::filled(media_bytes, 0));
        let superblock = Setting::simple().make_on(media.as_ref());
        let crew = Crew::recover(media.clone(), &superblock, processes);
        Shared { media, superblock, crew: crew.expect("it was just made") }
    }

    /// Returns the number of records that recovery would replay.
    fn records(&self) -> u64 {
        self.crew.processes[0].fs.sync().expect("the media work");
        let found = recover_read_only(self.media.as_ref(), &memory(&self.superblock), CHECKSUM);
        found.expect("the media work").lsn
    }

    /// Returns a process of the namespace recovered from a copy of the media.
    fn recovered(&self) -> Process {
        let media = Arc::new(self.media.as_ref().clone());
        let (process, _) = recover_and_attach(media, &self.superblock).expect("the media work");
        process.fs.check().expect("nothing is damaged");
        process
    }
}

fn open(process: &Process, name: &str) -> HandleId {
    let opened = process.fs.open_file(&process.caller(), ROOT, name.as_bytes(), READ_WRITE, 0o600);
    opened.expect("there is space").handle
}

/// Returns the content of a block of a file.
fn block_of(file: usize, block: u64) -> Vec<u8> {
    let seed = (file as u64 + 1) << 32 | block;
    let words =
        (0..BLOCK_BYTES as u64 / 8).map(|at| (seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes one block and returns its number on the tier.
fn write_block(process: &Process, handle: HandleId, file: usize, block: u64) -> Result<u32, Error> {
    let (caller, at) = (process.caller(), Position::At(block * BLOCK_BYTES as u64));
    let mut write = process.begin_write(&caller, handle, at, &block_of(file, block))?;
    process.transfer(&mut write)?;
    assert!(process.commit(&caller, &mut write)?, "nobody disturbs it");
    let first = write.plan.pieces().next();
    Ok(first.expect("it has a block").block)
}

/// Writes `blocks` blocks to each file, one block at a time, file by file in turn.
fn write_in_turn(writers: &[(&Process, HandleId)], blocks: u64) {
    for block in 0..blocks {
        for (file, &(process, handle)) in writers.iter().enumerate() {
            write_block(process, handle, file, block).expect("there is space");
        }
    }
}

/// Checks that the file consists of exactly these blocks.
fn expect_blocks(process: &Process, name: &str, blocks: impl Iterator<Item = Vec<u8>>) {
    let handle = open(process, name);
    let inode = process.fs.handle(handle).expect("it is open").inode;
    let mut end = 0;
    for expected in blocks {
        let read = process.read(&process.caller(), handle, Position::At(end), BLOCK_BYTES as u64);
        assert!(read.expect("it can be read").1 == expected, "{name}, the block at {end}");
        end += BLOCK_BYTES as u64;
    }
    assert_eq!(process.fs.attributes(inode).expect("it is there").size, end);
    process.verify_blocks(inode, handle).expect("the checksums are right");
}

/// Mechanism: free blocks reserved by another process counted as room in the used part of the tier,
/// so the cursor circled through them.
///
/// Consequence: files written in turn were interleaved block by block, with a record and an extent
/// for every call.
///
/// Fix: blocks that processes have reserved on a durable tier do not count as room.
#[test]
fn processes_write_files_in_turn_then_each_leaves_a_record_per_stretch() {
    const PROCESSES: usize = 8;
    let shared = Shared::new(MEDIA_BYTES, PROCESSES);
    let open = |(file, process)| (process, open(process, &format!("{file}")));
    let writers: Vec<_> = shared.crew.processes.iter().enumerate().map(open).collect();
    write_in_turn(&writers, 2 * STRETCH_BLOCKS);
    // Each file is created and has two stretches.
    assert_eq!(shared.records(), PROCESSES as u64 * 3);
}

/// Mechanism: all descriptions of a process took their blocks from the same stretch.
///
/// Consequence: no file had consecutive blocks when one process wrote several in turn, and every
/// call left a record and an extent.
///
/// Fix: streams.
#[test]
fn one_process_writes_files_in_turn_then_each_leaves_a_record_per_stretch() {
    const FILES: usize = 8;
    let shared = Shared::new(MEDIA_BYTES, 1);
    let process = &shared.crew.processes[0];
    let writers: Vec<_> =
        (0..FILES).map(|file| (process, open(process, &format!("{file}")))).collect();
    write_in_turn(&writers, 2 * STRETCH_BLOCKS);
    // Each file has a record of its creation, a first block in the shared stretch, and parts of two
    // other stretches. The stretch of the last file continues its part of the shared one.
    assert_eq!(shared.records(), FILES as u64 * 4);
    let recovered = shared.recovered();
    for file in 0..FILES {
        let blocks = (0..2 * STRETCH_BLOCKS).map(|block| block_of(file, block));
        expect_blocks(&recovered, &format!("{file}"), blocks);
    }
}

#[test]
fn small_files_are_written_one_after_another_then_their_blocks_follow_each_other() {
    const FILES: usize = 60;
    const BLOCKS: u64 = 4;
    let shared = Shared::new(MEDIA_BYTES, 1);
    let process = &shared.crew.processes[0];
    let mut taken = Vec::new();
    for file in 0..FILES {
        let handle = open(process, &format!("{file}"));
        let blocks = (0..BLOCKS).map(|block| write_block(process, handle, file, block));
        taken.extend(blocks.map(|block| block.expect("there is space")));
        process.close(handle).expect("the media work");
    }
    assert!(taken.iter().copied().eq(0..FILES as u32 * BLOCKS as u32), "{taken:?}");
}

#[test]
fn file_is_closed_then_what_was_set_apart_for_it_goes_to_the_next_one() {
    let shared = Shared::new(MEDIA_BYTES, 1);
    let process = &shared.crew.processes[0];
    let writers = ["0", "1"].map(|name| (process, open(process, name)));
    write_in_turn(&writers, 2);
    let [(_, closed), _] = writers;
    let last = write_block(process, closed, 0, 2).expect("there is space");
    process.close(closed).expect("the media work");
    let next = write_block(process, open(process, "2"), 2, 0).expect("there is space");
    assert_eq!(next, last + 1);
}

#[test]
fn one_process_fills_the_tier_with_files_in_turn_then_no_block_is_left_and_all_are_recovered() {
    // More files than a process has streams.
    const FILES: usize = 20;
    let shared = Shared::new(6 << 20, 1);
    let process = &shared.crew.processes[0];
    let handles: Vec<_> = (0..FILES).map(|file| open(process, &format!("{file}"))).collect();
    let mut blocks = [0; FILES];
    let full = (0..).find_map(|turn| {
        let file = turn % FILES;
        let written = write_block(process, handles[file], file, blocks[file]);
        blocks[file] += u64::from(written.is_ok());
        written.err()
    });
    assert_eq!(full, Some(Error::NoSpace));
    let report = process.fs.check().expect("nothing is damaged");
    assert_eq!((report.free_blocks, report.file_blocks), (0, report.capacity_blocks));
    process.fs.sync().expect("the media work");
    let recovered = shared.recovered();
    for (file, blocks) in blocks.into_iter().enumerate() {
        let blocks = (0..blocks).map(|block| block_of(file, block));
        expect_blocks(&recovered, &format!("{file}"), blocks);
    }
}

/// Writes every n-th piece of one file in each of n processes.
fn write_strides(crew: &[Process], piece_blocks: u64, rounds: u64) {
    let handles: Vec<_> = crew.iter().map(|process| open(process, "shared")).collect();
    for piece in 0..rounds * crew.len() as u64 {
        let writer = piece as usize % crew.len();
        for block in piece * piece_blocks..(piece + 1) * piece_blocks {
            write_block(&crew[writer], handles[writer], 0, block).expect("there is space");
        }
    }
}

#[test]
fn processes_write_strides_of_a_file_then_each_leaves_a_record_per_stretch() {
    const PROCESSES: usize = 4;
    // The blocks of a piece are written one by one.
    for piece_blocks in [1, 4] {
        let shared = Shared::new(MEDIA_BYTES, PROCESSES);
        write_strides(&shared.crew.processes, piece_blocks, 2 * STRETCH_BLOCKS / piece_blocks);
        // The file is created, and each process has two stretches.
        assert_eq!(shared.records(), 1 + PROCESSES as u64 * 2);
        let blocks = PROCESSES as u64 * 2 * STRETCH_BLOCKS;
        let blocks = (0..blocks).map(|block| block_of(0, block));
        expect_blocks(&shared.recovered(), "shared", blocks);
    }
}

#[test]
fn strides_are_synced_in_between_then_the_record_that_was_flushed_is_not_extended() {
    let shared = Shared::new(MEDIA_BYTES, 1);
    let process = &shared.crew.processes[0];
    let handle = open(process, "shared");
    let at = |piece: u64| 3 * piece;
    for piece in 0..4 {
        write_block(process, handle, 0, at(piece)).expect("there is space");
    }
    assert_eq!(shared.records(), 2, "created, and the pieces");
    for piece in 4..8 {
        write_block(process, handle, 0, at(piece)).expect("there is space");
    }
    let of_first = |process: &Process, pieces: u64| {
        let block = |block: u64| match block % 3 {
            0 => block_of(0, block),
            _ => vec![0; BLOCK_BYTES],
        };
        expect_blocks(process, "shared", (0..=at(pieces - 1)).map(block));
    };
    of_first(&shared.recovered(), 4);
    assert_eq!(shared.records(), 3);
    of_first(&shared.recovered(), 8);
}
