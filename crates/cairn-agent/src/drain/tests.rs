use cairn_core::{Caller, OpenOptions, ROOT, RenameMode};
use cairn_platform::checksum;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::persist::image_place;

use super::*;
use crate::checkpoint::quarantine::{self, Move, REPAIR_FORMAT, Repair};
use crate::checkpoint::sets::Set;
use crate::store::volume::now;
use crate::test_store::{TestStore, path};

fn steps(checkpoints: &[Checkpoint]) -> Vec<u64> {
    let family = checkpoints.iter().filter(|known| known.name.family.0 == b"f.{step}");
    family.filter_map(|known| known.name.step).collect()
}

/// Mechanism: a namespace is read name by name. A file that was open when it was read, and was
/// closed before another file that was read later, appeared open, and the other one closed.
/// Consequence: the older checkpoint was found complete after the newer one, and counted as the
/// newest. Fix: everything is read a second time. A set that became complete since waits if it is
/// newer than those that were complete the first time.
#[test]
fn what_was_open_when_it_was_read_is_not_newer_than_what_was_closed_after_it() {
    let store = TestStore::new();
    for step in 1..=4 {
        store.write(&format!("f.{step}"), b"state", 0o644, step);
    }
    let all = store.volume.tree().expect("reads");
    let mut first = all.clone();
    first.get_mut(&path("f.2")).expect("is there").open = true;
    first.remove(&path("f.4"));
    let root = FilePath::root();
    let mut checkpoints = Checkpoints::open(&store.path, &store.job).expect("opens");
    let ripe = checkpoints.fresh(&[(&root, &first)]).expect("reads");
    assert_eq!(ripe.iter().map(|set| set.name.step).collect::<Vec<_>>(), [Some(1), Some(3)]);
    let mut look = |ripe: &[Set]| {
        let view = checkpoints.look(&[(&root, &all)], DrainTask::default(), ripe).expect("looks");
        (steps(checkpoints.complete()), view.look_again.is_some())
    };
    assert_eq!(look(&ripe), (vec![1, 2, 3], true));
    assert_eq!(look(&ripe), (vec![1, 2, 3], true), "as long as it is not seen the first time");
    assert_eq!(look(&[]), (vec![1, 2, 3, 4], false));
    assert!(checkpoints.fresh(&[(&root, &all)]).expect("reads").is_empty());
}

/// Mechanism: a set that was seen complete, and was written again before the second reading, waited
/// for the next look, and so on.
#[test]
fn checkpoint_that_is_written_again_and_again_is_complete_whenever_it_is_looked() {
    let store = TestStore::new();
    let root = FilePath::root();
    let mut checkpoints = Checkpoints::open(&store.path, &store.job).expect("opens");
    store.write("f.1", b"state", 0o644, 1);
    store.write("f.2", b"state", 0o644, 1);
    let all = store.volume.tree().expect("reads");
    checkpoints.look(&[(&root, &all)], DrainTask::default(), &[]).expect("looks");
    for round in 1..=3 {
        store.write("f.2", b"state", 0o644, 2 * round);
        let first = store.volume.tree().expect("reads");
        let ripe = checkpoints.fresh(&[(&root, &first)]).expect("reads");
        store.write("f.2", b"state", 0o644, 2 * round + 1);
        let all = store.volume.tree().expect("reads");
        checkpoints.look(&[(&root, &all)], DrainTask::default(), &ripe).expect("looks");
        assert_eq!((ripe.len(), steps(checkpoints.complete())), (1, vec![1, 2]), "{round}");
    }
}

#[test]
fn order_is_that_of_the_writer_however_often_it_is_looked_while_files_close() {
    const STEPS: u64 = 300;
    const STEPS_PER_LOOK: u64 = 6;
    let store = TestStore::new();
    for number in 0..200 {
        store.write(&format!("other{number}"), b"x", 0o644, 1);
    }
    let volumes = [Arc::clone(&store.volume)];
    let mut drainer = Drainer::new(&store.path, store.job.clone());
    let looks = AtomicU64::new(1);
    let mut look = || {
        looks.fetch_add(1, Ordering::Relaxed);
        let reason = Reason::Routine;
        drainer.pass(&volumes, true, reason, &Meter::default()).expect("passes");
        steps(drainer.known())
    };
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (fs, caller) = (store.volume.fs(), store.volume.caller());
            let options = OpenOptions { write: true, create: true, ..OpenOptions::NONE };
            let open = |step: u64| {
                let caller = Caller { now: now(), ..caller };
                let opened =
                    fs.open_file(&caller, ROOT, format!("f.{step}").as_bytes(), options, 0o644);
                opened.expect("creates").handle
            };
            // Each file is already open when the one before is closed.
            let mut before = open(1);
            for step in 2..=STEPS {
                while step > looks.load(Ordering::Relaxed) * STEPS_PER_LOOK {
                    thread::yield_now();
                }
                let next = open(step);
                fs.release(caller.slot, before, now()).expect("closes");
                before = next;
            }
            fs.release(caller.slot, before, now()).expect("closes");
        });
        while !writer.is_finished() {
            look();
        }
    });
    let found = look();
    let wrong: Vec<&[u64]> = found.windows(2).filter(|pair| pair[0] > pair[1]).collect();
    assert_eq!((found.len() as u64, wrong), (STEPS, Vec::new()));
}

/// Mechanism: a run was seen under way and had died by the time its files were judged. Missing
/// files were then taken for removals by a user, not by the run. Consequence: the rest of a
/// checkpoint counted as complete. Fix: a run that was seen counts as alive for the whole look.
#[test]
fn rest_of_a_checkpoint_is_not_complete_if_a_run_was_seen_that_may_have_removed_files() {
    let store = TestStore::new();
    for (step, name) in [(1, "f.1.0"), (1, "f.1.1"), (2, "f.2.0"), (2, "f.2.1")] {
        store.write(name, b"state", 0o644, step);
    }
    let root = FilePath::root();
    let mut job = store.job.clone();
    job.checkpoint.patterns = vec!["f.{step}.{rank}".to_string()];
    let mut checkpoints = Checkpoints::open(&store.path, &job).expect("opens");
    let mut look = |run_was_seen: bool| {
        checkpoints.run_was_seen = run_was_seen;
        let tree = store.volume.tree().expect("reads");
        checkpoints.look(&[(&root, &tree)], DrainTask::default(), &[]).expect("looks");
        checkpoints.complete().len()
    };
    assert_eq!([look(false), look(false)], [1, 2], "the second is as the first");
    store.volume.fs().unlink(&store.volume.caller(), ROOT, b"f.1.0").expect("removes");
    assert_eq!(look(true), 1);
    assert_eq!(look(false), 2, "somebody left these, and nobody else comes");
}

/// Mechanism: every copy in the manifest was counted, including the copy of an older version of a
/// file, and one that stays although its file was removed, because nothing newer is outside.
/// Consequence: `cairn rm` compared the number of copies with the number of files, and removed a
/// store with files that were nowhere else. Fix: only copies of the present versions of files in
/// the store count.
#[test]
fn copies_of_what_the_store_has_not_are_no_drained_files() {
    let mut store = TestStore::new();
    let out = store.directory("out");
    store.job.persist = Some(out.clone());
    let volumes = [Arc::clone(&store.volume)];
    let pass = || {
        let mut drainer = Drainer::new(&store.path, store.job.clone());
        drainer.pass(&volumes, true, Reason::Routine, &Meter::default()).expect("passes")
    };
    store.write("md_step1.cpt", b"first", 0o644, 1);
    let outcome = pass();
    assert_eq!((outcome.drained_files, outcome.drained_bytes, outcome.complete), (1, 5, true));
    // A directory keeps the next version from replacing the first one.
    std::fs::remove_file(out.join("md_step1.cpt")).expect("removes");
    std::fs::create_dir(out.join("md_step1.cpt")).expect("makes");
    store.write("md_step1.cpt", b"second", 0o644, 2);
    let outcome = pass();
    assert_eq!((outcome.drained_files, outcome.failed.len(), outcome.complete), (0, 1, false));
    // A copy that stays because nothing newer is outside does not count either: its file is gone.
    std::fs::remove_dir(out.join("md_step1.cpt")).expect("removes");
    assert_eq!(pass().drained_files, 1);
    let caller = store.volume.caller();
    store.volume.fs().unlink(&caller, ROOT, b"md_step1.cpt").expect("removes");
    let outcome = pass();
    assert_eq!((outcome.drained_files, out.join("md_step1.cpt").exists()), (0, true));
}

/// Mechanism: a namespace is read directory by directory. A file that is renamed meanwhile, from a
/// directory not yet read into one that was, does not appear in the tree. Consequence: its copy was
/// removed, or replaced by that of the next file of the old name. For an absent file that was the
/// only copy. Fix: a copy stays while its file has a name in the store.
#[test]
fn copy_of_a_file_that_was_renamed_while_names_were_read_stays() {
    let mut store = TestStore::new();
    store.job.persist = Some(store.directory("out"));
    let volumes = [Arc::clone(&store.volume)];
    for name in ["moved", "replaced", "removed"] {
        store.write(name, b"text", 0o644, 1);
    }
    let mut drainer = Drainer::new(&store.path, store.job.clone());
    drainer.pass(&volumes, true, Reason::Routine, &Meter::default()).expect("passes");
    let ledger = drainer.ledger.take().expect("a persist directory");
    let (fs, caller) = (store.volume.fs(), store.volume.caller());
    fs.unlink(&caller, ROOT, b"removed").expect("removes");
    for (from, to) in [("moved", "elsewhere"), ("replaced", "aside")] {
        let (from, to) = ((ROOT, from.as_bytes()), (ROOT, to.as_bytes()));
        fs.rename(&caller, from, to, RenameMode::Replace).expect("renames");
    }
    store.write("replaced", b"other", 0o644, 2);
    let all = store.volume.tree().expect("reads");
    let seen: Tree =
        all.clone().into_iter().filter(|(name, _)| *name == path("replaced")).collect();
    let plan = |tree| planned(&store.volume, tree, ledger.manifest(), &HashSet::new());
    let (cautious, spared) = plan(&seen);
    assert_eq!((cautious.remove, cautious.copies, spared), (vec![path("removed")], vec![], 2));
    let (full, spared) = plan(&all);
    assert_eq!(
        (full.remove, full.copies, spared),
        (vec![path("removed")], vec![path("replaced")], 0)
    );
    assert_eq!(full.renames.len(), 2);
    // Now the files are gone.
    for name in ["elsewhere", "aside"] {
        fs.unlink(&caller, ROOT, name.as_bytes()).expect("removes");
    }
    let (last, spared) = plan(&seen);
    assert_eq!((last.remove.len(), last.copies.len(), spared), (2, 1, 0));
}

/// Mechanism: the drain did not know of a repair that was cut off. Consequence: the rest of a
/// checkpoint that was being set aside counted as a checkpoint, and the copies outside were split
/// up like the files. Fix: files that the note of a repair names are left alone until the repair
/// ends.
#[test]
fn what_a_repair_names_is_left_alone_until_it_is_over() {
    let mut store = TestStore::new();
    let out = store.directory("out");
    store.job.persist = Some(out.clone());
    for name in ["restart.1.a", "restart.1.b", "restart.2.a", "restart.2.b"] {
        store.write(name, name.as_bytes(), 0o644, 1);
    }
    let volumes = [Arc::clone(&store.volume)];
    let mut drainer = Drainer::new(&store.path, store.job.clone());
    let mut pass = || {
        let reason = Reason::Asked(DrainTask { succeeded: Some(true), ..DrainTask::default() });
        let outcome = drainer.pass(&volumes, true, reason, &Meter::default()).expect("passes");
        let steps: Vec<_> = drainer.known().iter().filter_map(|known| known.name.step).collect();
        let manifest = Ledger::open(&out, &store.job).expect("opens").manifest().clone();
        let outside = manifest.whole().iter().filter_map(|known| known.name.step).collect();
        (outcome, steps, outside)
    };
    let whole: (_, _, Vec<u64>) = pass();
    assert_eq!((whole.0.complete, whole.1, whole.2), (true, vec![1, 2], vec![1, 2]));
    let volume = &store.volume;
    let (fs, caller) = (volume.fs(), volume.caller_as_user());
    for directory in [".cairn-damaged", ".cairn-damaged/.cairn-building"] {
        fs.make_directory(&caller, ROOT, directory.as_bytes(), 0o755).expect("makes");
    }
    store.write(".cairn-damaged/.cairn-building/restart.0.a", b"half of it", 0o644, 1);
    let set_aside = |name: &str| Move {
        inode: volume.attributes(&path(name)).expect("is there").inode.0,
        from: path(name),
        to: path(&format!(".cairn-damaged/{name}")),
        replaces: None,
    };
    let moves = vec![set_aside("restart.2.a"), set_aside("restart.2.b")];
    let carry_out = |one: &Move| {
        let (from, to) = ((ROOT, one.from.as_bytes()), (ROOT, one.to.as_bytes()));
        fs.rename(&caller, from, to, RenameMode::NoReplace).expect("moves");
    };
    let (aside, brought) = (Vec::new(), Vec::new());
    let repair =
        Repair { format: REPAIR_FORMAT, aside, unfinished: false, goes_on: None, brought, moves };
    repair.save(&store.path).expect("saves");
    carry_out(&repair.moves[0]);
    let (outcome, steps, outside) = pass();
    assert_eq!((steps, outside), (vec![1], vec![1, 2]));
    assert!(!outcome.complete && outcome.failed.len() == 2, "{outcome:?}");
    let names = |directory: &Path| -> BTreeSet<_> {
        let listed = std::fs::read_dir(directory).expect("lists").flatten();
        listed.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect()
    };
    assert!(names(&out).contains("restart.2.a"));
    assert_eq!(names(&out.join(".cairn-damaged")).len(), 0, "what is built is no file yet");
    carry_out(&repair.moves[1]);
    Repair::forget(&store.path).expect("forgets");
    let (outcome, steps, outside) = pass();
    assert_eq!((outcome.complete, steps, outside), (true, vec![1], vec![1]));
    let aside = names(&out.join(".cairn-damaged"));
    assert_eq!(aside.into_iter().collect::<Vec<_>>(), ["restart.2.a", "restart.2.b"]);
    assert!(quarantine::is_aside(&path(".cairn-damaged/restart.2.a")));
}

/// Mechanism: the newest checkpoint of all was copied first. Consequence: of two checkpoints that
/// are written at every step, the earlier one was never outside if copying one takes longer than a
/// step. Fix: families take turns.
#[test]
fn families_take_turns_at_being_held_and_copied_first() {
    let store = TestStore::new();
    let names = ["a.1", "a.2", "b.3", "b.4"];
    names.iter().for_each(|name| store.write(name, b"state", 0o644, 1));
    let volumes = [Arc::clone(&store.volume)];
    let mut drainer = Drainer::new(&store.path, store.job.clone());
    drainer.pass(&volumes, true, Reason::Routine, &Meter::default()).expect("passes");
    assert_eq!(drainer.known().len(), 4);
    let mut first = || {
        let mut plans = [Plan { copies: names.map(path).to_vec(), ..Plan::default() }];
        let due = drainer.known().to_vec();
        let held = drainer.turns.hold(&[&store.volume], &due, &mut plans);
        assert!(held.is_some() && store.volume.is_holding());
        plans[0].copies[0].clone()
    };
    assert_eq!([first(), first(), first()], ["b.4", "a.2", "b.4"].map(path));
    assert!(!store.volume.is_holding());
}

/// Mechanism: temporary files of a killed agent were looked for only in directories of the store.
/// Consequence: those in a directory that the program had removed by then stayed for ever, and that
/// directory with them. Fix: they are also looked for in the directories that the manifest and the
/// journal name.
#[test]
fn what_a_killed_agent_left_in_a_directory_goes_although_that_left_the_store() {
    let mut store = TestStore::new();
    let out = store.directory("out");
    store.job.persist = Some(out.clone());
    let (fs, caller) = (store.volume.fs(), store.volume.caller_as_user());
    fs.make_directory(&caller, ROOT, b"gone", 0o755).expect("makes");
    store.write("gone/a", b"state", 0o644, 1);
    let volumes = [Arc::clone(&store.volume)];
    let pass = || {
        let mut drainer = Drainer::new(&store.path, store.job.clone());
        let outcome = drainer.pass(&volumes, true, Reason::Routine, &Meter::default());
        assert!(outcome.expect("passes").complete);
    };
    pass();
    // Of this directory the agent had only announced that it would make it.
    let mut ledger = Ledger::open(&out, &store.job).expect("opens");
    let entry = ledger.entry(&path("gone")).expect("is there").clone();
    ledger.announce(&path("announced"), Some(&entry), None).expect("announces");
    std::fs::create_dir(out.join("announced")).expect("makes");
    drop(ledger);
    for directory in ["gone", "announced"] {
        let temporary = format!(".b.cairn-{}", store.job.store);
        std::fs::write(out.join(directory).join(temporary), "half of it").expect("writes");
    }
    fs.unlink(&caller, ROOT, b"gone/a").expect("removes");
    fs.remove_directory(&caller, ROOT, b"gone").expect("removes");
    pass();
    let left = std::fs::read_dir(&out).expect("lists").flatten().map(|entry| entry.file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["cairn-manifest.job.json"]);
}

/// Mechanism: directories get their times at the end of a pass, and only the agent's memory said
/// which ones had changed. Consequence: after it was killed they kept the times of the drain,
/// although everything was reported as right. Fix: an agent that takes over a persist directory
/// whose pass did not end checks the directories.
#[test]
fn directories_have_their_times_after_an_agent_was_killed() {
    let mut store = TestStore::new();
    let out = store.directory("out");
    store.job.persist = Some(out.clone());
    let (fs, caller) = (store.volume.fs(), store.volume.caller_as_user());
    fs.make_directory(&caller, ROOT, b"d", 0o755).expect("makes");
    store.write("d/a", b"state", 0o644, 1);
    let volumes = [Arc::clone(&store.volume)];
    let pass = || {
        let mut drainer = Drainer::new(&store.path, store.job.clone());
        let outcome = drainer.pass(&volumes, true, Reason::Routine, &Meter::default());
        assert!(outcome.expect("passes").complete);
        std::fs::metadata(out.join("d")).expect("is there").modified().expect("has a time")
    };
    let time = pass();
    // The killed agent had recorded that it began changes, and had none under way when it died.
    let mut ledger = Ledger::open(&out, &store.job).expect("opens");
    ledger.set_complete(false, false);
    ledger.commit().expect("commits");
    drop(ledger);
    std::fs::write(out.join("d/b"), "").expect("writes");
    std::fs::remove_file(out.join("d/b")).expect("removes");
    assert_eq!(pass(), time);
}

/// Mechanism: whether the run was over was asked at the end of a pass, but the files were read
/// before. Consequence: images were removed although they held the only copy of what the run had
/// done meanwhile. If the node was lost at that moment, some files were old and some newer. Fix: it
/// is asked before the files are read.
#[test]
fn run_that_ends_during_a_pass_still_has_its_image_after_it() {
    const BYTES: usize = 4 << 20;
    let store = TestStore::new();
    let out = store.directory("out");
    let mut job = Job { persist: Some(out.clone()), ..store.job.clone() };
    job.drain.rate_bytes = Some(2 * BYTES as u64);
    let volumes = [Arc::clone(&store.volume)];
    let mut drainer = Drainer::new(&store.path, job);
    let meter = &Meter::default();
    let run = lock::try_lock(&store.path, RUN_LOCK).expect("opens").expect("is free");
    lock::mark_as_run(&run).expect("says so");
    store.write("early", b"state", 0o644, 1);
    drainer.pass(&volumes, true, Reason::ImageDue, meter).expect("takes an image");
    let has_image = || image_place::newest(&out, "job").is_some();
    assert!(has_image());
    store.write("large", &vec![7; BYTES], 0o644, 1);
    thread::scope(|scope| {
        let pass = scope.spawn(|| {
            let outcome = drainer.pass(&volumes, true, Reason::Routine, meter).expect("passes");
            assert!(outcome.complete);
            drainer
        });
        while meter.progress().bytes_total < BYTES as u64 {
            assert!(!pass.is_finished(), "it takes half a second");
            thread::yield_now();
        }
        store.write("late", b"state", 0o644, 1);
        drop(run);
        let mut drainer = pass.join().expect("ends");
        assert!(!out.join("late").exists() && has_image());
        drainer.pass(&volumes, true, Reason::Routine, meter).expect("passes");
        // How the run ended is not known: it may be needed.
        assert!(out.join("late").exists() && has_image());
        let told = DrainTask { succeeded: Some(true), ..DrainTask::default() };
        drainer.pass(&volumes, true, Reason::Asked(told), meter).expect("passes");
        assert!(!has_image());
    });
}

/// Mechanism: a pass that found a program alive assumed that the run goes on, after the agent had
/// noticed that nobody was there. Consequence: nobody looked again when that program had ended, and
/// a command that waited for the drain waited for ever. Fix: the pass reports what it assumed.
#[test]
fn pass_says_that_it_took_the_run_for_one_that_goes_on() {
    let store = TestStore::new();
    let out = store.directory("out");
    let job = Job { persist: Some(out), ..store.job.clone() };
    let (volumes, meter) = ([Arc::clone(&store.volume)], &Meter::default());
    let mut drainer = Drainer::new(&store.path, job);
    let mut goes_on = || {
        drainer.pass(&volumes, true, Reason::Routine, meter).expect("passes");
        drainer.run_went_on
    };
    assert!(!goes_on());
    let mut program = std::process::Command::new("sleep").arg("1000").spawn().expect("starts");
    let identity = cairn_platform::process::identity_of(program.id()).expect("it is there");
    store.volume.fs().attach(identity).expect("there is room");
    assert!(goes_on());
    program.kill().expect("kills");
    program.wait().expect("ends");
    assert!(!goes_on());
}

/// Changes bytes of a copy in the image before the last, in a range that is unchanged in the file.
/// An agent that reads this range would write it anew.
#[test]
fn what_is_unchanged_of_a_large_file_is_not_read_again_for_an_image() {
    const BYTES: usize = 12 << 20;
    const BLOCK: usize = 32 << 10;
    let mut store = TestStore::new();
    let persist = store.directory("persist");
    store.job.persist = Some(persist.clone());
    let mut content: Vec<u8> = (0..BYTES).map(|at| (at / 7) as u8).collect();
    store.write("large", &content, 0o644, 1);
    store.write("other", b"other", 0o644, 1);
    let volumes = [Arc::clone(&store.volume)];
    let mut drainer = Drainer::new(&store.path, store.job.clone());
    let copy = |drainer: &mut Drainer| {
        let place = image_place::next(&persist, &store.job.job).join("large");
        let meter = &Meter::default();
        drainer.pass(&volumes, true, Reason::ImageDue, meter).expect("takes an image");
        (place.clone(), std::fs::read(place).expect("is there"))
    };
    let write = |content: &mut Vec<u8>, at: usize, bytes: &[u8]| {
        store.overwrite("large", at as u64, bytes);
        content.resize(content.len().max(at + bytes.len()), 0);
        content[at..][..bytes.len()].copy_from_slice(bytes);
    };
    let (first, found) = copy(&mut drainer);
    assert!(found == content);
    for round in 1..4 {
        write(&mut content, BLOCK * round + 100, &[round as u8; 50]);
        write(&mut content, BLOCK * 200 * (round % 2) + 70, &[round as u8; 3 * BLOCK]);
        let end = content.len();
        write(&mut content, end, &[round as u8; 1000]);
        let (_, found) = copy(&mut drainer);
        assert!(found == content, "round {round}");
    }
    let place = image_place::next(&persist, &store.job.job).join("large");
    assert_eq!(place, first);
    let wrong = BLOCK * 250..BLOCK * 251;
    let modified = std::fs::metadata(&place).and_then(|found| found.modified()).expect("is there");
    let file = std::fs::OpenOptions::new().write(true).open(&place).expect("opens");
    file.write_all_at(&[0xa5; BLOCK], wrong.start as u64).expect("writes");
    file.set_modified(modified).expect("sets");
    write(&mut content, 5, b"changed");
    let (found_at, found) = copy(&mut drainer);
    assert_eq!(found_at, first);
    assert!(found[..wrong.start] == content[..wrong.start]);
    assert!(found[wrong.clone()] == [0xa5; BLOCK], "it was read");
    assert!(found[wrong.end..] == content[wrong.end..]);
    let directory = found_at.parent().expect("is in one");
    let (_, manifest) = image_place::last(directory, &store.job).expect("reads").expect("is there");
    let crc32c = manifest.files[&path("large")].copy().expect("is a copy").crc32c;
    assert_eq!(crc32c, checksum::crc32c(0, &content), "is what all of it is to have");
    // A new agent knows of no unchanged ranges.
    for _ in 0..2 {
        write(&mut content, 5, b"again");
        let (_, found) = copy(&mut Drainer::new(&store.path, store.job.clone()));
        assert!(found == content);
    }
}
