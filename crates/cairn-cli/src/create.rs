//! Obtains a store for a run: interprets the request, finds space for it, and creates the store or
//! takes over an existing one.

pub(crate) mod claimed_tiers;
pub(crate) mod obtain;
pub(crate) mod staging;
