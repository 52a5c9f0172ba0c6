//! `--stage`: when what a job drained earlier comes into a new store.

use crate::create::staging::{Extent, Stage};
use crate::error::{Error, Result};
use clap::ValueEnum;
use serde::Deserialize;

/// When, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StageArgument {
    /// All of it before the command starts
    #[value(aliases = ["true", "yes", "on", "1"])]
    Whole,
    /// The data of files while the command runs, what it opens first
    OnDemand,
    /// Not at all
    #[value(hide = true, name = "none", aliases = ["false", "no", "off", "0", ""])]
    None,
}

/// When, as it stands in the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum StageSetting {
    /// Whether.
    Whether(bool),
    /// When.
    When(String),
}

/// What a new store gets by the command line, else by the configuration file.
pub fn stage(
    argument: Option<StageArgument>,
    setting: Option<StageSetting>,
    extent: Extent,
) -> Result<Stage> {
    let set = match setting {
        None | Some(StageSetting::Whether(false)) => StageArgument::None,
        Some(StageSetting::Whether(true)) => StageArgument::Whole,
        Some(StageSetting::When(text)) => {
            StageArgument::from_str(&text, true).map_err(|_| Error::Value {
                option: "--stage",
                value: text,
                expected: "true, false, \"whole\" or \"on-demand\"",
            })?
        }
    };
    Ok(match argument.unwrap_or(set) {
        StageArgument::Whole => Stage::Whole(extent),
        StageArgument::OnDemand => Stage::OnDemand(extent),
        StageArgument::None => Stage::Nothing,
    })
}
