//! The file system over its memory: transactions and the trees they change.

pub(crate) mod fields;
pub(crate) mod fs;
pub(crate) mod inode;
pub(crate) mod meta_sum;
pub(crate) mod transaction;
pub(crate) mod tree;
