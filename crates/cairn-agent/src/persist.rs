//! The persist directory: its copies, and the manifest that describes them.

pub mod before;
pub(crate) mod comparison;
pub mod destination;
pub(crate) mod journal;
pub mod ledger;
pub mod manifest;
pub mod marks;
pub mod outside;
pub mod ownership;
