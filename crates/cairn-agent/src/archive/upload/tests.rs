//! A checkpoint sent from a store, against a clock that only passes when somebody waits.

use super::*;
use crate::archive::client::tests::client;
use crate::archive::object_store::ObjectStore;
use crate::job::{DeviceKind, JOB_FORMAT, Scope, TierSpec};
use crate::pace::tests::Virtual;
use crate::pace::{Clock, Pace};
use crate::policy::DrainPolicy;
use crate::sets::{Family, Name, register::Level};
use crate::write::NewFile;
use cairn_core::Geometry;
use cairn_device::Store;
use cairn_device::namespace::create_namespace;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BLOCKS: u32 = 1024;

/// A store with checkpoints.
struct World {
    scratch: PathBuf,
    volume: Arc<Volume>,
    job: Job,
}

impl World {
    fn new() -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cairn-upload-test-{}-{count}", std::process::id());
        let scratch = std::env::temp_dir().join(name);
        fs::create_dir_all(&scratch).expect("a scratch directory");
        let store = Store::create(&scratch, "job").expect("makes");
        let geometry = Geometry::new(b"/cairn", [BLOCKS, 0, 0, 0], 0);
        create_namespace(&store, "node", geometry, false).expect("makes");
        let volume = Volume::open(&store, "node", FilePath::root()).expect("opens");
        let job = Job {
            format: JOB_FORMAT,
            job: "job".into(),
            store: "0123456789abcdef".into(),
            mount: "/cairn".into(),
            persist: None,
            map: Default::default(),
            persist_id: None,
            scope: Scope::Node,
            tiers: vec![TierSpec { device: DeviceKind::Ram, path: None, bytes: 0 }],
            meta: None,
            promote: false,
            runs: 1,
            metrics: None,
            checkpoint: Default::default(),
            drain: DrainPolicy::default(),
            space: Default::default(),
            archive: None,
            log: Default::default(),
            created: 0,
            command: Vec::new(),
        };
        World { scratch, volume: Arc::new(volume), job }
    }

    /// A checkpoint of files of these lengths.
    fn checkpoint(&self, files: &[(&str, u64)]) -> register::Checkpoint {
        for (number, (name, bytes)) in files.iter().enumerate() {
            let path = FilePath::parse(name.as_bytes()).expect("a path");
            let mut file = NewFile::create(&self.volume, &path).expect("creates");
            let content: Vec<u8> =
                (0..*bytes).map(|place| ((place / 3) as u8).wrapping_add(number as u8)).collect();
            file.append(&content).expect("writes");
            file.finish(0o640, 1_500_000_000).expect("finishes");
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

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
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
    assert!(before > 21 * MIB && arrived.len() == 6, "{arrived:?}");
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
