//! Privileges that a program gains when it is executed. The dynamic linker then ignores the
//! environment, so Cairn's library is not loaded.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns which privileges a program gains when this user executes it; None if it gains none. If
/// it gains any, the dynamic linker ignores the environment.
pub fn rights_gained(path: &Path) -> Option<&'static str> {
    let found = fs::metadata(path).ok()?;
    let is_ignored = rustix::fs::statvfs(path)
        .is_ok_and(|system| system.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if is_ignored {
        None
    } else if found.mode() & libc::S_ISUID != 0 && found.uid() != user {
        Some("is set-user-ID")
    } else if found.mode() & libc::S_ISGID != 0 && found.gid() != group {
        Some("is set-group-ID")
    } else if user != 0 && has_capabilities(path) {
        Some("has file capabilities")
    } else {
        None
    }
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let name = c"security.capability";
    // SAFETY: both strings are NUL-terminated; with a length of 0 the call only returns the size.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
