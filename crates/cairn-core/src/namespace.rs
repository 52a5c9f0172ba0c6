//! Names, directories, inodes and their attributes.

pub(crate) mod attributes;
pub(crate) mod directory;
pub(crate) mod extended;
pub(crate) mod namei;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod rename;
pub(crate) mod walk;
