//! `cairn unmount`: ends what `cairn mount` began.

use cairn_fuse::device::{self, Mounted};
use clap::Args;
use std::io;
use std::path::{Path, PathBuf};

use crate::Context;
use crate::error::{Error, MountError, Result};
use crate::mount::place;

const EXAMPLES: &str = "\
Examples:
  cairn unmount                unmount the only mounted store
  cairn unmount /cairn         unmount what is mounted there
  cairn unmount --all --lazy   in a job's epilog: unmount all, whoever still uses them";

/// Unmount a store. Its files stay in the store.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Only the mount of this job's store
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Every mounted store of the user; for root, of all users
    #[arg(long, conflicts_with_all = ["place", "job"])]
    all: bool,
    /// Even if programs use it: they keep the files that they have open, and it ends with them
    #[arg(long)]
    lazy: bool,
    /// Where it is mounted [default: the only one]
    #[arg(value_name = "DIRECTORY")]
    place: Option<PathBuf>,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let mounted = place::all()?;
    if arguments.all {
        let mut unmounted = Ok(());
        // One that cannot be unmounted keeps none of the others.
        for found in mounted.iter().rev() {
            unmounted = unmounted.and(unmount(&found.place, arguments.lazy));
        }
        return unmounted;
    }
    let found = chosen(context, arguments, mounted)?;
    unmount(&found.place, arguments.lazy)
}

fn chosen(context: &Context, arguments: &Arguments, mounted: Vec<Mounted>) -> Result<Mounted> {
    let place = arguments.place.as_deref().map(place::absolute).transpose()?;
    let store = arguments.job.as_deref().and_then(|job| context.roots.find(job));
    let store = store.and_then(|store| store.canonicalize().ok());
    let is_meant = |found: &Mounted| {
        place.as_ref().is_none_or(|place| found.place == *place)
            && (arguments.job.is_none() || place::store_of(found) == store)
    };
    let mut meant: Vec<Mounted> = mounted.into_iter().filter(is_meant).collect();
    match meant.len() {
        0 => Err(Error::Mount(MountError::NotMounted { place })),
        // The newest at one place is the one that is seen.
        count if count == 1 || place.is_some() => Ok(meant.remove(count - 1)),
        _ => {
            let places = meant.iter().map(|found| found.place.display().to_string()).collect();
            Err(Error::Mount(MountError::Several { places }))
        }
    }
}

/// Unmounts what is mounted at `place`. What is dead is unmounted in any case.
pub fn unmount(place: &Path, lazily: bool) -> Result<()> {
    let unmounted = match device::unmount(place, lazily) {
        Err(_) if !lazily && place::is_dead(place) => device::unmount(place, true),
        unmounted => unmounted,
    };
    unmounted.map_err(|source| {
        let place = place.to_path_buf();
        let is_busy =
            source.kind() == io::ErrorKind::ResourceBusy || source.to_string().contains("busy");
        Error::Mount(match is_busy {
            true => MountError::Busy { place, source },
            false => MountError::Unmount { place, source },
        })
    })
}
