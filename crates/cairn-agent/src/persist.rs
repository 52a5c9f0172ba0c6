//! The persist directory: the copies in it, and the manifest that says what they are.

pub mod before;
pub mod destination;
pub mod directory_id;
pub(crate) mod journal;
pub mod ledger;
pub mod link;
pub mod manifest;
pub mod marks;
pub mod outside;
pub mod ownership;
