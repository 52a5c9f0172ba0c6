//! Programs that outlive a killed `cairn run`: they still are the job.

mod common;

use common::session::Session;
use common::{Sandbox, eventually};
use std::fs;

/// Mechanism: a run counted as over when nobody held its lock.
///
/// Consequence: images of the store went with the next drain although the program was still
/// writing, and no more were taken. After the loss of the node, later writes were lost.
///
/// Fix: a run lasts as long as one of its processes.
#[test]
fn program_outlives_its_run_then_images_of_it_go_on_until_it_ends() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell("exec 7>>/cairn/log; echo one >&7; echo state >/cairn/ckpt.1");
    let log = |index: u8| fs::read(sandbox.out().join(format!("cairn-image.job.{index}/log")));
    eventually("an image is taken", || log(0).is_ok_and(|log| log == b"one\n"));
    session.kill_run();
    let drained = sandbox.cairn(&["drain", "job"]);
    assert_eq!(drained.code, Some(75), "{}", drained.stderr);
    assert!(log(0).is_ok(), "it has what is nowhere else");
    session.shell("echo two >&7; sync /cairn/log");
    eventually("another one is taken", || log(1).is_ok_and(|log| log == b"one\ntwo\n"));
    session.kill_shell();
    eventually("the writer has ended", || sandbox.cairn(&["drain", "job"]).code == Some(0));
    assert!(log(0).is_err() && log(1).is_err(), "all that they have is outside, and later");
    let left = fs::read(sandbox.out().join("cairn-left.job/log"));
    assert_eq!(left.expect("is there"), b"one\ntwo\n");
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
