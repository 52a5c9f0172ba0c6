//! `cairn agent`: becomes the agent of a store. Not for people: the other commands start it when
//! they need it.

use crate::error::Result;
use clap::Args;
use std::path::PathBuf;

/// Become the agent of a store (started by the other commands when needed).
#[derive(Args, Debug)]
pub struct Arguments {
    /// The store's directory
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
}

/// Returns when the agent ends.
pub fn run(arguments: &Arguments) -> Result<()> {
    Ok(cairn_agent::agent::service::run(&arguments.store)?)
}
