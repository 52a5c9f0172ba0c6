//! Memory of ours that is left out of the program's `mlockall(2)`: whole tiers, and tables that are
//! mostly empty.
//!
//! A program locks its memory so that it does not wait for its own pages. With them the kernel
//! would make every page of a store present: a tier of gigabytes, and metadata that was laid out
//! for files that are never made. For files on a disk, `mlockall` does not read their content in
//! either.
//!
//! Invariant: every mapping whose pages appear as they are touched is made by [`map`] and removed
//! by [`unmap`].
//!
//! Does not lock: the interposer does, and leaves [`ranges`] out.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::mapping::PAGE_BYTES;
use crate::sys::{self, SysResult};

/// More mappings than a process has of a store. A mapping without an entry is locked, which costs
/// memory but no data.
const RANGES_MAX: usize = 64;

static RANGES: Ranges<RANGES_MAX> = Ranges::new();
/// Whether the kernel locks later mappings.
static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// Sets whether the kernel locks what this process maps later (`MCL_FUTURE`). Returns the previous
/// value.
pub fn set_following(is_locked: bool) -> bool {
    FOLLOWS.swap(is_locked, Ordering::AcqRel)
}

/// Returns the existing mappings that were made here.
pub fn ranges() -> impl Iterator<Item = Range<usize>> {
    RANGES.iter()
}

/// As [`sys::mmap`].
pub fn map(
    bytes: usize,
    protection: i32,
    flags: i32,
    descriptor: i32,
    offset: u64,
) -> SysResult<*mut u8> {
    let start = match FOLLOWS.load(Ordering::Acquire) {
        false => sys::mmap(bytes, protection, flags, descriptor, offset)?,
        true => map_unlocked(bytes, protection, flags, descriptor, offset)?,
    };
    RANGES.add(start.addr()..start.addr() + bytes);
    Ok(start)
}

/// Maps memory without locking it. A mapping that the kernel locks counts at once, as a whole,
/// against `RLIMIT_MEMLOCK`, and its pages are made present. A single inaccessible page is within
/// the limit and is not made present. Once it is unlocked, the mapping that it grows to is not
/// locked.
fn map_unlocked(
    bytes: usize,
    protection: i32,
    flags: i32,
    descriptor: i32,
    offset: u64,
) -> SysResult<*mut u8> {
    let first = bytes.min(PAGE_BYTES);
    let small = sys::mmap(first, libc::PROT_NONE, flags, descriptor, offset)?;
    // SAFETY: the new mapping, which nobody knows.
    let grown = unsafe { sys::munlock(small, first).and_then(|()| sys::grow(small, first, bytes)) };
    let start = grown.inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { sys::munmap(small, first) };
    })?;
    // SAFETY: as above.
    let opened = unsafe { sys::mprotect(start, bytes, protection) };
    opened.map(|()| start).inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { sys::munmap(start, bytes) };
    })
}

/// As [`sys::munmap`], for a whole mapping that was made by [`map`].
///
/// # Safety
/// As there.
pub unsafe fn unmap(start: *mut u8, bytes: usize) -> SysResult<()> {
    RANGES.remove(start.addr());
    // SAFETY: promised by the caller.
    unsafe { sys::munmap(start, bytes) }
}

/// At most `N` ranges of memory. Threads add, remove and read them without waiting for each other.
struct Ranges<const N: usize>([Entry; N]);

struct Entry {
    /// 0: free; 1: being filled.
    start: AtomicUsize,
    end: AtomicUsize,
}

impl<const N: usize> Ranges<N> {
    const fn new() -> Self {
        Ranges([const { Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; N])
    }

    /// Adds a range if there is room.
    fn add(&self, range: Range<usize>) {
        let free = |entry: &&Entry| {
            entry.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if let Some(entry) = self.0.iter().find(free) {
            entry.end.store(range.end, Ordering::Relaxed);
            entry.start.store(range.start, Ordering::Release);
        }
    }

    /// Removes the range that begins at `start`, if it is there.
    fn remove(&self, start: usize) {
        if let Some(entry) = self.0.iter().find(|it| it.start.load(Ordering::Acquire) == start) {
            entry.start.store(0, Ordering::Release);
        }
    }

    fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().filter_map(|entry| {
            let start = entry.start.load(Ordering::Acquire);
            (start > 1).then(|| start..entry.end.load(Ordering::Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_listed_until_they_are_removed() {
        let ranges = Ranges::<2>::new();
        let starts = || ranges.iter().map(|range| range.start).collect::<Vec<_>>();
        ranges.add(4096..8192);
        ranges.add(16_384..20_480);
        // There is no room for this one.
        ranges.add(65_536..69_632);
        assert!(ranges.iter().eq([4096..8192, 16_384..20_480]));
        ranges.remove(4096);
        ranges.remove(65_536);
        assert_eq!(starts(), [16_384]);
        ranges.add(65_536..69_632);
        assert_eq!(starts(), [65_536, 16_384]);
    }

    /// Other tests of this process map memory, too, so [`ranges`] is not checked.
    #[test]
    fn memory_that_is_mapped_while_the_kernel_locks_can_be_used() {
        const BYTES: usize = 1013 * PAGE_BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        for follows in [false, true] {
            set_following(follows);
            let start = map(BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).unwrap();
            // SAFETY: the mapping made above.
            unsafe {
                for byte in [0, BYTES - 1] {
                    start.add(byte).write(7);
                    assert_eq!(start.add(byte).read(), 7);
                }
                unmap(start, BYTES).unwrap();
            }
        }
        set_following(false);
    }
}
