//! Cost of a process: its first checkpoint, idle memory. Also the ways to run the benchmark's own
//! processes.

use cairn_device::Store;
use cairn_device::store::namespace::{create_namespace, open_namespace};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Places;
use crate::measure::gigabytes_per_second;

/// Runs `work(rank)` in `count` forked children at the same time. Returns the time from when all
/// are ready until all have finished, seconds; starting and ending them does not count.
pub fn in_children(count: usize, work: impl Fn(usize)) -> f64 {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let children: Vec<libc::pid_t> = (0..count)
        .map(|rank| {
            // SAFETY: the program has one thread; the child only runs `work` and exits.
            match unsafe { libc::fork() } {
                0 => {
                    let tell = || (&theirs).write_all(&[0]).expect("tell the parent");
                    tell();
                    (&theirs).read_exact(&mut [0]).expect("wait for the others");
                    work(rank);
                    tell();
                    // SAFETY: ends the child without running the parent's destructors twice.
                    unsafe { libc::_exit(0) }
                }
                child => child,
            }
        })
        .collect();
    drop(theirs);
    let mut told = vec![0; count];
    ours.read_exact(&mut told).expect("all are ready");
    let start = Instant::now();
    ours.write_all(&told).expect("all begin");
    let done = ours.read_exact(&mut told);
    let seconds = start.elapsed().as_secs_f64();
    for child in children {
        let mut status = 0;
        // SAFETY: waits for a child of this process; `status` is a valid target.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "a child of the benchmark failed");
    }
    done.expect("all are done");
    seconds
}

/// Measures the first checkpoint of a process.
pub fn first(_places: &Places) {
    let ratios: Vec<f64> = (0..5).map(|_| number_from(&mut child_command("first"))).collect();
    let mut sorted = ratios.clone();
    sorted.sort_by(f64::total_cmp);
    println!(
        "{:<42} {:>38.2}x   [{:.2}, {:.2}]  0.60x",
        "first checkpoint of a process / warm", sorted[2], sorted[0], sorted[4]
    );
}

/// Returns a command that runs this program as a child with `work`.
pub fn child_command(work: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["child", work]);
    command
}

/// Runs a child and returns the number it prints.
pub fn number_from(command: &mut Command) -> f64 {
    let output = command.stdin(Stdio::null()).output().expect("start a child");
    let number = String::from_utf8_lossy(&output.stdout).trim().parse();
    number.unwrap_or_else(|_| panic!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Main function of a child: does its work and prints one number.
pub fn child(arguments: Vec<String>) {
    let figure = match arguments.first().map(String::as_str) {
        Some(work) if crate::foreign::WORKS.contains(&work) => crate::foreign::cost(work),
        Some(work) if crate::fresh::is_work(work) => crate::fresh::rate(work, arguments.get(1)),
        Some("names") => crate::durable_files::make_names(),
        Some("snapshots") => crate::durable_files::write_snapshots(),
        Some("first") => first_checkpoint(),
        Some("hold") => crate::images::hold(),
        Some("spill") => crate::spill::checkpoint(),
        Some("promoted") => crate::spill::read_again(true),
        Some("read-again") => crate::spill::read_again(false),
        Some("remote") => crate::remote::checkpoint(arguments[1].parse().expect("bytes")),
        Some("ranks") => crate::ranks::start(arguments[1].parse().expect("a number of ranks")),
        Some(crate::rotation::SLICE) => crate::rotation::rotate_all(&arguments[1..]),
        Some(crate::rotation::WORK) => crate::rotation::rotate(&arguments[1..]),
        Some("rank") => crate::ranks::create_files(),
        _ => std::process::exit(2),
    };
    println!("{figure}");
}

/// Returns the rate of a process's first checkpoint divided by that of its fourth.
fn first_checkpoint() -> f64 {
    const BYTES: usize = 256 << 20;
    let mount = std::env::var("CAIRN_MOUNT").expect("CAIRN_MOUNT");
    let path = format!("{mount}/bench/first");
    let state = vec![7u8; BYTES];
    let rates: Vec<f64> = (0..4)
        .map(|_| {
            let mut file = std::fs::File::create(&path).expect("create");
            gigabytes_per_second(BYTES, || {
                state.chunks(1 << 20).for_each(|chunk| file.write_all(chunk).expect("write"));
            })
        })
        .collect();
    rates[0] / rates[3]
}

/// Measures the shared memory of an empty namespace with a tier of 8 GiB and one attached process.
pub fn idle_memory(places: &Places) {
    const TIER_BYTES: u64 = 8 << 30;
    let blocks = (TIER_BYTES / u64::from(cairn_core::HUGEBLOCK_BYTES_DEFAULT)) as u32;
    let geometry = cairn_core::Geometry::new(b"/idle", [blocks, 0, 0, 0], 0);
    let store = Store::create(&places.tmpfs, "idle").expect("make a store");
    create_namespace(&store, "node", geometry, false).expect("make a namespace");
    let namespace = open_namespace(&store, "node").expect("open the namespace");
    let identity = cairn_platform::process::identity().expect("own identity");
    namespace.fs.attach(identity).expect("attach");
    let meta = std::fs::metadata(store.path().join("node.meta")).expect("stat the meta segment");
    let mebibytes = (meta.blocks() * 512) as f64 / 1_048_576.0;
    let verdict = if mebibytes < 2.0 { "met" } else { "MISSED" };
    println!(
        "{:<42} {mebibytes:>9.2} {:>9} {:<6} {:>32} {verdict}",
        "idle namespace", "", "MiB", "< 2"
    );
    drop(namespace);
    store.remove().expect("remove the store");
}
