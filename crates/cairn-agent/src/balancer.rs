//! The storage balancer: which process writes to which remote device (NVMe-CR, section III-F).
//!
//! Machines that depend on the same things form a domain, and two domains are partners if they
//! depend on nothing in common. A process writes to a device in a partner domain, so that no single
//! failure takes both; among these to the nearest by links between switches; and all devices get
//! the same number of processes.
//! Must stay true: safety comes before equal load, equal load before short ways. A process without
//! any partner gets a device all the same, and the plan says so. The same request gives the same
//! plan. Pure: it reads no file and asks nobody.

use std::ops::RangeInclusive;

pub use cairn_device::nvme::partition::{PARTITION_ALIGNMENT_BYTES, Partition, partition};
use domains::Domains;
pub use topology::{
    Component, Description, GroupDescription, Kind, SwitchDescription, Topology, TopologyError,
};

mod domains;
mod flow;
pub mod hostlist;
mod measure;
mod topology;

/// Processes for which one device is fast enough and not idle (NVMe-CR, section III-F).
pub const RANKS_PER_TARGET: RangeInclusive<u32> = 56..=112;
/// A device that can be written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How it is reached.
    pub address: String,
    /// The machine that it is in.
    pub node: String,
    /// What it holds; 0 if that is not known.
    pub capacity_bytes: u64,
}

/// What is to be planned.
#[derive(Debug)]
pub struct Request<'a> {
    /// The machines that processes run on.
    pub nodes: &'a [String],
    /// For each rank, the place of its machine among these.
    pub rank_nodes: &'a [u32],
    /// The devices that there are.
    pub targets: &'a [Target],
    /// Processes per device, if their number is not given.
    pub ranks_per_target: RangeInclusive<u32>,
    /// Number of devices. More are used only where safety or room demand it.
    pub target_count: Option<u32>,
    /// What each process needs.
    pub bytes_per_rank: u64,
}

/// Why there is no plan.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nobody is to write.
    #[error("there are no ranks")]
    NoRanks,
    /// Nothing to write to.
    #[error("there are no targets")]
    NoTargets,
    /// The devices are too small.
    #[error(
        "{ranks} ranks of {bytes_per_rank} bytes do not fit: {unplaced} of them find no room on {targets} targets"
    )]
    NoRoom {
        /// Processes in all.
        ranks: usize,
        /// Those without room.
        unplaced: u64,
        /// Devices.
        targets: usize,
        /// What each process needs.
        bytes_per_rank: u64,
    },
}

/// A device and who writes to it.
#[derive(Debug, PartialEq, Eq)]
pub struct PlannedTarget {
    /// Place among the devices of the request.
    pub offered: usize,
    /// Its processes, in ascending order: the n-th has the n-th part of the device.
    pub ranks: Vec<u32>,
    /// Most links between switches on the way to one of them; None: a way is not known.
    pub hops: Option<u32>,
}

/// Machines that depend on the same things, or devices in such machines.
#[derive(Debug, PartialEq, Eq)]
pub struct Domain {
    /// One of its machines.
    pub node: String,
    /// The switch they are connected to, if it is known.
    pub switch: Option<String>,
    /// Processes, or devices in use.
    pub members: usize,
}

/// Processes of one domain that write to devices of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Place of the processes' domain.
    pub from: usize,
    /// Place of the devices' domain.
    pub to: usize,
    /// How many processes.
    pub ranks: u64,
    /// Both depend on something: not partners.
    pub is_exposed: bool,
}

/// A single failure that takes processes and their data.
#[derive(Debug, PartialEq, Eq)]
pub struct Exposure {
    /// What fails.
    pub component: Component,
    /// The processes.
    pub ranks: u64,
}

/// Which process writes where.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// The devices in use, in the order of the request.
    pub targets: Vec<PlannedTarget>,
    /// For each rank, the place of its device among these.
    pub target_of: Vec<u32>,
    /// Domains of processes.
    pub rank_domains: Vec<Domain>,
    /// Domains of devices in use.
    pub target_domains: Vec<Domain>,
    /// From where to where data go.
    pub routes: Vec<Route>,
    /// What must not fail. Empty: no single failure takes a process and its data.
    pub exposures: Vec<Exposure>,
}

/// How many devices to use for so many ranks: as many as each get the fewest ranks of the range,
/// and rather one that divides the ranks evenly. Never more than there are.
pub fn target_count(ranks: u32, range: &RangeInclusive<u32>, available: u32) -> u32 {
    let least = ranks.div_ceil((*range.end()).max(1)).clamp(1, available);
    let most = (ranks / (*range.start()).max(1)).clamp(least, available);
    (least..=most).rev().find(|count| ranks % count == 0).unwrap_or(most)
}

/// Plans which rank writes to which device.
pub fn plan(topology: &mut Topology, request: &Request) -> Result<Plan, PlanError> {
    if request.rank_nodes.is_empty() {
        return Err(PlanError::NoRanks);
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
                return Err(PlanError::NoRoom { ranks, unplaced, targets, bytes_per_rank });
            }
            Err(_) => wanted = (2 * count).min(available),
        }
    }
}
