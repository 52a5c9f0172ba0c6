//! A pass of the drain: what must change outside, and in which order.

pub mod backoff;
pub mod plan;
pub mod schedule;
pub mod sequence;
