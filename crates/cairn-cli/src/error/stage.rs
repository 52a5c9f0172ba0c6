//! Inputs that cannot be staged in.

use std::path::{Path, PathBuf};

use crate::error::exit_code::{EXIT_FAILURE, EXIT_USAGE};

/// An input that cannot be staged in.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// There is nothing under the name that the user gave.
    #[error("cannot stage in {}: it does not exist{}", path.display(), nearest(parent))]
    Missing {
        /// What the user named.
        path: PathBuf,
        /// The nearest directory above it that exists, unless that is the next one.
        parent: Option<PathBuf>,
    },
    /// The source has gone before all of it was staged.
    #[error(
        "cannot stage in {}: it does not exist any more, and {lacking} of its files are not in the \
         store yet; bring it back, or begin anew with another --job",
        path.display()
    )]
    GoneBefore {
        /// What the user named.
        path: PathBuf,
        /// Number of files that are missing.
        lacking: usize,
    },
    /// Neither a file nor a directory.
    #[error("cannot stage in {}: it is neither a file nor a directory", path.display())]
    Special {
        /// What the user named.
        path: PathBuf,
    },
    /// A file for the prefix itself.
    #[error("cannot stage in {}: a file needs a name in the store, as in SOURCE:NAME", path.display())]
    NoName {
        /// What the user named.
        path: PathBuf,
    },
    /// A directory is where the job has a file.
    #[error(
        "cannot stage in {} at /{path} of the store: the job has a file of its own there; give the \
         input another path, as in SOURCE:PATH",
        source_path.display()
    )]
    Taken {
        /// What the user named.
        source_path: PathBuf,
        /// Its path in the store.
        path: String,
    },
    /// Others could put files there that this user's programs would read.
    #[error(
        "cannot keep inputs in {}: it must be a directory that only you can enter; remove it, or \
         make it private with chmod 700",
        path.display()
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
    },
    /// The drain could replace the source.
    #[error(
        "cannot stage in {}: the job drains to {}, and would change its own input; drain elsewhere \
         (--persist), or bring in what it has drained with --stage",
        path.display(), persist.display()
    )]
    InPersist {
        /// What the user named.
        path: PathBuf,
        /// The persist directory.
        persist: PathBuf,
    },
    /// Each rank has files of its own.
    #[error(
        "--stage-in fills one tree for all processes, but with --scope rank each rank has its own; \
         leave one of them out"
    )]
    OfRanks,
    /// Two inputs have a file and a directory, or the like, for the same path.
    #[error(
        "cannot stage in {} at /{path} of the store: another input has something of another kind \
         there; give one of them another path, as in SOURCE:PATH",
        source_path.display()
    )]
    Overlap {
        /// The file.
        source_path: PathBuf,
        /// Its path in the store.
        path: String,
    },
    /// The store is too small.
    #[error(
        "cannot stage in {}: the store's tiers are full, and the inputs need {}; give it larger or more \
         tiers (--tier), or name fewer inputs",
        path.display(), bytes
    )]
    NoRoom {
        /// The file that did not fit.
        path: PathBuf,
        /// Size of all inputs that were to be staged.
        bytes: String,
    },
    /// The file changed between the look at its directory and the end of its copy.
    #[error(
        "cannot stage in {}: it changed while it was copied; start again when its writer has ended",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The time that the user allowed is over.
    #[error(
        "staging in took longer than {} (--stage-timeout): {here} of {total} files are in the store; \
         the same command continues with the others",
        limit
    )]
    Late {
        /// The time.
        limit: String,
        /// Number of files that are in the store.
        here: usize,
        /// Number of files that were to be staged.
        total: usize,
    },
}

impl StageError {
    /// The error about a source that is missing.
    pub fn missing(path: &Path) -> StageError {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let above = path.ancestors().skip(1);
        let is_next = |above: &Path| Some(above) == path.parent();
        let parent = above.into_iter().find(|above| above.exists()).filter(|above| !is_next(above));
        StageError::Missing { path: path.to_path_buf(), parent: parent.map(Path::to_path_buf) }
    }

    /// Exit code of a command that ends with this error.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            StageError::Missing { .. }
            | StageError::GoneBefore { .. }
            | StageError::Special { .. }
            | StageError::NoName { .. }
            | StageError::Taken { .. }
            | StageError::NotPrivate { .. }
            | StageError::InPersist { .. }
            | StageError::OfRanks
            | StageError::Overlap { .. } => EXIT_USAGE,
            StageError::NoRoom { .. } | StageError::Changed { .. } | StageError::Late { .. } => {
                EXIT_FAILURE
            }
        }
    }
}

/// The words about a parent that exists.
fn nearest(parent: &Option<PathBuf>) -> String {
    let shown = parent
        .as_ref()
        .map(|path| format!(", nor does the directory above it; {} does", path.display()));
    shown.unwrap_or_default()
}
