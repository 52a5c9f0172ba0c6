//! This node's part of remote devices: the same answer as `cairn plan` with one store per node.
//!
//! Invariant: the result depends only on the launcher's variables and the file, so every node of a
//! job computes the same plan without communication.

use cairn_nvme::partition::Part;
use std::fs;
use std::path::Path;

use crate::balancer::description::Cluster;
use crate::balancer::{self, RANKS_PER_TARGET, Request, hostlist};
use crate::error::{Error, ReportError, Result};

/// Nodes of a job, as the launcher describes them to the command that it starts once per node.
struct Nodes {
    names: Vec<String>,
    /// Index of this node.
    own: usize,
    /// Number of processes on all nodes.
    ranks: u32,
}

/// Returns this node's part of a namespace that all nodes of the job share; None if the job has one
/// node.
pub fn shared_part() -> Option<Part> {
    let count = number("SLURM_STEP_NUM_NODES").filter(|&count| count > 1)?;
    Part::new(number("SLURM_NODEID")?, count)
}

/// Returns the tier that the plan for the devices in the file at `path` assigns to this node, in
/// the syntax of the command line.
pub fn planned_tier(path: &Path) -> Result<String> {
    let mut cluster = Cluster::read(path, None)?;
    let nodes = Nodes::of_launcher()?;
    let available = u32::try_from(cluster.targets.len()).unwrap_or(u32::MAX);
    let rank_nodes: Vec<u32> = (0..).take(nodes.names.len()).collect();
    let request = Request {
        nodes: &nodes.names,
        rank_nodes: &rank_nodes,
        targets: &cluster.targets,
        ranks_per_target: RANKS_PER_TARGET,
        target_count: Some(balancer::target_count(
            nodes.ranks,
            &RANKS_PER_TARGET,
            available.max(1),
        )),
        bytes_per_rank: 0,
    };
    let plan = balancer::plan(&mut cluster.topology, &request).map_err(|error| {
        Error::Report(ReportError::Plan {
            problem: format!("{}: {error}", path.display()),
            advice: "name targets in the file: see cairn plan --help",
        })
    })?;
    let planned = &plan.targets[plan.target_of[nodes.own] as usize];
    let own = planned.ranks.iter().position(|&node| node as usize == nodes.own);
    let own = own.expect("a device has its processes") as u32;
    let part = Part::new(own, planned.ranks.len() as u32).expect("its place is one of theirs");
    let address = &cluster.targets[planned.offered].address;
    Ok(with_part(address, part))
}

/// Adds a part to the text of a tier.
pub fn with_part(text: &str, part: Part) -> String {
    let separator = if text.contains('?') { '&' } else { '?' };
    format!("{text}{separator}part={part}")
}

impl Nodes {
    fn of_launcher() -> Result<Nodes> {
        let Some(list) = variable("SLURM_STEP_NODELIST") else { return Nodes::alone() };
        let wrong = |problem: String| {
            Error::Report(ReportError::Plan {
                problem,
                advice: "start one cairn run per node by srun, or name the target itself",
            })
        };
        let names = hostlist::expand(&list)
            .map_err(|error| wrong(format!("SLURM_STEP_NODELIST: {error}")))?;
        let own = number("SLURM_NODEID").map(|own| own as usize);
        let own = own
            .filter(|&own| own < names.len())
            .ok_or_else(|| wrong("SLURM_NODEID does not say which node this is".to_string()))?;
        let ranks = variable("SLURM_TASKS_PER_NODE")
            .and_then(|list| hostlist::repeated(&list).ok())
            .map_or(names.len() as u32, |tasks| tasks.iter().sum());
        Ok(Nodes { names, own, ranks })
    }

    fn alone() -> Result<Nodes> {
        let path = Path::new("/proc/sys/kernel/hostname");
        let name = fs::read_to_string(path).map_err(Error::file("read", path))?;
        Ok(Nodes { names: vec![name.trim().to_string()], own: 0, ranks: 1 })
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u32> {
    variable(name)?.parse().ok()
}
