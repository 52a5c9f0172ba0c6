//! The operation log, snapshots, and the namespace made again from both.

pub(crate) mod flush;
pub(crate) mod oplog;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod snapshot;
