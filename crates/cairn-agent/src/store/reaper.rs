//! Cleaning up after processes that died, closing what was sent and never received, and freeing
//! what deleted files held.
//!
//! Must stay true: only a process that `living.rs` calls dead is reaped; what cannot be
//! known counts as alive. A process whose identity is not complete yet is given time to tell it.

use crate::model::error::Result;
use crate::model::path::FilePath;
use crate::store::living::Living;
use crate::store::volume::{Volume, now};
use cairn_core::{ProcessIdentity, SlotId};
use std::sync::Arc;

/// Batches of blocks freed in one visit of a namespace, so that a visit stays short.
const RECLAIM_BATCHES_MAX: usize = 256;

/// What a visit found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visit {
    /// Processes other than this one that are attached and alive.
    pub living: usize,
    /// Processes that were reaped.
    pub reaped: usize,
}

/// Reaps the dead of one namespace, without a word to its media.
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

/// The processes of programs of the job, as far as they are alive: no command, and no agent.
/// Errors: the namespace cannot be read.
pub fn programs(volume: &Volume) -> Result<Vec<ProcessIdentity>> {
    let failed = volume.error("look after the processes of", &FilePath::root());
    let programs = volume.fs().programs().map_err(failed)?.into_iter();
    let programs = programs.map(|(_, identity)| identity);
    let mut living = Living::of(volume.name());
    Ok(programs.filter(|identity| living.has(*identity)).collect())
}

/// Whether any is.
pub fn any_program(volumes: &[Arc<Volume>]) -> Result<bool> {
    for volume in volumes {
        if !programs(volume)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks after one namespace: reaps the dead, closes what is on its way no more, and frees orphaned
/// blocks.
pub fn visit(volume: &Volume) -> Result<Visit> {
    let root = FilePath::root();
    let failed = || volume.error("look after the processes of", &root);
    let visit = reap(volume)?;
    volume.land_all().map_err(failed())?;
    if volume.fs().orphans() > 0 {
        // On a durable tier blocks are free only when that is on the media.
        volume.fs().sync().map_err(failed())?;
    }
    reclaim(volume, None)?;
    Ok(visit)
}

/// Frees blocks of deleted files, for the use of `slot` if given.
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
