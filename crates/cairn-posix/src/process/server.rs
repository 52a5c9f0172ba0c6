//! Files for a server that opens, reads and writes them for other processes.
//!
//! Must stay true: the server's descriptions have no numbers in this process. The slot that holds
//! them need not be this process's: then they outlive it. Data move under this process's own slot,
//! so that whoever reaps it undoes unfinished writes.

use cairn_core::{Caller, HandleId, InodeId, OpenOptions, Opened, SlotId};

use crate::descriptors::upkeep;
use crate::error::{Errno, Result};
use crate::files::file;
use crate::kernel::configuration::{self, Scope};
use crate::mount::{self, Mount};

/// Attaches this process as a server of the store in the directory `store`, whose files appear
/// below `prefix`. Errors: `EBUSY` if it has a mount; `EINVAL` for a prefix that is not an absolute
/// path; errors of opening the store.
pub fn begin(store: &[u8], prefix: &[u8]) -> Result<&'static Mount> {
    mount::set_service();
    configuration::set(store, prefix, Scope::Node)?;
    mount::current()
}

/// Opens the file at `path`, relative to `base`, for the slot and with the rights of `caller`.
/// `mode`: permission bits of a file that is created. Waits for a file whose data are still
/// elsewhere.
pub fn open(
    mount: &Mount,
    caller: &Caller,
    place: (InodeId, &[u8]),
    options: OpenOptions,
    mode: u32,
) -> Result<Opened> {
    let opened = file::open_description(mount, caller, place, options.effective(), mode)??;
    if options.truncate {
        mount.reclaim();
    }
    Ok(opened)
}

/// Seals what was written through `handle`.
pub fn seal(mount: &Mount, handle: HandleId) -> Result<()> {
    upkeep::seal_handle(mount, handle)
}

/// Drops the reference of `slot` to `handle`.
pub fn release(mount: &Mount, slot: SlotId, handle: HandleId) -> Result<()> {
    // The drain seals a block that stays stale; closing must not fail for it.
    let _ = upkeep::seal_handle(mount, handle);
    mount.fs().release(slot, handle, mount::now())?;
    mount.reclaim();
    Ok(())
}

/// Sets the size of a file. The caller has checked that the change is permitted.
pub fn set_size(mount: &Mount, inode: InodeId, size: u64) -> Result<()> {
    match i64::try_from(size) {
        Ok(_) => file::set_size(mount, inode, size),
        Err(_) => Err(Errno(libc::EFBIG)),
    }
}
