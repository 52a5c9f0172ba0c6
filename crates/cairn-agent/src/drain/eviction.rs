//! Eviction: files leave the store and their drained copies stay.
//!
//! Must stay true: the manifest detaches the copies before the first file goes. A file that has to
//! be drained is looked up in the persist directory first.

use cairn_core::{Attributes, InodeId, ROOT};
use std::sync::Arc;

use super::Drainer;
use crate::drain::meter::Meter;
use crate::model::error::{Error, Result};
use crate::store::volume::Volume;
use cairn_job::checkpoint::sets::Member;
use cairn_job::checkpoint::sets::register::{Checkpoint, Level};
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{State, manifest_path};

/// A name that is to leave the store.
struct Leaving<'a> {
    path: &'a FilePath,
    volume: &'a Volume,
    /// Its path within the namespace.
    inner: FilePath,
    is_directory: bool,
    /// Inode and version that the file must still have, without a writer; otherwise it stays.
    unchanged: Option<(InodeId, u64)>,
}

impl Drainer {
    /// Removes files from the store, in this order, and keeps their drained copies. Refuses all of
    /// them if one is not drained, unless `force`. Errors: `NotDrained`; `Changed` if a file is in
    /// use; the manifest cannot be read or written.
    pub fn evict(
        &mut self,
        volumes: &[Arc<Volume>],
        paths: &[FilePath],
        force: bool,
        meter: &Meter,
    ) -> Result<()> {
        let _at_work = meter.at(&manifest_path(&self.job.job));
        match self.open_for(volumes) {
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

    /// Removes the files of a checkpoint from the store. Refuses if one of them changed since the
    /// checkpoint was found, or is not drained although the checkpoint is wanted in the persist
    /// directory.
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

    /// Whether the persist directory has this version of a file or symbolic link. Looks at
    /// the copy: one that somebody changed or removed is dropped from the manifest, so that it is
    /// made again.
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
            // The manifest must say `detached` first: once the file is gone, the next pass would
            // remove a copy that is still tied to it. The next pass attaches the copy again if the
            // file stays after all.
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

/// Returns the namespace that `path` lies in, and its path within that namespace.
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
