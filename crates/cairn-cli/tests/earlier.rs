//! Messages before a run begins: leftovers of earlier runs, and command lines that are probably
//! mistakes.

mod common;

use common::{Ran, Sandbox};
use std::fs;
use std::process::{Child, Stdio};

const SCRIPT: [&str; 4] = ["--", "bash", "-c", "echo x >/cairn/f"];

/// Mechanism: all nodes of a launch drained to one directory.
///
/// Consequence: of two files with the same name, one was lost; with one `--job` on all nodes, each
/// took the other's manifest for its own. Both ended with 0.
///
/// Fix: each node drains to a directory of its own.
#[test]
fn nodes_of_a_launch_drain_to_directories_of_their_own() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let start = |node: &str, options: &[&str], script: &str| {
        let root = sandbox.work().join(format!("root-{node}")).display().to_string();
        fs::create_dir_all(&root).expect("makes");
        let first = ["--store-root", &root, "run", "--job", "melt", "--persist", &out];
        let words = [&first[..], options, &["--", "bash", "-c", script]].concat();
        let mut command = sandbox.command(&words);
        command.env("SLURM_JOB_ID", "77").env("SLURM_STEP_ID", "0").env("SLURM_LOCALID", "0");
        command.env("SLURM_PROCID", node).env("SLURM_NODEID", node).env("SLURM_NTASKS", "2");
        command.env("SLURM_STEP_TASKS_PER_NODE", "1(x2)");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    };
    let end = |child: Child| Ran::of(child.wait_with_output().expect("ends"), "run".to_string());
    let nodes = ["0", "1"];
    let script = |node| format!("echo {node} >/cairn/log.txt; echo {node} >/cairn/only-{node}");
    for child in nodes.map(|node| start(node, &[], &script(node))) {
        end(child).succeeds().says("files of this one go to");
    }
    for node in nodes {
        assert_eq!(sandbox.drained(&format!("node-{node}/log.txt")), format!("{node}\n"));
        let back = end(start(node, &["--stage"], "cd /cairn; ls; cat log.txt")).succeeds();
        back.prints(&format!("log.txt\nonly-{node}\n{node}\n"));
    }
}

#[test]
fn kept_store_of_the_same_command_is_said() {
    let sandbox = Sandbox::new();
    let run = |options: &[&str], script: &str| {
        sandbox.cairn(&[&["run"], options, &["--", "bash", "-c", script]].concat()).succeeds()
    };
    let note = "an earlier run of the same command left";
    let first = run(&[], "echo x >/cairn/f");
    assert!(!first.stderr.contains(note), "{}", first.stderr);
    let job = sandbox.cairn(&["ls", "--jobs", "--json"]).succeeds().json();
    let job = job[0]["job"].as_str().expect("a name").to_string();
    let other = run(&[], "echo y >/cairn/f");
    assert!(!other.stderr.contains(note), "another command: {}", other.stderr);
    run(&[], "echo x >/cairn/f")
        .says(&format!("{note} the store of job {job}; to continue it: --job {job}"));
    let named = run(&["--job", "named"], "echo x >/cairn/f");
    assert!(!named.stderr.contains(note), "{}", named.stderr);
}

#[test]
fn store_of_the_same_command_that_runs_is_not_said_to_be_left() {
    let sandbox = Sandbox::new();
    let words = ["run", "--job", "first", "--", "cat"];
    let mut command = sandbox.command(&words);
    let mut running = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts");
    common::eventually("it runs", || {
        sandbox.cairn(&["ls", "--jobs", "--json"]).json()[0]["state"] == "running"
    });
    let second = sandbox.cairn(&["run", "--", "cat"]).succeeds();
    assert!(!second.stderr.contains("the same command"), "{}", second.stderr);
    drop(running.stdin.take());
    assert!(running.wait().expect("ends").success());
}

#[test]
fn command_lines_that_are_nearly_right_are_told_what_is() {
    let sandbox = Sandbox::new();
    let refused = |words: &[&str], part: &str| {
        sandbox.cairn(words).refused_with(part);
    };
    refused(&["run", "ls", "-l"], "write: cairn run -- ls -l; see: cairn run --help");
    refused(&["run", "--job", "x", "cat", "a b"], "write: cairn run -- cat 'a b'");
    refused(&["drill", "./simulate"], "write: cairn drill -- ./simulate");
    refused(&["exec", "--job", "x", "ls"], "write: cairn exec -- ls");
    refused(&["run", "--persit", "out", "--", "true"], "did you mean --persist? see: cairn run");
    refused(&["stauts"], "did you mean status? see: cairn --help");
    refused(&["drill", "--kills", "x", "--", "true"], "see: cairn drill --help");
}

#[test]
fn program_that_a_signal_killed_is_said_to_be() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_undrained("killed", "kill -9 $$").ends_with(137);
    ran.says("bash was killed by signal 9 (SIGKILL)");
    sandbox.run_undrained("exits", "exit 137").ends_with(137).says("ended with exit code 137");
}

/// Mechanism: unclean files are never drained, but a user who wanted to remove their store was told
/// to drain them.
///
/// Consequence: the advice was circular; `drain` and `verify` did not mention the files.
///
/// Fix: they are drained as they are, and every command says so.
#[test]
fn unclean_files_are_said_to_be_and_how_to_save_them() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    sandbox.run_undrained("k9", "exec 3>/cairn/half; echo x >&3; kill -9 $$").ends_with(137);
    for words in [&["rm", "k9"][..], &["gc", "--older-than", "0", "--job", "k9"]] {
        sandbox.cairn(words).says("nowhere else").says("1").says("unclean").says("--discard");
    }
    let drained = sandbox.cairn(&["drain", "k9", "--persist", &out]).succeeds();
    drained.says("1 file drained as it is, although the writer died").says("half");
    sandbox.cairn(&["verify", "k9"]).succeeds().says("1 file unclean: the writer died");
    let report = sandbox.cairn(&["verify", "k9", "--json"]).succeeds().json();
    assert_eq!(report["unclean_files"], 1, "{report}");
    sandbox.cairn(&["rm", "k9"]).succeeds();
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_made() {
    let sandbox = Sandbox::new();
    sandbox.run("r4", "echo x >/cairn/f").succeeds();
    let out = sandbox.out().display().to_string();
    let only = ["restore", &out, "--only", "nomatch*"];
    sandbox.cairn(&only).refused_with("--only: no file of job r4 matches");
    assert!(!sandbox.store("r4").exists());
    let figures = [&["run", "--metrics-file", "none/m.prom"], &SCRIPT[..]].concat();
    sandbox.cairn(&figures).refused_with("none is not a directory");
    let map = [&["run", "--persist", &out, "--map", "/cairn/o=../x"], &SCRIPT[..]].concat();
    sandbox.cairn(&map).refused_with("must stay below the persist directory");
    let map = [&["run", "--map", "/cairn/o=x"], &SCRIPT[..]].concat();
    sandbox.cairn(&map).refused_with("name it with --persist");
    let tier = "nvme-tcp://127.0.0.1:1/nqn.2026-11.io.cairn:t";
    let remote = [&["run", "--tier", tier], &SCRIPT[..]].concat();
    sandbox.cairn(&remote).refused_with("the tier nvme-tcp://127.0.0.1:1/");
    let settings = sandbox.work().join("cairn.toml");
    std::fs::write(&settings, "[space]\nretain = \"count=3\"\n").expect("writes");
    sandbox.cairn(&["run", "--", "true"]).refused_with("as in retain = { count = 3 }");
    std::fs::remove_file(settings).expect("removes");
    let nowhere = |words: &[&str]| {
        let output = sandbox.command(words).env("CAIRN_STORE_ROOT", "/nonexist").output();
        Ran::of(output.expect("starts"), words.join(" "))
    };
    nowhere(&["run", "--", "true"]).refused_with("/nonexist is not a directory; create it first");
    nowhere(&["status"]).succeeds().says("/nonexist is not a directory");
    sandbox.cairn(&["ls", "--jobs"]).succeeds().prints("no stores\n");
}
