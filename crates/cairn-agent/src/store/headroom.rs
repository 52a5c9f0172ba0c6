//! Keeps memory free when it is short: tells the pool which blocks it must not hand out, because
//! touching them for the first time would use up the memory. Writers then find a full tier, or
//! spill. Otherwise the kernel would kill a process of the job: beyond the limit of a control group
//! it returns no error.
//!
//! Must stay true: the memory for all blocks that may be handed out before the next look is free at
//! this look, so the speed of writers does not matter. Blocks that were handed out earlier stay.
//! Only memory that programs take for themselves meanwhile can exceed the limit; a reserve is kept
//! for that.

use cairn_core::PartUsage;

use crate::store::memory::Memory;

/// Share of the memory that is kept free: one part in this many.
const RESERVE_SHARE: u64 = 16;
/// Smallest reserve: if the code pages of programs are evicted, every program waits for them to be
/// read again.
const RESERVE_BYTES_MIN: u64 = 64 << 20;
/// Largest reserve.
const RESERVE_BYTES_MAX: u64 = 1 << 30;

/// Memory, in bytes, that a tier may take in addition to what it has.
pub fn spare_bytes(memory: &Memory) -> u64 {
    let all = memory.total_bytes.unwrap_or(0).min(memory.limit_bytes.unwrap_or(u64::MAX));
    let reserve = (all / RESERVE_SHARE).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX);
    memory.available_bytes.saturating_sub(reserve)
}

/// Returns the number of blocks at the end of each part that must not be handed out. `allocated`
/// blocks of the tier have memory, and `spare` more can get it.
pub fn barred(parts: &[PartUsage], allocated: u64, spare: u64) -> Vec<u32> {
    let untouched = |part: &PartUsage| part.blocks.saturating_sub(part.touched_blocks);
    let touched: u64 = parts.iter().map(|part| u64::from(part.touched_blocks)).sum();
    // Some blocks that were handed out may have no memory yet, and some others may have it already.
    let more = (allocated + spare).saturating_sub(touched);
    let growing = parts.iter().filter(|part| untouched(part) > 0).count().max(1);
    let each = u32::try_from(more / growing as u64).unwrap_or(u32::MAX);
    parts.iter().map(|part| untouched(part).saturating_sub(each)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn part(blocks: u32, touched_blocks: u32) -> PartUsage {
        let (node, first_block, used_blocks, barred_blocks) = (None, 0, 0, 0);
        PartUsage { node, first_block, blocks, used_blocks, touched_blocks, barred_blocks }
    }

    #[test]
    fn reserve_is_a_share_of_what_there_is() {
        let spare = |total, limit_bytes, available| {
            let total_bytes = Some(total * GIB);
            let available_bytes = available * GIB;
            spare_bytes(&Memory { total_bytes, limit_bytes, available_bytes })
        };
        assert_eq!(spare(256, None, 100), 99 * GIB);
        assert_eq!(spare(8, None, 4), 4 * GIB - GIB / 2);
        assert_eq!(spare(256, Some(8 * GIB), 4), 4 * GIB - GIB / 2);
        assert_eq!(spare(256, Some(GIB / 8), 1), GIB - (64 << 20));
        assert_eq!(spare(256, Some(8 * GIB), 0), 0);
    }

    #[test]
    fn only_what_there_is_memory_for_is_handed_out() {
        assert_eq!(barred(&[part(1000, 300)], 300, 5000), [0], "there is enough");
        assert_eq!(barred(&[part(1000, 300)], 300, 200), [500]);
        assert_eq!(barred(&[part(1000, 300)], 250, 200), [550], "50 do not have it yet");
        assert_eq!(barred(&[part(1000, 300)], 450, 200), [350], "150 have it ahead of use");
        assert_eq!(barred(&[part(1000, 300)], 100, 0), [700], "nothing more");
        assert_eq!(barred(&[part(1000, 1000)], 100, 0), [0], "all was handed out before");
    }

    #[test]
    fn parts_that_can_grow_share_what_there_is() {
        assert_eq!(barred(&[part(500, 100), part(500, 500)], 600, 150), [250, 0]);
        assert_eq!(barred(&[part(500, 100), part(500, 200)], 300, 200), [300, 200]);
    }
}
