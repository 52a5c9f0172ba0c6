//! Compares random calls of several processes and threads on a tmpfs and below the mount. Both must
//! give the same results.
//!
//! A seed gives a script. `differential/player.c` plays it in both places, one step after another
//! whichever worker takes it, and prints the outcome of each step. A script that shows a difference
//! is shortened as far as the difference remains, and printed. `CAIRN_TEST_SEED=n` plays only that
//! seed, `CAIRN_TEST_SEEDS=n` that many seeds, `CAIRN_TEST_SCRIPT=FILE` a script.
//!
//! Does not compare times, space, sizes of directories, and the initial position of directory
//! listings.

mod common;

use cairn_testing::random::{Random, for_each_seed};
use common::{Stage, errors, keeps_attributes, text};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Number of random steps in a script.
const STEPS: usize = 300;
/// Maximum number of processes and threads; equals the player's `WORKERS`.
const WORKERS: u64 = 8;
/// Maximum number of attempts at shortening a script.
const ATTEMPTS_MAX: usize = 300;

/// A worker, a call, two paths and four numbers, in the player's format.
type Step = String;

/// First steps of every script: they create processes, threads and files to work with.
const BEGINNING: [&str; 8] = [
    "0 fork - - 1 0 0 0",
    "0 thread - - 2 0 0 0",
    "1 thread - - 3 0 0 0",
    "0 mkdir a - 0755 0 0 0",
    "0 open b - 0102 0644 0 0",
    "0 open c - 0102 0644 0 0",
    "1 open b - 0102 0644 0 0",
    "1 open c - 02102 0644 0 0",
];

/// Generates random scripts.
struct Generator {
    random: Random,
}

impl Generator {
    /// Random path of one or two names. Never leads above the script's starting directory.
    fn path(&mut self) -> String {
        let name = |random: &mut Random| (*random.pick(&["a", "b", "c", "d", "e"])).to_owned();
        let first = name(&mut self.random);
        match self.random.below(12) {
            0..6 => first,
            6..10 => format!("{first}/{}", name(&mut self.random)),
            10 => format!("{first}/../{}", name(&mut self.random)),
            _ => format!("{first}/"),
        }
    }

    /// Random descriptor number, mostly one of the first few.
    fn number(&mut self) -> u64 {
        let among = if self.random.one_in(8) { 20 } else { 4 };
        3 + self.random.below(among)
    }

    fn offset(&mut self) -> u64 {
        let edge = *self.random.pick(&[0, 4096, 32768, 65536, 100_000]);
        match self.random.below(3) {
            0 => edge,
            1 => edge + self.random.below(9),
            _ => self.random.below(150_000),
        }
    }

    fn length(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.random.below(10),
            1 => *self.random.pick(&[4096, 8192, 32768, 65536]),
            _ => self.random.below(40_000),
        }
    }

    fn flags(&mut self) -> i32 {
        let access =
            *self.random.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
        let options = [
            (libc::O_CREAT, 2),
            (libc::O_TRUNC, 6),
            (libc::O_APPEND, 5),
            (libc::O_EXCL, 9),
            (libc::O_NOFOLLOW, 9),
            (libc::O_CLOEXEC, 3),
            (libc::O_PATH, 15),
        ];
        options.iter().fold(
            access,
            |flags, &(flag, times)| {
                if self.random.one_in(times) { flags | flag } else { flags }
            },
        )
    }

    fn step(&mut self) -> Step {
        let among = if self.random.one_in(6) { WORKERS } else { 4 };
        let worker = self.random.below(among);
        let (number, to) = (self.number(), self.number());
        let (offset, length, seed) = (self.offset(), self.length(), self.random.below(1000));
        let (path, other) = (self.path(), self.path());
        let mode = *self.random.pick(&[0o755, 0o644, 0o700, 0o600, 0o777]);
        let flags = self.flags();
        // `SEEK_DATA` and `SEEK_HOLE` are left out, because their results depend on the file
        // system.
        let whence = self.random.below(3);
        let target = self.random.below(WORKERS);
        let on = |verb: &str, n: [u64; 4]| (verb.to_owned(), "-".to_owned(), "-".to_owned(), n);
        let at = |verb: &str, path: String, other: String, n: u64| {
            (verb.to_owned(), path, other, [n, 0, 0, 0])
        };
        let none = || "-".to_owned();
        let punch = *self.random.pick(&[0, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE]);
        let (verb, path, other, n) = match self.random.below(106) {
            0..14 => ("open".to_owned(), path, none(), [flags as u64, mode, 0, 0]),
            14..18 => on("close", [number, 0, 0, 0]),
            18..26 => on("read", [number, length, 0, 0]),
            26..32 => on("pread", [number, length, offset, 0]),
            32..41 => on("write", [number, length, 0, seed]),
            41..49 => on("pwrite", [number, length, offset, seed]),
            49..52 => on("seek", [number, offset, whence, 0]),
            52 => at("truncate", path, none(), offset),
            53 | 54 => on("ftruncate", [number, offset, 0, 0]),
            55 | 56 => on("fallocate", [number, punch as u64, offset, length]),
            57 => on("dup", [number, 0, 0, 0]),
            58 => on("dup2", [number, to, 0, 0]),
            59 => {
                on("setfl", [number, if seed % 2 == 0 { libc::O_APPEND as u64 } else { 0 }, 0, 0])
            }
            60 => on("setfd", [number, seed % 2, 0, 0]),
            61 => on("fsync", [number, 0, 0, 0]),
            62 | 63 => on("fstat", [number, 0, 0, 0]),
            64 => on("fchmod", [number, mode, 0, 0]),
            65..68 => at("mkdir", path, none(), 0o755),
            68 => at("rmdir", path, none(), 0),
            69 | 70 => at("unlink", path, none(), 0),
            71 | 72 => at("rename", path, other, if seed % 3 == 0 { seed % 2 + 1 } else { 0 }),
            73 => at("link", path, other, 0),
            74 => at("symlink", path, other, 0),
            75 => at("readlink", path, none(), 0),
            76 | 77 => at("stat", path, none(), 0),
            78 => at("lstat", path, none(), 0),
            79 => at("chmod", path, none(), mode),
            80 => at("list", path, none(), 0),
            81 => at("chdir", path, none(), 0),
            82 => on("fchdir", [number, 0, 0, 0]),
            83 => on("lock", [number, seed, offset, length]),
            84 => on("map", [number, offset, length, 0]),
            85 => on("copymap", [number, offset, length, seed]),
            86 => on("storemap", [number, offset, length, seed]),
            87 => on("sendfile", [number, to, length, 0]),
            88 => on("copy", [number, to, offset, seed * 100]),
            89 | 90 => on("pass", [number, target, 0, 0]),
            91..94 => on("fork", [target, 0, 0, 0]),
            94..97 => on("thread", [target, 0, 0, 0]),
            97 => on("exec", [0; 4]),
            98 | 99 => on("fsetxattr", [number, seed % 3, length % 900, seed % 4 / 2]),
            100 | 101 => on("fgetxattr", [number, seed % 3, 0, 0]),
            102 => on("fremovexattr", [number, seed % 3, 0, 0]),
            103 => ("lsetxattr".to_owned(), path, none(), [0, seed % 3, length % 900, 0]),
            104 => ("getxattr".to_owned(), path, none(), [0, seed % 3, 0, 0]),
            _ => on("end", [target, 0, 0, 0]),
        };
        format!("{worker} {verb} {path} {other} {} {} {} {}", n[0], n[1], n[2], n[3])
    }
}

/// Runs scripts on the file system and on Cairn.
struct Theatre {
    stage: Stage,
    player: PathBuf,
    place: PathBuf,
}

impl Theatre {
    fn new() -> Theatre {
        let shared = Path::new("/dev/shm");
        let fits = shared.is_dir() && keeps_attributes(shared);
        let memory = if fits { shared.to_owned() } else { std::env::temp_dir() };
        let place = memory.join(format!("differential-{}", std::process::id()));
        let player = Stage::compile_all("differential");
        Theatre { stage: Stage::new(), player, place }
    }

    fn play(&self, command: &mut Command, script: &[Step]) -> Vec<String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().expect("the player starts");
        let mut input = running.stdin.take().expect("its input is a pipe");
        // A player that died does not read the rest; its exit status shows that.
        let _ = input.write_all((script.join("\n") + "\n").as_bytes());
        drop(input);
        let output: Output = running.wait_with_output().expect("the player ends");
        let mut lines: Vec<String> = text(&output).lines().map(str::to_owned).collect();
        if !output.status.success() {
            lines.push(format!("{}: {}", output.status, errors(&output)));
        }
        lines
    }

    /// Outcome of each step, on the file system and on Cairn.
    fn both(&self, script: &[Step]) -> [Vec<String>; 2] {
        let place = self.place.to_str().expect("UTF-8");
        let player = self.player.to_str().expect("UTF-8");
        fs::create_dir_all(&self.place).expect("a scratch directory");
        let mut command = self.stage.command(&self.player);
        let kernel = self.play(command.arg(place), script);
        let _ = Command::new("chmod").args(["-R", "u+rwx"]).arg(&self.place).output();
        fs::remove_dir_all(&self.place).expect("what is left can be removed");
        let mut command = self.stage.command(common::cairn());
        command.args(["run", "--discard", "--mount", place, "--", player, place]);
        let cairn = self.play(&mut command, script);
        assert!(!self.place.exists(), "calls went past Cairn, to {place}");
        [kernel, cairn]
    }

    /// First step with different outcomes, described; none if there is no difference.
    fn difference(&self, script: &[Step]) -> Option<String> {
        let [kernel, cairn] = self.both(script);
        let length = kernel.len().max(cairn.len());
        let at = (0..length).find(|&at| kernel.get(at) != cairn.get(at))?;
        let none = String::from("nothing");
        let seen = |lines: &[String]| lines.get(at).unwrap_or(&none).clone();
        let step = script.get(at).unwrap_or(&none);
        Some(format!(
            "step {}: {step}\n  kernel: {}\n  Cairn:  {}",
            at + 1,
            seen(&kernel),
            seen(&cairn)
        ))
    }

    /// The script without steps that the difference does not need.
    fn shortened(&self, script: &[Step]) -> Vec<Step> {
        let mut kept = script.to_vec();
        let mut part = kept.len() / 2;
        let mut attempts = 0;
        while part > 0 && attempts < ATTEMPTS_MAX {
            let mut start = 0;
            while start < kept.len() && attempts < ATTEMPTS_MAX {
                let end = (start + part).min(kept.len());
                let without = [&kept[..start], &kept[end..]].concat();
                attempts += 1;
                match self.difference(&without) {
                    Some(_) => kept = without,
                    None => start = end,
                }
            }
            part /= 2;
        }
        kept
    }

    fn compare(&self, script: &[Step]) {
        if self.difference(script).is_none() {
            return;
        }
        let kept = self.shortened(script);
        let difference = self.difference(&kept).unwrap_or_default();
        panic!(
            "the two differ; the shortest script that shows it:\n{}\n{difference}",
            kept.join("\n")
        );
    }
}

impl Drop for Theatre {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

#[test]
fn random_calls_of_several_processes_give_what_the_kernel_gives() {
    let theatre = Theatre::new();
    if let Some(file) = std::env::var_os("CAIRN_TEST_SCRIPT") {
        let script = fs::read_to_string(file).expect("the script can be read");
        return theatre.compare(&script.lines().map(str::to_owned).collect::<Vec<_>>());
    }
    for_each_seed(10, |seed| {
        let mut generator = Generator { random: Random::new(seed) };
        let drawn = (0..STEPS).map(|_| generator.step());
        let script: Vec<Step> = BEGINNING.map(str::to_owned).into_iter().chain(drawn).collect();
        theatre.compare(&script);
    });
}
