//! Upkeep of a process's files beyond its own calls: sealing blocks, releasing handles, freeing
//! blocks.

use cairn_core::{HandleId, InodeId};

use crate::descriptors::locks;
use crate::error::Result;
use crate::mount::{self, Mount};
use crate::task::table::{self, Left};

/// Most batches sealed for one close. The drain seals a file with more stale blocks.
const SEAL_BATCHES_MAX: usize = 1 << 10;

/// Releases a handle after a descriptor left the table, if that was this process's last descriptor
/// of it.
pub fn release(mount: &Mount, left: Left) -> Result<()> {
    locks::number_closed(mount, left.handle);
    if !left.last {
        return Ok(());
    }
    locks::handle_closed(left.handle);
    if mount::is_interrupted() {
        // The slot keeps the handle: whoever reaps it finds a writer that died.
        return Ok(());
    }
    if left.unsealed {
        // The drain seals a block that stays stale; closing must not fail for it.
        let _ = mount.inode_of(left.handle).and_then(|inode| seal(mount, inode));
    }
    mount.fs().release(mount.slot(), left.handle, mount::now())?;
    mount.reclaim();
    Ok(())
}

/// Releases the handle of a number that the kernel has given to something else, if that was this
/// process's last number of it.
#[inline]
pub(crate) fn release_displaced(mount: &Mount, displaced: Option<Left>) {
    if let Some(Left { handle, last: true, .. }) = displaced {
        // The close of that number was not seen, so an error cannot be reported.
        let _ = mount.fs().release(mount.slot(), handle, mount::now());
    }
}

/// Seals the file behind `handle` if this process made blocks of it stale.
pub fn seal_handle(mount: &Mount, handle: HandleId) -> Result<()> {
    if table::take_unsealed(handle) {
        let sealed = mount.inode_of(handle).and_then(|inode| seal(mount, inode));
        if sealed.is_err() {
            table::mark_unsealed(handle);
        }
        return sealed;
    }
    Ok(())
}

/// Recomputes the checksums of the file's stale blocks. Returns without an error while others write
/// to the file: they seal it.
pub(crate) fn seal(mount: &Mount, inode: InodeId) -> Result<()> {
    let mut stale = Vec::new();
    let mut sealed = Vec::new();
    for _ in 0..SEAL_BATCHES_MAX {
        let version = mount.fs().stale_blocks(inode, &mut stale)?;
        if stale.is_empty() {
            return Ok(());
        }
        sealed.clear();
        for block in &stale {
            sealed.push((*block, mount.block_checksum(block)?));
        }
        if !mount.fs().seal(inode, version, &sealed)? {
            return Ok(());
        }
    }
    Ok(())
}
