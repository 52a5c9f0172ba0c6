//! `--stage`: when a new store receives the files that the job drained earlier.

use crate::error::{Error, Result, SettingError};
use clap::ValueEnum;
use serde::Deserialize;

/// When to stage, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StageArgument {
    /// All files before the command starts
    #[value(aliases = ["true", "yes", "on", "1"])]
    Whole,
    /// File data while the command runs, files that it opens first
    OnDemand,
    /// Not at all
    #[value(hide = true, name = "none", aliases = ["false", "no", "off", "0", ""])]
    None,
}

/// When to stage, as the settings file says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum StageSetting {
    /// `true` for everything before the command starts, `false` for nothing.
    Whether(bool),
    /// The words of the option.
    When(String),
}

/// Returns what to stage into a new store: the option's value, else the settings file's. Errors: an
/// unknown word in the settings file.
pub fn stage(
    argument: Option<StageArgument>,
    setting: Option<StageSetting>,
    extent: Extent,
) -> Result<Stage> {
    let set = match setting {
        None | Some(StageSetting::Whether(false)) => StageArgument::None,
        Some(StageSetting::Whether(true)) => StageArgument::Whole,
        Some(StageSetting::When(text)) => StageArgument::from_str(&text, true).map_err(|_| {
            Error::Setting(SettingError::Value {
                option: "--stage",
                value: text,
                expected: "true, false, \"whole\" or \"on-demand\"",
            })
        })?,
    };
    Ok(match argument.unwrap_or(set) {
        StageArgument::Whole => Stage::Whole(extent),
        StageArgument::OnDemand => Stage::OnDemand(extent),
        StageArgument::None => Stage::Nothing,
    })
}

/// What a new store receives of the files that a job drained earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing.
    #[default]
    Nothing,
    /// Files that the creator of the store stages afterwards.
    Later,
    /// All files, before programs run.
    Whole(Extent),
    /// All files before programs run, but their data while programs run.
    OnDemand(Extent),
}

impl Stage {
    /// Whether the store is filled before programs run in it.
    pub fn fills(self) -> bool {
        !matches!(self, Stage::Nothing | Stage::Later)
    }
}

/// Which files are staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All files.
    All,
    /// The newest complete checkpoint of each family, and files that belong to no checkpoint.
    Newest,
}
