//! End of the job's time: what is drained before it, and the report about the rest.

mod common;

use common::session::Session;
use common::{Sandbox, eventually, kill};
use std::fs;
use std::process::{Command, Stdio};

/// `cairn run` of a shell script with these options, not started yet. No process that holds its
/// output outlives it.
fn command(sandbox: &Sandbox, job: &str, options: &[&str], script: &str) -> Command {
    let out = sandbox.out();
    let head = ["run", "--job", job, "--persist", out.to_str().expect("UTF-8")];
    sandbox.command(&[&head[..], options, &["--", "bash", "-c", script]].concat())
}

const THREE_FILES: &str = "for i in 1 2 3; do head -c 4M /dev/urandom >/cairn/f$i; done";

#[test]
fn limit_is_lifted_when_the_end_is_near() {
    let sandbox = Sandbox::new();
    // 12 MiB at this rate take 200 minutes, and the run waits for everything.
    let options = ["--drain-rate", "1K", "--until", "+50s"];
    let script = format!("{THREE_FILES}; exit 1");
    let ran = command(&sandbox, "near", &options, &script).output().expect("starts");
    assert_eq!(ran.status.code(), Some(1));
    assert_eq!(sandbox.manifest("near")["complete"], true);
    eventually("status says so", || {
        let status = sandbox.cairn(&["status", "near"]).succeeds().says("walltime");
        status.stdout.contains("nothing is left to drain")
    });
}

#[test]
fn nobody_waits_when_the_time_is_over_and_what_is_safe_is_said() {
    let sandbox = Sandbox::new();
    // According to Slurm the time is over. A copy cannot take the name of the obstacle, a
    // directory.
    sandbox.obstruct("over", "f2");
    let script = THREE_FILES.to_string();
    let mut command = command(&sandbox, "over", &[], &script);
    let command = command.env("SLURM_JOB_END_TIME", "1000000000").env("OUT", sandbox.out());
    let ran = common::Ran::of(command.output().expect("starts"), "run".to_string());
    let ran = ran.ends_with(75).says("not safe yet: only in the memory of this node");
    ran.says("follow it: cairn --store-root");
}

#[test]
fn what_will_not_be_in_time_is_warned_of_and_shown() {
    let sandbox = Sandbox::new();
    sandbox.obstruct("late", "f2");
    let script = format!("{THREE_FILES}; until [ -e seen ]; do sleep 0.01; done; exit 1");
    let mut command = command(&sandbox, "late", &["--until", "+3s"], &script);
    let stderr = sandbox.work().join("stderr");
    let file = fs::File::create(&stderr).expect("makes");
    let mut child = command.stdout(Stdio::null()).stderr(file).spawn().expect("starts");
    eventually("it is said", || {
        fs::read_to_string(&stderr).is_ok_and(|text| text.contains("will not be safe in time"))
    });
    eventually("status says so", || {
        let status = sandbox.cairn(&["status", "late"]).succeeds();
        status.stdout.contains("4.00 MiB will not be safe in time")
    });
    fs::write(sandbox.work().join("seen"), "").expect("writes");
    assert_eq!(child.wait().expect("ends").code(), Some(1));
}

/// Mechanism: the run told the agent that time is short before it passed the signal to the command,
/// and waited for the agent's answer for two minutes.
///
/// Consequence: beside an agent that did not answer, the batch system killed the command, which had
/// never been told to end.
///
/// Fix: the command is told first, and the wait for the agent is short.
#[test]
fn command_is_told_to_end_though_the_agent_does_not_answer() {
    let sandbox = Sandbox::new();
    let script = "trap ': >told' TERM; : >ready; until [ -e told ]; do sleep 0.01; done";
    let mut child = command(&sandbox, "deaf", &[], script).spawn().expect("starts");
    eventually("the command runs", || sandbox.work().join("ready").exists());
    let agent = i64::from(sandbox.agent("deaf"));
    kill("STOP", agent);
    kill("TERM", i64::from(child.id()));
    eventually("the command is told", || sandbox.work().join("told").exists());
    kill("CONT", agent);
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

/// Mechanism: the forecast counted files that are never drained: temporary files, and checkpoints
/// that the policy keeps on the node.
///
/// Consequence: near the end of the job's time the drain's limits were lifted for them, and the
/// user was warned that they would not be safe.
///
/// Fix: files that are not to be drained do not count. The newest checkpoint counts at the end of
/// the run.
#[test]
fn what_is_never_drained_is_not_foretold() {
    let sandbox = Sandbox::new();
    let options = ["--until", "+59s", "--temporary", "*.tmp", "--pfs-every", "10"];
    let mut session = Session::start(&sandbox, "kept", &options);
    // One in ten is drained, and the newest at the end.
    session.shell(
        "head -c 4M /dev/urandom >/cairn/scratch.tmp
        for i in 1 2 3 4; do head -c $((i * 100)) /dev/zero >/cairn/step.$i; done",
    );
    eventually("only the newest is left", || {
        let status = sandbox.cairn(&["status", "kept"]).succeeds();
        status.stdout.contains("; 400 B not safe yet")
    });
    assert_eq!(session.end(), Some(0));
}

#[test]
fn run_that_is_told_to_end_lifts_the_limit() {
    let sandbox = Sandbox::new();
    let script = format!("{THREE_FILES}; : >written; exec sleep 600");
    let options = ["--drain-rate", "1K", "--until", "+100s"];
    let mut command = command(&sandbox, "told", &options, &script);
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("starts");
    eventually("it is written", || sandbox.work().join("written").exists());
    kill("TERM", i64::from(child.id()));
    assert_eq!(child.wait().expect("ends").code(), Some(143));
    assert_eq!(sandbox.manifest("told")["complete"], true);
}

#[test]
fn checkpoint_that_a_program_writes_when_it_is_told_to_end_is_outside_at_the_end() {
    let sandbox = Sandbox::new();
    let script = "trap 'head -c 4M /dev/urandom >/cairn/step.3; exit 143' TERM
        for i in 1 2; do head -c 4M /dev/urandom >/cairn/step.$i; done
        : >written; while :; do sleep 0.05; done";
    let options = ["--drain-rate", "1K", "--until", "+30s", "--pfs-every", "10"];
    let mut command = command(&sandbox, "last", &options, script);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    eventually("it is written", || sandbox.work().join("written").exists());
    kill("TERM", i64::from(child.id()));
    assert_eq!(child.wait().expect("ends").code(), Some(143));
    let manifest = sandbox.manifest("last");
    let steps: Vec<_> = manifest["checkpoints"].as_array().into_iter().flatten().collect();
    assert_eq!(steps.last().map(|newest| &newest["step"]), Some(&3.into()), "{manifest}");
}
