//! Checkpoints of an archive as files that can be staged into a new store.
//!
//! Invariant: an object has one version. If two checkpoints describe a file differently, only the
//! newer one can be complete. A checkpoint object is trusted only if it can be parsed.

use cairn_agent::archive::fetch::Archive;
use cairn_agent::archive::manifest;
use cairn_agent::model::archive::ArchivePolicy;
use cairn_agent::store::volume::Volume;
use cairn_agent::store::write::NewFile;
use cairn_job::file::extended::Extended;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::{Checkpoint, CheckpointFile, Copy, Entry, Manifest, State};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::{Brought, Origin};
use crate::error::Result;

/// Mode of directories. Directories are not archived; they are created for files.
const DIRECTORY_MODE: u32 = 0o755;

/// Content of an archive for one job.
pub struct Archived {
    archive: Archive,
    job: String,
    url: String,
    /// Its checkpoints and their files, in the form of a persist directory's manifest.
    pub manifest: Manifest,
    /// A message for each checkpoint that is known to be incomplete.
    pub unreadable: Vec<String>,
}

impl Archived {
    /// Reads what the archive in `policy` holds of `job`. Errors: those of the server.
    pub fn open(policy: &ArchivePolicy, job: &str) -> Result<Archived> {
        let archive = Archive::open(policy)?;
        let (checkpoints, mut unreadable) = archive.checkpoints(job)?;
        let (manifest, replaced) = as_drained(job, checkpoints);
        unreadable.extend(replaced);
        let (job, url) = (job.to_string(), policy.url.clone());
        Ok(Archived { archive, job, url, manifest, unreadable })
    }
}

impl Origin for Archived {
    fn full_name(&self, path: &FilePath) -> String {
        format!("{}/{}/{path}", self.url, self.job)
    }

    fn extended(&self, _: &FilePath) -> Extended {
        Extended::default()
    }

    fn bring(
        &self,
        path: &FilePath,
        copy: &Copy,
        (volume, inner): (&Volume, &FilePath),
        advance: &mut dyn FnMut(u64),
    ) -> Result<Brought> {
        let mut target = NewFile::create(volume, inner)?;
        let found = self.archive.read(&self.job, path, &mut |bytes| {
            advance(bytes.len() as u64);
            target.append(bytes)
        })?;
        let is_whole =
            found.is_some_and(|found| (found.bytes, found.crc32c) == (copy.bytes, copy.crc32c));
        if !is_whole {
            return Ok(Brought::Damaged);
        }
        target.finish(copy.mode, copy.mtime_ns)?;
        Ok(Brought::AtOnce)
    }
}

/// Converts the checkpoints into a manifest of a persist directory. Also returns messages about
/// checkpoints whose files a newer checkpoint has replaced.
fn as_drained(job: &str, mut found: Vec<manifest::Manifest>) -> (Manifest, Vec<String>) {
    newest_first(&mut found);
    let mount = found.first().map(|newest| newest.mount.clone()).unwrap_or_default();
    let mut manifest = Manifest::new(job, "", &mount);
    let mut replaced = Vec::new();
    for one in found {
        let has_other = |file: &manifest::File| {
            let there = manifest.files.get(&file.content.path).and_then(Entry::copy);
            let CheckpointFile { bytes, crc32c, .. } = file.content;
            there.is_some_and(|there| (there.bytes, there.crc32c) != (bytes, crc32c))
        };
        if let Some(file) = one.files.iter().find(|file| has_other(file)) {
            let (name, path) = (&one.name, &file.content.path);
            replaced.push(format!("checkpoint {name} is left out: {path} was replaced"));
            continue;
        }
        one.files.iter().for_each(|file| enter(&mut manifest.files, file));
        let files = one.files.into_iter().map(|file| file.content).collect();
        // Numbers of different stores may be equal, so they are not used.
        let id = manifest.checkpoints.len() as u64 + 1;
        let (store, name, modified_ns) = (one.store, one.name, one.modified_ns);
        let is_known = |known: &Checkpoint| (&known.name, &known.files) == (&name, &files);
        if !manifest.checkpoints.iter().any(is_known) {
            manifest.checkpoints.push(Checkpoint { store, id, order: 0, name, modified_ns, files });
        }
    }
    manifest.checkpoints.reverse();
    (manifest, replaced)
}

/// Sorts checkpoints, newest first. Those of earlier versions have no order number: across stores
/// the time of each store's last checkpoint decides, within a store the checkpoint number.
fn newest_first(found: &mut [manifest::Manifest]) {
    let mut last: HashMap<String, (u64, i64)> = HashMap::new();
    for one in found.iter() {
        let this = (one.id, one.modified_ns);
        let last = last.entry(one.store.clone()).or_insert(this);
        *last = this.max(*last);
    }
    found.sort_by_cached_key(|one| {
        Reverse((one.order, last[&one.store].1, one.store.clone(), one.id))
    });
}

/// Adds a file and the directories above it.
fn enter(files: &mut BTreeMap<FilePath, Entry>, file: &manifest::File) {
    let CheckpointFile { path, bytes, crc32c } = &file.content;
    let blank = Entry {
        kind: Kind::Directory,
        state: State::Drained,
        inode: 0,
        version: 0,
        mode: DIRECTORY_MODE,
        mtime_ns: file.modified_ns,
        bytes: 0,
        crc32c: None,
        extended: None,
        earlier: None,
        target: None,
        reason: None,
        detached: false,
        unclosed: false,
        damaged: false,
        torn: false,
    };
    let mut parent = path.split().map(|(parent, _)| parent);
    while let Some(directory) = parent.filter(|directory| !directory.is_root()) {
        parent = directory.split().map(|(parent, _)| parent);
        files.entry(directory).or_insert_with(|| blank.clone());
    }
    let (mode, bytes, crc32c) = (file.mode, *bytes, Some(*crc32c));
    let entry = Entry { kind: Kind::File, mode, bytes, crc32c, ..blank };
    files.entry(path.clone()).or_insert(entry);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::checkpoint::name::{Family, Name};

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a path")
    }

    fn checkpoint(store: &str, step: u64, files: &[(&str, u32)]) -> manifest::Manifest {
        let modified_ns = step as i64;
        let file = |(name, crc32c): &(&str, u32)| {
            let content = CheckpointFile { path: path(name), bytes: 5, crc32c: *crc32c };
            manifest::File { content, mode: 0o640, modified_ns }
        };
        manifest::Manifest {
            format: manifest::FORMAT,
            job: "melt".into(),
            store: store.into(),
            mount: "/cairn".into(),
            id: step,
            order: 0,
            name: Name { family: Family(b"ckpt-{step}".to_vec()), step: Some(step.into()) },
            modified_ns,
            files: files.iter().map(file).collect(),
        }
    }

    #[test]
    fn clock_that_was_set_back_makes_no_checkpoint_older() {
        let at = |second, known| manifest::Manifest { modified_ns: second, ..known };
        let (manifest, _) = as_drained(
            "melt",
            vec![
                at(10, checkpoint("b", 2, &[("ckpt-2/x", 2)])),
                at(90, checkpoint("b", 1, &[("ckpt-1/x", 1)])),
                at(9, checkpoint("a", 7, &[("ckpt-7/x", 7)])),
            ],
        );
        let names: Vec<String> =
            manifest.checkpoints.iter().map(|known| known.name.to_string()).collect();
        assert_eq!(names, ["ckpt-7", "ckpt-1", "ckpt-2"]);
    }

    #[test]
    fn checkpoints_of_several_stores_are_one_list_and_a_file_has_one_version() {
        let (manifest, replaced) = as_drained(
            "melt",
            vec![
                checkpoint("a", 1, &[("ckpt-1/deep/x", 1), ("shared", 7)]),
                checkpoint("b", 2, &[("ckpt-2/x", 2), ("shared", 7)]),
                checkpoint("a", 2, &[("ckpt-2/x", 2), ("shared", 7)]),
                checkpoint("b", 3, &[("ckpt-1/deep/x", 3)]),
            ],
        );
        assert_eq!(replaced, ["checkpoint ckpt-1 is left out: ckpt-1/deep/x was replaced"]);
        let names: Vec<String> =
            manifest.checkpoints.iter().map(|known| known.name.to_string()).collect();
        assert_eq!(names, ["ckpt-2", "ckpt-3"]);
        assert_ne!(manifest.checkpoints[0].id, manifest.checkpoints[1].id);
        let kinds: Vec<(String, Kind)> =
            manifest.files.iter().map(|(path, entry)| (path.to_string(), entry.kind)).collect();
        let expected = [
            ("ckpt-1", Kind::Directory),
            ("ckpt-1/deep", Kind::Directory),
            ("ckpt-1/deep/x", Kind::File),
            ("ckpt-2", Kind::Directory),
            ("ckpt-2/x", Kind::File),
            ("shared", Kind::File),
        ];
        assert_eq!(kinds, expected.map(|(path, kind)| (path.to_string(), kind)));
        let copy = manifest.files[&path("ckpt-1/deep/x")].copy().expect("is a copy");
        assert_eq!((copy.bytes, copy.crc32c, copy.mode, copy.mtime_ns), (5, 3, 0o640, 3));
        assert!(manifest.checkpoints.iter().all(|known| known.is_whole(&manifest)));
    }
}
