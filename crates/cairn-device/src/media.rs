//! Media of durable tiers: files, devices, DAX mappings and namespaces on other machines.

pub(crate) mod dax;
pub mod file;
pub mod label;
pub mod media_file;
pub mod medium;
pub(crate) mod staging;
pub(crate) mod transit;
