//! Going on with what an earlier run left: in its store, on its tiers, or outside.

pub(crate) mod earlier;
pub(crate) mod media_rebuild;
pub(crate) mod ownership;
pub(crate) mod recovery_report;
pub(crate) mod restart_check;
