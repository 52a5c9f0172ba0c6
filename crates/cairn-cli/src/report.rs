//! `cairn report`: writes a page about what a job read, wrote and drained over time.
//!
//! Does not record anything; the agent does (`cairn_agent::timeline`).

pub(crate) mod calls;
mod chart;
mod page;
mod series;

use cairn_agent::timeline::{TIMELINE_FILE, Timeline, timeline_name};
use clap::Args;
use serde::Serialize;
use series::{Checkpoint, Series, Totals};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::error::{Error, ReportError, Result, SettingError};
use crate::report::calls::CallReport;
use crate::size;
use crate::store::job_name::JobName;
use crate::{Context, output};

const EXAMPLES: &str = "\
Examples:
  cairn report melt                          write melt.report.html, while the job runs or later
  cairn report melt --persist /scratch/out   the same, after the store was removed
  cairn report melt --device-bandwidth 2G -o /tmp/melt.html
      with a line that marks the device's bandwidth
  cairn report melt --json | jq '.checkpoints[] | .to_ms - .from_ms'

A checkpoint is a set of files that belong together. The page shows when its first file was begun,
when its last file was written, when it was complete and when it was safe. A page shows the newest
1024 checkpoints.

The page is self-contained: you can send or archive it as it is. Its data are in the store. Each
requested drain, as at the end of a run, also copies them to the persist directory, beside the
manifest.";

/// Write a page with a job's I/O over time: ranks, checkpoints, drain, bytes at risk.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    job: JobName,
    /// Read from this directory, to which the job was drained, instead of its store
    #[arg(long, value_name = "DIR", requires = "JobName")]
    persist: Option<PathBuf>,
    /// File to write the page to [default: JOB.report.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Bandwidth of the device in bytes per second, for comparison
    #[arg(long, value_name = "SIZE")]
    device_bandwidth: Option<String>,
}

/// Content of the page.
pub struct Report {
    /// The job.
    job: String,
    /// Its command.
    command: Vec<String>,
    /// Length of a sample in milliseconds.
    every_ms: u64,
    /// Whether anything was drained.
    drains: bool,
    /// Bandwidth of the device according to the user, in bytes per second.
    device_bytes_per_s: Option<u64>,
    /// Data of the charts.
    series: Series,
    /// Counted calls, if they were counted and the store exists.
    calls: Option<CallReport>,
}

/// The report as JSON.
#[derive(Serialize)]
struct JsonReport<'a> {
    job: &'a str,
    command: &'a [String],
    totals: Totals,
    checkpoints: &'a [Checkpoint],
    /// Processes, as in the timeline.
    processes: Vec<&'a cairn_agent::timeline::Process>,
    samples: &'a [cairn_agent::timeline::Sample],
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let rate = arguments.device_bandwidth.as_ref();
    let rate = rate.map(|text| {
        size::parse(text).ok_or(Error::Setting(SettingError::Size { text: text.clone() }))
    });
    let device_bytes_per_s = rate.transpose()?;
    let (timeline, calls) = find(context, arguments)?;
    let series = Series::of(&timeline);
    let job = &timeline.header.job;
    if timeline.samples.is_empty() {
        return Err(Error::Report(ReportError::NothingRecorded { job: job.clone() }));
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

/// Reads the timeline of the job from its store, or from the directory it was drained to.
fn find(context: &Context, arguments: &Arguments) -> Result<(Timeline, Option<CallReport>)> {
    if let (Some(directory), Some(job)) = (&arguments.persist, &*arguments.job) {
        return Ok((load(&directory.join(timeline_name(job)), job)?, None));
    }
    let store = context.roots.choose(arguments.job.as_deref())?;
    let timeline = load(&store.directory().join(TIMELINE_FILE), &store.job.job)?;
    // A file of call counts that cannot be read does not affect the timeline.
    Ok((timeline, calls::load(&store).ok().flatten()))
}

fn load(path: &Path, job: &str) -> Result<Timeline> {
    match Timeline::load(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Error::Report(ReportError::NoTimeline {
                job: job.to_string(),
                path: path.to_path_buf(),
            }))
        }
        loaded => loaded.map_err(Error::file("read", path)),
    }
}
