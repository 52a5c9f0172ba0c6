//! `mlockall(2)` of a program that has a store: locks its own memory and its mapped files, as it
//! asks, but not the store.
//!
//! The kernel locks all mappings or none, and would make every page of every tier present. So
//! existing mappings are locked range by range. Only for future mappings does the kernel's own call
//! serve (`cairn_platform::mlock_exempt`).

use core::ffi::c_void;
use core::ops::Range;

use cairn_platform::{mlock_exempt, sys};

use crate::error::{Errno, Result};
use crate::kernel;
use crate::task::mappings::PAGE_BYTES;

/// Valid flags of `mlockall`.
const FLAGS: i32 = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;

/// As `mlockall(2)`; changes nothing if it fails. Errors: `EINVAL`; `ENOMEM` and `EPERM` if the
/// limit is smaller than the program's memory.
pub fn lock_all(flags: i32) -> Result<()> {
    let (current, future) = (flags & libc::MCL_CURRENT != 0, flags & libc::MCL_FUTURE != 0);
    if flags & !FLAGS != 0 || !current && !future {
        return Err(Errno(libc::EINVAL));
    }
    let on_fault = flags & libc::MCL_ONFAULT != 0;
    let Ok(mapped) = mapped() else {
        // Without /proc the mappings are unknown. Lock all of them, the store included, as pages
        // are touched.
        kernel::lock_all_pages(flags | libc::MCL_ONFAULT)?;
        mlock_exempt::set_following(future);
        return Ok(());
    };
    let present = if current { locked(&mapped, mlock_exempt::ranges()) } else { Vec::new() };
    check_limit(present.iter().map(ExactSizeIterator::len).sum())?;
    if mlock_exempt::set_following(future) && !future {
        // The kernel can take it back only together with the existing locks.
        kernel::unlock_all_pages()?;
    }
    for range in &present {
        lock(range, on_fault)?;
    }
    match future {
        true => kernel::lock_all_pages(flags & !libc::MCL_CURRENT),
        false => Ok(()),
    }
}

/// As `munlockall(2)`.
pub fn unlock_all() -> Result<()> {
    mlock_exempt::set_following(false);
    kernel::unlock_all_pages()
}

/// Returns the parts of these mappings that are not the store's. `ours` are those of the store.
fn locked(mapped: &[Range<usize>], ours: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut ours: Vec<Range<usize>> = ours.collect();
    ours.sort_unstable_by_key(|range| range.start);
    let mut found = Vec::new();
    for range in mapped {
        let mut start = range.start;
        for ours in ours.iter().filter(|ours| ours.start < range.end && ours.end > range.start) {
            found.push(start..ours.start.max(start));
            start = start.max(ours.end);
        }
        found.push(start..range.end.max(start));
    }
    found.retain(|range| !range.is_empty());
    found
}

/// Makes the kernel's own check before anything is locked: `bytes` are within the limit, or this
/// process may lock any number.
fn check_limit(bytes: usize) -> Result<()> {
    let limit = sys::soft_limit(libc::RLIMIT_MEMLOCK)?;
    if bytes as u64 <= limit && limit > 0 {
        return Ok(());
    }
    // A probe larger than the limit; none of its pages is ever present.
    let probe = usize::try_from(limit).ok().and_then(|limit| limit.checked_add(PAGE_BYTES));
    let probe = probe.ok_or(Errno(libc::ENOMEM))?.next_multiple_of(PAGE_BYTES);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let start = mlock_exempt::map(probe, libc::PROT_NONE, flags, -1, 0)?;
    let may = kernel::lock_pages(start.cast(), probe, true);
    // SAFETY: the mapping made here.
    let _ = unsafe { mlock_exempt::unmap(start, probe) };
    may
}

/// Locks a range. As with the kernel's own `mlockall`, it is no error if another thread has
/// unmapped the range since, or if a page cannot be made present.
fn lock(range: &Range<usize>, on_fault: bool) -> Result<()> {
    let (start, bytes) = (core::ptr::without_provenance_mut::<c_void>(range.start), range.len());
    if let Err(errno) = kernel::lock_pages(start, bytes, true) {
        // SAFETY: starts no write-back; it only tells whether the whole range is mapped.
        let is_there = unsafe { kernel::msync(start, bytes, libc::MS_ASYNC) }.is_ok();
        return if is_there { Err(errno) } else { Ok(()) };
    }
    if !on_fault {
        let _ = kernel::lock_pages(start, bytes, false);
    }
    Ok(())
}

/// Returns the mappings of this process, lowest first. Leaves out those of the shared library that
/// contains this code, if it is in one.
fn mapped() -> Result<Vec<Range<usize>>> {
    let text = kernel::told(libc::AT_FDCWD, c"/proc/self/maps")?;
    let lines = text.split(|&byte| byte == b'\n');
    let all: Vec<(Range<usize>, &[u8])> =
        lines.filter_map(|line| Some((range_of(line)?, file_of(line)))).collect();
    let here = (mapped as fn() -> _ as *const ()).addr();
    let library = all.iter().find(|(range, _)| range.contains(&here)).map(|(_, file)| *file);
    let library = library.filter(|file| file.ends_with(b".so"));
    let others = all.into_iter().filter(|(_, file)| Some(*file) != library);
    Ok(others.map(|(range, _)| range).collect())
}

/// Returns the path at the end of a line of `/proc/self/maps`; empty for memory without a file.
fn file_of(line: &[u8]) -> &[u8] {
    line.iter().position(|&byte| byte == b'/').map_or(&[], |start| &line[start..])
}

/// Returns the range at the start of a line of `/proc/self/maps`; none if it is not the process's.
fn range_of(line: &[u8]) -> Option<Range<usize>> {
    let range = core::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|digits| usize::from_str_radix(digits, 16).ok());
    let range = start?..end?;
    (range.end <= isize::MAX as usize).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_begin_with_a_range() {
        let line = b"7f10aa000000-7f10aa021000 rw-p 00000000 00:00 0  [heap]";
        assert_eq!(range_of(line), Some(0x7f10_aa00_0000..0x7f10_aa02_1000));
        assert_eq!(range_of(b""), None);
    }

    #[test]
    fn every_mapping_is_seen() {
        static PLACE: u8 = 0;
        let here = (&raw const PLACE).addr();
        let stack = (&raw const here).addr();
        let seen = mapped().unwrap();
        assert!(seen.is_sorted_by_key(|range| range.start));
        for address in [here, stack] {
            assert!(seen.iter().any(|range| range.contains(&address)));
        }
    }

    #[test]
    fn what_is_ours_is_cut_out_of_what_is_mapped() {
        let all = [90..510, 520..530, 600..700];
        let ours = [650..800, 100..200, 300..500, 95..96];
        let expected = [90..95, 96..100, 200..300, 500..510, 520..530, 600..650];
        assert_eq!(locked(&all, ours.into_iter()), expected);
    }

    #[test]
    fn mappings_of_the_store_are_known() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = mlock_exempt::map(PAGE_BYTES, libc::PROT_READ, flags, -1, 0).unwrap();
        assert!(mlock_exempt::ranges().any(|range| range.contains(&start.addr())));
        // SAFETY: the mapping made above.
        unsafe { mlock_exempt::unmap(start, PAGE_BYTES) }.unwrap();
    }
}
