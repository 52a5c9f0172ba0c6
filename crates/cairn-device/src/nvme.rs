//! NVMe over fabrics from user space: an initiator for namespaces that other machines export.
//!
//! ```text
//! remote        a namespace, read and written in calls, over as many connections as that takes
//! controller    connects, identifies, keeps alive      queue     reads, writes, flushes, discards
//! shared        the same for all threads of a process, and its children      away      which of them ask a target that is silent
//! auth          proves who both are, by what `secret` reads
//!      └─────────────── transport: commands and their data ───────────┘
//!                        tcp: NVMe/TCP      wire: its bytes, shared with the target
//! ```
//! Must stay true: nothing that a peer sends makes us read or write outside of a command's own
//! memory; a command ends once, as the controller has said, or with the connection. Whoever calls
//! does the work: no thread, no lock.

mod admin;
pub mod auth;
mod away;
pub mod claim;
pub mod controller;
pub mod error;
pub mod line;
pub mod partition;
pub mod queue;
pub mod remote;
pub mod secret;
pub mod shared;
pub mod tcp;
pub mod transport;
pub mod wire;

pub use error::{Error, Result};
