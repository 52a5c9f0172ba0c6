//! What lies outside while a program goes on: what it costs to bring it there, and how old it is.
//!
//! Four parts: the agent's processor time for many small files, against `cp -r` and `cksum`; a pass
//! over very many files of which few changed, against one over few; bytes that the agent writes to
//! a disk for each byte that changed; and the time from a close until the copy has its name, beside
//! busy processors, against the time that `cp` and `sync` take there.
//!
//! The directory must be on a disk. Copies are removed at the end only: some file systems look long
//! for a free inode where many were removed a moment ago.

use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::drain::{TICK_S, cairn, make_files, processor_ticks, report, run, spread};

const ROUNDS: usize = 3;
const SMALL_FILES: usize = 10_000;
const SMALL_BYTES: usize = 4096;
/// Numbers of files in the stores whose passes are compared, and how many of them change.
const FEW: usize = 1_000;
const MANY: usize = 100_000;
const CHANGED: usize = 10;
const PASSES: usize = 5;
/// New files, and a file that changes in its place: in each round a part of some of its blocks.
const NEW_FILES: usize = 20;
const NEW_BYTES: usize = 16 << 20;
const PLACE_BYTES: usize = 256 << 20;
const PART_BYTES: usize = 64 << 10;
const PARTS: usize = 40;
const PLACE_ROUNDS: usize = 10;
/// Checkpoints of the part about age.
const AGES: usize = 40;
const AGE_EVERY: Duration = Duration::from_millis(300);
/// The agent is at rest if it took no processor time for so long.
const REST: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A part of the benchmark: measures and prints some figures.
type Part = fn(&Path);

/// Prints the figures of the parts whose name contains `wanted`. Copies go to `directory`.
pub fn costs(directory: &Path, wanted: &str) {
    let parts: [(&str, Part); 4] =
        [("processor", processor_time), ("passes", passes), ("written", written), ("age", age)];
    for (_, measure) in parts.into_iter().filter(|(name, _)| name.contains(wanted)) {
        fs::create_dir_all(directory).expect("a directory for copies");
        measure(directory);
        fs::remove_dir_all(directory).expect("what was made can be removed");
    }
}

fn processor_time(directory: &Path) {
    let source = directory.join("source");
    make_files(&source, SMALL_FILES, SMALL_BYTES);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        ours.push(figures("small", directory, round)[0]);
        let copy = directory.join(format!("copy.{round}"));
        let (from, to) = (source.display(), copy.display());
        let command = format!("cp -r {from} {to} && find {to} -type f -print0 | xargs -0 cksum");
        let before = children_s();
        let mut shell = Command::new("sh");
        let status = shell.args(["-c", &command]).stdout(Stdio::null()).status();
        assert!(status.expect("sh starts").success());
        theirs.push(children_s() - before);
    }
    let name = format!("processor, {SMALL_FILES} files / cp -r, cksum");
    report(&name, &ours, &theirs, "at most 1.5");
}

fn passes(directory: &Path) {
    let of = |work: &str| figures(work, directory, 0);
    let (few, many) = (of("few"), of("many"));
    let times = |figures: &[f64]| figures.iter().step_by(2).copied().collect::<Vec<_>>();
    let name = format!("processor, {CHANGED} changed of {MANY} / of {FEW}");
    report(&name, &times(&many), &times(&few), "none");
    let mut kilobytes: Vec<f64> =
        many.iter().skip(1).step_by(2).map(|bytes| bytes / 1024.0).collect();
    let (median, least, most) = spread(&mut kilobytes);
    let name = format!("written, {CHANGED} changed of {MANY}");
    println!("{name:<48} {median:>8.1} KiB [{least:.1}, {most:.1}], bar none");
}

fn written(directory: &Path) {
    for (work, bar) in [("new", 1.1), ("place", 2.1)] {
        let ratio = figures(work, directory, 0)[0];
        let name = match work {
            "new" => "written / changed, new files of 16 MiB",
            _ => "written / changed, a file in its place",
        };
        println!("{name:<48} {ratio:>8.3}, bar at most {bar}");
    }
}

fn age(directory: &Path) {
    let found = figures("age", directory, 0);
    let (mut waits, mut copies): (Vec<f64>, Vec<f64>) =
        (found[..AGES].into(), found[AGES..].into());
    let (wait, copy) = (spread(&mut waits), spread(&mut copies));
    let allowed = 2.0 * copy.0 + 1.0;
    println!(
        "{:<48} {:>8.3} s [{:.3}, {:.3}], bar at most {allowed:.3} (2 copies of {:.3} s, and 1 s)",
        "close to copy, two busy loops beside", wait.0, wait.1, wait.2, copy.0
    );
}

/// Runs `work` in a store of its own that drains to a new directory, and returns what it prints.
fn figures(work: &str, directory: &Path, round: usize) -> Vec<f64> {
    let outside = directory.join(format!("{work}.{round}"));
    fs::create_dir_all(&outside).expect("a directory");
    let job = format!("bench-{work}-{}", std::process::id());
    let outside = outside.to_str().expect("a path in UTF-8");
    let options = ["--persist", outside];
    let output = run(&job, 4 << 30, &options, &[work, &job, outside]).output();
    let output = output.expect("cairn starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.parse().expect("a figure")).collect()
}

/// Work inside the stores.
pub fn part(words: &[&str]) {
    let mount = PathBuf::from(std::env::var_os("CAIRN_MOUNT").expect("CAIRN_MOUNT"));
    let [work, job, outside] = words else { panic!("started by `cairn-bench outside` only") };
    let (agent, outside) = (Agent::of(job), Path::new(outside));
    agent.rest();
    match *work {
        "small" => {
            let before = agent.used_s();
            make_files(&mount, SMALL_FILES, SMALL_BYTES);
            agent.rest();
            println!("{}", agent.used_s() - before);
        }
        "few" => change_some(&mount, FEW, &agent),
        "many" => change_some(&mount, MANY, &agent),
        "new" => {
            let before = agent.written();
            for number in 0..NEW_FILES {
                fs::write(mount.join(format!("new.{number}")), content(number, NEW_BYTES))
                    .expect("is written");
            }
            agent.rest();
            println!("{}", (agent.written() - before) / (NEW_FILES * NEW_BYTES) as f64);
        }
        "place" => change_in_place(&mount, outside, &agent),
        _ => ages(&mount, outside),
    }
}

/// Prints processor time and bytes written for each change of a few of `count` files.
fn change_some(mount: &Path, count: usize, agent: &Agent) {
    make_files(mount, count, 64);
    agent.rest();
    for pass in 0..PASSES {
        let before = (agent.used_s(), agent.written());
        for number in 0..CHANGED {
            let number = number * (count / CHANGED) + pass;
            let name = format!("d{}/f{number}", number / 1000);
            fs::write(mount.join(name), content(pass, 64)).expect("is written");
        }
        agent.rest();
        println!("{}\n{}", agent.used_s() - before.0, agent.written() - before.1);
    }
}

fn change_in_place(mount: &Path, outside: &Path, agent: &Agent) {
    let path = mount.join("state");
    fs::write(&path, content(0, PLACE_BYTES)).expect("is written");
    let file = File::options().write(true).open(path).expect("a file");
    let copy = outside.join("state");
    let last = (PARTS - 1) * (PLACE_BYTES / PARTS);
    let mut change = |round: usize| {
        for part in 0..PARTS {
            let at = (part * (PLACE_BYTES / PARTS)) as u64;
            file.write_all_at(&content(round, PART_BYTES), at).expect("is written");
        }
        let is_there = || {
            let mut found = vec![0; PART_BYTES];
            let read = File::open(&copy).and_then(|it| it.read_exact_at(&mut found, last as u64));
            read.is_ok() && found == content(round, PART_BYTES)
        };
        while !is_there() {
            thread::sleep(LOOK_EVERY);
        }
    };
    // Afterwards there is a copy, and one from which the next is made.
    (1..4).for_each(&mut change);
    let before = agent.written();
    (4..4 + PLACE_ROUNDS).for_each(&mut change);
    println!("{}", (agent.written() - before) / (PLACE_ROUNDS * PARTS * PART_BYTES) as f64);
}

/// Prints the time from each close until the copy has its name, and then the times of as many
/// copies by `cp` and `sync`, both beside busy processors, seconds.
fn ages(mount: &Path, outside: &Path) {
    let is_over = AtomicBool::new(false);
    let aside = outside.with_extension("cp");
    fs::create_dir_all(&aside).expect("a directory");
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for number in 0..AGES {
            let name = format!("state.{number}");
            let mut file = File::create(mount.join(&name)).expect("a file");
            file.write_all(&content(number, NEW_BYTES)).expect("is written");
            drop(file);
            let closed = Instant::now();
            // A cut before may have had a part of it.
            let is_whole = |copy: fs::Metadata| copy.len() == NEW_BYTES as u64;
            while !fs::metadata(outside.join(&name)).is_ok_and(is_whole) {
                thread::sleep(LOOK_EVERY);
            }
            println!("{}", closed.elapsed().as_secs_f64());
            thread::sleep(AGE_EVERY);
        }
        let source = aside.join("source");
        for number in 0..AGES {
            fs::write(&source, content(number, NEW_BYTES)).expect("is written");
            let copy = aside.join(format!("copy.{number}"));
            let command = format!("cp {} {1} && sync {1}", source.display(), copy.display());
            let started = Instant::now();
            let mut shell = Command::new("sh");
            let status = shell.env_remove("LD_PRELOAD").args(["-c", &command]).status();
            assert!(status.expect("sh starts").success());
            println!("{}", started.elapsed().as_secs_f64());
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Returns bytes that differ from round to round.
fn content(round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ round as u8).collect()
}

/// The agent of a store.
struct Agent {
    pid: u64,
}

impl Agent {
    fn of(job: &str) -> Agent {
        let mut status = cairn();
        let status = status.env_remove("LD_PRELOAD").args(["status", job, "--json"]).output();
        let status: Value =
            serde_json::from_slice(&status.expect("cairn starts").stdout).expect("JSON");
        Agent { pid: status[0]["agent"]["pid"].as_u64().expect("an agent") }
    }

    /// Returns the processor time that it took, seconds.
    fn used_s(&self) -> f64 {
        processor_ticks(self.pid) as f64 * TICK_S
    }

    /// Returns the number of bytes that it wrote to disks.
    fn written(&self) -> f64 {
        let io = fs::read_to_string(format!("/proc/{}/io", self.pid)).expect("is readable");
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line.and_then(|bytes| bytes.parse().ok()).expect("a number")
    }

    /// Waits until it is at rest.
    fn rest(&self) {
        let (mut used, mut since) = (self.used_s(), Instant::now());
        while since.elapsed() < REST {
            thread::sleep(Duration::from_millis(100));
            let now = self.used_s();
            // An agent that rests looks for processes from time to time.
            if now - used > TICK_S {
                (used, since) = (now, Instant::now());
            }
        }
    }
}

/// Returns the processor time of the children that have ended, seconds.
fn children_s() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("is readable");
    let fields = stat.rsplit_once(") ").expect("a name in parentheses").1;
    // The state is field 3; user and system time of the children are fields 16 and 17.
    let ticks = fields.split(' ').skip(13).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("ticks") * TICK_S).sum()
}
