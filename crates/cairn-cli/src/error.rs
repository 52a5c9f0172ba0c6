//! Errors of the commands and their exit codes.
//!
//! Invariant: each message is one line that says what failed, on which file, why, and what to do.
//! Exit code 2 means that the request itself was refused and nothing was created, lost or
//! overwritten.

mod copy;
mod drill;
mod exit_code;
mod fsck;
mod launch;
mod mount;
mod persist;
mod report;
mod resume;
mod setting;
mod stage;
mod store;
mod target;
mod tier;

pub use copy::CopyError;
pub use drill::DrillError;
pub use exit_code::{EXIT_DRAIN, EXIT_FAILURE, EXIT_NOT_REPAIRED, EXIT_USAGE};
pub use fsck::FsckError;
pub use launch::LaunchError;
pub use mount::MountError;
pub use persist::PersistError;
pub use report::ReportError;
pub use resume::ResumeError;
pub use setting::SettingError;
pub use stage::StageError;
pub use store::StoreError;
pub use target::TargetError;
pub use tier::TierError;

use cairn_agent::model::error::why;
use cairn_agent::model::holder::Holder;
use std::io;
use std::path::PathBuf;

/// Result of a command.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why a command cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of an option or of a settings file that cannot be used.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A tier of a new store that cannot be made.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// A store that is missing, in use, or has files that nothing else has.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A store that cannot be resumed as it was asked for.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A program that cannot be started, or would not be served.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A persist directory or archive that cannot be filled, read or staged from.
    #[error(transparent)]
    Persist(#[from] PersistError),
    /// Paths that `cairn cp` and similar commands cannot use.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// An NVMe/TCP target that cannot be started, reached or asked.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A drill that failed, or tested nothing.
    #[error(transparent)]
    Drill(#[from] DrillError),
    /// A durable tier that is damaged.
    #[error(transparent)]
    Fsck(#[from] FsckError),
    /// A store that cannot be mounted or unmounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Inputs that cannot be staged in.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Figures that were not recorded, or a plan that cannot be made from them.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// An error about the value of an option, where the error itself does not name the option.
    #[error("{source}")]
    Given {
        /// The option.
        option: &'static str,
        /// The error.
        source: Box<Error>,
    },
    /// A failed system call.
    #[error("cannot {action} {}: {}", path.display(), why(source))]
    File {
        /// What was attempted; a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// An error of the layers below.
    #[error("{0}")]
    Agent(#[from] cairn_agent::Error),
}

impl Error {
    /// Marks an error as being about the value of `option`, for `map_err`.
    pub fn of(option: &'static str) -> impl FnOnce(Error) -> Error {
        move |source| match source {
            // The error names an option already, and a more specific one.
            Error::Given { .. } => source,
            _ => Error::Given { option, source: Box::new(source) },
        }
    }

    /// Option that the error is about, or a key of the settings file that has no option.
    pub fn option(&self) -> Option<&'static str> {
        match self {
            Error::Given { option, .. } => Some(option),
            Error::Setting(error) => error.option(),
            Error::Tier(error) => error.option(),
            Error::Persist(error) => error.option(),
            _ => None,
        }
    }

    /// Returns the process that keeps a store from being used, if that is the error.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Error::Agent(cairn_agent::Error::Held { holder, .. })
            | Error::Store(StoreError::Store {
                source: cairn_agent::Error::Held { holder, .. },
                ..
            }) => Some(holder),
            _ => None,
        }
    }

    /// Exit code of the process for this error.
    pub fn exit_code(&self) -> i32 {
        match self {
            Error::Given { source, .. } => source.exit_code(),
            Error::Setting(error) => error.exit_code(),
            Error::Tier(error) => error.exit_code(),
            Error::Store(error) => error.exit_code(),
            Error::Resume(error) => error.exit_code(),
            Error::Launch(error) => error.exit_code(),
            Error::Mount(error) => error.exit_code(),
            Error::Stage(error) => error.exit_code(),
            Error::Persist(error) => error.exit_code(),
            Error::Copy(error) => error.exit_code(),
            Error::Target(error) => error.exit_code(),
            Error::Drill(error) => error.exit_code(),
            Error::Fsck(error) => error.exit_code(),
            Error::Report(error) => error.exit_code(),
            Error::Agent(cairn_agent::Error::NoCredentials { .. })
            | Error::Agent(cairn_agent::Error::Owned { .. }) => EXIT_USAGE,
            Error::Agent(_) | Error::File { .. } => EXIT_FAILURE,
        }
    }

    /// Whether a file or directory was missing, such as that of a store that was just removed.
    pub fn is_about_nothing_there(&self) -> bool {
        match self {
            Error::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Error::Store(StoreError::Store { source, .. }) | Error::Agent(source) => {
                is_about_nothing(source)
            }
            Error::Store(StoreError::NotAStore { .. }) => true,
            Error::Given { source, .. } => source.is_about_nothing_there(),
            _ => false,
        }
    }

    /// Returns a converter from a system error of `action` on `path`, for `map_err`.
    pub fn file<E: Into<io::Error>>(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(E) -> Error + use<E> {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source: source.into() }
    }
}

fn is_about_nothing(error: &cairn_agent::Error) -> bool {
    match error {
        cairn_agent::Error::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
        cairn_agent::Error::Namespace(error) => error.errno == libc::ENOENT,
        _ => false,
    }
}

impl From<cairn_device::StoreError> for Error {
    fn from(error: cairn_device::StoreError) -> Error {
        Error::Agent(error.into())
    }
}
