//! Watches whether programs write, for a drain whose rate is limited.
//!
//! Must stay true: nothing is watched unless the drain is limited, because a look costs two
//! transactions per namespace. Watching does not wait for a drain to begin: the first file that a
//! drain copies may be small.

use cairn_core::Operation;
use std::collections::HashMap;
use std::time::Duration;

use crate::agent::shared::Shared;
use crate::store::volume::Volume;

/// Interval between looks while the drain is limited.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Interval at which the agent checks whether the drain is limited.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// State of a namespace at the last look.
struct Look {
    log_cursor: u64,
    used_blocks: u64,
}

impl Look {
    /// Whether a program has written since the last look. Writes that continue one another share a
    /// log record; the blocks they take reveal them.
    fn has_written(&mut self, volume: &Volume) -> cairn_core::Result<bool> {
        let used_blocks = used_blocks(volume)?;
        let mut wrote = used_blocks > self.used_blocks;
        self.used_blocks = used_blocks;
        volume.fs().read_log(&mut self.log_cursor, &mut |record| {
            wrote |= matches!(
                record.operation,
                Operation::Write | Operation::Strides | Operation::Replace
            );
        })?;
        Ok(wrote)
    }
}

fn used_blocks(volume: &Volume) -> cairn_core::Result<u64> {
    Ok(volume.fs().usage()?.used_blocks.iter().sum())
}

/// Reports the activity of programs to the drain's pace until the agent ends.
pub fn run(shared: &Shared) {
    let mut looks: HashMap<String, Look> = HashMap::new();
    while !shared.is_stopping() {
        if !shared.meter.pace.is_watching() {
            looks.clear();
            shared.sleep(ASK_EVERY);
            continue;
        }
        let mut wrote = false;
        for volume in shared.volumes().0 {
            let log_cursor = volume.fs().log_head();
            let look = looks
                .entry(volume.name().to_string())
                .or_insert(Look { log_cursor, used_blocks: u64::MAX });
            // The drain reports a namespace that cannot be read.
            wrote |= look.has_written(&volume).unwrap_or(false);
        }
        shared.meter.pace.note_activity(wrote);
        shared.sleep(LOOK_EVERY);
    }
}
