//! The agent process: its threads, the state they share, its socket, and its start.

pub(crate) mod activity;
pub(crate) mod archive_keeper;
pub mod client;
pub(crate) mod control;
pub mod daemon;
pub(crate) mod forecaster;
pub(crate) mod mapped_cache;
pub(crate) mod metrics;
pub(crate) mod prefault;
pub(crate) mod promote;
pub mod recorder;
pub mod service;
pub(crate) mod shared;
pub mod snapshot;
pub(crate) mod space;
pub(crate) mod stager;
pub(crate) mod transit;
