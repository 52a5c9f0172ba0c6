//! Extended attributes of files of ours.

use cairn_core::ExtendedUpdate;
pub use cairn_core::{EXTENDED_NAME_BYTES_MAX, EXTENDED_VALUE_BYTES_MAX, InodeId};

use crate::error::{Errno, Result};
use crate::mount;

/// Converts the flags of `setxattr(2)`. Errors: `EINVAL` for unknown flags.
pub fn update(flags: i32) -> Result<ExtendedUpdate> {
    match flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) {
        0 => Ok(ExtendedUpdate {
            create: flags & libc::XATTR_CREATE != 0,
            replace: flags & libc::XATTR_REPLACE != 0,
        }),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Sets the attribute `name` of `inode`.
pub fn set(inode: InodeId, name: &[u8], value: &[u8], update: ExtendedUpdate) -> Result<()> {
    let mount = mount::current()?;
    Ok(mount.fs().set_extended(&mount.caller(), inode, name, value, update)?)
}

/// Returns the value of the attribute `name`.
pub fn get(inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
    let mount = mount::current()?;
    Ok(mount.fs().extended(&mount.caller(), inode, name)?)
}

/// Returns the names of all attributes, each followed by a zero byte.
pub fn list(inode: InodeId) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    for (name, _) in mount::current()?.fs().all_extended(inode)?.iter() {
        names.extend_from_slice(name);
        names.push(0);
    }
    Ok(names)
}

/// Removes the attribute `name`.
pub fn remove(inode: InodeId, name: &[u8]) -> Result<()> {
    let mount = mount::current()?;
    Ok(mount.fs().remove_extended(&mount.caller(), inode, name)?)
}
