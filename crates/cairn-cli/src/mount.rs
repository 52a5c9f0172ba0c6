//! Mounting a store: the keeper of a mount, and its server.
//!
//! ```text
//! cairn mount ──starts──> keeper ──starts, and starts again──> server
//!                         holds the connection to the kernel, and the open files
//! ```
//!
//! Must stay true: either process may be killed, and the mount works on. If the server is, the
//! keeper starts another one; if the keeper is, the server goes on alone. If both are, what is
//! mounted is dead, and every command that meets it unmounts it.

pub(crate) mod keeper;
pub(crate) mod place;
pub(crate) mod server;
pub(crate) mod start;
