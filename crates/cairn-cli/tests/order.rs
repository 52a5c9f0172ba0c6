//! Which checkpoint is the newest, whatever happened to stores, registers and clocks.

mod common;

use common::{Ran, Sandbox, kill};
use std::fs;
use std::path::Path;

/// Step and number of each checkpoint in the manifest, in its order.
fn drained(sandbox: &Sandbox) -> Vec<(u64, u64)> {
    let manifest = sandbox.manifest("job");
    let checkpoints = manifest["checkpoints"].as_array().cloned().unwrap_or_default();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    checkpoints.iter().map(|known| (number(&known["step"]), number(&known["id"]))).collect()
}

fn steps(sandbox: &Sandbox) -> Vec<u64> {
    drained(sandbox).into_iter().map(|(step, _)| step).collect()
}

/// Runs the job, drains to `out`, and writes the checkpoint dump.STEP with this modification time.
/// Its store stays.
fn write(sandbox: &Sandbox, out: &Path, options: &[&str], step: u32, second: u32) -> Ran {
    let script =
        format!("printf {step} >/cairn/dump.{step}; touch -d @{second} /cairn/dump.{step}; exit 3");
    run(sandbox, out, options, &script).ends_with(3)
}

fn run(sandbox: &Sandbox, out: &Path, options: &[&str], script: &str) -> Ran {
    let head = ["run", "--job", "job", "--persist", out.to_str().expect("UTF-8")];
    let tail = ["--checkpoint-pattern", "/dump.{step}", "--", "bash", "-c", script];
    sandbox.cairn(&[&head[..], options, &tail].concat())
}

/// Kills the agent and removes the register, as if the agent had died without room to save it.
fn lose_register(sandbox: &Sandbox) {
    if let Some(agent) = sandbox.agent_if_any("job") {
        kill("KILL", agent.into());
    }
    fs::remove_file(sandbox.store("job").join("checkpoints.json")).expect("is there");
}

/// Mechanism: an agent that had lost the register counted from 1 again.
///
/// Consequence: the next checkpoints got numbers of older ones in the manifest, and counted as
/// older than these.
///
/// Fix: the agent continues from the numbers that the manifest has of the store.
#[test]
fn numbers_go_on_after_the_register_was_lost() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    for step in 1..=4 {
        write(&sandbox, &out, &["--retain", "count=1"], step, 1_000_000_000 + step);
    }
    assert_eq!(drained(&sandbox), [(1, 1), (2, 2), (3, 3), (4, 4)]);
    lose_register(&sandbox);
    write(&sandbox, &out, &["--retain", "count=1"], 5, 1_000_000_005);
    assert_eq!(drained(&sandbox), [(1, 1), (2, 2), (3, 3), (4, 5), (5, 6)]);
}

/// Mechanism: checkpoints of the draining store were ordered after those of all other stores.
///
/// Consequence: if a store was resumed after another store of the job had followed it, its old
/// checkpoints counted as the newest.
///
/// Fix: a checkpoint keeps its place in the order.
#[test]
fn store_that_is_resumed_after_a_newer_one_has_older_checkpoints() {
    let (first, second) = (Sandbox::new(), Sandbox::new());
    let out = first.out();
    write(&first, &out, &[], 1, 1_000_000_001);
    write(&first, &out, &[], 2, 1_000_000_002);
    write(&second, &out, &["--shared"], 3, 1_000_000_003);
    assert_eq!(steps(&first), [1, 2, 3]);
    run(&first, &out, &[], "exit 3").ends_with(3);
    assert_eq!(steps(&first), [1, 2, 3]);
    // Whatever its clock says.
    write(&first, &out, &[], 4, 1_000_000_000);
    assert_eq!(steps(&first), [1, 2, 3, 4]);
}

/// Mechanism: a store filled with several checkpoints ordered them by the times of their files.
///
/// Consequence: where the clock had been set back, an older one was offered for restart, kept, and
/// drained at the end.
///
/// Fix: the store takes over their order.
#[test]
fn store_that_is_filled_keeps_the_order_of_checkpoints() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    write(&sandbox, &out, &[], 1, 1_200_000_000);
    write(&sandbox, &out, &[], 2, 1_000_000_000);
    sandbox.cairn(&["rm", "job"]).succeeds();
    let from = out.to_str().expect("UTF-8");
    sandbox.cairn(&["restore", from]).succeeds();
    let newest = ["ls", "--checkpoints", "job", "--newest", "*"];
    sandbox.cairn(&newest).prints("/cairn/dump.2\n");
    // The order holds after a drain, too.
    run(&sandbox, &out, &["--pfs-every", "10"], "exit 3").ends_with(3);
    sandbox.cairn(&newest).prints("/cairn/dump.2\n");
    assert_eq!(steps(&sandbox), [1, 2]);
}
