//! The option `--log-level`.

use cairn_agent::model::log::Level;
use clap::ValueEnum;

/// Level of a log line, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LevelArgument {
    /// Something is lost or damaged, or the agent cannot work
    Error,
    /// Something could not be done for now
    Warn,
    /// What became of checkpoints, and when agents began and ended
    Info,
    /// Each request and each look at the files
    Debug,
}

impl From<LevelArgument> for Level {
    fn from(argument: LevelArgument) -> Level {
        match argument {
            LevelArgument::Error => Level::Error,
            LevelArgument::Warn => Level::Warn,
            LevelArgument::Info => Level::Info,
            LevelArgument::Debug => Level::Debug,
        }
    }
}
