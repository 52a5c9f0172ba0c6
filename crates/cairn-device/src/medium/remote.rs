//! A namespace on another machine as the medium of a tier: `nvme-tcp://ADDRESS:PORT/NQN?nsid=N`. As a device it is there
//! before and after, and may hold anything.
//!
//! Must stay true: stores on this machine do not use one at the same time; a file that is locked in its stead says so. It has
//! no bytes, and stays.
//! Does not keep other machines from using it at the same time.

use std::ffi::CString;
use std::path::Path;

use crate::checksum;
use crate::descriptor::Descriptor;
use crate::directory::{StoreError, StoreResult};
use crate::nvme::Error;
use crate::nvme::shared::{RemotePath, SharedRemote};
use crate::sys::{self, Errno};

use super::{Access, Medium, MediumKind, PAGE, refused};

/// Connects to the namespace at `path`. Errors: it is none, cannot be reached or used, is read-only and `access` is not; no
/// room for a label.
pub(super) fn medium(path: &Path, access: Access) -> StoreResult<Medium> {
    let advice = "write nvme-tcp://ADDRESS:PORT/NQN?nsid=NUMBER";
    let place = RemotePath::parse(path).ok_or_else(|| refused(path, advice))?;
    let ordinary = stand_in(&place)
        .map_err(|errno| StoreError::new("lock", path, errno).advise("see /dev/shm"))?;
    let remote = SharedRemote::open(&place).map_err(|error| unreachable(path, error))?;
    if remote.is_write_protected() && access == Access::ReadWrite {
        let error = StoreError::new("open tier", path, Errno(libc::EROFS));
        return Err(error.advise("the namespace is read-only"));
    }
    if remote.block_bytes() > PAGE {
        return Err(refused(path, "its blocks are larger than a page of 4 KiB"));
    }
    let label_at = (remote.bytes() / PAGE * PAGE).saturating_sub(PAGE);
    if label_at == 0 {
        return Err(refused(path, "it has no room for a tier"));
    }
    let (kind, unit_bytes) = (MediumKind::Remote, PAGE);
    Ok(Medium { kind, ordinary, label_at, unit_bytes, remote: Some(remote) })
}

/// The file that is locked in place of a namespace.
fn stand_in(place: &RemotePath) -> Result<Descriptor, Errno> {
    let name = place.to_string();
    let sums = [0, 1].map(|seed| checksum::crc32c(seed, name.as_bytes()));
    let path = format!("/dev/shm/cairn-remote-{}-{:08x}{:08x}", sys::geteuid(), sums[0], sums[1]);
    let path = CString::new(path).expect("digits and letters");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = Descriptor::open(libc::AT_FDCWD, &path, flags, 0o600)?;
    let found = sys::fstat(file.raw())?;
    let is_ours = found.st_uid == sys::geteuid() && found.st_mode & 0o077 == 0;
    if is_ours { Ok(file) } else { Err(Errno(libc::EPERM)) }
}

/// Why a namespace cannot be used.
fn unreachable(path: &Path, error: Error) -> StoreError {
    let (errno, advice) = match error {
        Error::System { errno, .. } => (errno, "is there a target?"),
        Error::TimedOut { .. } => (Errno(libc::ETIMEDOUT), "is there a target?"),
        Error::Refused { .. } => (Errno(libc::EACCES), "see cairn discover"),
        Error::Unauthenticated { why } => (Errno(libc::EACCES), why),
        Error::Unsuitable { why } => (Errno(libc::ENODEV), why),
        _ => (Errno(libc::EPROTO), "the target does not keep to the protocol"),
    };
    StoreError::new("connect to", path, errno).advise(advice)
}
