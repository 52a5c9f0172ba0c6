//! Inodes of the store that stand for what is ours in the kernel: placeholders of open files,
//! tokens of descriptors on their way, stand-ins of current directories.
//!
//! The type of an inode and its file system tell what it is, so a status is enough. Whether its
//! handle is open, the store says.
//!
//! Must stay true: nothing here attaches the mount. Signal handlers and the start of a process call
//! it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::OnceLock;

use cairn_device::directory;
use cairn_device::store::namespace;
use cairn_platform::sys;

use crate::error::Result;
use crate::kernel::configuration;

/// `st_dev` of the store; 0 before it is known.
static STORE_DEVICE: AtomicU64 = AtomicU64::new(0);

/// Descriptors of regular files of the store's file system with which this process was executed.
static INHERITED_FILES: OnceLock<Vec<i32>> = OnceLock::new();
/// Whether they were noted, and not taken yet.
static HAS_INHERITED_FILES: AtomicBool = AtomicBool::new(false);

/// `st_dev` of the store's file system; none if this process has no store.
fn store_device() -> Option<u64> {
    match STORE_DEVICE.load(Ordering::Relaxed) {
        0 => learn_store_device(),
        known => Some(known),
    }
}

#[cold]
fn learn_store_device() -> Option<u64> {
    let device = sys::fstatat(libc::AT_FDCWD, configuration::get()?.store_path(), 0).ok()?.st_dev;
    STORE_DEVICE.store(device, Ordering::Relaxed);
    Some(device)
}

/// Whether these are the attributes of a placeholder of our store.
#[inline]
pub fn is_placeholder(mode: u32, device: u64) -> bool {
    mode & libc::S_IFMT == libc::S_IFSOCK && store_device() == Some(device)
}

/// Whether these are the attributes of a regular file of our store's file system.
pub(crate) fn is_regular(mode: u32, device: u64) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG && store_device() == Some(device)
}

/// Notes the regular files of the store's file system with which this process was executed.
pub(crate) fn note_inherited_files(descriptors: Vec<i32>) {
    // Only the first attachment follows an exec.
    if !descriptors.is_empty() && INHERITED_FILES.set(descriptors).is_ok() {
        HAS_INHERITED_FILES.store(true, Ordering::Release);
    }
}

/// Whether there are files to take.
pub(crate) fn has_inherited_files() -> bool {
    HAS_INHERITED_FILES.load(Ordering::Relaxed)
}

/// Returns the files that were noted, to one caller.
pub(crate) fn take_inherited_files() -> &'static [i32] {
    match has_inherited_files() && HAS_INHERITED_FILES.swap(false, Ordering::AcqRel) {
        true => INHERITED_FILES.get().map_or(&[], Vec::as_slice),
        false => &[],
    }
}

/// Whether these are the attributes of a token of our store.
pub(crate) fn is_token(mode: u32, device: u64) -> bool {
    mode & libc::S_IFMT == libc::S_IFIFO && store_device() == Some(device)
}

/// Whether `descriptor` looks like a placeholder of ours.
pub fn may_be_placeholder(descriptor: i32) -> bool {
    sys::fstat(descriptor).is_ok_and(|stat| is_placeholder(stat.st_mode, stat.st_dev))
}

/// Whether any descriptor of this process is a placeholder.
pub(crate) fn has_placeholders() -> bool {
    let mut is_any = false;
    let listed = for_each_placeholder(|_, _| {
        is_any = true;
        false
    });
    listed.is_ok() && is_any
}

/// Calls `visit` with each descriptor of this process that is a placeholder, and its inode number,
/// until it returns false.
pub(crate) fn for_each_placeholder(mut visit: impl FnMut(i32, u64) -> bool) -> Result<()> {
    for_each(|descriptor, stat| {
        !is_placeholder(stat.st_mode, stat.st_dev) || visit(descriptor, stat.st_ino)
    })
}

/// Calls `visit` with each descriptor of this process, and its status, until it returns false.
pub(crate) fn for_each(mut visit: impl FnMut(i32, &libc::stat) -> bool) -> Result<()> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let listing = sys::openat(libc::AT_FDCWD, c"/proc/self/fd", flags, 0)?;
    let listed = directory::list(listing, &mut |name, _| {
        let number = name.to_str().ok().and_then(|digits| digits.parse().ok());
        let Some(descriptor) = number else { return true };
        sys::fstat(descriptor).map_or(true, |stat| visit(descriptor, &stat))
    });
    let _ = sys::close(listing);
    Ok(listed?)
}

/// Returns the identity of the stand-in, if the kernel's current directory is one.
pub(crate) fn stand_in() -> Option<u64> {
    let stat = sys::fstatat(libc::AT_FDCWD, c".", 0).ok()?;
    // A stand-in has no name any more.
    let is_stand_in = store_device() == Some(stat.st_dev) && stat.st_nlink <= 1;
    is_stand_in.then(|| namespace::stand_in_id(&stat))
}
