//! Parts of a namespace on another machine, for stores of several machines.
//!
//! Machines are mount namespaces here: processes that share `/dev/shm` are one machine.

mod common;
#[path = "common/exported.rs"]
mod exported;
#[path = "common/machine.rs"]
mod machine;

use common::{Ran, Sandbox};
use exported::{READ, Target, WRITE, exporting, lose_memory};
use machine::{Machine, ran};
use std::fs;

#[test]
fn parts_hold_stores_of_their_own_and_the_namespace_is_neither_used_as_a_whole_nor_divided_again() {
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    let run = |job: &str, part: &str, script: &str| {
        let tier = format!("{}{part}", target.tier);
        sandbox.cairn(&["run", "--job", job, "--tier", &tier, "--", "bash", "-c", script])
    };
    let first = run("first", "&part=1/2", WRITE).succeeds().stdout;
    run("second", "&part=2/2", "echo other >/cairn/g").succeeds();
    assert_eq!(run("first", "&part=1/2", READ).succeeds().stdout, first);
    run("third", "&part=1/3", "true").ends_with(2).says("another number of parts");
    run("third", "", "true").ends_with(2).says("divided into parts");
    run("third", "&part=2/2", "true").ends_with(2).says("another store uses it");
    sandbox.cairn(&["rm", "first", "--discard"]).succeeds();
    run("third", "&part=1/2", "ls -A /cairn").succeeds().prints("");
    run("second", "&part=2/2", "cat /cairn/g").succeeds().prints("other\n");
    run("fourth", "&part=3/2", "true").ends_with(2).says("is not a tier");
}

#[test]
fn one_of_two_machines_that_want_a_part_at_the_same_time_gets_it() {
    let machines = [Machine::start(), Machine::start()];
    let [Some(one), Some(other)] = &machines else { return };
    let exporter = exporting();
    let target = Target::start(&exporter, "127.0.0.1:0");
    let tier = format!("{}&part=2/2", target.tier);
    let sandboxes = [Sandbox::new(), Sandbox::new()];
    let start = |(machine, sandbox): (&Machine, &Sandbox)| {
        let mut run = machine.run(sandbox, "job", &tier, WRITE);
        run.spawn().expect("starts")
    };
    let both = [(one, &sandboxes[0]), (other, &sandboxes[1])].map(start);
    let ends = both.map(|run| {
        let output = run.wait_with_output().expect("ends");
        Ran::of(output, "cairn run".to_string())
    });
    let winner = ends.iter().position(|end| end.code == Some(0)).expect("one gets it");
    let [first, second] = ends;
    let (won, lost) = if winner == 0 { (first, second) } else { (second, first) };
    assert_ne!(lost.code, Some(0));
    lost.says("another machine uses it");
    let machine = [one, other][winner];
    let again = ran(&mut machine.run(&sandboxes[winner], "job", &tier, READ)).succeeds();
    assert_eq!(again.stdout, won.stdout, "it has it still");
}

#[test]
fn part_of_a_machine_that_is_lost_is_recovered_by_another_that_takes_it_over() {
    let machines = [Machine::start(), Machine::start()];
    let [Some(lost), Some(heir)] = &machines else { return };
    let exporter = exporting();
    let target = Target::start(&exporter, "127.0.0.1:0");
    let tier = format!("{}&part=1/3", target.tier);
    let sandboxes = [Sandbox::new(), Sandbox::new()];
    let written = ran(&mut lost.run(&sandboxes[0], "job", &tier, WRITE)).succeeds().stdout;
    lose_memory(&sandboxes[0], "job");
    let run = |tier: &str| ran(&mut heir.run(&sandboxes[1], "job", tier, READ));
    run(&tier).ends_with(2).says("if that machine is dead, add take-over=yes");
    let recovered = run(&format!("{tier}&take-over=yes")).succeeds().stdout;
    assert_eq!(recovered, written);
    let late = ran(&mut lost.run(&sandboxes[0], "job", &tier, READ));
    late.ends_with(2).says("another machine uses it");
}

/// Mechanism: stores of one machine lock a file in `/dev/shm` in place of a namespace, and nobody
/// removed that file.
///
/// Consequence: a file for each namespace ever used stayed until the machine was rebooted.
///
/// Fix: removing the tier removes the file, unless another process has it open. A process that
/// opened the file before opens it again.
#[test]
fn nothing_of_a_tier_that_was_removed_stays_in_shared_memory() {
    let Some(machine) = Machine::start() else { return };
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    let there = format!("/proc/{}/root/dev/shm", machine.id());
    let files = || fs::read_dir(&there).expect("is there").count();
    ran(&mut machine.run(&sandbox, "job", &target.tier, WRITE)).succeeds();
    assert_eq!(files(), 2, "the files that are locked");
    ran(&mut machine.cairn(&sandbox, &["rm", "job", "--discard"])).succeeds();
    assert_eq!(files(), 0);
}

#[test]
fn nodes_that_a_launcher_starts_have_a_part_each_by_themselves() {
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    let cluster = sandbox.work().join("cluster.toml");
    let (address, _) = target.tier.split_once('?').expect("it names the namespace");
    let text = format!("[[target]]\nnodes = \"storage\"\naddress = \"{address}\"\n");
    fs::write(&cluster, text).expect("has room");
    let planned = format!("nvme-tcp:{}", cluster.display());
    for (node, tier) in [("0", &target.tier), ("1", &planned)] {
        let job = format!("node{node}");
        let run = ["run", "--job", &job, "--tier", tier, "--", "bash", "-c", WRITE];
        let mut command = sandbox.command(&run);
        let step = [("NUM_NODES", "2"), ("NODELIST", "n[1-2]")];
        command.envs(step.map(|(name, value)| (format!("SLURM_STEP_{name}"), value)));
        command.env("SLURM_NODEID", node).env("SLURM_TASKS_PER_NODE", "4(x2)");
        ran(&mut command).succeeds();
        let part = format!("part={}/2", node.parse::<u32>().expect("a number") + 1);
        sandbox.cairn(&["status", &job]).succeeds().says(&part);
    }
}
