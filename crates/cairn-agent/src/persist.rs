//! The persist directory: its copies, and the manifest that describes them.

pub(crate) mod comparison;
pub mod destination;
pub mod displaced;
pub(crate) mod journal;
pub mod ledger;
pub mod manifest;
pub mod marks;
pub mod outside;
pub mod ownership;
pub mod slots;
pub(crate) mod steps;
