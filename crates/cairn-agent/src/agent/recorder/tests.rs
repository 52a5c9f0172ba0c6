use cairn_core::ROOT;

use super::*;
use crate::test_store::TestStore;

fn written(sample: &Sample) -> Vec<(u32, u64)> {
    sample.shares.iter().map(|share| (share.0, share.1)).collect()
}

fn scratch(name: &str) -> PathBuf {
    let directory =
        std::env::temp_dir().join(format!("cairn-recorder-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a scratch directory");
    directory
}

fn recorder(directory: &Path) -> Recorder {
    Recorder::go_on(directory, Timeline::new("melt", "s1", &[]))
}

/// Mechanism: a new process got the count of known ones as its number. Consequence: after the line
/// of one process was damaged, this number was that of another one, which vanished from the
/// timeline, and its bytes were attributed to the new one. Fix: it gets the successor of the
/// highest number.
#[test]
fn process_has_a_number_of_its_own_though_others_were_lost_from_the_file() {
    let directory = scratch("numbers");
    let mut first = recorder(&directory);
    let process = |pid| ProcessIdentity { pid, pid_namespace: 0, start_time: 1 };
    let numbers = [1, 2, 3].map(|pid| first.number(process(pid)));
    assert_eq!(numbers, [0, 1, 2]);
    let text = fs::read_to_string(directory.join(TIMELINE_FILE)).expect("it was written");
    let damaged = text.replacen("\"pid\":2", "\"pid\":9", 1);
    fs::write(directory.join(TIMELINE_FILE), damaged).expect("writes");
    let mut next = recorder(&directory);
    assert_eq!(next.timeline.processes.len(), 2);
    assert_eq!((next.number(process(3)), next.number(process(4))), (2, 3));
    next.timeline.processes.insert(u32::MAX, next.timeline.processes[&0].clone());
    assert_eq!(next.number(process(5)), u32::MAX, "there is no room");
    fs::remove_dir_all(directory).expect("removes");
}

/// Mechanism: bytes of unknown writers were counted by how much all files together had grown; and a
/// file was identified by its inode, which the next file gets when it is removed. Consequence: a
/// run that removed each checkpoint after writing the next one seemed to have written almost
/// nothing. Fix: each changed file counts by itself, and a different creation time makes it another
/// file.
#[test]
fn what_was_removed_is_not_taken_from_what_was_written() {
    const BYTES: usize = 5000;
    let store = TestStore::new();
    let mut recorder = recorder(&store.path);
    let mut sample = Sample::default();
    let remove = |step: u64| {
        let (caller, name) = (store.volume.caller(), format!("ckpt.{step}"));
        store.volume.fs().unlink(&caller, ROOT, name.as_bytes()).expect("removes");
        crate::store::reaper::reclaim(&store.volume, None).expect("frees");
    };
    let look = |recorder: &mut Recorder, sample: &mut Sample| {
        let looked_ms = now_ms();
        recorder.look_at(&store.volume, sample).expect("looks");
        recorder.looked = (Instant::now(), looked_ms);
    };
    look(&mut recorder, &mut sample);
    for step in 1..=10 {
        if step > 1 {
            remove(step - 1);
        }
        store.write(&format!("ckpt.{step}"), &[b'x'; BYTES], 0o644, 1);
        look(&mut recorder, &mut sample);
    }
    remove(10);
    look(&mut recorder, &mut sample);
    assert_eq!(sample.unknown, 10 * BYTES as u64);
}

/// Mechanism: a file was new if its creation time was after the last look, and at the first look no
/// file was. A call takes the time before it gets the lock, and a busy machine delays it in
/// between. Consequence: bytes written to such a file were in no sample. Fix: the time before the
/// first look begins with the recorder; and a file that no look has seen may be slightly older than
/// the last look.
#[test]
fn what_a_look_has_not_seen_is_counted_at_the_next() {
    let store = TestStore::new();
    let mut recorder = recorder(&store.path);
    store.write("ckpt.1", b"1234567", 0o644, 1);
    for size in [7, 0] {
        recorder.looked = (Instant::now(), now_ms() + LATE_MS / 2);
        let mut sample = Sample::default();
        recorder.look_at(&store.volume, &mut sample).expect("looks");
        assert_eq!(sample.unknown, size, "once");
    }
}

#[test]
fn bytes_are_divided_without_losing_one() {
    for (bytes, writers, parts) in [
        (100, vec![(1, 30), (2, 10)], vec![(1, 75), (2, 25)]),
        (10, vec![(1, 0), (2, 0), (3, 0)], vec![(1, 3), (2, 3), (3, 4)]),
        (7, vec![(1, 0), (2, 5)], vec![(1, 0), (2, 7)]),
        (
            u64::MAX,
            vec![(1, u64::MAX), (2, u64::MAX)],
            vec![(1, u64::MAX / 2), (2, u64::MAX / 2 + 1)],
        ),
        (5, vec![], vec![]),
    ] {
        let mut sample = Sample::default();
        divide(bytes, &writers, &mut sample);
        assert_eq!(written(&sample), parts, "{bytes} {writers:?}");
    }
}
