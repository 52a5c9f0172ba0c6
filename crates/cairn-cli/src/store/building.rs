//! The directory of a namespace in which files are built before they get their own names. It is in
//! no tree that the drain or a list reads.
//!
//! Must stay true: nothing in it counts. Whoever builds there next removes it first.

use cairn_agent::store::volume::Volume;
use cairn_core::{Caller, ROOT};
use cairn_job::file::extended::Extended;
use cairn_job::file::path::{ASIDE, FilePath, building_place, unfinished_place};

use crate::error::Result;
use crate::store::local;

/// Mode of the directory.
const MODE: u32 = 0o700;

/// Makes the directory, empty.
pub fn begin(volume: &Volume) -> Result<()> {
    clear(std::slice::from_ref(volume));
    [FilePath::root().join(ASIDE), building_place()]
        .iter()
        .try_for_each(|place| local::make_directory(volume, place, MODE, &Extended::default()))
}

/// Removes what was built, or was replaced by it; and the directory for checkpoints that are set
/// aside, if it is empty. Errors are ignored: no program sees these files, and a later call removes
/// them.
pub fn clear(volumes: &[Volume]) {
    for volume in volumes {
        remove_aside(volume, &building_place());
    }
}

/// Removes the checkpoints that earlier runs did not finish. Errors are ignored, as in [`clear`].
pub fn clear_unfinished(volumes: &[Volume]) {
    for volume in volumes {
        remove_aside(volume, &unfinished_place());
    }
}

fn remove_aside(volume: &Volume, place: &FilePath) {
    remove_all(volume, place);
    let (fs, caller) = (volume.fs(), volume.caller());
    let _ = fs.remove_directory(&caller, ROOT, ASIDE);
    // The next build, or a program, needs the space.
    while matches!(fs.reclaim(None), Ok(true)) {}
}

fn remove_all(volume: &Volume, path: &FilePath) {
    let Ok(found) = volume.attributes(path) else { return };
    let (fs, caller): (_, Caller) = (volume.fs(), volume.caller());
    if !found.is_directory() {
        let _ = fs.unlink(&caller, ROOT, path.as_bytes());
        return;
    }
    for (name, _) in volume.names(path, found.inode).unwrap_or_default() {
        remove_all(volume, &path.join(&name));
    }
    let _ = fs.remove_directory(&caller, ROOT, path.as_bytes());
}
