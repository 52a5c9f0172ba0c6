//! The object store to which complete checkpoints are archived: its description in a job, and the
//! status of the work.
//!
//! Must stay true: the manifest object of a checkpoint is written after all objects that it names
//! were verified, and removed before any of them is replaced. Credentials are read where they are
//! used and stand in no file of Cairn. Does not decide what a checkpoint is; `sets/register.rs`
//! does. `keeper.rs` is the thread, `upload.rs` sends a checkpoint, `begun.rs` records unfinished
//! uploads, `fetch.rs` finds and reads objects, `client.rs` talks to the server.

mod begun;
mod client;
mod credentials;
pub mod fetch;
pub(crate) mod keeper;
pub mod manifest;
mod select;
mod upload;

#[cfg(test)]
#[path = "../../cairn-testing/src/object_store.rs"]
mod object_store;

use crate::agent::observable::Observable;
use crate::checkpoint::sets::policy::Every;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

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

/// Errors: this process has no credentials for an archive.
pub fn check_credentials() -> crate::model::error::Result<()> {
    credentials::find().map(drop)
}

/// Requests to the archive thread, and its status.
#[derive(Default)]
pub(crate) struct State {
    /// Number of rounds requested so far.
    pub requested: u64,
    /// Number of the last request that a finished round answered.
    pub finished: u64,
    /// Whether the newest checkpoint of each family is to be archived whatever the policy says.
    pub newest: bool,
    /// Status; None if the job archives nothing.
    pub status: Option<ArchiveStatus>,
    /// When the server is tried again.
    pub retry_at: Option<Instant>,
    /// Whether there is work to do.
    pub is_busy: bool,
    /// The job's archive policy.
    pub policy: Option<ArchivePolicy>,
    /// Checkpoints found missing in the archive; None before it was asked.
    pub owed: Option<Owed>,
    /// Checkpoints that could not be archived and have left the store.
    pub abandoned: Vec<String>,
}

/// Checkpoints that are to be archived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// Id of the newest checkpoint examined. Whether later ones are due is not known yet.
    pub newest_seen: u64,
    /// Checkpoints that are not in the archive.
    pub missing: BTreeSet<u64>,
    /// Missing checkpoints that cannot be archived and are retried only on request.
    pub refused: BTreeSet<u64>,
}

/// Requests and status, shared with the archive thread.
pub(crate) type ArchiveMonitor = Observable<State>;

impl ArchiveMonitor {
    /// Whether something is still to be archived.
    pub fn is_busy(&self) -> bool {
        self.state().is_busy
    }

    /// Whether checkpoint `id` is still to be archived, or may be.
    pub fn may_owe(&self, id: u64) -> bool {
        let state = self.state();
        let may_owe = |owed: &Owed| id > owed.newest_seen || owed.missing.contains(&id);
        state.policy.is_some() && state.owed.as_ref().is_none_or(may_owe)
    }

    /// Whether checkpoint `id` cannot be archived.
    pub fn refuses(&self, id: u64) -> bool {
        self.state().owed.as_ref().is_some_and(|owed| owed.refused.contains(&id))
    }

    /// Records that a checkpoint that cannot be archived has left the store.
    pub fn abandon(&self, name: String) {
        self.state().abandoned.push(name);
    }

    /// Sets the job's archive policy. A changed policy clears `owed`, which was found for another
    /// archive.
    pub fn go_by(&self, policy: &Option<ArchivePolicy>) {
        let mut state = self.state();
        if state.policy != *policy {
            state.policy.clone_from(policy);
            state.owed = None;
        }
    }

    /// Requests a round, of the newest checkpoints in any case if `newest` is set. Returns the
    /// request's number.
    pub fn ask(&self, newest: bool) -> u64 {
        let mut state = self.state();
        state.requested += 1;
        state.newest |= newest;
        let ticket = state.requested;
        drop(state);
        self.notify();
        ticket
    }

    /// Returns the status.
    pub fn status(&self) -> Option<ArchiveStatus> {
        let state = self.state();
        let is_asked = state.requested > state.finished;
        let left = state.retry_at.map(|at| at.saturating_duration_since(Instant::now()));
        let retry_in_ms = left.map(|left| left.as_millis() as u64);
        let phase = |phase| if is_asked { Phase::Uploading } else { phase };
        let told = |status: ArchiveStatus| ArchiveStatus {
            retry_in_ms,
            phase: phase(status.phase),
            abandoned: state.abandoned.clone(),
            ..status
        };
        state.status.clone().map(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_is_owed_until_it_was_looked_at_and_found_there() {
        let desk = ArchiveMonitor::default();
        assert!(!desk.may_owe(1), "nothing is archived");
        let policy = |url: &str| {
            let (url, region) = (url.to_string(), "eu".to_string());
            Some(ArchivePolicy { url, region, endpoint: None, every: Every::default() })
        };
        desk.go_by(&policy("s3://runs"));
        assert!(desk.may_owe(1), "nobody has asked the server");
        desk.state().owed =
            Some(Owed { newest_seen: 2, missing: BTreeSet::from([1]), ..Owed::default() });
        desk.go_by(&policy("s3://runs"));
        assert_eq!([1, 2, 3].map(|id| desk.may_owe(id)), [true, false, true]);
        desk.go_by(&policy("s3://others"));
        assert_eq!([1, 2, 3].map(|id| desk.may_owe(id)), [true, true, true]);
    }

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
