//! Tests of the storage balancer: plans for the cluster of the paper, for clusters with little
//! choice, and for random ones, whose properties are checked rank by rank by independent code.

use cairn_testing::random::{Random, for_each_seed};

use crate::balancer::{
    self, Description, Kind, Plan, PlanError, RANKS_PER_TARGET, Request, Target, Topology,
};

/// A cluster and the processes on it.
#[derive(Debug)]
struct Case {
    description: Description,
    nodes: Vec<String>,
    rank_nodes: Vec<u32>,
    targets: Vec<Target>,
    target_count: Option<u32>,
    bytes_per_rank: u64,
}

impl Case {
    /// Creates a case: nodes with `ranks_each` ranks, devices in other machines, and a description
    /// of the rest of the cluster in JSON.
    fn new(description: &str, nodes: &str, ranks_each: u32, target_nodes: &str) -> Case {
        let nodes = balancer::hostlist::expand(nodes).expect("a list");
        let ranks = nodes.len() as u32 * ranks_each;
        let target = |node: String| Target {
            address: format!("nvme-tcp://{node}"),
            node,
            capacity_bytes: 1 << 40,
        };
        let targets = balancer::hostlist::expand(target_nodes).expect("a list");
        Case {
            description: serde_json::from_str(description).expect("a description"),
            rank_nodes: (0..ranks).map(|rank| rank / ranks_each).collect(),
            nodes,
            targets: targets.into_iter().map(target).collect(),
            target_count: None,
            bytes_per_rank: 0,
        }
    }

    fn plan(&self) -> Result<Plan, PlanError> {
        let mut topology = Topology::from_description(&self.description).expect("a topology");
        balancer::plan(
            &mut topology,
            &Request {
                nodes: &self.nodes,
                rank_nodes: &self.rank_nodes,
                targets: &self.targets,
                ranks_per_target: RANKS_PER_TARGET,
                target_count: self.target_count,
                bytes_per_rank: self.bytes_per_rank,
            },
        )
    }

    /// Returns what a machine depends on, derived independently from the description.
    fn components(&self, node: &str) -> Vec<(Kind, String)> {
        let has = |list: &str| {
            balancer::hostlist::expand(list).expect("a list").iter().any(|name| name == node)
        };
        let switches = self.description.switch.iter();
        let leaves = switches.filter(|switch| switch.nodes.as_deref().is_some_and(has));
        let mut components = vec![(Kind::Node, node.to_string())];
        components.extend(leaves.map(|switch| (Kind::Switch, switch.name.clone())));
        for (kind, groups) in
            [(Kind::Rack, &self.description.rack), (Kind::Power, &self.description.power)]
        {
            let groups = groups.iter().filter(|group| has(&group.nodes));
            components.extend(groups.map(|group| (kind, group.name.clone())));
        }
        components
    }
}

fn loads(plan: &Plan) -> Vec<usize> {
    plan.targets.iter().map(|target| target.ranks.len()).collect()
}

#[test]
fn cluster_of_the_paper_is_balanced_and_safe() {
    // Section IV: one rack of 16 nodes with 28 processes each, one with 8 devices.
    let description = r#"{"switch": [{"name": "compute", "nodes": "n[1-16]"},
        {"name": "storage", "nodes": "s[1-8]"}, {"name": "top", "switches": "compute,storage"}]}"#;
    let plan = Case::new(description, "n[1-16]", 28, "s[1-8]").plan().expect("a plan");
    assert_eq!(loads(&plan), [56; 8]);
    assert_eq!((plan.worst_load_ratio(), plan.coefficient_of_variation()), (1.0, 0.0));
    assert_eq!(plan.exposures, []);
    assert!(plan.targets.iter().all(|target| target.hops == Some(2)));
    // Neighbouring ranks write to different devices, and each device has its ranks in order.
    assert_eq!(plan.targets[0].ranks[..3], [0, 8, 16]);
}

#[test]
fn racks_with_devices_write_to_each_other() {
    let description = r#"{"switch": [{"name": "a", "nodes": "a[1-3]"}, {"name": "b", "nodes": "b[1-3]"},
        {"name": "top", "switches": "a,b"}]}"#;
    let plan = Case::new(description, "a[1-2],b[1-2]", 4, "a3,b3").plan().expect("a plan");
    assert_eq!(plan.targets.len(), 2, "one device would be enough for 16 ranks, but not safe");
    assert_eq!(plan.targets[0].ranks, Vec::from_iter(8..16), "a3 has the ranks of b");
    assert_eq!(plan.targets[1].ranks, Vec::from_iter(0..8));
    assert_eq!(plan.exposures, []);
}

#[test]
fn few_ranks_beside_the_devices_cost_no_more_devices() {
    let description = r#"{"switch": [{"name": "a", "nodes": "n[1-15]"}, {"name": "b", "nodes": "m1,s[1-99]"},
        {"name": "c", "nodes": "t1"}, {"name": "top", "switches": "a,b,c"}]}"#;
    let plan = Case::new(description, "n[1-15],m1", 28, "s[1-99],t1").plan().expect("a plan");
    assert_eq!(loads(&plan), [56; 8], "t1 for those of m1, and seven more");
    assert_eq!(plan.exposures, []);
}

#[test]
fn nearest_partner_is_taken() {
    let description = r#"{"switch": [{"name": "a", "nodes": "a[1-2]"}, {"name": "b", "nodes": "b[1-2]"},
        {"name": "c", "nodes": "c[1-2]"}, {"name": "near", "switches": "a,b"},
        {"name": "top", "switches": "near,c"}]}"#;
    let plan = Case::new(description, "a1", 56, "a2,c1,b1").plan().expect("a plan");
    assert_eq!(
        (plan.targets.len(), plan.targets[0].offered),
        (1, 2),
        "b1 is 2 links away, c1 is 3"
    );
    assert_eq!(plan.targets[0].hops, Some(2));
}

#[test]
fn power_that_two_racks_share_parts_them() {
    let description = r#"{"rack": [{"name": "r1", "nodes": "n1"}, {"name": "r2", "nodes": "s1"},
        {"name": "r3", "nodes": "s2"}], "power": [{"name": "p", "nodes": "n1,s1"}]}"#;
    let plan = Case::new(description, "n1", 100, "s[1-2]").plan().expect("a plan");
    assert_eq!(plan.targets.iter().map(|target| target.offered).collect::<Vec<_>>(), [1]);
    assert_eq!(plan.exposures, []);
}

#[test]
fn failure_that_cannot_be_avoided_is_named() {
    let description = r#"{"rack": [{"name": "all", "nodes": "n[1-2],s1"}]}"#;
    let plan = Case::new(description, "n[1-2]", 3, "s1").plan().expect("a plan");
    let exposed: Vec<_> = plan
        .exposures
        .iter()
        .map(|found| (found.component.kind, found.component.name.as_str(), found.ranks))
        .collect();
    assert_eq!(exposed, [(Kind::Rack, "all", 6)]);
}

#[test]
fn devices_in_the_nodes_themselves_are_exchanged() {
    let plan = Case::new("{}", "n[1-4]", 56, "n[1-4]").plan().expect("a plan");
    assert_eq!(loads(&plan), [56; 4]);
    assert_eq!(plan.exposures, []);
}

#[test]
fn devices_without_room_are_refused() {
    let mut case = Case::new("{}", "n[1-2]", 4, "s[1-2]");
    case.bytes_per_rank = 1 << 38;
    assert_eq!(case.plan().expect("four fit on each").targets.len(), 2);
    case.bytes_per_rank += 1;
    let refused = case.plan().expect_err("three fit on each");
    assert!(matches!(refused, PlanError::TargetsTooSmall { unplaced: 2, .. }), "{refused}");
    case.rank_nodes.clear();
    assert_eq!(case.plan(), Err(PlanError::EmptyJob));
    case.targets.clear();
    case.rank_nodes.push(0);
    assert_eq!(case.plan(), Err(PlanError::NoTargets));
}

/// Returns a random cluster with some leaves, racks and power supplies, and with processes and
/// devices in random places.
fn random_case(random: &mut Random) -> Case {
    let machines = 2 + random.below(12);
    let leaves = 1 + random.below(4);
    let mut groups = vec![vec![Vec::new(); leaves as usize]; 3];
    for machine in 0..machines {
        for group in &mut groups {
            // Some machines are in no rack, or in an unknown one.
            let place = random.below(leaves + 1) as usize;
            if let Some(members) = group.get_mut(place) {
                members.push(format!("m{machine}"));
            }
        }
    }
    let named = |kind: &str, group: &[Vec<String>]| {
        let members = group.iter().enumerate().filter(|(_, members)| !members.is_empty());
        let group = |(place, members): (usize, &Vec<String>)| {
            format!(r#"{{"name": "{kind}{place}", "nodes": "{}"}}"#, members.join(","))
        };
        members.map(group).collect::<Vec<_>>().join(",")
    };
    let description = format!(
        r#"{{"switch": [{}], "rack": [{}], "power": [{}]}}"#,
        named("leaf", &groups[0]),
        named("rack", &groups[1]),
        named("power", &groups[2])
    );
    let ranks_each = 1 + random.below(6) as u32;
    let chosen = |random: &mut Random| {
        let always = random.below(machines);
        let machines = (0..machines).filter(|&machine| machine == always || random.one_in(2));
        machines.map(|machine| format!("m{machine}")).collect::<Vec<_>>()
    };
    let (nodes, targets) = (chosen(random).join(","), chosen(random).join(","));
    let mut case = Case::new(&description, &nodes, ranks_each, &targets);
    case.target_count = random.one_in(2).then(|| 1 + random.below(8) as u32);
    case
}

/// Whether the ranks can be placed such that none has a device that depends on a component of the
/// rank, with at most `most` ranks per device. Places one rank after the other, moving earlier ones
/// if needed (bipartite matching by augmenting paths).
fn can_be_placed(allowed: &[Vec<usize>], devices: usize, most: usize) -> bool {
    fn place(
        rank: usize,
        allowed: &[Vec<usize>],
        most: usize,
        on: &mut [Vec<usize>],
        seen: &mut [bool],
    ) -> bool {
        for &device in &allowed[rank] {
            if std::mem::replace(&mut seen[device], true) {
                continue;
            }
            if on[device].len() < most {
                on[device].push(rank);
                return true;
            }
            for at in 0..on[device].len() {
                if place(on[device][at], allowed, most, on, seen) {
                    on[device][at] = rank;
                    return true;
                }
            }
        }
        false
    }
    let mut on = vec![Vec::new(); devices];
    (0..allowed.len()).all(|rank| place(rank, allowed, most, &mut on, &mut vec![false; devices]))
}

fn check(case: &Case) {
    let plan = case.plan().expect("there is room");
    let of_targets: Vec<_> =
        case.targets.iter().map(|target| case.components(&target.node)).collect();
    let of_nodes: Vec<_> = case.nodes.iter().map(|node| case.components(node)).collect();
    let is_safe = |rank: usize, offered: usize| {
        let of_rank = &of_nodes[case.rank_nodes[rank] as usize];
        of_rank.iter().all(|component| !of_targets[offered].contains(component))
    };
    let ranks = case.rank_nodes.len();
    let mut seen = vec![0; ranks];
    for (place, target) in plan.targets.iter().enumerate() {
        assert!(target.ranks.is_sorted() && !target.ranks.is_empty());
        for &rank in &target.ranks {
            seen[rank as usize] += 1;
            assert_eq!(plan.target_of[rank as usize] as usize, place);
        }
    }
    assert!(seen.iter().all(|&times| times == 1), "every rank has one device");

    // A rank with a partner writes only to partners; all other ranks are reported as exposed.
    let has_partner = |rank: usize| (0..case.targets.len()).any(|offered| is_safe(rank, offered));
    let offered_to = |rank: usize| plan.targets[plan.target_of[rank] as usize].offered;
    let exposed = (0..ranks).filter(|&rank| !is_safe(rank, offered_to(rank)));
    assert!(exposed.clone().all(|rank| !has_partner(rank)), "nobody is exposed without need");
    assert_eq!(exposed.count() == 0, plan.exposures.is_empty());

    // No device has more ranks than necessary with these devices.
    let most = loads(&plan).into_iter().max().expect("there are ranks");
    let allowed: Vec<Vec<usize>> = (0..ranks)
        .map(|rank| {
            let devices = 0..plan.targets.len();
            let may =
                |&place: &usize| !has_partner(rank) || is_safe(rank, plan.targets[place].offered);
            devices.filter(may).collect()
        })
        .collect();
    let even = ranks.div_ceil(plan.targets.len());
    let could_be_less = most > even && can_be_placed(&allowed, plan.targets.len(), most - 1);
    assert!(!could_be_less, "{:?} could be more even", loads(&plan));
    if allowed.iter().all(|devices| devices.len() == plan.targets.len()) {
        let least = loads(&plan).into_iter().min().expect("there are ranks");
        assert!(most - least <= 1, "{:?}", loads(&plan));
    }
    assert_eq!(case.plan().expect("there is room"), plan, "the same request gives the same plan");
}

#[test]
fn random_clusters_are_planned_safely_and_evenly() {
    for_each_seed(400, |seed| check(&random_case(&mut Random::new(seed))));
}

#[test]
fn clusters_of_a_hundred_thousand_and_a_million_ranks_are_planned_evenly() {
    [50, 500].into_iter().for_each(large_cluster_is_planned_evenly);
}

fn large_cluster_is_planned_evenly(leaves: u32) {
    let last = leaves * 20 - 1;
    let switch = |leaf: u32| {
        let (first, last) = (leaf * 20, leaf * 20 + 19);
        format!(r#"{{"name": "leaf{leaf}", "nodes": "n[{first}-{last}],s[{first}-{last}]"}}"#)
    };
    let switches: Vec<String> = (0..leaves).map(switch).collect();
    let description = format!(
        r#"{{"switch": [{}, {{"name": "top", "switches": "leaf[0-{}]"}}]}}"#,
        switches.join(","),
        leaves - 1
    );
    let plan =
        Case::new(&description, &format!("n[0-{last}]"), 100, &format!("s[0-{last}]")).plan();
    let plan = plan.expect("a plan");
    assert_eq!(loads(&plan), vec![100; leaves as usize * 20]);
    assert_eq!(plan.coefficient_of_variation(), 0.0);
    assert_eq!(plan.exposures, []);
}
