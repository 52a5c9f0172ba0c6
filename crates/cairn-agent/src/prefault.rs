//! Allocating memory for the RAM tier ahead of its use, so that the first checkpoint does not pay
//! for it.
//!
//! Must stay true: it takes a small share of one processor, in steps far shorter than a time slice;
//! it stays a bounded distance ahead of what is used, and leaves most of the free memory to the
//! application.
//! Not at idle priority: a step holds the kernel's lock of the segment, and an idle-priority thread
//! that is preempted in it would make a writing application wait for the processor to become idle.

use crate::shared::Shared;
use crate::volume::Volume;
use rustix::fs::FallocateFlags;
use std::collections::HashMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often use is compared with what is allocated.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// So much is allocated beyond what is used.
const AHEAD_BYTES: u64 = 512 << 20;
/// Part of the free memory that may be taken ahead of use: one in so many.
const SHARE: u64 = 4;
/// Allocated at a time; one huge page.
const STEP_BYTES: u64 = 2 << 20;
/// A step is followed by a pause of so many times its length.
const PAUSE_FACTOR: u32 = 9;

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    let mut allocated: HashMap<String, u64> = HashMap::new();
    while !shared.is_stopping() {
        for volume in shared.volumes().0 {
            let so_far = allocated.entry(volume.name().to_string()).or_default();
            *so_far = advance(shared, &volume, *so_far);
        }
        shared.sleep(LOOK_EVERY);
    }
}

/// Allocates further if `allocated` bytes from the start are not far enough ahead; the bytes
/// allocated then.
fn advance(shared: &Shared, volume: &Volume, mut allocated: u64) -> u64 {
    let (Ok(usage), Ok(device)) = (volume.fs().usage(), volume.tier(0)) else { return allocated };
    let Some(segment) = device.mappable() else { return allocated };
    // SAFETY: the descriptor stays open as long as the volume, which outlives this borrow.
    let segment = unsafe { BorrowedFd::borrow_raw(segment) };
    let used_bytes = usage.used_blocks[0] * usage.hugeblock_bytes;
    let room = available_bytes() / SHARE;
    let target = (used_bytes + AHEAD_BYTES).min(allocated + room).min(device.bytes());
    while allocated < target && !shared.is_stopping() {
        let started = Instant::now();
        let step = STEP_BYTES.min(target - allocated);
        if rustix::fs::fallocate(segment, FallocateFlags::KEEP_SIZE, allocated, step).is_err() {
            // No room: whoever writes there will hear of it.
            return target;
        }
        allocated += step;
        shared.sleep(started.elapsed() * PAUSE_FACTOR);
    }
    allocated
}

/// Memory that can be had now: of the machine and of the control groups this process is in.
pub fn available_bytes() -> u64 {
    let machine = meminfo_bytes("MemAvailable:").unwrap_or(0);
    machine.min(cgroup_room_bytes().unwrap_or(u64::MAX))
}

/// A line of /proc/meminfo.
pub fn meminfo_bytes(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// The smallest memory limit of the control groups this process is in.
pub fn cgroup_limit_bytes() -> Option<u64> {
    cgroup_levels().into_iter().map(|(limit, _)| limit).min()
}

fn cgroup_room_bytes() -> Option<u64> {
    cgroup_levels().into_iter().map(|(limit, used)| limit.saturating_sub(used)).min()
}

/// Limit and use of each level of control groups that has a limit, for version 2 and version 1.
fn cgroup_levels() -> Vec<(u64, u64)> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut levels = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (root, limit_name, used_name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            _ => continue,
        };
        let mut group = group.trim_end_matches('/');
        loop {
            let number = |name: &str| -> Option<u64> {
                let text = fs::read_to_string(format!("{root}{group}/{name}")).ok()?;
                text.trim().parse().ok()
            };
            // "max" is no number, and means no limit.
            if let (Some(limit), Some(used)) = (number(limit_name), number(used_name)) {
                levels.push((limit, used));
            }
            match group.rfind('/') {
                Some(slash) => group = &group[..slash],
                None => break,
            }
        }
    }
    levels
}
