//! Ties the files of a new store to their copies in the persist directory, from which they were
//! staged.
//!
//! Must stay true: before programs run, the manifest lists everything that was staged as drained
//! from this store, so that copies follow what programs rename and remove, however soon. A file is
//! marked as drained only after the manifest names its copy.

use cairn_agent::drain::checkpoints::Checkpoints;
use cairn_agent::persist::ledger::Ledger;
use cairn_agent::store::volume::{Volume, now};
use cairn_core::InodeId;
use cairn_job::file::node::{Kind, Node, Tree};
use cairn_job::file::path::FilePath;

use crate::error::Result;
use crate::store::OpenStore;

/// Ties everything in a new store to its copy in the persist directory. Records there that these
/// copies were found `damaged`, and in the register which checkpoints exist. Errors: the directory
/// cannot be read or written.
pub fn tie<'a>(
    store: &OpenStore,
    volumes: &[Volume],
    damaged: impl Iterator<Item = &'a FilePath>,
) -> Result<()> {
    let Some(persist) = &store.job.persist else { return Ok(()) };
    let mut ledger = Ledger::open(persist, &store.job)?;
    for path in damaged {
        ledger.update(path, |entry| entry.damaged = true);
    }
    tie_files(&mut ledger, volumes, &|_| true)?;
    let mut checkpoints = Checkpoints::load(store.directory(), &store.job)?;
    checkpoints.note_levels(&mut ledger);
    Ok(checkpoints.save()?)
}

/// Ties what `is_meant` to the copies that it came from, or will come from.
pub fn tie_files(
    ledger: &mut Ledger,
    volumes: &[Volume],
    is_meant: &dyn Fn(&FilePath) -> bool,
) -> Result<()> {
    let trees: Vec<Tree> = volumes.iter().map(Volume::tree).collect::<Result<_, _>>()?;
    for (path, node) in trees.iter().flatten().filter(|(path, _)| is_meant(path)) {
        if ledger.entry(path).is_some_and(|entry| entry.kind == node.kind) {
            ledger.attach(path, node);
        }
        if node.absence.is_none() {
            // The data were compared while they were copied: a copy that had been damaged was
            // repaired.
            ledger.update(path, |entry| entry.damaged = false);
        }
    }
    ledger.commit_whole()?;
    let is_file = |(path, node): &(&FilePath, &Node)| node.kind == Kind::File && is_meant(path);
    mark_drained(volumes, &trees, &is_file);
    Ok(())
}

fn mark_drained(
    volumes: &[Volume],
    trees: &[Tree],
    is_meant: &dyn Fn(&(&FilePath, &Node)) -> bool,
) {
    for (volume, tree) in volumes.iter().zip(trees) {
        for (_, node) in tree.iter().filter(is_meant) {
            // Only the displayed mark can fail here; the manifest is authoritative.
            let _ = volume.fs().mark_drained(InodeId(node.inode), node.version, now());
        }
    }
}
