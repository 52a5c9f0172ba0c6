//! NUMA policies of a tier in memory as the user writes and reads them: `local`, `interleave`,
//! `node:N`.
//!
//! Does not implement them; `cairn-core` (parts.rs) and `cairn-device` (numa.rs) do.

use cairn_core::{NumaPolicy, PartUsage, Placement};
use cairn_device::memory::numa::Topology;
use serde::Serialize;

use crate::error::{Error, Result, SettingError, TierError};
use crate::size::human;

/// Returns the placement for a policy on this machine; the default if `policy` is None. Errors: an
/// unknown policy, a node that does not exist.
pub fn placement(policy: Option<String>, machine: &Topology) -> Result<Placement> {
    let (policy, node) = match policy.as_deref() {
        None | Some("local") => (NumaPolicy::Local, 0),
        Some("interleave") => (NumaPolicy::Interleave, 0),
        Some(text) => {
            let node = text.strip_prefix("node:").and_then(|number| number.parse().ok());
            let expected = "local, interleave or node:N";
            let refused = || {
                Error::Setting(SettingError::Value {
                    option: "--numa",
                    value: text.to_string(),
                    expected,
                })
            };
            (NumaPolicy::Node, node.ok_or_else(refused)?)
        }
    };
    machine.placement(policy, node).ok_or_else(|| {
        let nodes: Vec<String> = machine.node_numbers().map(|node| node.to_string()).collect();
        Error::Tier(TierError::NoSuchNode { node, nodes: nodes.join(", ") })
    })
}

/// Where the memory of a tier is, on a machine with several NUMA nodes.
#[derive(Debug, Serialize)]
pub struct NumaReport {
    /// Policy, as in `--numa`.
    policy: String,
    /// Numbers of the nodes that back the tier.
    nodes: Vec<u32>,
    /// Part of each node, all namespaces together; empty if the nodes have no parts of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<PartReport>,
}

/// Part of a tier that one node backs.
#[derive(Debug, Serialize)]
struct PartReport {
    node: u32,
    bytes: u64,
    used_bytes: u64,
}

impl NumaReport {
    /// Returns the report for a placement, without parts; None on a machine with one node.
    pub fn of(placement: Placement) -> Option<NumaReport> {
        let nodes: Vec<u32> = placement.node_numbers().collect();
        let policy = match placement.policy {
            NumaPolicy::Local => "local".to_string(),
            NumaPolicy::Interleave => "interleave".to_string(),
            NumaPolicy::Node => format!("node:{}", nodes.first()?),
        };
        (!nodes.is_empty()).then_some(NumaReport { policy, nodes, parts: Vec::new() })
    }

    /// Adds the parts of one namespace.
    pub fn add(&mut self, parts: &[PartUsage], hugeblock_bytes: u64) {
        for part in parts {
            let Some(node) = part.node else { continue };
            let known = self.parts.iter().position(|known| known.node == node);
            let at = known.unwrap_or_else(|| {
                self.parts.push(PartReport { node, bytes: 0, used_bytes: 0 });
                self.parts.len() - 1
            });
            self.parts[at].bytes += u64::from(part.blocks) * hugeblock_bytes;
            self.parts[at].used_bytes += part.used_blocks * hugeblock_bytes;
        }
    }

    /// Returns the report as one line.
    pub fn shown(&self) -> String {
        let part = |part: &PartReport| {
            let (used, all) = (human(part.used_bytes), human(part.bytes));
            format!(", node {} {used} of {all} used", part.node)
        };
        let parts: String = self.parts.iter().map(part).collect();
        format!("{}{parts}", self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_anything_else_is_refused_with_one_line() {
        let machine = Topology::seen_from(std::path::Path::new("/nonexistent"));
        let placement = |text: &str| placement(Some(text.to_string()), &machine);
        for (text, policy) in [
            ("local", NumaPolicy::Local),
            ("interleave", NumaPolicy::Interleave),
            ("node:0", NumaPolicy::Node),
        ] {
            let expected = Placement { policy, ..Placement::default() };
            assert_eq!(placement(text).expect("is one"), expected);
        }
        for (text, part) in [
            ("remote", "local, interleave or node:N"),
            ("node:", "local, interleave or node:N"),
            ("node:x", "local, interleave or node:N"),
            ("node:3", "no memory node 3; it has 0"),
            ("node:4000", "no memory node 4000"),
        ] {
            let error = placement(text).expect_err(part);
            let text = error.to_string();
            assert!(text.contains(part) && !text.contains('\n'), "{text}");
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn parts_of_all_namespaces_are_added_up() {
        assert!(NumaReport::of(Placement::default()).is_none());
        let placement = Placement { nodes: 0b101, ..Placement::default() };
        let mut report = NumaReport::of(placement).expect("has two nodes");
        let part = |node, used_blocks| PartUsage {
            node: Some(node),
            first_block: 0,
            blocks: 1 << 10,
            used_blocks,
            touched_blocks: 0,
            barred_blocks: 0,
        };
        report.add(&[part(0, 32), part(2, 64)], 32 << 10);
        report.add(&[part(0, 0), part(2, 32)], 32 << 10);
        let line = "local, node 0 1.00 MiB of 64.0 MiB used, node 2 3.00 MiB of 64.0 MiB used";
        assert_eq!(report.shown(), line);
    }
}
