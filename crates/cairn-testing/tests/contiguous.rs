//! Files written side by side in memory have consecutive blocks, so that few mappings suffice to
//! map them.

use cairn_core::{HandleId, Position, ROOT};
use cairn_testing::driver::Process;
use cairn_testing::world::{READ_WRITE, SUPERUSER, World};

const BLOCK_BYTES: u64 = 4096;
/// Number of blocks of each file.
const BLOCKS: u64 = 4096;
/// Number of blocks that a process reserves at a time for all of its files.
const STRETCH_BLOCKS: u64 = 256;

fn open(process: &Process, name: &str) -> HandleId {
    let opened = process.fs.open_file(&process.caller(), ROOT, name.as_bytes(), READ_WRITE, 0o600);
    opened.expect("there is space").handle
}

fn write_block(process: &Process, handle: HandleId, block: u64) {
    let bytes = [block as u8; BLOCK_BYTES as usize];
    let written =
        process.write(&process.caller(), handle, Position::At(block * BLOCK_BYTES), &bytes);
    assert_eq!(written.map(|(_, count)| count), Ok(BLOCK_BYTES));
}

/// Returns the number of runs of consecutive blocks that the file consists of.
fn stretches(process: &Process, handle: HandleId) -> usize {
    let inode = process.fs.handle(handle).expect("it is open").inode;
    let (mut offset, mut found, mut end) = (0, 0, None);
    while offset < BLOCKS * BLOCK_BYTES {
        let rest = BLOCKS * BLOCK_BYTES - offset;
        let plan = process.fs.plan_of(inode, offset, rest).expect("it is there");
        for run in plan.runs() {
            let (tier, start) = run.source.expect("it has no holes");
            found += usize::from(end != Some((tier, start)));
            end = Some((tier, start + run.bytes));
        }
        offset += plan.length;
    }
    found
}

/// Mechanism: in memory all descriptions of a process took their blocks one after the other from
/// the stretch that they share.
///
/// Consequence: no two blocks of files written side by side were consecutive. Mapping such a file
/// took a kernel mapping for every block, and a process may have only 65 530 of them.
///
/// Fix: streams, as on media.
#[test]
fn files_are_written_side_by_side_then_each_has_few_stretches() {
    for files in [2, 4, 16] {
        let world = World::new(files * BLOCKS as u32 + 64, 64);
        let process = world.process(SUPERUSER);
        let handles: Vec<_> = (0..files).map(|file| open(&process, &format!("{file}"))).collect();
        for block in 0..BLOCKS {
            handles.iter().for_each(|&handle| write_block(&process, handle, block));
        }
        for &handle in &handles {
            let found = stretches(&process, handle);
            // The first stretches of a file are short, and rests of stretches remain.
            let most = 4 * (BLOCKS / STRETCH_BLOCKS) as usize;
            assert!(found <= most, "{files} files: {found} stretches");
        }
        process.fs.check().expect("nothing is damaged");
    }
}

/// The tier fills up completely: blocks reserved for one file are available to every other.
#[test]
fn files_are_written_side_by_side_until_nothing_is_free_then_all_of_it_was_used() {
    let world = World::new(1000, 64);
    let process = world.process(SUPERUSER);
    let handles: Vec<_> = (0..5).map(|file| open(&process, &format!("{file}"))).collect();
    for block in 0..200 {
        handles.iter().for_each(|&handle| write_block(&process, handle, block));
    }
    let report = process.fs.check().expect("nothing is damaged");
    assert_eq!((report.free_blocks, report.file_blocks), (0, 1000));
}
