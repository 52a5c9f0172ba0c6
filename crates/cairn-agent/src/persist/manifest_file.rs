//! The file of a manifest in the persist directory.
//!
//! Must stay true: it is replaced whole and durably, and a text that is not what was written is
//! damage, not absence. While a log continues it, both together are the manifest.

use cairn_job::outside::manifest::{self, MANIFEST_FORMAT, Manifest, manifest_name, manifest_path};
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;

use crate::model::error::{Error, Result};
use crate::model::format;
use crate::model::job::Job;
use crate::persist::destination::Destination;
use crate::persist::manifest_log;

/// Number of attempts to read a manifest that is being replaced.
const ATTEMPTS_MAX: usize = 10;

/// Reads the manifest of `job` and makes `destination` use its mapping from then on. None if there
/// is none. Errors: those of [`parse`]; it cannot be read.
pub fn load(destination: &mut Destination, job: &str) -> Result<Option<Manifest>> {
    let manifest = read(destination, job)?;
    if let Some(manifest) = &manifest {
        destination.map(manifest.map.clone());
    }
    Ok(manifest)
}

/// Reads the manifest of `job`. Errors: as `load`.
pub(crate) fn read(destination: &Destination, job: &str) -> Result<Option<Manifest>> {
    let name = manifest_path(job);
    let path = destination.full_path(&name);
    for attempt in 1.. {
        let Some(found) = destination.look(&name)? else { return Ok(None) };
        let mut text = Vec::new();
        let mut file = destination.open_file(&name)?;
        file.read_to_end(&mut text).map_err(Error::file("read", &path))?;
        let mut manifest: Manifest = parse(&path, &text)?;
        match manifest_log::replay(destination, &mut manifest) {
            // An agent has written both as one since.
            Err(_) if attempt < ATTEMPTS_MAX && destination.look(&name)? != Some(found) => {}
            replayed => return replayed.map(|()| Some(manifest)),
        }
    }
    Ok(None)
}

/// Replaces the manifest in the persist directory, durably.
pub fn commit(manifest: &Manifest, destination: &Destination) -> Result<()> {
    let name = manifest_name(&manifest.job);
    let path = destination.path().join(&name);
    let text = manifest.text().map_err(|source| Error::Json { path, source })?;
    destination.replace_file(&name, &text)
}

/// Removes the manifest of `job` and its log, if there are any.
pub fn remove(destination: &Destination, job: &str) -> Result<()> {
    destination.remove_file(&manifest_path(job))?;
    manifest_log::sweep(destination, job, None);
    Ok(())
}

/// Returns the first manifest of the store of `job`.
pub fn fresh(job: &Job) -> Manifest {
    let mut manifest = Manifest::new(&job.job, &job.store, &job.mount);
    (manifest.owner, manifest.map) = (job.launch.clone(), job.map.clone());
    manifest
}

/// Parses the text of a manifest, or some of its fields. Errors: `ManifestDamaged` if the text is
/// not what was written; `Json`; `Format` if a newer version wrote it.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T> {
    let found: u32 = format::version(path, text, MANIFEST_FORMAT)?;
    // Format 1 had no checksum.
    if found > 1 && !manifest::is_intact(text) {
        return Err(Error::ManifestDamaged { path: path.to_path_buf() });
    }
    format::parse(path, text, MANIFEST_FORMAT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::file::extended::Carried;
    use cairn_job::file::node::Kind;
    use cairn_job::file::node::Node;
    use cairn_job::file::path::FilePath;
    use cairn_job::outside::manifest::{Copy, Entry, State, Target};

    fn sample() -> Manifest {
        let mut manifest = Manifest::new("melt", "0123", "/cairn");
        let path = |bytes: &[u8]| FilePath::parse(bytes).expect("a valid path");
        let copy = Copy {
            bytes: 4,
            crc32c: 0xdead_beef,
            mode: 0o640,
            mtime_ns: 12_000_000_034,
            version: 3,
            extended: Some(Carried { crc32c: 0x0bad_cafe, kept: true }),
        };
        let node = Node {
            bytes: 4,
            mode: 0o640,
            mtime_ns: 12_000_000_034,
            version: 3,
            ..Node::new(7, Kind::File)
        };
        let entry = node.drained_entry(copy);
        manifest.files.insert(path(b"a/restart.1"), entry.clone());
        let damaged = Entry { state: State::Quarantined, crc32c: None, ..entry.clone() };
        manifest.files.insert(path(b"b\xff"), damaged);
        let target = Some(Target(b"a/\xfe".to_vec()));
        let link = Entry { kind: Kind::Symlink, crc32c: None, target, ..entry };
        manifest.files.insert(path(b"latest"), link);
        manifest
    }

    #[test]
    fn a_manifest_is_read_back_as_it_was_written() {
        let directory =
            std::env::temp_dir().join(format!("cairn-manifest-test-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a scratch directory");
        let mut destination = Destination::open(&directory, "0123").expect("opens");
        assert_eq!(load(&mut destination, "melt").expect("loads"), None);
        let manifest = sample();
        commit(&manifest, &destination).expect("commits");
        let loaded = load(&mut destination, "melt").expect("loads");
        assert_eq!(loaded, Some(manifest.clone()));
        let text =
            std::fs::read_to_string(directory.join("cairn-manifest.melt.json")).expect("reads");
        for shown in [
            "\"crc32c\": \"deadbeef\"",
            "\"crc32c\": \"0badcafe\"",
            "\"mode\": \"0640\"",
            "\"mtime\": \"12.000000034\"",
        ] {
            assert!(text.contains(shown), "{shown} in {text}");
        }
        let file = directory.join("cairn-manifest.melt.json");
        let at = text.find("crc32c").expect("is there");
        for place in [at, at + 14, text.len() / 2, 20] {
            let mut flipped = text.clone().into_bytes();
            flipped[place] ^= 1;
            std::fs::write(&file, flipped).expect("writes");
            load(&mut destination, "melt").expect_err("a flipped bit is found");
        }
        let mut newer = manifest;
        newer.format = MANIFEST_FORMAT + 1;
        commit(&newer, &destination).expect("commits");
        assert!(matches!(load(&mut destination, "melt"), Err(Error::Format { .. })));
        std::fs::remove_dir_all(directory).expect("removes");
    }
}
