//! Identity of a persist directory: tells it from the directory that appears in its place when its
//! file system is not mounted.
//!
//! Must stay true: the directory beneath a mount point is never taken for the mounted one. A
//! directory that was removed and made again is accepted. A remount may change the numbers of
//! device and mount; the manifest in the directory decides then.

use crate::model::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::path::Path;

/// Identity of a directory when a job began to drain to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryId {
    device: (u32, u32),
    inode: u64,
    /// Mount id; 0 if the kernel does not report one.
    mount: u64,
}

impl DirectoryId {
    /// Returns the identity of the directory `path`.
    pub fn at(path: &Path) -> Result<DirectoryId> {
        let id = DirectoryId::find(CWD, path, AtFlags::empty());
        id.map_err(Error::file("look at", path))
    }

    /// Returns the identity of an open directory.
    pub fn of(directory: impl AsFd) -> rustix::io::Result<DirectoryId> {
        DirectoryId::find(directory, Path::new(""), AtFlags::EMPTY_PATH)
    }

    fn find(directory: impl AsFd, path: &Path, flags: AtFlags) -> rustix::io::Result<DirectoryId> {
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let found = rustix::fs::statx(directory, path, flags, wanted)?;
        Ok(DirectoryId {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            mount: found.stx_mnt_id,
        })
    }

    /// Whether `other` may be drained to in place of this directory: it is the same one, or another
    /// one in the same mounted file system.
    pub fn may_be(self, other: DirectoryId) -> bool {
        self.device == other.device && (self.inode == other.inode || self.mount == other.mount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_made_again_will_do_and_one_of_another_mount_will_not() {
        let known = DirectoryId { device: (8, 1), inode: 100, mount: 30 };
        assert!(known.may_be(DirectoryId { mount: 40, ..known }), "seen from another namespace");
        assert!(known.may_be(DirectoryId { inode: 101, ..known }), "made again");
        assert!(!known.may_be(DirectoryId { inode: 101, mount: 40, ..known }), "bound elsewhere");
        assert!(!known.may_be(DirectoryId { device: (8, 2), ..known }), "beneath");
        let path = std::env::temp_dir();
        let open = std::fs::File::open(&path).expect("opens");
        let both = (DirectoryId::at(&path), DirectoryId::of(open));
        assert_eq!(both.0.expect("is there"), both.1.expect("is open"));
    }
}
