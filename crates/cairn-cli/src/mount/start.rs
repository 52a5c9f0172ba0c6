//! Starts the keeper of a mount.

use cairn_agent::model::job::Scope;
use cairn_posix::process::handover::MOUNTED;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use crate::error::{Error, MountError, Result};
use crate::mount::place::{Hidden, absolute, hidden_by};
use crate::store::OpenStore;

/// Mounts `store` at `place`, or where programs of the job see it. Returns the place.
pub fn mount(store: &OpenStore, place: Option<&Path>, allow_other: bool) -> Result<PathBuf> {
    if store.job.scope == Scope::Rank {
        return Err(Error::Mount(MountError::ByRank { job: store.job.job.clone() }));
    }
    let prefix = PathBuf::from(&store.job.mount);
    let (place, is_made) = prepared(place.unwrap_or(&prefix))?;
    store.agent()?;
    if place == prefix {
        // Programs of the job look for it before they look for the mount.
        let note = store.directory().join(MOUNTED);
        fs::write(&note, "").map_err(Error::file("write", &note))?;
    }
    // The keeper has another current directory, and the path tells the mounts of a store.
    let directory = store.directory();
    let directory = directory.canonicalize().map_err(Error::file("find", directory))?;
    let mut keeper = Command::new("/proc/self/exe");
    keeper.arg("mount-keeper").arg("--store").arg(&directory);
    keeper.arg("--prefix").arg(&prefix).arg("--place").arg(&place);
    keeper.args(allow_other.then_some("--allow-other"));
    keeper.args(is_made.then_some("--remove-place"));
    for variable in ["LD_PRELOAD", "CAIRN_MOUNT", "CAIRN_STORE"] {
        keeper.env_remove(variable);
    }
    keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let ended = keeper.output().map_err(Error::file("start the keeper of", &place))?;
    if ended.status.success() {
        return Ok(place);
    }
    if !is_made && !place.exists() {
        // The keeper of a mount that has just ended took its directory away meanwhile.
        return mount(store, Some(&place), allow_other);
    }
    let said = String::from_utf8_lossy(&ended.stderr).trim().to_string();
    let reason = match said.trim_start_matches("cairn: ") {
        "" => format!("cannot mount at {}: {}", place.display(), ended.status),
        said => said.to_string(),
    };
    Err(Error::Mount(MountError::Keeper { reason }))
}

/// Makes the directory to mount at, if there is none. Returns its absolute path, and whether it was
/// made.
fn prepared(place: &Path) -> Result<(PathBuf, bool)> {
    let no_parent = |error| match error {
        Error::File { source, .. } => {
            Error::Mount(MountError::NoPlace { place: place.to_path_buf(), source })
        }
        error => error,
    };
    let place = absolute(place).map_err(no_parent)?;
    match hidden_by(&place)? {
        Hidden::Nothing => {}
        Hidden::Mount(store) => return Err(Error::Mount(MountError::Mounted { place, store })),
        Hidden::Files => return Err(Error::Mount(MountError::NotEmpty { place })),
    }
    match fs::create_dir(&place) {
        Ok(()) => Ok((place, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((place, false)),
        Err(source) => Err(Error::Mount(MountError::NoPlace { place, source })),
    }
}
