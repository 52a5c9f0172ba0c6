//! Calls on mapped addresses: protection, `msync`, advice, other pages of the same file.
//!
//! Must stay true: advice and changes that would reach the tier's own file never go to the kernel
//! unmodified.

use core::ffi::c_void;
use core::ops::Range;

use cairn_core::HandleId;

use crate::error::{Errno, Result};
use crate::files::allocate;
use crate::kernel;
use crate::mount::{self, Mount};
use crate::pages::follow_all;
use crate::task::mappings::{LENGTH_MAX, MAPPINGS, Mapping, PAGE_BYTES, cut, pages};

/// As `mprotect(2)`. Returns `None` if nothing of ours is in the range.
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
        let done = unsafe { kernel::protect(start, length, protection) };
        let changed = match done {
            Ok(()) => range.clone(),
            // The kernel changed the pages up to the first one that is not mapped.
            Err(Errno(libc::ENOMEM)) => mapped_start(list, &range),
            Err(errno) => return Err(errno),
        };
        split(list, &changed);
        for mapping in list.iter_mut().filter(|mapping| mapping.overlaps(&changed)) {
            mapping.manner.protection = protection;
        }
        join(list);
        done
    })
}

/// Whether all pages of a range are mapped, ours or not.
fn is_mapped(range: &Range<usize>) -> bool {
    // SAFETY: changes nothing and starts no write-back; it fails if a page is not mapped.
    unsafe { kernel::msync(range.start as *mut c_void, range.len(), libc::MS_ASYNC) }.is_ok()
}

/// Returns the pages of the range before the first one that is not mapped, up to the last of ours.
fn mapped_start(list: &[Mapping], range: &Range<usize>) -> Range<usize> {
    let ours = list.iter().filter(|mapping| mapping.overlaps(range));
    let mut ours: Vec<Range<usize>> = ours.map(|mapping| mapping.pages.clone()).collect();
    ours.sort_unstable_by_key(|pages| pages.start);
    let mut end = range.start;
    for pages in ours {
        if end < pages.start && !is_mapped(&(end..pages.start)) {
            break;
        }
        end = pages.end.min(range.end);
    }
    range.start..end
}

/// Makes shared mappings with pages in the range storable. Errors: `EACCES`.
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

/// Waits for writes to a tier in a file that began before the mapping and may go past its page
/// cache.
pub(super) fn await_writes(mount: &Mount, mapping: HandleId) -> Result<()> {
    if mount.is_in_memory() {
        return Ok(());
    }
    Ok(mount.retry_while_busy(|| mount.fs().await_writes_before(mapping))?)
}

/// Splits mappings at the borders of the range.
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

/// Joins mappings that continue each other.
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

/// As `msync(2)`. Returns `None` if nothing of ours is in the range.
///
/// # Safety
/// As for `msync`.
pub unsafe fn sync(start: *mut c_void, length: usize, flags: i32) -> Option<Result<()>> {
    let range = pages(start, length).ok()?;
    let parts = MAPPINGS.with_any_in(&range, |list| {
        let stored =
            list.iter().filter(|mapping| mapping.overlaps(&range) && mapping.manner.stores);
        Ok(stored.map(|mapping| mapping.part_in(&range)).collect::<Vec<Mapping>>())
    })?;
    Some(parts.and_then(|parts| {
        // SAFETY: promised by the caller.
        unsafe { kernel::msync(start, length, flags) }?;
        let mount = mount::current()?;
        follow_all();
        let is_waited_for = flags & libc::MS_SYNC != 0;
        for part in parts {
            mount.fs().note_mapped_stores(&mount.caller(), part.inode)?;
            if is_waited_for {
                mount.write_back(part.inode, part.offset..part.end())?;
            }
        }
        // Another process may have made the record durable before the stores that it names were
        // written.
        if is_waited_for && mount.shows_copies() {
            mount.flush_mapped_stores()?;
        }
        match is_waited_for {
            false => Ok(()),
            true => {
                mount.fs().sync()?;
                mount.fs().note_barrier();
                Ok(())
            }
        }
    }))
}

/// As `madvise(2)`, for advice that must not reach the tier. Returns `None` if the kernel must
/// serve the call.
///
/// # Safety
/// As for `madvise`.
pub unsafe fn advise(start: *mut c_void, length: usize, advice: i32) -> Option<Result<()>> {
    let range = pages(start, length).ok()?;
    let advised = match advice {
        // Pages of a tier in a file must not be read ahead, see `cairn_device::media::media_file`.
        libc::MADV_NORMAL | libc::MADV_SEQUENTIAL | libc::MADV_WILLNEED | libc::MADV_HUGEPAGE => {
            MAPPINGS.with_any_in(&range, |_| Ok(()))?
        }
        libc::MADV_REMOVE => remove(&range)?,
        _ => return None,
    };
    Some(advised.and_then(|()| match is_mapped(&range) {
        true => Ok(()),
        false => Err(Errno(libc::ENOMEM)),
    }))
}

/// Zeroes the bytes of files that pages of a range map. The tier's blocks keep their memory.
/// Errors: `EACCES`.
fn remove(range: &Range<usize>) -> Option<Result<()>> {
    let parts = MAPPINGS.with_any_in(range, |list| {
        let shown = list.iter().filter(|mapping| mapping.overlaps(range));
        let parts = shown.map(|mapping| {
            let part = mapping.part_in(range);
            match part.manner.shared && part.may_store {
                true => Ok(part),
                false => Err(Errno(libc::EACCES)),
            }
        });
        parts.collect::<Result<Vec<Mapping>>>()
    })?;
    let clear = |part: Mapping| allocate::clear(part.inode, part.offset, part.end());
    Some(parts.and_then(|parts| parts.into_iter().try_for_each(clear)))
}

/// As `remap_file_pages(2)`, with `page` the position in the file. The kernel must not serve it: to
/// the kernel, the file is the tier. Returns `None` if nothing of ours is in the range.
///
/// # Safety
/// As for `remap_file_pages`.
pub unsafe fn remap_pages(
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
