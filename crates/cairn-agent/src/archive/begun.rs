//! Objects that were begun in parts and are not complete, so that whoever sends the same again,
//! after a server that was away or in place of an agent that was killed, goes on there:
//! `uploads.json` in the store's directory.
//!
//! Must stay true: a note is of one content at one address, because with it goes what the object
//! will say of itself; it does not say which parts are there: the server does, and they are
//! compared. Notes go with the store: without it there is nothing to send.

use super::client::Content;
use crate::model::error::Result;
use crate::model::store_file::{self, Outlives};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Name of the file in the store's directory.
const BEGUN_FILE: &str = "uploads.json";
/// More is not ours.
const BEGUN_BYTES_MAX: usize = 1 << 20;

/// An object that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Its number at the server.
    pub upload: String,
    /// What it will be.
    pub content: Content,
}

/// The notes of one store.
pub struct Notes {
    path: PathBuf,
}

impl Notes {
    /// Those of the store in `store`.
    pub fn of(store: &Path) -> Notes {
        Notes { path: store.join(BEGUN_FILE) }
    }

    /// What was begun at `address`.
    pub fn find(&self, address: &str) -> Option<Begun> {
        self.read().remove(address)
    }

    /// Notes what was begun at `address`. What cannot be written down is begun anew by the next
    /// agent, which costs it time.
    pub fn note(&self, address: &str, begun: Begun) {
        let mut notes = self.read();
        notes.insert(address.to_string(), begun);
        let _ = self.write(&notes);
    }

    /// Nobody is to go on with what was begun at `address`.
    pub fn forget(&self, address: &str) {
        let mut notes = self.read();
        if notes.remove(address).is_some() {
            // A note that stays is of something that is not there, or is compared before it is gone
            // on with.
            let _ = self.write(&notes);
        }
    }

    /// Nobody is to go on with anything.
    pub fn clear(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// By addresses. What cannot be read is nothing.
    fn read(&self) -> BTreeMap<String, Begun> {
        let text = store_file::read(&self.path, BEGUN_BYTES_MAX).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Replaces the file. It outlives this process, and need not outlive the node.
    fn write(&self, notes: &BTreeMap<String, Begun>) -> Result<()> {
        store_file::replace_json(&self.path, notes, Outlives::Process)
    }
}
