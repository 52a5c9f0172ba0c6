//! What outlives a process: one agent per store drains closed files to the persist directory,
//! cleans up after dead processes, allocates memory ahead of its use, and answers the `cairn`
//! command.
//!
//! Nothing of it is on the path of an application's call, and nothing depends on it for
//! correctness: an agent that is killed at any moment is replaced by the next command that needs
//! one, and takes up where the manifest ends.

mod activity;
pub mod advise;
pub mod archive;
mod aside;
pub mod balancer;
pub mod before;
mod board;
mod bring;
mod carry;
pub mod checkpoints;
pub mod client;
pub mod clock;
mod control;
pub mod copy;
pub mod daemon;
pub mod destination;
mod direct;
pub mod directory_id;
mod drain;
pub mod error;
pub mod extended;
mod failures;
pub mod forecast;
mod format;
mod headroom;
mod hold;
pub mod holder;
pub mod image;
mod imaging;
pub mod job;
mod journal;
pub mod ledger;
pub mod link;
pub mod living;
pub mod log;
pub mod manifest;
pub mod mapping;
pub mod marks;
pub mod memory;
mod meter;
mod metrics;
pub mod outside;
pub mod ownership;
pub mod pace;
pub mod path;
pub mod plan;
pub mod policy;
mod prefault;
mod priority;
mod prometheus;
mod promote;
pub mod protocol;
mod queue;
pub mod ranks;
pub mod read;
pub mod reaper;
pub mod repair;
pub mod retention;
pub mod service;
pub mod sets;
mod shared;
mod shown;
pub mod snapshot;
mod space;
pub mod space_policy;
pub mod store_file;
pub mod target;
#[cfg(test)]
mod test_store;
pub mod timeline;
mod transit;
pub mod volume;
mod watch;
pub mod write;

pub use error::{Error, Result};
pub use path::FilePath;
