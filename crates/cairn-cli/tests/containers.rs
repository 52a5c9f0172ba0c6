//! Processes in other pid namespaces, as in containers: their deaths are noticed like all others.
//!
//! Mechanism: nobody could tell that a process of another pid namespace was dead.
//!
//! Consequence: a file that a container had open when it was killed stayed open forever. Every
//! later run ended with 75, and the store could only be removed by hand.
//!
//! Fix: the agent looks at the processes in namespaces below its own.

mod common;

use common::session::Session;
use common::{Sandbox, eventually, kill};
use std::fs;
use std::process::Command;

/// Command that starts a process as a container runtime does, where that is allowed.
const CONTAINER: &str = "unshare --user --map-root-user --pid --fork --mount-proc";

fn can_contain() -> bool {
    let mut words = CONTAINER.split_whitespace();
    let launched = Command::new(words.next().expect("a program")).args(words).arg("true").output();
    let can = launched.is_ok_and(|output| output.status.success());
    if !can {
        println!("not run: user and pid namespaces cannot be made here");
    }
    can
}

const WRITER: &str = "\
import ctypes, sys
file = open('/cairn/log', 'w')
file.write('state'); file.flush()
if sys.argv[1] == 'dies':
    ctypes.string_at(0)
";

#[test]
fn container_dies_then_its_file_is_unclean_and_the_job_can_be_ended() {
    if !can_contain() {
        return;
    }
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("writer.py"), WRITER).expect("writes");
    let script = format!("{CONTAINER} python3 writer.py dies; exit 3");
    sandbox.run("job", &script).ends_with(3);
    let is_over = || sandbox.cairn(&["drain", "job"]).code == Some(0);
    eventually("its death is noticed", is_over);
    let left = fs::read(sandbox.out().join("log")).expect("is there");
    assert_eq!(left, b"state");
    sandbox.cairn(&["rm", "job"]).succeeds();
}

#[test]
fn container_lives_then_its_file_is_open() {
    if !can_contain() {
        return;
    }
    let sandbox = Sandbox::new();
    let script = format!(
        "{CONTAINER} sh -c 'exec 7>/cairn/log; echo state >&7; touch ready; until [ -e enough ]; do sleep 0.01; done' &
        until [ -e ready ]; do sleep 0.01; done; sleep 3; {} drain job; touch enough; wait",
        common::CAIRN
    );
    let run = sandbox.run("job", &script).succeeds();
    assert!(run.stdout.contains("1 file open for writing"), "{}{}", run.stdout, run.stderr);
    assert_eq!(fs::read(sandbox.out().join("log")).expect("is there"), b"state\n");
}

#[test]
fn container_that_ends_in_order_leaves_nothing_open() {
    if !can_contain() {
        return;
    }
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("writer.py"), WRITER).expect("writes");
    let run = sandbox.run("job", &format!("{CONTAINER} python3 writer.py ends"));
    run.succeeds().says("store removed");
    assert_eq!(fs::read(sandbox.out().join("log")).expect("is there"), b"state");
}

/// Mechanism: processes of other pid namespaces were not considered.
///
/// Consequence: the store of a container's program was removed under it once its `cairn run` was
/// gone.
///
/// Fix: visible processes of other pid namespaces count as users of the store.
#[test]
fn container_outlives_its_run_then_its_store_is_not_removed() {
    if !can_contain() {
        return;
    }
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "job", &[]);
    session.shell(&format!(
        "{CONTAINER} --kill-child sh -c 'exec 7>/cairn/log; touch ready; sleep 1000' &
        echo $! >container; until [ -e ready ]; do sleep 0.01; done"
    ));
    session.kill_run();
    session.kill_shell();
    let container = fs::read_to_string(sandbox.work().join("container")).expect("is there");
    let refused = sandbox.cairn(&["rm", "job", "--discard"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("still use"), "{}", refused.stderr);
    kill("KILL", container.trim().parse().expect("a number"));
    let is_removed = || sandbox.cairn(&["rm", "job", "--discard"]).code == Some(0);
    eventually("it can be removed", is_removed);
}
