//! `cairn report`: what a job read, wrote and drained over time, as a page.
//!
//! Does not record anything; the agent does (`cairn_agent::timeline`).

pub(crate) mod calls;
mod chart;
mod page;
mod series;

use crate::Context;
use crate::error::{Error, Result};
use crate::output;
use crate::output::size;
use crate::report::calls::CallReport;
use crate::store::job_name::JobName;
use cairn_agent::timeline::{TIMELINE_FILE, Timeline, timeline_name};
use clap::Args;
use serde::Serialize;
use series::{Checkpoint, Series, Totals};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  cairn report melt                          writes melt.report.html, while the job runs or later
  cairn report melt --persist /scratch/out   after its store was removed
  cairn report melt --device-bandwidth 2G -o /tmp/melt.html
      with a line where the device's bandwidth is
  cairn report melt --json | jq '.checkpoints[] | .to_ms - .from_ms'

Checkpoints are sets of files that belong together, with when the first of them was begun, when the
last was written, when all was complete and when it was safe; a page shows the newest 1024.

The page needs nothing else, and can be sent and archived as it is. What it shows stands in the store,
and with each drain that is asked for, as at the end of a run, beside the manifest.";

/// Write a page with a job's I/O over time: ranks, checkpoints, drain, bytes at risk.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobName,
    /// Look in this directory, to which the job was drained, not in its store
    #[arg(long, value_name = "DIR", requires = "JobName")]
    persist: Option<PathBuf>,
    /// Where the page is written to [default: JOB.report.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Bytes a second that the device takes, to compare with
    #[arg(long, value_name = "SIZE")]
    device_bandwidth: Option<String>,
}

/// What the page shows.
pub struct Report {
    /// The job.
    job: String,
    /// Its command.
    command: Vec<String>,
    /// Time that a sample covers, milliseconds.
    every_ms: u64,
    /// Something was drained.
    drains: bool,
    /// What the user says of the device, bytes a second.
    device_bytes_per_s: Option<u64>,
    /// What is drawn.
    series: Series,
    /// Calls, if they were counted and the store is there.
    calls: Option<CallReport>,
}

/// The same for programs.
#[derive(Serialize)]
struct JsonReport<'a> {
    job: &'a str,
    command: &'a [String],
    totals: Totals,
    checkpoints: &'a [Checkpoint],
    /// As in the file.
    processes: Vec<&'a cairn_agent::timeline::Process>,
    samples: &'a [cairn_agent::timeline::Sample],
}

/// Carries out the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let rate = arguments.device_bandwidth.as_ref();
    let rate = rate.map(|text| size::parse(text).ok_or(Error::Size { text: text.clone() }));
    let device_bytes_per_s = rate.transpose()?;
    let (timeline, calls) = find(context, arguments)?;
    let series = Series::of(&timeline);
    let job = &timeline.header.job;
    if timeline.samples.is_empty() {
        return Err(Error::NothingRecorded { job: job.clone() });
    }
    if context.json {
        return output::json(&JsonReport {
            job,
            command: &timeline.header.command,
            totals: series.totals,
            checkpoints: &series.checkpoints,
            processes: timeline.processes.values().collect(),
            samples: &timeline.samples,
        });
    }
    let report = Report {
        job: job.clone(),
        command: timeline.header.command.clone(),
        every_ms: timeline.header.every_ms,
        drains: series.totals.drained > 0,
        device_bytes_per_s,
        series,
        calls,
    };
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("{job}.report.html")),
    };
    fs::write(&path, page::page(&report)).map_err(Error::file("write", &path))?;
    output::line(&format!("{job}: see {}", path.display()));
    Ok(())
}

/// The timeline of the job in its store, or where it was drained to.
fn find(context: &Context, arguments: &Arguments) -> Result<(Timeline, Option<CallReport>)> {
    if let (Some(directory), Some(job)) = (&arguments.persist, &*arguments.job) {
        return Ok((load(&directory.join(timeline_name(job)), job)?, None));
    }
    let store = context.roots.choose(arguments.job.as_deref())?;
    let timeline = load(&store.directory().join(TIMELINE_FILE), &store.job.job)?;
    // What programs made of the file of counts is none of the timeline's.
    Ok((timeline, calls::load(&store).ok().flatten()))
}

fn load(path: &Path, job: &str) -> Result<Timeline> {
    match Timeline::load(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Error::NoTimeline { job: job.to_string(), path: path.to_path_buf() })
        }
        loaded => loaded.map_err(Error::file("read", path)),
    }
}
