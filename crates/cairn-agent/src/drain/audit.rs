//! Checks the copies in the persist directory: whether each is still there, and still what was
//! drained.
//!
//! Does not make them again: the plan copies what is missing.

use super::Tree;
use crate::drain::copy;
use crate::drain::meter::Meter;
use crate::model::error::{Error, Result};
use crate::model::protocol::Failed;
use crate::persist::ledger::Ledger;
use crate::store::read::Buffer;
use crate::store::volume::Volume;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Entry, State};
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

/// Returns the absent files whose copies are known to be damaged and, if the copies are to be
/// looked at (`looks`), those whose copies somebody changed or removed, as failures. Their data may
/// still be brought in from another copy. Errors: the persist directory fails.
pub fn without_data(
    ledger: &Ledger,
    trees: &[(&Arc<Volume>, Tree)],
    looks: bool,
) -> Result<Vec<Failed>> {
    let mut failed = Vec::new();
    for (path, node) in trees.iter().flat_map(|(_, tree)| tree) {
        let Some(absence) = node.absence else { continue };
        let is_damaged = absence.damaged || ledger.manifest().is_damaged(path);
        let has_entry = || {
            let copy = ledger.entry(path).and_then(Entry::copy);
            copy.is_some_and(|copy| (copy.bytes, copy.crc32c) == (node.bytes, absence.crc32c))
        };
        if is_damaged || looks && has_entry() && !ledger.is_ours(path)? {
            let reason = match is_damaged {
                true => "its copy is damaged, and its data are not in the store",
                false => "its copy was changed or removed, and its data are nowhere else",
            };
            let (path, reason) = (path.clone(), reason.to_string());
            failed.push(Failed { path, reason, quarantined: false });
        }
    }
    Ok(failed)
}
