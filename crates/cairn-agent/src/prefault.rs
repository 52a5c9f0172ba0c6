//! Allocating memory for the RAM tier ahead of its use, so that the first checkpoint does not pay for it.
//!
//! Must stay true: it runs only while the processor has nothing else to do; it stays a bounded distance ahead of what
//! is used, and leaves most of the free memory to the application.

use crate::shared::Shared;
use crate::volume::Volume;
use std::fs;
use std::thread;
use std::time::Duration;

/// How often use is compared with what is allocated.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// So much is allocated beyond what is used.
const AHEAD_BYTES: u64 = 1 << 30;
/// Part of the free memory that may be taken ahead of use: one in so many.
const SHARE: u64 = 4;

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    if !become_idle() {
        // At normal priority it would take time from the application.
        return;
    }
    let mut allocated: Vec<(String, u64)> = Vec::new();
    while !shared.is_stopping() {
        for volume in shared.volumes().0 {
            let done = allocated.iter().position(|(name, _)| name == volume.name());
            let index = done.unwrap_or_else(|| {
                allocated.push((volume.name().to_string(), 0));
                allocated.len() - 1
            });
            let so_far = &mut allocated[index].1;
            *so_far = advance(shared, &volume, *so_far);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Allocates further if `allocated` bytes from the start are not far enough ahead; the bytes allocated now.
fn advance(shared: &Shared, volume: &Volume, allocated: u64) -> u64 {
    let Ok(usage) = volume.fs().usage() else { return allocated };
    let Ok(device) = volume.tier(0) else { return allocated };
    let used_bytes = usage.used_blocks[0] * usage.hugeblock_bytes;
    let room = available_bytes() / SHARE;
    let target = (used_bytes + AHEAD_BYTES).min(allocated + room).min(device.bytes());
    if target <= allocated {
        return allocated;
    }
    device.prefault(target, &shared.stopping).unwrap_or(target)
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

/// Lets the calling thread run only when nothing else wants to; false if the kernel refuses.
fn become_idle() -> bool {
    // SAFETY: an all-zero sched_param is the valid one for SCHED_IDLE; pid 0 means this thread.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) == 0
    }
}
