//! Notes of unfinished multipart uploads: `uploads.json` in the store's directory. After a server
//! outage, or after an agent was killed, the next upload of the same content resumes there.
//!
//! Must stay true: a note holds for one content at one address, because the upload already carries
//! the metadata of the object. A note does not say which parts are there: the server does, and they
//! are compared with the file. Notes are removed with the store: without it there is nothing to
//! send.

use super::client::Content;
use crate::model::error::Result;
use crate::model::store_file::{self, MustSurvive};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the notes file in the store's directory.
const BEGUN_FILE: &str = "uploads.json";
/// Maximum size of the notes file. A larger file is not ours.
const BEGUN_BYTES_MAX: usize = 1 << 20;

/// An unfinished upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Upload id at the server.
    pub upload: String,
    /// Content of the object once it is complete.
    pub content: Content,
}

/// Notes of one store.
pub struct Notes {
    path: PathBuf,
}

impl Notes {
    /// Returns the notes of the store in `store`.
    pub fn of(store: &Path) -> Notes {
        Notes { path: store.join(BEGUN_FILE) }
    }

    /// Returns the unfinished upload at `address`.
    pub fn find(&self, address: &str) -> Option<Begun> {
        self.read().remove(address)
    }

    /// Records an upload at `address`. Errors are ignored: without the note the next agent starts
    /// the upload anew, which only costs time.
    pub fn note(&self, address: &str, begun: Begun) {
        let mut notes = self.read();
        notes.insert(address.to_string(), begun);
        let _ = self.write(&notes);
    }

    /// Removes the note of the upload at `address`.
    pub fn forget(&self, address: &str) {
        let mut notes = self.read();
        if notes.remove(address).is_some() {
            // A note that stays is harmless: its upload is gone, or its parts are compared before
            // they are used.
            let _ = self.write(&notes);
        }
    }

    /// Removes all notes.
    pub fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Returns the notes by address. An unreadable file counts as empty.
    fn read(&self) -> BTreeMap<String, Begun> {
        let text = store_file::read(&self.path, BEGUN_BYTES_MAX).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Replaces the file. It survives this process, but not necessarily a crash of the node.
    fn write(&self, notes: &BTreeMap<String, Begun>) -> Result<()> {
        store_file::replace_json(&self.path, notes, MustSurvive::Process)
    }
}
