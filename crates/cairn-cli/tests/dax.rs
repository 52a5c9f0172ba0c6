//! Mapped files as tiers: what runs on them, what is refused, and what is there afterwards.
//!
//! The files are in an ordinary file system, where the kernel flushes them. `tests/guest/dax.sh`
//! tests persistent memory.

mod common;

use common::{CAIRN, Ran, Sandbox, kill};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

const MIB: u64 = 1 << 20;

/// A sandbox with room for tiers.
struct Place {
    sandbox: Sandbox,
}

impl Place {
    fn new() -> Place {
        Place { sandbox: Sandbox::new() }
    }

    /// Tier option for the file `name`; `size` is `:SIZE` or empty.
    fn tier(&self, kind: &str, name: &str, size: &str) -> String {
        format!("{kind}:{}{size}", self.sandbox.work().join(name).display())
    }

    fn run(&self, job: &str, options: &[&str], script: &str) -> Ran {
        let mut arguments = vec!["run", "--job", job];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script]);
        self.sandbox.cairn(&arguments)
    }

    /// Runs on one mapped tier.
    fn run_on(&self, job: &str, script: &str) -> Ran {
        self.run(job, &["--tier", &self.tier("dax", "tier", ":32M")], script)
    }

    /// Loses everything of the job that is in memory, as a crash of the node does.
    fn lose_memory(&self, job: &str) {
        if let Some(agent) = self.sandbox.agent_if_any(job) {
            kill("KILL", i64::from(agent));
        }
        fs::remove_dir_all(self.sandbox.store(job)).expect("the store is there");
    }
}

const WRITE: &str =
    "mkdir /cairn/d && seq 500000 >/cairn/d/numbers && echo one >/cairn/a && mv /cairn/a /cairn/b";
const CHECK: &str = "seq 500000 | cmp - /cairn/d/numbers && cat /cairn/b";

#[test]
fn everything_is_killed_and_memory_is_lost_then_the_next_job_finds_what_was_closed() {
    let place = Place::new();
    let (tier, script) =
        (place.tier("dax", "tier", ":32M"), format!("{WRITE}; echo written; sleep 1000"));
    let arguments = ["run", "--job", "first", "--tier", &tier, "--", "bash", "-c", &script];
    let mut command = place.sandbox.command(&arguments);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0).spawn();
    let mut run = run.expect("starts");
    let mut said = [0; 8];
    std::io::Read::read_exact(run.stdout.as_mut().expect("piped"), &mut said).expect("is said");
    kill("KILL", -i64::from(run.id()));
    run.wait().expect("was killed");
    place.lose_memory("first");
    let again = place.run_on("second", CHECK).succeeds().prints("one\n");
    again.says("recovered 3 files and directories from dax:");
    place.run_on("second", CHECK).succeeds().prints("one\n");
    place.sandbox.cairn(&["rm", "second", "--discard"]).succeeds();
    assert!(!place.sandbox.work().join("tier").exists(), "the file goes with the store");
}

#[test]
fn file_larger_than_the_memory_spills_to_a_mapped_file_and_is_drained() {
    let place = Place::new();
    let (tier, out) = (place.tier("dax", "spill", ":32M"), place.sandbox.out());
    let options = ["--tier", "ram:2M", "--tier", &tier, "--persist", out.to_str().expect("UTF-8")];
    let script =
        format!("seq 2000000 >/cairn/large && seq 2000000 | cmp - /cairn/large && {CAIRN} status");
    let ran = place.run("spill", &options, &script).succeeds().says("verified");
    ran.says("MiB of 32.0 MiB used").says("spill, mapped without MAP_SYNC\n");
    let drained = place.sandbox.drained("large");
    assert!(drained.lines().map(|line| line.parse()).eq((1..=2_000_000).map(Ok::<u32, _>)));
    assert!(!place.sandbox.work().join("spill").exists());
}

#[test]
fn status_says_once_for_each_mapped_file_whether_the_processor_makes_it_durable() {
    let place = Place::new();
    let tiers = [place.tier("dax", "meta", ":8M"), place.tier("dax", "data", ":8M")];
    let options =
        ["--meta-tier", &tiers[0], "--tier", &tiers[1], "--tier", &place.tier("file", "f", ":1M")];
    place.run("job", &options, "seq 100000 >/cairn/numbers").succeeds();
    let text = place.sandbox.cairn(&["status", "job"]).succeeds().stdout;
    let said = |name: &str| text.matches(&format!("{name}, mapped without MAP_SYNC\n")).count();
    assert_eq!((said("meta"), said("data"), said("f")), (1, 1, 0), "{text}");
    let status = place.sandbox.cairn(&["status", "job", "--json"]).succeeds().json();
    assert_eq!(status[0]["meta"]["map_sync"], false, "{status}");
    assert_eq!(status[0]["tiers"][0]["map_sync"], false, "{status}");
    assert_eq!(status[0]["tiers"][1].get("map_sync"), None, "{status}");
    place.lose_memory("job");
    place.run("again", &options, "seq 100000 | cmp - /cairn/numbers").succeeds();
}

#[test]
fn tier_that_was_mapped_is_used_unmapped_and_mapped_again() {
    let place = Place::new();
    let on = |kind: &str, job: &str, script: &str| {
        let ran = place.run(job, &["--tier", &place.tier(kind, "tier", ":32M")], script);
        let ran = ran.succeeds();
        place.lose_memory(job);
        ran
    };
    on("dax", "first", WRITE);
    on("file", "second", &format!("{CHECK} && echo two >/cairn/b")).prints("one\n");
    on("dax", "third", CHECK).prints("two\n");
}

#[test]
fn mapped_tier_is_looked_at_without_a_store_and_damage_is_found() {
    let place = Place::new();
    place.run_on("first", WRITE).succeeds();
    let named = [place.tier("dax", "tier", ""), place.tier("dax", "tier", ":32M")];
    for name in &named {
        place.sandbox.cairn(&["fsck", name]).refused_with("another store uses it");
    }
    place.lose_memory("first");
    for name in &named {
        place.sandbox.cairn(&["fsck", name]).succeeds().says("clean");
        place.sandbox.cairn(&["verify", name]).succeeds().says("intact");
    }
    let path = place.sandbox.work().join("tier");
    let content = fs::read(&path).expect("is there");
    let numbers = content.windows(6).position(|bytes| bytes == b"\n4711\n").expect("was written");
    let file = fs::File::options().write(true).open(&path).expect("opens");
    file.write_all_at(b"5", numbers as u64 + 2).expect("writes");
    place.sandbox.cairn(&["verify", &named[0]]).ends_with(1).says("/cairn/d/numbers");
}

#[test]
fn each_rank_has_a_mapped_file_of_its_own() {
    let place = Place::new();
    let options = ["--scope", "rank", "--tier", &place.tier("dax", "tier", ":8M")];
    let script = format!(
        "for rank in 0 1; do export PMI_RANK=$rank; bash -c 'seq $((50000 + PMI_RANK)) >/cairn/f'; done
         for rank in 0 1; do export PMI_RANK=$rank; bash -c 'tail -n 1 /cairn/f'; done; {CAIRN} status"
    );
    let ran = place.run("ranks", &options, &script).succeeds();
    ran.says("50000\n50001\n").says("tier, mapped without MAP_SYNC\n");
    place.lose_memory("ranks");
    let script = "for rank in 0 1; do export PMI_RANK=$rank; bash -c 'tail -n 1 /cairn/f'; done";
    place.run("again", &options, script).succeeds().prints("50000\n50001\n");
}

#[test]
fn mapped_tier_that_does_not_fit_is_refused() {
    let place = Place::new();
    let refused = |tier: &str, part: &str| {
        place.sandbox.cairn(&["run", "--tier", tier, "--", "true"]).refused_with(part);
    };
    refused("dax", "is not a tier");
    refused("dax:/no/such/directory/tier:8M", "does not exist");
    refused(&place.tier("dax", "tier", ":64K"), "too small");
    refused(&place.tier("dax", "tier", ":8MX"), "is not a size");
    refused(&place.tier("dax", "tier", ":4000T"), "are free there");
    let tier = place.tier("dax", "tier", ":3G");
    let command = format!("ulimit -v 3000000; exec {CAIRN} run --tier {tier} -- true");
    let mut limited = std::process::Command::new("bash");
    limited.args(["-c", &command]).env("CAIRN_STORE_ROOT", place.sandbox.root());
    Ran::of(limited.output().expect("starts"), command).refused_with("ulimit -v");
    let names = fs::read_dir(place.sandbox.work()).expect("is there");
    assert_eq!(names.count(), 0, "nothing was made");
}

#[test]
fn file_in_use_is_refused_to_others_mapped_or_not() {
    let place = Place::new();
    place.run_on("first", "echo kept >/cairn/file").succeeds();
    for kind in ["dax", "file"] {
        let inner = format!(
            "exec 3</cairn/file; {CAIRN} run --force --job second --tier {} -- true; echo $?",
            place.tier(kind, "tier", ":32M")
        );
        place.run_on("first", &inner).succeeds().says("another store uses it").prints("2\n");
    }
    let tiers = [place.tier("dax", "one", ":8M"), place.tier("file", "one", ":8M")];
    let both = ["--tier", &tiers[0], "--tier", &tiers[1]];
    place.run("second", &both, "true").refused_with("is the second tier in the same place");
    let beside = ["--meta-tier", &tiers[0], "--tier", &tiers[1]];
    place.run("second", &beside, "true").refused_with("is the second tier in the same place");
    place.run_on("first", "cat /cairn/file").succeeds().prints("kept\n");
}

#[test]
fn file_that_was_cut_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let path = place.sandbox.work().join("tier");
    place.run_on("kept", WRITE).succeeds();
    let whole = fs::metadata(&path).expect("is there").len();
    let file = fs::File::options().read(true).write(true).open(&path).expect("opens");
    let mut label = [0; 4096];
    file.read_exact_at(&mut label, whole - 4096).expect("reads");
    file.set_len(16 * MIB).expect("is cut");
    place.run_on("kept", CHECK).refused_with("tier");
    let status = place.sandbox.cairn(&["status", "kept"]).succeeds();
    status.says("trouble").says("it has no label");
    place.lose_memory("kept");
    place.run_on("again", CHECK).refused_with("tier");
    assert_eq!(fs::metadata(&path).expect("is there").len(), 16 * MIB);
    file.write_all_at(&label, whole - 4096).expect("writes");
    // Nothing was in use there. The run allocates the missing space.
    place.run_on("again", CHECK).succeeds().prints("one\n").says("recovered 3");
    assert!(file.metadata().expect("is there").blocks() * 512 >= whole);
}

#[test]
fn what_stands_there_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let path = place.sandbox.work().join("tier");
    fs::write(&path, "mine").expect("writes");
    place.run_on("job", "true").refused_with("others could have written it");
    place
        .run("job", &["--tier", "ram:2M", "--tier", &place.tier("dax", "tier", ":8M")], "true")
        .refused_with("exists");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("is ours");
    place.run_on("job", "true").refused_with("not a tier of Cairn");
    assert_eq!(fs::read(&path).expect("is there"), b"mine");
    assert!(!place.sandbox.store("job").exists(), "nothing was made");
}
