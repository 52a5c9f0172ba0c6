//! `cairn plan`: the mapping of processes to devices, from the files and the environment of a
//! cluster.

mod common;

use common::{Ran, Sandbox};
use serde_json::Value;
use std::fs;

/// Cluster of the example in the help text, with the devices in racks of their own.
const CLUSTER: &str = "\
[[target]]
nodes    = \"s[1-8]\"
address  = \"nvme-tcp://{node}:4420/nqn.2026-11.org.example:{node}\"
capacity = \"1T\"
[[switch]]
name  = \"leaf1\"
nodes = \"n[1-16]\"
[[switch]]
name  = \"leaf2\"
nodes = \"s[1-8]\"
[[switch]]
name     = \"spine\"
switches = \"leaf[1-2]\"
[[rack]]
name  = \"r1\"
nodes = \"n[1-16]\"
";
const TARGETS: &str = "[[target]]\nnodes = \"s[1-8]\"\naddress = \"nvme-tcp://{node}:4420/nqn\"\n";

/// Sandbox with a file `cluster.toml` in its working directory.
fn sandbox(cluster: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.work().join("cluster.toml"), cluster).expect("writes");
    sandbox
}

fn plan(sandbox: &Sandbox, options: &[&str]) -> Ran {
    sandbox.cairn(&[&["plan", "cluster.toml", "--nodes", "n[1-16]"], options].concat())
}

#[test]
fn plan_says_who_writes_where() {
    let sandbox = sandbox(CLUSTER);
    let ran = plan(&sandbox, &["--ranks", "448", "--json"]).succeeds();
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(report["coefficient_of_variation"], 0.0);
    assert_eq!(report["exposures"], Value::Array(Vec::new()));
    let targets = report["targets"].as_array().expect("targets");
    assert_eq!(targets.len(), 8);
    for target in targets {
        let node = target["node"].as_str().expect("a name");
        let address = format!("nvme-tcp://{node}:4420/nqn.2026-11.org.example:{node}");
        assert_eq!(target["address"].as_str(), Some(address.as_str()));
        assert_eq!(target["ranks"].as_array().map(Vec::len), Some(56));
        assert_eq!(
            (&target["hops"], &target["partition_bytes"]),
            (&2.into(), &19_633_537_024_u64.into())
        );
    }
    plan(&sandbox, &["--ranks", "448"])
        .succeeds()
        .says("448 ranks on 8 of 8 targets: the busiest has 1.000 times the average load")
        .says("No single failure takes a process and its data.");
}

#[test]
fn machine_that_the_topology_does_not_know_is_said_to_be_unknown() {
    let only_switches =
        CLUSTER.replace("\"s[1-8]\"\n[[switch]]\nname     =", "\"s[1-7]\"\n[[switch]]\nname     =");
    assert_ne!(only_switches, CLUSTER);
    let known_but_one = sandbox(&only_switches);
    let ran = plan(&known_but_one, &["--ranks", "448"]).succeeds();
    let ran = ran.says("The topology does not list 1 machine (s8)");
    assert!(!ran.stdout.contains("No single failure"), "{}", ran.stdout);
    let report = plan(&known_but_one, &["--ranks", "448", "--json"]).succeeds().json();
    assert_eq!(report["unknown"], serde_json::json!(["s8"]));
    let ran = plan(&sandbox(TARGETS), &["--ranks", "448"]).succeeds();
    ran.says("does not list 24 machines (n1, n10, n11, ...)");
}

#[test]
fn topology_may_be_slurm_s() {
    let sandbox = sandbox(TARGETS);
    let slurm =
        "SwitchName=a Nodes=n[1-16],s1\nSwitchName=b Nodes=s[2-8]\nSwitchName=top Switches=a,b\n";
    let addresses: String = (1..=16).map(|node| format!("top.a.n{node}\n")).collect();
    let addresses = addresses + "top.a.s1\ntop.b.s2\n";
    for topology in [slurm, &addresses] {
        fs::write(sandbox.work().join("topology"), topology).expect("writes");
        let ran = plan(&sandbox, &["--topology", "topology", "--ranks", "56", "--json"]).succeeds();
        let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(report["targets"][0]["node"], "s2", "s1 shares the leaf: {}", ran.stdout);
        assert_eq!(report["targets"][0]["hops"], 2);
    }
}

/// Mechanism: any text without `=` was read as lines of addresses, and a switch existed as soon as
/// it was named.
///
/// Consequence: a wrong file passed for a topology in which nothing is shared, and a mistyped name
/// passed for a switch without machines.
///
/// Fix: addresses consist of names and contain switches, and every named switch must be defined.
#[test]
fn what_is_no_topology_is_refused_with_its_line_and_what_is_expected() {
    let sandbox = sandbox(TARGETS);
    for (topology, part) in [
        ("top.a.n1\nhello world\n", "topology: line 2: \"hello world\" is not an address"),
        ("n1\n", "line 1: \"n1\" is not an address of a node; expected SWITCH.NODE"),
        ("top..n1\n", "line 1: \"top..n1\" is not an address"),
        ("\n", "names no switch"),
        ("# SwitchName=a Nodes=n1\n", "names no switch"),
        (
            "SwitchName=a Nodes=n1\n\nSwitchName=top Switches=a,b\n",
            "line 3: switch b is named but not defined; expected SwitchName=b with its",
        ),
        ("SwitchName=a Nodes=n1\nSwitchName=b\n", "line 2: \"SwitchName=b\" names no"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", "line 2: n1 is below a and below b"),
        ("SwitchName=a Nodes=n[\n", "line 1: switch a: "),
    ] {
        fs::write(sandbox.work().join("topology"), topology).expect("writes");
        plan(&sandbox, &["--topology", "topology", "--ranks", "9"]).refused_with(part);
    }
    let undefined = CLUSTER.replace("leaf[1-2]", "leaf[1-3]");
    let part = "cluster.toml: switch leaf3 is named but not defined";
    plan(&self::sandbox(&undefined), &["--ranks", "9"]).refused_with(part);
}

#[test]
fn nodes_and_tasks_are_those_of_the_job_of_slurm() {
    let sandbox = sandbox(CLUSTER);
    let mut command = sandbox.command(&["plan", "cluster.toml", "--json"]);
    command.env("SLURM_JOB_NODELIST", "n[1-3]").env("SLURM_TASKS_PER_NODE", "4(x2),3");
    let ran = Ran::of(command.output().expect("runs"), "plan".to_string()).succeeds();
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(report["ranks"], 11);
}

#[test]
fn failure_that_cannot_be_avoided_is_said() {
    let sandbox = sandbox(
        &CLUSTER
            .replace("nodes = \"n[1-16]\"", "nodes = \"n[1-16],s[1-8]\"")
            .replace("[[switch]]\nname  = \"leaf2\"\nnodes = \"s[1-8]\"\n", "")
            .replace("leaf[1-2]", "leaf1"),
    );
    plan(&sandbox, &["--ranks", "32"])
        .succeeds()
        .says("If the switch leaf1 fails, 32 ranks and their data")
        .says("If the rack r1 fails, 32 ranks and their data");
}

#[test]
fn picture_shows_every_domain() {
    let sandbox = sandbox(CLUSTER);
    plan(&sandbox, &["--ranks", "448", "--svg", "plan.svg"]).succeeds();
    let picture = fs::read_to_string(sandbox.work().join("plan.svg")).expect("a picture");
    for part in ["switch leaf1: 448 ranks", "switch leaf2: 8 targets", "<title>448 ranks</title>"] {
        assert!(picture.contains(part), "{part} is missing in {picture}");
    }
}

#[test]
fn what_cannot_be_planned_is_refused_with_the_reason() {
    for (cluster, options, part) in [
        (CLUSTER, &["--ranks", "0"][..], "there are no ranks; give one at least"),
        (CLUSTER, &["--tasks-per-node", "0(x16)"], "there are no ranks; give one at least"),
        (CLUSTER, &["--ranks", "9", "--targets", "0"], "--targets 0: there are 8 targets"),
        (CLUSTER, &["--ranks", "9", "--targets", "9"], "--targets 9: there are 8 targets"),
        (CLUSTER, &[], "add --ranks"),
        (CLUSTER, &["--tasks-per-node", "4"], "16 nodes, but tasks of 1"),
        (
            CLUSTER,
            &["--ranks", "9", "--bytes-per-rank", "1T"],
            "1 of them find no room on 8 targets",
        ),
        (CLUSTER, &["--ranks", "9", "--bytes-per-rank", "many"], "is not a size"),
        (CLUSTER, &["--ranks", "9", "--ranks-per-target", "0"], "--ranks-per-target"),
        (CLUSTER, &["--ranks", "9", "--topology", "missing"], "missing: cannot be read"),
        ("[[target]]\nnodes = \"s[1-2]\"\naddress = \"a\"\n", &["--ranks", "9"], "need {node}"),
        ("[[target]]\nnodes = \"s[1-\"\naddress = \"a\"\n", &["--ranks", "9"], "bracket"),
        ("[[target]]\nnode = \"s1\"\n", &["--ranks", "9"], "line 2: unknown field `node`"),
        ("[[shelf]]\n", &["--ranks", "9"], "unknown field `shelf`"),
        ("", &["--ranks", "9"], "there are no targets"),
    ] {
        plan(&sandbox(cluster), options).refused_with(part);
    }
}
