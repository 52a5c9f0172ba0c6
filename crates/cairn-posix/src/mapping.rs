//! Calls on the address space that meet files of ours.
//!
//! Invariant: a mapping has an open-file description of its own. So its blocks belong to nobody
//! else until it ends in all processes that inherited it.
//!
//! Does not keep the list of mappings (`task/mappings.rs`) and does not place their pages
//! (`pages`).
//!
//! ```text
//! create.rs    mmap                      unmap.rs    munmap
//! resize.rs    mremap                    change.rs   mprotect, msync, madvise
//! life.rs      exec, exit                lock.rs     mlockall
//! ```

mod change;
mod create;
mod life;
mod lock;
mod resize;
mod unmap;

pub use crate::task::mappings::{any, is_shown, quiet};
pub use change::{advise, protect, remap_pages, sync};
pub use create::{Request, map};
pub(crate) use life::{before_exec, end_all};
pub use lock::{lock_all, unlock_all};
pub use resize::remap;
pub use unmap::{replace, unmap};
