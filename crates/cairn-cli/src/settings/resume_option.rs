//! The option `--resume`.

use clap::ValueEnum;

use crate::error::{Error, Result, SettingError};

/// How a run resumes an existing store, as an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Resume {
    /// Resume it once the newest checkpoint of each family is intact
    #[default]
    Checked,
    /// Resume it as it is
    AsIs,
}

impl Resume {
    /// Returns the value of the command line, else of the settings file. Errors: an unknown word in
    /// the settings file.
    pub fn of(argument: Option<Resume>, setting: Option<String>) -> Result<Resume> {
        let set = setting.map(|text| {
            Resume::from_str(&text, true).map_err(|_| {
                Error::Setting(SettingError::Value {
                    option: "--resume",
                    value: text,
                    expected: "checked or as-is",
                })
            })
        });
        Ok(argument.or(set.transpose()?).unwrap_or_default())
    }
}
