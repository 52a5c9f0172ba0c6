//! A store for a run: what kind was asked for, where it has room, made or taken over.

pub(crate) mod capacity;
pub(crate) mod claim;
pub(crate) mod claimed_tiers;
pub(crate) mod numa;
pub(crate) mod placement;
pub(crate) mod request;
pub(crate) mod staging;
