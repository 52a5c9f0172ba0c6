//! Space policy of a job's store: what stays in it, and how long a write waits for space.
//!
//! One field of the job's description. A store without it evicts nothing.

use serde::{Deserialize, Serialize};

/// Default time that a write waits for space while nothing is drained, seconds.
pub const PATIENCE_SECONDS_DEFAULT: u64 = 30;

/// Space policy of a job's store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpacePolicy {
    /// Number of complete checkpoints of a family that stay, newest first. Older ones go once they
    /// are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_count: Option<u64>,
    /// Bytes of complete checkpoints that stay, newest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_bytes: Option<u64>,
    /// Time that complete checkpoints stay after their last change, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_seconds: Option<u64>,
    /// Time that a write waits for space while nothing is drained, seconds; 0: it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
    /// Largest number of bytes in all tiers together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
}

impl SpacePolicy {
    /// Whether all options have their defaults.
    pub fn is_empty(&self) -> bool {
        *self == SpacePolicy::default()
    }

    /// Whether anything may ever be evicted.
    pub fn retains(&self) -> bool {
        self.retain_count.or(self.retain_bytes).or(self.retain_seconds).is_some()
    }

    /// Time that a write waits for space while nothing is drained, milliseconds; 0 if the store
    /// `drains` nowhere, so that nothing gives up its room.
    pub fn patience_ms(&self, drains: bool) -> u32 {
        let seconds = match drains {
            true => self.wait_seconds.unwrap_or(PATIENCE_SECONDS_DEFAULT),
            false => 0,
        };
        u32::try_from(seconds.saturating_mul(1000)).unwrap_or(u32::MAX / 2)
    }
}
