//! The persist directory: the copies in it, and the manifest that says what they are.

pub mod before;
pub(crate) mod comparison;
pub mod destination;
pub(crate) mod journal;
pub mod ledger;
pub mod manifest;
pub mod marks;
pub mod outside;
pub mod ownership;
