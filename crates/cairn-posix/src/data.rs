//! Calls that move data, and what keeps the blocks of files in order.

pub mod absent;
pub mod copy;
pub mod io;
pub(crate) mod read_ahead;
pub mod regions;
pub mod space;
pub mod transfer;
pub(crate) mod upkeep;
