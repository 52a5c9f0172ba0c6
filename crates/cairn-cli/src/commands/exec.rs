//! `cairn exec`: runs another command in the existing store of a job.

use crate::Context;
use crate::error::{Error, LaunchError, Result};
use crate::report::calls;
use crate::run::launch;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;

const EXAMPLES: &str = "\
Examples:
  cairn exec -- ls -l /cairn             list the files of the only store
  cairn exec --job melt -- bash          a shell that sees the files of job melt";

/// Run a command in the store of a job, beside the job itself.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The job [default: the one this runs in, or the only one]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Count the command's file calls, by function and result; see: cairn calls
    #[arg(long)]
    report_calls: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Replaces this process with the command. Returns only if that fails.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let store = context.roots.choose(arguments.job.as_deref())?;
    store.volumes()?;
    let library = launch::find_library()?;
    store.agent()?;
    if arguments.report_calls {
        calls::prepare(&store)?;
    }
    let mut command = launch::command(&store, &library, &arguments.command, arguments.report_calls);
    let source = command.exec();
    let command = arguments.command.first();
    let command = command.map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    Err(Error::Launch(LaunchError::Execute { command, source }))
}
