//! A store that cannot be resumed as it was asked for.

use super::{EXIT_FAILURE, EXIT_USAGE};

/// A store that cannot be resumed as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// A store must be rebuilt from its media after a write error, but programs use it.
    #[error(
        "writing to the tier of job {job} failed, and {users} its store, which can be made again from the tier only \
         without them; nothing was changed: end them, and run it again"
    )]
    MediaInUse {
        /// The job.
        job: String,
        /// Its users, as text.
        users: String,
    },
    /// A rebuild from the media after a write error would lose complete files.
    #[error(
        "writing to {tier} failed, and the store can only be made again from what is there; {files}, complete, would be lost with \
         the memory that has the data: {names}; nothing was changed: bring that to safety with {drain}, or give it up with --yes, \
         and run it again"
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
        "the newest checkpoints of job {job} could not all be compared with their checksums, or put right: {reason}; nothing was \
         started: run it again when that is mended, or go on with what there is: --resume as-is"
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
    /// `--resume image` for a job without an image.
    #[error(
        "there is no whole image of job {job} in {persist} to go on from; nothing was changed: to go on with the store, leave out \
         --resume image"
    )]
    NoImage {
        /// The job.
        job: String,
        /// Directory of the images.
        persist: String,
    },
    /// The store could not be copied out before a resume from the image.
    #[error(
        "what job {job} has in its store cannot be set aside for its last image: {reason}; nothing was started, and the store keeps \
         its files: mend that and run it again, or go on with the store: --resume as-is"
    )]
    NotSetAside {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// A repair that a killed run began cannot be finished.
    #[error(
        "a run of job {job} was killed while it put checkpoints right or set them aside, and that cannot be ended: {reason}; \
         nothing was started: run it again when that is mended"
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
            | ResumeError::Damaged { .. }
            | ResumeError::NoImage { .. }
            | ResumeError::NotSetAside { .. } => EXIT_USAGE,
            ResumeError::NotCompared { .. } | ResumeError::NotSettled { .. } => EXIT_FAILURE,
        }
    }
}
