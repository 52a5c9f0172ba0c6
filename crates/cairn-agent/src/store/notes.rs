//! Notes of programs about their checkpoints and files, read from the store's directory.
//!
//! Must stay true: a damaged note is skipped and hides no other.

use cairn_device::Store;
use cairn_device::store::notes::{self, Note};
use std::io;
use std::path::Path;

use crate::model::error::{Error, Result};

/// Reads the notes of the store in `directory`, oldest first. Errors: they cannot be read.
pub fn read(directory: &Path) -> Result<Vec<Note>> {
    let found = notes::read(Store::open(directory)?.directory().raw());
    let failed = |errno: cairn_platform::sys::Errno| io::Error::from_raw_os_error(errno.0);
    found.map_err(failed).map_err(Error::file("read", &directory.join(notes::NOTES_FILE)))
}
