//! A durable tier that is damaged.

use cairn_nvme::shared::RemotePath;
use std::path::PathBuf;

use super::Error;
use crate::error::exit_code::{EXIT_FAILURE, EXIT_NOT_REPAIRED};

/// A durable tier that is damaged.
#[derive(Debug, thiserror::Error)]
pub enum FsckError {
    /// A durable tier with damaged metadata.
    #[error("the tier {0} cannot be read: {source}; see: cairn fsck {0}", RemotePath::shown(path))]
    TierDamaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        source: cairn_core::Error,
    },
    /// A durable tier that cannot be repaired.
    #[error("{} is damaged beyond repair, nothing was changed; {advice}", RemotePath::shown(path))]
    BeyondRepair {
        /// The file.
        path: PathBuf,
        /// Advice.
        advice: &'static str,
    },
    /// A repair of a durable tier that failed.
    #[error("{source}")]
    NotRepaired {
        /// The reason.
        source: Box<Error>,
    },
}

impl FsckError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            FsckError::TierDamaged { .. } => EXIT_FAILURE,
            FsckError::BeyondRepair { .. } | FsckError::NotRepaired { .. } => EXIT_NOT_REPAIRED,
        }
    }
}
