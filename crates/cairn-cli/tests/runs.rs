//! `cairn run`: exit codes, signals, what is kept, and the messages at the end.

mod common;

use common::{Ran, Sandbox, eventually, kill};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn exit_code_of_the_command_is_passed_through() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 42, 255] {
        sandbox.run_undrained("codes", &format!("exit {code}")).ends_with(code);
        if code != 0 {
            sandbox.cairn(&["rm", "codes", "--discard"]).succeeds();
        }
    }
    sandbox.run_undrained("killed", "kill -9 $$").ends_with(128 + 9);
    sandbox.cairn(&["run", "--", "/nonexistent/program"]).ends_with(127).says("no such file");
    sandbox.cairn(&["run", "--", "/etc/passwd"]).ends_with(126).says("permission denied");
    let stores = sandbox.cairn(&["status", "--json"]).succeeds().json();
    assert_eq!(stores.as_array().map(Vec::len), Some(1), "only the killed one is kept: {stores}");
}

#[test]
fn output_and_input_of_the_command_are_its_own() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["run", "--", "bash", "-c", "cat; echo err >&2"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    use std::io::Write;
    child.stdin.take().expect("a pipe").write_all(b"through\n").expect("writes");
    let ran = Ran::of(child.wait_with_output().expect("ends"), "run".to_string());
    ran.succeeds().prints("through\n").says("err\n");
}

/// Mechanism: an error in writing to standard error was a panic.
///
/// Consequence: a run whose messages went to a full disk stopped in the middle, and left its
/// program and its files behind. A list of files on a full disk was truncated, with exit code 0.
///
/// Fix: a run goes on without its messages, and a command whose purpose is output fails.
#[test]
fn run_goes_on_although_there_is_no_room_for_what_it_says() {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("opens");
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let words =
        ["run", "--job", "mute", "--persist", persist, "--", "sh", "-c", "echo kept >/cairn/a"];
    let ended = sandbox.command(&words).stderr(full()).status().expect("starts");
    assert_eq!((ended.code(), sandbox.drained("a").as_str()), (Some(0), "kept\n"));
    sandbox.run_undrained("failed", "echo one >/cairn/a; false").ends_with(1);
    let listed = sandbox.command(&["ls", "failed"]).stdout(full()).output().expect("starts");
    let said = String::from_utf8_lossy(&listed.stderr);
    assert_eq!(listed.status.code(), Some(1), "{said}");
    assert!(said.contains("no space left on device"), "{said}");
    sandbox.cairn(&["rm", "failed", "--discard"]).succeeds();
}

#[test]
fn what_is_written_is_drained_verified_and_the_store_removed() {
    let sandbox = Sandbox::new();
    let script = "echo one >/cairn/a; mkdir -p /cairn/d/empty; head -c 300000 /dev/zero >/cairn/d/b
        ln -s ../a /cairn/d/link; ln /cairn/a /cairn/hard; chmod 640 /cairn/a; : >/cairn/nothing";
    let ran = sandbox.run("full", script).succeeds();
    let ran = ran.says("4 files").says("store removed");
    assert!(ran.stderr.contains("verified (cairn-manifest.full.json)"), "{}", ran.stderr);
    assert!(!sandbox.store("full").exists());
    let names = ["a", "d", "d/b", "d/empty", "d/link", "hard", "nothing"];
    assert_eq!(sandbox.drained_names(), names);
    assert_eq!(sandbox.drained("a"), "one\n");
    assert_eq!(sandbox.drained("hard"), "one\n");
    let link = fs::read_link(sandbox.out().join("d/link")).expect("is a link");
    assert_eq!(link, Path::new("../a"));
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(sandbox.out().join("a")).expect("is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    assert_eq!(sandbox.manifest("full")["complete"], true);
    assert_eq!(sandbox.entry("full", "d/b")["bytes"], 300_000);
    let out = sandbox.out();
    let report = sandbox.cairn(&["verify", "--json", "--persist", out.to_str().expect("UTF-8")]);
    let report = report.succeeds().json();
    assert_eq!((&report["files"], &report["complete"]), (&4.into(), &true.into()));
}

#[test]
fn time_of_last_change_is_kept() {
    let sandbox = Sandbox::new();
    sandbox
        .run("times", "echo x >/cairn/f; touch -d '2001-02-03 04:05:06 UTC' /cairn/f")
        .succeeds();
    let modified = fs::metadata(sandbox.out().join("f")).expect("is there").modified();
    let since = modified.expect("a time").duration_since(std::time::UNIX_EPOCH).expect("after");
    assert_eq!(since.as_secs(), 981_173_106);
}

#[test]
fn store_without_a_persist_directory_is_kept_and_that_is_said() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_undrained("kept", "echo data >/cairn/f").succeeds();
    let ran = ran.says("nothing was drained, there is no --persist").says("the store is kept in");
    let offered = ran.offered("drain");
    assert!(offered.ends_with("drain kept --persist DIR"), "{offered}");
    sandbox.cairn(&["exec", "--job", "kept", "--", "cat", "/cairn/f"]).prints("data\n");
}

#[test]
fn discard_removes_the_store_even_after_a_failure() {
    let sandbox = Sandbox::new();
    let arguments =
        ["run", "--discard", "--job", "gone", "--", "bash", "-c", "echo x >/cairn/f; exit 3"];
    sandbox.cairn(&arguments).ends_with(3).says("nothing was kept");
    assert!(!sandbox.store("gone").exists());
}

/// Runs a command as it was printed, with the sandbox's environment.
fn type_in(sandbox: &Sandbox, line: &str) -> Ran {
    let line = line.replacen("cairn ", &format!("{} ", common::CAIRN), 1);
    let mut command = sandbox.command(&[]);
    let environment: Vec<_> = command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    command = Command::new("bash");
    command.args(["-c", &line]).envs(environment).current_dir(sandbox.work()).stdin(Stdio::null());
    Ran::of(command.output().expect("starts"), line)
}

#[test]
fn failure_keeps_the_store_and_the_printed_commands_work() {
    let sandbox = Sandbox::new();
    let script = "if [ -e /cairn/f ]; then cat /cairn/f; else echo saved >/cairn/f; exit 3; fi";
    let failed = sandbox.run("again", script).ends_with(3);
    let failed = failed.says("ended with exit code 3").says("the store is kept in");
    assert_eq!(sandbox.drained("f"), "saved\n", "what was clean is drained all the same");

    type_in(&sandbox, &failed.offered("drain")).succeeds().says("verified");
    type_in(&sandbox, &failed.offered("resume")).succeeds().prints("saved\n").says("store removed");

    let out = sandbox.out();
    let options = ["run", "--job", "again", "--persist", out.to_str().expect("UTF-8"), "--shared"];
    let fails = ["--", "bash", "-c", "echo new >/cairn/g; exit 4"];
    let failed = sandbox.cairn(&[&options[..], &fails].concat()).ends_with(4);
    type_in(&sandbox, &failed.offered("discard")).succeeds();
    assert!(!sandbox.store("again").exists());
    assert_eq!(sandbox.drained("g"), "new\n", "discarding a store leaves what was drained");
}

#[test]
fn offered_command_is_quoted_for_a_shell() {
    let sandbox = Sandbox::new();
    let arguments =
        ["run", "--job", "quoted", "--", "bash", "-c", "echo \"it's $0\"; exit 1", "a b"];
    let ran = sandbox.cairn(&arguments).ends_with(1).prints("it's a b\n");
    type_in(&sandbox, &ran.offered("resume")).ends_with(1).prints("it's a b\n");
}

#[test]
fn drain_that_fails_after_a_command_that_succeeded_is_75_and_loses_nothing() {
    let sandbox = Sandbox::new();
    // A file replaces the persist directory: nothing can be drained there, not even by root.
    let script = "echo data >/cairn/f; mv ../out ../gone; echo >../out";
    let ran = sandbox.run("late", script).ends_with(75);
    let ran = ran.says("not a directory").says("the store is kept in");
    sandbox.cairn(&["exec", "--job", "late", "--", "cat", "/cairn/f"]).prints("data\n");
    fs::remove_file(sandbox.out()).expect("removes");
    fs::create_dir(sandbox.out()).expect("makes");
    type_in(&sandbox, &ran.offered("drain")).succeeds();
    assert_eq!(sandbox.drained("f"), "data\n");
    sandbox.cairn(&["rm", "late"]).succeeds();
}

#[test]
fn libraries_that_were_preloaded_stay_preloaded() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["run", "--", "bash", "-c", "echo $LD_PRELOAD"]);
    let output = command.env("LD_PRELOAD", "/nonexistent/other.so").output().expect("starts");
    let ran = Ran::of(output, "run".to_string()).succeeds();
    assert!(ran.stdout.contains("libcairn_preload.so:/nonexistent/other.so"), "{}", ran.stdout);
}

#[test]
fn options_come_from_the_file_unless_the_line_says_otherwise() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("cairn.toml"), "[run]\nmount = \"/from-file\"\n")
        .expect("writes");
    sandbox.cairn(&["run", "--", "bash", "-c", "echo $CAIRN_MOUNT"]).prints("/from-file\n");
    let mut command = sandbox.command(&["run", "--", "bash", "-c", "echo $CAIRN_MOUNT"]);
    let output = command.env("CAIRN_RUN_MOUNT", "/from-env").output().expect("starts");
    Ran::of(output, "run".to_string()).succeeds().prints("/from-env\n");
    let arguments = ["run", "--mount", "/from-line", "--", "bash", "-c", "echo $CAIRN_MOUNT"];
    sandbox.cairn(&arguments).prints("/from-line\n");
}

/// A program that records each signal it gets and ends on SIGUSR2.
const SIGNAL_COUNTER: &str = "
import signal, sys
got = open('got', 'w', buffering=1)
def name(number):
    known = number in list(signal.Signals)
    return signal.Signals(number).name if known else 'SIG%d' % number
def note(number, frame):
    print(name(number), file=got)
    if number == signal.SIGUSR2:
        sys.exit(7)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE}:
    signal.signal(number, note)
print('ready', file=got)
while True:
    signal.pause()
";

/// Runs the counter in a process group of its own and sends it signals with `send`, which gets the
/// process id of `cairn`. Each signal follows once the one before is recorded. Returns the recorded
/// signals.
fn signals_noted(sandbox: &Sandbox, signals: &[&str], send: impl Fn(&str, i64)) -> Vec<String> {
    let arguments = ["run", "--job", "signals", "--discard", "--", "python3", "-c", SIGNAL_COUNTER];
    let mut command = sandbox.command(&arguments);
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("starts");
    let pid = i64::from(child.id());
    let path = sandbox.work().join("got");
    let noted = || fs::read_to_string(&path).unwrap_or_default();
    eventually("the program installs its handlers", || noted().contains("ready"));
    for (index, signal) in signals.iter().enumerate() {
        send(signal, pid);
        eventually("a signal is noted", || noted().lines().count() >= index + 2);
    }
    // This signal arrives after all others, so a second copy of any of them would be recorded
    // first.
    kill("USR2", pid);
    let ran = Ran::of(child.wait_with_output().expect("ends"), "run".to_string());
    ran.ends_with(7);
    noted().lines().skip(1).map(str::to_string).collect()
}

#[test]
fn signal_to_cairn_alone_is_passed_on_once() {
    let sandbox = Sandbox::new();
    let noted = signals_noted(&sandbox, &["INT", "TERM", "HUP", "USR1", "QUIT"], kill);
    assert_eq!(noted, ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGQUIT", "SIGUSR2"]);
}

/// Mechanism: only six signals were passed on.
///
/// Consequence: other signals, by which batch systems announce the end of a job's time, ended
/// `cairn run`. Data that the program saved then was left in the store.
///
/// Fix: all signals that end a program by default are passed on.
#[test]
fn any_signal_that_would_end_cairn_is_passed_on() {
    let sandbox = Sandbox::new();
    let signals = ["XCPU", "ALRM", "VTALRM", "PROF", "IO", "PWR", "STKFLT", "40", "63"];
    let noted = signals_noted(&sandbox, &signals, kill);
    let expected = ["SIGXCPU", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT"];
    assert_eq!(noted, [&expected[..], &["SIG40", "SIG63", "SIGUSR2"]].concat());
}

#[test]
fn signal_to_the_whole_group_arrives_once() {
    let sandbox = Sandbox::new();
    let signals = ["TERM", "INT", "HUP", "XCPU", "40"];
    let noted = signals_noted(&sandbox, &signals, |signal, cairn| kill(signal, -cairn));
    assert_eq!(noted, ["SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU", "SIG40", "SIGUSR2"]);
}

/// Mechanism: a witness process that got no processor for 20 ms counted as one that had not
/// received the signal.
///
/// Consequence: on a busy machine a signal to the group reached the program twice.
///
/// Fix: the witness is asked.
#[test]
fn signal_to_the_whole_group_arrives_once_though_the_witness_is_slow() {
    let sandbox = Sandbox::new();
    let send = |signal: &str, cairn: i64| {
        let witness = child_named("cairn-witness", cairn);
        kill("STOP", witness);
        kill(signal, -cairn);
        std::thread::sleep(std::time::Duration::from_millis(100));
        kill("CONT", witness);
    };
    let noted = signals_noted(&sandbox, &["TERM", "INT"], send);
    assert_eq!(noted, ["SIGTERM", "SIGINT", "SIGUSR2"]);
}

fn child_named(name: &str, parent: i64) -> i64 {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(children).expect("the parent lives");
    let is_named = |child: &&str| {
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let found = children.split_whitespace().find(is_named);
    found.and_then(|child| child.parse().ok()).expect("it has such a child")
}

#[test]
fn resumed_job_finds_its_files_and_drains_where_it_did() {
    let sandbox = Sandbox::new();
    sandbox.run("steps", "echo 1 >/cairn/step; exit 1").ends_with(1);
    let arguments = ["run", "--job", "steps", "--", "bash", "-c", "echo 2 >>/cairn/step"];
    sandbox.cairn(&arguments).succeeds().says("store removed");
    assert_eq!(sandbox.drained("step"), "1\n2\n");
}

#[test]
fn report_as_json_says_what_is_safe() {
    let sandbox = Sandbox::new();
    let ran =
        sandbox.cairn(&["--json", "run", "--job", "j", "--", "bash", "-c", "echo x >/cairn/f"]);
    let ran = ran.succeeds();
    let report: serde_json::Value = serde_json::from_str(&ran.stderr).expect("one document");
    assert_eq!(report["safety"], "store-only");
    assert_eq!(report["exit_code"], 0);
    assert!(report["commands"]["resume"].as_str().is_some_and(|line| line.starts_with("cairn ")));
}

#[test]
fn run_as_another_process_of_the_job_sees_the_same_files() {
    let sandbox = Sandbox::new();
    let inner = format!("{} ls --json | grep -c '\"path\"'", common::CAIRN);
    sandbox.run_undrained("inner", &format!("touch /cairn/a /cairn/b; {inner}")).prints("2\n");
}

/// Mechanism: only open files kept a store.
///
/// Consequence: the store was removed under a process that its command had left behind, or that
/// outlived a killed `cairn run`. Later writes of that process were lost without an error.
#[test]
fn store_is_kept_as_long_as_a_process_of_its_program_uses_it() {
    let sandbox = Sandbox::new();
    let script = "(echo early >/cairn/early; : >begun; until [ -e go ]; do sleep 0.01; done; \
        echo late >/cairn/late; : >done) >/dev/null 2>&1 & until [ -e begun ]; do sleep 0.01; done";
    let ran = sandbox.run("left", script);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains(" the store, so it is kept"), "{}", ran.stderr);
    let refused = sandbox.cairn(&["rm", "left"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains(" it, and later writes would be lost"), "{}", refused.stderr);
    fs::write(sandbox.work().join("go"), "").expect("written");
    eventually("it has written", || sandbox.work().join("done").exists());
    sandbox.cairn(&["drain", "left"]).succeeds();
    let late = fs::read_to_string(sandbox.out().join("late")).expect("it is drained");
    assert_eq!(late, "late\n");
    sandbox.cairn(&["rm", "left"]).succeeds();
}

/// Mechanism: at the end of the job's time nobody waited for a drain, and so the drain counted as
/// unfinished.
///
/// Consequence: exit code 75, and a store that stayed, although everything was safe.
#[test]
fn what_is_safe_at_the_end_of_the_time_is_said_to_be() {
    let sandbox = Sandbox::new();
    let out = sandbox.out().display().to_string();
    let options = ["run", "--job", "late", "--until", "+1s", "--persist", &out, "--", "bash", "-c"];
    let wrote = format!("echo hi >/cairn/a; {} drain late", env!("CARGO_BIN_EXE_cairn"));
    let ran = sandbox.cairn(&[&options[..], &[&wrote]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!ran.stderr.contains("goes on in the background"), "{}", ran.stderr);
    let ran =
        sandbox.cairn(&["run", "--until", "+1s", "--persist", &out, "--shared", "--", "true"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn temporary_files_are_made_in_the_store_and_never_drained() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let run = ["run", "--job", "t", "--tmpdir", "--persist", out.to_str().expect("UTF-8")];
    let script = "
import os, tempfile
file = tempfile.NamedTemporaryFile(delete=False)
file.write(b'state')
file.close()
os.rename(file.name, '/cairn/last.ckpt')
left = tempfile.mkdtemp()
open(left + '/scratch', 'w').write('x')
print(os.path.dirname(file.name), oct(os.stat('/cairn/tmp').st_mode))";
    let ran = sandbox.cairn(&[&run[..], &["--", "python3", "-c", script]].concat());
    ran.succeeds().prints("/cairn/tmp 0o41777\n").says("store removed");
    assert_eq!(sandbox.drained("last.ckpt"), "state");
    assert_eq!(sandbox.drained_names(), ["last.ckpt"]);
    let ranks = ["run", "--tmpdir", "--scope", "rank", "--", "true"];
    sandbox.cairn(&ranks).refused_with("--tmpdir: does not work with --scope rank");
}

/// Mechanism: the agent has another current directory, and got the relative path of the store.
/// Consequence: no run started.
#[test]
fn directory_of_stores_may_be_given_relative_to_the_current_one() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.work().join("stores")).expect("makes");
    let run = ["--store-root", "stores", "run", "--job", "near", "--tier", "ram:1M", "--discard"];
    let script = "cd /; echo text >/cairn/f; cat /cairn/f";
    sandbox.cairn(&[&run[..], &["--", "bash", "-c", script]].concat()).succeeds().prints("text\n");
}
