//! Domains of processes and of devices, the paths allowed between them, and the number of processes
//! on each path.
//!
//! Machines that are equal for the plan form one class, so that a million ranks become a few
//! hundred classes.
//!
//! Invariant: a class that has partners has paths to partners only.

use std::collections::{BTreeMap, HashMap};

use super::flow::{Edge, Flow};
use super::topology::{ComponentIndex, Machine, SwitchIndex, Topology};
use super::{
    Domain, Exposure, PARTITION_ALIGNMENT_BYTES, Plan, PlannedTarget, Request, Route, Target,
};

/// Distance to a switch without a known path; larger than that of any path.
const HOPS_UNKNOWN: u32 = 1 << 16;

/// Machines or devices that are equal for the plan.
#[derive(Debug)]
struct Class {
    /// Leaf switch, and the components that both processes and devices depend on.
    machine: Machine,
    /// One of the machines.
    node: String,
    /// Ranks, or indexes of devices, in ascending order.
    members: Vec<u32>,
    /// Number of ranks that fit on one device.
    ranks_max: u64,
}

/// A path from a class of ranks to a class of devices.
#[derive(Clone, Copy, Debug)]
struct Way {
    hops: u32,
    from: u32,
    to: u32,
}

impl Class {
    fn domain(&self, topology: &Topology, members: usize) -> Domain {
        let switch = self.machine.leaf.map(|leaf| topology.switch_name(leaf).to_string());
        Domain { node: self.node.clone(), switch, members }
    }
}

/// Classes and the paths allowed between them.
pub(super) struct Domains {
    ranks: Vec<Class>,
    targets: Vec<Class>,
    /// Every allowed path, the shortest first.
    ways: Vec<Way>,
}

impl Domains {
    pub(super) fn new(topology: &mut Topology, request: &Request) -> Domains {
        let nodes: Vec<Machine> = request.nodes.iter().map(|node| topology.machine(node)).collect();
        let devices: Vec<Machine> =
            request.targets.iter().map(|target| topology.machine(&target.node)).collect();
        let of_both = shared_components(&nodes, &devices);

        let mut ranks = Classes::new(&of_both);
        let of_nodes: Vec<usize> = std::iter::zip(request.nodes, &nodes)
            .map(|(node, machine)| ranks.class_of(machine, node, u64::MAX))
            .collect();
        for (rank, &node) in request.rank_nodes.iter().enumerate() {
            ranks.classes[of_nodes[node as usize]].members.push(rank as u32);
        }
        ranks.classes.retain(|class| !class.members.is_empty());

        let mut targets = Classes::new(&of_both);
        for (place, (target, machine)) in std::iter::zip(request.targets, &devices).enumerate() {
            let class = targets.class_of(machine, &target.node, ranks_max(target, request));
            targets.classes[class].members.push(place as u32);
        }
        let (ranks, targets) = (ranks.classes, targets.classes);
        let ways = ways(topology, &ranks, &targets);
        Domains { ranks, targets, ways }
    }

    /// Returns how many devices of each class to use: `wanted` in total, or a few more so that
    /// every class of ranks has a partner.
    pub(super) fn choose(&self, wanted: u32) -> Vec<u32> {
        let all: Vec<u32> = self.targets.iter().map(|class| class.members.len() as u32).collect();
        let ranks: u64 = self.ranks.iter().map(|class| class.members.len() as u64).sum();
        let each = ranks.div_ceil(u64::from(wanted));
        let Ok(flow) = self.distribute(&all, each, each) else { return all };
        let mut load = vec![0; all.len()];
        flow.edges().for_each(|edge| load[edge.sink as usize] += edge.amount);

        let mut chosen: Vec<u32> =
            load.iter().zip(&all).map(|(&load, &all)| ((load / each) as u32).min(all)).collect();
        self.add_partners(&mut chosen, &flow);
        let mut by_remainder: Vec<usize> =
            (0..all.len()).filter(|&class| load[class] > 0).collect();
        by_remainder.sort_by_key(|&class| std::cmp::Reverse(load[class] % each));
        let others = (0..all.len()).filter(|&class| load[class] == 0);
        let mut missing = wanted.saturating_sub(chosen.iter().sum());
        let candidates: Vec<usize> = by_remainder.into_iter().chain(others).collect();
        while missing > 0 {
            for &class in &candidates {
                if missing > 0 && chosen[class] < all[class] {
                    chosen[class] += 1;
                    missing -= 1;
                }
            }
        }
        chosen
    }

    /// Adds a device for each class of ranks without any chosen device: in the class of devices
    /// that most of its ranks went to.
    fn add_partners(&self, chosen: &mut [u32], flow: &Flow) {
        let mut favourite: Vec<(u64, u32)> = vec![(0, 0); self.ranks.len()];
        for edge in flow.edges() {
            let best = &mut favourite[edge.source as usize];
            *best = (*best).max((edge.amount, edge.sink));
        }
        let mut is_served = vec![false; self.ranks.len()];
        for way in self.ways.iter().filter(|way| chosen[way.to as usize] > 0) {
            is_served[way.from as usize] = true;
        }
        for (from, _) in is_served.iter().enumerate().filter(|(_, is_served)| !**is_served) {
            let (_, to) = favourite[from];
            let has_it = chosen[to as usize] > 0;
            if !has_it {
                chosen[to as usize] = 1;
            }
        }
    }

    /// Distributes the ranks over `chosen` devices of each class: up to `least` ranks per device if
    /// there is a path, then up to `most`, and more only if unavoidable. Errors: the number of
    /// ranks without space.
    pub(super) fn distribute(&self, chosen: &[u32], least: u64, most: u64) -> Result<Flow, u64> {
        let supplies = self.ranks.iter().map(|class| class.members.len() as u64);
        let mut flow = Flow::new(supplies, self.targets.len());
        let ranks = flow.left();
        let raise = |flow: &mut Flow, from: u64, to: u64| {
            for (sink, class) in self.targets.iter().enumerate() {
                let more = to.min(class.ranks_max) - from.min(class.ranks_max);
                flow.add_capacity(sink, more * u64::from(chosen[sink]));
            }
        };
        raise(&mut flow, 0, least);
        for ways in self.ways.chunk_by(|one, next| one.hops == next.hops) {
            for way in ways.iter().filter(|way| chosen[way.to as usize] > 0) {
                flow.add_edge(way.from, way.to);
            }
            flow.augment();
        }
        if flow.left() == 0 {
            return Ok(flow);
        }
        // Copying the flow of a large cluster takes as long as everything else together.
        let with = |most: u64| {
            let mut flow = flow.clone();
            raise(&mut flow, least, most);
            flow.augment();
            flow
        };
        let evenly = with(most);
        if evenly.left() == 0 {
            return Ok(evenly);
        }
        let unplaced = with(ranks).left();
        if unplaced > 0 {
            return Err(unplaced);
        }
        let (mut too_few, mut enough) = (most, ranks);
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            match with(middle).left() {
                0 => enough = middle,
                _ => too_few = middle,
            }
        }
        Ok(with(enough))
    }

    /// Assigns a device to each rank: the ranks of a class go to their devices in turn.
    pub(super) fn assign(
        &self,
        topology: &Topology,
        request: &Request,
        chosen: &[u32],
        flow: &Flow,
    ) -> Plan {
        let mut next_rank = vec![0; self.ranks.len()];
        let mut next_device = vec![0; self.targets.len()];
        let mut by_offered: Vec<Vec<u32>> = vec![Vec::new(); request.targets.len()];
        let devices = chosen.iter().map(|&count| count as usize).sum::<usize>().max(1);
        let each = request.rank_nodes.len().div_ceil(devices);
        let mut hops = vec![Some(0); request.targets.len()];
        for edge in flow.edges() {
            let (from, to) = (edge.source as usize, edge.sink as usize);
            let (ranks, devices) = (&self.ranks[from], &self.targets[to]);
            let way = topology.hops(ranks.machine.leaf, devices.machine.leaf);
            for _ in 0..edge.amount {
                let device = devices.members[next_device[to]] as usize;
                if by_offered[device].is_empty() {
                    by_offered[device].reserve(each);
                }
                by_offered[device].push(ranks.members[next_rank[from]]);
                hops[device] = hops[device].zip(way).map(|(one, other): (u32, u32)| one.max(other));
                next_rank[from] += 1;
                next_device[to] = (next_device[to] + 1) % chosen[to] as usize;
            }
        }
        let mut target_of = vec![0; request.rank_nodes.len()];
        let mut targets = Vec::new();
        for (offered, mut ranks) in by_offered.into_iter().enumerate() {
            if ranks.is_empty() {
                continue;
            }
            ranks.sort_unstable();
            ranks.iter().for_each(|&rank| target_of[rank as usize] = targets.len() as u32);
            targets.push(PlannedTarget { offered, ranks, hops: hops[offered] });
        }
        let (target_domains, routes) = self.routes(topology, chosen, flow);
        Plan {
            targets,
            target_of,
            rank_domains: self
                .ranks
                .iter()
                .map(|class| class.domain(topology, class.members.len()))
                .collect(),
            target_domains,
            routes,
            exposures: self.exposures(topology, flow),
        }
    }

    /// Returns the domains of devices in use, and the routes to them.
    fn routes(
        &self,
        topology: &Topology,
        chosen: &[u32],
        flow: &Flow,
    ) -> (Vec<Domain>, Vec<Route>) {
        let mut used: Vec<u32> = flow.edges().map(|edge| edge.sink).collect();
        used.sort_unstable();
        used.dedup();
        let domain = |&class: &u32| {
            self.targets[class as usize].domain(topology, chosen[class as usize] as usize)
        };
        let route = |edge: Edge| Route {
            from: edge.source as usize,
            to: used.binary_search(&edge.sink).expect("every sink of the flow is in use"),
            ranks: edge.amount,
            is_exposed: self.is_exposed(edge),
        };
        (used.iter().map(domain).collect(), flow.edges().map(route).collect())
    }

    fn is_exposed(&self, edge: Edge) -> bool {
        let (ranks, devices) =
            (&self.ranks[edge.source as usize], &self.targets[edge.sink as usize]);
        !are_apart(&ranks.machine, &devices.machine)
    }

    fn exposures(&self, topology: &Topology, flow: &Flow) -> Vec<Exposure> {
        let mut exposed: BTreeMap<ComponentIndex, u64> = BTreeMap::new();
        for edge in flow.edges().filter(|&edge| self.is_exposed(edge)) {
            let of_target = &self.targets[edge.sink as usize].machine.components;
            for component in &self.ranks[edge.source as usize].machine.components {
                if of_target.binary_search(component).is_ok() {
                    *exposed.entry(*component).or_default() += edge.amount;
                }
            }
        }
        let exposure = |(component, ranks)| Exposure {
            component: topology.component_at(component).clone(),
            ranks,
        };
        exposed.into_iter().map(exposure).collect()
    }
}

/// Classes under construction.
struct Classes<'a> {
    of_both: &'a [ComponentIndex],
    classes: Vec<Class>,
    indices: HashMap<(Option<SwitchIndex>, Vec<ComponentIndex>, u64), usize>,
}

impl<'a> Classes<'a> {
    fn new(of_both: &'a [ComponentIndex]) -> Classes<'a> {
        Classes { of_both, classes: Vec::new(), indices: HashMap::new() }
    }

    fn class_of(&mut self, machine: &Machine, node: &str, ranks_max: u64) -> usize {
        let is_of_both = |component: &ComponentIndex| self.of_both.binary_search(component).is_ok();
        let components: Vec<_> = machine.components.iter().copied().filter(is_of_both).collect();
        let key = (machine.leaf, components.clone(), ranks_max);
        *self.indices.entry(key).or_insert_with(|| {
            let machine = Machine { leaf: machine.leaf, components };
            let node = node.to_string();
            self.classes.push(Class { machine, node, members: Vec::new(), ranks_max });
            self.classes.len() - 1
        })
    }
}

/// Returns the components that machines of both lists depend on, in ascending order.
fn shared_components(some: &[Machine], others: &[Machine]) -> Vec<ComponentIndex> {
    let all = |machines: &[Machine]| {
        let mut components: Vec<_> =
            machines.iter().flat_map(|machine| machine.components.iter().copied()).collect();
        components.sort_unstable();
        components.dedup();
        components
    };
    let others = all(others);
    let mut shared = all(some);
    shared.retain(|component| others.binary_search(component).is_ok());
    shared
}

fn ranks_max(target: &Target, request: &Request) -> u64 {
    let is_known = target.capacity_bytes > 0 && request.bytes_per_rank > 0;
    if !is_known {
        return u64::MAX;
    }
    // Aligning partitions must not take space that a rank needs.
    let needed_bytes = request.bytes_per_rank.next_multiple_of(PARTITION_ALIGNMENT_BYTES);
    target.capacity_bytes / needed_bytes
}

/// Returns the paths of each class of ranks: to its partners; without partners, to every class of
/// devices.
fn ways(topology: &Topology, ranks: &[Class], targets: &[Class]) -> Vec<Way> {
    let mut ways = Vec::new();
    for (from, class) in ranks.iter().enumerate() {
        let has_partner = targets.iter().any(|target| are_apart(&class.machine, &target.machine));
        for (to, target) in targets.iter().enumerate() {
            if !has_partner || are_apart(&class.machine, &target.machine) {
                let hops = topology.hops(class.machine.leaf, target.machine.leaf);
                let hops = hops.unwrap_or(HOPS_UNKNOWN);
                ways.push(Way { hops, from: from as u32, to: to as u32 });
            }
        }
    }
    ways.sort_by_key(|way| way.hops);
    ways
}

/// Whether two machines depend on nothing in common.
fn are_apart(one: &Machine, other: &Machine) -> bool {
    one.components.iter().all(|component| other.components.binary_search(component).is_err())
}
