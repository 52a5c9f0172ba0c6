//! Types and formats that all other modules use: paths, the job, policies, the protocol, Cairn's
//! own files.

pub mod advise;
pub mod archive;
pub mod clock;
pub mod directory_id;
pub mod drain_task;
pub mod error;
pub(crate) mod format;
pub mod holder;
pub mod job;
pub mod lock;
pub mod log;
pub(crate) mod observable;
pub mod policy;
pub(crate) mod priority;
pub mod protocol;
pub mod ranks;
pub mod store_file;
