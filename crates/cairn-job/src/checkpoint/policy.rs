//! The user's policy for checkpoints and files: the section `checkpoint` of a job.
//!
//! Must stay true: an invalid pattern is refused when the job is described, not when it runs.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Default settle time.
pub const SETTLE_DEFAULT: Duration = Duration::from_secs(5);

/// Purpose of a file; decides how it is handled (echofs, section III).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// The file is drained, whatever becomes of its checkpoint.
    Persistent,
    /// The file came from elsewhere or can be made again: it stays in the store and is not drained.
    Reusable,
    /// Nobody needs the file after the job: it is never drained.
    Temporary,
}

/// Assigns a purpose to files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// Shell wildcards for the path of a file below the mount prefix.
    pub files: String,
    /// Purpose of these files.
    pub purpose: Purpose,
}

/// How often a checkpoint goes to a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    /// One of this many checkpoints of its family.
    Count(u64),
    /// One in this many seconds.
    Seconds(u64),
}

impl Default for Every {
    fn default() -> Every {
        Every::Count(1)
    }
}

/// Policy for checkpoints and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointPolicy {
    /// Patterns of the user; they come before the defaults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    /// How often a checkpoint is drained.
    pub pfs: Every,
    /// Settle time, milliseconds: after this time without a change the files of a checkpoint are
    /// copied, although nothing says that it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
    /// Purposes of files; the last match holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
}

impl CheckpointPolicy {
    /// Whether the user set nothing.
    pub fn is_default(&self) -> bool {
        *self == CheckpointPolicy::default()
    }

    /// Returns the settle time: after this time without a change the files of a checkpoint are
    /// copied, although nothing says that it is complete.
    pub fn settle(&self) -> Duration {
        self.settle_ms.map_or(SETTLE_DEFAULT, Duration::from_millis)
    }
}
