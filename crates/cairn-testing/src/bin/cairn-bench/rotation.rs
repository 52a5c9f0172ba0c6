//! Rows of processes that run out of step. Each computes for a while, writes a checkpoint as a new
//! file in one call, and renames it over the last but one. The baseline is the same number of
//! processes that copy to their own memory at such times.
//!
//! Every slice has new processes in its own store, which the `cairn` beside this program makes.
//! Only the rounds after the first three count, because those create the files, and only the time
//! in calls. The rates of the processes are added up; with more processes than processors the sum
//! means something only relative to its baseline.

use crate::data::{SharedMapping, create, write_all};
use crate::measure::Row;
use crate::process::{child_command, number_from};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WARM_UP: usize = 3;
const COUNTED: usize = 6;
/// Longest time a process computes between two checkpoints, milliseconds.
const COMPUTING_MS: u64 = 60;
/// Number of processes, and size of a checkpoint in MiB.
const SIZES: [(usize, usize); 5] = [(2, 256), (2, 512), (4, 256), (8, 128), (32, 32)];

/// Works of children: one process, and all processes of a slice.
pub const WORK: &str = "rotate";
pub const SLICE: &str = "rotate-all";

pub fn rates() {
    println!("{}", Row::header());
    for (processes, mebibytes) in SIZES {
        Row::compare(
            format!("{processes} out of step, {mebibytes} MiB each / memcpy"),
            "GB/s",
            1.0,
            || in_store(processes, mebibytes),
            || in_processes(processes, mebibytes, None),
        );
    }
}

fn in_store(processes: usize, mebibytes: usize) -> f64 {
    let own = std::env::current_exe().expect("own path");
    let mut command = Command::new(own.with_file_name("cairn"));
    command.args(["run", "--discard", "--"]).arg(own).args(["child", SLICE]);
    number_from(command.args([processes.to_string(), mebibytes.to_string()]))
}

/// Work of a child in a store. Arguments: number of processes, size of a checkpoint in MiB.
pub fn rotate_all(arguments: &[String]) -> f64 {
    let number = |at: usize| arguments[at].parse().expect("a number");
    let mount = std::env::var("CAIRN_MOUNT").expect("CAIRN_MOUNT");
    in_processes(number(0), number(1), Some(Path::new(&mount)))
}

/// Returns the sum of the rates of all processes, GB/s. Without a directory they copy.
fn in_processes(processes: usize, mebibytes: usize, directory: Option<&Path>) -> f64 {
    let start = |rank: usize| {
        let mut command = child_command(WORK);
        command.args([rank.to_string(), mebibytes.to_string()]).args(directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start a child")
    };
    let children: Vec<_> = (0..processes).map(start).collect();
    let rates = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("a child ends");
        let said = String::from_utf8_lossy(&output.stdout);
        said.trim().parse::<f64>().expect("a rate")
    });
    rates.sum()
}

/// Returns the names of the checkpoints that a process keeps.
fn names(rank: usize) -> [PathBuf; 2] {
    [0, 1].map(|turn| PathBuf::from(format!("rotation.{rank}.{turn}")))
}

/// Work of a child. Arguments: rank, size of a checkpoint in MiB, and the directory, if any.
/// Returns its rate, GB/s.
pub fn rotate(arguments: &[String]) -> f64 {
    let number = |at: usize| arguments[at].parse::<usize>().expect("a number");
    let (rank, bytes) = (number(0), number(1) << 20);
    let state: Vec<u8> = (0..bytes).map(|at| ((at * 31) >> 7) as u8).collect();
    let mut pause_ms = rank as u64 * 7919;
    let mut times = Vec::new();
    let mut go_round = |checkpoint: &mut dyn FnMut(usize)| {
        for round in 0..WARM_UP + COUNTED {
            pause_ms = (pause_ms * 31 + 17) % COMPUTING_MS;
            std::thread::sleep(Duration::from_millis(pause_ms));
            let begun = Instant::now();
            checkpoint(round);
            times.push(begun.elapsed().as_secs_f64());
        }
    };
    match arguments.get(2).map(PathBuf::from) {
        Some(directory) => go_round(&mut |round| {
            let part = directory.join(format!("rotation.{rank}.part"));
            write_all(&create(&part), &state, bytes);
            let name = &names(rank)[round % 2];
            std::fs::rename(&part, directory.join(name)).expect("rename");
        }),
        None => {
            let mapping = SharedMapping::new(bytes);
            go_round(&mut |_| mapping.fill(&state, bytes));
        }
    }
    let counted: f64 = times[WARM_UP..].iter().sum();
    (COUNTED * bytes) as f64 / counted / 1e9
}
