//! Obtains a store for a run: makes and fills a new one, or takes over an existing one.

pub(crate) mod claimed_tiers;
pub(crate) mod obtain;
pub(crate) mod staging;
