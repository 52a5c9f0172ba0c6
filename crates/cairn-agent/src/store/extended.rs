//! Transfer of extended attributes between a store and ordinary files.
//!
//! Must stay true: extended attributes keep no file from being drained or restored. An attribute
//! that a file system does not accept is left out, and the caller is told.

use cairn_core::{ExtendedUpdate, InodeId};
use cairn_job::file::extended::Extended;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};

use crate::store::volume::Volume;

/// The only attribute namespace that a store supports.
const NAMESPACE: &[u8] = b"user.";
/// Longest list of names and longest value that the kernel returns, bytes.
const BYTES_MAX: usize = 64 << 10;

/// Reads the attributes of an ordinary file; empty if its file system has none or does not
/// return them.
pub fn read(file: impl AsFd) -> Extended {
    let path = path_of(&file);
    let mut value = vec![0; BYTES_MAX];
    let mut found = BTreeMap::new();
    for name in names(&path) {
        if let Ok(length) = rustix::fs::getxattr(&path, name.as_slice(), &mut value) {
            found.insert(name, value[..length].to_vec());
        }
    }
    found.into_iter().collect()
}

/// Sets exactly these attributes on an ordinary file and removes all others. Returns whether
/// that succeeded.
pub fn give(extended: &Extended, file: impl AsFd) -> bool {
    let path = path_of(&file);
    let others =
        names(&path).into_iter().filter(|name| !extended.iter().any(|(own, _)| own == *name));
    let mut is_whole = true;
    for name in others {
        is_whole &= rustix::fs::removexattr(&path, name.as_slice()).is_ok();
    }
    for (name, value) in extended.iter() {
        let set = rustix::fs::setxattr(&path, name, value, XattrFlags::empty());
        is_whole &= set.is_ok();
        if set == Err(Errno::NOTSUP) {
            break;
        }
    }
    is_whole
}

/// Sets these attributes on a file of a store, as far as there is room.
pub fn put(extended: &Extended, volume: &Volume, inode: InodeId) -> cairn_core::Result<()> {
    use cairn_core::Error::{Invalid, NoSpace, NotSupported};
    for (name, value) in extended.iter() {
        let update = ExtendedUpdate::default();
        match volume.fs().set_extended(&volume.caller(), inode, name, value, update) {
            Ok(()) | Err(NoSpace | NotSupported | Invalid) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns a path that leads to exactly this open file, whatever the mode it was opened in.
fn path_of(file: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn names(path: &str) -> Vec<Vec<u8>> {
    let mut list = vec![0; BYTES_MAX];
    let length = rustix::fs::listxattr(path, &mut list).unwrap_or(0);
    let names = list[..length].split(|&byte| byte == 0);
    names.filter(|name| name.starts_with(NAMESPACE)).map(<[u8]>::to_vec).collect()
}
