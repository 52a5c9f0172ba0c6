//! A program that cannot be started, or would not be served.

use cairn_agent::model::error::why;
use std::io;
use std::path::PathBuf;

use crate::error::exit_code::{EXIT_FAILURE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND};

/// A program that cannot be started, or would not be served.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The interposer library is missing.
    #[error(
        "cannot find libcairn_preload.so (looked for {looked_for}); install it there or set \
         CAIRN_PRELOAD"
    )]
    NoPreload {
        /// Places that were searched.
        looked_for: String,
    },
    /// Programs would not be served.
    #[error(
        "files below the prefix cannot be served: {}: {reason}; reinstall the library together with the command, or skip \
         this check with CAIRN_RUN_PROBE=never", library.display()
    )]
    Unserved {
        /// Library that programs load.
        library: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A file that programs are linked with is missing.
    #[error("cannot find {file} (looked for {looked_for}); install it with: make install")]
    NotInstalled {
        /// The file.
        file: &'static str,
        /// Places that were searched.
        looked_for: String,
    },
    /// The path of the interposer library cannot be used in LD_PRELOAD.
    #[error(
        "{} cannot be preloaded: the dynamic linker splits its path at spaces and colons; move \
         it, or set CAIRN_PRELOAD",
        path.display(),
    )]
    PreloadPath {
        /// The library.
        path: PathBuf,
    },
    /// The program cannot be started.
    #[error("cannot execute {command}: {}", why(source))]
    Execute {
        /// The program.
        command: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl LaunchError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            LaunchError::NoPreload { .. }
            | LaunchError::Unserved { .. }
            | LaunchError::NotInstalled { .. }
            | LaunchError::PreloadPath { .. } => EXIT_FAILURE,
            LaunchError::Execute { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                EXIT_NOT_FOUND
            }
            LaunchError::Execute { .. } => EXIT_NOT_EXECUTABLE,
        }
    }
}
