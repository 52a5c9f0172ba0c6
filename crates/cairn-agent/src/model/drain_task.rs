//! What the drain is told about a run and its end: which checkpoints are wanted, and how files are
//! delivered.

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

/// Which files are copied to the persist directory, and under which names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// Files that were closed in order and belong to no unfinished checkpoint, under their own
    /// names.
    #[default]
    Sound,
    /// All files that nobody has open, as they are, under their own names.
    AsIs,
    /// All files as they are at one moment, in a directory of their own, see [`crate::image`].
    Image,
    /// The same for a job without a run, see [`crate::model::job::left_name`].
    Left,
    /// The same for a job that goes on from its last image; that image stays.
    LeftForImage,
}

impl Delivery {
    /// Whether files go to a directory of their own instead of their places.
    pub fn is_aside(self) -> bool {
        matches!(self, Delivery::Image | Delivery::Left | Delivery::LeftForImage)
    }
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
    /// Which files are meant. After a run that succeeded, all files are final.
    #[serde(default)]
    pub delivery: Delivery,
}

impl DrainTask {
    /// Merges another request into this one; the further-reaching wish wins.
    pub fn add(&mut self, other: DrainTask) {
        self.succeeded = other.succeeded.or(self.succeeded);
        self.wanted = self.wanted.max(other.wanted);
        self.verify |= other.verify;
        self.delivery = self.delivery.max(other.delivery);
    }
}
