//! Calls on addresses that are mapped: protection, `msync`, advice, other pages of the same file.
//!
//! Must stay true: advice and changes that would reach the tier's own file never go to the kernel as they came.

use core::ffi::c_void;
use core::ops::Range;

use cairn_core::{HandleId, InodeId};

use super::{LENGTH_MAX, MAPPINGS, Mapping, PAGE_BYTES, cut, follow_all, pages};
use crate::error::{Errno, Result};
use crate::kernel;
use crate::mount::{self, Mount};

/// As `mprotect(2)`. `None`: there is nothing of ours in the range.
///
/// # Safety
/// As for `mprotect`.
pub unsafe fn protect(start: *mut c_void, length: usize, protection: i32) -> Option<Result<()>> {
    let range = pages(start, length).ok()?;
    MAPPINGS.with_any_in(&range, |list| {
        if protection & libc::PROT_WRITE != 0 {
            allow_stores(list, &range)?;
        }
        // SAFETY: promised by the caller.
        unsafe { kernel::protect(start, length, protection) }?;
        split(list, &range);
        for mapping in list.iter_mut().filter(|mapping| mapping.overlaps(&range)) {
            mapping.manner.protection = protection;
        }
        join(list);
        Ok(())
    })
}

/// Makes shared mappings that have pages in the range ones that may be stored to. Errors: `EACCES`.
fn allow_stores(list: &mut [Mapping], range: &Range<usize>) -> Result<()> {
    let wants = |mapping: &Mapping| {
        mapping.overlaps(range) && mapping.manner.shared && !mapping.manner.stores
    };
    let mount = mount::current()?;
    while let Some(found) = list.iter().find(|mapping| wants(mapping)) {
        let handle = found.handle;
        if !found.may_store {
            return Err(Errno(libc::EACCES));
        }
        mount.fs().allow_stores(&mount.caller(), handle)?;
        await_writes(mount, handle)?;
        for mapping in list.iter_mut().filter(|mapping| mapping.handle == handle) {
            mapping.manner.stores = true;
            mapping.replace(mount).inspect_err(|_| mapping.manner.stores = false)?;
        }
    }
    Ok(())
}

/// Waits for writes that may go to a tier in a file past its page cache, as if there were no mapping.
pub(super) fn await_writes(mount: &Mount, mapping: HandleId) -> Result<()> {
    if mount.is_in_memory() {
        return Ok(());
    }
    Ok(mount.patiently(|| mount.fs().await_writes_before(mapping))?)
}

/// Makes mappings begin and end where the range does.
fn split(list: &mut Vec<Mapping>, range: &Range<usize>) {
    for border in [range.start, range.end] {
        let crosses =
            |mapping: &Mapping| (mapping.pages.start + 1..mapping.pages.end).contains(&border);
        if let Some(at) = list.iter().position(crosses) {
            let whole = list.swap_remove(at);
            list.push(whole.part(whole.pages.start..border));
            list.push(whole.part(border..whole.pages.end));
        }
    }
}

/// Makes one mapping of two that continue each other.
fn join(list: &mut Vec<Mapping>) {
    list.sort_unstable_by_key(|mapping| mapping.pages.start);
    list.dedup_by(|next, mapping| {
        let is_joined = mapping.is_continued_by(next);
        if is_joined {
            mapping.pages.end = next.pages.end;
        }
        is_joined
    });
}

/// As `msync(2)`. `None`: there is nothing of ours in the range.
///
/// # Safety
/// As for `msync`.
pub unsafe fn sync(start: *mut c_void, length: usize, flags: i32) -> Option<Result<()>> {
    let range = pages(start, length).ok()?;
    let files = MAPPINGS.with_any_in(&range, |list| {
        let stored =
            list.iter().filter(|mapping| mapping.overlaps(&range) && mapping.manner.stores);
        let mut files: Vec<InodeId> = stored.map(|mapping| mapping.inode).collect();
        files.dedup();
        Ok(files)
    })?;
    Some(files.and_then(|files| {
        // SAFETY: promised by the caller.
        unsafe { kernel::msync(start, length, flags) }?;
        let mount = mount::current()?;
        follow_all();
        for inode in files {
            mount.fs().note_mapped_stores(&mount.caller(), inode)?;
        }
        match flags & libc::MS_SYNC {
            0 => Ok(()),
            _ => Ok(mount.fs().sync()?),
        }
    }))
}

/// As `madvise(2)`, for advice that must not reach the tier. `None`: the kernel is to have it.
///
/// # Safety
/// As for `madvise`.
pub unsafe fn advise(start: *mut c_void, length: usize, advice: i32) -> Option<Result<()>> {
    let range = pages(start, length).ok()?;
    match advice {
        // Pages of a tier in a file must not be read ahead, see `cairn_device::media_file`.
        libc::MADV_NORMAL | libc::MADV_SEQUENTIAL | libc::MADV_WILLNEED | libc::MADV_HUGEPAGE => {
            MAPPINGS.with_any_in(&range, |_| Ok(()))
        }
        // The tier's blocks keep their memory; the file's bytes become zeros.
        libc::MADV_REMOVE => MAPPINGS.with_any_in(&range, |list| {
            for mapping in list.iter().filter(|mapping| mapping.overlaps(&range)) {
                if mapping.manner.protection & libc::PROT_WRITE == 0 || !mapping.manner.stores {
                    return Err(Errno(libc::EACCES));
                }
                let last = mapping.pages.start
                    + (mapping.placed.end.saturating_sub(mapping.offset)) as usize;
                let from = mapping.pages.start.max(range.start);
                let to = mapping.pages.end.min(range.end).min(last);
                if from < to {
                    // SAFETY: pages that show blocks and may be written to, which the caller gives up the content of.
                    unsafe { (from as *mut u8).write_bytes(0, to - from) };
                }
            }
            Ok(())
        }),
        _ => None,
    }
}

/// As `remap_file_pages(2)`, with `page` the place in the file. The kernel must not be asked: to it, the file is the tier.
/// `None`: there is nothing of ours in the range.
///
/// # Safety
/// As for `remap_file_pages`.
pub unsafe fn show_other_pages(
    start: *mut c_void,
    length: usize,
    protection: i32,
    page: usize,
) -> Option<Result<()>> {
    let range = pages(start, length).ok()?;
    MAPPINGS.with_any_in(&range, |list| {
        let mount = mount::current()?;
        let whole = |mapping: &&Mapping| {
            mapping.pages.start <= range.start && range.end <= mapping.pages.end
        };
        let found = list.iter().find(whole).filter(|found| found.manner.shared && protection == 0);
        let mut other = found.ok_or(Errno(libc::EINVAL))?.part(range.clone());
        let offset = page.checked_mul(PAGE_BYTES).filter(|&offset| offset <= LENGTH_MAX);
        other.offset = offset.ok_or(Errno(libc::EINVAL))? as u64;
        other.replace(mount)?;
        cut(list, &range);
        list.push(other);
        Ok(())
    })
}
