//! Cairn's JSON files: each states its version in the field `format`.

use crate::model::error::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// The field that every format has.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Parses `text`, the content of `path`. Errors: `Json`; `Format` if the format is newer than
/// `supported`.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &[u8], supported: u32) -> Result<T> {
    version(path, text, supported)?;
    serde_json::from_slice(text).map_err(|source| Error::Json { path: path.to_path_buf(), source })
}

/// Returns the format of `text`, the content of `path`. Errors: as for [`parse`].
pub fn version(path: &Path, text: &[u8], supported: u32) -> Result<u32> {
    let json = |source| Error::Json { path: path.to_path_buf(), source };
    let FormatOnly { format: found } = serde_json::from_slice(text).map_err(json)?;
    match found > supported {
        true => Err(Error::Format { path: path.to_path_buf(), found, supported }),
        false => Ok(found),
    }
}
