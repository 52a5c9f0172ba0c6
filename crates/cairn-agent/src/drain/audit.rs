//! Checks the copies in the persist directory: whether each is still there, and still what was
//! drained.
//!
//! Does not make them again: the plan copies what is missing.

use super::Tree;
use crate::drain::copy;
use crate::drain::meter::Meter;
use crate::model::error::{Error, Result};
use crate::model::path::FilePath;
use crate::model::protocol::Failed;
use crate::persist::ledger::Ledger;
use crate::persist::manifest::State;
use crate::store::node::{Kind, Node};
use crate::store::read::Buffer;
use crate::store::volume::Volume;
use std::sync::Arc;

/// Drops the entries of copies that somebody changed or removed, so that they are made again.
pub fn forget_missing(
    ledger: &mut Ledger,
    trees: &[(&Arc<Volume>, Tree)],
    meter: &Meter,
) -> Result<()> {
    let attached = ledger.manifest().files.iter().filter(|(_, entry)| {
        let has_copy = entry.kind != Kind::File || entry.copy().is_some();
        has_copy && !entry.detached && entry.state == State::Drained
    });
    let paths: Vec<FilePath> = attached.map(|(path, _)| path.clone()).collect();
    for path in paths {
        if !ledger.is_ours(&path)? {
            let mut nodes = trees.iter().filter_map(|(_, tree)| tree.get(&path));
            // The copy of an absent file cannot be made again; the code that brings in its data
            // reports the problem.
            if !nodes.any(|node| node.absence.is_some()) {
                ledger.take(&path);
            }
        }
        meter.moves();
    }
    Ok(())
}

/// Reads every copy from its device and returns those that differ from what was drained. Errors:
/// the persist directory fails, `Stopped`.
pub fn damaged(ledger: &Ledger, meter: &Meter) -> Result<Vec<FilePath>> {
    let mut damaged = Vec::new();
    let mut buffer = Buffer::default();
    for (path, entry) in &ledger.manifest().files {
        let Some(copy) = entry.copy().filter(|_| entry.state == State::Drained) else { continue };
        let _at_work = meter.at(path);
        if !ledger.is_ours(path)? {
            continue;
        }
        match copy::verify(ledger.destination(), path, &copy, &mut buffer, meter) {
            Err(Error::CopyDiffers { .. } | Error::LengthDiffers { .. }) => {
                damaged.push(path.clone());
            }
            verified => verified?,
        }
    }
    Ok(damaged)
}

/// Returns the absent files whose copies are known to be damaged, as failures. Their data may still
/// be brought in from another copy.
pub fn without_data(ledger: &Ledger, trees: &[(&Arc<Volume>, Tree)]) -> Vec<Failed> {
    let nodes = trees.iter().flat_map(|(_, tree)| tree);
    let is_meant = |(path, node): &(&FilePath, &Node)| {
        let is_absent = node.absence.is_some_and(|absence| !absence.damaged);
        is_absent && ledger.manifest().is_damaged(path)
    };
    let failed = |(path, _): (&FilePath, &Node)| {
        let reason = "its copy is damaged, and it was not brought in yet".to_string();
        Failed { path: path.clone(), reason, quarantined: false }
    };
    nodes.filter(is_meant).map(failed).collect()
}
