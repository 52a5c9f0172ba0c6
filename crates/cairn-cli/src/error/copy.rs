//! Paths that `cairn cp` and similar commands cannot use.

use crate::error::exit_code::{EXIT_FAILURE, EXIT_USAGE};

/// Paths that `cairn cp` and similar commands cannot use.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Not a path in a store.
    #[error("{text:?} is not a path in a store; write JOB:/path")]
    Path {
        /// Value that the user gave.
        text: String,
    },
    /// Neither or both sides of a copy are in a store.
    #[error(
        "exactly one of source and target must be in a store, written JOB:/path; to copy between \
         other paths use cp(1)"
    )]
    CopySides,
    /// A directory where a file is expected.
    #[error("{path} is a directory; add --recursive")]
    IsDirectory {
        /// The directory.
        path: String,
    },
    /// A target that cannot be written.
    #[error("cannot write {path}: {problem}")]
    Target {
        /// The target.
        path: String,
        /// The problem.
        problem: &'static str,
    },
    /// No file matches.
    #[error("no clean file matches {pattern:?} in job {job}; see: cairn ls {job}:/")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// The job.
        job: String,
    },
}

impl CopyError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            CopyError::Path { .. }
            | CopyError::CopySides
            | CopyError::IsDirectory { .. }
            | CopyError::Target { .. } => EXIT_USAGE,
            CopyError::NoMatch { .. } => EXIT_FAILURE,
        }
    }
}
