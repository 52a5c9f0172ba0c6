//! POSIX files over a microfs: paths, descriptors, cursors, directories, processes. Ordinary Rust
//! that exports no C symbol; `cairn-preload` puts it behind the C library's names, tests and tools
//! call it directly.
//!
//! ```text
//! path.rs, table.rs   is this call ours?          file.rs names.rs directory.rs cwd.rs   what it does
//! placeholder.rs      kernel descriptors          io.rs -> transfer.rs                   moves data
//! mount.rs            the process's one mount     process.rs flight.rs                   fork, exec, exit; sockets
//! job.rs              what programs ask of it     regions.rs                             where a file's bytes are
//! calls.rs            calls counted               decisions.rs                           what of the C library is served
//! ```
//! Runs inside other people's programs: no thread, no output, no exit, no allocation to read or
//! write, and every system call past the C library, because its names may be Cairn's own hooks.

pub mod data;
pub mod descriptors;
pub mod error;
pub mod files;
pub mod kernel;
pub mod mapping;
pub mod mount;
pub mod process;

pub use cairn_core::{
    Above, Attributes, HandleId, HandleInfo, InodeId, NAME_BYTES_MAX, PATH_BYTES_MAX, PathBounds,
};
pub use cairn_device::dispatch as selector;
pub use error::{Errno, PathError, PathResult, Result};
