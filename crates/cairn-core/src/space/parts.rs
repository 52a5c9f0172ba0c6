//! Parts of the tier in memory: on a machine with several memory nodes (NUMA), each node backs one.
//!
//! A write takes blocks from the part of the node on which its thread runs. When that is full, it
//! takes them from the others, siblings first. The node is asked for when blocks are taken, not for
//! each byte that is written to them.
//!
//! Must stay true: parts follow from the static header alone, are of equal size except for the
//! last, and count their used blocks. An undivided tier is one part, and costs nothing.
//!
//! Does not know which node backs what; `cairn-device` binds the memory.

use crate::engine::fs::Microfs;
use crate::engine::run::BlockRun;
use crate::engine::transaction::Transaction;
use crate::format::error::Result;
use crate::format::layout::{Geometry, Layout, PART_COUNTER_WORDS, PART_COUNTERS};
use crate::format::placement::{Placement, part_blocks};
use crate::space::pool::{TOUCHED, WITHHELD};
use std::ops::Range;

/// A part of a tier, and how full it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartUsage {
    /// Memory node that backs it, if the tier is divided.
    pub node: Option<u32>,
    /// First hugeblock.
    pub first_block: u32,
    /// Number of hugeblocks.
    pub blocks: u32,
    /// Hugeblocks in use.
    pub used_blocks: u64,
    /// Hugeblocks at its start that were ever handed out.
    pub touched_blocks: u32,
    /// Hugeblocks at its end that are not handed out for now (`Microfs::bar`).
    pub barred_blocks: u32,
}

/// A part of a tier.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub first: u32,
    pub blocks: u32,
    /// Word with the number of used blocks; the words of the pool (pool.rs) follow it.
    pub counters: usize,
}

impl Part {
    pub(crate) fn end(self) -> u32 {
        self.first + self.blocks
    }

    pub(crate) fn contains(self, block: u32) -> bool {
        (self.first..self.end()).contains(&block)
    }

    /// Returns the piece of `run` that lies in this part.
    pub(crate) fn overlap(self, run: BlockRun) -> BlockRun {
        let first = run.first.clamp(self.first, self.end());
        BlockRun { first, count: run.end().clamp(first, self.end()) - first, ..run }
    }
}

impl Microfs {
    /// Withholds the last blocks of each part of the tier in memory, one number for each part,
    /// because there is no memory for them. Of these, only blocks that were handed out before are
    /// handed out again. The tier is full that much earlier.
    pub fn bar(&self, blocks: &[u32]) -> Result<()> {
        self.transact_unlogged(|tx| {
            for (part, &blocks) in tx.layout.parts(tx.layout.placement.tier).zip(blocks) {
                tx.set(part.counters + WITHHELD, u64::from(blocks));
            }
            Ok(())
        })
    }
}

impl Geometry {
    /// Whether the tier in memory is divided among memory nodes.
    pub fn is_divided(&self) -> bool {
        part_blocks(self).is_some()
    }

    /// Returns the memory nodes among which the tier in memory is divided, and the hugeblocks of
    /// each; none if it is not divided.
    pub fn parts(&self) -> impl Iterator<Item = (u32, Range<u32>)> {
        let layout = Layout::new(self);
        let tier = self.placement.tier;
        let numbers = 0..if self.is_divided() { layout.part_count(tier) } else { 0 };
        let blocks = numbers.map(move |number| {
            let part = layout.part(tier, number);
            part.first..part.end()
        });
        self.placement.node_numbers().zip(blocks)
    }
}

impl Layout {
    /// Returns the number of parts of a tier.
    pub(crate) fn part_count(&self, tier: u8) -> u32 {
        match self.part_blocks {
            Some(_) if tier == self.placement.tier => self.placement.nodes.count_ones(),
            _ => 1,
        }
    }

    /// Returns part `number` of a tier. Precondition: the tier has that many.
    pub(crate) fn part(&self, tier: u8, number: u32) -> Part {
        let region = &self.tiers[tier as usize];
        let whole = Part { first: 0, blocks: region.blocks, counters: region.counters };
        let Some(blocks) = self.part_blocks.filter(|_| tier == self.placement.tier) else {
            return whole;
        };
        let first = number * blocks;
        let is_last = number + 1 == self.part_count(tier);
        Part {
            first,
            blocks: if is_last { region.blocks - first } else { blocks },
            counters: PART_COUNTERS + number as usize * PART_COUNTER_WORDS,
        }
    }

    /// Returns all parts of a tier.
    pub(crate) fn parts(&self, tier: u8) -> impl Iterator<Item = Part> {
        (0..self.part_count(tier)).map(move |number| self.part(tier, number))
    }

    /// Returns the parts of a tier in the order for a thread on memory node `node`, its own first.
    /// Node numbers that differ in the lowest bits only come next: those of nodes in one socket.
    fn parts_from(&self, tier: u8, node: u32) -> impl Iterator<Item = Part> {
        let count = self.part_count(tier);
        let nodes = self.placement.nodes;
        let below = u64::MAX.checked_shl(node).map_or(nodes, |from| nodes & !from);
        let own = below.count_ones() % count;
        let others = (0..count.next_power_of_two()).map(move |bits| own ^ bits);
        others.filter(move |&number| number < count).map(move |number| self.part(tier, number))
    }
}

impl<'m> Transaction<'m> {
    /// Returns the parts of a tier in the order in which the calling thread takes blocks from them.
    pub(crate) fn preferred_parts(&self, tier: u8) -> impl Iterator<Item = Part> + use<'m> {
        let layout = self.layout;
        let node = if layout.part_count(tier) > 1 { (self.local.node)() } else { 0 };
        layout.parts_from(tier, node)
    }

    /// Counts the blocks of `run` as used, or as free, in the parts of a divided tier.
    pub(crate) fn count_in_parts(&mut self, run: BlockRun, used: bool) {
        let layout = self.layout;
        if layout.part_count(run.tier) < 2 {
            return;
        }
        for part in layout.parts(run.tier) {
            let count = u64::from(part.overlap(run).count);
            if count > 0 {
                let before = self.get(part.counters);
                let change = if used { count } else { count.wrapping_neg() };
                self.set(part.counters, before.wrapping_add(change));
            }
        }
    }

    /// Returns how full each part of the tier in memory is.
    pub(crate) fn part_usage(&self) -> Vec<PartUsage> {
        let Placement { tier, .. } = self.layout.placement;
        let is_divided = self.layout.part_count(tier) > 1;
        let nodes = self.layout.placement.node_numbers().map(Some).filter(|_| is_divided);
        let usage = |(part, node): (Part, Option<u32>)| PartUsage {
            node,
            first_block: part.first,
            blocks: part.blocks,
            used_blocks: self.get(part.counters),
            touched_blocks: self.get(part.counters + TOUCHED) as u32,
            barred_blocks: self.get(part.counters + WITHHELD) as u32,
        };
        self.layout.parts(tier).zip(nodes.chain(std::iter::once(None))).map(usage).collect()
    }
}
