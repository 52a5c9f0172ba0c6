//! Cleans up after processes that died: reaps them, closes descriptors that were sent and never
//! received, and frees the blocks of deleted files.
//!
//! Must stay true: only a process that `living.rs` calls dead is reaped; an unknown state counts as
//! alive. A process whose identity is incomplete is given time to complete it.

use cairn_core::{ProcessIdentity, SlotId};
use std::sync::Arc;

use crate::model::error::Result;
use crate::store::liveness::Living;
use crate::store::volume::{Volume, now};
use cairn_job::file::path::FilePath;

/// Largest number of batches of blocks freed in one visit of a namespace, to keep the visit short.
const RECLAIM_BATCHES_MAX: usize = 256;

/// Result of a visit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visit {
    /// Number of attached processes other than this one that are alive.
    pub living: usize,
    /// Number of processes that were reaped.
    pub reaped: usize,
}

/// Reaps the dead processes of one namespace, without access to its media.
pub fn reap(volume: &Volume) -> Result<Visit> {
    let root = FilePath::root();
    let failed = || volume.error("look after the processes of", &root);
    let (mut visit, mut living) = (Visit::default(), Living::of(volume.name()));
    for (slot, identity) in volume.fs().processes().map_err(failed())? {
        if slot == volume.slot() {
            continue;
        }
        if living.has(identity) {
            visit.living += 1;
        } else if volume.fs().reap(slot, identity, now()).map_err(failed())? {
            visit.reaped += 1;
        }
    }
    Ok(visit)
}

/// Returns the living processes of the job's programs, without commands and agents. Errors: the
/// namespace cannot be read.
pub fn programs(volume: &Volume) -> Result<Vec<ProcessIdentity>> {
    let failed = volume.error("look after the processes of", &FilePath::root());
    let programs = volume.fs().programs().map_err(failed)?.into_iter();
    let programs = programs.map(|(_, identity)| identity);
    let mut living = Living::of(volume.name());
    Ok(programs.filter(|identity| living.has(*identity)).collect())
}

/// Whether any program of the job is alive.
pub fn any_program(volumes: &[Arc<Volume>]) -> Result<bool> {
    for volume in volumes {
        if !programs(volume)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Maintains one namespace: reaps dead processes, closes descriptors lost in transit, and frees
/// orphaned blocks.
pub fn visit(volume: &Volume) -> Result<Visit> {
    let root = FilePath::root();
    let failed = || volume.error("look after the processes of", &root);
    let visit = reap(volume)?;
    volume.reap_transfers().map_err(failed())?;
    if volume.fs().orphans() > 0 {
        // On a durable tier, blocks become free only when the deletion is on the media.
        volume.fs().sync().map_err(failed())?;
    }
    reclaim(volume, None)?;
    Ok(visit)
}

/// Frees blocks of deleted files; for the use of `slot` if given.
pub fn reclaim(volume: &Volume, slot: Option<SlotId>) -> Result<()> {
    for _ in 0..RECLAIM_BATCHES_MAX {
        if volume.fs().orphans() == 0 {
            break;
        }
        let more = volume.fs().reclaim(slot);
        if !more.map_err(volume.error("free blocks of", &FilePath::root()))? {
            break;
        }
    }
    Ok(())
}
