//! How a job wants to be drained: the part of `job.json` that the options of `[drain]` make.
//!
//! Must stay true: a store that was made before any of this was said drains as it always did.

use serde::{Deserialize, Serialize};

/// The wishes of a job about its drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainPolicy {
    /// Bytes that are copied in a second, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bytes: Option<u64>,
    /// Of the time in which programs write, the drain may work so many percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<u8>,
    /// What runs beside programs may take from them.
    #[serde(skip_serializing_if = "Priority::is_default")]
    pub priority: Priority,
    /// What becomes of what is not drained when the program has ended.
    #[serde(skip_serializing_if = "AtEnd::is_default")]
    pub at_end: AtEnd,
    /// How a copy is known to be right.
    #[serde(skip_serializing_if = "Verify::is_default")]
    pub verify: Verify,
    /// When images of the store are copied out while a run goes on.
    #[serde(skip_serializing_if = "Images::is_default")]
    pub images: Images,
    /// When the job's time is over, seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

/// What happens to files that are not drained when `cairn run` ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtEnd {
    /// They are drained, and it waits for that.
    #[default]
    Wait,
    /// They are drained, and nobody waits.
    Background,
    /// They stay in the store until somebody asks.
    #[serde(rename = "none")]
    Nothing,
}

/// When all of a store, as it is at one moment, is copied out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Images {
    /// When something has arrived outside, and every so often.
    #[default]
    Auto,
    /// Only when somebody asks.
    Never,
    /// So many seconds after the last one.
    #[serde(untagged)]
    Every(u64),
}

impl Images {
    fn is_default(&self) -> bool {
        *self == Images::default()
    }
}

impl AtEnd {
    fn is_default(&self) -> bool {
        *self == AtEnd::default()
    }
}

/// For whom processors and disks work first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// For programs; the drain takes what they leave.
    #[default]
    Idle,
    /// For both alike.
    Normal,
}

impl Priority {
    fn is_default(&self) -> bool {
        *self == Priority::default()
    }
}

/// How a copy is known to be what was read from the store, whose blocks are compared with their
/// checksums in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// It is read back, past the page cache, and compared.
    #[default]
    Read,
    /// The file system took all of it and said that it is durable.
    Write,
}

impl Verify {
    fn is_default(&self) -> bool {
        *self == Verify::default()
    }
}

impl DrainPolicy {
    /// Whether nothing was said.
    pub fn is_default(&self) -> bool {
        *self == DrainPolicy::default()
    }

    /// Whether the drain holds back for programs.
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
