//! Store directories that are being created, or whose creation was interrupted.

use cairn_agent::model::job::{JOB_FILE, RUN_LOCK};
use cairn_agent::model::store_file;
use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// Mount of a store's memory with huge pages.
const HUGE_MOUNT: &str = "huge";
/// Mark of a store that is being filled.
pub const STAGING: &str = "staging";

pub fn is_described(directory: &Path) -> bool {
    directory.join(JOB_FILE).symlink_metadata().is_ok()
}

/// Whether a store directory is an empty leftover: the process that created it was killed.
pub fn is_abandoned_creation(directory: &Path) -> Result<bool> {
    Ok(!is_described(directory) && is_blank(directory)?)
}

/// Whether a store directory holds only what every new one holds, or what `rm -r` leaves of a
/// store, which cannot remove a mount.
pub fn is_blank(directory: &Path) -> Result<bool> {
    const OF_A_NEW_STORE: [&str; 3] = ["handles", RUN_LOCK, STAGING];
    let listed = || -> std::io::Result<bool> {
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let mut inside = fs::read_dir(directory.join(&name));
            if name == HUGE_MOUNT && inside.as_mut().is_ok_and(|inside| inside.next().is_none()) {
                continue;
            }
            let is_description = store_file::is_unfinished(&name, JOB_FILE);
            if !is_description && !OF_A_NEW_STORE.iter().any(|known| name == *known) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    listed().map_err(Error::file("list", directory))
}
