//! Where stores are mounted.

use cairn_fuse::device::{self, Mounted};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use crate::error::{Error, Result};

/// What a mount shows as its source: the directory of the store.
pub fn source_of(store: &Path) -> String {
    format!("cairn:{}", store.display())
}

/// Returns the directory of the store that is mounted there.
pub fn store_of(mounted: &Mounted) -> Option<PathBuf> {
    mounted.source.strip_prefix("cairn:").map(PathBuf::from)
}

/// Returns the mounts of stores that this user or root has made; for root, those of all users.
/// Anybody can mount something that calls itself a store of somebody else.
pub fn all() -> Result<Vec<Mounted>> {
    let own = rustix::process::geteuid();
    let mut all =
        device::mounts().map_err(Error::file("read", Path::new("/proc/self/mountinfo")))?;
    all.retain(|found| own.is_root() || [own.as_raw(), 0].contains(&found.user));
    Ok(all)
}

/// Whether this is a mount of the store in `directory`.
fn is_of(found: &Mounted, directory: &Path) -> bool {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf());
    store_of(found).as_deref() == Some(&*directory)
}

/// Returns the path by which the kernel lists a mount at `place`. What is mounted there is not
/// looked at: it may be dead.
pub fn absolute(place: &Path) -> Result<PathBuf> {
    let failed = || Error::file("find", place);
    let place = std::path::absolute(place).map_err(failed())?;
    match (place.parent(), place.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().map_err(failed())?.join(name)),
        // It ends in a dot or is the root.
        _ => place.canonicalize().map_err(failed()),
    }
}

/// Whether nobody serves what is mounted at `place` any more.
pub fn is_dead(place: &Path) -> bool {
    let looked = fs::metadata(place);
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

/// What a store at a prefix would hide.
#[derive(Debug, PartialEq, Eq)]
pub enum Hidden {
    /// Nothing: there is nothing, or an empty directory.
    Nothing,
    /// The mount of the store in this directory.
    Mount(PathBuf),
    /// A file, or a directory that is not empty.
    Files,
}

/// Finds out what a store at `prefix` would hide. Unmounts what is dead there.
pub fn hidden_by(prefix: &Path) -> Result<Hidden> {
    clear_dead(prefix).map_err(Error::file("unmount the dead store at", prefix))?;
    if let Some(found) = all()?.iter().rev().find(|found| found.place == prefix) {
        return Ok(Hidden::Mount(store_of(found).unwrap_or_default()));
    }
    let is_nothing = match prefix.symlink_metadata() {
        Err(_) => true,
        Ok(found) if found.is_dir() => {
            fs::read_dir(prefix).is_ok_and(|mut names| names.next().is_none())
        }
        Ok(_) => false,
    };
    Ok(if is_nothing { Hidden::Nothing } else { Hidden::Files })
}

/// Unmounts a store everywhere, also where its user has mounted it, and waits `patience` for
/// programs that still use a mount. Returns the places that they use for longer.
pub fn release(store: &Path, patience: Duration) -> Result<Vec<PathBuf>> {
    const PAUSE: Duration = Duration::from_millis(20);
    let began = Instant::now();
    loop {
        let mut busy = Vec::new();
        for found in all()?.into_iter().rev() {
            // Whether it is dead is asked only if it must be: a server that is stopped answers
            // nothing.
            let is_left = is_of(&found, store) && device::unmount(&found.place, false).is_err();
            if is_left && !(is_dead(&found.place) && device::unmount(&found.place, true).is_ok()) {
                busy.push(found.place);
            }
        }
        if busy.is_empty() || began.elapsed() >= patience {
            return Ok(busy);
        }
        thread::sleep(PAUSE);
    }
}

/// Unmounts a store everywhere, whoever uses it.
pub fn detach(store: &Path) -> Result<()> {
    for found in all()?.into_iter().rev() {
        if is_of(&found, store) {
            device::unmount(&found.place, true).map_err(Error::file("unmount", &found.place))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_directory_is_nothing_and_a_file_is_something_to_hide() {
        let place = std::env::temp_dir().join(format!("cairn-hidden.{}", std::process::id()));
        assert_eq!(hidden_by(&place).expect("looks"), Hidden::Nothing);
        fs::create_dir(&place).expect("makes");
        assert_eq!(hidden_by(&place).expect("looks"), Hidden::Nothing);
        fs::write(place.join("file"), "x").expect("writes");
        assert_eq!(hidden_by(&place).expect("looks"), Hidden::Files);
        assert_eq!(hidden_by(&place.join("file")).expect("looks"), Hidden::Files);
        fs::remove_dir_all(&place).expect("removes");
    }
}
