//! Rows about checkpoints of which a part does not fit into memory, against what CRUISE's formula
//! expects of a store that uses one tier after the other: size / (size in memory / rate of memory +
//! size in the file / rate of the file) (CRUISE, HPDC 2013: "Spill-over to SSD"). And about reading
//! one that stands in the file again, once it was promoted.
//!
//! Every part is measured in a store of its own, which `cairn` beside this program makes.

use crate::data::{CHECKPOINT_BYTES, application_state, create, read_all, write_all};
use crate::measure::{PAIRS, Row, gigabytes_per_second};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Parts of a checkpoint that spill, one in so many; 0: none. The paper's, and nothing and
/// everything for the rates.
const PARTS: [usize; 7] = [0, 32, 16, 8, 4, 2, 1];
/// Room beside the checkpoint.
const SPARE_BYTES: usize = 16 << 20;
/// Memory for a checkpoint and what is left to writes.
const MEMORY_BYTES: usize = CHECKPOINT_BYTES / 2 * 3;

/// Checkpoints with ever more of them in a file that is made at `path`.
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

/// GB/s of the second read of a checkpoint that was written when the memory was full and is not any
/// more.
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

/// GB/s of a checkpoint in a new store whose memory lacks room for a part of it.
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

/// What a child says about its work in a new store.
fn in_store(options: &[&str], work: &str) -> f64 {
    let own = std::env::current_exe().expect("own path");
    let mut command = cairn();
    command.args(["run", "--discard"]).args(options).arg("--").arg(&own).args(["child", work]);
    let output = command.output().expect("cairn starts");
    let rate = String::from_utf8_lossy(&output.stdout).trim().parse();
    rate.unwrap_or_else(|_| panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The work of a child: GB/s of a checkpoint that replaces another.
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

/// The work of a child: GB/s of the second read of a checkpoint that stood in the file when it was
/// written. If it is `promoted`, it is in memory by then.
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

/// Bytes of this process's store that stand in its file.
fn bytes_in_file() -> u64 {
    let store = std::env::var("CAIRN_STORE").expect("CAIRN_STORE");
    let job = Path::new(&store).file_name().expect("a name");
    let output = cairn().arg("status").arg(job).arg("--json").output().expect("cairn starts");
    let status: Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    status[0]["tiers"][1]["used_bytes"].as_u64().expect("a number")
}

/// The command beside this program.
fn cairn() -> Command {
    Command::new(std::env::current_exe().expect("own path").with_file_name("cairn"))
}
