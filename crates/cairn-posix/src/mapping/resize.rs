//! `mremap`: changes the length of a mapping, or moves it.
//!
//! Must stay true: addresses that map no file of ours any more are not in the list of mappings.
//! Descriptions that this ended are given up, whatever fails after it.

use core::ffi::c_void;
use core::ops::Range;

use cairn_core::HandleId;

use super::create::{Request, reserve};
use super::unmap::give_up;
use crate::error::{Errno, Result};
use crate::kernel;
use crate::mount::{self, Mount};
use crate::task::mappings::{MAPPINGS, Mapping, PAGE_BYTES, cut, pages};

/// As `mremap(2)`. Returns `None` if nothing of ours is in the range.
///
/// # Safety
/// As for `mremap`.
pub unsafe fn remap(
    start: *mut c_void,
    length: usize,
    new_length: usize,
    flags: i32,
    target: *mut c_void,
) -> Option<Result<*mut c_void>> {
    // A length of 0 asks for a second mapping of the same pages.
    let range = pages(start, length.max(1)).ok()?;
    let mut gone = Vec::new();
    let moved = MAPPINGS.with_any_in(&range, |list| {
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        let is_fixed = flags & libc::MREMAP_FIXED != 0;
        let new_length = new_length.checked_next_multiple_of(PAGE_BYTES).filter(|&new| new > 0);
        let new_length = new_length.filter(|_| flags & !known == 0 && (may_move || !is_fixed));
        let new_length = new_length.ok_or(Errno(libc::EINVAL))?;
        if !is_fixed && new_length < range.len() && length > 0 {
            // SAFETY: promised by the caller.
            gone = unsafe { shorten(list, &range, new_length) }?;
            return Ok(start);
        }
        let whole = |mapping: &&Mapping| {
            mapping.pages.start <= range.start && range.end <= mapping.pages.end
        };
        let mapping = list.iter().find(whole).ok_or(Errno(libc::EFAULT))?.part(range.clone());
        let copies = length == 0;
        if copies && !(may_move && mapping.manner.shared) {
            return Err(Errno(libc::EINVAL));
        }
        let resize = Resize { mapping, length: new_length, copies };
        let mount = mount::current()?;
        // SAFETY: promised by the caller.
        unsafe {
            if !is_fixed && !copies && resize.in_place(mount, list)? {
                return Ok(start);
            }
            match may_move {
                true => resize.elsewhere(mount, list, is_fixed.then_some(target), &mut gone),
                false => Err(Errno(libc::ENOMEM)),
            }
        }
    })?;
    give_up(gone);
    Some(moved)
}

/// Unmaps the part beyond the new end of a range, which may have gaps. Returns the descriptions
/// that are to be given up. Errors: `EFAULT` if the range does not begin with pages of ours.
///
/// # Safety
/// As for `mremap`.
unsafe fn shorten(
    list: &mut Vec<Mapping>,
    range: &Range<usize>,
    length: usize,
) -> Result<Vec<HandleId>> {
    if !list.iter().any(|mapping| mapping.pages.contains(&range.start)) {
        return Err(Errno(libc::EFAULT));
    }
    let behind = range.start + length..range.end;
    // SAFETY: the caller gives up the pages.
    unsafe { kernel::munmap(behind.start as *mut u8, behind.len()) }?;
    Ok(cut(list, &behind))
}

/// A mapping that gets another length.
struct Resize {
    mapping: Mapping,
    length: usize,
    /// Whether the pages also stay where they are.
    copies: bool,
}

impl Resize {
    /// Resizes without moving. Returns false if the addresses after the mapping are in use.
    ///
    /// # Safety
    /// As for `mremap`.
    unsafe fn in_place(&self, mount: &Mount, list: &mut [Mapping]) -> Result<bool> {
        let Range { start, end } = self.mapping.pages;
        let new_end = start + self.length;
        if new_end == end {
            return Ok(true);
        }
        let behind = Request {
            address: end as *mut c_void,
            length: new_end - end,
            protection: libc::PROT_NONE,
            flags: libc::MAP_FIXED_NOREPLACE,
            offset: 0,
        };
        // SAFETY: replaces nothing.
        let Ok(reserved) = (unsafe { reserve(&behind, libc::PROT_NONE) }) else { return Ok(false) };
        let longer = Mapping { pages: start..new_end, ..self.mapping.clone() };
        let mut added = longer.part(end..new_end);
        let placed = match reserved == behind.address {
            true => added.replace(mount),
            // Kernels before 4.17 take the address as a hint.
            false => Err(Errno(libc::ENOMEM)),
        };
        if placed.is_err() {
            // SAFETY: the reservation made above.
            unsafe { kernel::munmap(reserved.cast(), behind.length) }?;
            return Ok(false);
        }
        for mapping in list.iter_mut().filter(|mapping| mapping.pages.end == end) {
            // `follow` places it again where the file has changed.
            mapping.pages.end = new_end;
            mapping.placed.holes |= added.placed.holes;
        }
        Ok(true)
    }

    /// Moves the mapping. Adds the descriptions that are to be given up to `gone`.
    ///
    /// # Safety
    /// As for `mremap`.
    unsafe fn elsewhere(
        &self,
        mount: &Mount,
        list: &mut Vec<Mapping>,
        target: Option<*mut c_void>,
        gone: &mut Vec<HandleId>,
    ) -> Result<*mut c_void> {
        let old = self.mapping.pages.clone();
        let request = Request {
            address: target.unwrap_or(core::ptr::null_mut()),
            length: self.length,
            protection: libc::PROT_NONE,
            flags: if target.is_some() { libc::MAP_FIXED } else { 0 },
            offset: 0,
        };
        let overlaps = |at: usize| at < old.end && old.start < at + self.length;
        if target
            .is_some_and(|target| target as usize % PAGE_BYTES != 0 || overlaps(target as usize))
        {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: promised by the caller.
        let start = unsafe { reserve(&request, libc::PROT_NONE) }?;
        let pages = start as usize..start as usize + self.length;
        gone.extend(cut(list, &pages));
        let mut moved = Mapping { pages: pages.clone(), ..self.mapping.clone() };
        let kept = old.len().min(self.length);
        // SAFETY: both ranges are the caller's to move.
        let placed = unsafe {
            match self.mapping.manner.shared {
                true => moved.replace(mount),
                // Some of the pages are the process's own copies.
                false => moved
                    .part(pages.start + kept..pages.end)
                    .replace(mount)
                    .and_then(|()| move_pages(old.start, kept, pages.start)),
            }
        };
        if let Err(errno) = placed {
            // SAFETY: the reservation made above.
            unsafe { kernel::munmap(start.cast(), self.length) }?;
            return Err(errno);
        }
        list.push(moved);
        if !self.copies {
            // SAFETY: the caller gives up the pages.
            unsafe { kernel::munmap(old.start as *mut u8, old.len()) }?;
            gone.extend(cut(list, &old));
        }
        Ok(start)
    }
}

/// Moves pages that may belong to several mappings of the kernel. The kernel moves pages of one
/// mapping at a time.
///
/// # Safety
/// As for `kernel::move_pages`.
unsafe fn move_pages(from: usize, length: usize, to: usize) -> Result<()> {
    let mut done = 0;
    let mut step = length;
    while done < length {
        step = step.min(length - done);
        let (start, target) = ((from + done) as *mut c_void, (to + done) as *mut c_void);
        // SAFETY: promised by the caller.
        match unsafe { kernel::move_pages(start, step, target) } {
            Ok(()) => {
                done += step;
                step = length - done;
            }
            Err(Errno(libc::EFAULT)) if step > PAGE_BYTES => {
                step = (step / 2).next_multiple_of(PAGE_BYTES);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
