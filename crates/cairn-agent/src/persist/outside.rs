//! Which files of a store its persist directory has, according to the manifest and to the copies
//! themselves.
//!
//! Must stay true: nothing is changed, and no agent is asked. The store's own flag that a file was
//! drained once does not count.
//!
//! Does not compare the content of copies; `copy.rs` does.

use crate::model::error::Result;
use crate::model::job::Job;
use crate::persist::destination::Destination;
use crate::persist::ledger::Ledger;
use crate::persist::manifest_file;
use cairn_job::file::node::Node;
use cairn_job::file::path::FilePath;
use cairn_job::outside::comparison::holds_data_of;
use cairn_job::outside::manifest::{Entry, Manifest, State};
use serde::Serialize;
use std::path::Path;

/// Why a file exists only in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// Somebody may write to it.
    Open,
    /// Its writer died or could not write everything, or a part of it is lost.
    Unclean,
    /// Its data differ from what was written.
    Damaged,
    /// It was drained, but its copy is gone or was changed.
    CopyGone,
    /// Its present version was not drained.
    NotDrained,
}

impl Lack {
    /// Returns the reason for a file without a copy outside; `Open` regardless of copies.
    pub fn without_copy(node: &Node) -> Lack {
        match node {
            Node { open: true, .. } => Lack::Open,
            Node { unclean: true, .. } => Lack::Unclean,
            Node { drained: true, .. } => Lack::CopyGone,
            _ => Lack::NotDrained,
        }
    }

    /// Returns the words that describe such files in messages.
    pub fn words(self) -> &'static str {
        match self {
            Lack::Open => "open",
            Lack::Unclean => "unclean",
            Lack::Damaged => "damaged in the store",
            Lack::CopyGone => "whose copy is gone",
            Lack::NotDrained => "not drained",
        }
    }
}

/// A persist directory, opened for reading.
pub struct Outside {
    destination: Destination,
    manifest: Manifest,
}

impl Outside {
    /// Opens the directory `path` and the manifest of `job`. Errors: it cannot be opened, or is not
    /// the one that it was; the manifest cannot be read.
    pub fn open(path: &Path, job: &Job) -> Result<Outside> {
        let (destination, manifest) = Ledger::look(path, job)?;
        Ok(Outside {
            destination,
            manifest: Manifest::resume(manifest, manifest_file::fresh(job), job.recovered.as_ref()),
        })
    }

    /// Returns why a regular file exists only in the store. None: it has a copy outside, or the
    /// store does not have its data either. Errors: the place of its copy cannot be looked at.
    pub fn lack(&self, path: &FilePath, node: &Node) -> Result<Option<Lack>> {
        let without_copy = Lack::without_copy(node);
        if node.absence.is_some_and(|absence| absence.damaged) {
            return Ok(None);
        }
        if without_copy == Lack::Open {
            return Ok(Some(without_copy));
        }
        let is_its = |entry: &&Entry| match node.absence {
            Some(_) => holds_data_of(entry, node),
            None => (entry.inode, entry.version) == (node.inode, node.version),
        };
        let Some(entry) = self.manifest.files.get(path).filter(is_its) else {
            return Ok(Some(without_copy));
        };
        if entry.state == State::Quarantined {
            return Ok(Some(Lack::Damaged));
        }
        let found = self.destination.look(path)?;
        let is_whole = entry.state == State::Drained && !entry.damaged;
        let is_there = is_whole && found.is_some_and(|it| entry.is_ours(&it));
        Ok((!is_there).then_some(without_copy))
    }
}
