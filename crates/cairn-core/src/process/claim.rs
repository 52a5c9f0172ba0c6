//! Duties that one process at a time has: flushing the log, writing a snapshot.
//!
//! A claim is three words, the identity of the process that has the duty. The next process that
//! wants it waits, and takes it over if that process does not exist any more: the unfinished work
//! can be done again from the start.

use crate::engine::transaction::Transaction;
use crate::format::layout::{FLUSH_CLAIM, SNAPSHOT_CLAIM};
use crate::format::types::ProcessIdentity;

/// A duty, identified by the first of its words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim(usize);

/// Flushing the log to the media.
pub(crate) const FLUSH: Claim = Claim(FLUSH_CLAIM);
/// Writing a snapshot.
pub(crate) const SNAPSHOT: Claim = Claim(SNAPSHOT_CLAIM);

impl Claim {
    /// Returns the process that has the duty.
    pub(crate) fn owner(self, tx: &Transaction) -> Option<ProcessIdentity> {
        let pid = tx.get(self.0) as u32;
        let (pid_namespace, start_time) = (tx.get(self.0 + 1), tx.get(self.0 + 2));
        (pid != 0).then_some(ProcessIdentity { pid, pid_namespace, start_time })
    }

    /// Gives the duty to a process, or to none.
    pub(crate) fn set_owner(self, tx: &mut Transaction, owner: Option<ProcessIdentity>) {
        let nobody = ProcessIdentity { pid: 0, pid_namespace: 0, start_time: 0 };
        let owner = owner.unwrap_or(nobody);
        tx.set(self.0, u64::from(owner.pid));
        tx.set(self.0 + 1, owner.pid_namespace);
        tx.set(self.0 + 2, owner.start_time);
    }
}
