//! Sends checkpoints from a store, with a clock that advances only when somebody waits.

use cairn_core::ROOT;
use cairn_platform::checksum;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::archive::client::tests::client;
use crate::archive::object_store::{Mood, ObjectStore, Trouble};
use crate::drain::pace::tests::Virtual;
use crate::drain::pace::{Clock, Pace};
use crate::model::policy::DrainPolicy;
use crate::test_store::TestStore;
use cairn_job::checkpoint::name::{Family, Name};
use cairn_job::checkpoint::sets::register::Level;

const MIB: u64 = 1 << 20;

/// Returns the content of file `number`.
fn content(number: usize, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|place| ((place / 3) as u8).wrapping_add(number as u8)).collect()
}

/// A store with checkpoints.
struct World(TestStore);

impl Deref for World {
    type Target = TestStore;

    fn deref(&self) -> &TestStore {
        &self.0
    }
}

impl World {
    fn new() -> World {
        World(TestStore::new())
    }

    /// Writes files of these lengths and returns a checkpoint of them.
    fn checkpoint(&self, files: &[(&str, u64)]) -> register::Checkpoint {
        let files = files.iter().enumerate();
        let files: Vec<_> =
            files.map(|(number, (name, bytes))| (*name, content(number, *bytes))).collect();
        self.checkpoint_of(&files)
    }

    /// Writes files of these contents and returns a checkpoint of them.
    fn checkpoint_of(&self, files: &[(&str, Vec<u8>)]) -> register::Checkpoint {
        files.iter().for_each(|(name, content)| self.write(name, content, 0o640, 1));
        let member = |(path, node): (FilePath, cairn_job::file::node::Node)| Member {
            path,
            inode: node.inode,
            version: node.version,
            bytes: node.bytes,
        };
        let files = self.volume.tree().expect("lists").into_iter().map(member).collect();
        register::Checkpoint {
            id: 1,
            name: Name { family: Family(b"f".to_vec()), step: None },
            ordinal: 1,
            completed_ns: 1_500_000_000,
            modified_ns: 1_500_000_000,
            wanted: Level::Node,
            level: Level::Node,
            files,
        }
    }

    fn send(
        &self,
        server: &ObjectStore,
        known: &register::Checkpoint,
        meter: &Meter,
    ) -> Result<()> {
        self.send_until(server, known, meter, &|_| true)
    }

    /// Sends a checkpoint; the agent ends when `progress` says so.
    fn send_until(
        &self,
        server: &ObjectStore,
        known: &register::Checkpoint,
        meter: &Meter,
        progress: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<()> {
        let uploader = Uploader {
            client: &client(server.url()),
            job: &self.job,
            volumes: &[Arc::clone(&self.volume)],
            archived: &mut Vec::new(),
            begun: &Notes::of(&self.path),
            buffer: &mut Buffer::default(),
            meter,
            progress,
        };
        { uploader }.send(known)
    }
}

#[test]
fn bytes_arrive_no_faster_than_the_drain_may_go() {
    const RATE: u64 = 4 * MIB;
    const BURST: Duration = Duration::from_millis(100);
    let clock = Virtual::default();
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let (heard, time) = (Arc::clone(&arrived), clock.clone());
    let note = move |bytes| heard.lock().expect("whole").push((time.now(), bytes));
    let server = ObjectStore::watched(&[], Box::new(note));
    let world = World::new();
    let known = world.checkpoint(&[("large", 20 * MIB + 5), ("small", MIB), ("smaller", 3)]);
    let mut meter = Meter::default();
    meter.pace = Pace::new(Box::new(clock.clone()));
    meter.pace.set(&DrainPolicy { rate_bytes: Some(RATE), ..DrainPolicy::default() });
    world.send(&server, &known, &meter).expect("is sent");

    let arrived = arrived.lock().expect("whole");
    let mut before = 0;
    for (at, bytes) in arrived.iter() {
        let allowed = RATE as f64 * (*at + BURST).as_secs_f64();
        assert!(before as f64 <= allowed, "{before} bytes before {at:?}, allowed are {allowed}");
        before += bytes;
    }
    // Three parts, two files, the manifest object and the mark of the job.
    assert!(before > 21 * MIB && arrived.len() == 7, "{arrived:?}");
    assert!(clock.now() >= Duration::from_millis(5100), "{:?}", clock.now());
    let report = meter.pace.report();
    assert_eq!((report.admitted_bytes, report.waited_ms), (0, 0), "the drain did none of it");
    assert!(meter.pace.rates().free.is_none(), "nor was its speed measured");
}

/// Size of a file that is sent in four parts.
const LARGE: u64 = 4 * PART_BYTES_MIN - 3;

/// Returns a server that has three of the four parts of a checkpoint's only file, sent by an agent
/// that ended then.
fn begun(troubles: &[Trouble]) -> (World, ObjectStore, register::Checkpoint) {
    let (world, server) = (World::new(), ObjectStore::start(&[]));
    client(server.url()).put_small("deep/job/cairn-archive", b"job").expect("is written");
    troubles.iter().for_each(|trouble| server.trouble(*trouble));
    let known = world.checkpoint(&[("large", LARGE)]);
    let asked = AtomicU64::new(0);
    // `progress` is called after every 4 MiB.
    let progress = |_| asked.fetch_add(1, Ordering::Relaxed) < 5;
    let ended = world.send_until(&server, &known, &Meter::default(), &progress);
    assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
    assert_eq!((server.take_parts(), server.unfinished()), (vec![1, 2, 3], 1));
    (world, server, known)
}

/// Asserts that the server has the file with this content, and no unfinished upload.
fn assert_sent(server: &ObjectStore, content: &[u8]) {
    let found = client(server.url()).look("deep/job/large").expect("answers").expect("is there");
    assert_eq!(found.crc32c, Some(checksum::crc32c(0, content)));
    assert!(server.object("runs/deep/job/large").expect("is there") == content);
    assert_eq!(server.unfinished(), 0);
}

#[test]
fn parts_that_are_there_are_not_sent_again() {
    let (world, server, known) = begun(&[]);
    world.send(&server, &known, &Meter::default()).expect("is sent");
    assert_eq!((server.take_parts(), server.begun()), (vec![4], 1));
    assert_sent(&server, &content(0, LARGE));
}

#[test]
fn part_that_is_there_with_another_content_is_sent_again() {
    let (world, server, known) = begun(&[]);
    server.damage_part(2, |bytes| bytes[100] ^= 4);
    server.damage_part(3, |bytes| bytes.truncate(MIB as usize));
    world.send(&server, &known, &Meter::default()).expect("is sent");
    assert_eq!((server.take_parts(), server.begun()), (vec![2, 3, 4], 1));
    assert_sent(&server, &content(0, LARGE));
}

#[test]
fn parts_of_a_server_that_compares_no_checksums_are_sent_again() {
    let (world, server, known) = begun(&[Trouble::NoChecksums; 3]);
    world.send(&server, &known, &Meter::default()).expect("is sent");
    assert_eq!((server.take_parts(), server.begun()), (vec![1, 2, 3, 4], 1));
    assert_sent(&server, &content(0, LARGE));
}

/// The first parts of both versions are equal, but the checksum in the upload's metadata would be
/// wrong.
#[test]
fn file_that_changed_since_has_no_part_of_what_it_was() {
    let (world, server, _) = begun(&[]);
    let mut content = content(0, LARGE);
    *content.last_mut().expect("is long") ^= 1;
    let (fs, caller) = (world.volume.fs(), world.volume.caller());
    fs.unlink(&caller, ROOT, b"large").expect("removes");
    let known = world.checkpoint_of(&[("large", content.clone())]);
    world.send(&server, &known, &Meter::default()).expect("is sent");
    assert_eq!((server.take_parts(), server.begun()), (vec![1, 2, 3, 4], 2));
    assert_sent(&server, &content);
}

#[test]
fn server_that_does_not_say_what_is_there_gets_all_of_it_again() {
    let (world, server, known) = begun(&[]);
    server.set_mood(Mood::Secretive);
    world.send(&server, &known, &Meter::default()).expect("is sent");
    assert_eq!((server.take_parts(), server.begun()), (vec![1, 2, 3, 4], 2));
    assert_sent(&server, &content(0, LARGE));
}

#[test]
fn object_whose_parts_the_server_has_lost_is_begun_again() {
    let (world, server, known) = begun(&[]);
    client(server.url()).abort("deep/job/large", "1").expect("is given up");
    world.send(&server, &known, &Meter::default()).expect("is sent");
    assert_eq!((server.take_parts(), server.begun()), (vec![1, 2, 3, 4], 2));
    assert_sent(&server, &content(0, LARGE));
}

#[test]
fn no_object_has_more_parts_than_it_may_have() {
    for bytes in [PART_BYTES_MIN + 1, 80 << 30, (80 << 30) + 1, 5 << 40] {
        assert!(bytes.div_ceil(part_bytes(bytes)) <= PARTS_MAX, "{bytes}");
    }
    assert_eq!(part_bytes(1 << 30), PART_BYTES_MIN);
}
