//! Huge pages for data segments: a private tmpfs of the store.
//!
//! The system's /dev/shm has 4 KiB pages almost everywhere. A user who may mount gets a tmpfs with
//! `huge=always` at `huge/` in the store. A user who may not is told why, and works without.
//!
//! Must stay true: the mount goes away with the store, and nothing outside the store is touched.
//!
//! Does not try user namespaces: other processes of the job could not reach such a mount by path.

use std::ffi::CString;

use cairn_platform::sys::c_path;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::directory::{Directory, StoreResult};

/// Name of the mount point in the store.
pub const NAME: &core::ffi::CStr = c"huge";
/// Room in the file system beyond the data itself: partial huge pages and its own inodes.
const SLACK_BYTES: u64 = 8 << 20;
/// `TMPFS_MAGIC` of the kernel.
const TMPFS: i64 = 0x0102_1994;

/// Result of the attempt to get huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// The store's `huge/` is a file system of huge pages.
    Mounted,
    /// No huge pages, because of this errno (`EPERM`: only root may mount).
    Unavailable(Errno),
    /// Nobody asked for huge pages.
    NotWanted,
}

/// Makes room for `bytes` more in the store's file system of huge pages. Mounts it if it is
/// missing.
pub fn provide(store: &Directory, bytes: u64) -> StoreResult<HugePages> {
    let point = store.private(NAME)?;
    let path = c_path(point.path()).map_err(|errno| store.error("mount", NAME, errno))?;
    let result = match mounted_bytes(store, &point) {
        Ok(Some(present)) => mount_with(&path, present + bytes, libc::MS_REMOUNT),
        Ok(None) => mount_with(&path, bytes + SLACK_BYTES, 0),
        Err(errno) => Err(errno),
    };
    Ok(result.map_or_else(HugePages::Unavailable, |()| HugePages::Mounted))
}

/// Detaches the store's file system of huge pages, if there is one. Its memory is freed when the
/// last mapping of its files goes away.
pub fn withdraw(store: &Directory) -> StoreResult<()> {
    if !store.contains(NAME) {
        return Ok(());
    }
    let failed = |errno| store.error("unmount", NAME, errno);
    let point = store.existing_private(NAME)?;
    let mounted = mounted_bytes(store, &point).map_err(failed)?.is_some();
    let path = c_path(point.path()).map_err(failed)?;
    drop(point);
    if mounted {
        sys::umount2(&path, libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW).map_err(failed)?;
    }
    Ok(())
}

/// Returns the size of the file system mounted at `point`, or `None` if that is a plain directory
/// of `store`.
fn mounted_bytes(store: &Directory, point: &Directory) -> SysResult<Option<u64>> {
    if sys::fstat(store.raw())?.st_dev == sys::fstat(point.raw())?.st_dev {
        return Ok(None);
    }
    let state = sys::statfs(&c_path(point.path())?)?;
    match state.f_type as i64 {
        TMPFS => Ok(Some(state.f_blocks as u64 * state.f_bsize as u64)),
        _ => Err(Errno(libc::EBUSY)),
    }
}

fn mount_with(path: &CString, bytes: u64, flags: u64) -> SysResult<()> {
    let options = format!("huge=always,mode=0700,uid={},size={bytes}", sys::geteuid());
    let options = CString::new(options).expect("digits and letters contain no NUL");
    sys::mount(c"tmpfs", path, flags | libc::MS_NOSUID | libc::MS_NODEV, &options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;

    #[test]
    fn mount_grows_with_each_request_and_is_gone_after_withdrawal() {
        let scratch = Scratch::new();
        if let HugePages::Unavailable(errno) = provide(&scratch.0, 4 << 20).unwrap() {
            // Not root, or a kernel without huge pages: the refusal has a reason.
            assert!(matches!(errno.0, libc::EPERM | libc::EACCES | libc::EINVAL), "{errno:?}");
            return;
        }
        let size = || {
            let point = scratch.0.existing_private(NAME).unwrap();
            mounted_bytes(&scratch.0, &point).unwrap()
        };
        let before = size().unwrap();
        assert_eq!(provide(&scratch.0, 6 << 20).unwrap(), HugePages::Mounted);
        assert_eq!(size(), Some(before + (6 << 20)));
        withdraw(&scratch.0).unwrap();
        assert_eq!(size(), None);
        withdraw(&scratch.0).unwrap();
    }
}
