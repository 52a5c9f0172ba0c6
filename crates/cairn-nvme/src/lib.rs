//! NVMe over Fabrics from user space: an initiator for namespaces that other machines export.
//!
//! ```text
//! remote        one namespace, read and written in calls; reconnects as often as needed
//! controller    connects, identifies, keeps alive      queue     reads, writes, flushes, discards
//! shared        one namespace for all threads of a process and its children
//! away          which of them retry a target that does not answer
//! auth          mutual authentication with the keys that `secret` reads
//!      └─────────────── transport: commands and their data ───────────┘
//!                        tcp: NVMe/TCP      wire: its bytes, shared with the target
//! ```
//! Invariant: nothing that a peer sends makes this crate read or write outside of a command's own
//! memory. A command ends exactly once: when the controller completes it, or with the connection.
//! The calling thread does the work; the crate starts no thread.

mod admin;
pub mod auth;
mod availability;
pub mod claim;
pub mod controller;
pub mod crypto;
pub mod error;
pub mod partition;
pub mod queue;
pub mod remote;
pub mod secret;
pub mod shared;
pub mod tcp;
pub mod transport;
pub mod wait_queue;
pub mod wire;

pub use error::{Error, Result};
