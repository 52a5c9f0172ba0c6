//! Row about ranks with one namespace each (`--scope rank`): the rate of creates in a rank while
//! the others do the same, against one rank alone.
//!
//! Every slice runs in its own store, which the `cairn` beside this program makes.

use crate::measure::{PAIRS, Row, thousands_per_second};
use crate::metadata::{create, names, unlink};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const FILES: usize = 20_000;
const ROUNDS: usize = 5;

/// Measures as many ranks as there are processors, against one.
pub fn creates() {
    println!("{}", Row::header());
    let ranks = std::thread::available_parallelism().map_or(1, usize::from);
    let pairs: Vec<_> = (0..PAIRS).map(|_| (run(ranks), run(1))).collect();
    Row::print(format!("create+close, each of {ranks} ranks / one"), "k/s", 0.95, &pairs);
}

/// Returns the average rate of creates per rank, thousands per second.
fn run(ranks: usize) -> f64 {
    let own = std::env::current_exe().expect("own path");
    let mut command = Command::new(own.with_file_name("cairn"));
    command.args(["run", "--discard", "--scope", "rank", "--tier", "ram:64M", "--"]);
    command.arg(&own).args(["child", "ranks", &ranks.to_string()]);
    let output = command.output().expect("cairn starts");
    let rate = String::from_utf8_lossy(&output.stdout).trim().parse();
    rate.unwrap_or_else(|_| panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Work of a child: starts ranks as a launcher does and lets them begin together. Returns their
/// average rate.
pub fn start(ranks: usize) -> f64 {
    let own = std::env::current_exe().expect("own path");
    let start = |rank: usize| {
        let mut command = Command::new(&own);
        command.args(["child", "rank"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("OMPI_COMM_WORLD_RANK", rank.to_string());
        command.env("OMPI_COMM_WORLD_LOCAL_SIZE", ranks.to_string());
        command.spawn().expect("a rank starts")
    };
    let mut children: Vec<_> = (0..ranks).map(start).collect();
    for child in &mut children {
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("a rank is ready");
    }
    for child in &mut children {
        child.stdin.as_mut().expect("piped").write_all(&[0]).expect("a rank begins");
    }
    let rates = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("a rank ends");
        let rate: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a rate");
        rate
    });
    rates.sum::<f64>() / ranks as f64
}

/// Work of a rank. Returns thousands of creates per second.
pub fn create_files() -> f64 {
    let mount = std::env::var("CAIRN_MOUNT").expect("CAIRN_MOUNT");
    let names = names(Path::new(&mount), FILES);
    create(&names);
    unlink(&names);
    print!(" ");
    std::io::stdout().flush().expect("say that it is ready");
    std::io::stdin().read_exact(&mut [0]).expect("wait for the others");
    let rounds = (0..ROUNDS).map(|_| {
        let rate = thousands_per_second(FILES, || create(&names));
        unlink(&names);
        rate
    });
    rounds.sum::<f64>() / ROUNDS as f64
}
