//! Programs that outlive a killed `cairn run`: they still are the job.

mod common;

use common::session::Session;
use common::{Sandbox, eventually};
use std::fs;

/// Mechanism: a run counted as over when nobody held its lock.
///
/// Consequence: the drain stopped following files that the program still wrote. After the loss of
/// the node, later writes were lost.
///
/// Fix: a run lasts as long as one of its processes.
#[test]
fn program_outlives_its_run_then_the_drain_follows_it_until_it_ends() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("exec 7>>/cairn/log; echo one >&7; echo state >/cairn/ckpt.1");
    let log = || fs::read(sandbox.out().join("log")).unwrap_or_default();
    eventually("it is outside", || log() == b"one\n");
    session.kill_run();
    sandbox.cairn(&["drain", "job"]).succeeds().says("1 file open for writing");
    session.shell("echo two >&7");
    eventually("it is followed", || log() == b"one\ntwo\n");
    session.shell("echo three >&7");
    session.kill_shell();
    let is_closed = || !sandbox.cairn(&["drain", "job"]).succeeds().stdout.contains("open");
    eventually("the writer has ended", is_closed);
    assert_eq!(log(), b"one\ntwo\nthree\n");
}

/// A run that resumes the job while the previous run's program is still alive says so.
#[test]
fn run_that_goes_on_beside_the_program_of_a_killed_one_says_so() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("exec 7>>/cairn/log; echo one >&7");
    session.kill_run();
    let shell = fs::read_to_string(sandbox.work().join("shell")).expect("it wrote it");
    let next = sandbox.run("job", "cat /cairn/log");
    let mut said = next.stderr.lines().filter(|line| line.contains("resuming: process"));
    let said = said.next().unwrap_or_default();
    assert!(said.contains(shell.trim()) && said.contains("still use"), "{}", next.stderr);
}
