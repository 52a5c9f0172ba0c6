//! A run that is killed at any call while it makes its store, or removes it, hinders no later one,
//! and what it leaves can be removed.

mod common;

use common::{Sandbox, eventually};
use std::fs;
use std::process::{Command, Stdio};

/// Calls at which something stands that did not before; those that there are many of last.
const CALLS: [&str; 14] = [
    "mkdirat",
    "rename",
    "renameat2",
    "unlink",
    "unlinkat",
    "symlinkat",
    "ftruncate",
    "fallocate",
    "umount2",
    "fsync",
    "flock",
    "write",
    "pwrite64",
    "openat",
];
const COLLECT: [&str; 7] = ["gc", "--job", "job", "--older-than", "0", "--force", "--yes"];
const DISCARD: [&str; 3] = ["rm", "job", "--discard"];
/// Calls that there are many of.
const MANY: [&str; 3] = ["write", "pwrite64", "openat"];
/// Every which one of the calls that there are many of a test that is to be short is killed at.
const STEP: usize = 7;

/// Stores whose tiers are files, in part at least.
const ON_FILES: [&[[&str; 2]]; 4] = [
    &[["--tier", "file:@first:64M"], ["--tier", "file:@second:64M"]],
    &[["--tier", "ram:64M"], ["--tier", "file:@second:64M"]],
    &[["--meta-tier", "file:@meta:64M"], ["--tier", "ram:64M"]],
    &[["--meta-tier", "file:@meta:64M"], ["--tier", "file:@first:64M"]],
];

/// A store of one make, and the run that makes it and removes it at its end.
struct Made {
    sandbox: Sandbox,
    /// Options for its tiers.
    tiers: Vec<String>,
}

impl Made {
    /// With such tiers, in which `@` stands for a directory of its own.
    fn of(tiers: &[[&str; 2]]) -> Made {
        let sandbox = Sandbox::new();
        let work = format!("{}/", sandbox.work().display());
        let tiers = tiers.as_flattened().iter().map(|word| word.replace('@', &work)).collect();
        Made { sandbox, tiers }
    }

    /// The arguments of a run of `command`.
    fn run<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        let tiers = self.tiers.iter().map(String::as_str);
        let options = ["run", "--job", "job", "--discard"].into_iter().chain(tiers);
        options.chain(["--"]).chain(command.iter().copied()).collect()
    }

    /// Kills a run at the call `name` number `number`, if it makes so many; whether it does.
    fn is_killed_at(&self, name: &str, number: usize) -> bool {
        let as_usual = self.sandbox.command(&self.run(&["sh", "-c", "echo one >/cairn/a"]));
        let set = as_usual.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut run = Command::new("strace");
        run.envs(set).current_dir(self.sandbox.work()).stdin(Stdio::null()).stderr(Stdio::null());
        run.args(["-o", "/dev/null", "-e", &format!("trace={name}"), "-e"]);
        run.arg(format!("inject={name}:signal=KILL:when={number}"));
        run.arg(as_usual.get_program()).args(as_usual.get_args());
        !run.status().expect("strace starts").success()
    }

    /// What is left of stores, and of their tiers.
    fn left(&self) -> Vec<String> {
        let below = fs::read_dir(self.sandbox.root()).into_iter().flatten().flatten();
        let stores = below.flat_map(|root| fs::read_dir(root.path()).into_iter().flatten());
        let tiers = fs::read_dir(self.sandbox.work()).expect("the directory is there");
        let all = stores.chain(tiers).flatten();
        all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Kills runs at every call, and ends what they left in one way after the other.
    fn is_ended_after_every_kill(&self) {
        let again = self.run(&["true"]);
        let mut killed = 0;
        for name in CALLS {
            let step = if !is_soak() && MANY.contains(&name) { STEP } else { 1 };
            let numbers = (1..).step_by(step);
            for number in numbers.take_while(|&number| self.is_killed_at(name, number)) {
                killed += 1;
                let place = format!("{name} {number}");
                let left = self.left();
                let end = match killed % 4 {
                    0 if !left.is_empty() => &DISCARD[..],
                    2 if !left.is_empty() => &COLLECT,
                    _ => &again,
                };
                // What the killed run had started may still be on its way out.
                let mut ended = self.sandbox.cairn(end);
                eventually("nobody uses the store", || {
                    let is_used = ended.code == Some(1) && ended.stderr.contains("in use");
                    if is_used {
                        ended = self.sandbox.cairn(end);
                    }
                    !is_used
                });
                assert_eq!(ended.code, Some(0), "{place}: {left:?}, {end:?}: {}", ended.stderr);
                assert_eq!(self.left(), Vec::<String>::new(), "{place}: {left:?}, {end:?}");
            }
        }
        assert!(killed > 30, "{killed}");
    }
}

fn is_soak() -> bool {
    std::env::var_os("CAIRN_SOAK").is_some()
}

/// Whether runs can be killed at their calls here.
fn can_kill() -> bool {
    let can = Command::new("strace").arg("-V").output().is_ok();
    if !can {
        println!("left out: no strace");
    }
    can
}

/// Mechanism: a description that was not renamed yet carried the number of the process that wrote
/// it, and a directory with such a file was not taken for a new one. Consequence: after a kill in
/// that moment no run could use the job's name, and no command remove what was left.
/// Fix: it is known by its form.
#[test]
fn run_is_killed_at_any_call_then_the_next_one_makes_its_store_and_what_is_left_can_be_removed() {
    if can_kill() {
        Made::of(&[]).is_ended_after_every_kill();
    }
}

/// Mechanism: the tiers of a store that was removed were emptied before it lost its name.
/// Consequence: after a kill in between there was a store without them, and every later run of the
/// job was refused. Fix: its name goes first, and the next run of the job, `gc` and `rm` end what
/// was begun.
#[test]
fn run_on_files_is_killed_at_any_call_then_the_next_one_makes_its_store_and_what_is_left_can_be_removed()
 {
    if can_kill() {
        let kinds = if is_soak() { &ON_FILES[..] } else { &ON_FILES[..1] };
        kinds.iter().for_each(|tiers| Made::of(tiers).is_ended_after_every_kill());
    }
}
