//! A regular file as the medium of a tier: private, made with all its space, and removed with the
//! tier.
//!
//! Does not create a file in place of one that exists.

use std::path::Path;

use cairn_core::Media;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::c_path;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::directory::{StoreError, StoreResult};
use crate::media::dax;
use crate::media::label::{self, Identity, Label};
use crate::media::media_file::{Allocation, MediaFile, put, put_zeros};

use super::{Medium, MediumKind, PAGE, refused};

/// Returns the medium of an open file. Errors: it is not ours, is open to others, or has no room
/// for a label.
pub(super) fn medium(path: &Path, ordinary: Descriptor, stat: &libc::stat) -> StoreResult<Medium> {
    if stat.st_uid != sys::geteuid() || stat.st_mode & 0o077 != 0 {
        return Err(StoreError::new("open tier", path, Errno(libc::EPERM))
            .advise("others could have written it; if it is as you left it: chmod 600"));
    }
    let label_at = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(PAGE);
    if label_at == 0 || label_at % PAGE != 0 {
        let advice = "it is not a tier of Cairn: its size is not a number of pages";
        return Err(refused(path, advice));
    }
    let unit_bytes = u64::try_from(stat.st_blksize).unwrap_or(u64::MAX);
    Ok(Medium { kind: MediumKind::File, ordinary, label_at, unit_bytes, remote: None })
}

/// Whether `path` is what `MediaFile::create` makes first: an empty file that belongs to this user
/// and that no other user can open.
pub(crate) fn is_begun(path: &Path) -> bool {
    let stat = c_path(path)
        .and_then(|path| sys::fstatat(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW));
    stat.is_ok_and(|stat| {
        stat.st_mode & !0o600 == libc::S_IFREG && stat.st_uid == sys::geteuid() && stat.st_size == 0
    })
}

/// Removes the name of a tier's file.
pub(crate) fn remove_file(path: &Path) -> StoreResult<()> {
    let removed = c_path(path).and_then(|name| sys::unlinkat(libc::AT_FDCWD, &name, 0));
    removed.map_err(|errno| StoreError::new("remove tier", path, errno))
}

impl MediaFile {
    /// Makes the file for `bytes`, with mode 0600. A failed call leaves nothing behind. Errors:
    /// something of that name exists (`EEXIST`, the advice says what), no space (`ENOSPC`), `bytes`
    /// is not a positive number of pages.
    pub fn create(
        path: &Path,
        bytes: u64,
        identity: Identity,
        allocation: Allocation,
    ) -> StoreResult<()> {
        let failed = |errno| StoreError::new("create tier", path, errno);
        if bytes == 0 || bytes % PAGE != 0 {
            return Err(failed(Errno(libc::EINVAL)).advise("its size is not a number of pages"));
        }
        // Past this limit the kernel also sends SIGXFSZ.
        if bytes + PAGE > sys::soft_limit(libc::RLIMIT_FSIZE).map_err(failed)? {
            return Err(failed(Errno(libc::EFBIG)).advise(
                "the limit on file sizes is too small; raise it with ulimit -f unlimited",
            ));
        }
        let name = c_path(path).map_err(failed)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let file = match Descriptor::open(libc::AT_FDCWD, &name, flags, 0o600) {
            Err(Errno(libc::EEXIST)) => return Err(in_the_way(path)),
            result => result.map_err(failed)?,
        };
        // The label comes first, so that the file of a creator that dies can be recognised.
        let made = sys::fchmod(file.raw(), 0o600)
            .and_then(|()| {
                put(&file, bytes, &label::encode(&Label { bytes, identity, ..Label::default() }))
            })
            .and_then(|()| match allocation {
                Allocation::AtOnce => allocate(&file, bytes),
                Allocation::ForMapping => allocate(&file, bytes).and_then(|()| fill(&file, bytes)),
                Allocation::AsWritten => Ok(()),
            })
            .and_then(|()| sys::fsync(file.raw()))
            .and_then(|()| sync_parent(path));
        made.map_err(|errno| {
            let _ = sys::unlinkat(libc::AT_FDCWD, &name, 0);
            failed(errno)
        })
    }

    /// Allocates the space that the file lacks, for instance because a copy tool left out zeros.
    /// Errors: no space (`ENOSPC`).
    pub(crate) fn take_missing_space(&self) -> SysResult<()> {
        loop {
            match sys::fallocate(self.ordinary(), 0, 0, Media::bytes(self)) {
                Err(Errno(libc::EINTR)) => {}
                // There is no other way that keeps the bytes.
                Err(Errno(libc::EOPNOTSUPP)) => return Ok(()),
                result => return result.and_then(|()| sys::fsync(self.ordinary())),
            }
        }
    }
}

/// Allocates the space of the first `bytes`. Allocates nothing if there is less: a file system that
/// finds that out only at the end has no space for anybody else until then.
fn allocate(file: &Descriptor, bytes: u64) -> SysResult<()> {
    let state = sys::fstatfs(file.raw())?;
    let unit = if state.f_frsize > 0 { state.f_frsize } else { state.f_bsize };
    let free = state.f_bfree.saturating_mul(unit as u64);
    // Some file systems report no size.
    if state.f_blocks > 0 && bytes > free {
        return Err(Errno(libc::ENOSPC));
    }
    loop {
        match sys::fallocate(file.raw(), 0, 0, bytes) {
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EOPNOTSUPP)) => return put_zeros(file, 0..bytes),
            result => return result,
        }
    }
}

/// Writes zeros to the first `bytes`, if they are in persistent memory.
fn fill(file: &Descriptor, bytes: u64) -> SysResult<()> {
    match dax::is_synchronous(file)? {
        true => put_zeros(file, 0..bytes),
        false => Ok(()),
    }
}

/// Makes the file's name durable.
fn sync_parent(path: &Path) -> SysResult<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => c_path(parent)?,
        _ => c".".to_owned(),
    };
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let directory = Descriptor::open(libc::AT_FDCWD, &parent, flags, 0)?;
    match sys::fsync(directory.raw()) {
        // Not every file system can sync a directory.
        Ok(()) | Err(Errno(libc::EINVAL)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns the refusal to replace what is at `path`.
fn in_the_way(path: &Path) -> StoreError {
    let error = StoreError::new("create tier", path, Errno(libc::EEXIST));
    match MediaFile::open(path) {
        Ok(_) => error.advise("it is a tier of another store; remove that with cairn rm"),
        Err(_) => error.advise("it is not a tier of Cairn; choose another path, or remove it"),
    }
}
