//! The store as the agent and the commands use it: namespaces, whole files, processes.

pub mod extended;
pub(crate) mod headroom;
pub mod inputs;
pub mod liveness;
pub mod memory;
pub mod notes;
pub mod read;
pub mod reaper;
pub mod register_file;
pub mod volume;
pub(crate) mod watch;
pub mod write;
