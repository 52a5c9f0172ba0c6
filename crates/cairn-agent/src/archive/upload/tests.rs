//! A checkpoint sent from a store, against a clock that only passes when somebody waits.

use super::*;
use crate::archive::client::tests::client;
use crate::archive::object_store::ObjectStore;
use crate::pace::tests::Virtual;
use crate::pace::{Clock, Pace};
use crate::policy::DrainPolicy;
use crate::sets::{Family, Name, register::Level};
use crate::test_store::TestStore;
use std::ops::Deref;
use std::sync::Mutex;
use std::time::Duration;

const MIB: u64 = 1 << 20;

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

    /// A checkpoint of files of these lengths.
    fn checkpoint(&self, files: &[(&str, u64)]) -> register::Checkpoint {
        for (number, (name, bytes)) in files.iter().enumerate() {
            let content: Vec<u8> =
                (0..*bytes).map(|place| ((place / 3) as u8).wrapping_add(number as u8)).collect();
            self.write(name, &content, 0o640, 1);
        }
        let member = |(path, node): (FilePath, crate::plan::Node)| Member {
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
        let uploader = Uploader {
            client: &client(server.url()),
            job: &self.job,
            volumes: &[Arc::clone(&self.volume)],
            archived: &mut Vec::new(),
            buffer: &mut Buffer::default(),
            meter,
            progress: &|_| true,
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
    // Three parts, two files, and what says that they are there and whose they are.
    assert!(before > 21 * MIB && arrived.len() == 7, "{arrived:?}");
    assert!(clock.now() >= Duration::from_millis(5100), "{:?}", clock.now());
    let report = meter.pace.report();
    assert_eq!((report.admitted_bytes, report.waited_ms), (0, 0), "the drain did none of it");
    assert!(meter.pace.rates().free.is_none(), "nor was its speed measured");
}

#[test]
fn no_object_has_more_parts_than_it_may_have() {
    for bytes in [PART_BYTES_MIN + 1, 80 << 30, (80 << 30) + 1, 5 << 40] {
        assert!(bytes.div_ceil(part_bytes(bytes)) <= PARTS_MAX, "{bytes}");
    }
    assert_eq!(part_bytes(1 << 30), PART_BYTES_MIN);
}
