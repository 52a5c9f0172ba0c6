//! End of a run: who waits for the drain, and what is reported as safe.

mod common;

use common::session::Session;
use common::{Ran, Sandbox, eventually, kill};
use std::fs;

/// Slow enough that only the first file arrives before the run ends, fast enough to wait for.
const SLOW: &str = "2M";

/// `cairn run` of a program that leaves 12 MiB in three files, with these drain options.
fn run(sandbox: &Sandbox, job: &str, options: &[&str]) -> Ran {
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let script = "for i in 1 2 3; do head -c 4M /dev/urandom >/cairn/f$i; done";
    let head = ["run", "--job", job, "--persist", persist];
    sandbox.cairn(&[&head[..], options, &["--", "bash", "-c", script]].concat())
}

/// Bytes of the files that are outside, according to the manifest.
fn drained_bytes(sandbox: &Sandbox, job: &str) -> u64 {
    let manifest = sandbox.manifest(job);
    let files = manifest["files"].as_array().map(Vec::as_slice).unwrap_or_default();
    files.iter().filter_map(|file| file["bytes"].as_u64()).sum()
}

#[test]
fn drain_in_the_background_is_followed_to_its_end() {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, "later", &["--drain", "background", "--drain-rate", SLOW]).succeeds();
    let ran = ran.says("not safe yet: only in the memory of this node");
    let ran = ran.says("the drain goes on in the background; follow it: cairn --store-root");
    drop(ran);
    assert!(drained_bytes(&sandbox, "later") < 12 << 20, "nobody waited");
    sandbox.cairn(&["status", "--wait", "later"]).succeeds().says("drained   3 files, 12.0 MiB");
    assert_eq!(sandbox.manifest("later")["complete"], true);
    assert_eq!(sandbox.drained_names(), ["f1", "f2", "f3"]);
}

#[test]
fn agent_that_is_killed_while_it_is_followed_is_replaced() {
    let sandbox = Sandbox::new();
    run(&sandbox, "killed", &["--drain", "background", "--drain-rate", SLOW]).succeeds();
    kill("KILL", i64::from(sandbox.agent("killed")));
    sandbox.cairn(&["status", "--wait", "killed"]).succeeds();
    assert_eq!(sandbox.manifest("killed")["complete"], true);
}

#[test]
fn checkpoints_are_drained_in_the_background_also_by_another_agent() {
    let script = "for i in 1 2 3; do head -c 4M /dev/urandom >/cairn/step.$i; done";
    let run = |sandbox: &Sandbox, job: &str, options: &[&str]| {
        let out = sandbox.out().display().to_string();
        let head = ["run", "--job", job, "--persist", &out, "--pfs-every", "10"];
        sandbox.cairn(&[&head, options, &["--", "bash", "-c", script]].concat()).succeeds();
    };
    let sandbox = Sandbox::new();
    run(&sandbox, "newest", &["--drain", "background"]);
    sandbox.cairn(&["status", "--wait", "newest"]).succeeds();
    assert_eq!(sandbox.drained_names(), ["step.1", "step.2", "step.3"]);
    assert_eq!(sandbox.manifest("newest")["checkpoints"][2]["step"], 3);

    let sandbox = Sandbox::new();
    run(&sandbox, "killed", &["--drain", "background", "--drain-rate", SLOW]);
    kill("KILL", i64::from(sandbox.agent("killed")));
    sandbox.cairn(&["status", "--wait", "killed"]).succeeds();
    assert_eq!(sandbox.drained_names(), ["step.1", "step.2", "step.3"]);
}

#[test]
fn what_a_run_that_succeeded_left_undrained_is_complete() {
    let script = "mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; mkdir /cairn/ckpt-2; echo a >/cairn/ckpt-2/a";
    for (job, at_end) in [("none", "none"), ("later", "background")] {
        let sandbox = Sandbox::new();
        let out = sandbox.out().display().to_string();
        let head = ["run", "--job", job, "--persist", &out, "--settle", "1h", "--drain", at_end];
        sandbox.cairn(&[&head[..], &["--", "bash", "-c", script]].concat()).succeeds();
        let rows = sandbox.cairn(&["ls", "--checkpoints", job, "--json"]).succeeds().json();
        let levels: Vec<_> =
            rows.as_array().into_iter().flatten().map(|row| &row["level"]).collect();
        assert!(levels.len() == 2 && levels.iter().all(|level| level.is_string()), "{rows}");
        if at_end == "background" {
            sandbox.cairn(&["status", "--wait", job]).succeeds();
            assert_eq!(sandbox.drained("ckpt-2/a"), "a\n");
        }
    }
}

/// Mechanism: a program that was told to end saves a checkpoint. If that is a directory and the
/// first of its kind, nothing distinguishes it from one that was cut off, and it stayed in the
/// store.
///
/// Consequence: a closed checkpoint was nowhere else.
///
/// Fix: what is known of a checkpoint withholds nothing.
#[test]
fn checkpoint_that_a_failing_run_has_saved_last_is_outside() {
    let sandbox = Sandbox::new();
    let script = "trap 'mkdir /cairn/ckpt-1; cd /cairn/ckpt-1; echo a >a; echo b >b; exit 3' TERM
        kill -TERM $$";
    sandbox.run("told", script).ends_with(3);
    assert_eq!([sandbox.drained("ckpt-1/a"), sandbox.drained("ckpt-1/b")], ["a\n", "b\n"]);
}

/// Mechanism: a checkpoint of which nobody knew whether more files come was not copied.
///
/// Consequence: `cairn status --wait` waited although nothing was done.
///
/// Fix: nobody waits for a checkpoint.
#[test]
fn who_follows_a_drain_does_not_wait_for_a_checkpoint() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "killed", &["--settle", "1h"]);
    session.shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; echo b >/cairn/ckpt-1/b");
    sandbox.cairn(&["status", "--wait", "killed"]).succeeds();
    assert_eq!(sandbox.drained("ckpt-1/b"), "b\n");
    session.kill_all();
    sandbox.cairn(&["status", "--wait", "killed"]).succeeds();
}

#[test]
fn nothing_is_drained_at_the_end_unless_somebody_asks() {
    let sandbox = Sandbox::new();
    // So slow that all but the first part is left.
    let options = ["--drain", "none", "--drain-rate", "1K"];
    run(&sandbox, "left", &options)
        .succeeds()
        .says("not safe yet: only in the memory of this node");
    let ran = sandbox.cairn(&["status", "--wait", "left"]).ends_with(75);
    ran.says("undrained").says("not safe yet");
    assert!(drained_bytes(&sandbox, "left") < 12 << 20, "no agent drained it by itself");
    let resumed = ["run", "--job", "left", "--drain-rate", "none", "--", "true"];
    sandbox.cairn(&resumed).succeeds();
    sandbox.cairn(&["drain", "left"]).succeeds();
    assert_eq!(sandbox.drained_names(), ["f1", "f2", "f3"]);
    sandbox.cairn(&["status", "--wait", "left"]).succeeds();
}

/// Mechanism: when the end of a run did not wait for the drain, nobody told the agent how the run
/// ended, and such a run counts as failed.
///
/// Consequence: its last checkpoint, which only the end of the run could show to be whole, was
/// never drained and never offered for restart.
///
/// Fix: the agent is told. If the agent is to end, the register is told.
#[test]
fn last_checkpoint_of_a_run_that_went_well_is_drained_though_its_end_did_not_wait() {
    for (how, then) in [("background", &["status", "--wait"][..]), ("none", &["drain"])] {
        let sandbox = Sandbox::new();
        let mut session = Session::start(&sandbox, "well", &["--settle", "1h", "--drain", how]);
        session.shell("echo x >/cairn/log");
        eventually("the agent has looked", || sandbox.out().join("log").exists());
        session.shell("mkdir /cairn/ckpt-1; echo a >/cairn/ckpt-1/a; echo b >/cairn/ckpt-1/b");
        assert_eq!(session.end(), Some(0));
        sandbox.cairn(&[then, &["well"]].concat()).succeeds();
        assert_eq!(sandbox.drained_names(), ["ckpt-1", "ckpt-1/a", "ckpt-1/b", "log"], "{how}");
    }
}

#[test]
fn whoever_follows_a_drain_that_fails_hears_why() {
    let sandbox = Sandbox::new();
    let obstacle = sandbox.obstruct("fails", "f2");
    run(&sandbox, "fails", &["--drain", "background"]).succeeds();
    sandbox.cairn(&["status", "--wait", "fails"]).ends_with(75).says("f2");
    fs::remove_dir(&obstacle).expect("removes");
    sandbox.cairn(&["drain", "fails"]).succeeds();
    sandbox.cairn(&["status", "--wait", "fails"]).succeeds();
    sandbox.run_undrained("nowhere", "echo x >/cairn/f").succeeds();
    sandbox.cairn(&["status", "--wait", "nowhere"]).refused_with("--persist");
}

/// Mechanism: after a successful run, every file outside that the store did not have was removed,
/// before it was known whether the program's new files could be drained.
///
/// Consequence: with a bad last checkpoint, none was left.
///
/// Fix: what the program removed stays outside until all of its other files are there.
#[test]
fn last_good_copy_stays_where_a_run_that_succeeded_left_a_bad_checkpoint() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "bad", &[]);
    session.shell("echo one >/cairn/dump.1; echo two >/cairn/dump.2; echo one >/cairn/step7");
    eventually("the older ones are outside", || {
        sandbox.manifest("bad")["checkpoints"].as_array().is_some_and(|known| known.len() == 3)
    });
    let obstacle = sandbox.obstruct("bad", "dump.3");
    session.shell(
        "echo three >/cairn/dump.3; rm /cairn/dump.? /cairn/step7 -f; echo three >/cairn/dump.3",
    );
    assert_eq!(session.end(), Some(75));
    for name in ["dump.1", "dump.2", "step7"] {
        assert!(sandbox.out().join(name).exists(), "{name} has gone before dump.3 is there");
    }
    fs::remove_dir(&obstacle).expect("removes");
    sandbox.cairn(&["run", "--job", "bad", "--", "true"]).succeeds();
    assert_eq!(sandbox.drained_names(), ["dump.3"]);
    assert_eq!(sandbox.drained("dump.3"), "three\n");
}

/// Mechanism: a requested drain did not mention the unfinished checkpoints of a failed run.
///
/// Consequence: everything seemed to be outside.
///
/// Fix: it names them.
#[test]
fn drain_names_the_checkpoints_that_are_not_complete() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "parts", &["--settle", "1h"]);
    session.shell("echo log >/cairn/log; mkdir /cairn/ckpt-2; echo a >/cairn/ckpt-2/a");
    session.begin("exit 3");
    assert_eq!(session.end(), Some(3));
    let drained = sandbox.cairn(&["drain", "parts"]);
    drained
        .succeeds()
        .says("checkpoint not known to be complete, 1 file, as they are: ckpt-2: it may have");
    assert_eq!(sandbox.drained_names(), ["ckpt-2", "ckpt-2/a", "log"]);
}
