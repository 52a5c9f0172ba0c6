//! Write-ahead journal of the persist directory: every change is announced before it happens.
//!
//! The manifest is written once for many changes. An agent that is killed in between leaves changes
//! that the manifest does not name. The journal lets the next agent tell them from changes by
//! others.
//!
//! Must stay true: no file of ours gets, changes or loses a name in the directory before its record
//! is written. Records are removed only after the manifest on disk has the results. They survive
//! the agent. They survive the node only as far as the file system of the directory has stored
//! them; the next store of the job reads what is there. A name that no record mentions is not
//! removed any more.
//!
//! Does not judge whether a change took place; `ledger.rs` does.

use crate::model::error::{Error, Result};
use crate::model::path::FilePath;
use crate::persist::destination::Destination;
use crate::persist::manifest::Entry;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The announced change of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The name, relative to the persist directory.
    pub path: FilePath,
    /// The entry that the manifest will have; None if the name is to be removed.
    pub entry: Option<Entry>,
    /// Inode, in the persist directory, of the regular file that will have the name.
    pub inode: Option<u64>,
}

/// The journal of one store, beside its manifest. An empty journal has no file.
pub struct Journal {
    destination: Arc<Destination>,
    file: Mutex<Option<File>>,
}

impl Journal {
    /// Opens the journal, and returns the records that an agent left which died, in the order of
    /// writing.
    pub fn open(destination: Arc<Destination>) -> Result<(Journal, Vec<Intent>)> {
        let mut file = destination.open_journal(false)?;
        let mut text = Vec::new();
        if let Some(file) = &mut file {
            let path = destination.full_path(&destination.journal_path());
            file.read_to_end(&mut text).map_err(Error::file("read", &path))?;
        }
        // A record that was cut off announced a change that did not begin.
        let lines = text.split(|&byte| byte == b'\n');
        let intents = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        Ok((Journal { destination, file: Mutex::new(file) }, intents))
    }

    /// Announces a change.
    pub fn add(&self, intent: &Intent) -> Result<()> {
        let path = self.destination.full_path(&self.destination.journal_path());
        let record = serde_json::to_vec(intent)
            .map_err(|source| Error::Json { path: path.clone(), source })?;
        let mut slot = self.lock();
        if slot.is_none() {
            *slot = self.destination.open_journal(true)?;
        }
        match &mut *slot {
            // The newline comes first: a record that was cut off spoils no other.
            Some(file) => file
                .write_all(&[b"\n", record.as_slice()].concat())
                .map_err(Error::file("write", &path)),
            None => Ok(()),
        }
    }

    /// Removes all records. Precondition: the manifest on disk has their results.
    pub fn clear(&self) -> Result<()> {
        let mut slot = self.lock();
        if slot.is_some() {
            self.destination.remove_file(&self.destination.journal_path())?;
            *slot = None;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        // A thread that panicked has left no half-done change.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
