//! State of this process, as the kernel keeps it in a task: descriptor table, current directory and
//! file mode creation mask, list of mappings.
//!
//! Must stay true: nothing here needs the mount. So the mount can attach at its first use and take
//! over what the process has by then.

pub mod fs_context;
pub(crate) mod internal_floor;
pub mod mappings;
pub mod store_inodes;
pub mod table;
