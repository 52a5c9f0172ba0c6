//! What the bytes of a tier lie in, a regular file, a block device or a namespace on another
//! machine, and all in which they differ: how one is recognised, made and removed, who may use it,
//! how large it is. Reading and writing are the same: see `media_file`.
//!
//! Must stay true: whatever its kind, the label is the last page, and nothing is made where
//! something else is.

mod block;
mod claimed;
pub(crate) mod known;
#[cfg(test)]
#[path = "../../cairn-testing/src/loop_device.rs"]
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

use crate::descriptor::Descriptor;
use crate::directory::{StoreError, StoreResult, c_path};
use crate::label::{Identity, Label, Wrong};
use crate::nvme::queue::Traits;
use crate::nvme::shared::{RemotePath, SharedRemote};
use crate::sys::{self, Errno, SysResult};

pub use block::{Contents, DeviceSize, clear_unfinished, contents, measure};
pub(crate) use regular::{is_begun, remove_file};
pub use remote::{claim, give_back};
pub(crate) use remote::{remove_stand_ins, stand_in_of_tier};

const PAGE: u64 = MEDIA_BLOCK_BYTES as u64;
/// For how long something that others have open is waited for: what was killed a moment ago may not
/// have ended yet.
pub(crate) const ENDING: Duration = Duration::from_secs(2);
/// How often it is looked at meanwhile.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What the bytes of a tier lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediumKind {
    /// A regular file: made for a tier and removed with it.
    File,
    /// The same, if it is mapped: see `dax`. An open one is so because somebody asked for that.
    Dax,
    /// A block device: there before and after, and told from others' by what it holds.
    Block,
    /// A namespace on another machine, the same in all else.
    Remote,
}

/// What may be done to an open medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Writes fail; the file may lie on a read-only device, or the device be one. What is on
    /// another machine may be anybody's.
    Read,
    /// To look at what is to be used: it must be one that this user and this machine may write to,
    /// but is not claimed yet.
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
    /// Where the label stands, which is the size of the largest tier.
    pub(crate) label_at: u64,
    /// Unit in which the kernel transfers and caches.
    pub(crate) unit_bytes: u64,
    /// What everything goes to instead, if it is on another machine; then the descriptor has
    /// nothing but locks.
    pub(crate) remote: Option<SharedRemote>,
}

impl Medium {
    /// Opens what is at `path`. Errors: it is neither a file nor a device, too small for a label,
    /// not for this user, and what the kind forbids.
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

    /// The namespace on another machine at `path`, of which these traits are known. Does not
    /// connect.
    pub(crate) fn known(path: &Path, traits: &Traits) -> StoreResult<Medium> {
        remote::known(path, traits)
    }

    /// A second descriptor, for direct I/O; None where whole pages cannot travel so.
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
            // Somebody put another one there just now.
            false => Err(Errno(libc::ESTALE)),
        }
    }
}

impl MediumKind {
    /// Whether it is there before and after, and may hold anything.
    pub fn is_device(self) -> bool {
        matches!(self, MediumKind::Block | MediumKind::Remote)
    }

    /// The label that was read, if it goes with the size of the medium, in which it stands at
    /// `label_at`.
    pub(crate) fn checked(
        self,
        label: core::result::Result<Label, Wrong>,
        label_at: u64,
    ) -> core::result::Result<Label, Wrong> {
        let label = label?;
        let fits = match self {
            MediumKind::File | MediumKind::Dax => label.bytes == label_at,
            // A tier need not fill it.
            MediumKind::Block | MediumKind::Remote => {
                (1..=label_at).contains(&label.bytes) && label.bytes % PAGE == 0
            }
        };
        if fits { Ok(label) } else { Err(Wrong::Damaged) }
    }

    /// Errors: `FileTooLarge` if the process may not write to a file as far as `end`: the kernel
    /// would send a signal, too.
    pub(crate) fn check_limit(self, end: u64) -> Result<()> {
        match !self.is_device() && end > sys::soft_limit(libc::RLIMIT_FSIZE)? {
            true => Err(Error::FileTooLarge),
            false => Ok(()),
        }
    }

    /// What the kernel's answer to a write inside of the medium means.
    pub(crate) fn failure(self, errno: Errno) -> Errno {
        match (self, errno) {
            // The device is gone, or smaller than it was: a full tier is found when blocks are
            // given out.
            (MediumKind::Block | MediumKind::Remote, Errno(libc::ENOSPC)) => Errno(libc::EIO),
            _ => errno,
        }
    }

    /// What is wrong with a label, for people.
    pub(crate) fn describe(self, wrong: Wrong) -> &'static str {
        match (self, wrong) {
            (MediumKind::Block | MediumKind::Remote, Wrong::Missing) => {
                "it has no label of Cairn at its end: it was overwritten, or had another size"
            }
            _ => wrong.describe(),
        }
    }
}

/// Locks what is at `path`, and what stands in for it and for that tier, beside others who use it;
/// those that can be.
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

/// The refusal of what is at `path`.
pub(crate) fn refused(path: &Path, advice: &'static str) -> StoreError {
    StoreError::new("open tier", path, Errno(libc::EINVAL)).advise(advice)
}
