use cairn_core::{OpenOptions, ROOT};
use cairn_platform::checksum;
use std::cell::Cell;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::Barrier;

use crate::bring::path_of;

use super::*;
use crate::bring::source::CHUNK_BYTES;
use crate::persist::ledger::Ledger;
use crate::store::inputs::{Content, Inputs, Made, SourceState, Staged};
use crate::store::write::AbsentFile;
use crate::store::write::Original;
use crate::test_store::{TestStore, path};
use cairn_job::file::extended::Extended;
use cairn_job::outside::manifest::Copy;

/// Returns a store with absent files of these names, each with its name as content, and an agent
/// without threads.
fn store(names: &[&str]) -> (TestStore, Shared) {
    let files: Vec<_> = names.iter().map(|name| (*name, name.as_bytes())).collect();
    store_of(&files)
}

/// Returns a store with absent files of these names and contents, and an agent without threads.
fn store_of(files: &[(&str, &[u8])]) -> (TestStore, Shared) {
    let mut store = TestStore::new();
    store.job.persist = Some(store.directory("out"));
    store.job.save(&store.path).expect("saves");
    for (name, content) in files {
        let (bytes, crc32c) = (content.len() as u64, checksum::crc32c(0, content));
        let copy = Original { bytes, crc32c, mode: 0o644, mtime_ns: 7 };
        AbsentFile::create(&store.volume, &path(name), &copy, &Extended::default())
            .expect("creates");
        fs::write(store.directory("out").join(name), content).expect("writes");
    }
    let shared = Shared::new(&store.path, &store.job).expect("opens");
    shared.refresh_volumes().expect("opens");
    (store, shared)
}

fn bringer<'a>(store: &TestStore, shared: &'a Shared, volumes: &'a [Arc<Volume>]) -> Stager<'a> {
    let source = Source::open(&store.path, &store.job).expect("opens");
    Stager::new(shared, volumes, source)
}

fn inode(store: &TestStore, name: &str) -> InodeId {
    store.volume.attributes(&path(name)).expect("it is there").inode
}

/// Takes a file out of the queue.
fn item_of(bringer: &Stager<'_>, store: &TestStore, name: &str) -> Item {
    let key = Key { volume: 0, inode: inode(store, name) };
    let mut queue = bringer.queue();
    assert!(queue.want(key));
    queue.take_wanted().expect("it is there")
}

/// Mechanism: after all files were staged in, the agent looked for waiters ten times a second until
/// its end.
#[test]
fn nothing_is_looked_for_once_all_is_brought() {
    let (store, shared) = store(&["a", "b"]);
    assert!(!bring_all(&shared, &shared.volumes().0, true).expect("brings"));
    assert_eq!(store.volume.fs().absence(inode(&store, "a")), Ok(None));
    let told = shared.status().bringing.expect("files were brought");
    assert_eq!((told.files, told.brought_files, told.brought_bytes), (0, 2, 2));
    assert_eq!((told.bytes_per_second, told.failed), (0, Vec::new()));
}

/// Mechanism: a failure was forgotten only when the file was staged in after all.
#[test]
fn failure_is_forgotten_once_the_file_is_not_absent() {
    let (store, shared) = store(&["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        assert_eq!(store.volume.fs().fail_absent(inode(&store, name), true), Ok(true));
    }
    assert!(bring_all(&shared, &shared.volumes().0, true).expect("brings"), "all are absent still");
    let failed = || {
        let failed = shared.status().bringing.map_or(Vec::new(), |bringing| bringing.failed);
        failed.iter().map(|failed| failed.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(failed(), ["a", "b", "c"]);
    let (fs, caller) = (store.volume.fs(), store.volume.caller());
    let options = OpenOptions { write: true, truncate: true, ..OpenOptions::NONE };
    fs.open_file(&caller, ROOT, b"b", options, 0).expect("that needs no data");
    assert_eq!(failed(), ["a", "c"]);
    fs.unlink(&caller, ROOT, b"a").expect("removes");
    assert_eq!(failed(), ["c"]);
}

/// Fills a store with one file.
fn fill(store: &TestStore) {
    fill_but(store, 0);
}

/// Fills a store with one file, except for `left_bytes`.
fn fill_but(store: &TestStore, left_bytes: u64) {
    let usage = store.volume.fs().usage().expect("reads");
    let free_blocks = usage.total_blocks[0] - usage.used_blocks[0];
    let free_bytes = free_blocks * usage.hugeblock_bytes;
    store.write("big", &vec![1; (free_bytes - left_bytes) as usize], 0o644, 1);
}

/// Time limit of a wait for room, far beyond the duration of a test.
const PATIENCE_MS: u32 = 300_000;

/// Stages in "a" into a full store whose agent offers to make room. Calls `meanwhile` while the
/// stager waits for room. Returns the verdict.
fn bring_into_full(meanwhile: impl FnOnce(&TestStore, &Stager<'_>)) -> Verdict {
    let (store, shared) = store(&["a", "b"]);
    fill(&store);
    let fs = store.volume.fs();
    fs.offer_space(PATIENCE_MS);
    let volumes = shared.volumes().0;
    let bringer = bringer(&store, &shared, &volumes);
    bringer.look_for_all(true).expect("reads");
    let item = item_of(&bringer, &store, "a");
    fs.request_stage_in(item.key.inode).expect("it is there");
    let now = || Moment(monotonic_ms());
    thread::scope(|scope| {
        let brings =
            scope.spawn(|| bringer.source.bring(&volumes[0], &item, &|| !shared.is_stopping()));
        while fs.space_waiters(now()).count == 0 && !brings.is_finished() {
            thread::yield_now();
        }
        assert!(!brings.is_finished(), "it waits for room");
        meanwhile(&store, &bringer);
        while !brings.is_finished() {
            fs.space_is_made(now());
            thread::sleep(LOOK_EVERY);
        }
        assert_eq!(fs.space_waiters(now()).count, 0);
        brings.join().expect("ends")
    })
}

/// Mechanism: a stager did not wait for room as a writer does. Consequence: where surplus
/// checkpoints were still to be dropped, files stayed absent until they were opened again.
#[test]
fn file_that_finds_no_room_comes_when_there_is_some() {
    let verdict = bring_into_full(|store, _| {
        let (fs, caller) = (store.volume.fs(), store.volume.caller());
        fs.unlink(&caller, ROOT, b"big").expect("removes");
    });
    assert!(matches!(verdict, Verdict::Brought), "{verdict:?}");
}

#[test]
fn file_that_finds_no_room_fails_when_the_time_to_wait_for_it_is_over() {
    let verdict = bring_into_full(|store, _| store.volume.fs().offer_space(1));
    let is_full =
        matches!(&verdict, Verdict::Failed { reason, .. } if reason == "the store is full");
    assert!(is_full, "{verdict:?}");
}

#[test]
fn file_that_is_emptied_needs_no_room() {
    let verdict = bring_into_full(|store, _| {
        let options = OpenOptions { write: true, truncate: true, ..OpenOptions::NONE };
        let opened = store.volume.fs().open_file(&store.volume.caller(), ROOT, b"a", options, 0);
        opened.expect("that needs no data");
    });
    assert!(matches!(verdict, Verdict::Gone), "{verdict:?}");
}

#[test]
fn agent_that_ends_does_not_wait_for_room() {
    let verdict = bring_into_full(|_, bringer| bringer.shared.stop());
    assert!(matches!(verdict, Verdict::Stopped), "{verdict:?}");
}

/// Mechanism: a process that began to wait after an attempt had failed, but before the failure was
/// reported, got that failure. Consequence: a program removed a file to make room, opened an absent
/// one, and got EIO.
#[test]
fn who_waits_since_an_attempt_began_is_owed_another() {
    let (store, shared) = store(&["a"]);
    let (fs, caller, absent) = (store.volume.fs(), store.volume.caller(), inode(&store, "a"));
    fill(&store);
    let volumes = shared.volumes().0;
    let bringer = bringer(&store, &shared, &volumes);
    let told = || {
        let known = fs.absence(absent).expect("it is there").expect("it is absent");
        let failed = shared.status().bringing.map_or(0, |bringing| bringing.failed.len());
        (known.wanted, known.unavailable, failed)
    };

    fs.request_stage_in(absent).expect("it is there");
    bringer.look_for_all(true).expect("reads");
    let item = bringer.queue().take().expect("one is absent");
    bringer.bring(&item);
    assert_eq!(told(), (false, true, 1), "there is no room");
    assert_eq!(bringer.queue().take(), None);

    fs.request_stage_in(absent).expect("it is there");
    fs.begin_stage_in(absent).expect("it is there");
    let verdict = bringer.source.bring(&volumes[0], &item, &|| true);
    fs.unlink(&caller, ROOT, b"big").expect("removes");
    fs.request_stage_in(absent).expect("it is there");
    bringer.conclude(&volumes[0], &item, verdict);
    assert_eq!(told(), (true, false, 0));
    bringer.look_for_wishes(&mut [None]).expect("looks");
    let item = bringer.queue().take_wanted().expect("it is waited for");
    bringer.bring(&item);
    assert_eq!(fs.absence(absent), Ok(None));
}

/// Mechanism: a file that nobody asked for waited for room as a writer does. Consequence: in a
/// store smaller than what was staged on demand, each file that came drove out others, and the last
/// ones failed.
#[test]
fn what_nobody_asks_for_drives_nothing_out() {
    let (store, shared) = store(&["a", "b"]);
    fill(&store);
    let (fs, absent) = (store.volume.fs(), inode(&store, "b"));
    fs.offer_space(PATIENCE_MS);
    assert!(bring_all(&shared, &shared.volumes().0, true).expect("looks"));
    let waiting = fs.space_waiters(Moment(monotonic_ms()));
    assert_eq!(waiting.count, 0);
    let status = shared.status().bringing.unwrap_or_default();
    assert_eq!((status.failed.len(), status.files), (0, 0));
    fs.unlink(&store.volume.caller(), ROOT, b"big").expect("removes");
    fs.request_stage_in(absent).expect("it is there");
    assert!(bring_all(&shared, &shared.volumes().0, false).expect("looks"));
    assert_eq!(fs.absence(absent), Ok(None));
    let other = fs.absence(inode(&store, "a")).expect("it is there");
    assert!(other.is_some(), "it comes when somebody asks for it");
}

/// Mechanism: a wish that arrived after a failure was reported, but before the thread was done with
/// the file, was taken for an earlier one.
#[test]
fn who_waits_since_a_failure_was_told_is_not_forgotten() {
    let (store, shared) = store(&["a"]);
    let (fs, absent) = (store.volume.fs(), inode(&store, "a"));
    let volumes = shared.volumes().0;
    let bringer = bringer(&store, &shared, &volumes);
    bringer.look_for_all(true).expect("reads");
    let item = bringer.queue().take().expect("one is absent");
    assert_eq!(fs.fail_absent(absent, false), Ok(true));
    fs.request_stage_in(absent).expect("it is there");
    bringer.look_for_wishes(&mut [None]).expect("looks");
    assert_eq!(bringer.queue().take_wanted(), None, "a thread has it");
    bringer.note_absent(&item, |_, _| {});
    assert_eq!(bringer.queue().take_wanted(), Some(item));
}

/// Mechanism: the whole tree was read for each file that could not be staged in at once.
#[test]
fn path_of_a_file_is_the_one_it_has_now() {
    let (store, _shared) = store(&["a", "b"]);
    let (fs, caller, first) = (store.volume.fs(), store.volume.caller(), inode(&store, "a"));
    let now = || path_of(&store.volume, &path("a"), first).expect("reads");
    assert_eq!(now(), Some(path("a")));
    let rename = |from: &[u8], to: &[u8]| {
        fs.rename(&caller, (ROOT, from), (ROOT, to), cairn_core::RenameMode::Replace)
    };
    rename(b"a", b"c").expect("renames");
    rename(b"b", b"a").expect("renames");
    assert_eq!(now(), Some(path("c")), "another file has its name");
    fs.unlink(&caller, ROOT, b"c").expect("removes");
    assert_eq!(now(), None);
}

/// Mechanism: the part of a file staged in so far stayed in the store while its copy hung, although
/// nobody waited for the file. Consequence: a program that opened another file got EIO for want of
/// this space, or waited for the drop of checkpoints that could stay.
#[test]
fn file_that_hangs_and_nobody_waits_for_gives_its_room_to_one_that_somebody_waits_for() {
    let content = vec![7; 3 * CHUNK_BYTES as usize];
    let (store, shared) = store_of(&[("hangs", &content), ("wanted", &content)]);
    fill_but(&store, content.len() as u64 + CHUNK_BYTES);
    let volumes = shared.volumes().0;
    let bringer = bringer(&store, &shared, &volumes);
    bringer.look_for_all(true).expect("reads");
    let [hangs, wanted] = ["hangs", "wanted"].map(|name| item_of(&bringer, &store, name));
    let (has_parts, comes_back) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let asked = Cell::new(0);
        let hanging = scope.spawn({
            let (bringer, volume) = (&bringer, &volumes[0]);
            let (hangs, has_parts, comes_back) = (&hangs, &has_parts, &comes_back);
            move || {
                let goes_on = || {
                    if asked.replace(asked.get() + 1) == 2 {
                        has_parts.wait();
                        comes_back.wait();
                    }
                    true
                };
                bringer.source.bring(volume, hangs, &goes_on)
            }
        });
        has_parts.wait();
        store.volume.fs().request_stage_in(wanted.key.inode).expect("it is there");
        let verdict = bringer.source.bring(&volumes[0], &wanted, &|| true);
        comes_back.wait();
        let verdicts = (verdict, hanging.join().expect("ends"));
        let is_so = matches!(&verdicts, (Verdict::Brought, Verdict::PutOff));
        assert!(is_so, "{verdicts:?}");
    });
    bringer.conclude(&volumes[0], &hangs, Verdict::PutOff);
    bringer.note_absent(&hangs, Queue::add);
    assert_eq!(bringer.queue().take(), Some(hangs), "it comes later");
}

#[test]
fn files_that_nobody_waits_for_are_put_off_as_long_as_one_lacks_room_that_somebody_waits_for() {
    let verdict = bring_into_full(|store, bringer| {
        let (fs, caller) = (store.volume.fs(), store.volume.caller());
        fs.request_stage_in(inode(store, "a")).expect("it is there");
        while !bringer.source.lacks_room() {
            // Keeps the waiter waiting: an agent reports that it makes space.
            fs.space_is_made(Moment(monotonic_ms()));
            thread::yield_now();
        }
        let other = item_of(bringer, store, "b");
        let verdict = bringer.source.bring(&bringer.volumes[0], &other, &|| true);
        assert!(matches!(verdict, Verdict::PutOff), "{verdict:?}");
        assert!(bringer.source.lacks_room());
        fs.unlink(&caller, ROOT, b"big").expect("removes");
    });
    assert!(matches!(verdict, Verdict::Brought), "{verdict:?}");
}

/// Opens a copy with a lease, so that no other open of it succeeds. Returns None where leases are
/// not available.
fn lease(store: &TestStore, name: &str) -> Option<File> {
    let file = File::options().read(true).write(true).open(store.directory("out").join(name));
    let file = file.expect("opens");
    // SAFETY: both calls take plain numbers. SIGIO, which the kernel sends to the holder of a lease
    // that another process breaks, is ignored.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    (leased == 0).then_some(file)
}

/// Mechanism: the number of threads for files that somebody waits for was fixed, even if all of
/// them hung. Consequence: after a few files whose copies hang had been opened, no other file was
/// staged in, even when nobody waited for the hanging ones any more.
#[test]
fn file_that_somebody_waits_for_comes_though_all_threads_hang_in_others_that_were_wanted() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let (store, shared) = store(&names);
    let hanging = &names[..names.len() - 1];
    let leases: Vec<_> = hanging.iter().filter_map(|name| lease(&store, name)).collect();
    if leases.len() < hanging.len() {
        return;
    }
    let volumes = shared.volumes().0;
    let bringer = bringer(&store, &shared, &volumes);
    bringer.look_for_all(true).expect("reads");
    for name in names {
        let inode = inode(&store, name);
        store.volume.fs().request_stage_in(inode).expect("it is there");
        assert!(bringer.queue().want(Key { volume: 0, inode }));
    }
    thread::scope(|scope| {
        let works = scope.spawn(|| bringer.work_off());
        // The thread that staged it in is done with it a little later.
        let left = || bringer.queue().left();
        while is_absent(&store.volume, inode(&store, "g")) || left().files > hanging.len() as u64 {
            thread::sleep(LOOK_EVERY);
        }
        assert_eq!((left().files, left().waited_for), (6, 6));
        drop(leases);
        works.join().expect("ends").expect("works");
    });
    assert!(!has_absent(&volumes).expect("looks"));
}

/// A lack of room says nothing about a copy, wherever in the file it occurs.
#[test]
fn whole_copy_for_which_there_is_no_room_is_not_taken_for_damaged() {
    let content = vec![7; 3 * CHUNK_BYTES as usize];
    let (store, shared) = store_of(&[("a", &content)]);
    fill_but(&store, 2 * CHUNK_BYTES);
    let volumes = shared.volumes().0;
    let bringer = bringer(&store, &shared, &volumes);
    let (fs, absent) = (store.volume.fs(), inode(&store, "a"));
    name_copy(&store, "a", &content);
    bringer.look_for_all(true).expect("reads");
    fs.request_stage_in(absent).expect("it is there");
    let item = item_of(&bringer, &store, "a");
    bringer.bring(&item);
    let known = fs.absence(absent).expect("it is there").expect("it is absent");
    assert_eq!((known.unavailable, known.damaged), (true, false));
    let failed = shared.status().bringing.expect("one failed").failed;
    assert_eq!((failed[0].quarantined, failed.len()), (false, 1));
    fs.unlink(&store.volume.caller(), ROOT, b"big").expect("removes");
    fs.request_stage_in(absent).expect("it is there");
    bringer.look_for_wishes(&mut [None]).expect("looks");
    let item = bringer.queue().take_wanted().expect("it is tried again");
    bringer.bring(&item);
    assert_eq!(fs.absence(absent), Ok(None));
}

/// Makes the manifest say that the copy of this name has this content.
fn name_copy(store: &TestStore, name: &str, content: &[u8]) {
    let node = store.volume.tree().expect("reads").remove(&path(name)).expect("it is there");
    let (bytes, crc32c) = (content.len() as u64, checksum::crc32c(0, content));
    let copy = Copy { bytes, crc32c, mode: 0o644, mtime_ns: 7, version: 1, extended: None };
    let mut ledger = Ledger::open(&store.directory("out"), &store.job).expect("opens");
    ledger.put(path(name), node.drained_entry(copy));
    ledger.commit().expect("commits");
}

#[test]
fn copy_that_was_too_short_is_made_good_by_nothing_but_the_data_of_its_file() {
    let (own, other) = (vec![1; 100], vec![2; 100]);
    let (store, shared) = store_of(&[("a", &own), ("b", &other)]);
    let volumes = shared.volumes().0;
    let bring = |attempts: u32| {
        let bringer = bringer(&store, &shared, &volumes);
        bringer.look_for_all(true).expect("reads");
        let (item, left) = (item_of(&bringer, &store, "a"), Cell::new(attempts));
        let goes_on = || left.replace(left.get().saturating_sub(1)) > 0;
        bringer.source.bring(&volumes[0], &item, &goes_on)
    };
    let is_damaged = |verdict: Verdict| matches!(verdict, Verdict::Failed { damaged: true, .. });
    let write = |content: &[u8]| fs::write(store.directory("out").join("a"), content);

    name_copy(&store, "a", &own);
    write(&own[..99]).expect("writes");
    assert!(is_damaged(bring(9)), "it is too short");
    write(&other).expect("writes");
    assert!(is_damaged(bring(9)), "these are another's data");
    // The state after a later file of that name, of the same length, was drained.
    name_copy(&store, "a", &other);
    name_copy(&store, "b", &other);
    let verdict = bring(3);
    assert!(matches!(verdict, Verdict::Stopped), "{verdict:?}: it is looked for elsewhere");
    write(&own).expect("writes");
    assert!(matches!(bring(9), Verdict::Brought));
}

/// Makes inputs without data whose sources are in the directory `pfs`, and starts nothing.
fn with_inputs(files: &[(&str, &str)]) -> (TestStore, Shared) {
    let (store, shared) = store(&[]);
    let mut inputs = Inputs::default();
    for (name, content) in files {
        let source = store.directory("pfs").join(name);
        fs::write(&source, content).expect("writes");
        let bytes = content.len() as u64;
        let copy = Original { bytes, crc32c: 0, mode: 0o644, mtime_ns: 7 };
        AbsentFile::create(&store.volume, &path(name), &copy, &Extended::default())
            .expect("creates");
        let there = store.volume.attributes(&path(name)).expect("it is there");
        let state = SourceState::of(&source.metadata().expect("is there"));
        let (inode, version) = (there.inode.0, there.version);
        let made = Made { inode, version, mode: 0o644, mtime_ns: 7, crc32c: None };
        let content = Content::File(state);
        let staged = Staged { source, content, made: Some(made), before: None };
        inputs.staged.insert(path(name), staged);
    }
    inputs.save(&store.path).expect("saves");
    (store, shared)
}

#[test]
fn input_comes_from_its_source_unless_that_has_changed() {
    let (store, shared) = with_inputs(&[("same", "as it was"), ("other", "before"), ("gone", "x")]);
    fs::write(store.directory("pfs").join("other"), "behind").expect("writes");
    fs::remove_file(store.directory("pfs").join("gone")).expect("removes");
    let volumes = shared.volumes().0;
    assert!(bring_all(&shared, &volumes, true).expect("stages"), "some are still absent");
    let is_absent = |name| super::is_absent(&store.volume, inode(&store, name));
    assert_eq!(["same", "other", "gone"].map(is_absent), [false, true, true]);
    let state = shared.state();
    let reason = |name: &str| {
        let failed = state.bringing.failed.values().find(|failed| failed.path == path(name));
        failed.map(|failed| failed.reason.clone()).unwrap_or_default()
    };
    assert!(reason("other").contains("pfs/other has changed since the job began"));
    assert!(reason("gone").contains("pfs/gone is gone"));
}
