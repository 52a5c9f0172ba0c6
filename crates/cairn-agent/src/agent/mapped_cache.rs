//! Gives back the memory in which files on other machines were shown to programs that had them
//! mapped.
//!
//! Does not decide what is mapped; `Namespace::put_away` does.

use crate::agent::shared::Shared;
use crate::model::log::Complaints;
use crate::model::path::FilePath;
use crate::store::volume::Volume;
use std::sync::Arc;
use std::time::Duration;

/// How often the tiers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    let mut complaints = Complaints::default();
    while !shared.is_stopping() {
        shared.sleep(LOOK_EVERY);
        let put_away = |volume: Arc<Volume>| {
            let failed =
                volume.error("write back what was stored in mapped files of", &FilePath::root());
            volume.put_away(&|| !shared.is_stopping()).map_err(failed)
        };
        let ends = shared.volumes().0.into_iter().map(put_away).fold(Ok(()), Result::and);
        complaints.note("put away what was mapped", ends);
    }
}
