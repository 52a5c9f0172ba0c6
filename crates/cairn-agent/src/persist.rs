//! The persist directory: its copies, and the manifest that describes them.

pub mod destination;
pub mod displaced;
pub(crate) mod journal;
pub mod ledger;
pub mod manifest_file;
pub(crate) mod manifest_log;
pub mod marks;
pub mod outside;
pub mod ownership;
pub mod slots;
