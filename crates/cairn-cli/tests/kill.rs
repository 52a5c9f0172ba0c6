//! Programs killed by SIGKILL at random points of real runs, on one store over all rounds.
//!
//! Must stay true: closed files are there. With metadata and data in files, every kill is followed
//! by the loss of the node's memory. Each step of the program ends with the close of a written
//! file, after which the program confirms the step. The step interrupted by the kill may be done or
//! not; of a file rewritten in place, any prefix may be there.
//!
//! On a namespace of another machine, the target is killed in some rounds, too, and started again.
//! Programs do not notice that. `CAIRN_SOAK` raises the number of rounds to thousands.

mod common;
#[path = "common/exported.rs"]
mod exported;

use common::loop_device::LoopDevice;
use common::{Sandbox, kill};
use exported::Target;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

const ROUNDS: u64 = 6;
const SOAK_ROUNDS: u64 = 2500;
/// Number of steps within which a program is killed.
const STEPS_MAX: u64 = 40;
const DEVICE_BYTES: u64 = 64 << 20;

/// Content of a file, which follows from its name and its version number. Each line names both.
const CONTENT: &str = "
import os, random, sys
def content(name, version):
    return f'{name} {version}\\n'.encode() * (version * 7919 % 60000 + 1)
";

/// Endless steps, each announced before and confirmed after.
const WRITER: &str = "
number = int(sys.argv[1])
choose = random.Random(number)
def say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())
def put(path, data, flags):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
    at = 0
    while at < len(data):
        at += os.write(file, data[at:at + choose.randrange(1, 200000)])
    if choose.random() < 0.3: os.fsync(file)
    os.close(file)
while True:
    number += 1
    name = f'f{choose.randrange(6)}'
    path = '/cairn/' + name
    act = choose.choice(['rewrite', 'replace', 'replace', 'remove'])
    if act == 'remove' and not os.path.exists(path): continue
    say('begin', act, name, number)
    if act == 'rewrite':
        put(path, content(name, number), os.O_TRUNC)
    elif act == 'replace':
        put('/cairn/new', content(name, number), os.O_TRUNC)
        os.rename('/cairn/new', path)
    else:
        os.unlink(path)
    # Promises the names, too.
    put('/cairn/mark', b'.', os.O_TRUNC)
    say('done', act, name, number)
";

/// Prints the version of each file; 0 for a file that is only a prefix of one.
const READER: &str = "
for name in sorted(os.listdir('/cairn')):
    if name[0] != 'f': continue
    data = open('/cairn/' + name, 'rb').read()
    words = data.split(b'\\n', 1)[0].split()
    version = int(words[1]) if len(words) == 2 and words[1].isdigit() else 0
    whole = content(name, version)
    if data != whole:
        assert whole.startswith(data) or not data.strip(b'\\0'), name
        version = 0
    print(name, version)
";

/// Version of each file.
type Versions = BTreeMap<String, u64>;

/// A step that the writer reports.
#[derive(Clone, Debug)]
struct Step {
    act: String,
    name: String,
    version: u64,
}

impl Step {
    fn take(&self, versions: &mut Versions) {
        match self.act.as_str() {
            "remove" => versions.remove(&self.name),
            _ => versions.insert(self.name.clone(), self.version),
        };
    }
}

/// A store, and its expected content.
struct Victim {
    sandbox: Sandbox,
    /// Target that exports a namespace to the store.
    target: Option<Target>,
    /// Tier options of the store.
    options: Vec<String>,
    is_durable: bool,
    versions: Versions,
}

impl Victim {
    fn new(options: &str) -> Victim {
        Victim::on(Sandbox::new(), None, options)
    }

    /// Makes a victim on a target's namespace, which replaces TIER in the options.
    fn remote(options: &str) -> Victim {
        let sandbox = exported::exporting();
        let target = Target::start(&sandbox, "127.0.0.1:0");
        let options = options.replace("TIER", &target.tier);
        Victim::on(sandbox, Some(target), &options)
    }

    fn on(sandbox: Sandbox, target: Option<Target>, options: &str) -> Victim {
        let work = sandbox.work().display().to_string();
        let is_durable = !options.contains("ram:");
        let options = options.replace("WORK", &work).split(' ').map(str::to_owned).collect();
        Victim { sandbox, target, options, is_durable, versions: Versions::new() }
    }

    fn arguments<'a>(&'a self, script: &'a str, number: &'a str) -> Vec<&'a str> {
        let mut arguments = vec!["run", "--job", "victim"];
        arguments.extend(self.options.iter().map(String::as_str));
        arguments.extend(["--", "python3", "-c", script, number]);
        arguments
    }

    /// Kills the target, and starts it again at the same address.
    fn restart_target(&mut self) {
        let Some(mut target) = self.target.take() else { return };
        target.end();
        self.target = Some(Target::start(&self.sandbox, &target.address));
    }

    /// Runs the writer and kills it with `cairn` some time after a number of steps. Returns the
    /// step that was under way.
    ///
    /// On a spilling store, every second round kills the agent first, with its unwritten data.
    /// Every third round kills the target first, if there is one.
    fn write_and_die(&mut self, round: u64) -> Option<Step> {
        let (script, number) = (format!("{CONTENT}{WRITER}"), (round * 100_000).to_string());
        let mut command = self.sandbox.command(&self.arguments(&script, &number));
        let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).spawn();
        let mut child = started.expect("cairn starts");
        let mut left = (round * 7 + round / 5) % STEPS_MAX;
        let agent_dies_at = (!self.is_durable && round % 2 == 0).then_some(left / 2);
        let target_dies_at = (round % 3 == 0).then_some(left / 3);
        let mut under_way = None;
        // Lines still in the pipe after the kill were printed before it.
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.expect("text");
            let words: Vec<&str> = line.split(' ').collect();
            let [kind, act, name, version] = words[..] else { panic!("the writer says {line:?}") };
            let version = version.parse().expect("a number");
            let step = Step { act: act.to_owned(), name: name.to_owned(), version };
            under_way = Some(step.clone()).filter(|_| kind == "begin");
            if kind == "done" {
                step.take(&mut self.versions);
            }
            if Some(left) == agent_dies_at {
                let agent = self.sandbox.agent_if_any("victim");
                agent.into_iter().for_each(|agent| kill("KILL", i64::from(agent)));
            }
            if Some(left) == target_dies_at {
                self.restart_target();
            }
            if left == 0 {
                kill("KILL", -i64::from(child.id()));
            }
            left = left.wrapping_sub(1);
        }
        assert!(!child.wait().expect("it was killed").success());
        under_way
    }

    /// Loses everything that is in memory, as a crash of the node does.
    fn lose_memory(&self) {
        kill("KILL", i64::from(self.sandbox.agent("victim")));
        fs::remove_dir_all(self.sandbox.store("victim")).expect("the store is there");
    }

    fn read(&self) -> Versions {
        let script = format!("{CONTENT}{READER}");
        let ran = self.sandbox.cairn(&self.arguments(&script, "0")).succeeds();
        let parse = |line: &str| {
            let (name, version) = line.split_once(' ')?;
            Some((name.to_owned(), version.parse().ok()?))
        };
        ran.stdout.lines().map(|line| parse(line).expect("a name and a number")).collect()
    }

    fn suffer(&mut self, rounds: u64) {
        let mut hits = 0;
        for round in 1..=rounds {
            let under_way = self.write_and_die(round);
            if self.is_durable {
                self.lose_memory();
            }
            let found = self.read();
            hits += u64::from(under_way.is_some());
            if let Some(step) = under_way {
                // The old state, the new one, or a prefix of a file that was being rewritten.
                let mut new = self.versions.clone();
                step.take(&mut new);
                let seen = found.get(&step.name);
                let part = step.act == "rewrite" && seen.is_none_or(|&version| version == 0);
                assert!(
                    part || seen == new.get(&step.name) || seen == self.versions.get(&step.name),
                    "round {round}: {step:?} on {:?} left {found:?}",
                    self.versions
                );
                match seen {
                    Some(&version) => self.versions.insert(step.name, version),
                    None => self.versions.remove(&step.name),
                };
            }
            assert_eq!(found, self.versions, "round {round}");
        }
        println!("{rounds} rounds, {hits} deaths in a step");
    }
}

fn rounds() -> u64 {
    if std::env::var_os("CAIRN_SOAK").is_some() { SOAK_ROUNDS } else { ROUNDS }
}

#[test]
fn program_is_killed_and_memory_is_lost_then_what_was_closed_is_in_the_file() {
    Victim::new("--tier file:WORK/tier:64M").suffer(rounds());
}

#[test]
fn program_that_spills_is_killed_then_what_was_closed_is_there() {
    Victim::new("--tier ram:2M --tier file:WORK/spill:64M").suffer(rounds());
}

#[test]
fn program_with_metadata_apart_is_killed_and_memory_is_lost_then_what_was_closed_is_there() {
    let options =
        "--meta-tier file:WORK/meta:8M --tier file:WORK/small:1M --tier file:WORK/data:64M";
    Victim::new(options).suffer(rounds());
}

#[test]
fn program_with_metadata_in_a_file_and_data_that_spill_is_killed_then_what_was_closed_is_there() {
    let options = "--meta-tier file:WORK/meta:8M --tier ram:2M --tier file:WORK/spill:64M";
    Victim::new(options).suffer(rounds());
}

#[test]
fn program_is_killed_and_memory_is_lost_then_what_was_closed_is_in_the_mapped_file() {
    Victim::new("--tier dax:WORK/tier:64M").suffer(rounds());
}

#[test]
fn program_that_spills_to_a_mapped_file_is_killed_then_what_was_closed_is_there() {
    Victim::new("--tier ram:2M --tier dax:WORK/spill:64M").suffer(rounds());
}

#[test]
fn program_is_killed_and_memory_is_lost_then_what_was_closed_is_on_the_device() {
    let Some(device) = LoopDevice::new(&std::env::temp_dir(), DEVICE_BYTES) else { return };
    Victim::new(&format!("--tier block:{}", device.path().display())).suffer(rounds());
}

#[test]
fn program_that_spills_to_a_device_is_killed_then_what_was_closed_is_there() {
    let Some(device) = LoopDevice::new(&std::env::temp_dir(), DEVICE_BYTES) else { return };
    let options = format!("--tier ram:2M --tier block:{}", device.path().display());
    Victim::new(&options).suffer(rounds());
}

#[test]
fn program_is_killed_and_memory_is_lost_then_what_was_closed_is_on_the_other_machine() {
    Victim::remote("--tier TIER").suffer(rounds());
}

#[test]
fn program_that_spills_to_another_machine_is_killed_then_what_was_closed_is_there() {
    Victim::remote("--tier ram:2M --tier TIER").suffer(rounds());
}
