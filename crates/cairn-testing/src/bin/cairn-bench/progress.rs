//! Progress of a job that writes checkpoints: a loop like CoMD's, with each way to keep the
//! checkpoints (NVMe-CR, table II).
//!
//! Each rank computes for a while, writes its part of a checkpoint, and keeps the newest two. One
//! checkpoint in ten is copied in the background to a slow, safe place. The progress rate is the
//! time that computing alone takes, divided by the time until the last rank has ended.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RANKS: u32 = 2;
const CHECKPOINTS: u32 = 10;
const COMPUTE: Duration = Duration::from_secs(5);
const PART_BYTES: usize = 256 << 20;
const WRITE_BYTES: usize = 4 << 20;
/// One checkpoint in this many goes to the safe place.
const SAFE_EVERY: u32 = 10;
/// Number of checkpoints kept.
const KEPT: u32 = 2;
const TIMES: usize = 3;

/// A way to keep checkpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    None,
    Safe,
    Tmpfs,
    Cairn,
}

const WAYS: [(Way, &str); 4] = [
    (Way::None, "no checkpoints"),
    (Way::Safe, "written to the safe place, fsync"),
    (Way::Tmpfs, "tmpfs, one in ten copied by cp"),
    (Way::Cairn, "cairn run --pfs-every 10"),
];

/// Times of a run.
#[derive(Clone, Copy)]
struct Taken {
    /// Time until the last rank ended.
    ranks: Duration,
    /// Time until the safe place had all its copies.
    safe: Duration,
    /// Time that a rank spent on writing its checkpoints.
    writing: Duration,
}

/// Prints a table. `safe` is a directory on the slow, safe file system.
pub fn rates(safe: &Path) {
    let rounds = calibrate();
    println!(
        "{RANKS} ranks, {CHECKPOINTS} checkpoints of {} MiB each, {} s of computing before each; medians of {TIMES}",
        PART_BYTES >> 20,
        COMPUTE.as_secs()
    );
    println!("{:<34}  progress  checkpoint  all safe after", "way");
    let mut taken: Vec<Vec<Taken>> = WAYS.iter().map(|_| Vec::new()).collect();
    for _ in 0..TIMES {
        for ((way, _), taken) in WAYS.iter().zip(&mut taken) {
            taken.push(run(*way, safe, rounds));
        }
    }
    for ((_, name), taken) in WAYS.iter().zip(&taken) {
        let median = |time: fn(&Taken) -> Duration| {
            let mut times: Vec<f64> = taken.iter().map(|one| time(one).as_secs_f64()).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let ideal = COMPUTE.as_secs_f64() * f64::from(CHECKPOINTS);
        println!(
            "{name:<34}  {:>8.3}  {:>8.3} s  {:>12.1} s",
            ideal / median(|one| one.ranks),
            median(|one| one.writing) / f64::from(CHECKPOINTS),
            median(|one| one.safe)
        );
    }
}

/// Returns the number of rounds that fill the computing time on an otherwise idle processor.
fn calibrate() -> u64 {
    const PROBE: u64 = 20_000;
    let times = (0..5).map(|_| {
        let started = Instant::now();
        compute(PROBE);
        started.elapsed().as_secs_f64()
    });
    let best = times.fold(f64::MAX, f64::min);
    (COMPUTE.as_secs_f64() / best * PROBE as f64) as u64
}

/// Works in the processor's registers and first-level cache only.
fn compute(rounds: u64) {
    let mut forces = [1.0_f64; 512];
    for round in 0..rounds {
        let shift = 1.0 + (round % 7) as f64 * 1e-9;
        forces.iter_mut().for_each(|force| *force = force.mul_add(shift, 1e-9));
    }
    black_box(forces);
}

fn run(way: Way, safe: &Path, rounds: u64) -> Taken {
    let scratch = match way {
        Way::Tmpfs => PathBuf::from(format!("/dev/shm/cairn-bench.{}", std::process::id())),
        _ => safe.join("work"),
    };
    let outside = safe.join("outside");
    [&scratch, &outside]
        .into_iter()
        .for_each(|path| fs::create_dir_all(path).expect("a directory"));
    let started = Instant::now();
    let mut ranks: Vec<Child> = match way {
        Way::Cairn => vec![under_cairn(&outside, rounds)],
        _ => (0..RANKS).map(|rank| start(way, rank, &scratch, &outside, rounds)).collect(),
    };
    let outputs: Vec<String> = ranks
        .drain(..)
        .map(|rank| rank.wait_with_output().expect("a rank ends"))
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .collect();
    let safe_after = started.elapsed();
    let figures: Vec<(f64, f64)> =
        outputs.iter().flat_map(|text| text.lines()).map(figures).collect();
    assert_eq!(figures.len(), RANKS as usize, "each rank says how it was");
    for path in [scratch, outside] {
        fs::remove_dir_all(path).expect("what was made can be removed");
    }
    let longest = |figure: fn(&(f64, f64)) -> f64| {
        Duration::from_secs_f64(figures.iter().map(figure).fold(0.0, f64::max))
    };
    Taken { ranks: longest(|one| one.0), writing: longest(|one| one.1), safe: safe_after }
}

/// Parses a rank's output: its total time and its writing time, seconds.
fn figures(line: &str) -> (f64, f64) {
    let (all, writing) = line.split_once(' ').expect("two figures");
    (all.parse().expect("a figure"), writing.parse().expect("a figure"))
}

fn itself() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

fn start(way: Way, rank: u32, directory: &Path, outside: &Path, rounds: u64) -> Child {
    let word = if way == Way::None { "none" } else { "files" };
    let copies = if way == Way::Tmpfs { outside } else { Path::new("") };
    let sync = if way == Way::Safe { "sync" } else { "" };
    let mut command = Command::new(itself());
    command.args(["progress-rank", word, &rank.to_string(), &rounds.to_string()]);
    command.arg(directory).arg(copies).arg(sync).stdout(Stdio::piped()).spawn().expect("a rank")
}

/// Starts all ranks in a store.
fn under_cairn(outside: &Path, rounds: u64) -> Child {
    let program = itself();
    let rank = |rank: u32| {
        format!("{} progress-rank files {rank} {rounds} /cairn '' '' &", program.display())
    };
    let script: String = (0..RANKS).map(rank).chain(["wait".to_string()]).collect();
    let bytes = PART_BYTES as u64 * u64::from(RANKS) * u64::from(KEPT + 2);
    Command::new(program.with_file_name("cairn"))
        .args(["run", "--pfs-every", &SAFE_EVERY.to_string(), "--tier", &format!("ram:{bytes}")])
        .args(["--persist".as_ref(), outside.as_os_str()])
        .args(["--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("cairn starts")
}

/// Main function of a rank. Prints its total time and its writing time, seconds.
pub fn rank(arguments: &[String]) {
    let [word, rank, rounds, directory, copies, sync] = arguments else {
        panic!("started by `cairn-bench progress` only")
    };
    let rounds: u64 = rounds.parse().expect("a number");
    let part = vec![0x5a_u8; WRITE_BYTES];
    let (started, mut writing, mut copying) = (Instant::now(), Duration::ZERO, Vec::new());
    for step in 1..=CHECKPOINTS {
        compute(rounds);
        if word == "none" {
            continue;
        }
        let began = Instant::now();
        let name = |step: u32| Path::new(directory).join(format!("state.{step}.{rank}"));
        write(&name(step), &part, sync == "sync");
        if step > KEPT {
            fs::remove_file(name(step - KEPT)).expect("an old part is removed");
        }
        writing += began.elapsed();
        if !copies.is_empty() && step % SAFE_EVERY == 0 {
            copying.push(Command::new("cp").arg(name(step)).arg(copies).spawn().expect("cp"));
        }
    }
    println!("{} {}", started.elapsed().as_secs_f64(), writing.as_secs_f64());
    for mut copy in copying {
        copy.wait().expect("cp ends");
        // The copy is then as safe as a drained file, except that nothing has compared it.
        Command::new("sync").arg("-f").arg(copies).status().expect("sync");
    }
}

fn write(path: &Path, part: &[u8], sync: bool) {
    let mut file = File::create(path).expect("a part is made");
    for _ in 0..PART_BYTES / part.len() {
        file.write_all(part).expect("a part is written");
    }
    if sync {
        file.sync_all().expect("a part is synced");
    }
}
