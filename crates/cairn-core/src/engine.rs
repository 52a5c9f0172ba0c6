//! The namespace handle, transactions on the shared segment, and the inodes and trees they change.

pub(crate) mod durable;
pub(crate) mod fields;
pub(crate) mod fs;
pub(crate) mod inode;
pub(crate) mod lease;
pub(crate) mod metadata_checksum;
pub(crate) mod name_cache;
pub(crate) mod run;
pub(crate) mod shadow;
pub(crate) mod slab;
pub(crate) mod slot;
pub(crate) mod transaction;
pub(crate) mod tree;
