//! Bugs that the other tests of this crate found, each in the fewest steps that show it.
//!
//! The comment of a test names the mechanism, the consequence, and the fix.

use cairn_core::Memory;
use cairn_core::{
    Committed, Credentials, Error, HandleId, InodeId, OpenOptions, Position, ProcessIdentity, ROOT,
    ReadPlan, RenameMode, Result, SlotId,
};
use cairn_testing::driver::{Process, WriteInFlight};
use cairn_testing::world::{READ_WRITE, SUPERUSER, World};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
const APPEND: OpenOptions = OpenOptions { append: true, ..READ_WRITE };
const READ_ONLY: OpenOptions = OpenOptions { write: false, create: false, ..READ_WRITE };

fn open(process: &Process, path: &[u8], options: OpenOptions) -> (HandleId, InodeId) {
    let opened = process.fs.open_file(&process.caller(), ROOT, path, options, 0o644);
    let opened = opened.expect("the file can be opened");
    (opened.handle, opened.inode)
}

fn write(process: &Process, handle: HandleId, at: u64, bytes: &[u8]) -> u64 {
    let written = process.write(&process.caller(), handle, Position::At(at), bytes);
    let (offset, count) = written.expect("there is space");
    assert_eq!(count, bytes.len() as u64);
    offset
}

/// Plans a write and transfers its bytes.
fn begin(process: &Process, handle: HandleId, at: u64, bytes: &[u8]) -> WriteInFlight {
    let begun = process.begin_write(&process.caller(), handle, Position::At(at), bytes);
    let mut write = begun.expect("there is space");
    process.transfer(&mut write).expect("the tier takes bytes");
    write
}

fn commit(process: &Process, write: &mut WriteInFlight) -> bool {
    process.commit(&process.caller(), write).expect("it is in flight")
}

fn replan(process: &Process, handle: HandleId, write: &mut WriteInFlight) {
    process.replan(&process.caller(), handle, write).expect("there is space");
}

fn contents(process: &Process, handle: HandleId) -> Vec<u8> {
    let read = process.read(&process.caller(), handle, Position::At(0), 1 << 20);
    read.expect("it can be read").1
}

/// Returns the process that is shown as the owner of `slot`.
fn shown_in(process: &Process, slot: SlotId) -> ProcessIdentity {
    let found = process.fs.processes().unwrap().into_iter().find(|(other, _)| *other == slot);
    found.expect("the slot is in use").1
}

fn read_plan(process: &Process, handle: HandleId) -> Result<ReadPlan> {
    process.fs.plan_read(&process.caller(), handle, Position::At(0), 1 << 20)
}

/// Mechanism: path resolution followed a last symbolic link with a slash behind it for every
/// operation.
///
/// Consequence: `rmdir link/` removed the directory behind the link, and `rename("link/", ..)`
/// moved it.
///
/// Fix: operations that create, move or remove a name never follow it.
#[test]
fn removing_a_link_with_a_slash_is_refused_and_keeps_its_target() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (fs, caller) = (&process.fs, process.caller());
    fs.make_directory(&caller, ROOT, b"target", 0o755).unwrap();
    fs.symlink(&caller, b"target", ROOT, b"link").unwrap();
    assert_eq!(fs.remove_directory(&caller, ROOT, b"link/"), Err(Error::NotDirectory));
    assert_eq!(fs.unlink(&caller, ROOT, b"link/"), Err(Error::NotDirectory));
    let renamed = fs.rename(&caller, (ROOT, b"link/"), (ROOT, b"other"), RenameMode::Replace);
    assert_eq!(renamed, Err(Error::NotDirectory));
    assert_eq!(fs.make_directory(&caller, ROOT, b"link/", 0o755), Err(Error::Exists));
    assert!(fs.stat(&caller, ROOT, b"target", false).unwrap().is_directory());
}

/// Mechanism: a removed directory that is still open kept the inode number of its parent. That
/// number was freed and given to another file.
///
/// Consequence: `..` led to an unrelated file or directory.
///
/// Fix: the removed directory remembers the version of its parent, which no later user of the
/// number has.
#[test]
fn parent_of_a_removed_directory_is_gone_when_its_number_is_used_again() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (fs, caller) = (&process.fs, process.caller());
    let outer = fs.make_directory(&caller, ROOT, b"outer", 0o755).unwrap();
    fs.make_directory(&caller, outer, b"inner", 0o755).unwrap();
    let directory = OpenOptions { directory: true, ..READ_ONLY };
    let (_, inner) = open(&process, b"outer/inner", directory);
    fs.remove_directory(&caller, outer, b"inner").unwrap();
    assert_eq!(fs.resolve(&caller, inner, b"..", true), Ok(outer));
    fs.remove_directory(&caller, ROOT, b"outer").unwrap();
    let reused = fs.make_directory(&caller, ROOT, b"stranger", 0o755).unwrap();
    assert_eq!(reused, outer, "the number is used again");
    assert_eq!(fs.resolve(&caller, inner, b"..", true), Err(Error::NotFound));
}

/// Mechanism: an append committed before an earlier one is invisible, and a truncation considered
/// only the visible size.
///
/// Consequence: blocks stayed past the end of the file, and their old bytes came back when it grew.
///
/// Fix: a truncation treats invisible appends as part of the file.
#[test]
fn truncation_cuts_appends_that_wait_for_an_earlier_one() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"log", APPEND);
    let first = begin(&process, handle, 0, &[1; 4096]);
    let mut second = begin(&process, handle, 0, &[2; 4096]);
    assert!(commit(&process, &mut second));
    assert_eq!(process.fs.attributes(inode).unwrap().size, 0, "the first is missing");
    process.truncate(&process.caller(), inode, 0).unwrap();
    process.abort(&process.caller(), &first).unwrap();
    process.fs.check().unwrap();
    process.truncate(&process.caller(), inode, 8192).unwrap();
    assert_eq!(contents(&process, handle), vec![0; 8192]);
}

/// Mechanism: a truncation lowered the end that appends in flight had raised.
///
/// Consequence: the next append was placed over one in flight, and one of the two was lost.
///
/// Fix: an append goes behind the places of all other appends.
#[test]
fn append_after_a_truncation_goes_behind_the_append_in_flight() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"log", APPEND);
    let mut first = begin(&process, handle, 0, &[1; 100]);
    process.truncate(&process.caller(), inode, 0).unwrap();
    let offset = write(&process, handle, 0, &[2; 50]);
    assert_eq!(offset, 100);
    while !commit(&process, &mut first) {
        replan(&process, handle, &mut first);
    }
    assert_eq!(contents(&process, handle), [vec![1; 100], vec![2; 50]].concat());
}

/// Mechanism: a plan that could not be committed gave up its pin, and with it the place of its
/// append.
///
/// Consequence: another process's append was placed there and then overwritten, and appends behind
/// it became visible with a gap.
///
/// Fix: the pin stays, without blocks, until the append is replanned or given up.
#[test]
fn append_that_is_planned_again_keeps_its_place() {
    let world = World::new(64, 64);
    let (first, second, third) =
        (world.process(SUPERUSER), world.process(SUPERUSER), world.process(SUPERUSER));
    let handle = |process: &Process| open(process, b"log", APPEND).0;
    let (a, b, c) = (handle(&first), handle(&second), handle(&third));
    let mut disturbed = begin(&first, a, 0, &[1; 100]);
    let given_up = begin(&second, b, 0, &[2; 10]);
    assert!(!commit(&first, &mut disturbed), "a plan beyond it disturbs it");
    second.abort(&second.caller(), &given_up).unwrap();
    assert_eq!(write(&third, c, 0, &[3; 50]), 100, "the place of the first is taken");
    assert_eq!(contents(&third, c), b"", "nothing is visible behind a gap");
    replan(&first, a, &mut disturbed);
    assert!(commit(&first, &mut disturbed));
    assert_eq!(contents(&third, c), [vec![1; 100], vec![3; 50]].concat());
}

/// Mechanism: as above, but the process dies before it replans.
///
/// Consequence: later appends of others would stay invisible although their writes returned.
///
/// Fix: reaping gives up the place.
#[test]
fn death_before_an_append_is_planned_again_shows_what_is_behind() {
    let world = World::new(64, 64);
    let (first, second) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let (a, _) = open(&first, b"log", APPEND);
    let (b, _) = open(&second, b"log", APPEND);
    let mut disturbed = begin(&first, a, 0, &[1; 100]);
    assert_eq!(write(&second, b, 0, &[2; 50]), 100);
    assert!(!commit(&first, &mut disturbed), "a plan beyond it disturbs it");
    assert_eq!(contents(&second, b), b"");
    second.reap(first.slot).unwrap();
    assert_eq!(contents(&second, b), [vec![0; 100], vec![2; 50]].concat());
}

/// Mechanism: giving up a plan checked only whether its pin is in use. By then the pin belonged to
/// a later write.
///
/// Consequence: that write failed with `EINVAL`.
///
/// Fix: a pin has a ticket that distinguishes its plans.
#[test]
fn giving_up_a_plan_twice_leaves_the_next_write_alone() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, _) = open(&process, b"file", READ_WRITE);
    let first = begin(&process, handle, 0, &[1; 100]);
    process.abort(&process.caller(), &first).unwrap();
    let mut second = begin(&process, handle, 0, &[2; 100]);
    process.abort(&process.caller(), &first).unwrap();
    assert!(commit(&process, &mut second));
    assert_eq!(contents(&process, handle), vec![2; 100]);
}

/// Mechanism: a write that continues the file in a fresh block does not zero the rest of the block,
/// because nothing exists beyond. A truncation to a larger size was not considered.
///
/// Consequence: bytes of deleted files became readable.
///
/// Fix: the commit compares with the size, too.
#[test]
fn file_that_grows_during_a_write_shows_no_old_bytes() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"file", READ_WRITE);
    let mut first = begin(&process, handle, 0, &[1; 50]);
    process.truncate(&process.caller(), inode, 4096).unwrap();
    while !commit(&process, &mut first) {
        replan(&process, handle, &mut first);
    }
    assert_eq!(contents(&process, handle), [vec![1; 50], vec![0; 4046]].concat());
}

/// Mechanism: a write was in flight while a truncation cut within its last block. It was committed
/// in place, although a third write had overwritten its bytes there before the truncation.
///
/// Consequence: bytes that were cut off came back.
///
/// Fix: a write that extends over the cut is planned and transferred again.
#[test]
fn bytes_cut_off_stay_away_when_an_older_write_is_committed() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"file", READ_WRITE);
    write(&process, handle, 0, &[9; 4096]);
    let mut first = begin(&process, handle, 1000, &[1; 1000]);
    write(&process, handle, 0, &[2; 4096]);
    process.truncate(&process.caller(), inode, 1500).unwrap();
    while !commit(&process, &mut first) {
        replan(&process, handle, &mut first);
    }
    assert_eq!(contents(&process, handle)[1500..], [1; 500]);
}

/// Mechanism: the word that links deleted files awaiting reclaim also holds the tail of a file. A
/// write that outlived its file's deletion set the tail.
///
/// Consequence: the list was cut, blocks leaked, and reclaiming failed for good.
///
/// Fix: a deleted file has no tail.
#[test]
fn write_that_outlives_its_file_leaves_the_list_of_deleted_files_intact() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let caller = process.caller();
    let mut writes = Vec::new();
    for name in [b"a", b"b", b"c"] {
        let (handle, _) = open(&process, name, READ_WRITE);
        write(&process, handle, 0, &[1; 100]);
        writes.push(begin(&process, handle, 50, &[2; 100]));
        process.fs.unlink(&caller, ROOT, name).unwrap();
        process.close(handle).unwrap();
    }
    assert_eq!(process.fs.orphans(), 3);
    let mut committed = writes.pop().unwrap();
    assert!(commit(&process, &mut committed));
    for write in &writes {
        process.abort(&caller, write).unwrap();
    }
    process.reclaim().unwrap();
    let report = process.fs.check().unwrap();
    assert_eq!(report.free_blocks, report.capacity_blocks);
}

/// Mechanism: the blocks of a removed file waited for every write in flight on any file, and behind
/// those of other removed files.
///
/// Consequence: of two processes that replace large checkpoints, one got the other's blocks instead
/// of its own, in memory that neither had touched.
///
/// Fix: the blocks wait only for writes to that file.
#[test]
fn blocks_of_a_removed_file_wait_for_writes_to_no_other() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let caller = process.caller();
    let (other, inode) = open(&process, b"other", READ_WRITE);
    write(&process, other, 0, &[1; 100]);
    let mut in_flight = begin(&process, other, 0, &[2; 100]);
    let remove_one = || {
        let (handle, _) = open(&process, b"removed", READ_WRITE);
        // The file has too many extents to be freed at once.
        for piece in 0..10 {
            write(&process, handle, piece * 2 * (32 << 10), &[3]);
        }
        process.close(handle).unwrap();
        process.fs.unlink(&caller, ROOT, b"removed").unwrap();
        process.reclaim().unwrap();
    };
    remove_one();
    assert_eq!(process.fs.orphans(), 0);
    process.truncate(&caller, inode, 0).unwrap();
    remove_one();
    assert_eq!(process.fs.orphans(), 1, "what the write in flight may still write to");
    assert_eq!(process.fs.check().unwrap().orphaned_blocks, 1);
    while !commit(&process, &mut in_flight) {
        replan(&process, other, &mut in_flight);
    }
    process.reclaim().unwrap();
    assert_eq!(process.fs.orphans(), 0);
}

/// Mechanism: an aborted write did not change the version of the data although it had changed
/// bytes.
///
/// Consequence: a checksum computed during the write was accepted, and the drain found the file
/// damaged.
///
/// Fix: an aborted write changes the version.
#[test]
fn checksum_computed_during_an_aborted_write_is_refused() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"file", READ_WRITE);
    write(&process, handle, 0, &[1; 4096]);
    write(&process, handle, 10, &[2; 10]);
    let (version, sealed) = process.stale(inode).unwrap();
    let aborted = begin(&process, handle, 20, &[3; 10]);
    process.abort(&process.caller(), &aborted).unwrap();
    assert_eq!(process.fs.seal(inode, version, &sealed), Ok(false));
    assert_eq!(process.seal(inode), Ok(true));
    process.verify_blocks(inode, handle).unwrap();
}

/// Mechanism: a file whose appends wait for an earlier one looked idle, with its visible size.
///
/// Consequence: its blocks were sealed as if the waiting bytes were zeros.
///
/// Fix: such a file counts as being written.
#[test]
fn file_with_appends_that_wait_is_not_sealed() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"log", APPEND);
    let mut first = begin(&process, handle, 0, &[1; 100]);
    assert_eq!(write(&process, handle, 0, &[2; 50]), 100);
    let last = begin(&process, handle, 0, &[3; 50]);
    assert!(!commit(&process, &mut first), "a plan beyond it disturbs it");
    process.abort(&process.caller(), &last).unwrap();
    assert_eq!(process.seal(inode), Ok(false));
    process.abort(&process.caller(), &first).unwrap();
    assert_eq!(process.seal(inode), Ok(true));
    process.verify_blocks(inode, handle).unwrap();
}

/// Mechanism: freeing the blocks of a deleted file did not tell readers that they moved.
///
/// Consequence: a read overtaken by a close in another thread returned another file's bytes.
///
/// Fix: deleting counts as a move.
#[test]
fn read_that_a_deletion_overtakes_is_not_valid() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, _) = open(&process, b"file", READ_WRITE);
    write(&process, handle, 0, &[1; 4096]);
    let plan = read_plan(&process, handle).unwrap();
    process.fs.unlink(&process.caller(), ROOT, b"file").unwrap();
    assert!(process.fs.read_is_valid(&plan), "it is still open");
    process.close(handle).unwrap();
    let (stranger, _) = open(&process, b"stranger", READ_WRITE);
    write(&process, stranger, 0, &[2; 4096]);
    assert!(!process.fs.read_is_valid(&plan));
}

/// Mechanism: the list of processes was cut to a buffer of 64 entries.
///
/// Consequence: the agent never reaped a dead process in a later slot.
///
/// Fix: the buffer holds every slot.
#[test]
fn more_than_64_processes_are_all_listed() {
    let world = World::new(64, 64);
    let processes: Vec<Process> = (0..100).map(|_| world.process(SUPERUSER)).collect();
    assert_eq!(processes[0].fs.processes().unwrap().len(), 100);
}

/// Mechanism: reaping treated the current process of a slot as the one that had been found dead.
///
/// Consequence: if another process had reaped it and its slot was taken again, a living process
/// lost its handles and writes in flight.
///
/// Fix: the caller names the dead process, and reaping checks under the lock that it still owns the
/// slot.
#[test]
fn slot_that_was_taken_again_is_not_reaped_for_its_dead_owner() {
    let world = World::new(64, 64);
    let (dying, agent) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let dead = shown_in(&agent, dying.slot);
    agent.reap(dying.slot).unwrap();
    assert_eq!(agent.fs.reap(dying.slot, dead, world.clock.tick()), Ok(false), "it is free");
    let process = world.process(SUPERUSER);
    assert_eq!(process.slot.number(), dying.slot.number(), "the slot is used again");
    let (handle, _) = open(&process, b"file", READ_WRITE);
    let mut write_in_flight = begin(&process, handle, 0, &[1; 100]);
    assert_eq!(agent.fs.reap(dying.slot, dead, world.clock.tick()), Ok(false));
    assert!(commit(&process, &mut write_in_flight));
    assert_eq!(contents(&process, handle), [1; 100]);
}

/// Mechanism: as above; a slot whose process is not known yet shows the spawner.
///
/// Consequence: a child lost what it had inherited if it introduced itself while the slots of its
/// dead spawner were examined.
///
/// Fix: as above.
#[test]
fn child_that_introduces_itself_is_not_reaped_for_its_dead_spawner() {
    let world = World::new(64, 64);
    let (spawner, agent) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let (handle, _) = open(&spawner, b"file", READ_WRITE);
    let child = spawner.fs.spawn_begin(spawner.slot).unwrap();
    let dead = shown_in(&agent, child);
    agent.reap(spawner.slot).unwrap();
    agent.fs.spawn_child(child, world.identity()).unwrap();
    assert_eq!(agent.fs.reap(child, dead, world.clock.tick()), Ok(false));
    assert_eq!(contents(&spawner.with_slot(world.microfs(), child), handle), b"");
}

/// Mechanism: a spawner reported its child's pid to whatever process was expected in the slot by
/// then.
///
/// Consequence: if the child had ended and a thread of the same or another process had taken its
/// slot for another child, that child counted as dead and was reaped.
///
/// Fix: the id of a slot distinguishes the uses of its number.
#[test]
fn late_word_of_a_spawner_does_not_reach_another_child() {
    let world = World::new(64, 64);
    let spawner = world.process(SUPERUSER);
    let (fs, ended) = (&spawner.fs, world.identity());
    let child = fs.spawn_begin(spawner.slot).unwrap();
    fs.spawn_child(child, ended).unwrap();
    fs.detach(child, world.clock.tick()).unwrap();
    let next = fs.spawn_begin(spawner.slot).unwrap();
    assert_eq!(next.number(), child.number(), "the slot is used again");
    assert_eq!(fs.spawn_parent(child, ended.pid), Err(Error::Invalid));
    let shown = shown_in(&spawner, spawner.slot).pid;
    assert_eq!(shown_in(&spawner, next).pid, shown, "the child is not known yet");
    assert_eq!(fs.spawn_cancel(child, world.clock.tick()), Err(Error::Invalid));
    fs.spawn_cancel(next, world.clock.tick()).unwrap();
}

/// Mechanism: a child took the slot made for it although the slot had a new owner by then.
///
/// Consequence: after its spawner's death and a reaping, or if a child of its own had been faster,
/// two processes shared a slot, and the end of one closed the files of the other.
///
/// Fix: as above; in addition a child takes only a slot that waits for its process.
#[test]
fn child_does_not_take_up_a_slot_that_is_taken() {
    let world = World::new(64, 64);
    let (spawner, agent) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let child = spawner.fs.spawn_begin(spawner.slot).unwrap();
    agent.reap(child).unwrap();
    let next = spawner.fs.spawn_begin(spawner.slot).unwrap();
    assert_eq!(next.number(), child.number(), "the slot is used again");
    assert_eq!(agent.fs.spawn_child(child, world.identity()), Err(Error::Invalid));
    let first = world.identity();
    agent.fs.spawn_child(next, first).unwrap();
    assert_eq!(agent.fs.spawn_child(next, world.identity()), Err(Error::Invalid));
    assert_eq!(shown_in(&agent, next), first);
}

/// Mechanism: the checksums of two neighbouring blocks share a word. One is stored without the
/// lock; the other was changed under the lock by reading and storing the whole word.
///
/// Consequence: the checksum stored without the lock was lost, and its block counted as damaged.
///
/// Fix: each half of the word is changed alone.
#[test]
fn checksums_of_neighbouring_blocks_do_not_overwrite_each_other() {
    const APPENDS: usize = 100_000;
    const MARK: u32 = 0x5eed_cafe;
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (appended, inode) = open(&process, b"appended", APPEND);
    let (neighbour, _) = open(&process, b"neighbour", READ_WRITE);
    write(&process, appended, 0, &[1; 1]);
    write(&process, neighbour, 0, &[1; 4096]);
    process.fs.store_checksum(0, 1, MARK).unwrap();
    let words = world.memory.words();
    let shared = words.iter().find(|word| word.load(Relaxed) >> 32 == u64::from(MARK));
    let shared = shared.expect("blocks 0 and 1 share a word");
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..APPENDS {
                write(&process, appended, 0, &[1; 1]);
                if process.fs.attributes(inode).unwrap().size == 4096 {
                    process.truncate(&process.caller(), inode, 1).unwrap();
                }
            }
            finished.store(true, Relaxed);
        });
        let other = world.microfs();
        let mut stored = MARK;
        while !finished.load(Relaxed) {
            assert_eq!(shared.load(Relaxed) >> 32, u64::from(stored), "a checksum was lost");
            stored = stored.wrapping_add(1);
            other.store_checksum(0, 1, stored).unwrap();
        }
    });
    process.seal(inode).unwrap();
    process.verify_blocks(inode, appended).unwrap();
}

/// Mechanism: giving up a write restored the cursor of whatever description had its number by then.
///
/// Consequence: after a close in another thread, the cursor of another open file jumped.
///
/// Fix: handles distinguish openings with the same number.
#[test]
fn giving_up_a_write_after_its_close_leaves_other_cursors_alone() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, _) = open(&process, b"file", READ_WRITE);
    let write_in_flight = begin(&process, handle, 0, &[1; 100]);
    process.close(handle).unwrap();
    let (again, _) = open(&process, b"other", READ_WRITE);
    assert_eq!(again.number(), handle.number(), "the number is used again");
    process.fs.seek(again, 100, 0).unwrap();
    process.abort(&process.caller(), &write_in_flight).unwrap();
    assert_eq!(process.fs.handle(again).unwrap().cursor, 100);
}

/// Mechanism: a call replanned, or planned its next part, through whatever description had its
/// number by then.
///
/// Consequence: after a close in another thread, the rest of a write landed in another open file,
/// and the rest of a read came from there.
///
/// Fix: the id of a handle distinguishes the openings of its number.
#[test]
fn rest_of_a_call_after_its_close_leaves_other_files_alone() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, _) = open(&process, b"file", READ_WRITE);
    let mut disturbed = begin(&process, handle, 0, &[1; 10]);
    assert!(commit(&process, &mut begin(&process, handle, 10, &[2; 10])));
    assert!(!commit(&process, &mut disturbed), "it must be planned again");
    process.close(handle).unwrap();
    let (again, _) = open(&process, b"other", READ_WRITE);
    assert_eq!(again.number(), handle.number(), "the number is used again");
    let caller = process.caller();
    assert_eq!(process.replan(&caller, handle, &mut disturbed), Err(Error::BadHandle));
    process.abort(&caller, &disturbed).unwrap();
    for at in [Position::Cursor, Position::At(10), Position::Again(0)] {
        assert_eq!(process.write(&caller, handle, at, &[3; 2000]), Err(Error::BadHandle));
        assert_eq!(process.read(&caller, handle, at, 2000), Err(Error::BadHandle));
    }
    assert_eq!(contents(&process, again), b"");
    process.close(again).unwrap();
    process.fs.check().unwrap();
}

/// Mechanism: an open that only names a file needs no permission, but it emptied the file if that
/// was requested, too.
///
/// Consequence: anybody who could reach a file could empty it (not through the POSIX layer, which
/// drops the option).
///
/// Fix: such an open only names the file.
#[test]
fn opening_a_file_only_to_name_it_changes_nothing() {
    let world = World::new(64, 64);
    let owner = world.process(SUPERUSER);
    let stranger = world.process(Credentials { uid: 1, gid: 1 });
    let (handle, _) = open(&owner, b"file", READ_WRITE);
    write(&owner, handle, 0, &[1; 100]);
    let options = OpenOptions { truncate: true, path_only: true, ..APPEND };
    let (named, _) = open(&stranger, b"file", options);
    assert_eq!(contents(&owner, handle), [1; 100]);
    let info = stranger.fs.handle(named).unwrap();
    assert!(info.path_only && !info.read && !info.write && !info.append);
    let missing = owner.fs.open_file(&owner.caller(), ROOT, b"missing", options, 0o644);
    assert_eq!(missing.map(|opened| opened.created), Err(Error::NotFound));
}

/// Mechanism: emptying an empty file counted as growing it.
///
/// Consequence: a file whose writer had died stayed unclean although it was started anew, and was
/// never drained.
///
/// Fix: size 0 always means emptying.
#[test]
fn emptying_an_empty_file_makes_it_clean() {
    let world = World::new(64, 64);
    let (dying, process) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let (_, inode) = open(&dying, b"file", READ_WRITE);
    process.reap(dying.slot).unwrap();
    assert!(process.fs.attributes(inode).unwrap().unclean);
    process.truncate(&process.caller(), inode, 0).unwrap();
    assert!(!process.fs.attributes(inode).unwrap().unclean);
}

/// Mechanism: a small write is stored under the lock, and undone if its process dies there. Its
/// bytes stayed past the end of a file whose last block counted as zeroed.
///
/// Consequence: they appeared when the file grew.
///
/// Fix: only a file with a tail, which is zeroed before the file grows, is written under the lock.
#[test]
fn death_in_a_small_write_leaves_nothing_to_show_up_later() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"file", READ_WRITE);
    // The write lies behind a hole, so the rest of the block is zeroed.
    write(&process, handle, 100, &[1; 100]);
    let caller = process.caller();
    let dying = AssertUnwindSafe(|| {
        process.fs.write_small(&caller, handle, Position::At(200), 50, |piece| {
            let at = u64::from(piece.block) * 4096 + u64::from(piece.start);
            world.tier.write(at, &[7; 50]).expect("the heap does not fail");
            panic!("the process dies here");
        })
    });
    let _ = std::panic::catch_unwind(dying);
    process.truncate(&process.caller(), inode, 400).unwrap();
    assert_eq!(contents(&process, handle)[200..], [0; 200]);
}

/// Mechanism: bytes that a small write has stored over others stay when its process dies, but its
/// transaction is undone.
///
/// Consequence: a checksum computed before was accepted after it.
///
/// Fix: the version changes permanently before the bytes do.
#[test]
fn checksum_computed_before_a_death_in_a_small_overwrite_is_refused() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, inode) = open(&process, b"file", READ_WRITE);
    write(&process, handle, 0, &[1; 4096]);
    write(&process, handle, 10, &[2; 10]);
    let (version, sealed) = process.stale(inode).unwrap();
    let caller = process.caller();
    let dying = AssertUnwindSafe(|| {
        process.fs.overwrite_small(&caller, handle, 20, 10, |piece| {
            let at = u64::from(piece.block) * 4096 + u64::from(piece.start);
            world.tier.write(at, &[3; 10]).expect("the heap does not fail");
            panic!("the process dies here");
        })
    });
    assert!(std::panic::catch_unwind(dying).is_err(), "the block is written to under the lock");
    assert_eq!(process.fs.seal(inode, version, &sealed), Ok(false));
    assert_eq!(process.seal(inode), Ok(true));
    process.verify_blocks(inode, handle).unwrap();
}

/// A small overwrite leaves three cases to a plan: the first write to a block, which voids its
/// checksum; a write while others are in flight, whose end must not undo that; and a write that
/// does not lie completely over bytes of one block.
#[test]
fn small_overwrites_are_made_only_where_nothing_counts_on_the_old_bytes() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let caller = process.caller();
    let (handle, inode) = open(&process, b"file", READ_WRITE);
    let over = |handle, at, bytes: &[u8]| {
        process.overwrite_small(&caller, handle, Position::At(at), bytes).expect("no error")
    };
    write(&process, handle, 0, &[1; 5000]);
    assert_eq!(over(handle, 10, &[2; 10]), None, "the checksum is valid");
    write(&process, handle, 10, &[2; 10]);
    assert_eq!(over(handle, 15, &[3; 10]), Some(15));
    assert_eq!(over(handle, 4090, &[3; 10]), None, "two blocks");
    assert_eq!(over(handle, 4995, &[3; 10]), None, "past the end");
    let mut whole = begin(&process, handle, 0, &[4; 4096]);
    assert_eq!(over(handle, 15, &[3; 10]), None, "a write of the whole block is in flight");
    assert!(commit(&process, &mut whole));
    write(&process, handle, 10, &[2; 10]);
    let appending = open(&process, b"file", APPEND).0;
    assert_eq!(over(appending, 15, &[3; 10]), None, "it goes to the end");
    let other = open(&process, b"file", READ_WRITE).0;
    assert_eq!(over(other, 15, &[3; 10]), None, "nothing was written through this one");
    assert_eq!(over(handle, 15, &[3; 10]), Some(15));
    assert_eq!(process.seal(inode), Ok(true));
    process.verify_blocks(inode, handle).unwrap();
    let expected = [&[4; 10][..], &[2; 5], &[3; 10], &[4; 4071], &[1; 904]].concat();
    assert_eq!(contents(&process, handle), expected);
    assert_eq!(over(handle, 15, &[3; 10]), None, "the checksum is valid again");
}

/// A commit reports whether the plan must be made again; both are results, not errors.
#[test]
fn write_into_a_hole_that_another_filled_is_planned_again() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, _) = open(&process, b"file", READ_WRITE);
    let mut first = begin(&process, handle, 0, &[1; 10]);
    let second = begin(&process, handle, 10, &[2; 10]);
    let committed = process.fs.commit_write(&process.caller(), &second.plan);
    assert_eq!(committed, Ok(Committed::Done));
    assert!(!commit(&process, &mut first));
    replan(&process, handle, &mut first);
    assert!(commit(&process, &mut first));
    assert_eq!(contents(&process, handle), [[1; 10], [2; 10]].concat());
}

/// Mechanism: a process that has freed nothing took its blocks from a cursor that circled through
/// the whole tier.
///
/// Consequence: programs that run one after another made the kernel allocate and clear the whole
/// tier, at a sixth of the speed of existing memory, while most of the blocks used before were
/// free.
///
/// Fix: the cursor circles in the part used before, as long as enough of it is free.
#[test]
fn processes_that_follow_each_other_use_the_same_part_of_a_tier() {
    const BLOCKS: u32 = 4096;
    let world = World::new(BLOCKS, 64);
    let mut furthest = 0;
    for _ in 0..100 {
        let process = world.process(SUPERUSER);
        let (handle, _) = open(&process, b"file", READ_WRITE);
        write(&process, handle, 0, &[1; 4096]);
        let plan = process.fs.plan_read(&process.caller(), handle, Position::At(0), 1).unwrap();
        let (_, offset) = plan.runs()[0].source.expect("it was written");
        furthest = furthest.max(offset);
        process.fs.unlink(&process.caller(), ROOT, b"file").unwrap();
        process.close(handle).unwrap();
        process.fs.detach(process.slot, world.clock.tick()).unwrap();
    }
    let block_bytes = u64::from(world.microfs().geometry().hugeblock_bytes);
    assert!(furthest / block_bytes < u64::from(BLOCKS) / 4, "block {}", furthest / block_bytes);
}

/// Mechanism: a process that executes another program keeps its slot, and in it the writes that its
/// threads had in progress.
///
/// Consequence: nobody could extend those files while it lived (`EDEADLK`), and their blocks stayed
/// reserved.
///
/// Fix: the next program image gives these writes up.
#[test]
fn writes_of_threads_that_an_exec_ended_are_given_up_by_the_next_image() {
    let world = World::new(64, 64);
    let process = world.process(SUPERUSER);
    let (handle, _) = open(&process, b"file", READ_WRITE);
    let _begun = begin(&process, handle, 0, &[1; 4096]);
    assert_eq!(process.fs.check().unwrap().reserved_blocks, 1);
    process.fs.mark_exec(process.slot, true).unwrap();
    let attached = process.fs.attach(shown_in(&process, process.slot)).unwrap();
    assert!(attached.known);
    assert_eq!(process.fs.check().unwrap().reserved_blocks, 0);
}

/// Mechanism: a disk reuses the inode number of a removed directory, so two processes could have
/// recorded the same number for different working directories.
///
/// Consequence: an executed program took over that of a dead process, and its files went elsewhere,
/// or it got `ENOENT`.
///
/// Fix: the record of the process itself counts first, and a record is more than the number.
#[test]
fn executed_program_finds_the_working_directory_that_its_own_process_recorded() {
    let world = World::new(64, 64);
    let (dead, living) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let (_, elsewhere) = open(&dead, b"elsewhere", READ_WRITE);
    let (_, here) = open(&living, b"here", READ_WRITE);
    dead.fs.set_working_directory(dead.slot, Some((elsewhere, 12))).unwrap();
    living.fs.set_working_directory(living.slot, Some((here, 12))).unwrap();
    assert_eq!(living.fs.working_directory(living.slot, 12), Ok(Some(here)));
    assert_eq!(dead.fs.working_directory(dead.slot, 12), Ok(Some(elsewhere)));
}
