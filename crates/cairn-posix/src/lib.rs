//! POSIX files over a microfs: paths, descriptors, cursors, directories and processes.
//!
//! The crate is ordinary Rust and exports no C symbol. `cairn-preload` puts it behind the C
//! library's names; tests and tools call it directly.
//!
//! ```text
//! process      fork, exec, exit; MPI ranks; a program's calls about its job; served libc functions
//! mapping      mmap and other calls on the address space
//! files        path routing; calls on files by name; the current directory
//! data         calls that move data: io.rs -> transfer.rs
//! descriptors  placeholder descriptors; dup and close; file locks; descriptors sent by socket
//! pages        what the pages of mapped files show
//! mount        the process's one mount
//! task         descriptor table, current directory, list of mappings
//! kernel       system calls past the C library
//! ```
//!
//! Must stay true: this code runs inside application programs. It starts no thread, prints nothing,
//! never exits, and allocates nothing to read or write. It makes every system call past the C
//! library, because the library's names may be Cairn's own hooks.

pub mod data;
pub mod descriptors;
pub mod error;
pub mod files;
pub mod kernel;
pub mod mapping;
pub mod mount;
pub mod pages;
pub mod process;
pub mod task;

pub use cairn_core::{
    Above, Attributes, HandleId, HandleInfo, InodeId, NAME_BYTES_MAX, PATH_BYTES_MAX, PathBounds,
};
pub use cairn_platform::dispatch as selector;
pub use error::{Errno, PathError, PathResult, Result};
