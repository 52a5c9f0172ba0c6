//! What a job does, apart from doing it: which files are checkpoints, what must change outside so
//! that it shows a cut of the store, and in which order.
//!
//! Invariant: no clock, thread, socket or file. Everything here is a function of what the agent has
//! observed, so a simulator can live through years of it (`cairn-testing/tests/passes.rs`).

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod file;
pub mod outside;
pub mod pass;
