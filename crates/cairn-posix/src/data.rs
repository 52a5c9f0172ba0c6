//! Calls that move data, and upkeep of the blocks of files.

pub mod absent;
pub mod copy;
pub mod io;
pub(crate) mod read_ahead;
pub mod regions;
pub mod space;
pub mod transfer;
