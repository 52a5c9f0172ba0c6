//! Where this node's store has its part of remote devices: what `cairn plan` would say, with one
//! store per node.
//!
//! Must stay true: it follows from the launcher's variables and the file alone, so every node of a
//! job computes the same, and nobody has to ask anybody.

use crate::commands::plan::description::Cluster;
use crate::error::{Error, Result};
use cairn_agent::balancer::{self, RANKS_PER_TARGET, Request, hostlist};
use cairn_device::nvme::partition::Part;
use std::fs;
use std::path::Path;

/// The nodes of a job, as its launcher describes them to the command that it starts once on each.
struct Nodes {
    names: Vec<String>,
    /// The place of this one.
    own: usize,
    /// Processes on all of them.
    ranks: u32,
}

/// The part of a namespace that this node has if all nodes of the job share it; None if it is
/// alone.
pub fn shared_part() -> Option<Part> {
    let count = number("SLURM_STEP_NUM_NODES").filter(|&count| count > 1)?;
    Part::new(number("SLURM_NODEID")?, count)
}

/// The tier, as on the command line, that the plan for the devices in the file at `path` gives this
/// node.
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
    let plan = balancer::plan(&mut cluster.topology, &request).map_err(|error| Error::Plan {
        problem: format!("{}: {error}", path.display()),
        advice: "name targets in the file: see cairn plan --help",
    })?;
    let planned = &plan.targets[plan.target_of[nodes.own] as usize];
    let own = planned.ranks.iter().position(|&node| node as usize == nodes.own);
    let own = own.expect("a device has its processes") as u32;
    let part = Part::new(own, planned.ranks.len() as u32).expect("its place is one of theirs");
    let address = &cluster.targets[planned.offered].address;
    Ok(with_part(address, part))
}

/// A part of the namespace that the text of a tier names.
pub fn with_part(text: &str, part: Part) -> String {
    let separator = if text.contains('?') { '&' } else { '?' };
    format!("{text}{separator}part={part}")
}

impl Nodes {
    fn of_launcher() -> Result<Nodes> {
        let Some(list) = variable("SLURM_STEP_NODELIST") else { return Nodes::alone() };
        let wrong = |problem: String| Error::Plan {
            problem,
            advice: "start one cairn run per node by srun, or name the target itself",
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
