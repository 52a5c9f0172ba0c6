//! Turns of the persist directory that an agent begins and does not end, and files of every kind.

use crate::persist::manifest_file;
use crate::store::extended;
use cairn_core::{ExtendedUpdate, OpenOptions, ROOT, RenameMode};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::persist::destination::Destination;
use crate::persist::journal;
use crate::test_store::{TestStore, path};
use cairn_job::file::extended::Extended;
use cairn_job::file::mapping::{Mapping, Rule};
use cairn_job::pass::plan::plan;

const STORE: &str = "0123456789abcdef";

/// A store, and the directory it is drained to.
struct World(TestStore);

impl Deref for World {
    type Target = TestStore;

    fn deref(&self) -> &TestStore {
        &self.0
    }
}

impl World {
    /// Creates a store whose first set of files was drained and then changed in every possible way.
    fn changed(map: &Mapping) -> World {
        let world = World::mapped(map);
        for directory in ["kept", "gone", "gone/deep", "turned", "turned/deep"] {
            world.make_directory(directory);
        }
        for file in ["kept/moved", "rewritten", "touched", "gone/deep/removed", "turned/deep/file"]
        {
            world.write(file, 1, &format!("first {file}"));
        }
        world.symlink("first", "latest");
        world.write("state", 1, "first state");
        world.write("state.old", 1, "older state");
        world.set_extended("kept/moved", "user.a", Some("one"));
        world.set_extended("touched", "user.kept", Some("one"));
        world.set_extended("touched", "user.gone", Some("one"));
        assert!(world.drain(), "everything is drained");

        world.make_directory("new");
        world.write("new/file", 2, "second new/file");
        world.rename("kept/moved", "kept/elsewhere");
        world.write("rewritten", 2, "other rewritten");
        world.link("rewritten", "new/linked");
        world.link("touched", "new/touched");
        world.rename("state", "state.old");
        world.write("state", 2, "second state");
        world.touch("touched", 0o600, 2);
        world.remove("gone/deep/removed");
        world.remove("gone/deep");
        world.remove("gone");
        world.remove("turned/deep/file");
        world.remove("turned/deep");
        world.remove("turned");
        world.write("turned", 2, "a file in place of a directory");
        world.remove("latest");
        world.symlink("second", "latest");
        world.set_extended("kept/elsewhere", "user.a", Some("two"));
        world.set_extended("touched", "user.kept", Some("two"));
        world.set_extended("touched", "user.gone", None);
        world.set_extended("new", "user.d", Some("directory"));
        world.set_extended("new/file", "user.a", Some("one"));
        world
    }

    fn new() -> World {
        World::mapped(&Mapping::default())
    }

    /// Creates a store whose files land where `map` says.
    fn mapped(map: &Mapping) -> World {
        let mut store = TestStore::new();
        store.job.persist = Some(store.directory("out"));
        store.job.map = map.clone();
        World(store)
    }

    fn store(&self) -> PathBuf {
        cairn_device::store::store_path(&self.scratch, "job")
    }

    fn out(&self) -> PathBuf {
        self.scratch.join("out")
    }

    fn write(&self, name: &str, mtime_seconds: i64, text: &str) {
        self.0.write(name, text.as_bytes(), 0o644, mtime_seconds);
    }

    fn make_directory(&self, name: &str) {
        let caller = self.volume.caller_as_user();
        let made = self.volume.fs().make_directory(&caller, ROOT, name.as_bytes(), 0o755);
        made.expect("makes");
    }

    fn symlink(&self, target: &str, name: &str) {
        let caller = self.volume.caller_as_user();
        let fs = self.volume.fs();
        fs.symlink(&caller, target.as_bytes(), ROOT, name.as_bytes()).expect("links");
    }

    fn rename(&self, from: &str, to: &str) {
        let names = ((ROOT, from.as_bytes()), (ROOT, to.as_bytes()));
        let caller = self.volume.caller_as_user();
        let renamed = self.volume.fs().rename(&caller, names.0, names.1, RenameMode::Replace);
        renamed.expect("renames");
    }

    fn link(&self, from: &str, to: &str) {
        let names = ((ROOT, from.as_bytes()), (ROOT, to.as_bytes()));
        let caller = self.volume.caller_as_user();
        self.volume.fs().link(&caller, names.0, names.1, false).expect("links");
    }

    fn set_extended(&self, name: &str, attribute: &str, value: Option<&str>) {
        let (fs, caller) = (self.volume.fs(), self.volume.caller());
        let (inode, attribute) = (InodeId(self.tree()[&path(name)].inode), attribute.as_bytes());
        let update = ExtendedUpdate::default();
        let done = match value {
            Some(value) => fs.set_extended(&caller, inode, attribute, value.as_bytes(), update),
            None => fs.remove_extended(&caller, inode, attribute),
        };
        done.expect("changes");
    }

    fn touch(&self, name: &str, mode: u32, mtime_seconds: i64) {
        let inode = InodeId(self.tree()[&path(name)].inode);
        self.volume.fs().set_mode(&self.volume.caller_as_user(), inode, mode).expect("changes");
        crate::store::write::set_mtime(&self.volume, inode, mtime_seconds * 1_000_000_000)
            .expect("sets");
    }

    fn remove(&self, name: &str) {
        let caller = self.volume.caller_as_user();
        let removed = match self.tree()[&path(name)].kind {
            Kind::Directory => self.volume.fs().remove_directory(&caller, ROOT, name.as_bytes()),
            _ => self.volume.fs().unlink(&caller, ROOT, name.as_bytes()),
        };
        removed.expect("removes");
    }

    fn remove_everything(&self) {
        let names: Vec<String> = self.tree().keys().map(ToString::to_string).collect();
        names.iter().rev().for_each(|name| self.remove(name));
    }

    fn tree(&self) -> Tree {
        self.volume.tree().expect("lists")
    }

    /// Runs one pass with a new agent. Returns whether it reports that everything is drained.
    fn drain(&self) -> bool {
        let mut drainer = Drainer::new(&self.store(), self.job.clone());
        let volumes = [Arc::clone(&self.volume)];
        let outcome = drainer.pass(&volumes, true, Reason::Routine, &Meter::default());
        outcome.expect("drains").complete
    }

    fn ledger(&self) -> Ledger {
        Ledger::open(&self.out(), &self.job).expect("opens")
    }

    /// Begins a pass with an agent that dies after some steps of its turn. Returns whether it did.
    fn die_after(&self, steps: usize) -> bool {
        let mut drainer = Drainer::new(&self.store(), self.job.clone());
        drainer.dies_after = Some(steps);
        let volumes = [Arc::clone(&self.volume)];
        drainer.pass(&volumes, true, Reason::Routine, &Meter::default()).is_err()
    }

    fn destination(&self) -> Destination {
        let mut destination = Destination::open(&self.out(), STORE).expect("opens");
        destination.map(self.job.map.clone());
        destination
    }

    /// Returns what a user finds in the persist directory, by its path in the store, without the
    /// manifest and the places of mapped directories, which stay.
    fn copies(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        collect(&self.out(), "", &mut found);
        found.retain(|name, _| !name.starts_with("cairn-manifest") && !name.starts_with(".cairn-"));
        let rules = self.job.map.rules();
        let holds_a_place =
            |name: &FilePath| rules.iter().any(|rule| rule.to.strip_prefix(name).is_some());
        let mut copies = BTreeMap::new();
        for (name, text) in found {
            let place = path(&name);
            let inner = |rule: &Rule| {
                Some(rule.from.append(&place.strip_prefix(&rule.to)?))
                    .map(|inner| inner.to_string())
            };
            if !holds_a_place(&place) {
                copies.insert(rules.iter().find_map(inner).unwrap_or(name), text);
            }
        }
        copies
    }

    /// Returns what `copies` should find.
    fn expected(&self) -> BTreeMap<String, String> {
        let expected = [
            ("kept", "directory 755"),
            ("kept/elsewhere", "1 644 first kept/moved with user.a=two"),
            ("latest", "-> second"),
            ("new", "directory 755 with user.d=directory"),
            ("new/file", "2 644 second new/file with user.a=one"),
            ("new/linked", "2 644 other rewritten"),
            ("new/touched", "2 600 first touched with user.kept=two"),
            ("rewritten", "2 644 other rewritten"),
            ("state", "2 644 second state"),
            ("state.old", "1 644 first state"),
            ("touched", "2 600 first touched with user.kept=two"),
            ("turned", "2 644 a file in place of a directory"),
        ];
        let shown = |text: &str| match takes_attributes() {
            true => text.to_string(),
            false => text.split(" with ").next().unwrap_or_default().to_string(),
        };
        let stays = |name: &&str| !self.job.map.is_mapped(&path(name));
        let expected = expected.iter().filter(|(name, _)| stays(name));
        expected.map(|(name, text)| (name.to_string(), shown(text))).collect()
    }

    /// Returns the inodes in the persist directory, by name and content.
    fn inodes(&self) -> BTreeMap<(String, String), u64> {
        let inode = |name: &str| {
            let metadata = fs::symlink_metadata(self.destination().full_path(&path(name)));
            metadata.expect("is there").ino()
        };
        let copies = self.copies().into_iter();
        copies
            .map(|(name, text)| {
                let inode = inode(&name);
                ((name, text), inode)
            })
            .collect()
    }
}

/// Whether the file system of the scratch directories accepts extended attributes.
fn takes_attributes() -> bool {
    // Several tests ask at once.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("cairn-attributes-{}-{count}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = fs::File::create(&path).expect("a scratch file");
    fs::remove_file(&path).expect("removes");
    crate::store::extended::give(&extended(&[(b"user.a", b"1")]), &file)
}

fn extended(attributes: &[(&[u8], &[u8])]) -> Extended {
    attributes.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// Formats extended attributes as `copies` shows them.
fn attributes_shown(path: &Path) -> String {
    let file = fs::File::open(path).expect("opens");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let found = extended::read(&file);
    let each = found.iter().map(|(name, value)| format!(" with {}={}", text(name), text(value)));
    each.collect()
}

fn collect(directory: &Path, prefix: &str, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).expect("lists").flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let metadata = entry.metadata().expect("is there");
        let mode = metadata.mode() & 0o7777;
        let text = if metadata.is_dir() {
            collect(&entry.path(), &format!("{name}/"), into);
            format!("directory {mode:o}{}", attributes_shown(&entry.path()))
        } else if metadata.is_symlink() {
            format!("-> {}", fs::read_link(entry.path()).expect("reads").display())
        } else {
            let text = fs::read_to_string(entry.path()).expect("reads");
            let attributes = attributes_shown(&entry.path());
            format!("{} {mode:o} {text}{attributes}", metadata.mtime())
        };
        into.insert(name, text);
    }
}

/// Returns the default mapping, and one with some directories elsewhere.
fn mappings() -> [Mapping; 2] {
    let rule = |(from, to): (&str, &str)| Rule { from: path(from), to: path(to) };
    let rules = [("kept", "far/kept"), ("new", "far/deep/new"), ("gone", "went")].map(rule);
    [Mapping::default(), Mapping::new(rules.to_vec()).expect("is fine")]
}

/// Calls `judge` with a world for each point of a turn at which an agent may die.
fn after_each_death(judge: impl Fn(&World, &str)) {
    for map in mappings() {
        for count in 0.. {
            let world = World::changed(&map);
            if !world.die_after(count) {
                assert!(count >= 9, "each kind of step is there: {count}");
                break;
            }
            judge(&world, &format!("after {} steps, {map:?}", count + 1));
        }
    }
}

#[test]
fn turn_that_an_agent_began_is_finished_and_its_copies_are_not_made_again() {
    after_each_death(|world, when| {
        let before = world.inodes();
        drop(world.ledger());
        let names: Vec<String> = world.copies().into_keys().collect();
        assert_eq!(names, world.expected().into_keys().collect::<Vec<_>>(), "{when}");
        assert!(world.drain(), "{when}");
        assert_eq!(world.copies(), world.expected(), "{when}");
        let after = world.inodes();
        for (file, inode) in &before {
            let same = after.get(file).is_none_or(|now| now == inode);
            assert!(same, "{file:?} was made again {when}");
        }
    });
}

/// Mechanism: the manifest did not say that the turn of a journal is over. Consequence: an agent
/// that died before it removed the journal had the turn carried out again, on its results: a copy
/// got the entry of another one, and a file was removed. Fix: turns are numbered.
#[test]
fn journal_that_outlives_its_turn_changes_nothing() {
    for map in mappings() {
        let world = World::changed(&map);
        assert!(world.die_after(0));
        let journal = world.out().join(format!(".cairn-{STORE}"));
        let text = fs::read(&journal).expect("reads");
        let files = world.ledger().manifest().files.clone();
        let before = (world.copies(), world.inodes());
        assert!(!journal.exists(), "the turn is over");
        fs::write(&journal, text).expect("writes");
        let mut job = world.job.clone();
        job.store = "another".to_string();
        drop(Ledger::open(&world.out(), &job).expect("opens"));
        assert_eq!((world.copies(), world.inodes()), before, "{map:?}");
        let after = manifest_file::load(&mut world.destination(), &job.job).expect("loads");
        let contents = |files: &BTreeMap<FilePath, Entry>| -> Vec<_> {
            files.iter().map(|(path, entry)| (path.clone(), entry.bytes, entry.crc32c)).collect()
        };
        assert_eq!(contents(&after.expect("is there").files), contents(&files), "{map:?}");
    }
}

/// Whoever opens the directory next finishes the turn, also a later store of the job.
#[test]
fn next_store_of_the_job_finishes_the_turn_and_knows_what_is_there() {
    after_each_death(|world, when| {
        let mut job = world.job.clone();
        job.store = "another".to_string();
        let ledger = Ledger::open(&world.out(), &job).expect("opens");
        let names: Vec<String> = world.copies().into_keys().collect();
        assert_eq!(names, world.expected().into_keys().collect::<Vec<_>>(), "{when}");
        for name in names {
            assert!(ledger.is_ours(&path(&name)).expect("looks"), "{name} {when}");
        }
        let left = |name: String| world.out().join(name).exists();
        assert!(!left(format!(".cairn-{STORE}")) && !left(format!(".cairn-{STORE}.new")), "{when}");
    });
}

/// Mechanism: the name of a log was made of the turn and of the store that had opened the manifest.
/// Consequence: a later store of the job took the log of the one before for a leftover, and removed
/// it while the manifest still went on in it. Fix: the manifest says what its log is called.
#[test]
fn log_of_an_earlier_store_stays_until_the_manifest_is_written_without_it() {
    let world = World::changed(&Mapping::default());
    let log = || manifest_file::load(&mut world.destination(), &world.job.job).expect("loads");
    let before = log().expect("is there");
    assert!(before.log.is_some(), "there are enough entries");
    let mut job = world.job.clone();
    job.store = "another".to_string();
    let ledger = Ledger::open(&world.out(), &job).expect("opens");
    ledger.sweep(&[]).expect("sweeps");
    assert_eq!(log(), Some(before));
}

/// Mechanism: the agent went on in a log that had no name any more. Consequence: a user who tidied
/// up had a manifest that cannot be read, or none, once the node was lost. Fix: the agent looks
/// whether both are there, and writes the manifest whole if they are not.
#[test]
fn manifest_or_log_that_somebody_removes_is_there_again_after_the_next_pass() {
    let ours = |world: &World| -> Vec<PathBuf> {
        let entries = fs::read_dir(world.out()).expect("lists").flatten();
        let names = entries.map(|entry| entry.path());
        let is_ours = |path: &PathBuf| path.to_string_lossy().contains("cairn-manifest.job.");
        let mut names: Vec<PathBuf> = names.filter(is_ours).collect();
        names.sort();
        names
    };
    for removed in [&[0][..], &[1], &[0, 1]] {
        let world = World::changed(&Mapping::default());
        let mut drainer = Drainer::new(&world.store(), world.job.clone());
        let volumes = [Arc::clone(&world.volume)];
        let mut pass = || drainer.pass(&volumes, true, Reason::Routine, &Meter::default());
        pass().expect("drains");
        let names = ours(&world);
        assert_eq!(names.len(), 2, "manifest and log: {names:?}");
        removed.iter().for_each(|at| fs::remove_file(&names[*at]).expect("removes"));
        world.write("more", 1, "more");
        pass().expect("drains");
        let there = manifest_file::load(&mut world.destination(), &world.job.job);
        let there = there.expect("is whole").expect("is there");
        assert!(there.has_copy(&path("more")) && there.has_copy(&path("state")), "{removed:?}");
        drainer.fold_manifest().expect("is written");
        assert_eq!(ours(&world), names[1..], "the agent that ends leaves one file");
        let folded = manifest_file::load(&mut world.destination(), &world.job.job);
        assert_eq!(folded.expect("loads").expect("is there").files, there.files);
    }
}

#[test]
fn what_an_agent_that_died_has_placed_goes_when_the_program_removes_it() {
    after_each_death(|world, when| {
        world.remove_everything();
        assert!(world.drain(), "{when}");
        assert_eq!(world.copies(), BTreeMap::new(), "{when}");
    });
}

/// A journal without its end announced a turn that did not begin.
#[test]
fn turn_whose_journal_was_cut_off_did_not_begin() {
    let world = World::changed(&Mapping::default());
    let before = (world.copies(), world.inodes());
    let twin = World::changed(&Mapping::default());
    assert!(twin.die_after(0));
    let journal = format!(".cairn-{STORE}");
    let whole = fs::read(twin.out().join(&journal)).expect("reads");
    for length in (0..whole.len()).step_by(7) {
        fs::write(world.out().join(&journal), &whole[..length]).expect("writes");
        assert!(journal::read(&world.destination(), 0).expect("reads").is_empty(), "{length}");
        drop(world.ledger());
        assert_eq!((world.copies(), world.inodes()), before, "{length} bytes");
    }
    fs::write(world.out().join(&journal), &whole).expect("writes");
    assert!(!journal::read(&world.destination(), 0).expect("reads").is_empty());
}

#[test]
fn turn_that_cannot_be_announced_does_not_begin() {
    let world = World::changed(&Mapping::default());
    let before = (world.copies(), world.inodes());
    let obstacle = world.out().join(format!(".cairn-{STORE}"));
    fs::create_dir(&obstacle).expect("makes");
    let mut drainer = Drainer::new(&world.store(), world.job.clone());
    let volumes = [Arc::clone(&world.volume)];
    assert!(drainer.pass(&volumes, true, Reason::Routine, &Meter::default()).is_err());
    fs::remove_dir(obstacle).expect("removes");
    assert_eq!((world.copies(), world.inodes()), before);
}

#[test]
fn names_that_come_back_after_an_agent_died_are_not_taken_for_drained() {
    let world = World::new();
    world.write("file", 1, "text");
    world.link("file", "second");
    assert!(world.drain(), "everything is drained");
    world.remove("second");
    world.rename("file", "away");
    assert!(world.die_after(0));
    world.rename("away", "file");
    world.link("file", "second");
    assert!(world.drain(), "everything is drained again");
    assert_eq!(world.copies().into_keys().collect::<Vec<_>>(), ["file", "second"]);
}

#[test]
fn attributes_that_a_copy_got_from_an_agent_that_died_are_seen() {
    for steps in 0..2 {
        let world = World::new();
        world.write("file", 1, "text");
        world.link("file", "second");
        assert!(world.drain(), "everything is drained");
        world.touch("file", 0o755, 1);
        world.die_after(steps);
        world.touch("file", 0o644, 1);
        assert!(world.drain(), "everything is drained again");
        for name in ["file", "second"] {
            let found = world.destination().look(&path(name)).expect("looks").expect("is there");
            assert_eq!(found.mode, 0o644, "{name} after {steps}");
        }
    }
}

/// Mechanism: a new agent had not opened the manifest when it was asked to evict, so it did not
/// record there that the copy stays. Consequence: its first pass removed the copy, and the file was
/// nowhere. Fix: evicting opens the manifest.
#[test]
fn file_evicted_before_the_first_pass_keeps_its_copy() {
    let world = World::new();
    world.write("file", 1, "text");
    assert!(world.drain(), "everything is drained");
    let volumes = [Arc::clone(&world.volume)];
    for force in [false, true] {
        let mut drainer = Drainer::new(&world.store(), world.job.clone());
        let evicted = drainer.evict(&volumes, &[path("file")], force, &Meter::default());
        evicted.expect("is drained");
        assert!(world.tree().is_empty() && world.drain());
        assert_eq!(world.copies().into_keys().collect::<Vec<_>>(), ["file"]);
        world.write("file", 1, "text");
        assert!(world.drain(), "everything is drained again");
    }
}

#[test]
fn attributes_that_the_directory_does_not_take_are_counted_and_keep_nothing_from_being_drained() {
    let world = World::new();
    world.write("file", 1, "text");
    // More than fits on a file system that keeps them in one block; others accept them.
    let names: Vec<String> = (0..300).map(|number| format!("user.{number}")).collect();
    names.iter().for_each(|name| world.set_extended("file", name, Some("")));
    let all: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b""[..])).collect();
    let probe = fs::File::create(world.scratch.join("probe")).expect("creates");
    let takes = extended::give(&extended(&all), &probe);
    let mut drainer = Drainer::new(&world.store(), world.job.clone());
    let volumes = [Arc::clone(&world.volume)];
    for _ in 0..2 {
        let outcome = drainer.pass(&volumes, true, Reason::Routine, &Meter::default());
        let outcome = outcome.expect("drains");
        assert!(outcome.complete);
        assert_eq!(outcome.without_attributes, u64::from(!takes));
    }
    assert!(world.ledger().entry(&path("file")).is_some_and(|entry| entry.extended.is_some()));
    let planned =
        plan(&world.tree(), world.ledger().manifest(), &FilePath::root(), &HashSet::new());
    assert!(planned.is_empty());
}

/// Opens a file for writing, as a program that then goes on.
fn begin_writing(world: &World, name: &str, bytes: &[u8]) -> cairn_core::HandleId {
    let options = OpenOptions { write: true, truncate: true, ..OpenOptions::default() };
    let (fs, caller) = (world.volume.fs(), world.volume.caller_as_user());
    let opened = fs.open_file(&caller, ROOT, name.as_bytes(), options, 0).expect("opens");
    world.overwrite(name, 0, bytes);
    opened.handle
}

/// Mechanism: a file that is being rewritten replaced its last whole version outside. Consequence:
/// after the loss of the node, no whole version existed. Fix: that one stays beside it until a
/// whole one has the name again.
#[test]
fn whole_version_outlives_one_that_is_being_written() {
    for steps in (0..8).map(Some).chain([None]) {
        let world = World::new();
        world.make_directory("d");
        world.write("d/last", 1, "a whole checkpoint");
        world.write("log", 1, "line\n");
        assert!(world.drain(), "everything is drained");
        let last = begin_writing(&world, "d/last", b"half");
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let (fs, caller) = (world.volume.fs(), world.volume.caller_as_user());
        let log = fs.open_file(&caller, ROOT, b"log", options, 0).expect("opens").handle;
        world.overwrite("log", 5, b"another\n");
        let died = steps.is_some_and(|steps| world.die_after(steps));
        assert!(!died || !world.ledger().manifest().whole.is_empty(), "{steps:?}");
        assert!(world.drain());
        let text = |name: &str| fs::read_to_string(world.out().join(name)).unwrap_or_default();
        assert_eq!((text("d/last"), text("log")), ("half".into(), "line\nanother\n".into()));
        assert_eq!(text("cairn-whole.job/d/last"), "a whole checkpoint", "{steps:?}");
        assert!(!world.out().join("cairn-whole.job/log").exists(), "it was only continued");
        let manifest = world.ledger().manifest().clone();
        assert!(manifest.files[&path("d/last")].unclosed && manifest.files[&path("log")].unclosed);
        assert_eq!(manifest.whole.keys().collect::<Vec<_>>(), [&path("d/last")]);
        // A second cut of the torn file leaves the whole one where it is.
        world.overwrite("d/last", 4, b" of it");
        assert!(world.drain());
        assert_eq!(text("cairn-whole.job/d/last"), "a whole checkpoint");
        fs.release(world.volume.slot(), last, now()).expect("closes");
        fs.release(world.volume.slot(), log, now()).expect("closes");
        assert!(world.drain());
        assert_eq!(text("d/last"), "half of it");
        assert!(!world.out().join("cairn-whole.job").exists());
        assert!(world.ledger().manifest().whole.is_empty());
    }
}

/// Mechanism: errors of the steps of a turn that the next store finished were only reported.
/// Consequence: its journal and its verified copies were removed, and a mixture of two cuts stayed.
/// Fix: then the directory cannot be opened, and the next try goes on.
#[test]
fn turn_of_a_lost_store_that_cannot_be_finished_stays_for_the_next_try() {
    let world = World::new();
    world.write("last", 1, "a whole checkpoint");
    world.write("other", 1, "first");
    assert!(world.drain(), "everything is drained");
    let handle = begin_writing(&world, "last", b"half");
    world.write("other", 2, "second");
    assert!(world.die_after(0));
    let obstacle = world.out().join("cairn-whole.job");
    fs::write(&obstacle, "in the way").expect("writes");
    let mut job = world.job.clone();
    job.store = "another".to_string();
    for _ in 0..2 {
        let error = Ledger::open(&world.out(), &job).map(drop).expect_err("cannot be finished");
        assert!(error.to_string().contains("cairn-whole.job"), "{error}");
        assert!(world.out().join(format!(".cairn-{STORE}")).exists());
    }
    fs::remove_file(obstacle).expect("removes");
    let ledger = Ledger::open(&world.out(), &job).expect("opens");
    let text = |name: &str| fs::read_to_string(world.out().join(name)).unwrap_or_default();
    assert_eq!((text("last"), text("other")), ("half".into(), "second".into()));
    assert_eq!(text("cairn-whole.job/last"), "a whole checkpoint");
    assert_eq!(ledger.manifest().whole.len(), 1);
    world.volume.fs().release(world.volume.slot(), handle, now()).expect("closes");
}

/// Mechanism: a rename of a copy that somebody had taken away was left out. Consequence: the pass
/// was complete, and the file was nowhere outside. Fix: it fails, and the next pass makes a copy.
#[test]
fn renamed_file_whose_copy_was_taken_away_is_copied_anew() {
    let world = World::new();
    world.write("ckpt.1", 1, "first");
    world.write("gone", 1, "in time");
    assert!(world.drain(), "everything is drained");
    fs::remove_file(world.out().join("ckpt.1")).expect("removes");
    world.rename("ckpt.1", "ckpt.2");
    world.remove("gone");
    assert!(!world.drain(), "it is not complete");
    assert!(world.out().join("gone").exists(), "what lay outside stays");
    assert!(world.drain(), "everything is drained");
    let text = |name: &str| fs::read_to_string(world.out().join(name)).unwrap_or_default();
    assert_eq!((text("ckpt.2"), world.out().join("gone").exists()), ("first".into(), false));
}

/// Mechanism: the copy of an unfinished file, renamed over a whole one, replaced that. Fix: the
/// whole one is kept, as if the unfinished file had been written there.
#[test]
fn whole_version_outlives_an_unfinished_file_that_is_renamed_over_it() {
    let world = World::new();
    world.write("last", 1, "a whole checkpoint");
    world.write("new", 1, "first");
    assert!(world.drain(), "everything is drained");
    let handle = begin_writing(&world, "new", b"half");
    assert!(world.drain());
    world.rename("new", "last");
    for steps in [Some(0), Some(1), None] {
        let died = steps.is_some_and(|steps| world.die_after(steps));
        assert!(died || world.drain());
    }
    let text = |name: &str| fs::read_to_string(world.out().join(name)).unwrap_or_default();
    assert_eq!(text("last"), "half");
    assert_eq!(text("cairn-whole.job/last"), "a whole checkpoint");
    world.volume.fs().release(world.volume.slot(), handle, now()).expect("closes");
    world.remove("last");
    assert!(world.drain() && !world.out().join("cairn-whole.job").exists(), "it is not needed");
}

/// Mechanism: two stores of one job drained to one directory, each by a manifest in its memory.
/// Consequence: the older one placed its files over those of the newer. Fix: before each turn it
/// looks whose manifest is there.
#[test]
fn store_that_another_one_of_the_job_has_replaced_changes_nothing_more() {
    let world = World::new();
    world.write("state", 1, "first");
    let mut drainer = Drainer::new(&world.store(), world.job.clone());
    let volumes = [Arc::clone(&world.volume)];
    drainer.pass(&volumes, true, Reason::Routine, &Meter::default()).expect("drains");
    let mut job = world.job.clone();
    job.store = "another".to_string();
    let mut ledger = Ledger::open(&world.out(), &job).expect("opens");
    ledger.set_pending(Some("newer".to_string()));
    ledger.commit().expect("commits");
    // Also where nothing is to be copied: a manifest is all that a pass could write.
    let text = || fs::read(world.out().join("cairn-manifest.job.json")).expect("reads");
    let newer = text();
    let mut older = drainer.ledger.take().expect("is open");
    older.set_pending(Some("older".to_string()));
    let error = older.commit().expect_err("it is not ours any more");
    assert!(error.to_string().contains("another run of the job"), "{error}");
    assert_eq!(text(), newer);
    drainer.ledger = Some(older);
    world.write("state", 2, "second");
    let pass = drainer.pass(&volumes, true, Reason::Routine, &Meter::default());
    let error = pass.map(drop).expect_err("it is not ours any more");
    assert!(error.to_string().contains("another run of the job"), "{error}");
    assert_eq!(fs::read_to_string(world.out().join("state")).expect("reads"), "first");
}

/// Mechanism: when a copy could not be renamed, the file that takes its old name was copied there
/// all the same. Consequence: the data of an absent file were lost, because that copy was the only
/// one. Fix: the file that takes the name waits.
#[test]
fn copy_that_cannot_be_renamed_keeps_its_place() {
    let mut world = World::new();
    world.0.job.shared = true;
    world.make_directory("old");
    world.write("ckpt", 1, "first");
    world.write("ckpt.1", 1, "other");
    assert!(world.drain(), "everything is drained");
    world.rename("ckpt", "old/ckpt");
    world.rename("ckpt.1", "ckpt");
    world.write("ckpt.1", 2, "third");
    // In a shared directory, a file that is not ours is not replaced.
    fs::create_dir_all(world.out().join("old/ckpt/foreign")).expect("makes");
    let content = |name: &str| fs::read_to_string(world.out().join(name)).expect("reads");
    assert!(!world.drain());
    assert_eq!((content("ckpt"), content("ckpt.1")), ("first".into(), "other".into()));
    fs::remove_dir_all(world.out().join("old/ckpt")).expect("removes");
    assert!(world.drain());
    let all = ["old/ckpt", "ckpt", "ckpt.1"].map(content);
    assert_eq!(all, ["first", "other", "third"]);
}
