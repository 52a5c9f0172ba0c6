//! Checkpoints: which files belong together, which are kept, and which are set aside as damaged.

pub mod quarantine;
pub mod retention;
pub mod sets;
