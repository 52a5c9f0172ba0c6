//! Rows about the speed of a tier in a file, against fio with direct I/O on the same bytes of the
//! same file.
//!
//! They need a store whose tier is a file, and destroy its content, so the store must hold nothing
//! else.

use crate::Places;
use crate::data::{CHECKPOINT_BYTES, application_state, create, read_all, write_all};
use crate::durable_files::{durable_namespace, durable_store};
use crate::measure::{Row, gigabytes_per_second};
use crate::process::in_children;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::process::Command;

const CALLS: [(usize, &str); 3] =
    [(128 << 10, "128 KiB"), (1 << 20, "1 MiB"), (16 << 20, "16 MiB")];
const DEPTHS: [usize; 5] = [1, 2, 4, 8, 16];
const TRIALS: usize = 3;

/// fio on the bytes of the tier.
struct Fio {
    file: PathBuf,
    data_offset: u64,
    /// Number of checkpoints that fit into the tier, and the next one to write. Cairn cycles
    /// through the tier, so fio does the same.
    places: u64,
    next: Cell<u64>,
}

/// Returns fio outside Cairn, which would refuse its rings.
fn fio_command() -> Command {
    let mut command = Command::new("fio");
    command.env("CAIRN_STORE", "");
    command
}

/// A job of fio: `write` or `read` in calls of `call_bytes` bytes, with `depth` of them in flight
/// in each process.
#[derive(Clone, Copy)]
struct Job {
    direction: &'static str,
    call_bytes: usize,
    processes: usize,
    depth: usize,
}

impl Fio {
    /// Returns `None`, and prints a line, where fio is missing.
    fn new() -> Option<Fio> {
        let (_, file) = durable_store().expect("checked before any row");
        let tiers = durable_namespace().tiers;
        let data_offset = tiers[0].mappable().expect("a file").offset;
        let places = (tiers[0].bytes() / CHECKPOINT_BYTES as u64).max(1);
        let fio = Fio { file, data_offset, places, next: Cell::new(0) };
        let version = fio_command().arg("--version").output();
        if !version.is_ok_and(|output| output.status.success()) {
            println!("cairn-bench: fio is not installed; no rows about the file tier");
            return None;
        }
        Some(fio)
    }

    /// Runs a job and returns its rate, GB/s.
    fn run(&self, job: Job) -> f64 {
        let each = CHECKPOINT_BYTES / job.processes;
        let offset = self.data_offset + self.next.get() * CHECKPOINT_BYTES as u64;
        if job.direction == "write" {
            self.next.set((self.next.get() + 1) % self.places);
        }
        let mut command = fio_command();
        command.args([
            "--name=bench",
            "--direct=1",
            "--ioengine=io_uring",
            "--end_fsync=1",
            "--group_reporting",
            "--output-format=json",
            "--allow_file_create=0",
            "--overwrite=1",
        ]);
        let options: [(&str, &dyn std::fmt::Display); 8] = [
            ("filename", &self.file.display()),
            ("rw", &job.direction),
            ("bs", &job.call_bytes),
            ("iodepth", &job.depth),
            ("numjobs", &job.processes),
            ("size", &each),
            ("offset", &offset),
            ("offset_increment", &each),
        ];
        command.args(options.map(|(name, value)| format!("--{name}={value}")));
        let output = command.output().expect("fio starts");
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("fio reports in JSON");
        let rate = report["jobs"][0][job.direction]["bw_bytes"].as_f64();
        rate.filter(|rate| *rate > 0.0).expect("fio measured") / 1e9
    }

    /// Returns the job with the depth at which fio is fastest.
    fn best(&self, direction: &'static str, call_bytes: usize, processes: usize) -> Job {
        let job = |depth| Job { direction, call_bytes, processes, depth };
        let fastest = |depth| (0..TRIALS).map(|_| self.run(job(depth))).fold(0.0, f64::max);
        let rates = DEPTHS.map(|depth| (fastest(depth), depth));
        let (_, depth) = rates.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("depths");
        job(depth)
    }
}

/// Measures a checkpoint that is written and made durable, by one process and by two that write a
/// half each.
pub fn writes(places: &Places) {
    let Some(fio) = Fio::new() else { return };
    let state = application_state();
    for (call_bytes, name) in CALLS {
        for processes in [1, 2] {
            let best = fio.best("write", call_bytes, processes);
            Row::compare(
                format!("file, {name} x {processes} + fsync / fio, depth {}", best.depth),
                "GB/s",
                0.97,
                || write_synced(&places.cairn, &state, call_bytes, processes),
                || fio.run(best),
            );
        }
    }
}

fn write_synced(directory: &Path, state: &[u8], call_bytes: usize, processes: usize) -> f64 {
    let part = &state[..state.len() / processes];
    let write = |rank: usize| {
        let file = create(&directory.join(format!("synced.{rank}")));
        write_all(&file, part, call_bytes);
        file.sync_all().expect("fsync");
    };
    match processes {
        1 => gigabytes_per_second(state.len(), || write(0)),
        _ => state.len() as f64 / in_children(processes, write) / 1e9,
    }
}

/// Measures one process that reads a file back.
pub fn reads(places: &Places) {
    let Some(fio) = Fio::new() else { return };
    let mut state = application_state();
    let file = create(&places.cairn.join("synced.0"));
    write_all(&file, &state, 1 << 20);
    file.sync_all().expect("fsync");
    let state = RefCell::new(&mut state);
    for (call_bytes, name) in CALLS {
        let best = fio.best("read", call_bytes, 1);
        Row::compare(
            format!("file read, {name} / fio, depth {}", best.depth),
            "GB/s",
            0.99,
            || {
                let mut state = state.borrow_mut();
                gigabytes_per_second(CHECKPOINT_BYTES, || read_all(&file, &mut state, call_bytes))
            },
            || fio.run(best),
        );
    }
}
