//! Rebuilds a store from its media after a write to them failed, as after the loss of the node's
//! memory, but keeps its description.
//!
//! Must stay true: nobody uses the store meanwhile. Every complete file is on the media or
//! elsewhere, unless the user gives it up; lost files are named. Nothing has changed until the
//! segments are removed; from then on the next run continues the rebuild. For the persist directory
//! and the archive, the result is another store: what they hold of the old one stays.

use cairn_agent::model::drain_task::DrainTask;
use cairn_agent::persist::marks::MARKS_FILE;
use cairn_agent::store::register_file::REGISTER_FILE;
use cairn_agent::store::volume::Volume;
use cairn_core::{Attributes, Superblock};
use cairn_device::store::namespace;
use cairn_device::{MediaFile, Store, TierPlace};
use cairn_job::file::node::{Kind, Node};
use cairn_job::file::path::FilePath;
use cairn_platform::checksum::crc32c;
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use crate::claim::random_hex;
use crate::drain::drain_with;
use crate::error::{Error, Result, ResumeError};
use crate::output::{self, count};
use crate::request::Request;
use crate::store::{OpenStore, offline, survey, tier};

/// Maximum number of files that a message names.
const NAMED_MAX: usize = 8;

/// A store that must be rebuilt from its media, which can be read.
pub struct Failed {
    /// Its metadata tier, as text.
    tier: String,
    missing: Missing,
}

/// Files that are in memory and not on the media.
#[derive(Default)]
struct Missing {
    /// Complete files that the media know of, but whose data are only in memory.
    complete: Vec<String>,
    /// Files whose close failed.
    closed: Vec<String>,
    /// Files that were not closed, or could not be written completely.
    incomplete: Vec<String>,
    /// Files that were drained, or whose data were not brought in yet.
    elsewhere: Vec<String>,
    /// Files that have another name on the media.
    renamed: Vec<String>,
}

impl Failed {
    /// Returns the failed store; None if nothing failed. Drains first what can be drained. Errors:
    /// programs still use the store, its media cannot be read, or complete files would be lost and
    /// may not be given up.
    pub fn find(store: &OpenStore, request: &Request) -> Result<Option<Failed>> {
        let job = &store.job.job;
        let volumes = store.volumes()?;
        let (false, Some(media)) = (is_well(&volumes)?, store.job.media()) else {
            return Ok(None);
        };
        let processes = survey::programs(store)?;
        if !processes.is_empty() {
            let users = output::still_use(&processes);
            return Err(Error::Resume(ResumeError::MediaInUse { job: job.clone(), users }));
        }
        let tier = tier::shown(media);
        let mut missing = Missing::look(store, &volumes)?;
        if store.job.persist.is_some() && missing.can_be_drained() {
            drain_with(store, None, Duration::ZERO, DrainTask::default(), request.quiet)?;
            missing = Missing::look(store, &volumes)?;
        }
        if !missing.complete.is_empty() && !request.may_overwrite {
            return Err(Error::Resume(ResumeError::NotOnMedia {
                tier,
                files: count(missing.complete.len() as u64, "file"),
                names: named(&missing.complete),
                drain: match store.job.persist {
                    Some(_) => format!("cairn drain {job}"),
                    None => format!("cairn drain {job} --persist DIR"),
                },
            }));
        }
        Ok(Some(Failed { tier, missing }))
    }

    /// Returns messages about the rebuild and the lost files.
    pub fn lines(&self, job: &str) -> Vec<String> {
        let Missing { complete, closed, incomplete, elsewhere, renamed } = &self.missing;
        let lost = [&complete[..], closed, incomplete].concat();
        let lists = [
            ("lost, apart from data that was durable", &lost),
            ("only in the persist directory", elsewhere),
            ("back under an earlier name", renamed),
        ];
        let lists = lists.into_iter().filter(|(_, files)| !files.is_empty());
        let lists = lists.map(|(what, files)| {
            let number = count(files.len() as u64, "file");
            format!("{job}: {number} {what}: {}", named(files))
        });
        let tier = &self.tier;
        let first = format!(
            "{job}: writing to {tier} failed: going on with the data that is durable there"
        );
        std::iter::once(first).chain(lists).collect()
    }
}

/// Removes what belongs to the segments of a store, and the segments last. Precondition: neither
/// programs nor an agent use the store.
pub fn forget_segments(store: &mut OpenStore, device_store: &Store) -> Result<()> {
    let directory = store.directory().to_path_buf();
    // A new identity: without it, files that are missing from here on would count as removed by the
    // job.
    store.job.store = random_hex();
    store.job.save(&directory)?;
    for name in [REGISTER_FILE, MARKS_FILE] {
        remove_file(&directory.join(name))?;
    }
    for name in device_store.namespaces()? {
        namespace::forget(device_store, &name)?;
    }
    Ok(())
}

fn is_well(volumes: &[Volume]) -> Result<bool> {
    for volume in volumes {
        let usage = volume.fs().log_usage().map_err(volume.error("measure", &FilePath::root()))?;
        if usage.is_some_and(|usage| usage.failed) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Missing {
    fn look(store: &OpenStore, volumes: &[Volume]) -> Result<Missing> {
        let mut missing = Missing::default();
        volumes.iter().try_for_each(|volume| missing.add(store, volume)).map(|()| missing)
    }

    fn can_be_drained(&self) -> bool {
        !self.complete.is_empty() || !self.closed.is_empty()
    }

    /// Adds the files of a namespace.
    fn add(&mut self, store: &OpenStore, volume: &Volume) -> Result<()> {
        let places = namespace::places(&Store::open(store.directory())?, volume.name())?;
        let Some(TierPlace::Medium { path, .. }) = places.first() else { return Ok(()) };
        let on_media = on_media(path)?;
        let tree = volume.tree()?;
        for (path, node) in tree.iter().filter(|(_, node)| node.kind == Kind::File) {
            let inner = path.strip_prefix(volume.prefix());
            let found = on_media.get(&node.inode).map_or(&[][..], Vec::as_slice);
            let there = found.first().map(|(_, there)| there).filter(|there| has(there, node));
            let is_named = found.iter().any(|(name, _)| Some(name) == inner.as_ref());
            let list = match there {
                Some(there) if !there.lost && is_named => continue,
                Some(there) if !there.lost => &mut self.renamed,
                _ if node.drained || node.absence.is_some() => &mut self.elsewhere,
                _ if node.unclean || node.open => &mut self.incomplete,
                Some(_) => &mut self.complete,
                None => &mut self.closed,
            };
            list.push(store.shown(path));
        }
        Ok(())
    }
}

/// Returns the files of the namespace at `path` by inode, with all their names.
fn on_media(path: &Path) -> Result<HashMap<u32, Vec<(FilePath, Attributes)>>> {
    let unusable = offline::unusable(path);
    let media = MediaFile::open(path)?;
    let superblock = Superblock::read(&media, crc32c).map_err(unusable)?;
    let (fs, _) = offline::rebuild(&media, &superblock).map_err(unusable)?;
    let mut files: HashMap<u32, Vec<_>> = HashMap::new();
    for (path, attributes) in offline::tree(&fs).map_err(unusable)? {
        files.entry(attributes.inode.0).or_default().push((path, attributes));
    }
    Ok(files)
}

/// Whether the media hold the same version of a file as memory; for an incomplete file, whether
/// they hold as many bytes.
fn has(there: &Attributes, node: &Node) -> bool {
    match node.unclean || node.open {
        true => there.size >= node.bytes,
        false => (there.version, there.size) == (node.version, node.bytes),
    }
}

fn named(files: &[String]) -> String {
    let names = files.iter().take(NAMED_MAX).map(|name| output::escaped(name.as_bytes()));
    let names = names.collect::<Vec<_>>().join(", ");
    match files.len().saturating_sub(NAMED_MAX) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}
