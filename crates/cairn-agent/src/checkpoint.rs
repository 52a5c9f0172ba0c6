//! Checkpoints: which files form one, which ones the store retains, and which are quarantined as
//! damaged.

pub mod quarantine;
