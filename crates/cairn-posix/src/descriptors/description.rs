//! Open file descriptions: what a handle refers to, its cursor, and its release.
//!
//! Invariant: a descriptor number is in the table exactly while it refers to an open handle to
//! which this process holds a reference.
//!
//! Does not open files (`files/file.rs`) or move data (`data/io.rs`).

use cairn_core::{Caller, Credentials, HandleId, HandleInfo, InodeId, OpenOptions};
use cairn_platform::sys;

use crate::descriptors::upkeep;
use crate::error::{Errno, Result};
use crate::mount::{self, Mount};
use crate::task::table::{self, Left};

/// As `close(2)`. Errors: `EBADF` if the descriptor is not ours.
pub fn close(descriptor: i32) -> Result<()> {
    let left = table::leave(descriptor).ok_or(Errno(libc::EBADF))?;
    let released = release(left);
    let closed = sys::close(descriptor);
    table::closed(descriptor);
    released?;
    Ok(closed?)
}

/// Releases what a number that left the table referred to.
pub(crate) fn release(left: Left) -> Result<()> {
    upkeep::release(mount::holder().ok_or(Errno(libc::EIO))?, left)
}

/// Moves the cursor as `lseek(2)` does, without regard to mappings of this process.
pub(crate) fn seek(handle: HandleId, offset: i64, whence: i32) -> Result<i64> {
    let position = mount::current()?.fs().seek(handle, offset, whence)?;
    i64::try_from(position).map_err(|_| Errno(libc::EOVERFLOW))
}

/// Returns the state of an open handle. Errors: `EBADF` if it only names a file (`O_PATH`).
pub fn opened(handle: HandleId) -> Result<HandleInfo> {
    let info = mount::current()?.fs().handle(handle)?;
    match info.path_only {
        true => Err(Errno(libc::EBADF)),
        false => Ok(info),
    }
}

/// Returns this process as a caller with all rights, for operations that were permitted when the
/// file was opened: its mode may have changed since.
pub(crate) fn unrestricted(mount: &Mount) -> Caller {
    Caller { credentials: Credentials { uid: 0, gid: 0 }, ..mount.caller() }
}

/// Opens the file again for writing and calls `act` with the new handle, which has its own cursor.
pub(crate) fn opened_once_more<T>(
    mount: &Mount,
    inode: InodeId,
    append: bool,
    act: impl FnOnce(HandleId) -> Result<T>,
) -> Result<T> {
    let caller = unrestricted(mount);
    let options = OpenOptions { write: true, append, ..OpenOptions::default() };
    let own = mount.fs().open_file(&caller, inode, b"", options, 0)?.handle;
    let result = act(own);
    mount.fs().release(caller.slot, own, mount::now())?;
    result
}

/// Whether the handle refers to a directory.
pub fn is_directory(handle: HandleId) -> Result<bool> {
    Ok(mount::current()?.fs().handle(handle)?.is_directory)
}

/// Returns the mount and the caller, for operations composed of several.
pub(crate) fn caller() -> Result<(&'static Mount, Caller)> {
    let mount = mount::current()?;
    Ok((mount, mount.caller()))
}

/// Returns the bytes from the cursor to the end (`FIONREAD`); negative if the cursor is past the
/// end. Errors: `ENOTTY` for a directory.
pub fn bytes_ahead(handle: HandleId) -> Result<i64> {
    let info = opened(handle)?;
    if info.is_directory {
        return Err(Errno(libc::ENOTTY));
    }
    let size = mount::current()?.fs().attributes(info.inode)?.size;
    Ok(size.wrapping_sub(info.cursor) as i64)
}
