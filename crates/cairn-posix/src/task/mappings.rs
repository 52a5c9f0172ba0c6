//! List of mappings: which pages of this process map which part of which file of ours.
//!
//! Invariant: the list knows every page that maps a block, so a page that is not in the list can do
//! no harm. A forked child has the list as its parent left it.
//!
//! Does not place pages (`pages/place.rs`) and does not talk to the store, except to take over the
//! descriptions of the mappings for a new slot.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use cairn_core::{HandleId, InodeId, Microfs, SlotId};

use crate::error::{Errno, Result};
use crate::kernel;
use crate::kernel::latch::{Held, Latch};

pub(crate) const PAGE_BYTES: usize = 4096;
/// Longest mapping in bytes; more than any address space has.
pub(crate) const LENGTH_MAX: usize = isize::MAX as usize / 2;

/// Contiguous pages of a file with the same protection.
#[derive(Clone)]
pub(crate) struct Mapping {
    pub pages: Range<usize>,
    /// Offset of the first page in the file.
    pub offset: u64,
    pub handle: HandleId,
    pub inode: InodeId,
    pub manner: Manner,
    /// Whether the file was open for writing, so that a later protection may permit stores.
    pub may_store: bool,
    pub placed: Placed,
    /// Generation of the process that made it; children inherit the mapping.
    pub generation: u64,
}

/// Behaviour of the pages of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// `PROT_*`.
    pub protection: i32,
    /// Whether stores go to the file; otherwise each page that is stored to becomes private.
    pub shared: bool,
    /// Whether the protection permits stores to the file, or may be changed to do so.
    pub stores: bool,
    /// Further flags for `mmap`.
    pub flags: i32,
}

/// State of the file when a mapping was placed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub moves: u32,
    pub adds: u32,
    /// Offset of the first page beyond the end of the file.
    pub end: u64,
    /// Whether some pages are zeros because the file had no blocks there.
    pub holes: bool,
}

impl Mapping {
    /// Offset in the file of the end of the last page.
    pub fn end(&self) -> u64 {
        self.offset + self.pages.len() as u64
    }

    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        self.pages.start < range.end && range.start < self.pages.end
    }

    pub fn is_continued_by(&self, next: &Mapping) -> bool {
        (self.pages.end, self.end(), self.handle) == (next.pages.start, next.offset, next.handle)
            && (self.manner, self.placed, self.generation)
                == (next.manner, next.placed, next.generation)
    }

    /// Returns the part that lies in `pages`.
    pub fn part(&self, pages: Range<usize>) -> Mapping {
        let offset = self.offset + (pages.start - self.pages.start) as u64;
        Mapping { pages, offset, ..self.clone() }
    }

    /// Returns the part that lies in `range`, which the mapping must overlap.
    pub fn part_in(&self, range: &Range<usize>) -> Mapping {
        self.part(self.pages.start.max(range.start)..self.pages.end.min(range.end))
    }

    /// Replaces the pages by zeros.
    pub fn detach_pages(&self) {
        let (start, length) = (self.pages.start as *mut c_void, self.pages.len());
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (protection, flags) = (self.manner.protection, libc::MAP_FIXED | kind);
        // SAFETY: replaces only the pages of the mapping.
        let _ = unsafe { kernel::map(start, length, protection, flags, -1, 0) };
    }
}

pub(crate) struct Mappings {
    latch: Latch,
    list: UnsafeCell<Vec<Mapping>>,
    /// Length of the list, read without the latch.
    count: AtomicUsize,
}

// SAFETY: the list is reached only through `with`, which holds the latch.
unsafe impl Sync for Mappings {}

pub(crate) static MAPPINGS: Mappings =
    Mappings { latch: Latch::new(), list: UnsafeCell::new(Vec::new()), count: AtomicUsize::new(0) };

impl Mappings {
    /// Runs `act` with the list. Errors: `EDEADLK` in a signal handler that interrupted such a
    /// call.
    pub fn with<R>(&self, act: impl FnOnce(&mut Vec<Mapping>) -> R) -> Result<R> {
        let _held = self.latch.hold()?;
        // SAFETY: the latch is held, and the reference does not leave this function.
        let list = unsafe { &mut *self.list.get() };
        let result = act(list);
        self.count.store(list.len(), Ordering::Relaxed);
        Ok(result)
    }

    /// As `with`, if a mapping has pages in `range`.
    pub fn with_any_in<R>(
        &self,
        range: &Range<usize>,
        act: impl FnOnce(&mut Vec<Mapping>) -> Result<R>,
    ) -> Option<Result<R>> {
        if !any() {
            return None;
        }
        let done =
            self.with(|list| list.iter().any(|mapping| mapping.overlaps(range)).then(|| act(list)));
        match done {
            Ok(done) => done,
            // A signal handler that interrupted a call of ours must not touch our pages.
            Err(errno) => Some(Err(errno)),
        }
    }
}

/// Whether this process has a mapping of ours.
#[inline]
pub fn any() -> bool {
    MAPPINGS.count.load(Ordering::Relaxed) > 0
}

/// Whether pages of ours are in the range.
pub fn is_shown(start: *const c_void, length: usize) -> bool {
    let Ok(range) = pages(start, length) else { return false };
    MAPPINGS.with_any_in(&range, |_| Ok(())).is_some()
}

/// Keeps mappings from being added or ended until the result is dropped, in this process and in a
/// child forked meanwhile. So the child has a consistent list and the descriptions in it. Errors:
/// `EDEADLK`.
pub fn quiet() -> Result<Held<'static>> {
    MAPPINGS.latch.hold()
}

/// Retains the mappings of a forked child whose creation was not seen. Pages of a file that is gone
/// become zeros.
pub(crate) fn retain(fs: &Microfs, slot: SlotId) {
    // The list is as the parent left it.
    let _ = MAPPINGS.with(|list| {
        list.retain(|mapping| {
            let is_held = fs.retain(slot, mapping.handle).is_ok();
            if !is_held {
                mapping.detach_pages();
            }
            is_held
        });
    });
}

/// Returns the pages that a call names by an address and a length. Errors: `EINVAL`.
pub(crate) fn pages(start: *const c_void, length: usize) -> Result<Range<usize>> {
    let start = start as usize;
    let end =
        length.checked_next_multiple_of(PAGE_BYTES).and_then(|length| start.checked_add(length));
    match end {
        Some(end) if start % PAGE_BYTES == 0 => Ok(start..end),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Takes a range out of the list. Returns the descriptions that have no pages any more.
pub(crate) fn cut(list: &mut Vec<Mapping>, range: &Range<usize>) -> Vec<HandleId> {
    let (touched, others): (Vec<_>, Vec<_>) =
        list.drain(..).partition(|mapping| mapping.overlaps(range));
    *list = others;
    for mapping in &touched {
        let Range { start, end } = mapping.pages;
        for kept in [start..range.start.min(end), range.end.max(start)..end] {
            if kept.start < kept.end {
                list.push(mapping.part(kept));
            }
        }
    }
    let mut gone: Vec<HandleId> = touched.iter().map(|mapping| mapping.handle).collect();
    gone.dedup();
    gone.retain(|handle| list.iter().all(|mapping| mapping.handle != *handle));
    gone
}
