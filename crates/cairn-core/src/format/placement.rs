//! Placement of a tier in memory on the memory nodes (NUMA) of the machine, as the header says.
//!
//! Does not place anything; `cairn-device` binds the memory.

use crate::format::error::{Error, Result};
use crate::format::layout::Geometry;
use crate::format::types::TIERS_MAX;

/// Part sizes are multiples of this, so that no word of a bitmap belongs to two parts. With default
/// blocks this is a huge page.
const PART_BLOCKS_UNIT: u32 = 64;

/// Memory nodes of a machine that back a tier in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// How memory is taken from the nodes.
    pub policy: NumaPolicy,
    /// Numbers of the nodes, as bits; 0 where placement does not matter.
    pub nodes: u64,
    /// Number of the tier in memory, if there is one.
    pub tier: u8,
}

/// How memory is taken from the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaPolicy {
    /// Blocks of the node on which the writing thread runs, as long as it has any: the tier is
    /// divided.
    #[default]
    Local = 0,
    /// Pages of all nodes in turn.
    Interleave = 1,
    /// Pages of one node, as long as it has any.
    Node = 2,
}

impl Placement {
    /// Encodes as three words: policy, nodes, tier.
    pub(crate) fn encode(self) -> [u64; 3] {
        [self.policy as u64, self.nodes, u64::from(self.tier)]
    }

    pub(crate) fn decode([policy, nodes, tier]: [u64; 3]) -> Result<Placement> {
        let policy = match policy {
            0 => NumaPolicy::Local,
            1 => NumaPolicy::Interleave,
            2 => NumaPolicy::Node,
            _ => return Err(Error::Corrupt { what: "placement" }),
        };
        match u8::try_from(tier) {
            Ok(tier) if usize::from(tier) < TIERS_MAX => Ok(Placement { policy, nodes, tier }),
            _ => Err(Error::Corrupt { what: "placement" }),
        }
    }

    /// Returns the numbers of the nodes, ascending.
    pub fn node_numbers(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |node| self.nodes & 1 << node != 0)
    }
}

/// Returns the size of each part but the last, if the tier in memory is divided.
pub(crate) fn part_blocks(geometry: &Geometry) -> Option<u32> {
    let placement = geometry.placement;
    let blocks = geometry.tier_blocks[usize::from(placement.tier)];
    let count = placement.nodes.count_ones();
    if placement.policy != NumaPolicy::Local || count < 2 {
        return None;
    }
    let part = blocks / count / PART_BLOCKS_UNIT * PART_BLOCKS_UNIT;
    (part > 0).then_some(part)
}
