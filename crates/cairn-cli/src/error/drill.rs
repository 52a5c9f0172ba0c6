//! A drill that failed, or tested nothing.

use crate::error::exit_code::EXIT_FAILURE;

/// A drill that failed, or tested nothing.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// A run that did not recover in a drill.
    #[error(
        "the run did not recover: it ended with exit code {code}; its store is kept, see: cairn ls --checkpoints {job}"
    )]
    NotRecovered {
        /// Job of the drill.
        job: String,
        /// Exit code of the run.
        code: i32,
    },
    /// A run that ended before all kills of a drill.
    #[error(
        "the run ended too early: it was killed {kills} of {wanted} times; give shorter times with --after, or fewer \
         --kills"
    )]
    TooFewKills {
        /// Number of kills.
        kills: u32,
        /// Requested number of kills.
        wanted: u32,
    },
    /// A drill whose program had no files in the store at any kill.
    #[error(
        "nothing was tested: the store was empty at every kill ({kills}); have the program write its checkpoints below the prefix \
         (default /cairn), or kill it later with --after"
    )]
    NothingAtStake {
        /// Number of kills.
        kills: u32,
    },
    /// A signal ended the drill.
    #[error("signal {signal} ended the drill and its run; the store is removed")]
    DrillEnded {
        /// The signal.
        signal: i32,
    },
    /// Processes left their process group and survived a kill.
    #[error(
        "{processes} processes of the run left its process group and survived the kill; start them in that group, or end them by hand"
    )]
    ProcessesSurvived {
        /// Number of processes.
        processes: usize,
    },
}

impl DrillError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            DrillError::NotRecovered { .. }
            | DrillError::TooFewKills { .. }
            | DrillError::NothingAtStake { .. }
            | DrillError::ProcessesSurvived { .. } => EXIT_FAILURE,
            DrillError::DrillEnded { signal } => 128 + signal,
        }
    }
}
