//! What a job says of the space of its store: what is kept in it, and how long a write waits for
//! room.
//!
//! Stands as one field in the job's description; a store without it gives nothing up and lets
//! nobody wait.

use serde::{Deserialize, Serialize};

/// How long a write waits for space unless the job says otherwise, where something can be given up
/// at all.
pub const PATIENCE_SECONDS_DEFAULT: u64 = 30;

/// The space of a job's store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpacePolicy {
    /// How many complete checkpoints of a family stay, the newest ones; older ones go once they are
    /// drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_count: Option<u64>,
    /// How many bytes of complete checkpoints stay, of the newest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_bytes: Option<u64>,
    /// How long complete checkpoints stay, seconds since their last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_seconds: Option<u64>,
    /// How long a write waits for space, seconds; 0: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
    /// How many bytes the tiers may have together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
}

impl SpacePolicy {
    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        *self == SpacePolicy::default()
    }

    /// Whether anything may ever be given up.
    pub fn retains(&self) -> bool {
        self.retain_count.or(self.retain_bytes).or(self.retain_seconds).is_some()
    }

    /// How long a write waits, milliseconds: only where there is something to wait for.
    pub fn patience_ms(&self, drains: bool) -> u32 {
        let seconds = match self.retains() && drains {
            true => self.wait_seconds.unwrap_or(PATIENCE_SECONDS_DEFAULT),
            false => 0,
        };
        u32::try_from(seconds.saturating_mul(1000)).unwrap_or(u32::MAX / 2)
    }
}
