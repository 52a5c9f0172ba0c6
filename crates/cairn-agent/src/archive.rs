//! The object store to which complete checkpoints are archived: requests to the archive thread, and
//! what it has found.
//!
//! Must stay true: the manifest object of a checkpoint is written after all objects that it names
//! were verified, and removed before any of them is replaced. Credentials are read where they are
//! used and stand in no file of Cairn. Does not decide what a checkpoint is; `sets/register.rs`
//! does. `agent/archive_keeper.rs` is the thread, `upload.rs` sends a checkpoint, `begun.rs`
//! records unfinished uploads, `fetch.rs` finds and reads objects, `client.rs` talks to the server.

pub(crate) mod begun;
pub(crate) mod client;
mod credentials;
pub mod fetch;
pub mod manifest;
pub(crate) mod select;
pub(crate) mod upload;

#[cfg(test)]
#[path = "../../cairn-testing/src/object_store.rs"]
mod object_store;

use crate::model::archive::{ArchivePolicy, ArchiveStatus, Phase};
use crate::model::observable::Observable;
use std::collections::BTreeSet;
use std::time::Instant;

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
    use cairn_job::checkpoint::policy::Every;

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
}
