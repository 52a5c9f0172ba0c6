//! `munmap`, and other calls that take pages of ours out of the address space.
//!
//! Must stay true: a description of which no page is left is given up, after its pages are gone.

use core::ffi::c_void;

use cairn_core::{HandleId, SlotId};

use crate::descriptors::upkeep;
use crate::error::Result;
use crate::kernel;
use crate::mount::{self, Mount};
use crate::task::mappings::{MAPPINGS, cut, pages};

/// As `munmap(2)`. Returns `None` if nothing of ours is in the range.
///
/// # Safety
/// As for `munmap`.
pub unsafe fn unmap(start: *mut c_void, length: usize) -> Option<Result<()>> {
    let range = pages(start, length).ok()?;
    let unmapped = MAPPINGS.with_any_in(&range, |list| {
        // SAFETY: promised by the caller.
        unsafe { kernel::munmap(start.cast(), length) }?;
        Ok(cut(list, &range))
    })?;
    Some(unmapped.map(give_up))
}

/// Replaces what is mapped in a range by `map`, which returns `MAP_FAILED` if it fails. Returns
/// `None`, without calling `map`, if nothing of ours is in the range.
pub fn replace(
    start: *const c_void,
    length: usize,
    map: impl FnOnce() -> *mut c_void,
) -> Option<Result<*mut c_void>> {
    let range = pages(start, length).ok()?;
    let replaced = MAPPINGS.with_any_in(&range, |list| {
        let mapped = map();
        let gone = if mapped == libc::MAP_FAILED { Vec::new() } else { cut(list, &range) };
        Ok((mapped, gone))
    })?;
    Some(replaced.map(|(mapped, gone)| {
        give_up(gone);
        mapped
    }))
}

/// Handles the removal of pages of ours in this range.
pub(super) fn removed(start: *const c_void, length: usize) {
    let Ok(range) = pages(start, length) else { return };
    if let Some(Ok(gone)) = MAPPINGS.with_any_in(&range, |list| Ok(cut(list, &range))) {
        give_up(gone);
    }
}

/// Closes descriptions whose pages are gone. Seals what was stored, unless other processes also
/// have the file mapped.
pub(super) fn give_up(gone: Vec<HandleId>) {
    if gone.is_empty() {
        return;
    }
    let Some(mount) = mount::holder() else { return };
    for handle in gone {
        end(mount, mount.slot(), handle);
    }
    mount.reclaim();
}

/// As `give_up`, for one description and without freeing the blocks of deleted files.
pub(super) fn end(mount: &Mount, slot: SlotId, handle: HandleId) {
    if let Ok(Some(inode)) = mount.fs().end_mapping(slot, handle, mount::now()) {
        if mount.fs().attributes(inode).is_ok_and(|found| found.links > 0) {
            // The drain seals a block that stays stale.
            let _ = upkeep::seal(mount, inode);
        }
    }
    // An error cannot be reported: the pages are gone.
    let _ = mount.fs().release(slot, handle, mount::now());
    mount.fs().note_barrier();
}
