//! Descriptors: what stands for them in the kernel, how they are duplicated, sent and closed, and
//! their locks.
//!
//! Does not know which numbers are ours; `task/table.rs` does.

pub mod description;
pub mod descriptor;
pub mod fd_passing;
pub mod internal;
pub mod locks;
pub mod placeholder;
pub mod recognition;
pub(crate) mod upkeep;
