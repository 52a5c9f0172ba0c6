//! Memory of a store: its segments, the RAM tier, and where the kernel places their pages.

pub mod huge;
pub mod lock;
pub mod numa;
pub mod ram;
pub mod ranks;
pub mod segment;
pub(crate) mod workspace;
