//! The drain against the usual tools. Many small files: against `cp -r` and fsync. One large file:
//! against `dd` with O_DIRECT and a second `dd` that reads it back. Further figures: the cost of a
//! drain for a program that checkpoints beside it, the time until a drain begins, and the cost of
//! an idle agent.
//!
//! Every part has its own store, which the `cairn` beside this program makes. Both sides begin with
//! files in memory and end when the copies are durable. By then our copies are verified, too; those
//! of `cp` are not.

use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::outside;

const SMALL_FILES: usize = 100_000;
const SMALL_BYTES: usize = 4096;
/// Size of a block of a store in memory, bytes.
const BLOCK_BYTES: usize = 32 << 10;
const LARGE_BYTES: usize = 2 << 30;
const LARGE_ROUNDS: usize = 7;
const SMALL_ROUNDS: usize = 3;
const CHECKPOINT_BYTES: usize = 256 << 20;
const CHECKPOINTS: usize = 10;
const CHECKPOINT_ROUNDS: usize = 7;
/// Pause between two checkpoints. It is long enough for an unlimited drain to be in progress when
/// the next checkpoint begins.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(300);
const LIMITED: &str = "100M";
const CLOSES: usize = 40;
const CHANGED_BYTES: usize = 1 << 30;
const CHANGED_ROUNDS: usize = 5;
const SETTLE: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_secs(30);
/// Length of a clock tick, the kernel's unit of processor time.
pub const TICK_S: f64 = 0.01;

/// A part of the benchmark: measures and prints some figures.
type Part = fn(&Path);

/// Prints the figures whose name contains `wanted`. The copies go to `directory`.
pub fn rates(directory: &Path, wanted: &str) {
    let parts: [(&str, Part); 6] = [
        ("small", small_files),
        ("large", large_file),
        ("beside", beside_checkpoints),
        ("latency", latency),
        ("changes", changes),
        ("idle", idle),
    ];
    for (_, measure) in parts.into_iter().filter(|(name, _)| name.contains(wanted)) {
        let outside = directory.join("outside");
        fs::create_dir_all(&outside).expect("a directory for copies");
        measure(directory);
        fs::remove_dir_all(directory).expect("what was made can be removed");
    }
}

fn small_files(directory: &Path) {
    let source = scratch("small");
    make_files(&source, SMALL_FILES, SMALL_BYTES);
    let copies = directory.join("copies");
    let quoted = (source.display(), copies.display());
    let copy = format!("cp -r {} {}", quoted.0, quoted.1);
    let each = format!("{copy} && find {} -type f -print0 | xargs -0 sync", quoted.1);
    let all = format!("{copy} && sync -f {}", quoted.1);
    let (mut ours, mut of_each, mut of_all) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SMALL_ROUNDS {
        ours.push(drained("small", SMALL_FILES * SMALL_BYTES, directory));
        of_each.push(timed(&each, &copies));
        of_all.push(timed(&all, &copies));
    }
    let name = format!("{SMALL_FILES} files of {SMALL_BYTES} bytes");
    report(&format!("{name} / cp -r, fsync each"), &of_each, &ours, "at least 1.5");
    report(&format!("{name} / cp -r, syncfs"), &of_all, &ours, "none");
    fs::remove_dir_all(source).expect("what was made can be removed");
}

fn large_file(directory: &Path) {
    let source = scratch("large");
    make_files(&source, 1, LARGE_BYTES);
    let (from, copy) = (source.join("f0"), directory.join("copy"));
    let (from, to) = (from.display(), copy.display());
    let write = format!("dd if={from} of={to} bs=4M oflag=direct conv=fsync");
    let both = format!("{write} && dd if={to} of=/dev/null bs=4M iflag=direct");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..LARGE_ROUNDS {
        ours.push(drained("large", LARGE_BYTES, directory));
        theirs.push(timed(&both, &copy));
    }
    report("one file of 2 GiB / dd direct, read again", &theirs, &ours, "at least 0.95");
    fs::remove_dir_all(source).expect("what was made can be removed");
}

/// Prints the ratio of two times that were measured in turn.
pub fn report(name: &str, over: &[f64], under: &[f64], bar: &str) {
    let mut ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
    let spread = spread(&mut ratios);
    let (over, under) = (spread_of(over).0, spread_of(under).0);
    println!(
        "{name:<48} {under:>8.3} s against {over:>8.3} s: {:.2} [{:.2}, {:.2}], bar {bar}",
        spread.0, spread.1, spread.2
    );
}

/// Returns median, minimum and maximum.
pub fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn spread_of(values: &[f64]) -> (f64, f64, f64) {
    spread(&mut values.to_vec())
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/cairn-bench-{name}.{}", std::process::id()))
}

/// Runs `command` in a shell, which makes `result`. Returns the time it takes, seconds.
fn timed(command: &str, result: &Path) -> f64 {
    let started = Instant::now();
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", command]).stderr(Stdio::null()).status().expect("sh starts");
    let seconds = started.elapsed().as_secs_f64();
    assert!(status.success(), "{command}: {status}");
    match result.is_dir() {
        true => fs::remove_dir_all(result).expect("copies can be removed"),
        false => fs::remove_file(result).expect("a copy can be removed"),
    }
    settle();
    seconds
}

/// Syncs all file systems, so that a measurement does not pay for data left to write by another.
fn settle() {
    Command::new("sync").status().expect("sync starts");
}

pub fn cairn() -> Command {
    Command::new(std::env::current_exe().expect("own path").with_file_name("cairn"))
}

/// Returns a `cairn run` of `work` of this program, in a store with room for `bytes` bytes.
pub fn run(job: &str, bytes: usize, options: &[&str], work: &[&str]) -> Command {
    let tier = format!("ram:{}", bytes + bytes / 4 + (512 << 20));
    let mut command = cairn();
    command.args(["run", "--job", job, "--tier", &tier]).args(options).arg("--");
    command.arg(std::env::current_exe().expect("own path")).arg("drain-part").args(work);
    command
}

fn job(name: &str) -> String {
    format!("bench-{name}-{}", std::process::id())
}

fn remove(job: &str) {
    let options = ["gc", "--job", job, "--older-than", "0", "--force", "--yes"];
    let removed = cairn().args(options).output().expect("cairn starts");
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
}

/// Returns the time that `cairn drain` takes for the files of a store, until all are verified,
/// seconds.
fn drained(work: &str, bytes: usize, directory: &Path) -> f64 {
    let (job, outside) = (job(work), directory.join("drained"));
    fs::create_dir_all(&outside).expect("a directory");
    // A small file occupies a block.
    let room = if work == "small" { SMALL_FILES * BLOCK_BYTES } else { bytes };
    let made = run(&job, room, &[], &[work]).output().expect("cairn starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let started = Instant::now();
    let mut drain = cairn();
    drain.args(["drain", &job, "--persist"]).arg(&outside);
    let drain = drain.output().expect("cairn starts");
    let seconds = started.elapsed().as_secs_f64();
    assert!(drain.status.success(), "{}", String::from_utf8_lossy(&drain.stderr));
    remove(&job);
    fs::remove_dir_all(outside).expect("copies can be removed");
    settle();
    seconds
}

/// Measures the checkpoints of one writer without a drain and beside each kind of drain.
fn beside_checkpoints(directory: &Path) {
    let outside = directory.join("outside");
    let outside = outside.to_str().expect("a path in UTF-8");
    let ways: [&[&str]; 3] =
        [&[], &["--persist", outside, "--drain-rate", LIMITED], &["--persist", outside]];
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..CHECKPOINT_ROUNDS {
        for (options, times) in ways.iter().zip(&mut times) {
            times.push(checkpoint_time(options));
            fs::remove_dir_all(outside).expect("copies can be removed");
            fs::create_dir(outside).expect("a directory");
            settle();
        }
    }
    let [without, limited, unlimited] = times;
    report(
        &format!("checkpoint beside a drain of {LIMITED}/s / without"),
        &limited,
        &without,
        "at most 1.05",
    );
    report("checkpoint beside a drain / without", &unlimited, &without, "at most 1.25");
}

/// Returns the median time of a checkpoint, seconds.
fn checkpoint_time(options: &[&str]) -> f64 {
    let job = job("beside");
    let options = [options, &["--drain", "none"]].concat();
    let output = run(&job, 4 * CHECKPOINT_BYTES, &options, &["checkpoints"]).output();
    let output = output.expect("cairn starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut times: Vec<f64> = text.lines().map(|line| line.parse().expect("a figure")).collect();
    assert_eq!(times.len(), CHECKPOINTS, "{}", String::from_utf8_lossy(&output.stderr));
    remove(&job);
    spread(&mut times).0
}

fn latency(directory: &Path) {
    let outside = directory.join("outside");
    let outside = outside.to_str().expect("a path in UTF-8");
    let mut command = run(&job("latency"), 64 << 20, &["--persist", outside], &["closes", outside]);
    let output = command.output().expect("cairn starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut times: Vec<f64> = text.lines().map(|line| line.parse().expect("a figure")).collect();
    assert_eq!(times.len(), CLOSES, "{}", String::from_utf8_lossy(&output.stderr));
    let (median, least, most) = spread(&mut times);
    println!(
        "{:<48} {median:>8.1} ms [{least:.1}, {most:.1}], bar at most 50",
        "close to begin of the drain"
    );
}

/// Measures drains of a file that stays open and partly changes between them.
fn changes(directory: &Path) {
    let job = job("changes");
    let outside = directory.join("outside");
    let outside = outside.to_str().expect("a path in UTF-8");
    let options = ["--persist", outside, "--drain", "none"];
    let output = run(&job, 2 * CHANGED_BYTES, &options, &["changes", &job]).output();
    let output = output.expect("cairn starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut times: [Vec<f64>; 3] = Default::default();
    for line in text.lines() {
        let (kind, seconds) = line.split_once(' ').expect("two fields");
        times[kind.parse::<usize>().expect("a number")].push(seconds.parse().expect("a figure"));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(times.iter().all(|times| times.len() == CHANGED_ROUNDS), "{said}");
    remove(&job);
    let [all, together, scattered] = &times;
    report("drain, 1 % of 1 GiB changed in one place / all", together, all, "none");
    report("drain, 1 % of its blocks changed / all", scattered, all, "none");
}

fn idle(directory: &Path) {
    let job = job("idle");
    let outside = directory.join("outside");
    let outside = outside.to_str().expect("a path in UTF-8");
    let seconds = (SETTLE.as_secs() + IDLE.as_secs() + 5).to_string();
    let mut running = run(&job, 1 << 30, &["--persist", outside], &["sleep", &seconds])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("cairn starts");
    // At first the agent clears memory ahead of its use.
    std::thread::sleep(SETTLE);
    let status = cairn().args(["status", &job, "--json"]).output().expect("cairn starts");
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let agent = status[0]["agent"]["pid"].as_u64().expect("an agent");
    let used = || processor_ticks(agent);
    let before = used();
    std::thread::sleep(IDLE);
    let percent = (used() - before) as f64 * TICK_S / IDLE.as_secs_f64() * 100.0;
    let memory = private_bytes(agent) as f64 / f64::from(1 << 20);
    println!("{:<48} {percent:>8.2} %, bar at most 0.5", "idle agent, of a processor");
    println!("{:<48} {memory:>8.1} MiB, bar at most 30", "idle agent, private memory");
    running.wait().expect("it ends");
}

pub fn processor_ticks(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the agent is there");
    let fields = stat.rsplit_once(") ").expect("a name in parentheses").1;
    // The state is field 3; user and system time are fields 14 and 15.
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("ticks")).sum()
}

fn private_bytes(pid: u64) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("is readable");
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    let kilobytes = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kilobytes.sum::<u64>() * 1024
}

/// Work inside the stores, in a process under `cairn run`.
pub fn part(arguments: &[String]) {
    let mount = PathBuf::from(std::env::var_os("CAIRN_MOUNT").expect("CAIRN_MOUNT"));
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["small"] => make_files(&mount, SMALL_FILES, SMALL_BYTES),
        ["large"] => make_files(&mount, 1, LARGE_BYTES),
        ["checkpoints"] => checkpoints(&mount),
        ["closes", outside] => closes(&mount, Path::new(outside)),
        ["changes", job] => drains_of_changes(&mount, job),
        ["sleep", seconds] => {
            std::thread::sleep(Duration::from_secs(seconds.parse().expect("seconds")))
        }
        words => outside::part(words),
    }
}

/// Makes `count` files, a thousand per directory.
pub fn make_files(directory: &Path, count: usize, bytes: usize) {
    let data: Vec<u8> = (0..bytes.min(4 << 20)).map(|at| (at % 251) as u8).collect();
    for number in 0..count {
        let name = match count {
            1 => directory.join("f0"),
            _ => directory.join(format!("d{}", number / 1000)).join(format!("f{number}")),
        };
        if number % 1000 == 0 {
            fs::create_dir_all(name.parent().expect("a directory")).expect("a directory");
        }
        let mut file = File::create(name).expect("a file");
        for _ in 0..bytes / data.len() {
            file.write_all(&data).expect("is written");
        }
    }
}

/// Drains and prints two fields per drain: the kind of change before it, and its time in
/// seconds. Kind 0 changes everything, 1 a hundredth in one place, 2 one page in each of a
/// hundredth of the blocks.
fn drains_of_changes(mount: &Path, job: &str) {
    let options = File::options().read(true).write(true).create(true).truncate(true).clone();
    let file = options.open(mount.join("state")).expect("a file");
    let (part, blocks) = (4 << 20, CHANGED_BYTES / BLOCK_BYTES);
    let mut round = 0u8;
    let mut write = |offset: usize, bytes: usize| {
        round = round.wrapping_add(1);
        file.write_all_at(&vec![round; bytes], offset as u64).expect("is written");
    };
    let mut change = |kind: usize| match kind {
        0 => (0..CHANGED_BYTES).step_by(part).for_each(|at| write(at, part)),
        1 => write(CHANGED_BYTES / 3, CHANGED_BYTES / 100),
        // These blocks are far apart and in no order.
        _ => (0..blocks / 100).for_each(|n| write(n * 7919 % blocks * BLOCK_BYTES, 4096)),
    };
    let drain = || {
        let started = Instant::now();
        let mut command = cairn();
        let drained = command.env_remove("LD_PRELOAD").args(["drain", job]).output();
        let drained = drained.expect("cairn starts");
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
        let seconds = started.elapsed().as_secs_f64();
        settle();
        seconds
    };
    // Afterwards each of the two places has a copy of its own.
    for _ in 0..3 {
        change(0);
        drain();
    }
    for kind in 0..3 {
        for number in 0..=CHANGED_ROUNDS {
            change(kind);
            let seconds = drain();
            // The first drain also copies what the previous kind had changed.
            if number > 0 {
                println!("{kind} {seconds}");
            }
        }
    }
}

/// Writes checkpoints and prints the time of each, seconds.
fn checkpoints(mount: &Path) {
    let data: Vec<u8> = (0..4 << 20).map(|at: usize| (at % 251) as u8).collect();
    let name = |number: usize| mount.join(format!("state.{number}"));
    for number in 0..CHECKPOINTS + 2 {
        let started = Instant::now();
        let mut file = File::create(name(number)).expect("a file");
        for _ in 0..CHECKPOINT_BYTES / data.len() {
            file.write_all(&data).expect("is written");
        }
        drop(file);
        // The first ones use new memory.
        if number >= 2 {
            println!("{}", started.elapsed().as_secs_f64());
            fs::remove_file(name(number - 2)).expect("an old one is removed");
        }
        std::thread::sleep(CHECKPOINT_PAUSE);
    }
}

/// Prints the time from each close until the file shows in `outside`, milliseconds.
fn closes(mount: &Path, outside: &Path) {
    let entries = || {
        let entries = fs::read_dir(outside).expect("a directory").flatten();
        entries.map(|entry| entry.file_name().into_encoded_bytes()).collect::<Vec<_>>()
    };
    for number in 0..CLOSES {
        let name = format!("f{number}");
        fs::write(mount.join(&name), [0x5a; 4096]).expect("is written");
        let closed = Instant::now();
        let is_it = |entry: &Vec<u8>| {
            entry == name.as_bytes() || entry.starts_with(format!(".{name}.").as_bytes())
        };
        while !entries().iter().any(is_it) {
            std::thread::sleep(Duration::from_micros(500));
        }
        println!("{}", closed.elapsed().as_secs_f64() * 1e3);
        // Varies the phase against the agent's polling.
        std::thread::sleep(Duration::from_millis(300 + 7 * number as u64));
    }
}
