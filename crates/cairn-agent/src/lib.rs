//! The agent: one process per store that outlives the programs of a job. It drains closed files to
//! the persist directory, cleans up after dead processes, allocates memory ahead of its use, and
//! answers the `cairn` command.
//!
//! Invariant: no call of an application runs in the agent, and correctness never depends on it. An
//! agent may be killed at any moment. The next command that needs an agent starts another one,
//! which continues where the manifest ends.

pub mod agent;
pub mod archive;
mod bring;
pub mod checkpoint;
pub mod drain;
pub mod image;
pub mod model;
pub mod persist;
pub mod store;
#[cfg(test)]
mod test_store;
pub mod timeline;

pub use model::error::{Error, Result};
