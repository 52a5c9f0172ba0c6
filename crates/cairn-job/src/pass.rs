//! A pass of the drain: what must change outside, and in which order.

pub mod plan;
pub mod sequence;
