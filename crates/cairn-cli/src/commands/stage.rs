//! `cairn stage`: makes the store of a job and stages its inputs in, for a run that comes later.

use clap::Args;
use serde::Serialize;
use std::path::Path;

use crate::Context;
use crate::claim::Claim;
use crate::error::{Error, PersistError, Result, SettingError};
use crate::output;
use crate::request::{Request, StoreArguments};
use crate::settings::checkpoint_options::{self, CheckpointArguments};
use crate::settings::input_options::{InputRequest, LimitArguments};
use crate::settings::stage_option::{Extent, Stage};

const EXAMPLES: &str = "\
Examples:
  cairn stage --job melt /pfs/mesh.h5 /pfs/run7/in:in
      copies both into the store of job melt, as /cairn/mesh.h5 and /cairn/in
  cairn run --job melt --persist /pfs/run7/out -- ./simulate
      runs in that store; what changed at the sources meanwhile is copied again
  cairn stage --job melt --persist /pfs/run7/out --drained
      the store with what an earlier run of the job has drained
  cairn stage --job melt --tier 'nvme-tcp://storage1/nqn.2026-11.io.cairn:target?nsid=1' /pfs/in
      into a namespace of another machine, from where a node takes it up with the same --job
      and --tier

If the job has a store, inputs that it lacks are added. If the command is cut off, the same command
continues.";

/// Stage inputs into the store of a job before it runs.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten, next_help_heading = "Checkpoints and files")]
    checkpoint: CheckpointArguments,
    #[command(flatten)]
    limits: LimitArguments,
    /// Also bring in what the job has drained to --persist, as --stage of cairn run does; it comes
    /// before inputs of the same names
    #[arg(long)]
    drained: bool,
    /// File or directory, and the path that it gets in the store, as in /pfs/run7/in:/cairn/in;
    /// without a path, its name below the prefix
    #[arg(value_name = "SOURCE[:PATH]", required_unless_present = "drained")]
    sources: Vec<String>,
}

#[derive(Serialize)]
struct Answer<'a> {
    job: &'a str,
    store: &'a Path,
    is_new: bool,
}

/// Runs the command.
pub fn run(context: &Context, arguments: Arguments) -> Result<()> {
    let Context { roots, settings, json } = context;
    let Arguments { store, checkpoint, limits, drained, sources } = arguments;
    let request = Request::new(store, settings.run.clone())?;
    let is_there = request.job.as_ref().is_some_and(|job| roots.find(job).is_some());
    if drained && request.persist.is_none() && !is_there {
        return Err(Error::Persist(PersistError::NothingToStage));
    }
    if request.job.is_none() {
        return Err(Error::Setting(SettingError::Option {
            option: "--job",
            problem: "name the job, so that cairn run --job NAME finds its store".to_string(),
        }));
    }
    let (checkpoints, files) = (settings.checkpoint.clone(), settings.files.clone());
    let mount = request.mount_or_default();
    let mut request = Request {
        checkpoint: checkpoint_options::policy(checkpoint, checkpoints, files)?,
        inputs: InputRequest::new(sources, limits, settings.stage.clone(), &mount)?,
        stage: if drained { Stage::Whole(Extent::All) } else { Stage::Nothing },
        runs_program: false,
        quiet: *json,
        ..request
    };
    request.drain.slots = request.inputs.slots.clone();
    let claim = Claim::obtain(roots, &request, &[])?;
    let (job, store, is_new) = (&claim.store.job.job, claim.store.directory(), claim.is_new);
    if *json {
        return output::json(&Answer { job, store, is_new });
    }
    output::line(&format!(
        "the inputs of job {job} are staged in; run it with: cairn run --job {} -- COMMAND",
        output::quoted(job)
    ));
    Ok(())
}
