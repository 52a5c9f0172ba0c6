//! POSIX files over a microfs: paths, descriptors, cursors, directories, processes. Ordinary Rust
//! that exports no C symbol; `cairn-preload` puts it behind the C library's names, tests and tools
//! call it directly.
//!
//! ```text
//! process      fork, exec, exit; MPI ranks; what a program asks of its job; what of libc is served
//! files        is this path ours? calls on files by name; the current directory
//! data         calls that move data: io.rs -> transfer.rs
//! mapping      mmap
//! descriptors  is this number ours? what stands for it in the kernel; locks; sockets that carry it
//! mount        the process's one mount
//! kernel       system calls past the C library
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
