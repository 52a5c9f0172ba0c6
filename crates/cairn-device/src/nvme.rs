//! NVMe over fabrics from user space.
//!
//! Must stay true: nothing that a peer sends makes us read or write outside of a command's own memory.

pub mod wire;
