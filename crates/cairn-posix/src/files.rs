//! Calls on files by name, and on directories.

pub mod allocate;
pub mod attributes;
pub mod cwd;
pub mod directory;
mod escape;
pub mod extended;
pub mod file;
pub mod names;
pub mod path;
pub mod place;
