//! Runs of blocks: consecutive blocks of one tier, alone, or with the place in a file for which a
//! plan has them.

/// Consecutive blocks of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRun {
    pub tier: u8,
    pub first: u32,
    pub count: u32,
}

const COUNT_SHIFT: u32 = 36;

const TIER_SHIFT: u32 = 60;

const COUNT_MASK: u32 = (1 << (TIER_SHIFT - COUNT_SHIFT)) - 1;

/// Longest run; freeing one stays well within the undo area.
pub(crate) const RUN_BLOCKS_MAX: u32 = 1 << 16;

impl BlockRun {
    /// Encodes as tier (4 bits), count (24 bits), first block (36 bits).
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.tier) << TIER_SHIFT
            | u64::from(self.count) << COUNT_SHIFT
            | u64::from(self.first)
    }

    pub(crate) fn unpack(word: u64) -> BlockRun {
        BlockRun {
            tier: (word >> TIER_SHIFT) as u8,
            first: (word & ((1 << COUNT_SHIFT) - 1)) as u32,
            count: (word >> COUNT_SHIFT) as u32 & COUNT_MASK,
        }
    }

    pub(crate) fn end(self) -> u32 {
        self.first.saturating_add(self.count)
    }
}

/// Blocks of a file that a plan writes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedRun {
    pub file_block: u32,
    pub blocks: BlockRun,
    /// Whether this plan reserved the blocks, so that they are not part of the file yet.
    pub fresh: bool,
    /// Blocks in the image that the fresh ones replace. Known to the plan only.
    pub replaces: Replaces,
}

/// Blocks that are to be replaced: their tier and the first of them, if there are any. Small,
/// because plans are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaces {
    tier: [u8; 1],
    first: [u8; 4],
}

impl Replaces {
    pub(crate) const NOTHING: Replaces = Replaces { tier: [u8::MAX], first: [0; 4] };

    pub(crate) fn blocks(tier: u8, first: u32) -> Replaces {
        Replaces { tier: [tier], first: first.to_le_bytes() }
    }

    #[inline]
    pub(crate) fn first(self) -> Option<(u8, u32)> {
        let tier = self.tier[0];
        (tier != u8::MAX).then(|| (tier, u32::from_le_bytes(self.first)))
    }
}
