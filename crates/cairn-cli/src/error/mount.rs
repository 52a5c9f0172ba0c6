//! Errors of mounting a store.

use crate::error::exit_code::{EXIT_FAILURE, EXIT_USAGE};
use std::io;
use std::path::PathBuf;

/// Why a store is not mounted, or not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel or its helper refused.
    #[error("cannot mount at {}: {source}", place.display())]
    Mount {
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no directory to mount at.
    #[error(
        "cannot mount at {}: {source}; make this directory, or give another: cairn mount DIRECTORY",
        place.display()
    )]
    NoPlace {
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is something else than an empty directory.
    #[error(
        "{} is no empty directory, and a mount would hide what is there; move it away, or give \
         another: cairn mount DIRECTORY",
        place.display()
    )]
    NotEmpty {
        /// Where.
        place: PathBuf,
    },
    /// A store is mounted there.
    #[error(
        "a store is mounted at {} already: {}; unmount it with: cairn unmount {}",
        place.display(), store.display(), place.display()
    )]
    Mounted {
        /// Where.
        place: PathBuf,
        /// Directory of its store.
        store: PathBuf,
    },
    /// Each rank of the job has files of its own.
    #[error(
        "job {job} has files of its own for every rank (--scope rank), and one mount cannot show \
         them; see them with: cairn ls {job}:/"
    )]
    ByRank {
        /// The job.
        job: String,
    },
    /// The keeper could not start.
    #[error("{reason}")]
    Keeper {
        /// What it said.
        reason: String,
    },
    /// Servers die again and again.
    #[error("the server of the mount at {} died, and is not started again", place.display())]
    Dies {
        /// Where.
        place: PathBuf,
    },
    /// The first server did not begin.
    #[error("cannot mount at {}: no server begins; see {log} in the store's directory", place.display())]
    NoServer {
        /// Where.
        place: PathBuf,
        /// Name of its log.
        log: &'static str,
    },
    /// Nothing to unmount.
    #[error("no store is mounted{}", place.as_ref().map(|place| format!(" at {}", place.display())).unwrap_or_default())]
    NotMounted {
        /// Where the user meant.
        place: Option<PathBuf>,
    },
    /// Several mounts could be meant.
    #[error("several stores are mounted; name one of: {}", places.join(", "))]
    Several {
        /// Where.
        places: Vec<String>,
    },
    /// The user may not unmount it, or the helper failed.
    #[error("cannot unmount {}: {source}", place.display())]
    Unmount {
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Programs use the mount.
    #[error(
        "cannot unmount {}: {source}; programs use it (fuser -m {} names them), or unmount it as soon \
         as they end with: cairn unmount --lazy {}",
        place.display(), place.display(), place.display()
    )]
    Busy {
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl MountError {
    /// Exit code of a command that ends with this error.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            MountError::NoPlace { .. }
            | MountError::NotEmpty { .. }
            | MountError::Mounted { .. }
            | MountError::ByRank { .. }
            | MountError::NotMounted { .. }
            | MountError::Several { .. } => EXIT_USAGE,
            MountError::Mount { .. }
            | MountError::Keeper { .. }
            | MountError::Dies { .. }
            | MountError::NoServer { .. }
            | MountError::Unmount { .. }
            | MountError::Busy { .. } => EXIT_FAILURE,
        }
    }
}
