//! Reports checkpoints that were removed before the drain had copied them.

use cairn_agent::store::register_file;
use cairn_agent::store::volume;
use cairn_job::checkpoint::sets::lag::Behind;
use std::path::Path;

use crate::output::duration;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// Returns the families of the store in `directory` that missed a checkpoint, as the agent recorded
/// them. Empty if the register cannot be read; the agent reports that.
pub fn of(directory: &Path) -> Vec<Behind> {
    register_file::load(directory).unwrap_or_default().lags().behind()
}

/// Returns a message about one family, with advice.
pub fn line(behind: &Behind) -> String {
    let now_s = volume::now().0.div_euclid(NANOSECONDS_PER_SECOND);
    let age = behind.outside_written.map(|written| {
        let age_s = now_s.saturating_sub(written).max(0);
        format!(", written {} ago", duration::human(age_s as f64))
    });
    format!(
        "{behind}{}: keep more checkpoints in the store, drain to a faster directory, or drain fewer of them (--pfs-every)",
        age.unwrap_or_default()
    )
}
