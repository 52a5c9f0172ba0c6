//! Rows about checkpoints of which a part does not fit into memory, against what CRUISE's formula expects of a store that
//! uses one tier after the other: size / (size in memory / rate of memory + size in the file / rate of the file)
//! (CRUISE, HPDC 2013: "Spill-over to SSD").
//!
//! Every part is measured in a store of its own, which `cairn` beside this program makes.

use crate::data::{CHECKPOINT_BYTES, application_state, create, write_all};
use crate::measure::{PAIRS, Row, gigabytes_per_second};
use std::path::Path;
use std::process::Command;

/// Parts of a checkpoint that spill, one in so many; 0: none. The paper's, and nothing and everything for the rates.
const PARTS: [usize; 7] = [0, 32, 16, 8, 4, 2, 1];
/// Room beside the checkpoint.
const SPARE_BYTES: usize = 16 << 20;

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
    let own = std::env::current_exe().expect("own path");
    let mut command = Command::new(own.with_file_name("cairn"));
    command.args(["run", "--discard", "--tier", &format!("ram:{in_memory}")]);
    if part > 0 {
        let bytes = in_file + SPARE_BYTES;
        command.args(["--tier", &format!("file:{}:{bytes}", path.display())]);
    }
    command.arg("--").arg(&own).args(["child", "spill"]);
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
