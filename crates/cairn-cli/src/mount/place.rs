//! Where stores are mounted.

use cairn_fuse::device::{self, Mounted};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What a mount shows as its source: the directory of the store.
pub fn source_of(store: &Path) -> String {
    format!("cairn:{}", store.display())
}

/// Returns the directory of the store that is mounted there.
pub fn store_of(mounted: &Mounted) -> Option<PathBuf> {
    mounted.source.strip_prefix("cairn:").map(PathBuf::from)
}

/// Returns all mounts of stores that this process sees.
pub fn all() -> Result<Vec<Mounted>> {
    device::mounts().map_err(Error::file("read", Path::new("/proc/self/mountinfo")))
}

/// Whether nobody serves what is mounted at `place` any more.
pub fn is_dead(place: &Path) -> bool {
    let looked = std::fs::metadata(place);
    looked.is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
}

/// Unmounts every dead mount of ours at `place`. Errors: the user may not.
pub fn clear_dead(place: &Path) -> io::Result<()> {
    let is_ours = |found: &Mounted| found.place == place;
    while device::mounts()?.iter().any(is_ours) && is_dead(place) {
        device::unmount(place, true)?;
    }
    Ok(())
}
