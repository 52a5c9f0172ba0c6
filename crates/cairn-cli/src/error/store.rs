//! A store that is missing, in use, or has files that nothing else has.

use std::path::PathBuf;

use crate::error::exit_code::{EXIT_FAILURE, EXIT_USAGE};

/// A store that is missing, in use, or has files that nothing else has.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another `cairn run` holds the job.
    #[error(
        "job {job} is running already; wait for it, give another --job, or join it with: cairn \
         exec --job {job} -- COMMAND"
    )]
    Running {
        /// The job.
        job: String,
    },
    /// Removal of the store of a running job.
    #[error(
        "job {job} is running already, so its store cannot be removed; end the job, or wait for it: cairn status {job}"
    )]
    InUse {
        /// The job.
        job: String,
    },
    /// Removal of a store that programs of an ended `cairn run` still use.
    #[error(
        "the store of job {job} cannot be removed: {users} it, and later writes would be lost; end these processes first"
    )]
    StoreInUse {
        /// The job.
        job: String,
        /// Its users, as text.
        users: String,
    },
    /// The rank of this node that created the shared store could not fill it.
    #[error("job {job} has no store: the rank of this node that fills it failed: {reason}")]
    NotFilled {
        /// The job.
        job: String,
        /// The reason.
        reason: String,
    },
    /// The job has no store.
    #[error("job {job} has no store in {places}; see: cairn status")]
    NoStore {
        /// The job.
        job: String,
        /// Places that were searched.
        places: String,
    },
    /// There is no store at all.
    #[error("there is no store in {places}; make one with: cairn run -- COMMAND")]
    NoStores {
        /// Places that were searched.
        places: String,
    },
    /// Several stores match.
    #[error("there are several stores ({jobs}); name one of them")]
    WhichStore {
        /// The jobs.
        jobs: String,
    },
    /// The job has a store already.
    #[error(
        "job {job} has a store already; continue in it with: cairn run --job {job} -- COMMAND, or \
         remove it with: cairn rm {job}"
    )]
    StoreExists {
        /// The job.
        job: String,
    },
    /// A store directory without a description.
    #[error(
        "{} is not a complete store (it has no {}); remove the directory if nothing uses it",
        path.display(),
        cairn_agent::model::job::JOB_FILE,
    )]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// A store that cannot be used.
    #[error("the store cannot be used: {source}; {advice}")]
    Store {
        /// The cause.
        source: cairn_agent::Error,
        /// Advice.
        advice: &'static str,
    },
    /// Removal of a store with files that exist nowhere else.
    #[error(
        "the store of job {job} has files that are nowhere else ({files}); drain them with: \
         cairn drain {job} --persist DIR, or give them up with: cairn rm {job} --discard"
    )]
    WouldLose {
        /// The job.
        job: String,
        /// Number of files.
        files: usize,
    },
    /// Removal of a store with files that exist nowhere else and are never drained.
    #[error(
        "the store of job {job} has files that are nowhere else ({files}), {unclean} of them unclean: their \
         writer died or a write failed, so they are never drained; list them with: cairn ls --recursive {job}:/, save them with: cairn cp, \
         or give them up with: cairn rm {job} --discard"
    )]
    WouldLoseUnclean {
        /// The job.
        job: String,
        /// Number of files.
        files: usize,
        /// Number of unclean files among them.
        unclean: u64,
    },
    /// Removal of a store with checkpoints that are not archived.
    #[error(
        "the store of job {job} has checkpoints that are not in {url}: {reason}; archive them with: cairn drain {job}, or give \
         them up with: cairn rm {job} --discard"
    )]
    NotArchived {
        /// The job.
        job: String,
        /// Its archive.
        url: String,
        /// Why they are not archived.
        reason: String,
    },
    /// A store that `cairn gc` was to remove stays.
    #[error("the store of job {job} is kept: {why}")]
    NotFreed {
        /// The job.
        job: String,
        /// The reason.
        why: String,
    },
}

impl StoreError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            StoreError::Running { .. }
            | StoreError::InUse { .. }
            | StoreError::StoreInUse { .. }
            | StoreError::NoStore { .. }
            | StoreError::NoStores { .. }
            | StoreError::WhichStore { .. }
            | StoreError::StoreExists { .. }
            | StoreError::NotAStore { .. }
            | StoreError::Store { .. }
            | StoreError::WouldLose { .. }
            | StoreError::WouldLoseUnclean { .. }
            | StoreError::NotArchived { .. } => EXIT_USAGE,
            StoreError::NotFilled { .. } | StoreError::NotFreed { .. } => EXIT_FAILURE,
        }
    }
}
