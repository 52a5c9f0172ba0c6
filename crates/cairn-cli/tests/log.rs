//! `cairn log`: each message of the agent appears once, a followed log continues, and nothing
//! private is in it.

mod common;

use common::session::Session;
use common::{Ran, Sandbox, eventually, kill};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// Lines of a job's log.
fn lines(sandbox: &Sandbox, arguments: &[&str]) -> Vec<Value> {
    let ran = sandbox.cairn(&[&["log", "--json"], arguments].concat()).succeeds();
    ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Number of lines that contain `part`.
fn count(sandbox: &Sandbox, job: &str, part: &str) -> usize {
    let says = |line: &&Value| line["message"].as_str().is_some_and(|text| text.contains(part));
    lines(sandbox, &[job]).iter().filter(says).count()
}

#[test]
fn what_becomes_of_checkpoints_is_said_once_also_by_two_agents() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "melt", &[]);
    session.shell("echo one >/cairn/restart.1; echo two >/cairn/restart.2");
    let safe = "checkpoint restart.2 is in the persist directory, verified";
    eventually("it is safe", || count(&sandbox, "melt", safe) == 1);
    kill("KILL", i64::from(sandbox.agent("melt")));
    eventually("another agent begins", || {
        sandbox.cairn(&["status", "melt"]).succeeds();
        count(&sandbox, "melt", "an agent of job melt begins, version") == 2
    });
    session.shell("echo three >/cairn/restart.3");
    let next = "checkpoint restart.3 is in the persist directory, verified";
    eventually("the next one is safe", || count(&sandbox, "melt", next) == 1);
    let complete = "checkpoint restart.2 is complete: 4 bytes, files: 1";
    assert_eq!([count(&sandbox, "melt", complete), count(&sandbox, "melt", safe)], [1, 1]);
    assert!(lines(&sandbox, &["melt"]).iter().all(|line| line["level"] == "info"));
    let pids: Vec<Value> =
        lines(&sandbox, &["melt"]).iter().map(|line| line["agent"].clone()).collect();
    assert_ne!(pids.first(), pids.last());
    // As text, and only the last line.
    let last = sandbox.cairn(&["log", "melt", "-n", "1"]).succeeds();
    assert_eq!(last.stdout.lines().count(), 1);
    assert!(last.stdout.contains("Z info  checkpoint restart.3 is in"), "{}", last.stdout);
    sandbox.cairn(&["log", "melt", "--level", "warn"]).succeeds().prints("");
    assert_eq!(session.end(), Some(0));
    sandbox.cairn(&["log", "melt"]).refused_with("melt");
}

#[test]
fn trouble_is_said_once_and_so_is_its_end() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "melt", &[]);
    let away = sandbox.out().with_extension("away");
    fs::rename(sandbox.out(), &away).expect("renames");
    fs::write(sandbox.out(), "in the way").expect("writes");
    session.shell("echo one >/cairn/one");
    eventually("it is said", || count(&sandbox, "melt", "cannot drain: ") > 0);
    fs::remove_file(sandbox.out()).expect("removes");
    fs::rename(&away, sandbox.out()).expect("renames");
    eventually("it is over", || count(&sandbox, "melt", "can drain again") == 1);
    assert_eq!(count(&sandbox, "melt", "cannot drain: "), 1);
    session.shell("(exec 5>/cairn/torn; echo x >&5; kill -KILL $BASHPID) || true");
    let torn = "/torn is drained as it is: its writer died";
    eventually("what is left is named", || count(&sandbox, "melt", torn) == 1);
    session.shell("echo two >/cairn/two");
    eventually("the other arrives", || sandbox.out().join("two").exists());
    assert_eq!(count(&sandbox, "melt", torn), 1);
    let warnings = sandbox.cairn(&["log", "melt", "--level", "warn"]).succeeds();
    assert!(warnings.stdout.lines().all(|line| line.contains("Z warn  ")), "{}", warnings.stdout);
    assert_eq!(session.end(), Some(0));
}

#[test]
fn level_decides_what_is_said_and_nobody_learns_command_lines_or_the_environment() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let run = |level: &[&str]| {
        let first = ["run", "--job", "told", "--persist", persist];
        let arguments = [&first, level, &["--", "bash", "-c", "exit 3", "--secret"]];
        let mut command = sandbox.command(&arguments.concat());
        command.env("AWS_SECRET_ACCESS_KEY", "of-the-test");
        Ran::of(command.output().expect("starts"), "run".to_string())
    };
    run(&[]).ends_with(3);
    let asked = "the agent is asked to drain";
    assert_eq!(count(&sandbox, "told", asked), 0);
    run(&["--log-level", "debug"]).ends_with(3);
    eventually("the agent heard of it", || {
        sandbox.cairn(&["drain", "told"]).succeeds();
        count(&sandbox, "told", asked) > 0
    });
    let said = fs::read_to_string(sandbox.store("told").join("agent.log")).expect("a log");
    assert!(!said.contains("secret") && !said.contains("of-the-test"), "{said}");
    fs::write(sandbox.work().join("cairn.toml"), "[run]\nlog_level = \"loud\"\n").expect("writes");
    run(&[]).refused_with("line 2: unknown variant `loud`");
    fs::remove_file(sandbox.work().join("cairn.toml")).expect("removes");
    run(&["--log-level", "loud"]).refused_with("loud");
}

#[test]
fn followed_log_goes_on_in_the_next_file_and_ends_with_the_store() {
    let sandbox = Sandbox::new();
    sandbox.run_undrained("kept", "echo x >/cairn/f").succeeds();
    let path = sandbox.store("kept").join("agent.log");
    // Drops the agent's own lines.
    fs::remove_file(&path).expect("removes");
    let add = |text: &str| {
        let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("opens");
        file.write_all(text.as_bytes()).expect("writes");
    };
    let line = |message: &str| {
        let time = "2026-11-22T14:53:06.123456789Z";
        format!(
            "{{\"time\":\"{time}\",\"level\":\"info\",\"agent\":1,\"message\":\"{message}\"}}\n"
        )
    };
    add(&line("first"));
    let mut command = sandbox.command(&["log", "kept", "--follow"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut shown = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || shown.next().map(|line| line.expect("text")).unwrap_or_default();
    assert_eq!(next(), "2026-11-22 14:53:06Z info  first");
    let (begin, end) = ("free(): inva", "lid pointer\u{1b}[31m\n");
    add(begin);
    add(end);
    assert_eq!(next(), "free(): invalid pointer\\x1b[31m");
    add(&line("last of its file"));
    fs::rename(&path, path.with_extension("log.1")).expect("renames");
    add(&line("next"));
    assert_eq!(next(), "2026-11-22 14:53:06Z info  last of its file");
    assert_eq!(next(), "2026-11-22 14:53:06Z info  next");
    let both = lines(&sandbox, &["kept"]);
    let said: Vec<&str> = both.iter().filter_map(|line| line["message"].as_str()).collect();
    assert_eq!(said, ["first", "free(): invalid pointer\\x1b[31m", "last of its file", "next"]);
    assert_eq!(lines(&sandbox, &["kept", "--level", "error"]).len(), 1);
    sandbox.cairn(&["rm", "kept", "--discard"]).succeeds();
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}
