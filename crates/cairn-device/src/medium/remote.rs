//! A namespace on another machine as the medium of a tier: `nvme-tcp://ADDRESS:PORT/NQN?nsid=N`. As a device it is there
//! before and after, and may hold anything.
//!
//! Must stay true: stores on this machine do not use one at the same time; a file that is locked in its stead says so. It has
//! no bytes, and stays.
//! Stores on other machines are kept from writing by a reservation, which all processes here share; not where the target has
//! none.

use core::ffi::CStr;
use std::ffi::CString;
use std::path::Path;

use crate::checksum;
use crate::descriptor::Descriptor;
use crate::directory::{StoreError, StoreResult};
use crate::nvme::Error;
use crate::nvme::claim::Claim;
use crate::nvme::shared::{RemotePath, SharedRemote};
use crate::nvme::wire::Status;
use crate::sys::{self, Errno};

use super::{Access, Medium, MediumKind, PAGE, refused};

const ADVICE: &str = "write nvme-tcp://ADDRESS:PORT/NQN?nsid=NUMBER";
const UNKNOWN_HOST: &str = "the target does not serve this host; if it serves those who prove who they are, write \
     the host's name and secret into a file and add auth=FILE to the tier";
/// What differs between machines, and from one start of a machine to the next.
const BOOT: &CStr = c"/proc/sys/kernel/random/boot_id";

/// Connects to the namespace at `path`. Errors: it is none, cannot be reached or used, is read-only and `access` is not; no
/// room for a label.
pub(super) fn medium(path: &Path, access: Access) -> StoreResult<Medium> {
    let place = RemotePath::parse(path).ok_or_else(|| refused(path, ADVICE))?;
    let ordinary = stand_in(&place)
        .map_err(|errno| StoreError::new("lock", path, errno).advise("see /dev/shm"))?;
    let claim = if access == Access::ReadWrite { Claim::Exclusive } else { Claim::None };
    let remote = open(path, &place, claim)?;
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

/// Takes the namespace at `path` from whatever machine has claimed it, which never writes there again.
pub fn take_over(path: &Path) -> StoreResult<()> {
    let place = RemotePath::parse(path).ok_or_else(|| refused(path, ADVICE))?;
    open(path, &place, Claim::TakeOver).map(drop)
}

fn open(path: &Path, place: &RemotePath, claim: Claim) -> StoreResult<SharedRemote> {
    let host_id =
        host_id().map_err(|errno| StoreError::new("find a name for this machine", path, errno))?;
    SharedRemote::open(place, host_id, claim).map_err(|error| unreachable(path, error))
}

/// What all have in common who lock the same files in /dev/shm until the machine starts again: how it was started, and the
/// file system there.
fn host_id() -> Result<[u8; 16], Errno> {
    let file = Descriptor::open(libc::AT_FDCWD, BOOT, libc::O_RDONLY, 0)?;
    let mut text = [0; 36];
    let length = sys::read(file.raw(), &mut text)?;
    let mut digits = text[..length].iter().filter_map(|&letter| char::from(letter).to_digit(16));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        let (high, low) = (digits.next(), digits.next());
        let digits = high.zip(low).ok_or(Errno(libc::ENODEV))?;
        *byte = (digits.0 << 4 | digits.1) as u8;
    }
    let device = sys::fstatat(libc::AT_FDCWD, c"/dev/shm", 0)?.st_dev.to_le_bytes();
    bytes.iter_mut().zip(device).for_each(|(byte, other)| *byte ^= other);
    Ok(bytes)
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
    if let Error::Reserved { holder } = error {
        let advice = "another machine uses it; end that store first, or, if that machine is dead, add take-over=yes to the tier";
        return StoreError::new("open tier", path, Errno(libc::EBUSY))
            .advise(advice)
            .held_by(holder);
    }
    let (errno, advice) = match error {
        Error::System { errno, .. } => (errno, "is there a target?"),
        Error::TimedOut { .. } => (Errno(libc::ETIMEDOUT), "is there a target?"),
        Error::Refused { status, .. } if status.code() == Status::HOST_INVALID => {
            (Errno(libc::EACCES), UNKNOWN_HOST)
        }
        Error::Refused { .. } => (Errno(libc::EACCES), "see cairn discover"),
        Error::Unauthenticated { why } => (Errno(libc::EACCES), why),
        Error::Unsuitable { why } => (Errno(libc::ENODEV), why),
        _ => (Errno(libc::EPROTO), "the target does not keep to the protocol"),
    };
    StoreError::new("connect to", path, errno).advise(advice)
}
