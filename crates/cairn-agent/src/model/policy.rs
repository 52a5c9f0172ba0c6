//! Drain policy of a job: the part of `job.json` that the options of `[drain]` set.
//!
//! Must stay true: a store whose description lacks these options drains with the defaults.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// How a job is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainPolicy {
    /// Largest number of bytes copied per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bytes: Option<u64>,
    /// Largest percentage of the time in which programs write that the drain may work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<u8>,
    /// Priority of the drain against programs.
    #[serde(skip_serializing_if = "Priority::is_default")]
    pub priority: Priority,
    /// What happens to undrained files when the program has ended.
    #[serde(skip_serializing_if = "AtEnd::is_default")]
    pub at_end: AtEnd,
    /// How copies are verified.
    #[serde(skip_serializing_if = "Verify::is_default")]
    pub verify: Verify,
    /// End of the job's time, seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Slots in which to copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<SlotPolicy>,
}

/// How many nodes and jobs that share a directory copy at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPolicy {
    /// The directory, absolute.
    pub directory: PathBuf,
    /// Number of slots.
    pub count: NonZeroU32,
}

/// What happens to files that are not drained when `cairn run` ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtEnd {
    /// Drain them, and wait for the end.
    #[default]
    Wait,
    /// Drain them without waiting.
    Background,
    /// Leave them in the store until somebody asks.
    #[serde(rename = "none")]
    Nothing,
}

impl AtEnd {
    fn is_default(&self) -> bool {
        *self == AtEnd::default()
    }
}

/// Who gets processors and disks first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Programs; the drain takes what they leave.
    #[default]
    Idle,
    /// Programs and the drain alike.
    Normal,
}

impl Priority {
    fn is_default(&self) -> bool {
        *self == Priority::default()
    }
}

/// How a copy is verified. Blocks read from the store are compared with their checksums in any
/// case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// The copy is read back, past the page cache, and compared.
    #[default]
    Read,
    /// The file system is trusted: it accepted all bytes and reported them durable.
    Write,
}

impl Verify {
    fn is_default(&self) -> bool {
        *self == Verify::default()
    }
}

impl DrainPolicy {
    /// Whether all options have their defaults.
    pub fn is_default(&self) -> bool {
        *self == DrainPolicy::default()
    }

    /// Whether the drain has a limit for the sake of programs.
    pub fn is_limited(&self) -> bool {
        self.rate_bytes.is_some() || self.share_percent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_said_is_not_written_and_is_read_as_the_default() {
        let text = serde_json::to_string(&DrainPolicy::default()).expect("writes");
        assert_eq!(text, "{}");
        assert_eq!(
            serde_json::from_str::<DrainPolicy>("{}").expect("reads"),
            DrainPolicy::default()
        );
        let policy = DrainPolicy { rate_bytes: Some(1), ..DrainPolicy::default() };
        let text = serde_json::to_string(&policy).expect("writes");
        assert_eq!(serde_json::from_str::<DrainPolicy>(&text).expect("reads"), policy);
        assert!(policy.is_limited() && !policy.is_default());
    }
}
