//! Stress test with many processes on one store: they fork, execute, pass descriptors, are killed
//! and end in every way (`programs/storm.c`). All rounds use the same store.
//!
//! Proves after each round:
//! - Files contain what was acknowledged to their writers, once, whole and in order, and nothing
//!   else.
//! - Every process slot, reference, pin, block and inode is released.
//! - The store's invariants hold, although dead processes were reaped during the round.
//!
//! The seed determines a round, except for races. `CAIRN_TEST_SEED=n` repeats one,
//! `CAIRN_TEST_SEEDS=n` plays that many; `make soak` plays 1000. Does not test the death of the
//! node.

mod common;

use std::fs::{self, File};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cairn_core::{Geometry, Report};
use cairn_device::store::namespace::{create_namespace, open_namespace};
use cairn_device::{Namespace, Store};
use cairn_testing::random::{for_each_seed, soaking};
use common::Stage;

const SOAK_ROUNDS: u64 = 1000;
const ROUNDS: u64 = 30;
/// Number of hugeblocks in the store: 64 MiB.
const BLOCKS: u32 = 2048;
const INODES: u32 = 4096;
/// Size of the board, the file that the processes report to; more than the program needs.
const BOARD_BYTES: u64 = 1 << 16;
/// Interval at which dead processes are reaped during a round.
const REAP_EVERY: Duration = Duration::from_millis(2);
/// Seconds after which a round is considered hung.
const PATIENCE: &str = "300";

/// The store of all rounds.
struct SharedStore {
    root: PathBuf,
    store: PathBuf,
    namespace: Namespace,
}

impl SharedStore {
    fn new() -> SharedStore {
        let root = PathBuf::from(format!("/dev/shm/cairn-storm-{}", std::process::id()));
        fs::create_dir(&root).expect("a root of our own");
        let store = Store::create(&root, "storm").expect("a store");
        let geometry = Geometry {
            hugeblock_bytes: 32 << 10,
            inode_capacity: INODES,
            ..Geometry::new(b"/cairn", [BLOCKS, 0, 0, 0], 0)
        };
        create_namespace(&store, "node", geometry, false).expect("a namespace");
        let namespace = open_namespace(&store, "node").expect("the namespace");
        SharedStore { root, store: store.path().to_path_buf(), namespace }
    }

    /// Reaps dead processes. Returns the number of remaining processes.
    fn reap(&self) -> usize {
        self.namespace.reap().expect("reaps");
        self.namespace.fs.processes().expect("processes").len()
    }

    /// Frees the blocks of deleted files and checks the whole store.
    fn check(&self) -> Report {
        while self.namespace.fs.reclaim(None).expect("reclaims") {}
        self.namespace.fs.check().expect("the store is whole")
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A round: its seed, program, board and store.
struct Round<'a> {
    sky: &'a SharedStore,
    program: &'a Path,
    board: &'a Path,
    seed: u64,
}

impl Round<'_> {
    /// Runs a part of the round to its end. Returns its output.
    fn play(&self, part: &str) -> String {
        let output = Command::new("timeout")
            .args(["-s", "KILL", PATIENCE])
            .arg(self.program)
            .args([part, &format!("/cairn/round.{}", self.seed)])
            .arg(self.board)
            .arg(self.seed.to_string())
            .env("LD_PRELOAD", common::library())
            .env("CAIRN_STORE", &self.sky.store)
            .env("CAIRN_MOUNT", "/cairn")
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        let errors = common::errors(&output);
        assert_eq!(output.status.code(), Some(0), "seed {}, {part}: {errors}", self.seed);
        common::text(&output).trim_end().to_owned()
    }

    /// Runs the storm while another thread reaps.
    fn run_storm(&self) {
        File::create(self.board).and_then(|file| file.set_len(BOARD_BYTES)).expect("a board");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    self.sky.reap();
                    thread::park_timeout(REAP_EVERY);
                }
            });
            let played = panic::catch_unwind(AssertUnwindSafe(|| self.play("storm")));
            is_over.store(true, Ordering::Relaxed);
            played.unwrap_or_else(|panic| panic::resume_unwind(panic));
        });
    }
}

#[test]
fn storm_of_processes_leaves_what_was_acknowledged_and_nothing_else() {
    let stage = Stage::new();
    let program = stage.compile("storm");
    let board = stage.plain().join("board");
    let sky = SharedStore::new();
    let before = sky.check();
    let rounds = if soaking() { SOAK_ROUNDS } else { ROUNDS };
    for_each_seed(rounds, |seed| {
        let round = Round { sky: &sky, program: &program, board: &board, seed };
        round.run_storm();
        assert_eq!(sky.reap(), 0, "seed {seed}: processes that are left");
        println!("{}", round.play("check"));
        assert_eq!(sky.reap(), 0, "seed {seed}: processes that are left");
        assert_eq!(sky.check(), before, "seed {seed}: what is left");
    });
}
