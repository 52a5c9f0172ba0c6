//! `cairn mount`: shows the files of a store to programs that the preloaded library does not reach.

use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

use crate::Context;
use crate::error::Result;
use crate::mount::start::mount;
use crate::output::{self, quoted};

const EXAMPLES: &str = "\
Examples:
  cairn mount                            mount the only store where its programs see it (/cairn)
  cairn mount --job melt ~/melt          mount the store of job melt at another directory
  cairn unmount                          unmount it again
  cairn run --mount-fuse -- ./static     mount a new store for the time of a run";

/// Mount a store, so that any program sees its files: static programs, containers, other shells.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The job [default: the one this runs in, or the only one]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Let other users in, by the modes of files; for a user who is not root, /etc/fuse.conf must
    /// have the line user_allow_other
    #[arg(long)]
    allow_other: bool,
    /// Where [default: where programs of the job see its files]
    #[arg(value_name = "DIRECTORY")]
    place: Option<PathBuf>,
}

#[derive(Serialize)]
struct Answer<'a> {
    job: &'a str,
    mounted_at: &'a Path,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let store = context.roots.choose(arguments.job.as_deref())?;
    let place = mount(&store, arguments.place.as_deref(), arguments.allow_other)?;
    if context.json {
        return output::json(&Answer { job: &store.job.job, mounted_at: &place });
    }
    let shown = place.display().to_string();
    output::line(&format!(
        "job {} is mounted at {shown}; unmount it with: cairn unmount {}",
        store.job.job,
        quoted(&shown),
    ));
    Ok(())
}
