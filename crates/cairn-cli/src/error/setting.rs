//! A value of an option or of a settings file that cannot be used.

use std::path::PathBuf;

use crate::error::exit_code::EXIT_USAGE;

/// A value of an option or of a settings file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// Not a size.
    #[error("{text:?} is not a size; write a number and a unit, as in 8G or 512MiB")]
    Size {
        /// Value that the user gave.
        text: String,
    },
    /// Not a duration.
    #[error("{text:?} is not a duration; {expected}")]
    Duration {
        /// Value that the user gave.
        text: String,
        /// What is expected.
        expected: String,
    },
    /// A mount prefix that is not a plain absolute path.
    #[error("the mount prefix {mount:?} {problem}; give an absolute path, as in --mount /cairn")]
    Mount {
        /// Value that the user gave.
        mount: String,
        /// The problem.
        problem: &'static str,
    },
    /// A mount prefix that exists in the file system.
    #[error(
        "the mount prefix {mount} exists in the file system, and programs would no longer see it; choose another with \
         --mount, or add --force"
    )]
    MountHides {
        /// The prefix.
        mount: String,
    },
    /// A persist directory that cannot be used.
    #[error("the persist directory {} {problem}; {advice}", path.display())]
    Persist {
        /// The directory.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// Advice.
        advice: &'static str,
    },
    /// An invalid job name.
    #[error(
        "{name:?} is not a valid job name; use 1 to 48 letters, digits, '.', '_' or '-', beginning \
         with a letter or digit"
    )]
    JobName {
        /// Value that the user gave.
        name: String,
    },
    /// An option contradicts the store that is resumed.
    #[error(
        "{option} {given} contradicts the store of job {job}, which was made with {stored}; \
         leave the option out, or choose another --job"
    )]
    Contradiction {
        /// The option.
        option: &'static str,
        /// Its value.
        given: String,
        /// Value of the store.
        stored: String,
        /// The job.
        job: String,
    },
    /// `--discard` together with a persist directory.
    #[error(
        "--discard contradicts the persist directory {}; leave one of them out",
        path.display()
    )]
    DiscardPersist {
        /// The directory.
        path: PathBuf,
    },
    /// `--discard` together with an archive.
    #[error("--discard contradicts the archive {url}; leave one of them out")]
    DiscardArchive {
        /// `s3://BUCKET/PREFIX`.
        url: String,
    },
    /// An error in a settings or description file.
    #[error("{}: {problem}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The mapping differs from the one with which the job drained earlier.
    #[error(
        "--map {given} contradicts earlier drains of job {job} to that directory, made with {stored}; leave the option out, or \
         choose another --persist"
    )]
    MappedOtherwise {
        /// Value of the option.
        given: String,
        /// Earlier mapping.
        stored: String,
        /// The job.
        job: String,
    },
    /// An invalid mapping.
    #[error("--map {value}: {problem}")]
    Map {
        /// Value of the option.
        value: String,
        /// The reason.
        problem: String,
    },
    /// An invalid value of an option, from any source.
    #[error("{option} is {value:?}, but must be {expected}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// Allowed values.
        expected: &'static str,
    },
    /// An invalid option.
    #[error("{option}: {problem}")]
    Option {
        /// The option.
        option: &'static str,
        /// The problem.
        problem: String,
    },
    /// An invalid pattern.
    #[error("{pattern:?} is not a pattern: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The problem.
        problem: String,
    },
}

impl SettingError {
    /// Exit code of the process for this error. Every variant is named, so that whoever adds one
    /// decides whether anything was changed by then.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            SettingError::Size { .. }
            | SettingError::Duration { .. }
            | SettingError::Mount { .. }
            | SettingError::MountHides { .. }
            | SettingError::Persist { .. }
            | SettingError::JobName { .. }
            | SettingError::Contradiction { .. }
            | SettingError::DiscardPersist { .. }
            | SettingError::DiscardArchive { .. }
            | SettingError::Configuration { .. }
            | SettingError::MappedOtherwise { .. }
            | SettingError::Map { .. }
            | SettingError::Value { .. }
            | SettingError::Option { .. }
            | SettingError::Pattern { .. } => EXIT_USAGE,
        }
    }

    /// Option that the error is about; of a key of the settings file, its name.
    pub(super) fn option(&self) -> Option<&'static str> {
        match self {
            SettingError::Value { option, .. }
            | SettingError::Option { option, .. }
            | SettingError::Contradiction { option, .. } => Some(option),
            SettingError::Map { .. } | SettingError::MappedOtherwise { .. } => Some("--map"),
            SettingError::Mount { .. } | SettingError::MountHides { .. } => Some("--mount"),
            SettingError::DiscardPersist { .. } | SettingError::DiscardArchive { .. } => {
                Some("--discard")
            }
            _ => None,
        }
    }
}
