//! A file as the first tier: closed files are there after the node's memory is lost.

mod common;

use common::{Ran, Sandbox};
use std::fs;
use std::process::Command;

/// A sandbox with a tier in a file.
struct Place {
    sandbox: Sandbox,
    tier: String,
}

impl Place {
    fn new() -> Place {
        let sandbox = Sandbox::new();
        let tier = format!("file:{}:32M", sandbox.work().join("tier").display());
        Place { sandbox, tier }
    }

    fn run(&self, job: &str, options: &[&str], script: &str) -> Ran {
        let mut arguments = vec!["run", "--job", job, "--tier", &self.tier];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script]);
        self.sandbox.cairn(&arguments)
    }

    /// Loses everything of the job that is in memory, as a crash of the node does.
    fn lose_memory(&self, job: &str) {
        self.kill_agent(job);
        fs::remove_dir_all(self.sandbox.store(job)).expect("the store is there");
    }

    fn kill_agent(&self, job: &str) {
        let agent = self.sandbox.cairn(&["status", job, "--json"]).succeeds().json();
        if let Some(pid) = agent[0]["agent"]["pid"].as_u64() {
            let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.is_ok_and(|status| status.success()), "the agent was there");
        }
    }
}

const WRITE: &str = "mkdir -p /cairn/d && seq 100000 >/cairn/d/numbers && ln -s numbers /cairn/d/link && \
                     echo one >/cairn/a && mv /cairn/a /cairn/b && chmod 640 /cairn/b && rm -f /cairn/gone";

#[test]
fn memory_is_lost_then_the_next_job_finds_what_was_closed() {
    let place = Place::new();
    place.run("first", &[], WRITE).succeeds();
    place.lose_memory("first");
    let again = place.run(
        "second",
        &[],
        "md5sum </cairn/d/link; seq 100000 | md5sum; cat /cairn/b; stat -c %a /cairn/b",
    );
    let again = again.succeeds();
    let lines: Vec<&str> = again.stdout.lines().collect();
    assert_eq!(lines[0], lines[1]);
    assert_eq!(lines[2..], ["one", "640"]);
    assert!(
        again.stderr.contains("recovered 4 files and directories from file:"),
        "{}",
        again.stderr
    );
}

#[test]
fn file_that_was_open_when_memory_was_lost_is_unclean_and_what_was_synced_is_in_it() {
    let place = Place::new();
    let script = "exec 3>/cairn/log; seq 1000 >&3; sync /cairn/log; kill -9 $$";
    assert_ne!(place.run("first", &[], script).code, Some(0));
    place.lose_memory("first");
    let again = place.run("second", &[], "wc -l </cairn/log").succeeds();
    assert_eq!(again.stdout.trim(), "1000");
    let status = place.sandbox.cairn(&["status", "second", "--json"]).succeeds().json();
    assert_eq!(status[0]["files"]["unclean"], 1, "{status}");
}

#[test]
fn mapped_files_when_memory_was_lost_have_their_stores_and_are_clean_only_if_unmapped() {
    let place = Place::new();
    let script = r#"python3 -c "
import mmap, os, signal
maps = []
for name in 'left', 'unmapped':
    with open('/cairn/' + name, 'w+b') as file:
        file.truncate(300000)
        maps.append(mmap.mmap(file.fileno(), 0))
    maps[-1][200000:200006] = b'stored'
maps[0].flush()
maps[1].close()
os.kill(os.getpid(), signal.SIGKILL)
""#;
    assert_ne!(place.run("first", &[], script).code, Some(0));
    place.lose_memory("first");
    let read = "for f in left unmapped; do tail -c +200001 /cairn/$f | head -c 6; done";
    let again = place.run("second", &[], read).succeeds();
    assert_eq!(again.stdout, "storedstored");
    let listing = place.sandbox.cairn(&["ls", "second", "--json"]).succeeds().json();
    let state = |name: &str| {
        let files = listing.as_array().expect("a list");
        let found = files.iter().find(|file| file["path"] == format!("/cairn/{name}"));
        found.expect("it is listed")["state"].as_str().map(str::to_owned)
    };
    assert_eq!(state("left").as_deref(), Some("unclean"));
    assert_eq!(state("unmapped").as_deref(), Some("clean"));
}

#[test]
fn every_operation_is_durable_when_that_is_asked_for() {
    let place = Place::new();
    let script =
        "exec 3>/cairn/log; for i in 1 2 3; do echo $i >&3; done; mkdir /cairn/d; kill -9 $$";
    assert_ne!(place.run("first", &["--durability", "op"], script).code, Some(0));
    place.lose_memory("first");
    let again = place.run("second", &[], "cat /cairn/log; ls /cairn").succeeds();
    assert_eq!(again.stdout, "1\n2\n3\nd\nlog\n");
    let status = place.sandbox.cairn(&["status", "second", "--json"]).succeeds().json();
    assert_eq!(status[0]["tiers"][0]["log"]["durability"], "op", "the tier remembers");
}

#[test]
fn thousands_of_operations_then_the_log_has_been_cut_and_all_is_recovered() {
    let place = Place::new();
    let script = "for i in $(seq 4000); do : >/cairn/n$((i % 50)); mv /cairn/n$((i % 50)) /cairn/m$((i % 30)); done; \
                  ls /cairn | md5sum";
    let first = place.run("first", &[], script).succeeds();
    let status = place.sandbox.cairn(&["status", "first", "--json"]).succeeds().json();
    let log = &status[0]["tiers"][0]["log"];
    assert!(log["used_bytes"].as_u64() < log["total_bytes"].as_u64(), "{log}");
    place.lose_memory("first");
    let again = place.run("second", &[], "ls /cairn | md5sum").succeeds();
    assert_eq!(again.stdout, first.stdout);
}

#[test]
fn tier_of_a_store_that_lives_is_refused_to_another() {
    let place = Place::new();
    place.run("first", &[], "echo kept >/cairn/file").succeeds();
    let inner = format!(
        "{} run --force --job second --tier {} -- true; echo $?",
        common::CAIRN,
        place.tier
    );
    let script = format!("exec 3</cairn/file; {inner}");
    let ran = place.run("first", &[], &script).succeeds();
    assert_eq!(ran.stdout, "2\n");
    assert!(ran.stderr.contains("another store uses it"), "{}", ran.stderr);
    assert_eq!(place.run("first", &[], "cat /cairn/file").succeeds().stdout, "kept\n");
}

#[test]
fn store_whose_tier_was_recovered_elsewhere_is_refused() {
    let place = Place::new();
    place.run("first", &[], "echo kept >/cairn/file").succeeds();
    place.kill_agent("first");
    let moved = place.sandbox.root().join("aside");
    fs::rename(place.sandbox.store("first"), &moved).expect("nobody uses it");
    place.run("second", &[], "cat /cairn/file; echo more >>/cairn/file").succeeds();
    let back = place.sandbox.store("second").with_file_name("first");
    fs::rename(&moved, back).expect("there is nothing");
    let refused = place.run("first", &[], "cat /cairn/file");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert_eq!(place.run("second", &[], "cat /cairn/file").succeeds().stdout, "kept\nmore\n");
}

/// Mechanism: removing a store compared only the identity of its tier, and without the tier's lock.
/// A tier keeps its identity when another store recovers it.
///
/// Consequence: a run that waited for the tier recovered it, and then lost it under its program.
///
/// Fix: a tier is compared with the store's record of it, and emptied, while it is locked.
#[test]
fn tier_that_another_store_recovered_stays_when_the_store_that_had_it_is_removed() {
    let place = Place::new();
    place.run("first", &[], "echo kept >/cairn/file").succeeds();
    place.kill_agent("first");
    place.run("second", &[], "echo more >>/cairn/file").succeeds().says("recovered 1 file");
    let removed = place.sandbox.cairn(&["rm", "first", "--discard"]).succeeds();
    removed.says("store of job first removed").says("another store has recovered it");
    assert_eq!(place.run("second", &[], "cat /cairn/file").succeeds().stdout, "kept\nmore\n");
    let removed = place.sandbox.cairn(&["rm", "second", "--discard"]).succeeds();
    assert_eq!(removed.stderr, "");
    assert!(!place.sandbox.work().join("tier").exists());
}

/// A run that waits for a tier while its store is removed finds the old files or an empty tier,
/// never a tier that is removed under it.
#[test]
fn run_that_waits_for_a_tier_that_is_removed_begins_with_an_empty_one() {
    let place = Place::new();
    let begun = place.sandbox.work().join("begun");
    let go = place.sandbox.work().join("go");
    let wait = format!(
        "echo secret >/cairn/x; touch {}; until [ -e {} ]; do sleep 0.01; done",
        begun.display(),
        go.display()
    );
    let arguments = ["--tier", &place.tier, "--discard", "--", "bash", "-c", &wait];
    let mut first = place.sandbox.command(&[&["run", "--job", "first"], &arguments[..]].concat());
    let mut first = first.stderr(std::process::Stdio::null()).spawn().expect("starts");
    common::eventually("the program runs", || begun.exists());
    let script = format!(
        "touch {}; ls -A /cairn; for i in 1 2 3; do echo hi >/cairn/z$i; sleep 0.05; cat /cairn/z$i; done",
        go.display()
    );
    // It is refused as long as the first store uses the tier.
    place.run("second", &[], &script).ends_with(2).says("another store uses it");
    fs::write(&go, "").expect("writes");
    let second = place.run("second", &[], &script).succeeds();
    assert_eq!(second.stdout, "hi\nhi\nhi\n");
    assert!(first.wait().expect("ends").success());
}

#[test]
fn tier_kept_from_another_prefix_or_size_is_refused_and_kept() {
    let place = Place::new();
    place.run("first", &[], "echo kept >/cairn/file").succeeds();
    place.lose_memory("first");
    place.run("second", &["--mount", "/other"], "true").refused_with("--mount");
    let smaller = place.tier.replace(":32M", ":16M");
    place.sandbox.cairn(&["run", "--tier", &smaller, "--", "true"]).refused_with("--tier");
    assert_eq!(place.run("second", &[], "cat /cairn/file").succeeds().stdout, "kept\n");
}

/// Mechanism: if a command cannot be executed, the run removes the store that it made, with the
/// files of its tiers. A store recovered from an existing file counted as made by the run.
///
/// Consequence: after a crash of the node, a mistyped command removed everything that had survived
/// the crash.
///
/// Fix: a recovered store is kept.
#[test]
fn command_cannot_be_executed_then_what_was_recovered_is_kept() {
    let place = Place::new();
    place.run("first", &[], "echo kept >/cairn/file").succeeds();
    place.lose_memory("first");
    let arguments = ["run", "--job", "second", "--tier", &place.tier, "--", "no-such-command"];
    place.sandbox.cairn(&arguments).ends_with(127);
    assert_eq!(place.run("second", &[], "cat /cairn/file").succeeds().stdout, "kept\n");
    place.lose_memory("second");
    // A restore fails if the files do not fit.
    let out = place.sandbox.out().display().to_string();
    let big = ["run", "--job", "big", "--tier", "ram:64M", "--persist", &out, "--", "bash", "-c"];
    let script = "head -c 40M /dev/zero | tr '\\0' x >/cairn/big";
    place.sandbox.cairn(&[&big[..], &[script]].concat()).succeeds();
    let restored = place.sandbox.cairn(&["restore", "--tier", &place.tier, &out]);
    assert_ne!(restored.code, Some(0), "{}", restored.stdout);
    assert_eq!(place.run("big", &[], "cat /cairn/file").succeeds().stdout, "kept\n");
}

/// Mechanism: what lay outside was of an earlier store, and nothing told whether the recovered one
/// lacks a file because it was removed, or because it never became durable. Consequence: files that
/// the program had removed or renamed stayed outside for good. Fix: the manifest says how far in
/// the log its cut goes; a store that was recovered beyond that has all of it.
#[test]
fn what_was_removed_before_memory_was_lost_is_removed_outside_and_what_was_lost_stays() {
    for is_durable in [true, false] {
        let place = Place::new();
        let out = place.sandbox.out().display().to_string();
        let late = if is_durable { "" } else { "echo late >late; \"$CAIRN\" drain job;" };
        let sync = if is_durable { "python3 -c 'import os; os.sync()'" } else { "true" };
        let script = format!(
            r#"cd /cairn; for name in gone old kept spilled; do echo $name >$name; done
            python3 -c 'import os; os.sync()'; "$CAIRN" drain job; "$CAIRN" rm job:/spilled; {late}
            agent=$("$CAIRN" status job --json | python3 -c '
import json, sys
print(json.load(sys.stdin)[0]["agent"]["pid"])')
            kill -STOP $agent; rm gone; mv old new; {sync}; kill -9 $agent $PPID $$"#
        );
        let words = ["run", "--job", "job", "--tier", &place.tier];
        let rest = ["--persist", &out, "--", "bash", "-c", &script];
        let mut command = place.sandbox.command(&[&words[..], &rest].concat());
        let ran = command.env("CAIRN", common::CAIRN).output().expect("starts");
        println!("{}", String::from_utf8_lossy(&ran.stderr));
        fs::remove_dir_all(place.sandbox.store("job")).expect("the store is there");
        place.run("job", &["--persist", &out], "exit 3").ends_with(3);
        let mut names = place.sandbox.drained_names();
        names.retain(|name| !name.starts_with("cairn-"));
        match is_durable {
            true => assert_eq!(names, ["kept", "new", "spilled"]),
            false => assert!(names.contains(&"late".to_string()), "{names:?}"),
        }
    }
}
