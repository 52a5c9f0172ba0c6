//! Files of a store as an agent sees them.

pub mod extended;
pub mod json_text;
pub mod mapping;
pub mod node;
pub mod path;
