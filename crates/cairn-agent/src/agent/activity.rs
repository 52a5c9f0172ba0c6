//! Looking whether programs write, for a drain that holds back for them.
//!
//! Must stay true: nobody looks unless the drain is limited. A look costs each namespace two
//! transactions. It is not waited for a drain: the first thing that one would copy may be small.

use crate::agent::shared::Shared;
use crate::store::volume::Volume;
use cairn_core::Operation;
use std::collections::HashMap;
use std::time::Duration;

/// How often programs are looked at if the drain is limited.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often it is asked whether it is.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// A namespace as it was at the last look.
struct Look {
    log_cursor: u64,
    used_blocks: u64,
}

impl Look {
    /// Whether a program wrote since the last look. Writes that continue one another share a record
    /// of the log, and show in the blocks that they take.
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

/// Tells the drain's pace what programs do, until the agent ends.
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
            // What cannot be looked at, the drain complains of.
            wrote |= look.has_written(&volume).unwrap_or(false);
        }
        shared.meter.pace.note_activity(wrote);
        shared.sleep(LOOK_EVERY);
    }
}
