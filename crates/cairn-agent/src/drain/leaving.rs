//! Files that leave the store while their drained copies stay.
//!
//! Must stay true: the manifest says so before the first of them goes; what has to be drained is
//! looked at in the persist directory first.

use super::Drainer;
use crate::checkpoint::sets::Member;
use crate::checkpoint::sets::register::{Checkpoint, Level};
use crate::drain::meter::Meter;
use crate::model::error::{Error, Result};
use crate::model::path::FilePath;
use crate::persist::manifest::{State, manifest_path};
use crate::store::volume::Volume;
use cairn_core::{Attributes, InodeId, ROOT};
use std::sync::Arc;

/// A name that leaves the store.
struct Leaving<'a> {
    path: &'a FilePath,
    volume: &'a Volume,
    /// Its path in the namespace.
    inner: FilePath,
    is_directory: bool,
    /// It stays unless it is this file, in this version, which nobody writes to.
    unchanged: Option<(InodeId, u64)>,
}

impl Drainer {
    /// Drops files from the store, in this order, and keeps their drained copies. Refuses all of
    /// them if one is not drained, unless `force`.
    pub fn evict(
        &mut self,
        volumes: &[Arc<Volume>],
        paths: &[FilePath],
        force: bool,
        meter: &Meter,
    ) -> Result<()> {
        let _at_work = meter.at(&manifest_path(&self.job.job));
        match self.open(volumes) {
            Err(error) if !force => return Err(error),
            _ => {}
        }
        let mut leaving = Vec::with_capacity(paths.len());
        for path in paths {
            let (volume, inner) = locate(volumes, path)?;
            let attributes = volume.attributes(&inner)?;
            let is_safe =
                force || attributes.is_directory() || self.is_drained(path, &attributes)?;
            if !is_safe {
                return Err(Error::NotDrained { path: path.clone() });
            }
            let is_directory = attributes.is_directory();
            leaving.push(Leaving { path, volume, inner, is_directory, unchanged: None });
        }
        self.remove(leaving)
    }

    /// Drops the files of a checkpoint from the store, unless one of them changed since it was
    /// looked at, or is not drained although that is wanted.
    pub fn give_up(
        &mut self,
        volumes: &[Arc<Volume>],
        known: &Checkpoint,
        meter: &Meter,
    ) -> Result<()> {
        let _at_work = meter.at(&manifest_path(&self.job.job));
        let mut leaving = Vec::with_capacity(known.files.len());
        for Member { path, inode, version, .. } in &known.files {
            let (volume, inner) = locate(volumes, path)?;
            let attributes = volume.attributes(&inner)?;
            if known.wanted == Level::Pfs && !self.is_drained(path, &attributes)? {
                return Err(Error::NotDrained { path: path.clone() });
            }
            let unchanged = Some((InodeId(*inode), *version));
            leaving.push(Leaving { path, volume, inner, is_directory: false, unchanged });
        }
        self.remove(leaving)
    }

    /// Whether the persist directory has a file or symbolic link as it is in the store. It is
    /// looked at: one that somebody changed or removed there is forgotten, so that it is copied
    /// again.
    fn is_drained(&mut self, path: &FilePath, attributes: &Attributes) -> Result<bool> {
        let Some(ledger) = &mut self.ledger else { return Ok(false) };
        let is_same = ledger.entry(path).is_some_and(|entry| {
            entry.state == State::Drained
                && !entry.damaged
                && entry.inode == attributes.inode.0
                && (!attributes.is_regular() || entry.version == attributes.version)
        });
        let is_there = is_same && ledger.is_ours(path)?;
        if is_same && !is_there && attributes.absence.is_none() {
            ledger.take(path);
        }
        Ok(is_there)
    }

    fn remove(&mut self, leaving: Vec<Leaving>) -> Result<()> {
        if let Some(ledger) = &mut self.ledger {
            // Said in the manifest first: once the file is gone, a copy without this word would be
            // removed as well. One that stays after all is tied to its copy again.
            for one in &leaving {
                ledger.update(one.path, |entry| entry.detached = true);
            }
            ledger.commit()?;
        }
        for Leaving { path, volume, inner, is_directory, unchanged } in leaving {
            let (fs, caller) = (volume.fs(), volume.caller());
            let removed = match (is_directory, unchanged) {
                (true, _) => fs.remove_directory(&caller, ROOT, inner.as_bytes()),
                (false, None) => fs.evict(&caller, ROOT, inner.as_bytes()),
                (false, Some(version)) => {
                    fs.evict_unchanged(&caller, ROOT, inner.as_bytes(), version)
                }
            };
            match removed {
                Err(cairn_core::Error::Busy) => return Err(Error::Changed { path: path.clone() }),
                removed => removed.map_err(volume.error("remove", &inner))?,
            }
            crate::store::reaper::reclaim(volume, None)?;
        }
        Ok(())
    }
}

/// The namespace a path lies in, and its path there.
fn locate<'a>(volumes: &'a [Arc<Volume>], path: &FilePath) -> Result<(&'a Volume, FilePath)> {
    let mut places = volumes
        .iter()
        .filter_map(|volume| Some((volume.as_ref(), path.strip_prefix(volume.prefix())?)));
    places.next().ok_or_else(|| Error::Store {
        action: "find",
        path: path.clone(),
        source: cairn_core::Error::NotFound,
    })
}
