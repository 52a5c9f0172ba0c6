//! Directory that keeps grants for a target that is started again.
//!
//! ```text
//! cairn-JOB.namespace   the bytes            cairn-JOB.grant   the grant with its secrets (JSON)
//! ```
//! Invariant: a grant exists if and only if its second file exists. That file appears whole and
//! durable, after the first one, and is removed before it. Both have mode 0600. One target at a
//! time has the directory.

use super::{BLOCK_BYTES, Grant};
use crate::Namespace;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const PREFIX: &str = "cairn-";
const NAMESPACE: &str = ".namespace";
const GRANT: &str = ".grant";
/// Suffix of a file that is still being written and does not count yet.
const NEW: &str = ".new";

/// Content of the second file.
#[derive(Serialize, Deserialize)]
struct Kept {
    grant: Grant,
    /// NGUID by which hosts recognize the namespace.
    guid: [u8; 16],
}

/// A job, and its grant.
type Restored = (String, Result<(Grant, Namespace)>);

/// The directory.
pub(super) struct GrantStore {
    path: PathBuf,
    /// Locked for as long as this object lives.
    directory: File,
}

impl GrantStore {
    /// Locks the directory, which must exist. Errors: the system's; another target has it.
    pub(super) fn take(path: &Path) -> Result<GrantStore> {
        let directory = File::open(path)?;
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(Error::other("another target has it")),
            locked => locked?,
        }
        Ok(GrantStore { path: path.to_path_buf(), directory })
    }

    /// Returns all grants by job. Removes what was granted or revoked only in part.
    pub(super) fn restore(&self) -> Result<Vec<Restored>> {
        let mut restored = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            if let Some(job) = name.strip_suffix(GRANT) {
                restored.push((job.to_string(), self.read(job)));
            } else if let Some(job) = name.strip_suffix(NAMESPACE) {
                if !self.file(job, GRANT).exists() {
                    fs::remove_file(self.file(job, NAMESPACE))?;
                }
            } else if let Some(job) = name.strip_suffix(NEW) {
                fs::remove_file(self.file(job, NEW))?;
            }
        }
        Ok(restored)
    }

    fn read(&self, job: &str) -> Result<(Grant, Namespace)> {
        let path = self.file(job, GRANT);
        // The content of the file must not be shown: it has secrets.
        let refused = |why: &str| Error::other(format!("{}: {why}", path.display()));
        let kept: Kept =
            serde_json::from_slice(&fs::read(&path)?).map_err(|_| refused("it is not a grant"))?;
        let file = OpenOptions::new().read(true).write(true).open(self.file(job, NAMESPACE));
        let namespace = file.and_then(|file| Namespace::of(file, BLOCK_BYTES, kept.guid));
        let namespace = namespace.map_err(|error| refused(&error.to_string()))?;
        match kept.grant.job == job && namespace.shape().blocks == kept.grant.bytes / BLOCK_BYTES {
            true => Ok((kept.grant, namespace)),
            false => Err(refused("its namespace is not what was granted")),
        }
    }

    /// Creates the namespace of a job. It reads as zeros.
    pub(super) fn make(&self, job: &str, bytes: u64) -> Result<Namespace> {
        let file = private().read(true).open(self.file(job, NAMESPACE))?;
        Namespace::allocated(file, bytes, BLOCK_BYTES).inspect_err(|_| self.remove(job))
    }

    /// Makes the grant exist, durably.
    pub(super) fn keep(&self, grant: &Grant, namespace: &Namespace) -> Result<()> {
        // The space must be durable before the grant is.
        namespace.file().sync_all()?;
        let job = grant.job.clone();
        let kept = Kept { grant: grant.clone(), guid: namespace.shape().guid };
        let mut file = private().open(self.file(&job, NEW))?;
        file.write_all(&serde_json::to_vec(&kept)?)?;
        file.sync_all()?;
        fs::rename(self.file(&job, NEW), self.file(&job, GRANT))?;
        self.directory.sync_all()
    }

    /// Makes the grant cease to exist, durably. Can be repeated after an error.
    pub(super) fn revoke(&self, job: &str) -> Result<()> {
        match fs::remove_file(self.file(job, GRANT)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed?,
        }
        self.directory.sync_all()
    }

    /// Removes the files of a job without a grant.
    pub(super) fn remove(&self, job: &str) {
        for kind in [NEW, GRANT, NAMESPACE] {
            // The next start of the target removes files that stay behind.
            let _ = fs::remove_file(self.file(job, kind));
        }
    }

    fn file(&self, job: &str, kind: &str) -> PathBuf {
        self.path.join(format!("{PREFIX}{job}{kind}"))
    }
}

/// Options for a new file that only this user may access.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options
}
