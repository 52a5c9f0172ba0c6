//! Gives back the memory in which files on other machines were shown to programs that had them mapped.
//!
//! Does not decide what is mapped; `Namespace::put_away` does.

use crate::log::Complaints;
use crate::path::FilePath;
use crate::shared::Shared;
use std::time::Duration;

/// How often the tiers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    let mut complaints = Complaints::default();
    while !shared.is_stopping() {
        shared.sleep(LOOK_EVERY);
        for volume in shared.volumes().0 {
            let failed =
                volume.error("write back what was stored in mapped files of", &FilePath::root());
            complaints.note("put away what was mapped", volume.put_away().map_err(failed));
        }
    }
}
