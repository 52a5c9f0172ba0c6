//! Drain options of `cairn run`, and the section `[drain]` of `cairn.toml`.
//!
//! Must stay true: an option that is not given leaves an existing store unchanged. Every bad value
//! is refused before anything is created.

use cairn_agent::model::policy::{AtEnd, DrainPolicy, Priority, SlotPolicy, Verify};
use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::error::{Error, Result, SettingError};
use crate::settings::walltime;
use crate::size;

/// Options of the drain.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Options of the drain")]
pub struct DrainArguments {
    /// What to do with undrained files when the command has ended: wait until they are drained,
    /// drain them in the background, or none, leave them in the store [default: wait]
    #[arg(long, value_name = "HOW", env = "CAIRN_DRAIN_END")]
    pub drain: Option<EndArgument>,
    /// When the job's time ends: 14:30, +2h or 2026-05-01T14:30:00Z. Early enough before that, the
    /// limits of the drain are lifted, and cairn stops waiting for it. A message says what will not
    /// be safe in time. none: the job has no end [default: what Slurm says]
    #[arg(long, value_name = "TIME", env = "CAIRN_DRAIN_UNTIL")]
    pub until: Option<String>,
    /// Limit the drain to this many bytes per second, as in 500M, and let programs write their
    /// checkpoints first. none: no limit [default: none]
    #[arg(long, value_name = "RATE", env = "CAIRN_DRAIN_RATE")]
    pub drain_rate: Option<String>,
    /// Let the drain work during at most this percentage of the time in which programs write, and
    /// let them write their checkpoints first. none: no limit [default: none]
    #[arg(long, value_name = "PERCENT", env = "CAIRN_DRAIN_SHARE")]
    pub drain_share: Option<String>,
    /// Priority of the drain for processors and disks: idle, only what programs leave, or normal,
    /// the same as programs [default: idle]
    #[arg(long, value_name = "PRIORITY", env = "CAIRN_DRAIN_PRIORITY")]
    pub drain_priority: Option<PriorityArgument>,
    /// How each copy is verified: read, read it back from its device and compare it, or write,
    /// trust the file system's report. Data read from the store are always checked against their
    /// checksums [default: read]
    #[arg(long, value_name = "HOW", env = "CAIRN_DRAIN_VERIFY")]
    pub drain_verify: Option<VerifyArgument>,
}

/// Priority of the drain, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PriorityArgument {
    /// Only what programs leave
    Idle,
    /// The same as programs
    Normal,
}

/// How copies are verified, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerifyArgument {
    /// Read them back and compare them
    Read,
    /// Trust the file system's report
    Write,
}

/// What to do with undrained files when the command has ended, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EndArgument {
    /// Drain them and wait
    Wait,
    /// Drain them without waiting
    Background,
    /// Leave them in the store
    None,
}

/// The section `[drain]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrainSettings {
    /// `--drain-rate`.
    pub rate: Option<String>,
    /// `--drain-share`.
    pub share: Option<String>,
    /// `--drain-priority`.
    pub priority: Option<String>,
    /// `--drain-verify`.
    pub verify: Option<String>,
    /// `--drain`.
    pub end: Option<String>,
    /// `--until`.
    pub until: Option<String>,
}

/// Drain options of one run; None for an option that was not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainRequest {
    rate_bytes: Option<Option<u64>>,
    share_percent: Option<Option<u8>>,
    priority: Option<Priority>,
    verify: Option<Verify>,
    at_end: Option<AtEnd>,
    /// End of this run's time, in seconds since the epoch. Never taken over from an earlier run.
    until: Option<u64>,
    /// Slots in which to copy.
    pub slots: Option<SlotPolicy>,
}

impl DrainRequest {
    /// Merges command line and environment with the settings file. Errors: a bad value.
    pub fn new(arguments: DrainArguments, settings: DrainSettings) -> Result<DrainRequest> {
        Ok(DrainRequest {
            rate_bytes: arguments.drain_rate.or(settings.rate).map(rate).transpose()?,
            share_percent: arguments.drain_share.or(settings.share).map(share).transpose()?,
            priority: choice(
                arguments.drain_priority,
                settings.priority,
                "--drain-priority",
                "idle or normal",
            )?
            .map(Priority::from),
            verify: choice(
                arguments.drain_verify,
                settings.verify,
                "--drain-verify",
                "read or write",
            )?
            .map(Verify::from),
            at_end: choice(arguments.drain, settings.end, "--drain", "wait, background or none")?
                .map(AtEnd::from),
            until: walltime::until(arguments.until.or(settings.until))?,
            slots: None,
        })
    }

    /// Applies the given options to `policy`. Returns whether `policy` changed. The end of the
    /// job's time is always replaced.
    pub fn change(&self, policy: &mut DrainPolicy) -> bool {
        let before = policy.clone();
        policy.rate_bytes = self.rate_bytes.unwrap_or(policy.rate_bytes);
        policy.share_percent = self.share_percent.unwrap_or(policy.share_percent);
        policy.priority = self.priority.unwrap_or(policy.priority);
        policy.verify = self.verify.unwrap_or(policy.verify);
        policy.at_end = self.at_end.unwrap_or(policy.at_end);
        policy.slots = self.slots.clone().or(policy.slots.take());
        policy.until = self.until;
        *policy != before
    }

    /// Returns the policy of a new store.
    pub fn policy(&self) -> DrainPolicy {
        let mut policy = DrainPolicy::default();
        self.change(&mut policy);
        policy
    }
}

fn refused(option: &'static str, value: String, expected: &'static str) -> Error {
    Error::Setting(SettingError::Value { option, value, expected })
}

fn rate(value: String) -> Result<Option<u64>> {
    let number = value.strip_suffix("/s").unwrap_or(&value);
    match size::parse(number) {
        _ if value == "none" => Ok(None),
        Some(bytes) if bytes > 0 => Ok(Some(bytes)),
        _ => Err(refused("--drain-rate", value, "bytes a second as in 500M, or none")),
    }
}

fn share(value: String) -> Result<Option<u8>> {
    match value.strip_suffix('%').unwrap_or(&value).parse() {
        _ if value == "none" => Ok(None),
        Ok(percent @ 1..=100) => Ok(Some(percent)),
        _ => Err(refused("--drain-share", value, "1 to 100 percent, or none")),
    }
}

/// Returns the value from the command line, else from the settings file, where it has the same
/// spelling.
fn choice<T: ValueEnum>(
    argument: Option<T>,
    setting: Option<String>,
    option: &'static str,
    expected: &'static str,
) -> Result<Option<T>> {
    let parse =
        |value: String| T::from_str(&value, false).map_err(|_| refused(option, value, expected));
    argument.map(Ok).or_else(|| setting.map(parse)).transpose()
}

impl From<PriorityArgument> for Priority {
    fn from(argument: PriorityArgument) -> Priority {
        match argument {
            PriorityArgument::Idle => Priority::Idle,
            PriorityArgument::Normal => Priority::Normal,
        }
    }
}

impl From<VerifyArgument> for Verify {
    fn from(argument: VerifyArgument) -> Verify {
        match argument {
            VerifyArgument::Read => Verify::Read,
            VerifyArgument::Write => Verify::Write,
        }
    }
}

impl From<EndArgument> for AtEnd {
    fn from(argument: EndArgument) -> AtEnd {
        match argument {
            EndArgument::Wait => AtEnd::Wait,
            EndArgument::Background => AtEnd::Background,
            EndArgument::None => AtEnd::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(rate: &str) -> DrainArguments {
        DrainArguments { drain_rate: Some(rate.to_string()), ..DrainArguments::default() }
    }

    #[test]
    fn command_line_goes_before_the_file_and_what_was_not_said_stays() {
        let settings = DrainSettings { rate: Some("2M".into()), ..DrainSettings::default() };
        let request = DrainRequest::new(said("500M/s"), settings.clone()).expect("is fine");
        let mut policy = DrainPolicy { share_percent: Some(5), ..DrainPolicy::default() };
        assert!(request.change(&mut policy) && !request.change(&mut policy));
        assert_eq!((policy.rate_bytes, policy.share_percent), (Some(500 << 20), Some(5)));
        let request = DrainRequest::new(DrainArguments::default(), settings).expect("is fine");
        assert_eq!(request.policy().rate_bytes, Some(2 << 20));
        let none = DrainRequest::new(said("none"), DrainSettings::default()).expect("is fine");
        assert!(none.change(&mut policy) && policy.rate_bytes.is_none());
    }

    #[test]
    fn what_is_no_rate_share_or_priority_is_refused() {
        for value in ["0", "fast", "-1", "5 apples"] {
            assert!(DrainRequest::new(said(value), DrainSettings::default()).is_err(), "{value}");
        }
        for value in ["0", "101", "half"] {
            let settings = DrainSettings { share: Some(value.into()), ..DrainSettings::default() };
            assert!(DrainRequest::new(DrainArguments::default(), settings).is_err(), "{value}");
        }
        for settings in [
            DrainSettings { priority: Some("high".into()), ..DrainSettings::default() },
            DrainSettings { verify: Some("hope".into()), ..DrainSettings::default() },
            DrainSettings { end: Some("Wait!".into()), ..DrainSettings::default() },
        ] {
            assert!(DrainRequest::new(DrainArguments::default(), settings).is_err());
        }
    }
}
