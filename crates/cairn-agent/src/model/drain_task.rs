//! What the drain is told about a run and its end, and which checkpoints are wanted.

use serde::{Deserialize, Serialize};

/// Which checkpoints are wanted in the persist directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// Those that the policy selects.
    #[default]
    Policy,
    /// Those of the policy, and the newest of each family.
    Newest,
    /// All checkpoints.
    All,
}

/// What a request tells the drain about the run, and which work it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainTask {
    /// Whether the run succeeded; None if its end is not reported.
    pub succeeded: Option<bool>,
    /// Which checkpoints are to be drained.
    pub wanted: Wanted,
    /// Whether to read all copies, and to compare them with what was drained.
    #[serde(default)]
    pub verify: bool,
}

impl DrainTask {
    /// Merges another request into this one; the further-reaching wish wins.
    pub fn add(&mut self, other: DrainTask) {
        self.succeeded = other.succeeded.or(self.succeeded);
        self.wanted = self.wanted.max(other.wanted);
        self.verify |= other.verify;
    }
}
