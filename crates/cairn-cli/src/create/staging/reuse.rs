//! Inputs that stay on the node for the next job of the same user (echofs's reusable files).
//!
//! At the end of a job, its inputs that are tagged reusable and that nobody has changed go to a
//! directory of the user, as plain files with a record each. The next job that names the same
//! source gets them from there, and the parallel file system is only asked whether the source is
//! still the same.
//!
//! Must stay true: a kept file is used only if its source is in the state that it was read in, and
//! only if its data have the checksum that they had then. A record appears after its file, whole.
//! Files whose lease has ended, or that lack room, go.

use cairn_agent::model::store_file::{self, MustSurvive};
use cairn_agent::store::inputs::{SourceState, open_source, read_path, write_path};
use cairn_agent::store::read::{Buffer, read_whole};
use cairn_agent::store::volume::Volume;
use cairn_job::file::path::FilePath;
use cairn_platform::checksum;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result, StageError};
use crate::settings::input_options::ReusePolicy;
use crate::store::REUSABLE;
use crate::store::local::Expected;

/// Version of the format of records.
const FORMAT: u32 = 1;
/// Largest record that is read, in bytes.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Number of hexadecimal digits of the name of a kept file.
const KEY_DIGITS: usize = 32;

/// Kept inputs of a user.
pub struct Reusable {
    directory: PathBuf,
    lease: Duration,
    bytes_max: Option<u64>,
    /// When this value was made. What was used since then is not given up for other files.
    begun: u64,
}

/// What is known of a kept file.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    format: u32,
    #[serde(serialize_with = "write_path", deserialize_with = "read_path")]
    source: PathBuf,
    state: SourceState,
    crc32c: u32,
    /// When it was last used, and until when it is kept; seconds since the epoch.
    used: u64,
    until: u64,
}

impl Reusable {
    /// The kept inputs for the stores beside `store`. Errors: the directory of the policy is not
    /// this user's alone.
    pub fn beside(store: &Path, policy: &ReusePolicy) -> Result<Reusable> {
        let directory = match &policy.directory {
            Some(directory) => own_part(directory),
            None => store.parent().unwrap_or(store).join(REUSABLE),
        };
        check_private(&directory)?;
        let ReusePolicy { lease, bytes_max, .. } = *policy;
        Ok(Reusable { directory, lease, bytes_max, begun: now() })
    }

    /// Returns the kept copy of `source`, which is in `state` now, and what its data must be; None
    /// if there is none. Extends its lease.
    pub fn find(&self, source: &Path, state: SourceState) -> Option<(File, PathBuf, Expected)> {
        let name = self.directory.join(key(source));
        let mut record = load(&record_of(&name))?;
        if record.source != source || record.state != state {
            // The source has changed, so nobody needs the copy any more.
            forget(&name);
            return None;
        }
        let file = open_source(&name).ok()?;
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return None;
        }
        self.use_now(&name, &mut record);
        Some((file, name, Expected { bytes: state.bytes, crc32c: record.crc32c }))
    }

    fn use_now(&self, name: &Path, record: &mut Record) {
        (record.used, record.until) = (now(), now() + self.lease.as_secs());
        // If this fails, the lease ends earlier.
        let _ = store_file::replace_json(&record_of(name), record, MustSurvive::Process);
    }

    /// Removes a kept copy whose data are not what they were.
    pub fn forget(&self, source: &Path) {
        forget(&self.directory.join(key(source)));
    }

    /// Keeps the file at `inner` of a store, which is an unchanged copy of `source`. Returns
    /// false if it does not fit. Errors: it cannot be read or written.
    pub fn keep(
        &self,
        volume: &Volume,
        inner: &FilePath,
        (source, state): (&Path, SourceState),
    ) -> Result<bool> {
        let name = self.directory.join(key(source));
        if let Some(mut known) = load(&record_of(&name)) {
            if (known.source.as_path(), known.state) == (source, state) {
                self.use_now(&name, &mut known);
                return Ok(true);
            }
        }
        let mut options = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(options.recursive(true), 0o700);
        options.create(&self.directory).map_err(Error::file("make", &self.directory))?;
        // A file that does not fit even alone must not cost others their place.
        let fits_alone = self.bytes_max.is_none_or(|bytes_max| state.bytes <= bytes_max);
        if !fits_alone || !self.make_room(state.bytes)? {
            return Ok(false);
        }
        let temporary = name.with_extension(format!("{}.new", std::process::id()));
        let crc32c = copy_out(volume, inner, &temporary);
        let crc32c = crc32c.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
        forget(&name);
        fs::rename(&temporary, &name).map_err(Error::file("rename", &temporary))?;
        let source = source.to_path_buf();
        let (used, until) = (now(), now() + self.lease.as_secs());
        let record = Record { format: FORMAT, source, state, crc32c, used, until };
        store_file::replace_json(&record_of(&name), &record, MustSurvive::Process)?;
        Ok(true)
    }

    /// Removes what nobody may use any more, and, for a file of `bytes`, what was not used for the
    /// longest time. Returns false if the file does not fit all the same.
    fn make_room(&self, bytes: u64) -> Result<bool> {
        let free = || -> Result<u64> {
            let found = rustix::fs::statvfs(&self.directory);
            let found = found.map_err(Error::file("look at", &self.directory))?;
            Ok(found.f_bavail * found.f_frsize)
        };
        collect(&self.directory, false, false);
        let mut kept = kept(&self.directory);
        kept.sort_by_key(|file| file.record.as_ref().map(|record| record.used));
        let mut kept_bytes: u64 = kept.iter().map(|file| file.bytes).sum();
        // A quarter of what would be free without the kept files.
        let bytes_max = match self.bytes_max {
            Some(bytes_max) => bytes_max,
            None => (free()? + kept_bytes) / 4,
        };
        let is_older =
            |file: &Kept| file.record.as_ref().is_none_or(|record| record.used < self.begun);
        let mut oldest = kept.into_iter().filter(is_older);
        while kept_bytes + bytes > bytes_max || free()? < bytes {
            let Some(file) = oldest.next() else { return Ok(false) };
            forget(&file.name);
            kept_bytes -= file.bytes;
        }
        Ok(true)
    }
}

/// A kept file.
struct Kept {
    name: PathBuf,
    /// None if it has no record that counts.
    record: Option<Record>,
    bytes: u64,
}

impl Kept {
    /// Whether nobody may use it any more. A file whose record is about to come is not over.
    fn is_over(&self) -> bool {
        match &self.record {
            Some(record) => record.until <= now(),
            None => !is_young(&self.name),
        }
    }
}

/// Returns the kept files of a directory. Removes what killed processes have not finished.
fn kept(directory: &Path) -> Vec<Kept> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut kept = Vec::new();
    for entry in entries.flatten() {
        let (name, Ok(found)) = (entry.path(), entry.metadata()) else { continue };
        let stem = name.file_stem().unwrap_or_default().as_bytes();
        if stem.len() != KEY_DIGITS || !stem.iter().all(u8::is_ascii_hexdigit) || !found.is_file() {
            // Not a name that this file makes.
            continue;
        }
        match name.extension() {
            // A record goes with its file.
            Some(extension) if extension == "json" => {}
            Some(_) => {
                let age = found.modified().ok().and_then(|at| at.elapsed().ok());
                if age.is_some_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(&name);
                }
            }
            None => {
                let record = load(&record_of(&name));
                kept.push(Kept { name, record, bytes: found.len() });
            }
        }
    }
    kept
}

/// Returns the number of kept files of a directory, and their size in bytes.
pub fn amount(directory: &Path) -> (u64, u64) {
    let kept = kept(directory);
    (kept.len() as u64, kept.iter().map(|file| file.bytes).sum())
}

/// Removes the kept files of a directory that nobody may use any more, or `all` of them, unless
/// this is a `dry_run`. Returns their number and size in bytes.
pub fn collect(directory: &Path, all: bool, dry_run: bool) -> (u64, u64) {
    let mut collected = (0, 0);
    for file in kept(directory).iter().filter(|file| all || file.is_over()) {
        if !dry_run {
            forget(&file.name);
        }
        collected = (collected.0 + 1, collected.1 + file.bytes);
    }
    collected
}

/// What a killed process has not finished for this long is removed.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Time within which a file gets its record.
const UNRECORDED: Duration = Duration::from_secs(60);

fn is_young(path: &Path) -> bool {
    let changed = rustix::fs::stat(path).ok();
    let changed = changed.and_then(|found| u64::try_from(found.st_ctime).ok()).unwrap_or(0);
    !record_of(path).exists() && now().saturating_sub(changed) < UNRECORDED.as_secs()
}

/// Copies the data of a file out of a store. Returns their CRC32C.
fn copy_out(volume: &Volume, inner: &FilePath, path: &Path) -> Result<u32> {
    let _ = fs::remove_file(path);
    let file = volume.open_present(inner)?;
    let mut options = File::options();
    let target = options.write(true).create_new(true).mode(0o600).open(path);
    let target = target.map_err(Error::file("make", path))?;
    let mut crc32c = 0;
    let summary = read_whole(&file, &mut Buffer::default(), &mut |chunk| {
        let length = chunk.length as u64;
        match chunk.is_hole {
            true => {
                crc32c = checksum::combine(crc32c, checksum::zeros(length), length);
                Ok(())
            }
            false => {
                crc32c = checksum::crc32c(crc32c, chunk.bytes());
                let written = target.write_all_at(chunk.bytes(), chunk.offset);
                written.map_err(cairn_agent::Error::file("write", path))
            }
        }
    })?;
    let attributes = summary.attributes;
    target.set_len(attributes.size).map_err(Error::file("write", path))?;
    Ok(crc32c)
}

/// The part of a directory that the user named in which this user's files are kept. Others may have
/// files in the directory itself.
pub fn own_part(directory: &Path) -> PathBuf {
    directory.join(format!("cairn-reusable-{}", rustix::process::geteuid().as_raw()))
}

/// Checks that nobody else can put files into a directory, or read those in it.
fn check_private(directory: &Path) -> Result<()> {
    let Ok(found) = directory.symlink_metadata() else { return Ok(()) };
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    match found.is_dir() && is_own && found.mode() & 0o077 == 0 {
        true => Ok(()),
        false => Err(Error::Stage(StageError::NotPrivate { path: directory.to_path_buf() })),
    }
}

/// Name of the copy of `source`.
fn key(source: &Path) -> String {
    let digest = Sha256::digest(source.as_os_str().as_bytes());
    digest.iter().take(KEY_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

fn record_of(name: &Path) -> PathBuf {
    name.with_extension("json")
}

fn load(path: &Path) -> Option<Record> {
    let bytes = store_file::read(path, RECORD_BYTES_MAX).ok()?;
    let record: Record = serde_json::from_slice(&bytes).ok()?;
    (record.format == FORMAT).then_some(record)
}

/// Removes a file and its record. What cannot be removed is not used either.
fn forget(name: &Path) {
    let _ = fs::remove_file(record_of(name));
    let _ = fs::remove_file(name);
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
