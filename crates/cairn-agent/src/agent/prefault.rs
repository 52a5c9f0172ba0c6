//! Allocates and clears memory of the RAM tier ahead of its use, so that the first checkpoint does
//! not pay for it. Bars blocks when memory runs short (`headroom.rs`).
//!
//! Must stay true: where programs want all processors, prefaulting runs at full speed only up to a
//! small, bounded distance ahead of use; beyond that it takes a small share of one processor. A
//! step is far shorter than a time slice. Most of the free memory is left to the application.
//! Prefaulting ends at once with the agent. A store that nobody uses any more gives back the memory
//! that was allocated ahead.
//!
//! The thread does not run at idle priority. A step holds the kernel's lock of a page. An
//! idle-priority thread that is preempted in a step would make an application that writes to this
//! page wait until the processor becomes idle.

use cairn_core::{PartUsage, Usage};
use cairn_device::Device;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agent::shared::Shared;
use crate::store::headroom;
use crate::store::memory::Memory;
use crate::store::volume::Volume;

/// Interval at which use is compared with allocation while nothing changes, and at which use is
/// compared with the available memory.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Interval at which use is compared with allocation after a change.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// Bytes of a tier that are allocated at full speed when the agent starts.
const BURST_BYTES: u64 = 256 << 20;
/// Bytes beyond use that are allocated at full speed.
const PROMPT_BYTES: u64 = 128 << 20;
/// Full speed may be ahead of use by at most 1 / `PROMPT_SHARE` of a tier.
const PROMPT_SHARE: u64 = 4;
/// Minimum of bytes beyond use that are allocated at low speed. The largest burst of use raises it.
const AHEAD_BYTES: u64 = 512 << 20;
/// A pause of this length in the growth of use ends a burst: programs compute in between.
const BETWEEN_BURSTS: Duration = Duration::from_millis(200);
/// At most 1 / `SHARE` of the free memory is allocated ahead of use.
const SHARE: u64 = 4;
/// Bytes allocated in one step: one huge page.
const STEP_BYTES: u64 = 2 << 20;
/// Number of steps at full speed before use is read again.
const STEPS_PER_LOOK: u32 = 8;
/// After a low-speed step that had to wait for a processor, the thread pauses for this multiple of
/// the step's duration.
const PAUSE_FACTOR: u32 = 9;
/// A step had to wait if it waited longer than 1 / `WAITED_SHARE` of its duration.
const WAITED_SHARE: u32 = 50;

/// Bytes behind the use of a part that it keeps when it gives memory back, and bytes given back at
/// a time: a program that attaches must not find a full tier.
const KEPT_BYTES: u64 = 32 << 20;
const GIVE_BACK_BYTES: u64 = 32 << 20;
/// Time without a run and without any other process after which a store gives memory back.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(1);

/// `f_type` of tmpfs, as `statfs` reports it.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Allocation of one part of a namespace's tier, and the growth of its use.
#[derive(Default)]
struct Ahead {
    allocated_bytes: u64,
    growth: Growth,
}

/// Growth of a part's use in bursts, such as checkpoints.
#[derive(Default)]
struct Growth {
    used_bytes: u64,
    /// Bytes by which use grew in the current burst, and the time of its last growth.
    burst_bytes: u64,
    grew: Option<Instant>,
    largest_burst_bytes: u64,
}

impl Growth {
    /// Records the bytes in use. Returns whether they grew.
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

/// Distances from the start of a part up to which it is to be allocated.
#[derive(Debug, PartialEq, Eq)]
struct Goal {
    /// At full speed.
    prompt_bytes: u64,
    /// At low speed; never less than `prompt_bytes`.
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
    let mut unused: Option<Unused> = None;
    let (mut changed, mut is_short) = (false, false);
    while !shared.is_stopping() {
        let volumes = shared.volumes().0;
        if is_unused(shared, &volumes) {
            let unused = unused.get_or_insert(Unused { since: Instant::now(), gave_back: false });
            if !unused.gave_back && unused.since.elapsed() >= GIVE_BACK_AFTER {
                volumes.iter().for_each(|volume| give_back(shared, volume));
                (unused.gave_back, known) = (true, HashMap::new());
            }
            shared.sleep(LOOK_EVERY);
            continue;
        }
        unused = None;
        // Where namespaces share little memory, a growing one gets its new share soon.
        let due = changed && is_short;
        if due || looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            looked = Some(Instant::now());
            is_short = keep_headroom_of_all(&volumes);
        }
        changed = false;
        for volume in volumes {
            // On a machine with several memory nodes the tier has one part per node. Each part is
            // used from its start.
            let parts = volume.fs().geometry().parts().count().max(1);
            for part in 0..parts {
                let ahead = known.entry((volume.name().to_string(), part)).or_default();
                changed |= advance(shared, &volume, part, ahead);
            }
        }
        shared.sleep(if changed { LOOK_SOON } else { LOOK_EVERY });
    }
    let volumes = shared.volumes().0;
    let is_unused = is_unused(shared, &volumes);
    for volume in volumes {
        if is_unused {
            give_back(shared, &volume);
        }
        // No thread updates the barred blocks after this point, so none may stay barred.
        keep_headroom(&volume, u64::MAX);
    }
}

/// A store without a run and without any other process.
struct Unused {
    since: Instant,
    gave_back: bool,
}

/// Whether nobody but this agent uses the store: no run, which takes its lock before it starts a
/// program, and no process, not even a command that copies into it.
fn is_unused(shared: &Shared, volumes: &[Arc<Volume>]) -> bool {
    let is_alone = |volume: &Arc<Volume>| {
        let processes = volume.fs().processes();
        processes.is_ok_and(|found| found.iter().all(|(slot, _)| *slot == volume.slot()))
    };
    !shared.is_running() && volumes.iter().all(is_alone)
}

/// Gives back the memory behind the blocks that were ever handed out, but for `KEPT_BYTES`, from
/// the end of each part. Blocks whose memory goes are barred first. A program that attaches
/// meanwhile finds the others, and ends this.
fn give_back(shared: &Shared, volume: &Arc<Volume>) {
    let (Ok(usage), Some(device)) = (volume.fs().usage(), memory_of(volume)) else { return };
    let blocks = |bytes: u64| (bytes / usage.hugeblock_bytes) as u32;
    for (index, part) in usage.parts.iter().enumerate() {
        let kept_end = part.blocks.min(part.touched_blocks + blocks(KEPT_BYTES));
        let mut end = part.blocks;
        while end > kept_end && is_unused(shared, std::slice::from_ref(volume)) {
            let start = end.saturating_sub(blocks(GIVE_BACK_BYTES).max(1)).max(kept_end);
            if !bar_from(volume, index, start) {
                break;
            }
            let at = |block: u32| u64::from(part.first_block + block) * usage.hugeblock_bytes;
            if device.give_back(at(start), (at(end) - at(start)) as usize).is_err() {
                break;
            }
            end = start;
        }
    }
    keep_headroom(volume, u64::MAX);
}

/// Bars the blocks of a part from `start` on. Returns false if some of them were handed out.
fn bar_from(volume: &Volume, part: usize, start: u32) -> bool {
    let touched = |usage: &Usage| usage.parts.get(part).map(|part| part.touched_blocks);
    let Ok(usage) = volume.fs().usage() else { return false };
    let of_part = |(index, found): (usize, &PartUsage)| {
        if index == part { found.blocks.saturating_sub(start) } else { 0 }
    };
    let barred: Vec<u32> = usage.parts.iter().enumerate().map(of_part).collect();
    // Blocks may have been handed out until they were barred.
    volume.fs().bar(&barred).is_ok()
        && volume.fs().usage().is_ok_and(|usage| touched(&usage).is_some_and(|end| end <= start))
}

/// Bars the blocks of all namespaces for which memory is missing. Returns whether any are barred.
fn keep_headroom_of_all(volumes: &[Arc<Volume>]) -> bool {
    let spare_bytes = headroom::spare_bytes(&Memory::here()) / volumes.len().max(1) as u64;
    volumes.iter().filter(|volume| keep_headroom(volume, spare_bytes)).count() > 0
}

/// Bars the blocks of the memory tier that exceed `spare_bytes`. Returns whether any are barred.
fn keep_headroom(volume: &Volume, spare_bytes: u64) -> bool {
    let (Ok(usage), Some(allocated_bytes)) = (volume.fs().usage(), allocated_bytes(volume)) else {
        return false;
    };
    let blocks = |bytes: u64| bytes / usage.hugeblock_bytes;
    let barred = headroom::barred(&usage.parts, blocks(allocated_bytes), blocks(spare_bytes));
    if usage.parts.iter().map(|part| part.barred_blocks).ne(barred.iter().copied()) {
        // If this fails, the next look tries again.
        let _ = volume.fs().bar(&barred);
    }
    barred.iter().any(|&blocks| blocks > 0)
}

/// Bytes of memory that the segment of the memory tier occupies; None if the segment is on a disk.
fn allocated_bytes(volume: &Volume) -> Option<u64> {
    let mappable = memory_of(volume)?.mappable()?;
    // SAFETY: the descriptor stays open as long as the volume, which outlives this borrow.
    let segment = unsafe { BorrowedFd::borrow_raw(mappable.descriptor) };
    let file_system = rustix::fs::fstatfs(segment).ok()?;
    let state = rustix::fs::fstat(segment).ok().filter(|_| file_system.f_type == TMPFS_MAGIC)?;
    Some(state.st_blocks as u64 * 512)
}

/// Returns the tier that is memory. A tier in a file, mapped or not, has all its space allocated at
/// creation and needs no prefault.
fn memory_of(volume: &Volume) -> Option<&dyn Device> {
    let device = volume.tier(volume.fs().geometry().placement.tier).ok()?;
    let is_memory = device.mappable().is_some_and(|segment| segment.in_memory);
    (is_memory && device.is_synchronous().is_none()).then_some(device)
}

/// Allocates a part as far as full speed goes, and one step at low speed. Returns whether anything
/// changed.
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
                // No room. A program that writes there gets the error.
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

/// Distance up to which a part may be allocated. `spare_bytes` no longer contains the bytes that
/// are allocated ahead of use, so they are added before the share is taken.
fn limit(allocated_bytes: u64, used_bytes: u64, spare_bytes: u64) -> u64 {
    let ahead_bytes = allocated_bytes.saturating_sub(used_bytes);
    allocated_bytes - ahead_bytes + spare_bytes.saturating_add(ahead_bytes) / SHARE
}

/// Total time for which this thread has waited for a processor; None if the kernel does not count
/// it.
fn waited() -> Option<Duration> {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = counted.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Whether a step had an uncontended processor. `step` is its duration, `waited_before` the
/// thread's total wait before it.
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

    /// Mechanism: each look allowed a share of the memory left at that moment. Consequence: looks
    /// in a row took all of it.
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
