//! A persist directory or archive that cannot be filled, read or staged from.

use std::path::{Path, PathBuf};

use crate::error::exit_code::{EXIT_DRAIN, EXIT_FAILURE, EXIT_USAGE};

/// A persist directory or archive that cannot be filled, read or staged from.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// A new store is to be filled, but has no source.
    #[error("--stage needs a persist directory to fill the store from; name it with --persist")]
    NothingToStage,
    /// The persist directory has files that this run would replace.
    #[error("{}", owned(path, owner, *is_own))]
    Owned {
        /// The directory.
        path: PathBuf,
        /// Job that drained them.
        owner: String,
        /// Whether that is the job itself, started again.
        is_own: bool,
    },
    /// `--stage` with scope `rank`: only the ranks know whose files these are.
    #[error(
        "--stage fills one tree for all processes, but with --scope rank each rank has its own; \
         leave one of them out"
    )]
    StageOfRanks,
    /// The job has no persist directory.
    #[error("job {job} has no persist directory; name one: cairn drain {job} --persist DIR")]
    NoPersist {
        /// The job.
        job: String,
    },
    /// A drain that is not complete.
    #[error("{summary}")]
    NotDrained {
        /// What is left, and why.
        summary: String,
    },
    /// A directory without a manifest.
    #[error(
        "{} has no {name}, so it cannot be verified or restored; name a directory that cairn drained to",
        path.display(),
    )]
    NoManifest {
        /// The directory.
        path: PathBuf,
        /// Name of the missing file.
        name: String,
    },
    /// An archive without checkpoints.
    #[error(
        "{url} has no checkpoint; give the URL that was archived to with: cairn run --archive URL"
    )]
    NothingArchived {
        /// `s3://BUCKET/PREFIX`, with the job if known.
        url: String,
    },
    /// A directory with manifests of other jobs only.
    #[error("{} has no manifest of job {job}, only of {jobs}; name one of these", path.display())]
    OtherManifests {
        /// The directory.
        path: PathBuf,
        /// Requested job.
        job: String,
        /// Jobs that drained there.
        jobs: String,
    },
    /// Manifests of several jobs match.
    #[error("there are manifests of several jobs ({jobs}); name one with --job")]
    WhichManifest {
        /// The jobs.
        jobs: String,
    },
    /// Damaged files.
    #[error("{damaged} of {checked} files are damaged or missing; {advice}")]
    Damage {
        /// Number of damaged files.
        damaged: u64,
        /// Number of checked files.
        checked: u64,
        /// Advice.
        advice: &'static str,
    },
}

impl PersistError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            PersistError::NothingToStage
            | PersistError::Owned { .. }
            | PersistError::StageOfRanks
            | PersistError::NoPersist { .. }
            | PersistError::NoManifest { .. }
            | PersistError::NothingArchived { .. }
            | PersistError::OtherManifests { .. }
            | PersistError::WhichManifest { .. } => EXIT_USAGE,
            PersistError::NotDrained { .. } => EXIT_DRAIN,
            PersistError::Damage { .. } => EXIT_FAILURE,
        }
    }

    /// Option that the error is about; of a key of the settings file, its name.
    pub(super) fn option(&self) -> Option<&'static str> {
        match self {
            PersistError::NothingToStage | PersistError::StageOfRanks => Some("--stage"),
            PersistError::Owned { .. } => Some("--persist"),
            _ => None,
        }
    }
}

/// Returns the message about a persist directory with existing files.
fn owned(path: &Path, owner: &str, is_own: bool) -> String {
    let (path, ways) = (path.display(), "to set them aside and start anew: --fresh");
    match is_own {
        true => format!(
            "{path} has files of an earlier run of job {owner}; to continue from them: --stage; {ways}; to add files with other names: --shared"
        ),
        false => format!(
            "{path} belongs to job {owner}; to continue that job: --job {owner} --stage; {ways}; to add files with other names: --shared; \
             or name another directory"
        ),
    }
}
