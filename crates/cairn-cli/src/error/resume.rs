//! A store that cannot be resumed as it was asked for.

use crate::error::exit_code::{EXIT_FAILURE, EXIT_USAGE};

/// A store that cannot be resumed as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// A store must be rebuilt from its media after a write error, but programs use it.
    #[error(
        "writing to the tier of job {job} failed, and its store cannot be rebuilt from the tier while {users} it; \
         nothing was changed: end these processes, and run the job again"
    )]
    MediaInUse {
        /// The job.
        job: String,
        /// Its users, as text.
        users: String,
    },
    /// A rebuild from the media after a write error would lose complete files.
    #[error(
        "writing to {tier} failed, so the store must be rebuilt from what is there; {files}, complete, would be lost because \
         the data is only in memory: {names}; nothing was changed: save the data with {drain}, or give it up with --yes, \
         and run the job again"
    )]
    NotOnMedia {
        /// Tier of the metadata.
        tier: String,
        /// Number of files, as text.
        files: String,
        /// Names of the files.
        names: String,
        /// Command that drains them.
        drain: String,
    },
    /// Checkpoints could not be compared with their checksums, or damaged ones not repaired.
    #[error(
        "cannot verify or repair all of the newest checkpoints of job {job}: {reason}; nothing was started: fix that and run \
         the job again, or go on with the files as they are: --resume as-is"
    )]
    NotCompared {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// Damaged metadata: the files of the store are unknown.
    #[error(
        "job {job}: {found}; nothing was changed, and the store is kept{ways}; to give the store up: cairn rm {job} --discard"
    )]
    Damaged {
        /// The job.
        job: String,
        /// Description of the damage.
        found: String,
        /// Where intact files may be, as text.
        ways: String,
    },
    /// A repair that a killed run began cannot be finished.
    #[error(
        "a run of job {job} was killed while it repaired checkpoints or set them aside, and that cannot be finished: {reason}; \
         nothing was started: fix that and run the job again"
    )]
    NotSettled {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
}

impl ResumeError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            ResumeError::MediaInUse { .. }
            | ResumeError::NotOnMedia { .. }
            | ResumeError::Damaged { .. } => EXIT_USAGE,
            ResumeError::NotCompared { .. } | ResumeError::NotSettled { .. } => EXIT_FAILURE,
        }
    }
}
