//! What outlives a process: one agent per store drains closed files to the persist directory,
//! cleans up after dead processes, allocates memory ahead of its use, and answers the `cairn`
//! command.
//!
//! Nothing of it is on the path of an application's call, and nothing depends on it for
//! correctness: an agent that is killed at any moment is replaced by the next command that needs
//! one, and takes up where the manifest ends.

pub mod agent;
pub mod archive;
pub mod balancer;
mod bring;
pub mod checkpoint;
pub mod drain;
pub mod image;
pub mod model;
pub mod persist;
pub mod store;
pub mod target;
#[cfg(test)]
mod test_store;
pub mod timeline;

pub use model::error::{Error, Result};
pub use model::path::FilePath;
