//! The object store of a job: the archive policy in its description, and the status of the archive.

use serde::{Deserialize, Serialize};
use std::fmt;

use cairn_job::checkpoint::policy::Every;

/// A bucket and the common prefix of Cairn's object names in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of object names, without slashes around it; may be empty.
    pub prefix: String,
}

impl Location {
    /// Parses `s3://BUCKET/PREFIX`. Errors: what is wrong with it.
    pub fn parse(url: &str) -> Result<Location, &'static str> {
        let rest = url.strip_prefix("s3://").ok_or("is not of the form s3://BUCKET/PREFIX")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if bucket.is_empty() || !bucket.bytes().all(allowed) {
            return Err("names no bucket: write s3://BUCKET/PREFIX");
        }
        let is_plain = |name: &str| !matches!(name, "" | "." | "..");
        if !prefix.is_empty() && !prefix.split('/').all(is_plain) {
            return Err("has an empty, `.` or `..` part in its prefix");
        }
        if prefix.contains(['?', '#']) || prefix.chars().any(char::is_control) {
            return Err("has a ?, a # or a control character in its prefix");
        }
        Ok(Location { bucket: bucket.to_string(), prefix: prefix.to_string() })
    }

    /// Returns the common prefix of all object names, with its slash.
    pub fn root(&self) -> String {
        match self.prefix.as_str() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        }
    }

    /// Returns the name of an object of `job`.
    pub fn key(&self, job: &str, name: &str) -> String {
        format!("{}{job}/{name}", self.root())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.as_str() {
            "" => write!(f, "s3://{}", self.bucket),
            prefix => write!(f, "s3://{}/{prefix}", self.bucket),
        }
    }
}

/// Where checkpoints of a job are archived, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivePolicy {
    /// `s3://BUCKET/PREFIX`.
    pub url: String,
    /// Server, `http://` or `https://`; None for Amazon's in the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: String,
    /// How often a checkpoint is archived.
    #[serde(default)]
    pub every: Every,
}

/// Activity of the archive thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing to do.
    #[default]
    Idle,
    /// Sending checkpoints.
    Uploading,
    /// Waiting to try the server again.
    Retrying,
}

/// Status of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveStatus {
    /// Destination: `s3://BUCKET/PREFIX`.
    pub url: String,
    /// Activity of the archive thread.
    pub phase: Phase,
    /// Number of checkpoints of this store in the archive, verified.
    pub checkpoints: u64,
    /// Total size of these checkpoints.
    pub bytes: u64,
    /// Number of checkpoints still to be sent.
    pub pending: u64,
    /// Bytes sent of the current checkpoint.
    pub sent_bytes: u64,
    /// Size of the current checkpoint.
    pub sending_bytes: u64,
    /// Why the server cannot be used, while `phase` is `retrying`.
    pub reason: Option<String>,
    /// Time until the next attempt, milliseconds.
    pub retry_in_ms: Option<u64>,
    /// Checkpoints that cannot be archived, with the reasons.
    pub failed: Vec<String>,
    /// Checkpoints that could not be archived and have left the store for want of room.
    #[serde(default)]
    pub abandoned: Vec<String>,
}

impl ArchiveStatus {
    /// Whether everything that is to be archived is there.
    pub fn is_complete(&self) -> bool {
        self.pending == 0 && self.reason.is_none() && self.failed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_is_a_bucket_and_a_prefix_and_nonsense_is_refused() {
        let location = Location::parse("s3://runs/a/b/").expect("is one");
        assert_eq!((location.bucket.as_str(), location.prefix.as_str()), ("runs", "a/b"));
        assert_eq!(location.key("melt", "x/y"), "a/b/melt/x/y");
        assert_eq!(location.to_string(), "s3://runs/a/b");
        let bare = Location::parse("s3://runs").expect("is one");
        assert_eq!(
            (bare.key("melt", "x"), bare.to_string()),
            ("melt/x".into(), "s3://runs".into())
        );
        for bad in
            ["runs", "s3://", "s3:///x", "s3://r/a//b", "s3://r/../x", "s3://r u/x", "s3://r/?"]
        {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
    }
}
