//! TOML files that a person wrote.

use serde::de::DeserializeOwned;
use std::path::Path;
use std::{fs, io};

use crate::error::{Error, Result, SettingError};

/// Reads a file that a person wrote.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

/// Parses TOML. Errors name the line.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let message = error.message().lines().next().unwrap_or_default();
        Error::Setting(SettingError::Configuration {
            path: path.to_path_buf(),
            problem: format!("{place}{message}"),
        })
    })
}

pub fn unreadable(path: &Path, error: &io::Error) -> Error {
    let problem = format!("cannot be read: {}", cairn_agent::model::error::why(error));
    Error::Setting(SettingError::Configuration { path: path.to_path_buf(), problem })
}
