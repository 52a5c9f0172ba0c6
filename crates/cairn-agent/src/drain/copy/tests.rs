//! Copies that are changed between writing and publishing, for each way of verification.

use super::*;
use crate::drain::pace::{Clock, Pace};
use crate::test_store::{TestStore, path};
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LARGE: usize = (5 << 20) + 77;

/// A store with some files, and a directory for their copies.
struct World {
    store: TestStore,
    destination: Arc<Destination>,
    marks: Marks,
}

impl Deref for World {
    type Target = TestStore;

    fn deref(&self) -> &TestStore {
        &self.store
    }
}

impl World {
    fn new(files: &[(&str, usize)]) -> World {
        let store = TestStore::new();
        for (name, bytes) in files {
            store.write(name, &content(name, *bytes), 0o644, 1);
        }
        let destination = Destination::open(&store.directory("out"), "0123").expect("opens");
        let destination = Arc::new(destination);
        let marks = Marks::open(&store.scratch);
        World { store, destination, marks }
    }

    fn place(&self, verify: Verify) -> Place<'_> {
        let World { destination, marks, .. } = self;
        Place { destination, marks, verify }
    }

    fn found(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.scratch.join("out").join(name)).ok()
    }

    /// Finishes the copy of a file after `change` was applied to it, and publishes it.
    fn publish_changed(&self, name: &str, verify: Verify, change: impl Fn(&File)) -> Result<Copy> {
        let (tree, path) = (self.volume.tree().expect("lists"), path(name));
        let source = Source { volume: &self.volume, path: &path, node: &tree[&path], before: None };
        let (place, mut buffer) = (self.place(verify), Buffer::default());
        let meter = Meter::default();
        let written = Written::write(place, source, Beginning::Nothing, &mut buffer, &meter)?;
        written.make_durable(&meter)?;
        change(&written.temporary.file);
        let made = written.finish(place, &mut buffer, &meter)?;
        self.destination.publish(&path)?;
        Ok(made.copy)
    }
}

fn content(name: &str, bytes: usize) -> Vec<u8> {
    name.bytes()
        .cycle()
        .enumerate()
        .map(|(at, byte)| byte ^ (at / 4096) as u8)
        .take(bytes)
        .collect()
}

#[test]
fn copy_that_is_changed_before_it_is_read_back_gets_no_name() {
    let world = World::new(&[("small", 5000), ("large", LARGE)]);
    for (name, bytes) in [("small", 5000), ("large", LARGE)] {
        let flip = |file: &File| file.write_all_at(b"?", bytes as u64 / 2).expect("writes");
        let published = world.publish_changed(name, Verify::Read, flip);
        assert!(matches!(published, Err(Error::CopyDiffers { .. })), "{published:?}");
        assert_eq!(world.found(name), None);
        let published = world.publish_changed(name, Verify::Read, |_| ());
        assert_eq!(published.expect("is right").bytes, bytes as u64);
        assert!(world.found(name).is_some_and(|found| found == content(name, bytes)));
    }
}

#[test]
fn file_system_is_taken_at_its_word_about_bytes_and_not_about_the_length() {
    let world = World::new(&[("f", 5000)]);
    let cut = |file: &File| file.set_len(4999).expect("is cut");
    let published = world.publish_changed("f", Verify::Write, cut);
    assert!(matches!(published, Err(Error::LengthDiffers { .. })), "{published:?}");
    let flip = |file: &File| file.write_all_at(b"?", 7).expect("writes");
    let published = world.publish_changed("f", Verify::Write, flip).expect("is taken for right");
    assert_eq!(published.crc32c, checksum::crc32c(0, &content("f", 5000)));
}

#[test]
fn files_that_are_copied_together_succeed_and_fail_each_for_itself() {
    let names: Vec<String> = (0..10).map(|number| format!("f{number}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 100)).collect();
    let world = World::new(&files);
    let tree = world.volume.tree().expect("lists");
    let paths: Vec<FilePath> = names.iter().map(|name| path(name)).collect();
    let (caller, fs) = (world.volume.caller_as_user(), world.volume.fs());
    fs.unlink(&caller, cairn_core::ROOT, b"f3").expect("removes");
    let source = |path| Source { volume: &world.volume, path, node: &tree[path], before: None };
    let sources: Vec<Source<'_>> = paths.iter().map(source).collect();
    let meter = Meter::default();
    for verify in [Verify::Read, Verify::Write] {
        let place = world.place(verify);
        let results = copy_together(place, &sources, &mut Buffer::default(), &meter);
        for (name, result) in names.iter().zip(results) {
            match name.as_str() {
                "f3" => assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}"),
                _ => {
                    assert_eq!(result.expect("is copied").copy.bytes, 100);
                    world.destination.publish(&path(name)).expect("publishes");
                }
            }
            assert_eq!(world.found(name), (name != "f3").then(|| content(name, 100)));
        }
    }
}

#[test]
fn mark_in_the_middle_of_a_block_is_no_place_to_go_on_at() {
    let world = World::new(&[("f", LARGE)]);
    let (tree, path) = (world.volume.tree().expect("lists"), path("f"));
    let source = Source { volume: &world.volume, path: &path, node: &tree[&path], before: None };
    let begun = world.destination.create_temporary(&path).expect("creates");
    begun.file.set_len(LARGE as u64).expect("is long");
    let &Node { inode, version, bytes, .. } = source.node;
    let temporary = begun.inode().expect("has one");
    let mark = Mark { inode, version, bytes, temporary, offset: 4097, crc32c: 0 };
    world.marks.set(&path, mark);
    // The state that a killed agent leaves.
    std::mem::forget(begun);
    let place = world.place(Verify::Read);
    let copied = copy_file(place, source, &mut Buffer::default(), &Meter::default());
    assert_eq!(copied.expect("is copied").copy.bytes, LARGE as u64);
    world.destination.publish(&path).expect("publishes");
    assert!(world.found("f").is_some_and(|found| found == content("f", LARGE)));
}

/// Creates the state that a killed agent left of the copy of `name`, with one byte of the marked
/// part changed since.
fn leave_damaged(world: &World, name: &str) {
    let (tree, path) = (world.volume.tree().expect("lists"), path(name));
    let &Node { inode, version, bytes, .. } = &tree[&path];
    let begun = world.destination.create_temporary(&path).expect("creates");
    let offset = 4 << 20;
    let mut marked = content(name, LARGE)[..offset].to_vec();
    let crc32c = checksum::crc32c(0, &marked);
    marked[5] ^= 1;
    begun.file.write_all_at(&marked, 0).expect("writes");
    let temporary = begun.inode().expect("has one");
    let offset = offset as u64;
    world.marks.set(&path, Mark { inode, version, bytes, temporary, offset, crc32c });
    std::mem::forget(begun);
}

#[test]
fn copy_that_another_agent_began_is_compared_however_the_others_are_verified() {
    let world = World::new(&[("f", LARGE)]);
    let (tree, path) = (world.volume.tree().expect("lists"), path("f"));
    let source = Source { volume: &world.volume, path: &path, node: &tree[&path], before: None };
    for verify in [Verify::Read, Verify::Write] {
        leave_damaged(&world, "f");
        let (place, mut buffer) = (world.place(verify), Buffer::default());
        let copied = copy_file(place, source, &mut buffer, &Meter::default());
        assert_eq!(copied.expect("is copied").copy.bytes, LARGE as u64);
        world.destination.publish(&path).expect("publishes");
        assert!(world.found("f").is_some_and(|found| found == content("f", LARGE)));
    }
}

/// A clock that advances by 1 ms at each reading.
#[derive(Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn nap(&self, _: Duration) {}
}

#[test]
fn time_to_make_a_copy_durable_and_to_read_it_back_counts() {
    let world = World::new(&[("f", LARGE)]);
    let (tree, path) = (world.volume.tree().expect("lists"), path("f"));
    let source = Source { volume: &world.volume, path: &path, node: &tree[&path], before: None };
    let (place, mut buffer) = (world.place(Verify::Read), Buffer::default());
    let mut meter = Meter::default();
    meter.pace = Pace::new(Box::<Ticking>::default());
    let rate = || meter.pace.rates().free.expect("is known");
    let written =
        Written::write(place, source, Beginning::Nothing, &mut buffer, &meter).expect("is written");
    let written_at = rate();
    written.make_durable(&meter).expect("is durable");
    let durable_at = rate();
    written.finish(place, &mut buffer, &meter).expect("is finished");
    assert!(written_at > durable_at && durable_at > rate(), "{written_at} {durable_at}");
}
