//! `cairn plan`: shows which process of a job would write to which remote device.
//!
//! Must stay true: the same request gives the same plan. The report never omits what a single
//! failure would take.
//!
//! Does not decide anything; `crate::balancer` does.

mod picture;

use crate::Context;
use crate::balancer::description::Cluster;
use crate::balancer::hostlist::{self, ListError};
use crate::balancer::{
    self, Kind, Partition, Plan, PlannedTarget, RANKS_PER_TARGET, Request, Target,
};
use crate::error::{Error, ReportError, Result, SettingError};
use crate::output::{self, count};
use crate::size::{self, human};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Maximum number of machines that a message names.
const NAMES_MAX: usize = 3;

const EXAMPLES: &str = "\
Examples:
  cairn plan cluster.toml --nodes 'n[1-16]' --ranks 448     which process writes where
  cairn plan cluster.toml                                   for this Slurm job's nodes and tasks
  cairn plan targets.toml --topology /etc/slurm/topology.conf --nodes 'n[1-16]' --ranks 448
  cairn plan cluster.toml --nodes 'n[1-16]' --ranks 448 --svg plan.svg

cluster.toml lists the devices, and says how machines are connected:
  [[target]]
  nodes    = \"s[1-8]\"                  # one device in each of these nodes
  address  = \"nvme-tcp://{node}:4420/nqn.2026-11.org.example:{node}\"
  capacity = \"3T\"
  [[switch]]
  name  = \"leaf1\"
  nodes = \"n[1-16]\"
  [[switch]]
  name     = \"spine\"
  switches = \"leaf[1-2]\"
  [[rack]]                             # nodes that fail together; [[power]] likewise
  name  = \"r1\"
  nodes = \"n[1-16]\"

The topology can also come from Slurm's topology.conf, or from the SLURM_TOPOLOGY_ADDR of processes
(one line per node, as from: srun --ntasks-per-node=1 printenv ...).

A process writes to a device with which it shares no node, leaf switch, rack or power supply. Every
device gets the same number of processes. Within these limits, processes get the nearest devices.";

/// Show which process of a job would write to which remote device.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The devices, and optionally the topology, in TOML
    #[arg(value_name = "FILE")]
    cluster: PathBuf,
    /// The topology: Slurm's topology.conf, or lines of SLURM_TOPOLOGY_ADDR
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Nodes that processes run on, as in n[1-16]
    #[arg(long, value_name = "LIST", env = "SLURM_JOB_NODELIST")]
    nodes: String,
    /// Number of processes, spread evenly over the nodes in their order
    #[arg(long, value_name = "COUNT")]
    ranks: Option<u32>,
    /// Number of processes on each node, as in 4(x2),3
    #[arg(long, value_name = "LIST", env = "SLURM_TASKS_PER_NODE", conflicts_with = "ranks")]
    tasks_per_node: Option<String>,
    /// Number of devices to use [default: as many as get --ranks-per-target]
    #[arg(long, value_name = "COUNT")]
    targets: Option<u32>,
    /// Number of processes that a device can serve, as in 56-112
    #[arg(long, value_name = "RANGE", value_parser = range, default_value_t = Ratio(RANKS_PER_TARGET))]
    ranks_per_target: Ratio,
    /// Data that each process writes, as in 4G: devices must have space for it
    #[arg(long, value_name = "SIZE")]
    bytes_per_rank: Option<String>,
    /// Draw the plan into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A range in the syntax of the command line.
#[derive(Clone, Debug)]
struct Ratio(RangeInclusive<u32>);

impl std::fmt::Display for Ratio {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}-{}", self.0.start(), self.0.end())
    }
}

fn range(text: &str) -> Result<Ratio, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ratio(first..=last)),
        _ => Err("expected a number or a range like 56-112".to_string()),
    }
}

/// A plan.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// Number of processes.
    ranks: u64,
    /// Number of available devices.
    targets_available: u64,
    /// Devices in use.
    targets: Vec<TargetReport>,
    /// Load of the busiest device divided by the average load.
    worst_load_ratio: f64,
    /// Standard deviation of the devices' load divided by its mean.
    coefficient_of_variation: f64,
    /// Single failures that take processes together with their data; empty if there are none.
    exposures: Vec<ExposureReport>,
    /// Machines with processes or devices in use that the topology does not name: what they share
    /// with others is unknown.
    unknown: Vec<String>,
}

/// A device in use.
#[derive(Debug, Serialize)]
struct TargetReport {
    address: String,
    node: String,
    /// Its processes: the n-th one has the n-th partition.
    ranks: Vec<u32>,
    /// Size of each process's partition in bytes; null if the capacity is unknown.
    partition_bytes: Option<u64>,
    /// Maximum number of links between switches to one of its processes; null if a path is unknown.
    hops: Option<u32>,
}

/// A failure.
#[derive(Debug, Serialize)]
struct ExposureReport {
    kind: Kind,
    name: String,
    /// Number of processes that would be lost together with their data.
    ranks: u64,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let mut cluster = Cluster::read(&arguments.cluster, arguments.topology.as_deref())?;
    let nodes =
        hostlist::expand(&arguments.nodes).map_err(|error| wrong_list("--nodes", &error))?;
    let rank_nodes = rank_nodes(arguments, nodes.len())?;
    let available = cluster.targets.len();
    if let Some(wanted) = arguments.targets.filter(|&n| !(1..=available).contains(&(n as usize))) {
        return Err(Error::Report(ReportError::Plan {
            problem: format!("--targets {wanted}: there are {}", count(available as u64, "target")),
            advice: "give a number from one to that, or leave it out",
        }));
    }
    let request = Request {
        nodes: &nodes,
        rank_nodes: &rank_nodes,
        targets: &cluster.targets,
        ranks_per_target: arguments.ranks_per_target.0.clone(),
        target_count: arguments.targets,
        bytes_per_rank: match &arguments.bytes_per_rank {
            Some(text) => size::parse(text)
                .ok_or_else(|| Error::Setting(SettingError::Size { text: text.clone() }))?,
            None => 0,
        },
    };
    let plan = balancer::plan(&mut cluster.topology, &request).map_err(|error| {
        Error::Report(ReportError::Plan {
            problem: error.to_string(),
            advice: "name more or larger targets, or fewer ranks",
        })
    })?;
    if let Some(path) = &arguments.svg {
        let picture = picture::draw(&plan);
        fs::write(path, picture).map_err(Error::file("write", path))?;
    }
    let report =
        PlanReport { unknown: unknown(&cluster, &nodes, &plan), ..report(&plan, &cluster.targets) };
    if context.json {
        return output::json(&report);
    }
    print(&report);
    Ok(())
}

fn wrong_list(option: &str, error: &ListError) -> Error {
    Error::Report(ReportError::Plan {
        problem: format!("{option}: {error}"),
        advice: "write a list like n[1-16],login or 4(x2),3",
    })
}

/// Returns the index of each rank's node, in rank order; consecutive ranks share a node.
fn rank_nodes(arguments: &Arguments, nodes: usize) -> Result<Vec<u32>> {
    let per_node = match (arguments.ranks, &arguments.tasks_per_node) {
        (Some(ranks), _) => {
            let (each, more) = (ranks / nodes as u32, ranks as usize % nodes);
            (0..nodes).map(|node| each + u32::from(node < more)).collect()
        }
        (None, Some(list)) => {
            hostlist::repeated(list).map_err(|error| wrong_list("--tasks-per-node", &error))?
        }
        (None, None) => {
            return Err(Error::Report(ReportError::Plan {
                problem: "the number of processes is not known".to_string(),
                advice: "add --ranks COUNT",
            }));
        }
    };
    if per_node.len() != nodes {
        return Err(Error::Report(ReportError::Plan {
            problem: format!("there are {nodes} nodes, but tasks of {}", per_node.len()),
            advice: "give as many numbers in --tasks-per-node as there are nodes, or --ranks COUNT",
        }));
    }
    let ranks: u64 = per_node.iter().copied().map(u64::from).sum();
    if ranks == 0 {
        return Err(Error::Report(ReportError::Plan {
            problem: "there are no ranks".to_string(),
            advice: "give one at least, with --ranks or --tasks-per-node",
        }));
    }
    if ranks > u64::from(u32::MAX) {
        return Err(Error::Report(ReportError::Plan {
            problem: format!("{ranks} ranks are more than can be planned"),
            advice: "check --tasks-per-node",
        }));
    }
    let of_node = |(node, &ranks): (usize, &u32)| std::iter::repeat_n(node as u32, ranks as usize);
    Ok(per_node.iter().enumerate().flat_map(of_node).collect())
}

/// Returns the machines of a plan that the topology does not name.
fn unknown(cluster: &Cluster, nodes: &[String], plan: &Plan) -> Vec<String> {
    let of_targets = plan.targets.iter().map(|planned| &cluster.targets[planned.offered].node);
    let machines: BTreeSet<&String> = nodes.iter().chain(of_targets).collect();
    machines.into_iter().filter(|node| !cluster.topology.knows(node)).cloned().collect()
}

fn report(plan: &Plan, offered: &[Target]) -> PlanReport {
    let target = |planned: &PlannedTarget| {
        let Target { address, node, capacity_bytes } = &offered[planned.offered];
        let count = planned.ranks.len() as u64;
        let Partition { length, .. } = balancer::partition(*capacity_bytes, 0, count);
        TargetReport {
            address: address.clone(),
            node: node.clone(),
            ranks: planned.ranks.clone(),
            partition_bytes: (*capacity_bytes > 0).then_some(length),
            hops: planned.hops,
        }
    };
    let exposure = |exposure: &balancer::Exposure| ExposureReport {
        kind: exposure.component.kind,
        name: exposure.component.name.clone(),
        ranks: exposure.ranks,
    };
    PlanReport {
        ranks: plan.target_of.len() as u64,
        targets_available: offered.len() as u64,
        targets: plan.targets.iter().map(target).collect(),
        worst_load_ratio: plan.worst_load_ratio(),
        coefficient_of_variation: plan.coefficient_of_variation(),
        exposures: plan.exposures.iter().map(exposure).collect(),
        unknown: Vec::new(),
    }
}

fn print(report: &PlanReport) {
    let width = |of: fn(&TargetReport) -> &str, head: &str| {
        report.targets.iter().map(|target| of(target).len()).max().unwrap_or(0).max(head.len())
    };
    let node_width = width(|target| &target.node, "NODE");
    let address_width = width(|target| &target.address, "TARGET");
    output::line(&format!(
        "{:<node_width$}  {:<address_width$}  RANKS  FIRST   LAST   PARTITION  HOPS",
        "NODE", "TARGET"
    ));
    for target in &report.targets {
        let partition = target.partition_bytes.map_or("-".to_string(), human);
        let hops = target.hops.map_or("-".to_string(), |hops| hops.to_string());
        let (first, last) = (target.ranks.first(), target.ranks.last());
        output::line(&format!(
            "{:<node_width$}  {:<address_width$}  {:>5}  {:>5}  {:>5}  {partition:>10}  {hops:>4}",
            target.node,
            target.address,
            target.ranks.len(),
            first.copied().unwrap_or_default(),
            last.copied().unwrap_or_default(),
        ));
    }
    output::line(&format!(
        "{} on {} of {}: the busiest has {:.3} times the average load, coefficient of variation {:.3}",
        count(report.ranks, "rank"),
        report.targets.len(),
        count(report.targets_available, "target"),
        report.worst_load_ratio,
        report.coefficient_of_variation,
    ));
    if !report.unknown.is_empty() {
        let named: Vec<&str> = report.unknown.iter().take(NAMES_MAX).map(String::as_str).collect();
        let more = if report.unknown.len() > NAMES_MAX { ", ..." } else { "" };
        output::line(&format!(
            "The topology does not list {} ({}{more}): their common points of failure are not known.",
            count(report.unknown.len() as u64, "machine"),
            named.join(", "),
        ));
    } else if report.exposures.is_empty() {
        output::line("No single failure takes a process and its data.");
    }
    for exposure in &report.exposures {
        output::line(&format!(
            "If the {} {} fails, {} and their data are lost: every target depends on it",
            exposure.kind.word(),
            exposure.name,
            count(exposure.ranks, "rank"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_processes_are_read() {
        assert_eq!(range("56-112").unwrap().0, 56..=112);
        assert_eq!(range("28").unwrap().0, 28..=28);
        for text in ["", "0-5", "9-3", "a", "1-"] {
            assert!(range(text).is_err(), "{text}");
        }
    }
}
