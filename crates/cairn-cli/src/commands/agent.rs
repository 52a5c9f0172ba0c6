//! `cairn agent`: turns this process into the agent of a store. Not for people: the other commands
//! start it when they need it.

use crate::error::Result;
use clap::Args;
use std::path::PathBuf;

/// Become the agent of a store (started by the other commands when needed).
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
}

/// Runs the agent. Returns when it ends.
pub fn run(arguments: &Arguments) -> Result<()> {
    Ok(cairn_agent::agent::service::run(&arguments.store)?)
}
