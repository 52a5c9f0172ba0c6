//! Leases: what others see of a file that is written without the lock, and what a recall does to a
//! lease.

use cairn_core::{Error, HandleId, InodeId, Position, ROOT};
use cairn_testing::driver::{Process, WriteInFlight};
use cairn_testing::world::{READ_WRITE, SUPERUSER, World};

const BLOCK: usize = 4096;
const RECORD: usize = 300;

/// A writer that has a lease on its file `a` after two records, and another process.
struct Scene {
    world: World,
    writer: Process,
    other: Process,
    handle: HandleId,
    inode: InodeId,
}

impl Scene {
    fn new() -> Scene {
        let world = World::new(16, 16);
        let (writer, other) = (world.process(SUPERUSER), world.process(SUPERUSER));
        let opened = writer.fs.open_file(&writer.caller(), ROOT, b"a", READ_WRITE, 0o644).unwrap();
        let scene = Scene { world, writer, other, handle: opened.handle, inode: opened.inode };
        assert!(!scene.writes_leased(1), "the first write of a file leads to no lease");
        assert!(!scene.writes_leased(2), "the second one is committed under the lock");
        scene
    }

    fn begin(&self, fill: u8) -> Option<WriteInFlight> {
        let caller = self.writer.caller();
        let bytes = [fill; RECORD];
        let mut write = self.writer.begin_leased(&caller, self.handle, Position::Cursor, &bytes)?;
        self.writer.transfer(&mut write).unwrap();
        Some(write)
    }

    fn finish(&self, write: WriteInFlight) -> u64 {
        self.writer.finish_write(&self.writer.caller(), self.handle, write).unwrap().0
    }

    /// Writes a record. Returns whether it was written under a lease.
    fn writes_leased(&self, fill: u8) -> bool {
        if let Some(write) = self.begin(fill) {
            self.finish(write);
            return true;
        }
        let (caller, bytes) = (self.writer.caller(), [fill; RECORD]);
        self.writer.write(&caller, self.handle, Position::Cursor, &bytes).unwrap();
        false
    }

    fn size(&self) -> u64 {
        self.other.fs.attributes(self.inode).unwrap().size
    }

    /// Returns the records that another process reads, after it has verified their checksums.
    fn records(&self) -> Vec<u8> {
        let caller = self.other.caller();
        let opened = self.other.fs.open_file(&caller, ROOT, b"a", READ_WRITE, 0).unwrap();
        let read = self.other.read(&caller, opened.handle, Position::At(0), 1 << 20).unwrap();
        self.other.verify_blocks(self.inode, opened.handle).unwrap();
        self.other.close(opened.handle).unwrap();
        let records = read.1.chunks(RECORD);
        records.map(|record| if record == [record[0]; RECORD] { record[0] } else { 0xff }).collect()
    }
}

#[test]
fn record_is_written_under_a_lease_then_others_see_it_at_once() {
    let scene = Scene::new();
    assert!(scene.writes_leased(3) && scene.writes_leased(4));
    let now = scene.world.clock.now() as i64;
    let seen = scene.other.fs.stat(&scene.other.caller(), ROOT, b"a", true).unwrap();
    assert_eq!(seen.size, 4 * RECORD as u64);
    assert!(seen.modified.0 <= now && seen.modified.0 >= now - 1, "{seen:?} at {now}");
    assert_eq!(scene.records(), [1, 2, 3, 4]);
    scene.other.fs.check().unwrap();
}

#[test]
fn file_is_leased_then_its_cursor_and_version_are_those_of_what_was_written() {
    let scene = Scene::new();
    let before = scene.other.fs.attributes(scene.inode).unwrap().version;
    while !scene.writes_leased(3) {}
    assert_eq!(scene.other.fs.handle(scene.handle).unwrap().cursor, scene.size());
    assert!(scene.other.fs.attributes(scene.inode).unwrap().version > before);
}

#[test]
fn lease_is_recalled_during_a_write_then_that_is_committed_under_the_lock() {
    let scene = Scene::new();
    let write = scene.begin(3).expect("there is a lease");
    assert_eq!(scene.size(), 2 * RECORD as u64, "it is not visible before it ends");
    assert_eq!(scene.other.fs.usage().unwrap().pins, 1);
    assert_eq!(scene.finish(write), 2 * RECORD as u64);
    assert_eq!(scene.other.fs.usage().unwrap().pins, 0);
    assert_eq!(scene.records(), [1, 2, 3]);
}

#[test]
fn lease_is_recalled_during_a_write_that_fails_then_the_file_is_as_before() {
    let scene = Scene::new();
    for recalled in [false, true] {
        let write = scene.begin(3).expect("there is a lease");
        if recalled {
            assert_eq!(scene.size(), 2 * RECORD as u64);
        }
        scene.writer.abort(&scene.writer.caller(), &write).unwrap();
        assert_eq!(scene.writer.fs.usage().unwrap().pins, 0, "recalled: {recalled}");
    }
    assert_eq!(scene.records(), [1, 2]);
    assert_eq!(scene.writer.fs.handle(scene.handle).unwrap().cursor, 2 * RECORD as u64);
}

#[test]
fn two_write_at_one_cursor_then_neither_takes_the_place_of_the_other() {
    let scene = Scene::new();
    let first = scene.begin(3).expect("there is a lease");
    // Another thread of the process uses the same description.
    assert!(scene.begin(4).is_none(), "the lease is in use");
    let (caller, bytes) = (scene.writer.caller(), [4; RECORD]);
    let begin = || scene.writer.begin_write(&caller, scene.handle, Position::Cursor, &bytes);
    assert_eq!(begin().err(), Some(Error::Busy), "its place is behind the first one's");
    assert_eq!(scene.finish(first), 2 * RECORD as u64);
    let mut second = begin().unwrap();
    scene.writer.transfer(&mut second).unwrap();
    assert_eq!(scene.finish(second), 3 * RECORD as u64);
    assert_eq!(scene.records(), [1, 2, 3, 4]);
}

#[test]
fn holder_dies_then_what_it_published_is_there_and_nothing_else() {
    for dies_writing in [false, true] {
        let scene = Scene::new();
        assert!(scene.writes_leased(3));
        let under_way = dies_writing.then(|| scene.begin(4).expect("there is a lease"));
        scene.other.reap(scene.writer.slot).unwrap();
        assert_eq!(scene.size(), 3 * RECORD as u64, "dies writing: {dies_writing}");
        assert!(scene.other.fs.attributes(scene.inode).unwrap().unclean);
        assert_eq!(scene.records(), [1, 2, 3]);
        assert_eq!(scene.other.fs.check().unwrap().reserved_blocks, 0);
        drop(under_way);
    }
}

#[test]
fn recall_is_undone_then_the_next_one_finds_the_same() {
    for is_under_way in [false, true] {
        let scene = Scene::new();
        assert!(scene.writes_leased(3));
        let under_way = is_under_way.then(|| scene.begin(4).expect("there is a lease"));
        // The transaction fails after it has recalled the lease.
        let caller = scene.other.caller();
        let failed = scene.other.fs.truncate(&caller, scene.inode, u64::MAX);
        assert_eq!(failed.err(), Some(Error::FileTooLarge));
        assert_eq!(scene.size(), 3 * RECORD as u64);
        let expected: &[u8] = match under_way {
            Some(write) => {
                scene.finish(write);
                &[1, 2, 3, 4]
            }
            None => &[1, 2, 3],
        };
        assert_eq!(scene.records(), expected);
    }
}

#[test]
fn file_is_cut_during_a_write_then_that_is_planned_again() {
    let scene = Scene::new();
    let write = scene.begin(3).expect("there is a lease");
    scene.other.truncate(&scene.other.caller(), scene.inode, 0).unwrap();
    assert_eq!(scene.size(), 0);
    assert_eq!(scene.finish(write), 2 * RECORD as u64);
    assert_eq!(scene.records(), [0, 0, 3]);
}

#[test]
fn child_inherits_the_description_then_the_lease_stays_with_its_holder() {
    let scene = Scene::new();
    let fs = &scene.writer.fs;
    let slot = fs.spawn_begin(scene.writer.slot).unwrap();
    fs.spawn_child(slot, scene.world.identity()).unwrap();
    // As after fork(2): the child has everything that the parent had in memory.
    let mut caller = scene.writer.caller();
    caller.slot = slot;
    assert!(fs.begin_leased(&caller, scene.handle, 10).is_none());
    assert!(scene.writes_leased(3));
    let child = scene.writer.with_slot(scene.world.microfs(), slot);
    child.write(&child.caller(), scene.handle, Position::Cursor, &[4; RECORD]).unwrap();
    assert!(!scene.writes_leased(5), "the child recalled the lease");
    assert_eq!(scene.records(), [1, 2, 3, 4, 5]);
}

#[test]
fn others_have_the_file_open_for_writing_then_there_is_no_lease() {
    let scene = Scene::new();
    let caller = scene.other.caller();
    scene.other.fs.open_file(&caller, ROOT, b"a", READ_WRITE, 0).unwrap();
    assert_eq!(scene.size(), 2 * RECORD as u64);
    assert!((3..8).all(|fill| !scene.writes_leased(fill)));
}

#[test]
fn leases_are_recalled_unused_then_they_become_rare() {
    let scene = Scene::new();
    let mut leased = 0;
    for _ in 0..1000 {
        scene.other.truncate(&scene.other.caller(), scene.inode, RECORD as u64).unwrap();
        scene.writer.fs.seek(scene.handle, 0, libc::SEEK_END).unwrap();
        leased += usize::from(scene.writes_leased(2));
        let live = scene.begin(3);
        leased += usize::from(live.is_some());
        live.iter().for_each(|write| scene.writer.abort(&scene.writer.caller(), write).unwrap());
    }
    assert!((5..50).contains(&leased), "{leased} leases");
}

#[test]
fn more_files_are_written_in_turn_than_there_are_leases_then_all_are_whole() {
    let world = World::new(64, 32);
    let (writer, other) = (world.process(SUPERUSER), world.process(SUPERUSER));
    let caller = writer.caller();
    let names: Vec<String> = (0..9).map(|number| format!("f{number}")).collect();
    let open = |name: &String| {
        writer.fs.open_file(&caller, ROOT, name.as_bytes(), READ_WRITE, 0o644).unwrap()
    };
    let files: Vec<_> = names.iter().map(open).collect();
    let mut leased = 0;
    for round in 0..20 {
        for (number, file) in files.iter().enumerate() {
            let bytes = vec![(16 * number + 1) as u8; 100 + round];
            let begun = writer.begin_leased(&caller, file.handle, Position::Cursor, &bytes);
            leased += usize::from(begun.is_some());
            match begun {
                Some(mut write) => {
                    writer.transfer(&mut write).unwrap();
                    writer.finish_write(&caller, file.handle, write).unwrap();
                }
                None => {
                    writer.write(&caller, file.handle, Position::Cursor, &bytes).unwrap();
                }
            }
        }
        other.fs.check().unwrap();
    }
    assert!(leased > 0, "some of them got leases");
    for (number, file) in files.iter().enumerate() {
        let read = other.read(&other.caller(), file.handle, Position::At(0), BLOCK as u64).unwrap();
        let length = (0..20).map(|round| 100 + round).sum();
        assert!(read.1 == vec![(16 * number + 1) as u8; length], "file {number}");
        other.verify_blocks(file.inode, file.handle).unwrap();
    }
}
