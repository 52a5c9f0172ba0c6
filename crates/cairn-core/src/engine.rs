//! The namespace handle, transactions on the shared segment, and the inodes and trees they change.

pub(crate) mod fields;
pub(crate) mod fs;
pub(crate) mod inode;
pub(crate) mod meta_sum;
pub(crate) mod transaction;
pub(crate) mod tree;
