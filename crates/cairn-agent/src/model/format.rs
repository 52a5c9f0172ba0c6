//! Files of ours in JSON, of a version that is known: each says its format in the field `format`.

use crate::error::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// The one field that every format has.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// What `text`, the content of `path`, says. Errors: `Json`; `Format`, a newer one than `supported`.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &[u8], supported: u32) -> Result<T> {
    let json = |source| Error::Json { path: path.to_path_buf(), source };
    let FormatOnly { format: found } = serde_json::from_slice(text).map_err(json)?;
    match found > supported {
        true => Err(Error::Format { path: path.to_path_buf(), found, supported }),
        false => serde_json::from_slice(text).map_err(json),
    }
}
