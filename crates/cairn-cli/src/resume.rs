//! Continues from what an earlier run left: in its store, on its tiers, or in the persist
//! directory.

pub(crate) mod earlier;
pub(crate) mod media_rebuild;
pub(crate) mod ownership;
pub(crate) mod recovery_report;
pub(crate) mod restart_check;
