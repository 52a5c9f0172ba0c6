//! Pace of the drain: its rate limits, and the priority of programs over it.

mod common;

use common::{Ran, Sandbox, eventually};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};

const MIB: u64 = 1 << 20;

/// A run that ends with the test, even if the test fails.
struct Running(Child);

impl Running {
    fn start(sandbox: &Sandbox, arguments: &[&str]) -> Running {
        // A program that outlives a failed test must not keep anybody waiting for its output.
        let mut command = sandbox.command(arguments);
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts"))
    }

    fn wait(mut self) -> ExitStatus {
        self.0.wait().expect("ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            common::kill("TERM", i64::from(self.0.id()));
            self.0.wait().expect("ends");
        }
    }
}

/// The agent's report of its pace.
fn pace(sandbox: &Sandbox, job: &str) -> Value {
    let status = sandbox.cairn(&["status", job, "--json"]).succeeds().json();
    status[0]["agent"]["pace"].clone()
}

/// `cairn run` with drain options, of a shell script that fails at its end, so that the store is
/// kept.
fn run_and_keep(sandbox: &Sandbox, job: &str, options: &[&str], script: &str) {
    let out = sandbox.out();
    let script = format!("{script}; exit 1");
    let persist = out.to_str().expect("UTF-8");
    let mut arguments = vec!["run", "--job", job, "--persist", persist];
    arguments.extend(options);
    arguments.extend(["--", "bash", "-c", &script]);
    sandbox.cairn(&arguments).ends_with(1).says("verified");
}

#[test]
fn rate_is_asked_for_every_byte_and_waited_for_as_long_as_it_says() {
    let sandbox = Sandbox::new();
    let script = "for i in 1 2 3; do head -c 4M /dev/urandom >/cairn/f$i; done";
    run_and_keep(&sandbox, "rated", &["--drain-rate", "8M"], script);
    let pace = pace(&sandbox, "rated");
    assert_eq!(pace["rate_bytes"], 8 * MIB);
    // More if a pass found a file that was just being written.
    assert!(pace["admitted_bytes"].as_u64() >= Some(12 * MIB), "every byte asked: {pace}");
    // The limit covers at least the span between the last two parts, less the 0.1 s of allowance
    // that the limiter saves up. Before that, the program had priority.
    let span_ms = pace["span_ms"].as_u64().expect("a number");
    assert!(span_ms >= 400, "leave for 8 MiB at 8 MiB/s came within {span_ms} ms");
}

/// Mechanism: the drain had a file open as long as it copied it, and an open file keeps its space.
///
/// Consequence: a program removed a checkpoint that was being drained, and had no space for the
/// next one.
#[test]
fn file_that_is_removed_while_it_is_drained_makes_room_for_the_next_one() {
    let sandbox = Sandbox::new();
    // Much slower than the waits here: the whole file takes minutes, and each part more than one.
    let script = r#"cd /cairn; head -c 12M /dev/zero >old; until [ -s "$(echo "$OUT"/.cairn-*.new/*)" ]; do sleep 0.01; done
        rm old; for i in {1..100}; do head -c 8M /dev/zero >new && exit; sleep 0.1; done; exit 9"#;
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let options = ["--tier", "ram:16M", "--persist", persist, "--drain", "none", "--drain-rate"];
    let run = [&["run", "--job", "removed"], &options[..], &["32K", "--", "bash", "-c", script]];
    let ran = sandbox.command(&run.concat()).env("OUT", &out).output().expect("starts");
    Ran::of(ran, "run".to_string()).succeeds();
}

#[test]
fn limits_come_from_the_command_line_then_the_environment_then_the_file() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("cairn.toml"), "[drain]\nrate = \"1G\"\nshare = \"7\"\n")
        .expect("writes");
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let run = |options: &[&str], variable: &str, value: &str| {
        let mut arguments = vec!["run", "--job", "sources", "--persist", persist];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", "echo x >/cairn/f; exit 1"]);
        let ended = sandbox.command(&arguments).env(variable, value).output().expect("starts");
        assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    run(&[], "CAIRN_DRAIN_RATE", "2G");
    let first = pace(&sandbox, "sources");
    assert_eq!((&first["rate_bytes"], &first["share_percent"]), (&(2048 * MIB).into(), &7.into()));
    // The living agent adopts the limits of another run.
    run(&["--drain-rate", "3G", "--drain-share", "none"], "CAIRN_DRAIN_RATE", "2G");
    eventually("the agent has heard", || pace(&sandbox, "sources")["rate_bytes"] == 3072 * MIB);
    assert_eq!(pace(&sandbox, "sources")["share_percent"], Value::Null);
    sandbox.cairn(&["status", "sources"]).succeeds().says("at most 3.00 GiB/s");
}

#[test]
fn what_is_no_rate_is_refused_before_anything_is_made() {
    let sandbox = Sandbox::new();
    let before = sandbox.fingerprint();
    let refused = sandbox.cairn(&["run", "--drain-rate", "fast", "--", "true"]);
    refused.refused_with("--drain-rate");
    assert_eq!(sandbox.fingerprint(), before);
}

#[test]
fn limited_drain_waits_while_a_program_writes() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let script = "exec 5>/cairn/checkpoint
        for i in $(seq 20000); do [ -e seen ] && break; [ -e go ] && [ ! -e written ] && echo x >/cairn/small && : >written
            head -c 10000 /dev/zero >&5; done; exec 5>&-";
    let options = ["run", "--job", "polite", "--drain-rate", "1G", "--persist", persist];
    let arguments = [&options[..], &["--tier", "ram:256M", "--", "bash", "-c", script]].concat();
    let run = Running::start(&sandbox, &arguments);
    eventually("it waits", || {
        sandbox.store("polite").join("agent.sock").exists()
            && pace(&sandbox, "polite")["paused"] == true
    });
    fs::write(sandbox.work().join("go"), "").expect("writes");
    eventually("it is written", || sandbox.work().join("written").exists());
    assert!(!out.join("small").exists(), "the program goes first");
    fs::write(sandbox.work().join("seen"), "").expect("writes");
    assert_eq!(run.wait().code(), Some(0));
    assert_eq!(sandbox.drained("small"), "x\n");
}

/// Niceness and name of each thread of a process.
fn threads(process: u32) -> Vec<(String, String)> {
    let arguments = ["-L", "-o", "ni=,comm=", "-p", &process.to_string()];
    let listed = Command::new("ps").args(arguments).output().expect("ps starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let split =
        |line: &str| line.trim().split_once(' ').map(|(ni, name)| (ni.into(), name.trim().into()));
    listed.lines().filter_map(split).collect()
}

#[test]
fn copying_threads_take_what_programs_leave_unless_they_are_to_have_as_much() {
    // The tests may themselves run with a nice value, which their children inherit.
    let own = threads(std::process::id()).into_iter().next().expect("this one").0;
    for (priority, expected) in [("idle", "19"), ("normal", own.as_str())] {
        let sandbox = Sandbox::new();
        let out = sandbox.out();
        let persist = out.to_str().expect("UTF-8");
        let options = ["--drain-rate", "4M", "--drain-priority", priority, "--persist", persist];
        let script = "head -c 12M /dev/zero >/cairn/f; : >written; until [ -e seen ]; do sleep 0.01; done; exit 1";
        let mut arguments = vec!["run", "--job", "nice"];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script]);
        let run = Running::start(&sandbox, &arguments);
        eventually("it is written", || sandbox.work().join("written").exists());
        let agent = sandbox.agent("nice");
        // The copying thread lowers its priority after it has started.
        eventually(&format!("a thread copies with niceness {expected}"), || {
            threads(agent).contains(&(expected.to_string(), "copy".to_string()))
        });
        fs::write(sandbox.work().join("seen"), "").expect("writes");
        run.wait();
    }
}
