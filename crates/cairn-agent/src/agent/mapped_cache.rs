//! Frees the memory that backed programs' mappings of files on other machines' tiers, after writing
//! back what programs stored in it.
//!
//! Does not decide what is mapped; `Namespace::evict_unmapped` does.

use crate::agent::shared::Shared;
use crate::model::log::Complaints;
use crate::store::volume::Volume;
use cairn_job::file::path::FilePath;
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the tiers are checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    let mut complaints = Complaints::default();
    while !shared.is_stopping() {
        shared.sleep(LOOK_EVERY);
        let evict_unmapped = |volume: Arc<Volume>| {
            let failed =
                volume.error("write back what was stored in mapped files of", &FilePath::root());
            volume.evict_unmapped(&|| !shared.is_stopping()).map_err(failed)
        };
        let ends = shared.volumes().0.into_iter().map(evict_unmapped).fold(Ok(()), Result::and);
        complaints.note("put away what was mapped", ends);
    }
}
