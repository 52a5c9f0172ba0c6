//! Metadata separate from data: the tiers of a store in every combination, and what survives of it.
//!
//! Three files are written one after the other and closed. The first fits into the first of two
//! data tiers. The second fills that tier and continues in the other. The third is entirely in the
//! other.

mod common;

use common::loop_device::LoopDevice;
use common::{CAIRN, Ran, Sandbox, kill};
use serde_json::Value;
use std::fs;

/// Data tiers, and which files survive the loss of memory if the metadata do.
const DATA: [(&[&str], [bool; 3]); 4] = [
    (&["ram:8M"], [false, false, false]),
    (&["file:WORK/data:8M"], [true, true, true]),
    (&["ram:1M", "file:WORK/data:8M"], [false, false, true]),
    (&["file:WORK/data:1M", "ram:8M"], [true, false, false]),
];
const FILES: [&str; 3] = ["first", "second", "third"];
const META: &str = "file:WORK/meta:8M";

const WRITE: &str = "seq 1 40000 >/cairn/first; seq 1 400000 >/cairn/second; seq 1 50000 >/cairn/third; \
                     : >/cairn/empty; mkdir /cairn/directory; ln -s first /cairn/link";
const SUMS: &str = "(seq 1 40000 | md5sum; seq 1 400000 | md5sum; seq 1 50000 | md5sum) >expected; \
                    for file in first second third; do md5sum </cairn/$file; done | diff expected - && \
                    ls /cairn";
const NAMES: &str = "directory\nempty\nfirst\nlink\nsecond\nthird\n";

/// A store with metadata in one place and data in others.
struct Place {
    sandbox: Sandbox,
    options: Vec<String>,
}

impl Place {
    fn new(meta: &str, data: &[&str]) -> Place {
        let sandbox = Sandbox::new();
        let work = sandbox.work().display().to_string();
        let mut options = vec!["--meta-tier".to_owned(), meta.replace("WORK", &work)];
        for tier in data {
            options.extend(["--tier".to_owned(), tier.replace("WORK", &work)]);
        }
        Place { sandbox, options }
    }

    fn run(&self, script: &str) -> Ran {
        let mut arguments = vec!["run", "--job", "job"];
        arguments.extend(self.options.iter().map(String::as_str));
        arguments.extend(["--", "bash", "-c", script]);
        self.sandbox.cairn(&arguments)
    }

    /// Writes the files and kills the program while it writes another file.
    fn write_and_die(&self) {
        let script = format!("{WRITE}; exec 3>/cairn/open; seq 1 1000 >&3; kill -9 $$");
        assert_ne!(self.run(&script).code, Some(0));
    }

    fn status(&self) -> Value {
        self.sandbox.cairn(&["status", "job", "--json"]).succeeds().json()[0].clone()
    }

    /// Loses everything that is in memory, as a crash of the node does.
    fn lose_memory(&self) {
        if let Some(agent) = self.sandbox.agent_if_any("job") {
            kill("KILL", i64::from(agent));
        }
        fs::remove_dir_all(self.sandbox.store("job")).expect("the store is there");
    }

    fn path(&self, name: &str) -> String {
        self.sandbox.work().join(name).display().to_string()
    }

    /// Runs `cairn verify` on the metadata file and, if it exists, the data file.
    fn verify(&self) -> Ran {
        let (meta, data) = (format!("file:{}", self.path("meta")), self.path("data"));
        let mut arguments = vec!["verify", "--json", &meta];
        if fs::exists(&data).expect("the directory is there") {
            arguments.extend(["--tier", &data]);
        }
        self.sandbox.cairn(&arguments)
    }
}

#[test]
fn program_is_killed_then_the_next_one_finds_what_was_closed() {
    for meta in ["ram", "ram:64M", META] {
        for (data, _) in DATA {
            let place = Place::new(meta, data);
            place.write_and_die();
            let status = place.status();
            assert_eq!(status["files"]["unclean"], 1, "{meta} {data:?}: {status}");
            place.run(&format!("rm /cairn/open; {SUMS}")).succeeds().prints(NAMES);
            place.sandbox.cairn(&["verify", "job"]).succeeds();
        }
    }
}

#[test]
fn memory_is_lost_then_files_that_were_there_as_a_whole_are_whole_and_the_others_say_so() {
    for (data, survives) in DATA {
        let place = Place::new(META, data);
        place.write_and_die();
        place.lose_memory();

        let fsck = place.sandbox.cairn(&["fsck", &place.path("meta"), "--json"]).succeeds().json();
        let lost = fsck["content"]["lost"].as_array().expect("a list").clone();
        let expected: Vec<String> = FILES
            .iter()
            .zip(survives)
            .filter(|(_, survives)| !survives)
            .map(|(name, _)| format!("/cairn/{name}"))
            .collect();
        let is_open = |path: &&Value| **path == "/cairn/open";
        let lost: Vec<&Value> = lost.iter().filter(|path| !is_open(path)).collect();
        assert_eq!(lost, expected.iter().collect::<Vec<_>>(), "{data:?}");
        let verified = place.verify().json();
        let damaged = verified["damaged"].as_array().expect("a list").iter();
        let damaged: Vec<_> =
            damaged.map(|one| &one["path"]).filter(|path| !is_open(path)).collect();
        assert_eq!(damaged, expected.iter().collect::<Vec<_>>(), "{data:?}");

        let script = "ls /cairn; for file in first second third; do \
                      cat /cairn/$file 2>&1 >/dev/null | grep -o 'Input/output error'; \
                      echo x 2>/dev/null >>/cairn/$file && echo appended; done";
        let ran = place.run(script);
        let said: String = survives
            .map(|survives| if survives { "appended\n" } else { "Input/output error\n" })
            .concat();
        let names = NAMES.replace("link\n", "link\nopen\n");
        assert_eq!(ran.stdout, format!("{names}{said}"), "{data:?}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("recovered 7 files and directories from file:"),
            "{}",
            ran.stderr
        );

        let status = place.status();
        let unclean = 1 + survives.iter().filter(|survives| !**survives).count();
        assert_eq!(status["files"]["unclean"], unclean, "{data:?}: {status}");
        let newest = place.sandbox.cairn(&["ls", "job", "--newest", "second"]);
        assert_eq!(newest.code == Some(0), survives[1], "{data:?}: {}", newest.stdout);
        let out = place.path("out");
        let copied = place.sandbox.cairn(&["cp", "job:/second", &out]);
        assert_eq!(copied.code == Some(0), survives[1], "{data:?}: {}", copied.stderr);
        place.run(&format!("rm -r /cairn/*; {WRITE}; {SUMS}")).succeeds().prints(NAMES);
    }
}

#[test]
fn metadata_or_data_on_a_device_are_recovered_from_it() {
    for (meta, data) in [("block:DEVICE", "file:WORK/data:8M"), (META, "block:DEVICE")] {
        let Some(device) = LoopDevice::new(&std::env::temp_dir(), 16 << 20) else { return };
        let name = device.path().display().to_string();
        let place = Place::new(&meta.replace("DEVICE", &name), &[&data.replace("DEVICE", &name)]);
        place.write_and_die();
        place.lose_memory();
        place.run(&format!("rm /cairn/open; {SUMS}")).succeeds().prints(NAMES);
        place.sandbox.cairn(&["verify", "job"]).succeeds();
    }
}

/// Mechanism: the end of the run gave the location of the metadata as that of the files, and its
/// resume command named no tiers.
///
/// Consequence: after a crash of the node that command began an empty store in memory.
///
/// Fix: the message names the data tiers, and for a durable store all tiers.
#[test]
fn end_of_a_run_says_where_data_are_and_with_which_command_they_are_recovered() {
    for (data, is_in_memory) in
        [(&["ram:8M", "file:WORK/data:8M"][..], true), (&["file:WORK/data:8M"], false)]
    {
        let place = Place::new(META, data);
        let ran = place.run("ls /cairn; : >/cairn/empty; exit 3").ends_with(3);
        let memory = if is_in_memory { "the memory of this node and " } else { "" };
        let only = format!("only in {memory}{}: nothing was drained", place.path("data"));
        assert!(ran.stderr.contains(&only), "{only} in {}", ran.stderr);
        let resume = ran.stderr.split_once("resume   cairn ").expect("it says how to go on").1;
        let command = format!("{CAIRN} {}", resume.split_once('\n').expect("a line").0);
        let again = |when: &str| {
            let output = place.sandbox.shell(&command);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "empty\n", "{when}: {command}");
        };
        again("resumed");
        place.lose_memory();
        again("recovered");
    }
    let place = Place::new("ram", &["ram:8M"]);
    let ran = place.run("echo x >/cairn/x; exit 3").ends_with(3);
    assert!(!ran.stderr.contains("--tier"), "{}", ran.stderr);
}

/// Mechanism: everything with a name was reported as recovered, and files that staging would bring
/// into a new store were left out silently.
///
/// Consequence: a user of `--stage` resumed with files that could not be read, although there were
/// copies of them.
///
/// Fix: the run reports how many files are lost, how many of them have copies outside, and how
/// these come back.
#[test]
fn run_that_recovers_says_how_many_files_are_lost_and_how_their_copies_come_back() {
    let place = Place::new(META, &["ram:8M"]);
    let out = place.sandbox.out().display().to_string();
    let run = |options: &[&str], script: &str| {
        let mut arguments = vec!["run", "--job", "job", "--persist", &out];
        arguments.extend(place.options.iter().map(String::as_str));
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script]);
        place.sandbox.cairn(&arguments)
    };
    let script = "cd /cairn; : >empty; echo one >one; echo two >two; exec 3>open; echo x >&3; sync open; kill -9 $$";
    run(&[], script).ends_with(137);
    place.lose_memory();
    let ran = run(&["--stage"], "cat /cairn/one");
    for line in [
        "recovered 4 files and directories from file:",
        "3 files of these lost a part that was in memory; cairn verify job lists them",
        &format!("{out} has verified copies of 3 of them"),
        "cairn rm job --discard",
        "--stage has no effect on a store that was recovered",
    ] {
        assert!(ran.stderr.contains(line), "{line} in {}", ran.stderr);
    }
    place.sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    run(&["--stage"], "cat /cairn/one").succeeds().prints("one\n");
    // Without losses, there is no message.
    let place = Place::new(META, &["file:WORK/data:8M"]);
    place.run("echo one >/cairn/one; exit 3").ends_with(3);
    place.lose_memory();
    let ran = place.run("cat /cairn/one").succeeds();
    assert!(ran.stderr.contains("recovered 1 ") && !ran.stderr.contains("lost"), "{}", ran.stderr);
}

#[test]
fn lost_files_are_never_drained() {
    let place = Place::new(META, &["ram:8M"]);
    place.write_and_die();
    place.lose_memory();
    let out = place.sandbox.out();
    let mut arguments = vec!["run", "--job", "job", "--persist", out.to_str().expect("UTF-8")];
    arguments.extend(place.options.iter().map(String::as_str));
    arguments.extend(["--", "bash", "-c", "echo new >/cairn/new"]);
    place.sandbox.cairn(&arguments).ends_with(75).says("not drained: ");
    assert_eq!(place.sandbox.drained_names(), ["directory", "empty", "link", "new"]);
    assert_eq!(place.sandbox.manifest("job")["complete"], false);
}

#[test]
fn metadata_in_memory_are_gone_with_it_and_the_file_with_the_data_is_refused() {
    let place = Place::new("ram", &["file:WORK/data:8M"]);
    place.write_and_die();
    place.lose_memory();
    place.run("true").refused_with("exists");
    let data = place.path("data");
    place.sandbox.cairn(&["fsck", &data]).refused_with("no superblock");
    fs::remove_file(data).expect("it is there");
    place.run("ls /cairn").succeeds().prints("");
}

#[test]
fn status_shows_where_metadata_stand_and_how_many_there_can_be() {
    let place = Place::new(META, &["ram:8M"]);
    place.run(WRITE).succeeds();
    let status = place.status();
    let meta = &status["meta"];
    assert_eq!(meta["inodes"], 7, "{meta}");
    assert_eq!((&meta["device"], &meta["bytes"]), (&"file".into(), &(8 << 20).into()), "{meta}");
    assert!(meta["inodes_max"].as_u64() > Some(1024), "{meta}");
    assert_eq!(meta["log"]["durability"], "fsync", "{meta}");
    assert_eq!(status["tiers"].as_array().map(Vec::len), Some(1), "{status}");
    let used = status["tiers"][0]["used_bytes"].as_u64();
    assert!(used > Some(3 << 20) && used < Some(4 << 20), "{status}");
    let said = place.sandbox.cairn(&["status", "job"]).succeeds();
    let said = said.says("metadata  7 of ").says("durable at fsync").says("memory    ");
    assert!(said.stdout.contains(&place.path("meta")), "{}", said.stdout);
}

#[test]
fn metadata_tier_without_room_is_refused_with_the_least_that_is_enough() {
    for (meta, data) in [("file:WORK/meta:1M", "ram:8M"), ("ram:1M", "ram:8M")] {
        let place = Place::new(meta, &[data]);
        let refused = place.run("true").refused_with("--meta-tier");
        let least = refused.stderr.split_once("needs ").expect("it says how much").1;
        let least = least.split_once(';').expect("and goes on").0.to_owned();
        assert!(!fs::exists(place.path("meta")).expect("the directory is there"));
        let enough = meta.replace("1M", &least);
        Place::new(&enough, &[data]).run("echo x >/cairn/x; cat /cairn/x").succeeds().prints("x\n");
    }
}

#[test]
fn metadata_tier_comes_from_the_environment_or_the_file_like_other_options() {
    let place = Place::new("ram", &[]);
    let [of_file, of_environment] = ["of_file", "of_environment"].map(|name| place.path(name));
    let toml = format!("[run]\nmeta_tier = \"file:{of_file}:8M\"\n");
    fs::write(place.path("cairn.toml"), toml).expect("the directory is there");
    place.sandbox.cairn(&["run", "--", "test", "-f", &of_file]).succeeds();
    let mut command = place.sandbox.command(&["run", "--", "test", "-f", &of_environment]);
    command.env("CAIRN_RUN_META_TIER", format!("file:{of_environment}:8M"));
    let output = command.output().expect("cairn starts");
    Ran::of(output, "run".to_owned()).succeeds();
}

#[test]
fn inodes_run_out_then_names_are_refused_and_what_is_there_stays() {
    let place = Place::new("file:WORK/meta:2M", &["ram:64M"]);
    let script = "n=0; while echo $n 2>/dev/null >/cairn/$n; do n=$((n+1)); done; \
                  [ $n -gt 1000 ] && mkdir /cairn/d 2>&1 | grep -o 'No space left'; cat /cairn/999; \
                  rm /cairn/1 && echo again >/cairn/again && cat /cairn/again";
    place.run(script).succeeds().prints("No space left\n999\nagain\n");
}

#[test]
fn other_places_than_before_are_refused() {
    let place = Place::new(META, &["file:WORK/data:8M"]);
    place.run(WRITE).succeeds();
    let meta = format!("file:{}:8M", place.path("meta"));
    let data = format!("file:{}:8M", place.path("data"));
    let run = |options: &[&str]| {
        let arguments = [&["run", "--job", "job"], options, &["--", "true"]].concat();
        place.sandbox.cairn(&arguments)
    };
    run(&["--meta-tier", "ram", "--tier", &data]).refused_with("--meta-tier ram contradicts");
    place.lose_memory();
    run(&["--meta-tier", &meta, "--tier", "ram:8M"]).refused_with("--tier ram:8M");
    let larger = data.replace(":8M", ":16M");
    run(&["--meta-tier", &meta, "--tier", &larger]).refused_with("--tier");
    run(&["--tier", &meta]).refused_with("--meta-tier");
    run(&["--meta-tier", &meta, "--tier", &meta]).refused_with("second tier in the same place");
    let aside = place.path("aside");
    fs::rename(place.path("data"), &aside).expect("it is there");
    run(&["--meta-tier", &meta, "--tier", &data]).refused_with(&place.path("data"));
    fs::rename(aside, place.path("data")).expect("it is there");
    place.run(SUMS).succeeds().prints(NAMES);
}

#[test]
fn each_rank_has_metadata_of_its_own() {
    let place = Place::new(META, &["ram:8M"]);
    let mut arguments = vec!["run", "--job", "job", "--scope", "rank"];
    arguments.extend(place.options.iter().map(String::as_str));
    let script = "for rank in 0 1; do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_SIZE=2 \
                  bash -c 'echo $OMPI_COMM_WORLD_RANK >/cairn/mine; cat /cairn/mine'; done";
    arguments.extend(["--", "bash", "-c", script]);
    place.sandbox.cairn(&arguments).succeeds().prints("0\n1\n");
    for rank in ["meta.rank-0", "meta.rank-1"] {
        let fsck = place.sandbox.cairn(&["fsck", &place.path(rank), "--json"]);
        let path = fsck.stdout;
        assert!(fs::exists(place.path(rank)).expect("the directory is there"), "{path}");
    }
}
