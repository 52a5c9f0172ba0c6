//! Descriptors: which numbers are ours, their placeholders in the kernel, and their locks.

pub mod description;
pub mod descriptor;
pub mod fd_passing;
pub mod locks;
pub mod placeholder;
pub(crate) mod readers;
pub mod table;
pub(crate) mod upkeep;
