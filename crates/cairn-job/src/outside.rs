//! What lies in the persist directory, and the steps that change it.

pub mod comparison;
pub mod found;
pub mod manifest;
pub mod steps;
