//! The storage balancer: decides which process writes to which remote device (NVMe-CR, section
//! III-F).
//!
//! Machines that depend on the same components form a domain. Two domains are partners if they
//! depend on nothing in common. A process writes to a device in a partner domain, so that no single
//! failure takes both. Among partners, the domain with the fewest links between switches is chosen,
//! and all devices get the same number of processes.
//!
//! Invariant: safety takes precedence over equal load, and equal load over short paths. A process
//! without any partner still gets a device, and the plan reports it. The same request gives the
//! same plan. The balancer is pure: it reads no file and asks no other process.

use std::ops::RangeInclusive;

pub use cairn_nvme::partition::{PARTITION_ALIGNMENT_BYTES, Partition, partition};
use domains::Domains;
pub use topology::{
    Component, Description, GroupDescription, Kind, SwitchDescription, Topology, TopologyError,
};

pub mod description;
mod domains;
mod flow;
pub mod hostlist;
mod measure;
mod topology;

/// Number of processes per device at which it is fast enough and not idle (NVMe-CR, section III-F).
pub const RANKS_PER_TARGET: RangeInclusive<u32> = 56..=112;
/// A device that processes can write to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its address.
    pub address: String,
    /// Machine that it is in.
    pub node: String,
    /// Its capacity in bytes; 0 if unknown.
    pub capacity_bytes: u64,
}

/// Input of a plan.
#[derive(Debug)]
pub struct Request<'a> {
    /// Machines that processes run on.
    pub nodes: &'a [String],
    /// For each rank, the index of its machine in `nodes`.
    pub rank_nodes: &'a [u32],
    /// Available devices.
    pub targets: &'a [Target],
    /// Processes per device, if the number of devices is not given.
    pub ranks_per_target: RangeInclusive<u32>,
    /// Number of devices. More are used only if safety or capacity demands it.
    pub target_count: Option<u32>,
    /// Space that each process needs.
    pub bytes_per_rank: u64,
}

/// Why there is no plan.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There are no processes.
    #[error("there are no ranks")]
    EmptyJob,
    /// There are no devices.
    #[error("there are no targets")]
    NoTargets,
    /// The devices are too small.
    #[error(
        "{ranks} ranks of {bytes_per_rank} bytes do not fit: {unplaced} of them find no room on {targets} targets"
    )]
    TargetsTooSmall {
        /// Total number of processes.
        ranks: usize,
        /// Processes without space.
        unplaced: u64,
        /// Number of devices.
        targets: usize,
        /// Space that each process needs.
        bytes_per_rank: u64,
    },
}

/// A device and its processes.
#[derive(Debug, PartialEq, Eq)]
pub struct PlannedTarget {
    /// Index among the devices of the request.
    pub offered: usize,
    /// Its processes, in ascending order: the n-th one has the n-th part of the device.
    pub ranks: Vec<u32>,
    /// Maximum number of links between switches on the path to one of its processes; `None` if a
    /// path is unknown.
    pub hops: Option<u32>,
}

/// Machines that depend on the same components, or devices in such machines.
#[derive(Debug, PartialEq, Eq)]
pub struct Domain {
    /// One of its machines.
    pub node: String,
    /// Switch that they are connected to, if known.
    pub switch: Option<String>,
    /// Number of processes, or of devices in use.
    pub members: usize,
}

/// Processes of one domain that write to devices of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the processes' domain.
    pub from: usize,
    /// Index of the devices' domain.
    pub to: usize,
    /// Number of processes.
    pub ranks: u64,
    /// Whether the domains are not partners: they depend on a common component.
    pub is_exposed: bool,
}

/// A single failure that takes processes together with their data.
#[derive(Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The component that fails.
    pub component: Component,
    /// Number of processes.
    pub ranks: u64,
}

/// Assignment of processes to devices.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Devices in use, in the order of the request.
    pub targets: Vec<PlannedTarget>,
    /// For each rank, the index of its device in `targets`.
    pub target_of: Vec<u32>,
    /// Domains of processes.
    pub rank_domains: Vec<Domain>,
    /// Domains of devices in use.
    pub target_domains: Vec<Domain>,
    /// Routes from domains of processes to domains of devices.
    pub routes: Vec<Route>,
    /// Components that must not fail; empty if no single failure takes a process and its data.
    pub exposures: Vec<Exposure>,
}

/// Returns the number of devices for `ranks` processes: as many as give each device the fewest
/// ranks of the range, preferably a number that divides the ranks evenly. At most `available`.
pub fn target_count(ranks: u32, range: &RangeInclusive<u32>, available: u32) -> u32 {
    let least = ranks.div_ceil((*range.end()).max(1)).clamp(1, available);
    let most = (ranks / (*range.start()).max(1)).clamp(least, available);
    (least..=most).rev().find(|count| ranks % count == 0).unwrap_or(most)
}

/// Plans which rank writes to which device.
pub fn plan(topology: &mut Topology, request: &Request) -> Result<Plan, PlanError> {
    if request.rank_nodes.is_empty() {
        return Err(PlanError::EmptyJob);
    }
    if request.targets.is_empty() {
        return Err(PlanError::NoTargets);
    }
    let domains = Domains::new(topology, request);
    let available = request.targets.len() as u32;
    let ranks = request.rank_nodes.len() as u32;
    let mut wanted = match request.target_count {
        Some(count) => count.clamp(1, available),
        None => target_count(ranks, &request.ranks_per_target, available),
    };
    loop {
        let chosen = domains.choose(wanted);
        let count: u32 = chosen.iter().sum();
        let (even, rounded_up) = (ranks / count, ranks.div_ceil(count));
        match domains.distribute(&chosen, even.into(), rounded_up.into()) {
            Ok(flow) => return Ok(domains.assign(topology, request, &chosen, &flow)),
            Err(unplaced) if count == available => {
                let bytes_per_rank = request.bytes_per_rank;
                let (ranks, targets) = (ranks as usize, available as usize);
                return Err(PlanError::TargetsTooSmall {
                    ranks,
                    unplaced,
                    targets,
                    bytes_per_rank,
                });
            }
            Err(_) => wanted = (2 * count).min(available),
        }
    }
}

#[cfg(test)]
mod tests;
