//! The operation log, snapshots, the namespace made again from both; and whether one is sound.

pub(crate) mod check;
pub(crate) mod flush;
pub(crate) mod inspect;
pub(crate) mod oplog;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod snapshot;
