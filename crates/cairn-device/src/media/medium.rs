//! The medium that holds the bytes of a tier: a regular file, a block device or a namespace on
//! another machine. Here is everything in which they differ: how one is recognised, made and
//! removed, who may use it, and how large it is. Reading and writing are the same for all: see
//! `media_file`.
//!
//! Invariant: on every kind the label is the last page, and nothing is made where something else
//! is.

mod block;
mod claimed;
pub(crate) mod known;
#[cfg(test)]
#[path = "../../../cairn-testing/src/loop_device.rs"]
pub(crate) mod loop_device;
mod regular;
mod remote;
mod signature;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::ffi::CString;
use std::path::Path;

use cairn_core::{Error, MEDIA_BLOCK_BYTES, Result};
use cairn_nvme::queue::Traits;
use cairn_nvme::shared::{RemotePath, SharedRemote};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::c_path;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::directory::{StoreError, StoreResult};
use crate::media::label::{Identity, Label, Wrong};

pub use block::{Contents, DeviceSize, clear_unfinished, contents, measure};
pub(crate) use regular::{is_begun, remove_file};
pub use remote::{claim, give_back};
pub(crate) use remote::{remove_stand_ins, stand_in_of_tier};

const PAGE: u64 = MEDIA_BLOCK_BYTES as u64;
/// Time to wait for something that others have open: a process that was killed a moment ago may not
/// have ended yet.
pub(crate) const ENDING: Duration = Duration::from_secs(2);
/// Interval between attempts during that time.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Kind of a medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediumKind {
    /// A regular file, made for a tier and removed with it.
    File,
    /// A regular file that is mapped: see `dax`. It is opened as such on request only.
    Dax,
    /// A block device. It outlives its tiers; its content tells whether a tier is ours.
    Block,
    /// A namespace on another machine; otherwise like a block device.
    Remote,
}

/// Access to an open medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Writes fail. The file may lie on a read-only device, and the device may be read-only. A
    /// medium on another machine may belong to anybody.
    Read,
    /// For looking at a medium that is to be used. This user and this machine must be allowed to
    /// write to it, but it is not claimed yet.
    Look,
    /// Reads and writes.
    ReadWrite,
}

impl Access {
    pub(crate) fn flags(self) -> i32 {
        let access = match self {
            Access::Read => libc::O_RDONLY,
            Access::Look | Access::ReadWrite => libc::O_RDWR,
        };
        access | libc::O_NOFOLLOW | libc::O_NONBLOCK
    }
}

/// An open file or device that may hold a tier.
pub(crate) struct Medium {
    pub(crate) kind: MediumKind,
    /// Goes through the page cache.
    pub(crate) ordinary: Descriptor,
    /// Offset of the label, which is the size of the largest tier.
    pub(crate) label_at: u64,
    /// Unit in which the kernel transfers and caches.
    pub(crate) unit_bytes: u64,
    /// Target of all transfers, for a medium on another machine. The descriptor then only carries
    /// locks.
    pub(crate) remote: Option<SharedRemote>,
}

impl Medium {
    /// Opens what is at `path`. Errors: it is neither a file nor a device, is too small for a
    /// label, is not for this user, or the kind's own conditions are not met.
    pub(crate) fn open(path: &Path, access: Access) -> StoreResult<Medium> {
        if RemotePath::is_one(path) {
            return remote::medium(path, access);
        }
        let failed = |errno| StoreError::new("open tier", path, errno);
        let name = c_path(path).map_err(failed)?;
        let flags = access.flags();
        let ordinary = Descriptor::open(libc::AT_FDCWD, &name, flags, 0)
            .map_err(|errno| failed(errno).advise(block::why_not_opened(&name, errno)))?;
        let stat = sys::fstat(ordinary.raw()).map_err(failed)?;
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => regular::medium(path, ordinary, &stat),
            libc::S_IFBLK => block::medium(path, block::claim(path, &name, flags)?, access),
            _ => Err(refused(path, "it is neither a regular file nor a block device")),
        }
    }

    /// Returns the namespace on another machine at `path`, whose traits are known. Does not
    /// connect.
    pub(crate) fn known(path: &Path, traits: &Traits) -> StoreResult<Medium> {
        remote::known(path, traits)
    }

    /// Opens a second descriptor, for direct I/O; `None` where whole pages cannot bypass the cache.
    pub(crate) fn open_direct(&self, path: &Path, access: Access) -> SysResult<Option<Descriptor>> {
        if self.unit_bytes > PAGE || self.remote.is_some() {
            return Ok(None);
        }
        let flags = access.flags() | libc::O_DIRECT;
        let direct = match Descriptor::open(libc::AT_FDCWD, &c_path(path)?, flags, 0) {
            Err(Errno(libc::EINVAL)) => return Ok(None),
            result => result?.raise(),
        };
        let identity = |file: &Descriptor| {
            sys::fstat(file.raw()).map(|stat| (stat.st_dev, stat.st_ino, stat.st_rdev))
        };
        match identity(&direct)? == identity(&self.ordinary)? {
            true => Ok(Some(direct)),
            // Another file was put there just now.
            false => Err(Errno(libc::ESTALE)),
        }
    }
}

impl MediumKind {
    /// Whether the medium outlives its tiers and may hold anything.
    pub fn is_device(self) -> bool {
        matches!(self, MediumKind::Block | MediumKind::Remote)
    }

    /// Returns the label that was read, if it fits the size of the medium. The label stands at
    /// `label_at`.
    pub(crate) fn checked(
        self,
        label: core::result::Result<Label, Wrong>,
        label_at: u64,
    ) -> core::result::Result<Label, Wrong> {
        let label = label?;
        let fits = match self {
            MediumKind::File | MediumKind::Dax => label.bytes == label_at,
            // A tier may be smaller than its device.
            MediumKind::Block | MediumKind::Remote => {
                (1..=label_at).contains(&label.bytes) && label.bytes % PAGE == 0
            }
        };
        if fits { Ok(label) } else { Err(Wrong::Damaged) }
    }

    /// Checks the process's limit on file sizes. Errors: `FileTooLarge` if it may not write to a
    /// file as far as `end`; the kernel would also send a signal.
    pub(crate) fn check_limit(self, end: u64) -> Result<()> {
        match !self.is_device() && end > sys::soft_limit(libc::RLIMIT_FSIZE)? {
            true => Err(Error::FileTooLarge),
            false => Ok(()),
        }
    }

    /// Translates the kernel's error for a write inside the medium.
    pub(crate) fn failure(self, errno: Errno) -> Errno {
        match (self, errno) {
            // The device is gone or has shrunk. That a tier is full shows earlier, when blocks are
            // allocated.
            (MediumKind::Block | MediumKind::Remote, Errno(libc::ENOSPC)) => Errno(libc::EIO),
            _ => errno,
        }
    }

    /// Describes for people what is wrong with a label.
    pub(crate) fn describe(self, wrong: Wrong) -> &'static str {
        match (self, wrong) {
            (MediumKind::Block | MediumKind::Remote, Wrong::Missing) => {
                "it has no label of Cairn at its end: it was overwritten, or had another size"
            }
            _ => wrong.describe(),
        }
    }
}

/// Takes shared locks on what is at `path` and on the lock files of the namespace and of that tier.
/// Returns the descriptors of those that could be locked.
pub(crate) fn lock_beside(path: &Path, identity: &Identity) -> Vec<Descriptor> {
    let files = match RemotePath::is_one(path) {
        true => remote::stand_ins(path, identity),
        false => {
            let open =
                |name: CString| Descriptor::open(libc::AT_FDCWD, &name, Access::Read.flags(), 0);
            c_path(path).and_then(open).into_iter().collect()
        }
    };
    let is_locked =
        |file: &Descriptor| sys::flock(file.raw(), libc::LOCK_SH | libc::LOCK_NB).is_ok();
    files.into_iter().filter(is_locked).collect()
}

/// Returns the refusal of what is at `path`.
pub(crate) fn refused(path: &Path, advice: &'static str) -> StoreError {
    StoreError::new("open tier", path, Errno(libc::EINVAL)).advise(advice)
}
