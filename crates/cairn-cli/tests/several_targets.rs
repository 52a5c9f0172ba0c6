//! A store with tiers on several targets, one of which is gone.

mod common;
#[path = "common/exported.rs"]
mod exported;

use common::{Sandbox, eventually};
use exported::{NAME, Target, exporting};
use std::fs;

/// NQN of the second target.
const OTHER: &str = "nqn.2026-11.test:other";

/// Starts the small target, which fills first.
fn small(sandbox: &Sandbox, address: &str) -> Target {
    let file = sandbox.work().join("small");
    let made = fs::File::options().create(true).truncate(false).write(true).open(&file);
    made.and_then(|file| file.set_len(4 << 20)).expect("is made");
    let export = format!("file:{}", file.display());
    let mut target = Target::spawn(
        &mut sandbox.command(&["--json", "target", "--listen", address, "--nqn", OTHER, &export]),
    );
    target.tier = target.tier.replace(NAME, OTHER);
    target
}

/// Mechanism: each read of the drain from a target that was gone waited for as long as calls wait,
/// one after another, and counted as work in the persist directory.
///
/// Consequence: files on living targets were drained after all of these, and `cairn status`
/// reported that the persist directory hangs.
///
/// Fix: one thread retries a tier that has not answered now and then, and the tier is named.
#[test]
fn target_is_gone_then_files_elsewhere_are_drained_the_tier_is_named_and_the_rest_follows_when_it_is_back()
 {
    let sandbox = exporting();
    let (large, mut gone) =
        (Target::start(&sandbox, "127.0.0.1:0"), small(&sandbox, "127.0.0.1:0"));
    let out = sandbox.out().display().to_string();
    let run = ["run", "--job", "job", "--meta-tier", "ram", "--tier", &gone.tier, "--tier"];
    let options = [&large.tier, "--", "bash", "-c"];
    let script = "for i in $(seq 8); do head -c 1M /dev/urandom >/cairn/part.of.$i.bin; done";
    sandbox.cairn(&[&run[..], &options, &[script]].concat()).succeeds();
    let arrived = || {
        let bytes = fs::read(sandbox.work().join("small")).expect("is there");
        bytes.iter().filter(|byte| **byte != 0).count()
    };
    eventually("the target has what it is to have", || arrived() > 4_100_000);
    gone.end();
    let drained = || sandbox.drained_names().len();
    // Nothing was drained before.
    let ran = sandbox.cairn(&["drain", "job", "--persist", &out]);
    assert_ne!(ran.code, Some(0), "not all of it could be: {}", ran.stdout);
    let tier = format!("nvme-tcp://{}/{OTHER}", gone.address);
    ran.says(&format!("from {tier}"));
    let before = drained();
    assert!((4..8).contains(&before), "{before} are elsewhere");
    let status = sandbox.cairn(&["status", "job"]).succeeds();
    let status = status.says(&format!("hangs     {tier}"));
    assert!(!status.stdout.contains("nothing has moved"), "{}", status.stdout);
    let _back = small(&sandbox, &gone.address);
    // Nobody asks the agent to drain any more.
    let run = ["run", "--job", "job", "--drain", "background", "--resume", "as-is", "--", "true"];
    let mut run = sandbox.command(&run);
    assert!(run.env_remove("CAIRN_RUN_TIER").status().expect("starts").success());
    eventually("the rest is drained", || drained() == 8);
}
