//! `cairn run --promote`: blocks read on a file or a device move to memory, and no others do.

mod common;

use common::loop_device::LoopDevice;
use common::{CAIRN, Ran, Sandbox, eventually};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;

/// Fills the memory, writes a file that does not fit there, and makes room again.
const SPILL: &str = "
import os, random
MIB = 1 << 20
content = random.Random(7).randbytes(MEMORY_MIB * MIB // 2 - 12_345)
def spill():
    if os.path.exists('/cairn/spilled'):
        os.remove('/cairn/spilled')
    with open('/cairn/filler', 'wb') as filler:
        filler.write(bytes(MEMORY_MIB * MIB))
    with open('/cairn/spilled', 'wb') as spilled:
        spilled.write(content)
    os.remove('/cairn/filler')
def check():
    with open('/cairn/spilled', 'rb') as spilled:
        assert spilled.read() == content
";

/// A store with a given amount of memory that spills to a file or a device.
struct Store {
    sandbox: Sandbox,
    memory_mib: u64,
    tiers: String,
}

impl Store {
    fn in_file(memory_mib: u64) -> Store {
        let sandbox = Sandbox::new();
        let file = format!("file:{}:64M", sandbox.work().join("tier").display());
        Store { sandbox, memory_mib, tiers: format!("ram:{memory_mib}M,{file}") }
    }

    /// Runs a program that fails at its end, so that the store is kept.
    fn run(&self, options: &[&str], rest: &str) -> Ran {
        let memory_mib = self.memory_mib.to_string();
        let script = SPILL.replace("MEMORY_MIB", &memory_mib) + rest + "\nraise SystemExit(3)";
        let mut arguments = vec!["run", "--job", "job", "--tier", &self.tiers];
        arguments.extend(options);
        arguments.extend(["--", "python3", "-c", &script]);
        self.sandbox.cairn(&arguments)
    }

    fn tiers(&self) -> Value {
        self.sandbox.cairn(&["status", "job", "--json"]).succeeds().json()[0]["tiers"].clone()
    }

    fn used(&self) -> [u64; 2] {
        let tiers = self.tiers();
        [0, 1].map(|tier| tiers[tier]["used_bytes"].as_u64().expect("is there"))
    }

    /// Asserts that blocks that were read move from the second tier to the first, and that the next
    /// program reads them there.
    fn promotes(&self) {
        let half = self.memory_mib * MIB / 2;
        self.run(&["--promote"], "spill(); check()").ends_with(3);
        eventually("the file moves to memory", || self.used() == [half, 0]);
        let tiers = self.tiers();
        assert_eq!(tiers[1]["promoted_bytes"], half, "{tiers}");
        assert_eq!(tiers[0]["promoted_bytes"], Value::Null, "{tiers}");
        let said = format!("  promoted  {half}.00 MiB that was read here", half = half / MIB);
        self.sandbox.cairn(&["status", "job"]).succeeds().says(&said);
        self.run(&[], "check(); os.remove('/cairn/spilled')").ends_with(3);
        assert_eq!(self.used(), [0, 0]);
    }
}

#[test]
fn what_was_read_in_a_file_moves_to_memory() {
    Store::in_file(4).promotes();
}

#[test]
fn what_was_read_on_a_device_moves_to_memory() {
    let sandbox = Sandbox::new();
    let Some(device) = LoopDevice::new(&sandbox.work(), 64 << 20) else { return };
    let tiers = format!("ram:4M,block:{}", device.path().display());
    Store { sandbox, memory_mib: 4, tiers }.promotes();
}

#[test]
fn nothing_moves_that_was_not_read_or_if_it_was_not_asked_for() {
    let store = Store::in_file(4);
    store.run(&[], "spill(); check(); check()").ends_with(3);
    assert_eq!(store.used(), [0, 2 * MIB]);
    store.run(&["--promote"], "pass").refused_with("which was made with no --promote");
    let store = Store::in_file(4);
    let persist = store.sandbox.out();
    let options = ["--promote", "--persist", persist.to_str().expect("UTF-8")];
    // The drain reads the file, but is not a program.
    store.run(&options, "spill()").ends_with(3);
    assert_eq!(store.sandbox.drained_names(), ["spilled"]);
    assert_eq!(store.used(), [0, 2 * MIB]);
}

#[test]
fn damaged_block_stays_where_it_is_found() {
    let store = Store::in_file(4);
    let work = store.sandbox.work();
    store.run(&["--promote"], "spill(); open('content', 'wb').write(content)").ends_with(3);
    let content = fs::read(work.join("content")).expect("reads");
    let part = &content[3 * MIB as usize / 2..][..64];
    let tier = fs::File::options().read(true).write(true).open(work.join("tier")).expect("opens");
    let mut at = None;
    eventually("the file has it", || {
        let bytes = fs::read(work.join("tier")).expect("reads");
        at = bytes.windows(part.len()).position(|window| window == part);
        at.is_some()
    });
    let at = at.expect("just found") as u64;
    tier.write_all_at(&[!part[0]], at).expect("writes");
    store.run(&[], "open('/cairn/spilled', 'rb').read()").ends_with(3);
    eventually("what is intact moves to memory", || store.used() == [MIB, MIB]);
    let ran = store.sandbox.cairn(&["verify", "job"]).ends_with(1);
    ran.says("/cairn/spilled").says(&format!("offset {}", 3 * MIB / 2));
}

#[test]
fn what_is_durable_is_not_promoted() {
    let sandbox = Sandbox::new();
    let file = format!("file:{}:16M", sandbox.work().join("tier").display());
    for options in [["--tier", &file, "--tier", "ram:4M"], ["--meta-tier", &file, "--tier", "ram"]]
    {
        let mut arguments = vec!["run", "--promote"];
        arguments.extend(options);
        arguments.extend(["--", "true"]);
        sandbox.cairn(&arguments).refused_with("--promote needs metadata in memory");
    }
}

/// The agent is killed again and again while it promotes. In the end all content is unchanged, and
/// no block is lost.
#[test]
fn agent_that_is_killed_while_it_promotes_loses_nothing() {
    const READ_AND_KILL: &str = "
import json, subprocess
status = subprocess.run([CAIRN, 'status', 'job', '--json'], capture_output=True, check=True)
agent = json.loads(status.stdout)[0]['agent']['pid']
spill()
with open('/cairn/spilled', 'rb', buffering=0) as spilled:
    for part in range(PARTS):
        assert spilled.read(MIB) == content[part * MIB:][:MIB]
os.kill(agent, 9)
check()";
    let store = Store::in_file(32);
    store.run(&["--promote"], "pass").ends_with(3);
    for round in 0..4 {
        let parts = (1 + round * 4).to_string();
        let script = READ_AND_KILL.replace("PARTS", &parts);
        store.run(&[], &script.replace("CAIRN", &format!("'{CAIRN}'"))).ends_with(3);
    }
    store.run(&[], "check()").ends_with(3);
    eventually("the file moves to memory", || store.used() == [16 * MIB, 0]);
    store.run(&[], "check(); os.remove('/cairn/spilled')").ends_with(3);
    assert_eq!(store.used(), [0, 0], "blocks are left");
}
