//! Which files of a store its persist directory has: as the manifest says, and as they lie there.
//!
//! Must stay true: nothing is changed, and nobody is asked; what a store says of itself, that a
//! file was drained once, counts for nothing. Does not compare what is in copies; `copy.rs` does.

use crate::model::error::Result;
use crate::model::job::Job;
use crate::model::path::FilePath;
use crate::persist::comparison::holds_data_of;
use crate::persist::destination::Destination;
use crate::persist::ledger::Ledger;
use crate::persist::manifest::{Entry, Manifest, State};
use crate::store::node::Node;
use serde::Serialize;
use std::path::Path;

/// Why a file is nowhere but in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// Somebody may write to it.
    Open,
    /// Its writer died, or could not write all, or a part of it is lost.
    Unclean,
    /// Its data are not what was written.
    Damaged,
    /// It was drained, and its copy is not there, or somebody changed it.
    CopyGone,
    /// It was not drained in this version.
    NotDrained,
}

impl Lack {
    /// Of a file of which nothing is outside; `Open` whatever is there.
    pub fn without_copy(node: &Node) -> Lack {
        match node {
            Node { open: true, .. } => Lack::Open,
            Node { unclean: true, .. } => Lack::Unclean,
            Node { drained: true, .. } => Lack::CopyGone,
            _ => Lack::NotDrained,
        }
    }

    /// For people, of files.
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

/// A persist directory, to be looked at.
pub struct Outside {
    destination: Destination,
    manifest: Manifest,
}

impl Outside {
    /// The directory `path`, with what the manifest of `job` says. Errors: it cannot be opened, or
    /// is not the one that it was; the manifest cannot be read.
    pub fn open(path: &Path, job: &Job) -> Result<Outside> {
        let (destination, manifest) = Ledger::look(path, job)?;
        Ok(Outside { destination, manifest: Manifest::resume(manifest, job) })
    }

    /// Why a regular file of the store is nowhere else, or None: it is there, or the store has
    /// nothing of it, either.
    /// Errors: the place of its copy cannot be looked at.
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
