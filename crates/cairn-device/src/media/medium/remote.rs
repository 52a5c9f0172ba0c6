//! A namespace on another machine as the medium of a tier: `nvme-tcp://ADDRESS:PORT/NQN?nsid=N`.
//! Like a device it outlives the tier and may hold anything.
//!
//! Must stay true: stores on this machine do not use one at the same time. They lock files in
//! /dev/shm that stand in for it: one named by the address of the namespace, and, because that can
//! be written in several ways, one named by the tier that it holds. These files are empty, and go
//! when the tier is removed. A reservation, which all processes of a user share, keeps stores on
//! other machines, and of other users here, from writing. For parts of a namespace, and where the
//! target has no reservations, the label names the owner: see `claimed`. A process that only looks
//! claims nothing.

use core::ffi::CStr;
use std::ffi::CString;
use std::path::Path;

use cairn_nvme::Error;
use cairn_nvme::claim::Claim;
use cairn_nvme::queue::Traits;
use cairn_nvme::secret::READING;
use cairn_nvme::shared::{RemotePath, SharedRemote};
use cairn_nvme::wire::Status;
use cairn_platform::checksum;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno};

use crate::directory::{StoreError, StoreResult};
use crate::media::label::Identity;
use crate::media::media_file::MediaFile;

use super::claimed::taken;
use super::{Access, Medium, MediumKind, PAGE, refused};

const ADVICE: &str = "write nvme-tcp://ADDRESS:PORT/NQN?nsid=NUMBER";
const UNKNOWN_HOST: &str = "the target does not serve this host; if it requires authentication, write \
     the host's name and secret into a file and add auth=FILE to the tier";
const UNKNOWN_NAME: &str =
    "the target does not serve the host of that name; use a name that it knows";
const NO_SUBSYSTEM: &str =
    "the target has no such subsystem; it may have been revoked; see cairn discover";
const NO_NAMESPACE: &str = "the subsystem has no such namespace in it; see cairn discover";
const NO_PLACE: &str = "the target closed the connection: it has no place for more, or it is ending; give it a larger \
     --connections, or try again later";
const UNREADABLE: &str = "the secret cannot be read";
/// Sources of the host id: they differ between machines, or from one start of a machine to the
/// next.
const SHARED_MEMORY: &CStr = c"/dev/shm";
const BOOT: &CStr = c"/proc/sys/kernel/random/boot_id";

/// Connects to the namespace at `path`. Errors: there is none, it cannot be reached or used, it is
/// read-only and `access` is not, or it has no room for a label.
pub(super) fn medium(path: &Path, access: Access) -> StoreResult<Medium> {
    let place = RemotePath::parse(path).ok_or_else(|| refused(path, ADVICE))?;
    let ordinary = locked_in_place_of(path, &place, access)?;
    let claim = match access {
        Access::Read => Claim::None,
        Access::Look => Claim::Beside,
        Access::ReadWrite => claim_of(&place),
    };
    let remote = open(path, &place, claim)?;
    if remote.is_write_protected() && access != Access::Read {
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
    Ok(over(remote, ordinary))
}

/// Returns the namespace at `path`, whose traits another process of this store has found out. Does
/// not connect. Errors: no memory or descriptors.
pub(super) fn known(path: &Path, traits: &Traits) -> StoreResult<Medium> {
    let place = RemotePath::parse(path).ok_or_else(|| refused(path, ADVICE))?;
    let ordinary = locked_in_place_of(path, &place, Access::ReadWrite)?;
    let remote = SharedRemote::known(&place, host_id_for(path)?, claim_of(&place), traits);
    Ok(over(remote.map_err(|error| unreachable(path, error))?, ordinary))
}

fn over(remote: SharedRemote, ordinary: Descriptor) -> Medium {
    let label_at = (remote.bytes() / PAGE * PAGE).saturating_sub(PAGE);
    let (kind, unit_bytes) = (MediumKind::Remote, PAGE);
    Medium { kind, ordinary, label_at, unit_bytes, remote: Some(remote) }
}

/// Returns the kind of claim that a store makes.
fn claim_of(place: &RemotePath) -> Claim {
    match place.part {
        // For a part, the claim is in its label.
        Some(_) => Claim::Beside,
        None => Claim::Exclusive,
    }
}

fn locked_in_place_of(path: &Path, place: &RemotePath, access: Access) -> StoreResult<Descriptor> {
    stand_in(&place_path(place), access).map_err(|errno| not_locked(path, errno))
}

fn not_locked(path: &Path, errno: Errno) -> StoreError {
    StoreError::new("lock", path, errno).advise("see /dev/shm")
}

/// Claims the namespace at `path`, and the tier that it holds, if any. Returns whether the claim is
/// new. With `takes_over`, a machine that has it is evicted, and never writes there again. Errors:
/// another machine has it (`EBUSY`).
pub fn claim(path: &Path, takes_over: bool) -> StoreResult<bool> {
    let place = RemotePath::parse(path).ok_or_else(|| refused(path, ADVICE))?;
    let has_put_out = takes_over && put_out(path, &place)?;
    let (file, label) = MediaFile::open_unclaimed(path, libc::LOCK_SH, Access::ReadWrite)?;
    let is_reserved = has_put_out || file.was_free();
    let by_label = label.map_or(Ok(false), |label| file.claim(path, &label, takes_over));
    if by_label.is_err() && is_reserved {
        // The first error is the one to report.
        let _ = file.release();
    }
    Ok(by_label? || is_reserved)
}

/// Evicts the machine that has reserved the whole namespace. Returns whether this machine has newly
/// reserved it, which it does not do for a part.
fn put_out(path: &Path, place: &RemotePath) -> StoreResult<bool> {
    let is_taken = || {
        let beside = SharedRemote::open(place, host_id_for(path)?, Claim::Beside);
        Ok(matches!(beside, Err(Error::Reserved { .. })))
    };
    if place.part.is_some() && !is_taken()? {
        return Ok(false);
    }
    let remote = open(path, place, Claim::TakeOver)?;
    match place.part {
        Some(_) => remote.release().map(|()| false).map_err(|error| unreachable(path, error)),
        None => Ok(remote.was_free()),
    }
}

/// Gives up this machine's claim on the namespace at `path`, so that other machines can have it.
/// Nobody on this machine uses it.
pub fn give_back(path: &Path) -> StoreResult<()> {
    let (file, label) = MediaFile::open_unclaimed(path, libc::LOCK_EX, Access::ReadWrite)?;
    label.map_or(Ok(()), |label| file.disclaim(path, &label))?;
    file.release().map_err(|errno| StoreError::new("give back", path, errno))
}

fn open(path: &Path, place: &RemotePath, claim: Claim) -> StoreResult<SharedRemote> {
    SharedRemote::open(place, host_id_for(path)?, claim).map_err(|error| unreachable(path, error))
}

fn host_id_for(path: &Path) -> StoreResult<[u8; 16]> {
    host_id().map_err(|errno| StoreError::new("find a name for this machine", path, errno))
}

/// Returns the id of this host. It is the same for all processes that lock the same files in
/// /dev/shm until the machine restarts: it is made of the boot id, the file system there, and the
/// user.
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
    let device = sys::fstatat(libc::AT_FDCWD, SHARED_MEMORY, 0)?.st_dev;
    Ok(host_id_of(bytes, device, sys::geteuid()))
}

fn host_id_of(mut boot: [u8; 16], device: u64, user: u32) -> [u8; 16] {
    let others = [&device.to_le_bytes()[..], &user.to_le_bytes()].concat();
    boot.iter_mut().zip(others).for_each(|(byte, other)| *byte ^= other);
    boot
}

/// Opens a file that is locked in place of a namespace. A process that only looks does not create
/// it: if it is missing, nobody here uses the namespace.
fn stand_in(path: &CStr, access: Access) -> Result<Descriptor, Errno> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let open = |path: &CStr, more| Descriptor::open(libc::AT_FDCWD, path, flags | more, 0o600);
    let file = match (open(path, 0), access) {
        (Err(Errno(libc::ENOENT)), Access::ReadWrite) => open(path, libc::O_CREAT)?,
        (Err(Errno(libc::ENOENT)), _) => return open(SHARED_MEMORY, libc::O_TMPFILE),
        (result, _) => result?,
    };
    let found = sys::fstat(file.raw())?;
    let is_ours = found.st_uid == sys::geteuid() && found.st_mode & 0o077 == 0;
    if is_ours { Ok(file) } else { Err(Errno(libc::EPERM)) }
}

/// Opens the file that is locked in place of the namespace at `path` because it holds that tier, by
/// whatever address.
pub(crate) fn stand_in_of_tier(
    path: &Path,
    identity: &Identity,
    access: Access,
) -> StoreResult<Descriptor> {
    stand_in(&tier_path(identity), access).map_err(|errno| not_locked(path, errno))
}

/// Returns the existing files that are locked in place of the namespace at `path` and of that tier
/// on it.
pub(super) fn stand_ins(path: &Path, identity: &Identity) -> Vec<Descriptor> {
    let place = RemotePath::parse(path).map(|place| place_path(&place));
    let names = place.into_iter().chain([tier_path(identity)]);
    names.filter_map(|name| stand_in(&name, Access::Read).ok()).collect()
}

/// Removes the files that stand in for the namespace at `path` and for its tier, which the caller
/// has open, if nobody else here uses them. A process that opened one before finds that it has no
/// name any more: see `MediaFile::open_unclaimed`.
pub(crate) fn remove_stand_ins(path: &Path, file: &Descriptor, tier: &Descriptor, of: &Identity) {
    let remove = |file: &Descriptor, name: &CStr| {
        if sys::flock(file.raw(), libc::LOCK_EX | libc::LOCK_NB).is_ok() {
            // A file that stays is empty, and the next user of the namespace finds it.
            let _ = sys::unlinkat(libc::AT_FDCWD, name, 0);
        }
    };
    remove(tier, &tier_path(of));
    if let Some(place) = RemotePath::parse(path) {
        remove(file, &place_path(&place));
    }
}

fn place_path(place: &RemotePath) -> CString {
    let name = place.to_string();
    let sums = [0, 1].map(|seed| checksum::crc32c(seed, name.as_bytes()));
    stand_in_path(&format!("remote-{}-{:08x}{:08x}", sys::geteuid(), sums[0], sums[1]))
}

fn tier_path(identity: &Identity) -> CString {
    let identity = u128::from_be_bytes(*identity);
    stand_in_path(&format!("tier-{}-{identity:032x}", sys::geteuid()))
}

fn stand_in_path(name: &str) -> CString {
    CString::new(format!("/dev/shm/cairn-{name}")).expect("digits and letters")
}

/// Returns the error that says why a namespace cannot be used.
fn unreachable(path: &Path, error: Error) -> StoreError {
    if let Error::Reserved { holder } = error {
        return taken(path, holder);
    }
    let who = who_asked(path);
    let (errno, advice) = match error {
        Error::System { errno, action: READING } => (errno, UNREADABLE),
        Error::Closed | Error::System { errno: Errno(libc::ECONNRESET | libc::EPIPE), .. } => {
            (Errno(libc::EBUSY), NO_PLACE)
        }
        Error::System { errno, .. } => (errno, "is there a target?"),
        Error::TimedOut { .. } => (Errno(libc::ETIMEDOUT), "is there a target?"),
        Error::Refused { status, .. } if status.code() == Status::HOST_INVALID => {
            (Errno(libc::EACCES), if who.is_some() { UNKNOWN_NAME } else { UNKNOWN_HOST })
        }
        Error::Refused { status, .. } => match status.code() {
            Status::CONNECT_INVALID => (Errno(libc::ENODEV), NO_SUBSYSTEM),
            Status::INVALID_NAMESPACE => (Errno(libc::ENODEV), NO_NAMESPACE),
            Status::CONTROLLER_BUSY => (Errno(libc::EBUSY), NO_PLACE),
            _ => (Errno(libc::EACCES), "see cairn discover"),
        },
        Error::Unauthenticated { why } => (Errno(libc::EACCES), why),
        Error::Unsuitable { why } => (Errno(libc::ENODEV), why),
        _ => (Errno(libc::EPROTO), "the target violates the protocol"),
    };
    let failed = StoreError::new("connect to", path, errno);
    let is_about_who = matches!(error, Error::Unauthenticated { .. })
        || matches!(advice, UNKNOWN_NAME | UNREADABLE);
    match who.filter(|_| is_about_who) {
        Some(who) => failed.advise(format!("{advice}; {who}")),
        None => failed.advise(advice),
    }
}

/// Describes the host name and the secrets with which the namespace at `path` was asked for; `None`
/// if there were none.
fn who_asked(path: &Path) -> Option<String> {
    let place = RemotePath::parse(path)?;
    let source = place.secrets?;
    let who = match source.read() {
        Ok(secrets) => format!("the host is {}, with", secrets.name),
        // The error itself says what is wrong with them.
        Err(_) => "given were".to_string(),
    };
    Some(format!("{who} the secrets in {source}, for {}", place.subsystem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_machine_are_different_hosts() {
        let ids =
            [(7, 0), (7, 1000), (8, 0)].map(|(device, user)| host_id_of([5; 16], device, user));
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
    }
}
