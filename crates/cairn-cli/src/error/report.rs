//! Figures that were not recorded, or a plan that cannot be made from them.

use std::path::PathBuf;

use crate::error::exit_code::EXIT_USAGE;

/// Figures that were not recorded, or a plan that cannot be made from them.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No plan is possible.
    #[error("cannot plan: {problem}; {advice}")]
    Plan {
        /// What is missing or wrong.
        problem: String,
        /// Advice.
        advice: &'static str,
    },
    /// No advice is possible from these figures.
    #[error("{0}")]
    Advice(cairn_agent::model::advise::Refused),
    /// The job has no measured checkpoint.
    #[error(
        "job {job} has announced no complete checkpoint (cairn_checkpoint_begin and _end); give the time of one, as \
         in --checkpoint-cost 12s"
    )]
    NotMeasured {
        /// The job.
        job: String,
    },
    /// Standard output is not a terminal.
    #[error("cairn top needs a terminal; in scripts use: cairn status --json")]
    NoTerminal,
    /// The job has no timeline.
    #[error("job {job} has no recorded figures: there is no {}; name the directory it was drained to with --persist", path.display())]
    NoTimeline {
        /// The job.
        job: String,
        /// Places that were searched.
        path: PathBuf,
    },
    /// The timeline of the job is empty.
    #[error("job {job} has read and written nothing yet")]
    NothingRecorded {
        /// The job.
        job: String,
    },
    /// Calls of the job were not counted.
    #[error("calls of job {job} were not counted; run it with --report-calls")]
    NotCounted {
        /// The job.
        job: String,
    },
}

impl ReportError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            ReportError::Plan { .. }
            | ReportError::Advice(..)
            | ReportError::NotMeasured { .. }
            | ReportError::NoTerminal
            | ReportError::NoTimeline { .. }
            | ReportError::NothingRecorded { .. }
            | ReportError::NotCounted { .. } => EXIT_USAGE,
        }
    }
}
