//! Test support for Cairn: a reference model, a driver that moves the bytes, and media and
//! processes that fail. Never shipped.

pub mod content;
pub mod crash;
pub mod damage;
pub mod driver;
pub mod durable;
pub mod faulty;
pub mod fuzz;
pub mod loop_device;
pub mod model;
mod names;
pub mod path;
pub mod play;
pub mod portrait;
pub mod random;
pub mod recovery;
pub mod sealed;
pub mod shared;
pub mod sim;
pub mod simulation;
pub mod step;
pub mod tier;
pub mod world;
pub mod writers;
