//! The job that a command is about, given as an argument or with `--job`.

use clap::Args;
use std::ops::Deref;

/// The job of a command: at most one name.
#[derive(Args, Debug)]
pub struct JobName {
    /// The job [default: the one this runs in, or the only one]
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Same as JOB
    #[arg(long = "job", id = "named", value_name = "NAME", conflicts_with = "job")]
    named: Option<String>,
}

/// The job of a command that applies to all jobs if none is named.
#[derive(Args, Debug)]
pub struct JobOrAll {
    /// The job [default: all]
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Same as JOB
    #[arg(long = "job", id = "named", value_name = "NAME", conflicts_with = "job")]
    named: Option<String>,
}

impl Deref for JobName {
    type Target = Option<String>;

    fn deref(&self) -> &Option<String> {
        if self.named.is_some() { &self.named } else { &self.job }
    }
}

impl Deref for JobOrAll {
    type Target = Option<String>;

    fn deref(&self) -> &Option<String> {
        if self.named.is_some() { &self.named } else { &self.job }
    }
}
