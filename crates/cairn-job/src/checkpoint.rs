//! Checkpoints: which files form one, and which ones the store retains.

pub mod name;
pub mod policy;
pub mod retention;
pub mod sets;
pub mod space_policy;
