//! Origin of blocks on a machine with several memory nodes. The threads only pretend to run on
//! them.
//!
//! A thread gets blocks of its own node while there are any, even after others had them and freed
//! them; then those of the sibling node, then any. A full tier is full to the last block. With one
//! node the tier is not divided. Barred blocks are not handed out; the next tier serves instead, or
//! the call fails.
//!
//! Does not test that files stay intact under every order of operations on such a tier; `model.rs`
//! does.

use cairn_core::{Error, HandleId, OpenOptions, Position, ROOT};
use cairn_testing::driver::Process;
use cairn_testing::world::{SUPERUSER, World, move_to_node};

const BLOCK_BYTES: usize = 4096;
/// Mask of nodes 1, 2, 5 and 6.
const NODES: u64 = 0b110_0110;
/// Number of blocks of each node, and the additional ones of the last node.
const PART: usize = 640;
const REST: usize = 7;
const BLOCKS: u32 = (4 * PART + REST) as u32;

struct File<'a> {
    process: &'a Process,
    handle: HandleId,
}

impl<'a> File<'a> {
    fn create(process: &'a Process, name: &str) -> File<'a> {
        let options =
            OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
        let caller = process.caller();
        let opened = process.fs.open_file(&caller, ROOT, name.as_bytes(), options, 0o600);
        File { process, handle: opened.expect("there is space").handle }
    }

    /// Appends `blocks` blocks, one at a time, as a thread of `node`. Returns the number that had
    /// space.
    fn append(&self, node: u32, blocks: usize) -> usize {
        move_to_node(node);
        let bytes = [7; BLOCK_BYTES];
        let write = |_: &usize| {
            let caller = self.process.caller();
            match self.process.write(&caller, self.handle, Position::Cursor, &bytes) {
                Ok(_) => true,
                Err(error) => {
                    assert_eq!(error, Error::NoSpace);
                    false
                }
            }
        };
        (0..blocks).take_while(write).count()
    }

    /// Returns the number of separate runs of blocks of the file.
    fn runs(&self) -> usize {
        let (caller, at) = (self.process.caller(), Position::At(0));
        let plan = self.process.fs.plan_read(&caller, self.handle, at, 1 << 30);
        plan.expect("can be read").runs().len()
    }

    fn close(self) {
        self.process.close(self.handle).expect("closes");
    }
}

fn write(process: &Process, node: u32, name: &str, blocks: usize) -> usize {
    let file = File::create(process, name);
    let written = file.append(node, blocks);
    file.close();
    written
}

fn remove(process: &Process, name: &str) {
    process.fs.unlink(&process.caller(), ROOT, name.as_bytes()).expect("is there");
    process.reclaim().expect("frees");
}

fn bar(process: &Process, blocks: &[u32]) {
    process.fs.bar(blocks).expect("is intact");
}

/// Returns the number of used blocks of each node.
fn used(process: &Process) -> Vec<u64> {
    process.fs.check().expect("is intact");
    process.fs.usage().expect("is intact").parts.iter().map(|part| part.used_blocks).collect()
}

fn world() -> World {
    World::divided(0, [BLOCKS, 0, 0, 0], NODES, 64)
}

#[test]
fn parts_are_equal_and_belong_to_the_nodes() {
    let process = world().process(SUPERUSER);
    let parts = process.fs.usage().expect("is intact").parts;
    let found: Vec<_> =
        parts.iter().map(|part| (part.node, part.first_block, part.blocks)).collect();
    let (part, rest) = (PART as u32, REST as u32);
    let expected = [(1, 0, part), (2, part, part), (5, 2 * part, part), (6, 3 * part, part + rest)];
    assert_eq!(found, expected.map(|(node, first, blocks)| (Some(node), first, blocks)));
}

#[test]
fn one_node_or_too_small_a_tier_is_not_divided() {
    for (blocks, nodes) in [(1000, 0), (1000, 1 << 3), (127, 0b11), (255, NODES)] {
        let process = World::divided(0, [blocks, 0, 0, 0], nodes, 16).process(SUPERUSER);
        write(&process, 3, "file", 5);
        let parts = process.fs.usage().expect("is intact").parts;
        assert_eq!((parts.len(), parts[0].node), (1, None), "{blocks} blocks, nodes {nodes:b}");
        assert_eq!((parts[0].blocks, parts[0].used_blocks), (blocks, 5));
    }
}

#[test]
fn tier_behind_others_is_divided_alone() {
    let process = World::divided(1, [5, BLOCKS, 7, 0], NODES, 64).process(SUPERUSER);
    assert_eq!(write(&process, 5, "file", 30), 30);
    assert_eq!(used(&process), [0, 0, 25, 0]);
    assert_eq!(write(&process, 5, "other", BLOCKS as usize), BLOCKS as usize - 25 + 7);
    let usage = process.fs.usage().expect("is intact");
    assert_eq!(usage.used_blocks, [5, u64::from(BLOCKS), 7, 0]);
}

#[test]
fn blocks_are_of_the_node_that_the_writing_thread_runs_on() {
    let process = world().process(SUPERUSER);
    for (node, blocks) in [(1, 10), (2, 20), (5, 30), (6, 40)] {
        write(&process, node, &format!("of {node}"), blocks);
    }
    assert_eq!(used(&process), [10, 20, 30, 40]);
    // A node without a part uses that of the next node with one; behind the last it uses the first.
    write(&process, 3, "of 3", 100);
    write(&process, 63, "of 63", 200);
    write(&process, 64, "of 64", 300);
    assert_eq!(used(&process), [510, 20, 130, 40]);
}

#[test]
fn threads_of_one_process_on_two_nodes_write_to_blocks_in_a_row() {
    let process = world().process(SUPERUSER);
    let files = [(1, File::create(&process, "a")), (6, File::create(&process, "b"))];
    for _ in 0..200 {
        files.iter().for_each(|(node, file)| assert_eq!(file.append(*node, 1), 1));
    }
    assert_eq!(used(&process), [200, 0, 0, 200]);
    assert_eq!(files.each_ref().map(|(_, file)| file.runs()), [1, 1]);
}

#[test]
fn what_others_had_and_freed_is_not_taken_before_blocks_of_the_own_node() {
    let world = world();
    let (first, second) = (world.process(SUPERUSER), world.process(SUPERUSER));
    write(&first, 1, "of 1", 100);
    // This process remembers the blocks it freed, and none of them is of its own node.
    remove(&second, "of 1");
    write(&second, 5, "of 5", 50);
    assert_eq!(used(&second), [0, 0, 50, 0]);
    remove(&first, "of 5");
    write(&second, 1, "again of 1", 30);
    assert_eq!(used(&second), [30, 0, 0, 0]);
}

#[test]
fn large_write_does_not_run_into_the_part_behind() {
    let process = world().process(SUPERUSER);
    let file = File::create(&process, "large");
    move_to_node(2);
    let bytes = vec![7; (PART + 60) * BLOCK_BYTES];
    let written = process.write(&process.caller(), file.handle, Position::Cursor, &bytes);
    assert_eq!(written, Ok((0, bytes.len() as u64)));
    assert_eq!(used(&process), [60, PART as u64, 0, 0]);
}

#[test]
fn full_node_takes_of_its_sibling_then_of_everybody_to_the_last_block() {
    let process = world().process(SUPERUSER);
    let file = File::create(&process, "large");
    let (part, last) = (PART as u64, (PART + REST) as u64);
    file.append(6, PART + REST + 10);
    assert_eq!(used(&process), [0, 0, 10, last], "of the sibling first");
    file.append(6, PART);
    assert_eq!(used(&process), [0, 10, part, last], "then of the others");
    assert_eq!(file.append(6, 10 * PART), 2 * PART - 10);
    assert_eq!(used(&process), [part, part, part, last]);
    assert_eq!(file.append(1, 1), 0);
    file.close();
    remove(&process, "large");
    assert_eq!(used(&process), [0; 4]);
    assert_eq!(write(&process, 2, "own again", PART), PART);
    assert_eq!(used(&process), [0, part, 0, 0]);
}

#[test]
fn barred_blocks_are_not_handed_out_but_where_they_were_before() {
    let process = World::new(1000, 64).process(SUPERUSER);
    bar(&process, &[700]);
    assert_eq!(write(&process, 0, "first", 1000), 300);
    bar(&process, &[600]);
    assert_eq!(write(&process, 0, "second", 1000), 100);
    bar(&process, &[1000]);
    assert_eq!(write(&process, 0, "third", 1), 0);
    remove(&process, "first");
    assert_eq!(write(&process, 0, "fourth", 1000), 300, "they have their memory");
    bar(&process, &[0]);
    assert_eq!(write(&process, 0, "fifth", 1000), 600);
    assert_eq!(used(&process), [1000]);
}

#[test]
fn what_is_barred_on_one_node_is_taken_from_another_or_the_next_tier() {
    let process = world().process(SUPERUSER);
    bar(&process, &[0, 600, 630, 0]);
    assert_eq!(write(&process, 2, "file", 50), 50);
    assert_eq!(used(&process), [10, 40, 0, 0]);

    let process = World::tiered([100, 100, 0, 0], 64).process(SUPERUSER);
    bar(&process, &[90]);
    assert_eq!(write(&process, 0, "file", 1000), 110);
    let usage = process.fs.usage().expect("is intact");
    assert_eq!(usage.used_blocks[..2], [10, 100]);

    let process = World::divided(1, [5, BLOCKS, 8, 0], NODES, 64).process(SUPERUSER);
    bar(&process, &[PART as u32; 4]);
    assert_eq!(write(&process, 0, "file", 1000), 5 + REST + 8);
}
