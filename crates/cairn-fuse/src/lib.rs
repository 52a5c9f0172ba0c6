//! Serves a store through FUSE, below the prefix at which programs with the preloaded library see
//! it: for static programs, containers without the library, and shells of the same user.
//!
//! ```text
//! server     answers the kernel's requests: dispatch, names, attributes, transfer of data
//! locks      byte-range locks, shared with preloaded programs
//! answers    requests that were carried out, for the server after this one
//! writers    which processes write which file
//! requester  the process behind a request: its groups, whether it is being killed
//! node       numbers of files in the kernel
//! removed    removed files that the kernel still knows
//! device     mounting, unmounting, and serving a mount on after its server died
//! ```
//!
//! Must stay true: the kernel caches no names, no attributes, and no data but pages that are
//! mapped, so that both kinds of programs see the same files at the same moment. A file whose
//! writer was killed is unclean, as without the mount. What the next server needs, if one is
//! killed, is in the store, or in memory that its keeper has.
//!
//! Does not start or watch servers; `cairn mount` does.

mod answers;
pub mod device;
mod locks;
mod node;
mod removed;
mod requester;
mod server;
mod writers;

pub use answers::{Answers, memory as answers};
pub use server::{Service, Start, serve};
