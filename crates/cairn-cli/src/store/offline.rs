//! Opens the file or device of a durable tier that no store uses, and rebuilds its namespace in
//! private memory.
//!
//! Must stay true: nothing here writes to the file. While it is open, nobody else uses it. A file
//! that is not such a tier is refused with one line.

use cairn_agent::store::volume::now;
use cairn_core::{
    Attributes, Caller, Credentials, InodeId, MEDIA_BLOCK_BYTES, Media, Microfs, ROOT, Recovered,
    SlotId, Superblock, recover_read_only,
};
use cairn_device::media::media_file::Access;
use cairn_device::{MediaFile, Workspace};
use cairn_job::file::path::FilePath;
use cairn_platform::checksum::crc32c;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, FsckError, Result, TierError};
use crate::size;
use crate::store::Roots;
use crate::store::tier::remote_path;

const ADVICE: &str =
    "name the file or device of a durable tier, as in file:/nvme/cairn or block:/dev/nvme0n1";
/// Size of the label behind the bytes of a tier in its file.
const LABEL_BYTES: u64 = MEDIA_BLOCK_BYTES as u64;
/// Depth from which a directory tree counts as damaged.
const DEPTH_MAX: usize = 1024;

/// Returns the path of the file or device that `text` names: `file:PATH`, `dax:PATH`, `block:PATH`
/// or `nvme-tcp://…`, each optionally with a size, or `PATH`.
pub fn path_of(text: &str) -> PathBuf {
    if let Ok((path, _)) = remote_path(text) {
        return path;
    }
    // A leading `//` marks a path on another machine, so a local path keeps only one of the two.
    let text = text.strip_prefix('/').filter(|rest| rest.starts_with('/')).unwrap_or(text);
    let prefix = ["file:", "dax:", "block:"].into_iter().find_map(|kind| text.strip_prefix(kind));
    let path = prefix.unwrap_or(text);
    let path = match path.rsplit_once(':') {
        Some((shorter, size)) if size::parse(size).is_some() && !Path::new(path).exists() => {
            Path::new(shorter)
        }
        _ => Path::new(path),
    };
    // A device is used by its own name; the user may give a stable link to it.
    let device = path.canonicalize().ok().filter(|path| is_device(path));
    device.unwrap_or_else(|| path.to_path_buf())
}

fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.file_type().is_block_device())
}

/// Whether `text` names a file rather than a job: it cannot be a job name, or there is a file and
/// no job of that name.
pub fn is_file(text: &str, roots: &Roots) -> bool {
    let cannot_be_a_job = text.contains(['/', ':']);
    cannot_be_a_job || (roots.find(text).is_none() && Path::new(text).is_file())
}

/// The open file of a tier.
pub struct TierFile {
    /// Content of the file.
    pub file: MediaFile,
    /// Whether the label at the end of the file is damaged.
    pub label_is_damaged: bool,
}

/// Opens the file of a tier. Errors: it is not a tier, is in use, has another size than its
/// superblock says, or cannot be opened for `access`.
pub fn open(path: &Path, access: Access) -> Result<TierFile> {
    let opened = MediaFile::open_to_check(path, access);
    let has_no_label = match &opened {
        Ok((_, wrong)) => wrong.is_some(),
        Err(error) => error.errno == libc::EINVAL,
    };
    // A truncated file has lost its label, so its size is checked first.
    let superblock = if has_no_label { checked_size(path)? } else { None };
    match opened {
        Ok((file, wrong)) => match wrong.filter(|_| superblock.is_none()) {
            None => Ok(TierFile { file, label_is_damaged: has_no_label }),
            Some(wrong) => Err(refused(path, "cannot be opened".to_string(), wrong.describe())),
        },
        Err(error) => {
            let attempt = match access {
                Access::Read | Access::Look => "opened",
                Access::ReadWrite => "written to",
            };
            let reason = cairn_agent::model::error::why(&io::Error::from_raw_os_error(error.errno));
            let advice = if error.advice.is_empty() { ADVICE.into() } else { error.advice };
            Err(refused(path, format!("cannot be {attempt}: {reason}"), advice))
        }
    }
}

/// Converts an error of unusable metadata of the tier at `path`, for `map_err`.
pub fn unusable(path: &Path) -> impl Fn(cairn_core::Error) -> Error + Copy {
    move |source| match source {
        cairn_core::Error::UnsupportedVersion { found, supported } => {
            let problem = format!("has format {found}, this version knows {supported}");
            refused(path, problem, "use the version of cairn that made it")
        }
        source => Error::Fsck(FsckError::TierDamaged { path: path.to_path_buf(), source }),
    }
}

/// Rebuilds the namespace on `file` in private memory.
pub fn rebuild(
    file: &MediaFile,
    superblock: &Superblock,
) -> cairn_core::Result<(Microfs, Recovered)> {
    let memory = Workspace::new(superblock.geometry.segment_bytes() as usize / 8)?;
    let recovered = recover_read_only(file, &memory, crc32c)?;
    Ok((Microfs::open_recovered(Box::new(memory), crc32c)?, recovered))
}

/// Returns a path as the program saw it.
pub fn shown(superblock: &Superblock, path: &FilePath) -> String {
    let mount = String::from_utf8_lossy(&superblock.geometry.mount);
    format!("{}/{path}", mount.trim_end_matches('/'))
}

/// Returns a caller that may read everything.
pub fn caller(slot: SlotId) -> Caller {
    Caller { slot, credentials: Credentials { uid: 0, gid: 0 }, groups: &[], now: now() }
}

/// Returns everything in the namespace except its root, directories before their content. Errors:
/// `Corrupt` if directories form a cycle.
pub fn tree(fs: &Microfs) -> cairn_core::Result<Vec<(FilePath, Attributes)>> {
    let caller = caller(SlotId(0));
    let mut found = Vec::new();
    let mut waiting = vec![(FilePath::root(), ROOT, 0)];
    while let Some((directory, inode, depth)) = waiting.pop() {
        if depth > DEPTH_MAX {
            return Err(cairn_core::Error::Corrupt { what: "directory depth" });
        }
        let mut entries: Vec<(FilePath, InodeId)> = Vec::new();
        fs.list(&caller, inode, 0, &mut |entry| {
            entries.push((directory.join(entry.name), entry.inode));
            true
        })?;
        entries.sort();
        for (path, child) in entries {
            let attributes = fs.attributes(child)?;
            if attributes.is_directory() {
                waiting.push((path.clone(), child, depth + 1));
            }
            found.push((path, attributes));
        }
    }
    Ok(found)
}

/// Returns the superblock of the file at `path`, if it has one. Errors: the file does not have the
/// size that the superblock says.
fn checked_size(path: &Path) -> Result<Option<Superblock>> {
    // Opening anything else, such as a FIFO, may block.
    let is_device = is_device(path);
    let opened = (is_device || path.is_file()).then(|| File::open(path).ok()).flatten();
    let Some(mut file) = opened else { return Ok(None) };
    let Ok(found) = file.seek(SeekFrom::End(0)) else { return Ok(None) };
    let Ok(superblock) = Superblock::read(&AnyLength(file), crc32c) else { return Ok(None) };
    let promised = superblock.bytes + LABEL_BYTES;
    let advice = match found.cmp(&promised) {
        Ordering::Equal => return Ok(Some(superblock)),
        // A tier may be smaller than its device.
        Ordering::Greater if is_device => return Ok(Some(superblock)),
        Ordering::Less if is_device => "what is missing is lost, unless it gets that size again",
        Ordering::Less => "what is missing is lost; restore the file from a copy",
        Ordering::Greater => "give it that size again, with truncate --size",
    };
    let problem = format!("has {found} bytes instead of the {promised} it was made with");
    Err(refused(path, problem, advice))
}

fn refused(path: &Path, problem: String, advice: impl Into<Cow<'static, str>>) -> Error {
    Error::Tier(TierError::TierFile { path: path.to_path_buf(), problem, advice: advice.into() })
}

/// A file that may be shorter than its superblock says.
struct AnyLength(File);

impl Media for AnyLength {
    fn bytes(&self) -> u64 {
        u64::MAX
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> cairn_core::Result<()> {
        self.0.read_exact_at(target, offset).map_err(|_| cairn_core::Error::Io)
    }

    fn write(&self, _offset: u64, _source: &[u8]) -> cairn_core::Result<()> {
        Err(cairn_core::Error::Io)
    }

    fn flush(&self) -> cairn_core::Result<()> {
        Ok(())
    }
}
