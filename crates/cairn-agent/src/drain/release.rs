//! Release: drained files give up their room in the store. Their names stay, and whoever reads one
//! waits until its data were staged in from the copy.
//!
//! Must stay true: a file gives up its data only after its copy was looked at, and while the
//! manifest on disk names that copy. A file that somebody has open or mapped keeps its data. What
//! gave up its data to make room can come back.

use cairn_core::InodeId;
use std::collections::HashSet;
use std::sync::Arc;

use super::Drainer;
use crate::drain::meter::Meter;
use crate::model::error::Result;
use crate::persist::ledger::Ledger;
use crate::store::reaper;
use crate::store::volume::Volume;
use cairn_job::file::node::{Kind, Node};
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Manifest, State, manifest_path};

/// Files that gave up their data.
#[derive(Debug, Default)]
pub struct Released {
    /// Their paths.
    pub paths: Vec<FilePath>,
    /// Their bytes.
    pub bytes: u64,
    /// Number of files whose copies somebody has changed or removed. They keep their data, and the
    /// next pass copies them again.
    pub without_copy: u64,
}

/// A drained file that nobody uses.
struct Idle<'a> {
    volume: &'a Volume,
    path: FilePath,
    inode: InodeId,
    version: u64,
    bytes: u64,
    crc32c: u32,
    changed_ns: i64,
}

/// Why files give up their data.
pub enum Why<'a> {
    /// Writers wait for room.
    Written,
    /// A file that gave up its data is to come back, and finds no room.
    Read,
    /// Programs said that they will not read them soon. The function says so of a path and the time
    /// of its last change (`st_ctim`), nanoseconds since the epoch.
    Hinted(&'a dyn Fn(&FilePath, i64) -> bool),
}

/// What is to give up its data.
pub struct Demand<'a> {
    /// Why it is to.
    pub why: Why<'a>,
    /// Bytes that are enough for now.
    pub enough: u64,
    /// Files that keep their data in any case.
    pub kept: &'a HashSet<FilePath>,
    /// When a file, by namespace and inode, was last staged in, nanoseconds since the epoch.
    pub used: &'a dyn Fn(&str, InodeId) -> Option<i64>,
}

impl Drainer {
    /// Lets drained files give up their data, those that were not changed or staged in for longest
    /// before others, until enough bytes are free.
    ///
    /// For writers, the newest complete checkpoint of each family keeps its data, and so do unused
    /// files of the length of the largest file that gave up its own: their room is for that file
    /// when it is read again, even if nothing else in the store can leave. Older checkpoints count
    /// as never to be read again. Errors: a namespace cannot be read; the manifest cannot be
    /// written.
    pub fn release(
        &mut self,
        volumes: &[Arc<Volume>],
        demand: Demand<'_>,
        meter: &Meter,
    ) -> Result<Released> {
        let Demand { why, enough, kept, used } = demand;
        let mut released = Released::default();
        let Some(ledger) = &mut self.ledger else { return Ok(released) };
        let _at_work = meter.at(&manifest_path(&self.job.job));
        let steps = Steps::of(ledger.manifest());
        let (mut idle, mut largest) = (Vec::new(), 0);
        for volume in volumes {
            for (path, node) in volume.tree()? {
                if node.absence.is_some() && !steps.older.contains(&path) {
                    largest = largest.max(node.bytes);
                }
                if !kept.contains(&path) {
                    idle.extend(idle_file(volume, ledger, path, &node));
                }
            }
        }
        idle.retain(|file| match why {
            Why::Written => !steps.newest.contains(&file.path),
            Why::Read => true,
            Why::Hinted(is_hinted) => is_hinted(&file.path, file.changed_ns),
        });
        if idle.is_empty() {
            return Ok(released);
        }
        let mut left: u64 = idle.iter().map(|file| file.bytes).sum();
        idle.sort_by_cached_key(|file| {
            let used_ns = used(file.volume.name(), file.inode).unwrap_or(i64::MIN);
            (steps.newest.contains(&file.path), file.changed_ns.max(used_ns))
        });
        ledger.commit()?;
        for file in idle {
            let Idle { volume, path, inode, version, bytes, crc32c, .. } = file;
            if released.bytes >= enough {
                break;
            }
            let is_older = steps.older.contains(&path);
            let stays = if is_older { largest } else { largest.max(bytes) };
            if matches!(why, Why::Written) && left - bytes < stays {
                continue;
            }
            if !ledger.is_ours(&path)? {
                ledger.take(&path);
                released.without_copy += 1;
                continue;
            }
            let (fs, caller) = (volume.fs(), volume.caller());
            // An error means that the file is gone, or that there is no room to note this.
            if fs.release_data(&caller, inode, version, crc32c) == Ok(true) {
                reaper::reclaim(volume, None)?;
                largest = stays;
                released.paths.push(path);
                released.bytes += bytes;
                left -= bytes;
            }
        }
        Ok(released)
    }
}

/// Files of checkpoints whose names have a step.
struct Steps {
    /// Those of the newest checkpoint of each family.
    newest: HashSet<FilePath>,
    /// Those of older ones.
    older: HashSet<FilePath>,
}

impl Steps {
    fn of(manifest: &Manifest) -> Steps {
        let newest = manifest.newest_files(|_| true);
        let known = manifest.checkpoints.iter().filter(|known| known.name.step.is_some());
        let all: HashSet<FilePath> =
            known.flat_map(|known| known.files.iter()).map(|file| file.path.clone()).collect();
        let (newest, older) = all.into_iter().partition(|path| newest.contains(path));
        Steps { newest, older }
    }
}

fn idle_file<'a>(
    volume: &'a Volume,
    ledger: &Ledger,
    path: FilePath,
    node: &Node,
) -> Option<Idle<'a>> {
    let has_data = node.kind == Kind::File && node.bytes > 0 && node.absence.is_none();
    if !has_data || node.open || !node.drained {
        return None;
    }
    let is_same = |state, inode, version| {
        (state, inode, version) == (State::Drained, node.inode, node.version)
    };
    let entry = ledger.entry(&path)?;
    let crc32c = entry.crc32c.filter(|_| is_same(entry.state, entry.inode, entry.version))?;
    let inode = InodeId(node.inode);
    let found = volume.fs().attributes(inode).ok().filter(|found| found.opens == 0)?;
    // What comes back has no holes: a sparse file would need more room than it gave.
    let is_whole = found.allocated_bytes >= node.bytes;
    let Node { version, bytes, .. } = *node;
    let changed_ns = found.changed.0;
    let is_idle = is_whole && !entry.damaged;
    is_idle.then_some(Idle { volume, path, inode, version, bytes, crc32c, changed_ns })
}
