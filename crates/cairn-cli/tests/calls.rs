//! `--report-calls` and `cairn calls`: calls of programs are counted by function, outcome and
//! program, even if a process is killed.

mod common;

use common::{Ran, Sandbox};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rows of a report with this function, outcome and errno.
fn rows<'a>(
    report: &'a Value,
    function: &str,
    outcome: &str,
    errno: Option<&str>,
) -> Vec<&'a Value> {
    let calls = report["calls"].as_array().expect("a list of calls");
    let is_meant = |row: &&Value| {
        row["function"] == function && row["outcome"] == outcome && row["errno"].as_str() == errno
    };
    calls.iter().filter(is_meant).collect()
}

/// Number of such calls by `program`.
fn number(
    report: &Value,
    program: &str,
    function: &str,
    outcome: &str,
    errno: Option<&str>,
) -> u64 {
    let rows = rows(report, function, outcome, errno);
    let of_program = rows.iter().filter(|row| row["program"] == program);
    of_program.map(|row| row["calls"].as_u64().expect("a number")).sum()
}

/// Compiles a C program in the sandbox.
fn compile(sandbox: &Sandbox, name: &str, source: &str) -> PathBuf {
    let (text, program) = (sandbox.work().join(format!("{name}.c")), sandbox.work().join(name));
    fs::write(&text, source).expect("writes");
    let compiled = Command::new("cc").args(["-w", "-o"]).args([&program, &text]).status();
    assert!(compiled.is_ok_and(|status| status.success()), "{name} compiles");
    program
}

/// Runs a program as job `counted` with counting on.
fn run(sandbox: &Sandbox, program: &Path, arguments: &[&str]) -> Ran {
    let program = program.to_str().expect("UTF-8");
    let options = ["run", "--job", "counted", "--report-calls", "--", program];
    let mut command = sandbox.command(&[&options[..], arguments].concat());
    // Calls that bypass the library are not caught.
    let output = command.env("CAIRN_RAW_CALLS", "pass").output().expect("starts");
    Ran::of(output, program.to_string())
}

/// Counts of the job.
fn report(sandbox: &Sandbox) -> Value {
    sandbox.cairn(&["calls", "counted", "--json"]).succeeds().json()
}

const KINDS_OF_CALLS: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <wchar.h>
int main(int count, char **arguments) {
    char byte = 0;
    int ours = open("/cairn/f", O_RDWR | O_CREAT, 0600), other = open("/dev/null", O_RDWR);
    for (int i = 0; i < 100; i++) pwrite(ours, &byte, 1, i);
    for (int i = 0; i < 7; i++) pwrite(other, &byte, 1, i);
    for (int i = 0; i < 3; i++) open("/cairn/absent", O_RDONLY);
    for (int i = 0; i < 2; i++) fgetxattr(ours, "security.x", &byte, 1);
    setxattr("/cairn/f", "security.x", &byte, 1, 0);
    isatty(ours);
    syscall(SYS_pwrite64, ours, &byte, 1L, 0L);
    syscall(SYS_io_uring_setup, 8, &byte);
    FILE *stream = fopen("/cairn/wide", "w");
    fputs("x", stream);
    fflush(stream);
    fputwc(L'x', stream);
    fclose(stream);
    FILE *elsewhere = fopen("/dev/null", "w");
    fputs("x", elsewhere);
    fclose(elsewhere);
    syscall(SYS_dup2, other, 99);
    /* Past the library: it sees that when the number comes again. */
    int again = dup(ours);
    __asm__ volatile("syscall" : : "a"(SYS_close), "D"(again) : "rcx", "r11", "memory");
    open("/dev/null", O_RDONLY);
    if (count > 1) raise(SIGKILL);
    return 0;
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn calls_are_counted_by_function_outcome_and_program() {
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "kinds", KINDS_OF_CALLS);
    let ran = run(&sandbox, &program, &[]).succeeds();
    let report = report(&sandbox);
    for (function, outcome, errno, expected) in [
        ("pwrite", "served", None, 100),
        ("pwrite64", "served", None, 1),
        ("pwrite", "passed", None, 7),
        ("open", "served", None, 1),
        ("open", "passed", None, 2),
        ("open", "failed", Some("ENOENT"), 3),
        ("fgetxattr", "refused", Some("ENOTSUP"), 2),
        ("setxattr", "refused", Some("ENOTSUP"), 1),
        ("isatty", "failed", Some("ENOTTY"), 1),
        ("io_uring_setup", "refused", Some("ENOSYS"), 1),
        ("fputwc", "refused", Some("EOPNOTSUPP"), 1),
        ("close", "missed", None, 1),
        // A stdio stream counts with the operations on its file.
        ("fopen", "served", None, 1),
        ("fputs", "passed", None, 0),
        ("write", "served", None, 1),
        ("fopen", "passed", None, 1),
        ("write", "passed", None, 0),
    ] {
        let counted = number(&report, "kinds", function, outcome, errno);
        assert_eq!(counted, expected, "{function} {outcome} {errno:?}: {report:#}");
    }
    assert_eq!(report["not_served"], 6);
    assert_eq!(report["uncounted"], 0);
    let [setxattr] = rows(&report, "setxattr", "refused", Some("ENOTSUP"))[..] else {
        panic!("one row: {report:#}")
    };
    assert_eq!(setxattr["path"], "/cairn/f");
    assert_eq!(setxattr["file"], program.to_str().expect("UTF-8"));
    assert_eq!(setxattr["case"], "names that do not begin with user.");
    assert!(setxattr["advice"].as_str().is_some_and(|advice| !advice.is_empty()));
    // The end of the run names the calls that were not served, and no others.
    let ran = ran.says("6 not served").says("refused ENOTSUP     setxattr");
    let ran = ran.says("missed              close").says("for example /cairn/f");
    assert!(!ran.stderr.contains("pwrite"), "{}", ran.stderr);
    let all = sandbox.cairn(&["calls", "counted"]).succeeds();
    let line = |line: &&str| line.split_whitespace().eq("served pwrite 100 kinds".split(' '));
    assert_eq!(all.stdout.lines().filter(line).count(), 1, "{}", all.stdout);
}

const WAITING: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>
int main(void) {
    int ours = open("/cairn/f", O_RDWR | O_CREAT, 0600), other = open("/dev/null", O_RDWR), ends[2];
    struct pollfd entries[] = {{ours, POLLIN}, {other, POLLOUT}};
    struct timeval now = {0, 0};
    struct timespec soon = {0, 0};
    fd_set set;
    pipe(ends);
    for (int i = 0; i < 5; i++) poll(entries, 2, 0);
    for (int i = 0; i < 3; i++) poll(entries + 1, 1, 0);
    ppoll(entries, 1, &soon, 0);
    for (int i = 0; i < 6; i++) {
        FD_ZERO(&set);
        FD_SET(i < 4 ? ours : other, &set);
        select(ours + other + 1, &set, 0, 0, &now);
    }
    FD_ZERO(&set);
    FD_SET(ours, &set);
    pselect(ours + 1, 0, &set, 0, &soon, 0);
    int instance = epoll_create1(0);
    epoll_ctl(instance, EPOLL_CTL_ADD, ours, &(struct epoll_event){EPOLLIN});
    epoll_ctl(instance, EPOLL_CTL_ADD, ends[0], &(struct epoll_event){EPOLLIN});
    return 0;
}
"#;

/// Mechanism: a wait for descriptors asked the C library about foreign descriptors, and only that
/// call was counted.
///
/// Consequence: a wait for files of the store was reported as passed on.
///
/// Fix: the call is counted once it is known whether one of the files is in the store.
#[test]
fn waiting_for_files_is_counted_as_served_and_for_others_as_passed() {
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "waiting", WAITING);
    run(&sandbox, &program, &[]).succeeds();
    let report = report(&sandbox);
    for (function, outcome, errno, expected) in [
        ("poll", "served", None, 5),
        ("poll", "passed", None, 3),
        ("ppoll", "served", None, 1),
        ("select", "served", None, 4),
        ("select", "passed", None, 2),
        ("pselect", "served", None, 1),
        ("pselect", "passed", None, 0),
        ("epoll_ctl", "failed", Some("EPERM"), 1),
        ("epoll_ctl", "passed", None, 1),
    ] {
        let counted = number(&report, "waiting", function, outcome, errno);
        assert_eq!(counted, expected, "{function} {outcome} {errno:?}: {report:#}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn what_a_killed_process_called_is_counted() {
    let sandbox = Sandbox::new();
    let program = compile(&sandbox, "kinds", KINDS_OF_CALLS);
    run(&sandbox, &program, &["die"]).ends_with(128 + 9);
    assert_eq!(number(&report(&sandbox), "kinds", "pwrite", "served", None), 100);
}

#[test]
fn children_scripts_and_programs_without_an_environment_are_counted_under_their_names() {
    let sandbox = Sandbox::new();
    let script = sandbox.work().join("named.sh");
    fs::write(&script, "#!/bin/sh\necho x >/cairn/s\nenv -i cat /cairn/s\n").expect("writes");
    let chmod = Command::new("chmod").arg("+x").arg(&script).status();
    assert!(chmod.is_ok_and(|status| status.success()));
    run(&sandbox, &script, &[]).succeeds().prints("x\n");
    let report = report(&sandbox);
    let served = |program: &str| {
        let calls = report["calls"].as_array().expect("a list");
        calls.iter().any(|row| row["program"] == program && row["outcome"] == "served")
    };
    assert!(served("named.sh") && served("cat"), "{report:#}");
}

#[test]
fn counts_go_on_in_the_next_run_and_in_exec() {
    let sandbox = Sandbox::new();
    let touch = ["run", "--job", "counted", "--report-calls", "--", "touch"];
    sandbox.cairn(&[&touch[..], &["/cairn/a"]].concat()).succeeds();
    sandbox.cairn(&[&touch[..], &["/cairn/b"]].concat()).succeeds();
    let exec = ["exec", "--job", "counted", "--report-calls", "--", "touch", "/cairn/c"];
    sandbox.cairn(&exec).succeeds();
    // Neither command asks for counting.
    sandbox.cairn(&["exec", "--job", "counted", "--", "touch", "/cairn/d"]).succeeds();
    sandbox.cairn(&["run", "--job", "counted", "--", "touch", "/cairn/e"]).succeeds();
    assert_eq!(number(&report(&sandbox), "touch", "open", "served", None), 3);
}

#[test]
fn run_tells_programs_what_was_called_even_if_the_store_is_gone() {
    let sandbox = Sandbox::new();
    let ran = sandbox.cairn(&[
        "run",
        "--json",
        "--discard",
        "--report-calls",
        "--",
        "mkfifo",
        "/cairn/p",
    ]);
    let ran = ran.ends_with(1);
    let last = ran.stderr.lines().last().expect("a line");
    let ending: Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(number(&ending["calls"], "mkfifo", "mkfifo", "refused", Some("EPERM")), 1);
}

#[test]
fn nothing_is_counted_unasked() {
    let sandbox = Sandbox::new();
    let ran = sandbox.cairn(&["run", "--job", "plain", "--", "touch", "/cairn/a"]).succeeds();
    assert!(!ran.stderr.contains("served"), "{}", ran.stderr);
    sandbox.cairn(&["calls", "plain"]).refused_with("run it with --report-calls");
}

/// Programs of the job write the file of counts, so a reader trusts nothing in it.
#[test]
fn file_of_counts_that_somebody_damaged_is_refused_or_read_as_far_as_it_is_whole() {
    let sandbox = Sandbox::new();
    sandbox
        .cairn(&["run", "--job", "counted", "--report-calls", "--", "touch", "/cairn/a"])
        .succeeds();
    let path = sandbox.store("counted").join("calls");
    let whole = fs::read(&path).expect("reads");
    let noise = |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7];
    let noisy: Vec<u8> = whole[..8].iter().copied().chain((8..whole.len()).map(noise)).collect();
    fs::write(&path, &noisy).expect("writes");
    report(&sandbox);
    fs::write(&path, &whole[..whole.len() / 2]).expect("writes");
    sandbox.cairn(&["calls", "counted"]).ends_with(1).says("cannot read");
}
