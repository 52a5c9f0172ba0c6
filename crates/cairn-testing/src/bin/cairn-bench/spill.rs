//! Rows about checkpoints that do not fit completely into memory. They are compared with CRUISE's
//! formula for a store that uses one tier after the other (CRUISE, HPDC 2013: "Spill-over to SSD"):
//!
//! ```text
//! size / (size in memory / rate of memory + size in the file / rate of the file)
//! ```
//!
//! A further row reads a checkpoint from the file again, after its promotion.
//!
//! Every part is measured in its own store, which the `cairn` beside this program makes.

use crate::data::{CHECKPOINT_BYTES, application_state, create, read_all, write_all};
use crate::measure::{PAIRS, Row, gigabytes_per_second};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Share of a checkpoint that spills, as one in this many; 0 for none. The values are those of the
/// paper, plus nothing and everything for the rates of the tiers.
const PARTS: [usize; 7] = [0, 32, 16, 8, 4, 2, 1];
/// Free space beside the checkpoint, bytes.
const SPARE_BYTES: usize = 16 << 20;
/// Memory for a checkpoint and for the reserve kept for writes, bytes.
const MEMORY_BYTES: usize = CHECKPOINT_BYTES / 2 * 3;

/// Measures checkpoints that spill to an increasing share. The file is made at `path`.
pub fn rates(path: &Path) {
    println!("{}", Row::header());
    let rounds: Vec<[f64; 7]> = (0..PAIRS).map(|_| PARTS.map(|part| rate(part, path))).collect();
    for (index, &part) in PARTS.iter().enumerate() {
        let pairs: Vec<_> =
            rounds.iter().map(|rates| (rates[index], expected(part, rates))).collect();
        let percent = spilled(part) * 100.0;
        Row::print(format!("checkpoint, {percent} % spilled / formula"), "GB/s", 0.9, &pairs);
    }
    let reads =
        || (second_read(&["--promote"], "promoted", path), second_read(&[], "read-again", path));
    let pairs: Vec<_> = (0..PAIRS).map(|_| reads()).collect();
    Row::print("read again, --promote / without", "GB/s", None, &pairs);
}

/// Returns the rate of the second read of a checkpoint, GB/s. Memory is full when the checkpoint is
/// written, and has room again when it is read.
fn second_read(options: &[&str], work: &str, path: &Path) -> f64 {
    let memory = format!("ram:{MEMORY_BYTES}");
    let file = format!("file:{}:{}", path.display(), CHECKPOINT_BYTES + SPARE_BYTES);
    in_store(&[&["--tier", &memory, "--tier", &file], options].concat(), work)
}

fn spilled(part: usize) -> f64 {
    if part == 0 { 0.0 } else { 1.0 / part as f64 }
}

fn expected(part: usize, rates: &[f64; 7]) -> f64 {
    let (memory, file) = (rates[0], rates[PARTS.len() - 1]);
    let spilled = spilled(part);
    1.0 / ((1.0 - spilled) / memory + spilled / file)
}

/// Returns the rate of a checkpoint in a new store whose memory has no room for a part of it, GB/s.
fn rate(part: usize, path: &Path) -> f64 {
    let in_file = CHECKPOINT_BYTES.checked_div(part).unwrap_or(0);
    let in_memory = match part {
        0 => CHECKPOINT_BYTES + SPARE_BYTES,
        _ => (CHECKPOINT_BYTES - in_file).max(1 << 20),
    };
    let memory = format!("ram:{in_memory}");
    let file = format!("file:{}:{}", path.display(), in_file + SPARE_BYTES);
    match part {
        0 => in_store(&["--tier", &memory], "spill"),
        _ => in_store(&["--tier", &memory, "--tier", &file], "spill"),
    }
}

/// Runs a child with `work` in a new store and returns the figure it prints.
fn in_store(options: &[&str], work: &str) -> f64 {
    let own = std::env::current_exe().expect("own path");
    let mut command = cairn();
    command.args(["run", "--discard"]).args(options).arg("--").arg(&own).args(["child", work]);
    let output = command.output().expect("cairn starts");
    let rate = String::from_utf8_lossy(&output.stdout).trim().parse();
    rate.unwrap_or_else(|_| panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Work of a child: replaces a checkpoint by another. Returns the rate, GB/s.
pub fn checkpoint() -> f64 {
    let mount = std::env::var("CAIRN_MOUNT").expect("CAIRN_MOUNT");
    let path = Path::new(&mount).join("checkpoint");
    let state = application_state();
    let write = || {
        let file = create(&path);
        write_all(&file, &state, 1 << 20);
        file.sync_all().expect("fsync");
    };
    write();
    write();
    gigabytes_per_second(state.len(), write)
}

/// Work of a child: reads a checkpoint that was written to the file twice. Returns the rate of the
/// second read, GB/s. With `promoted` the checkpoint is in memory by then.
pub fn read_again(promoted: bool) -> f64 {
    let mount = std::env::var("CAIRN_MOUNT").expect("CAIRN_MOUNT");
    let mut state = application_state();
    let filler = Path::new(&mount).join("filler");
    let file = create(&filler);
    (0..MEMORY_BYTES >> 20).for_each(|_| write_all(&file, &[0; 1 << 20], 1 << 20));
    let checkpoint = create(&Path::new(&mount).join("checkpoint"));
    write_all(&checkpoint, &state, 1 << 20);
    checkpoint.sync_all().expect("fsync");
    drop(file);
    std::fs::remove_file(filler).expect("removes");
    read_all(&checkpoint, &mut state, 1 << 20);
    while promoted && bytes_in_file() > 0 {
        std::thread::sleep(Duration::from_millis(50));
    }
    gigabytes_per_second(state.len(), || read_all(&checkpoint, &mut state, 1 << 20))
}

/// Returns the number of bytes of this process's store that are in its file.
fn bytes_in_file() -> u64 {
    let store = std::env::var("CAIRN_STORE").expect("CAIRN_STORE");
    let job = Path::new(&store).file_name().expect("a name");
    let output = cairn().arg("status").arg(job).arg("--json").output().expect("cairn starts");
    let status: Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    status[0]["tiers"][1]["used_bytes"].as_u64().expect("a number")
}

/// Returns the `cairn` command beside this program.
fn cairn() -> Command {
    Command::new(std::env::current_exe().expect("own path").with_file_name("cairn"))
}
