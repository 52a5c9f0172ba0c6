//! Allocating and clearing memory for the RAM tier ahead of its use, so that the first checkpoint
//! does not pay for it; and saying when there is none left (headroom.rs).
//!
//! Must stay true: where programs want all processors it goes at full speed only to a small bounded
//! distance ahead of what is used, and beyond that takes a small share of one; steps are far
//! shorter than a time slice; it leaves most of the free memory to the application, and ends at
//! once with the agent. Not at idle priority: a step holds the kernel's lock of a page, and an
//! idle-priority thread that is preempted in it would make an application that writes there wait
//! for the processor to become idle.

use crate::agent::shared::Shared;
use crate::store::headroom;
use crate::store::memory::Memory;
use crate::store::volume::Volume;
use cairn_device::Device;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often use is compared with what is allocated, while nothing changes; and how often with what
/// there is.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The same after a change.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// So much of a tier is allocated at full speed when the agent starts.
const BURST_BYTES: u64 = 256 << 20;
/// So much beyond what is used is allocated at full speed.
const PROMPT_BYTES: u64 = 128 << 20;
/// Part of a tier that full speed may be ahead of use: one in so many.
const PROMPT_SHARE: u64 = 4;
/// At least so much is allocated beyond what is used, at leisure; more if use has grown by more at
/// a time.
const AHEAD_BYTES: u64 = 512 << 20;
/// Use that grows again after so long grows anew: in between, programs compute.
const BETWEEN_BURSTS: Duration = Duration::from_millis(200);
/// Part of the free memory that may be taken ahead of use: one in so many.
const SHARE: u64 = 4;
/// Allocated at a time; one huge page.
const STEP_BYTES: u64 = 2 << 20;
/// Steps at full speed after which use is looked at again.
const STEPS_PER_LOOK: u32 = 8;
/// A step at leisure that had to wait for a processor is followed by a pause of so many times its
/// length.
const PAUSE_FACTOR: u32 = 9;
/// It had to if it waited longer than this part of its length: one in so many.
const WAITED_SHARE: u32 = 50;

/// What `statfs` says of a file system in memory.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// How far a part of a namespace's tier is allocated, and how its use has grown.
#[derive(Default)]
struct Ahead {
    allocated_bytes: u64,
    growth: Growth,
}

/// What a part's use grows by at a time, as at a checkpoint.
#[derive(Default)]
struct Growth {
    used_bytes: u64,
    /// Since use began to grow, until it pauses; and when it was last seen to.
    burst_bytes: u64,
    grew: Option<Instant>,
    largest_burst_bytes: u64,
}

impl Growth {
    /// Takes in what is used; whether that is more than before.
    fn note(&mut self, used_bytes: u64, now: Instant) -> bool {
        let more_bytes = used_bytes.saturating_sub(self.used_bytes);
        self.used_bytes = used_bytes;
        if more_bytes > 0 {
            if self.grew.is_none_or(|grew| now - grew > BETWEEN_BURSTS) {
                self.burst_bytes = 0;
            }
            self.grew = Some(now);
            self.burst_bytes += more_bytes;
            self.largest_burst_bytes = self.largest_burst_bytes.max(self.burst_bytes);
        }
        more_bytes > 0
    }
}

/// How far from its start a part of a tier is to be allocated.
#[derive(Debug, PartialEq, Eq)]
struct Goal {
    /// At full speed.
    prompt_bytes: u64,
    /// At leisure; not less.
    leisure_bytes: u64,
}

impl Goal {
    fn new(growth: &Growth, part_bytes: u64) -> Goal {
        let (used_bytes, share) = (growth.used_bytes, part_bytes / PROMPT_SHARE);
        let prompt = BURST_BYTES.min(share).max(used_bytes + PROMPT_BYTES.min(share));
        let leisure = prompt.max(used_bytes + AHEAD_BYTES.max(growth.largest_burst_bytes));
        Goal { prompt_bytes: prompt.min(part_bytes), leisure_bytes: leisure.min(part_bytes) }
    }
}

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    let mut known: HashMap<(String, usize), Ahead> = HashMap::new();
    let mut looked: Option<Instant> = None;
    let (mut changed, mut is_short) = (false, false);
    while !shared.is_stopping() {
        let volumes = shared.volumes().0;
        // Where trees share what little there is, one that grows gets more soon.
        let due = changed && is_short;
        if due || looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            looked = Some(Instant::now());
            is_short = keep_headroom_of_all(&volumes);
        }
        changed = false;
        for volume in volumes {
            // On a machine with several memory nodes the tier has parts, and each is used from its
            // start.
            let parts = volume.fs().geometry().parts().count().max(1);
            for part in 0..parts {
                let ahead = known.entry((volume.name().to_string(), part)).or_default();
                changed |= advance(shared, &volume, part, ahead);
            }
        }
        shared.sleep(if changed { LOOK_SOON } else { LOOK_EVERY });
    }
    // Nobody looks any more.
    for volume in shared.volumes().0 {
        keep_headroom(&volume, u64::MAX);
    }
}

/// Bars the blocks for which there is no memory; whether there are any.
fn keep_headroom_of_all(volumes: &[Arc<Volume>]) -> bool {
    let spare_bytes = headroom::spare_bytes(&Memory::here()) / volumes.len().max(1) as u64;
    volumes.iter().filter(|volume| keep_headroom(volume, spare_bytes)).count() > 0
}

/// Bars the blocks of the tier in memory for which `spare_bytes` are not enough; whether there are
/// any.
fn keep_headroom(volume: &Volume, spare_bytes: u64) -> bool {
    let (Ok(usage), Some(allocated_bytes)) = (volume.fs().usage(), allocated_bytes(volume)) else {
        return false;
    };
    let blocks = |bytes: u64| bytes / usage.hugeblock_bytes;
    let barred = headroom::barred(&usage.parts, blocks(allocated_bytes), blocks(spare_bytes));
    if usage.parts.iter().map(|part| part.barred_blocks).ne(barred.iter().copied()) {
        // If it cannot be said now, it is at the next look.
        let _ = volume.fs().bar(&barred);
    }
    barred.iter().any(|&blocks| blocks > 0)
}

/// Memory that the segment of the tier in memory has; None if it lies on a disk.
fn allocated_bytes(volume: &Volume) -> Option<u64> {
    let mappable = memory_of(volume)?.mappable()?;
    // SAFETY: the descriptor stays open as long as the volume, which outlives this borrow.
    let segment = unsafe { BorrowedFd::borrow_raw(mappable.descriptor) };
    let file_system = rustix::fs::fstatfs(segment).ok()?;
    let state = rustix::fs::fstat(segment).ok().filter(|_| file_system.f_type == TMPFS_MAGIC)?;
    Some(state.st_blocks as u64 * 512)
}

/// The tier that is memory. A file, mapped or not, has all its space since it was made.
fn memory_of(volume: &Volume) -> Option<&dyn Device> {
    let device = volume.tier(volume.fs().geometry().placement.tier).ok()?;
    let is_memory = device.mappable().is_some_and(|segment| segment.in_memory);
    (is_memory && device.is_synchronous().is_none()).then_some(device)
}

/// Allocates a part as far as goes at full speed and one step at leisure; whether there was
/// anything to do.
fn advance(shared: &Shared, volume: &Volume, part: usize, ahead: &mut Ahead) -> bool {
    let mut changed = false;
    loop {
        let (Ok(usage), Some(device)) = (volume.fs().usage(), memory_of(volume)) else {
            return false;
        };
        let Some(part) = usage.parts.get(part) else { return false };
        let bytes = |blocks: u32| u64::from(blocks) * usage.hugeblock_bytes;
        let used_bytes = part.used_blocks * usage.hugeblock_bytes;
        changed |= ahead.growth.note(used_bytes, Instant::now());
        let goal = Goal::new(&ahead.growth, bytes(part.blocks));
        let first = bytes(part.first_block);
        if ahead.allocated_bytes >= goal.leisure_bytes {
            return changed;
        }
        let spare_bytes = headroom::spare_bytes(&Memory::here());
        let limit = limit(ahead.allocated_bytes, used_bytes, spare_bytes);
        for _ in 0..STEPS_PER_LOOK {
            let at = ahead.allocated_bytes;
            let is_prompt = at < goal.prompt_bytes;
            let until = if is_prompt { goal.prompt_bytes } else { goal.leisure_bytes };
            let step = STEP_BYTES.min(until.min(limit).saturating_sub(at));
            if step == 0 || shared.is_stopping() {
                return changed;
            }
            let (started, waited) = (Instant::now(), waited());
            if device.prefault(first + at, step as usize).is_err() {
                // No room: whoever writes there will hear of it.
                ahead.allocated_bytes = goal.leisure_bytes;
                return changed;
            }
            ahead.allocated_bytes += step;
            changed = true;
            if !is_prompt && !had_processor(started.elapsed(), waited) {
                shared.sleep(started.elapsed() * PAUSE_FACTOR);
                return changed;
            }
        }
    }
}

/// How far a part may be allocated where there is so much to spare: what is ahead of use already
/// has been taken from that.
fn limit(allocated_bytes: u64, used_bytes: u64, spare_bytes: u64) -> u64 {
    let ahead_bytes = allocated_bytes.saturating_sub(used_bytes);
    allocated_bytes - ahead_bytes + spare_bytes.saturating_add(ahead_bytes) / SHARE
}

/// How long this thread has waited for a processor in all; None where the kernel does not count
/// that.
fn waited() -> Option<Duration> {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = counted.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Whether a step of so long, before which this thread had waited so much, had a processor that
/// nobody else wanted.
fn had_processor(step: Duration, waited_before: Option<Duration>) -> bool {
    let waited_in_it = || Some(waited()?.saturating_sub(waited_before?));
    waited_in_it().is_some_and(|waited| waited <= step / WAITED_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn full_speed_ends_a_bounded_distance_ahead_of_use() {
        let goal = |used: u64, tier: u64| {
            let growth = Growth { used_bytes: used * MIB, ..Growth::default() };
            let goal = Goal::new(&growth, tier * MIB);
            (goal.prompt_bytes / MIB, goal.leisure_bytes / MIB)
        };
        assert_eq!(goal(0, 8192), (256, 512), "the burst");
        assert_eq!(goal(0, 64), (16, 64), "a quarter of a small tier");
        assert_eq!(goal(100, 8192), (256, 612), "use within the burst");
        assert_eq!(goal(1000, 8192), (1128, 1512), "128 MiB ahead later");
        assert_eq!(goal(40, 64), (56, 64), "a quarter of a small tier later");
        assert_eq!(goal(8150, 8192), (8192, 8192), "never beyond the tier");
    }

    #[test]
    fn largest_checkpoint_so_far_is_what_is_cleared_ahead() {
        let (mut growth, begun) = (Growth::default(), Instant::now());
        let at = |milliseconds: u64| begun + Duration::from_millis(milliseconds);
        for (moment, used) in [(0, 300), (100, 900), (150, 1500), (900, 1600), (950, 1200)] {
            growth.note(used * MIB, at(moment));
        }
        assert_eq!(growth.largest_burst_bytes, 1500 * MIB, "one checkpoint, then a smaller one");
        let leisure_bytes = |part: u64| Goal::new(&growth, part * MIB).leisure_bytes / MIB;
        assert_eq!(leisure_bytes(8192), 1200 + 1500);
        assert_eq!(leisure_bytes(2048), 2048);
    }

    /// Consequence, when each look allowed a share of what was left then: looks in a row took all.
    #[test]
    fn looks_in_a_row_take_a_share_of_the_memory_once() {
        let (mut allocated, mut spare) = (100 * MIB, 4000 * MIB);
        for _ in 0..10 {
            let more = limit(allocated, 100 * MIB, spare) - allocated;
            (allocated, spare) = (allocated + more, spare - more);
        }
        assert_eq!(allocated, 1100 * MIB);
        assert!(limit(allocated, 0, spare) < allocated, "what was used and is free again counts");
    }
}
