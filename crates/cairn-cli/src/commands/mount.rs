//! `cairn mount`: shows the files of a store to programs that the preloaded library does not reach.

use cairn_agent::model::job::Scope;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Context;
use crate::error::{Error, MountError, Result};
use crate::mount::place::{Hidden, hidden_by};
use crate::output::{self, quoted};
use crate::store::OpenStore;

const EXAMPLES: &str = "\
Examples:
  cairn mount                            mount the only store where its programs see it (/cairn)
  cairn mount --job melt ~/melt          mount the store of job melt at another directory
  cairn unmount                          unmount it again
  cairn run --mount-fuse -- ./static     mount a new store for the time of a run";

/// Mount a store, so that any program sees its files: static programs, containers, other shells.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The job [default: the one this runs in, or the only one]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Let other users in, by the modes of files; for a user who is not root, /etc/fuse.conf must
    /// have the line user_allow_other
    #[arg(long)]
    allow_other: bool,
    /// Where [default: where programs of the job see its files]
    #[arg(value_name = "DIRECTORY")]
    place: Option<PathBuf>,
}

#[derive(Serialize)]
struct Answer<'a> {
    job: &'a str,
    mounted_at: &'a Path,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let store = context.roots.choose(arguments.job.as_deref())?;
    let place = mount(&store, arguments.place.as_deref(), arguments.allow_other)?;
    if context.json {
        return output::json(&Answer { job: &store.job.job, mounted_at: &place });
    }
    let shown = place.display().to_string();
    output::line(&format!(
        "job {} is mounted at {shown}; unmount it with: cairn unmount {}",
        store.job.job,
        quoted(&shown),
    ));
    Ok(())
}

/// Mounts `store` at `place`, or where programs of the job see it. Returns the place.
pub fn mount(store: &OpenStore, place: Option<&Path>, allow_other: bool) -> Result<PathBuf> {
    if store.job.scope == Scope::Rank {
        return Err(Error::Mount(MountError::ByRank { job: store.job.job.clone() }));
    }
    let prefix = PathBuf::from(&store.job.mount);
    let (place, is_made) = prepared(place.unwrap_or(&prefix))?;
    store.agent()?;
    let mut keeper = Command::new("/proc/self/exe");
    keeper.arg("mount-keeper").arg("--store").arg(store.directory());
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
    let place = std::path::absolute(place).map_err(Error::file("find", place))?;
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
