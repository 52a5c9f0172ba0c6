//! Rows of new stores: checkpoints that are all kept, small files, and writes to one file by two
//! ranks, each against the same in a new directory on tmpfs.
//!
//! Every slice runs in its own store, which the `cairn` beside this program makes. Before each
//! slice, memory is used and given back. Otherwise a virtual machine may first have to get memory
//! that was not used for a while from its host, ten times slower than it clears it, and chance
//! decides which of the two sides pays for that.

use crate::data::{create, write_all};
use crate::measure::{PAIRS, Row, gigabytes_per_second, thousands_per_second};
use crate::process::{child_command, in_children, number_from};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const KEPT: usize = 4;
const KEPT_BYTES: usize = 512 << 20;
/// Time that a program computes between checkpoints, in the rows where it computes.
const COMPUTING: Duration = Duration::from_secs(1);
const FILES: usize = 20_000;
const PIECE: usize = 4 << 10;
const SHARED_BYTES: usize = 256 << 20;
const RANKS: usize = 2;
/// More memory than a slice takes, bytes.
const READY_BYTES: usize = 3 << 30;

/// A row: the child's work, the row's name, its unit and its bar.
type Part = (&'static str, &'static str, &'static str, f64);

const PARTS: [Part; 5] = [
    ("kept", "512 MiB, four kept, one after the other / tmpfs", "GB/s", 1.0),
    ("kept-computing", "512 MiB, four kept, a second apart / tmpfs", "GB/s", 2.0),
    ("small", "files of 4 KiB made / tmpfs", "k/s", 1.5),
    ("shared-random", "4 KiB at random, two ranks, one file / tmpfs", "k/s", 3.0),
    ("shared-sequence", "4 KiB in sequence, two ranks, one file / tmpfs", "k/s", 3.0),
];

/// Whether `name` is a work of a child.
pub fn is_work(name: &str) -> bool {
    PARTS.iter().any(|(work, ..)| *work == name)
}

/// Prints all rows, or those of a part. Further arguments are options for `cairn run`.
pub fn rates(arguments: &[String]) {
    let (only, options) =
        arguments.split_first().map_or(("", arguments), |(part, rest)| (part.as_str(), rest));
    println!("{}", Row::header());
    for (work, name, unit, bar) in PARTS.into_iter().filter(|(work, ..)| work.contains(only)) {
        let pairs: Vec<_> = (0..PAIRS).map(|_| (on_cairn(work, options), on_tmpfs(work))).collect();
        Row::print(name, unit, bar, &pairs);
    }
}

/// Makes the machine's host provide the memory that the next slice takes.
fn ready_memory() {
    // SAFETY: a new anonymous mapping, touched only within its length and unmapped before anything
    // else knows of it.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = libc::mmap(std::ptr::null_mut(), READY_BYTES, protection, flags, -1, 0);
        assert!(start != libc::MAP_FAILED, "no memory");
        libc::madvise(start, READY_BYTES, libc::MADV_HUGEPAGE);
        (0..READY_BYTES).step_by(4096).for_each(|at| start.cast::<u8>().add(at).write_volatile(1));
        libc::munmap(start, READY_BYTES);
    }
}

fn on_cairn(work: &str, options: &[String]) -> f64 {
    ready_memory();
    let own = std::env::current_exe().expect("own path");
    let mut command = Command::new(own.with_file_name("cairn"));
    command.args(["run", "--discard"]).args(options).arg("--").arg(own).args(["child", work]);
    number_from(&mut command)
}

fn on_tmpfs(work: &str) -> f64 {
    ready_memory();
    let directory = PathBuf::from("/dev/shm").join(format!("cairn-bench.{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory on tmpfs");
    let figure = number_from(child_command(work).arg(&directory));
    std::fs::remove_dir_all(&directory).expect("what was made can be removed");
    figure
}

/// Work of a child, in the given directory or below the mount point. Returns its rate.
pub fn rate(work: &str, directory: Option<&String>) -> f64 {
    let mount = || std::env::var("CAIRN_MOUNT").expect("CAIRN_MOUNT");
    let directory = PathBuf::from(directory.cloned().unwrap_or_else(mount));
    match work {
        "kept" => kept(&directory, Duration::ZERO),
        "kept-computing" => kept(&directory, COMPUTING),
        "small" => small_files(&directory),
        "shared-random" => shared_writes(&directory, true),
        _ => shared_writes(&directory, false),
    }
}

/// Returns the rate of the slowest checkpoint, GB/s, because users wait for that one.
fn kept(directory: &Path, computing: Duration) -> f64 {
    let state: Vec<u8> = (0..KEPT_BYTES).map(|at| ((at * 31) >> 7) as u8).collect();
    let rates = (0..KEPT).map(|number| {
        std::thread::sleep(computing);
        let file = create(&directory.join(format!("kept.{number}")));
        gigabytes_per_second(KEPT_BYTES, || write_all(&file, &state, 16 << 20))
    });
    rates.fold(f64::INFINITY, f64::min)
}

fn small_files(directory: &Path) -> f64 {
    let content = [7; PIECE];
    let names: Vec<PathBuf> =
        (0..FILES).map(|number| directory.join(format!("small.{number}"))).collect();
    thousands_per_second(FILES, || {
        names.iter().for_each(|name| write_all(&create(name), &content, PIECE));
    })
}

/// Writes every second piece in each of the ranks. Returns thousands of pieces per second.
fn shared_writes(directory: &Path, at_random: bool) -> f64 {
    let path = directory.join("shared");
    create(&path);
    let pieces = SHARED_BYTES / PIECE / RANKS;
    let write = |rank: usize| {
        let file = File::options().write(true).open(&path).expect("open");
        let content = [rank as u8; PIECE];
        let mut number = rank;
        for turn in 0..pieces {
            // This visits every number below a power of two once.
            number = (number * 5 + 3) % pieces;
            let piece = RANKS * if at_random { number } else { turn } + rank;
            file.write_all_at(&content, (piece * PIECE) as u64).expect("write");
        }
    };
    (RANKS * pieces) as f64 / in_children(RANKS, write) / 1e3
}
