//! A store for tests: one namespace in memory, and a job, in a temporary directory that is removed
//! on drop.

use cairn_core::Geometry;
use cairn_device::Store;
use cairn_device::store::namespace::create_namespace;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::model::job::{DeviceKind, JOB_FORMAT, Job, Scope, TierSpec};
use crate::store::volume::Volume;
use crate::store::write::{NewFile, overwrite};
use cairn_job::file::path::FilePath;

const BLOCKS: u32 = 1024;

pub struct TestStore {
    pub scratch: PathBuf,
    /// Directory of the store.
    pub path: PathBuf,
    pub volume: Arc<Volume>,
    pub job: Job,
}

impl TestStore {
    /// Creates an empty store of a job without persist directory that has had no run.
    pub fn new() -> TestStore {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cairn-agent-test-{}-{count}", std::process::id());
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
            shared: false,
            launch: None,
            scope: Scope::Node,
            tiers: vec![TierSpec { device: DeviceKind::Ram, path: None, bytes: 0 }],
            meta: None,
            promote: false,
            runs: 0,
            pending: None,
            recovered: None,
            metrics: None,
            log: Default::default(),
            checkpoint: Default::default(),
            drain: Default::default(),
            space: Default::default(),
            archive: None,
            created: 0,
            command: Vec::new(),
        };
        TestStore { scratch, path: store.path().to_path_buf(), volume: Arc::new(volume), job }
    }

    /// Creates a directory beside the store.
    pub fn directory(&self, name: &str) -> PathBuf {
        let directory = self.scratch.join(name);
        fs::create_dir_all(&directory).expect("a directory");
        directory
    }

    /// Creates a file, or replaces an existing one.
    pub fn write(&self, name: &str, content: &[u8], mode: u32, mtime_seconds: i64) {
        let mut file = NewFile::create(&self.volume, &path(name)).expect("creates");
        file.append(content).expect("writes");
        file.finish(mode, mtime_seconds * 1_000_000_000).expect("finishes");
    }

    /// Overwrites bytes of a file, or appends behind its end.
    pub fn overwrite(&self, name: &str, offset: u64, content: &[u8]) {
        overwrite(&self.volume, &path(name), offset, content).expect("writes");
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

pub fn path(text: &str) -> FilePath {
    FilePath::parse(text.as_bytes()).expect("a valid path")
}
