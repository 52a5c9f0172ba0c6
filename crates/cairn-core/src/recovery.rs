//! The operation log, snapshots, recovery of a namespace from both, and consistency checks.

pub(crate) mod check;
pub(crate) mod flush;
pub(crate) mod inspect;
pub(crate) mod media_check;
pub(crate) mod oplog;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod snapshot;
