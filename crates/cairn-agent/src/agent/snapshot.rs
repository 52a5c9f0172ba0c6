//! Writes snapshots of durable namespaces, so that their logs stay short and no program has to
//! write one.
//!
//! A snapshot is due when no file is open and more than an eighth of the log is used (NVMe-CR,
//! section III-F: the application computes), and in any case when more than half of it is used.
//! Does not know the content of a snapshot; the core makes it from the media, while programs go on.

use cairn_core::LogUsage;
use std::collections::HashSet;
use std::time::Duration;

use crate::agent::shared::Shared;
use crate::model::log::{self, Level};

/// Interval at which logs are checked, and the interval at which the agent checks whether any
/// exist.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_IDLE: Duration = Duration::from_millis(500);
/// A snapshot is due above 1 / `QUIET_SHARE` of the log while no file is open, and above 1 /
/// `BUSY_SHARE` in any case.
const QUIET_SHARE: u64 = 8;
const BUSY_SHARE: u64 = 2;

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    let mut failed: HashSet<String> = HashSet::new();
    while !shared.is_stopping() {
        let mut are_logs = false;
        for volume in shared.volumes().0 {
            let usage = volume.fs().log_usage().ok().flatten();
            are_logs |= usage.is_some();
            if !usage.is_some_and(is_due) {
                continue;
            }
            match volume.fs().write_snapshot() {
                Ok(()) => _ = failed.remove(volume.name()),
                // Logged once: a program that finds the log full tries again and gets the error.
                Err(error) => {
                    if failed.insert(volume.name().to_string()) {
                        let name = volume.name();
                        let text = format!("cannot write a snapshot of {name}: {error}");
                        log::say(Level::Warn, text);
                    }
                }
            }
        }
        shared.sleep(if are_logs { LOOK_EVERY } else { LOOK_IDLE });
    }
}

/// Whether the agent is to write a snapshot.
pub fn is_due(log: LogUsage) -> bool {
    let share = if log.busy { BUSY_SHARE } else { QUIET_SHARE };
    log.used_bytes > log.total_bytes / share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_is_due_at_half_or_when_quiet_at_an_eighth() {
        let log = |used_bytes, busy| {
            let (commits, failed) = (0, false);
            LogUsage { used_bytes, total_bytes: 800, busy, commits, failed }
        };
        assert!(!is_due(log(100, false)) && is_due(log(101, false)));
        assert!(!is_due(log(400, true)) && is_due(log(401, true)));
    }
}
