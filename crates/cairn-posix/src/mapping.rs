//! Mappings: files of ours in the address space.
//!
//! A mapping maps the file's blocks in the tier itself. A store through a shared mapping is in the
//! file at once, for every process, whatever happens to this one. Private mappings share the blocks
//! until a page is stored to. Blocks of a tier on another machine are mapped from shared memory,
//! for every process of this machine; `sync` writes the stores back to that tier.
//!
//! Invariants:
//! - A mapping has an open-file description of its own. So its blocks belong to nobody else until
//!   it ends in all processes that inherited it.
//! - The list knows every page that maps a block, so a page that is not in the list can do no harm.
//!
//! Weaker than a local file system: if another process makes the file longer or shorter, or fills a
//! hole under a mapping that only reads, this process sees it when it next looks at the file
//! (`follow`).
//!
//! ```text
//! mapping.rs   list of mappings; munmap; following changes of the file
//! create.rs    mmap                      place.rs    mapping the pieces of a file
//! resize.rs    mremap                    change.rs   mprotect, msync, madvise
//! life.rs      fork, exec, exit          lock.rs     mlockall
//! ```

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use cairn_core::{HandleId, InodeId, SlotId};

use crate::descriptors::upkeep;
use crate::error::{Errno, Result};
use crate::kernel;
use crate::kernel::latch::Latch;
use crate::mount::{self, Mount};

mod change;
mod create;
mod life;
mod lock;
mod place;
mod resize;

use place::{Manner, Place, Placed};

pub use change::{advise, protect, remap_pages, sync};
pub use create::{Request, map};
pub use life::quiet;
pub(crate) use life::{before_exec, end_all, retain};
pub use lock::{lock_all, unlock_all};
pub use resize::remap;

const PAGE_BYTES: usize = 4096;
/// Longest mapping in bytes; more than any address space has.
const LENGTH_MAX: usize = isize::MAX as usize / 2;
/// Contiguous pages of a file with the same protection.
#[derive(Clone)]
struct Mapping {
    pages: Range<usize>,
    /// Offset of the first page in the file.
    offset: u64,
    handle: HandleId,
    inode: InodeId,
    manner: Manner,
    /// Whether the file was open for writing, so that a later protection may permit stores.
    may_store: bool,
    placed: Placed,
    /// Generation of the process that made it; children inherit the mapping.
    generation: u64,
}

impl Mapping {
    fn place<'a>(&self, mount: &'a Mount) -> Place<'a> {
        let (mapping, inode, manner) = (self.handle, self.inode, self.manner);
        let (start, offset) = (self.pages.start, self.offset);
        Place { mount, mapping, inode, start, offset, manner }
    }

    /// Offset in the file of the end of the last page.
    fn end(&self) -> u64 {
        self.offset + self.pages.len() as u64
    }

    fn overlaps(&self, range: &Range<usize>) -> bool {
        self.pages.start < range.end && range.start < self.pages.end
    }

    fn is_continued_by(&self, next: &Mapping) -> bool {
        (self.pages.end, self.end(), self.handle) == (next.pages.start, next.offset, next.handle)
            && (self.manner, self.placed, self.generation)
                == (next.manner, next.placed, next.generation)
    }

    /// Returns the part that lies in `pages`.
    fn part(&self, pages: Range<usize>) -> Mapping {
        let offset = self.offset + (pages.start - self.pages.start) as u64;
        Mapping { pages, offset, ..self.clone() }
    }

    /// Returns the part that lies in `range`, which the mapping must overlap.
    fn part_in(&self, range: &Range<usize>) -> Mapping {
        self.part(self.pages.start.max(range.start)..self.pages.end.min(range.end))
    }

    /// Places all pages again.
    fn replace(&mut self, mount: &Mount) -> Result<()> {
        self.placed = self.place(mount).place(self.offset, self.end())?;
        Ok(())
    }

    /// Applies changes of the file since the mapping was placed. Pages that cannot be placed stay
    /// as they are.
    fn follow(&mut self, mount: &Mount) -> Result<()> {
        let (place, seen) = (self.place(mount), self.placed);
        let now = place.state()?;
        // Private pages before the end may have become the process's own copies.
        let is_other = now.moves != seen.moves || seen.holes && now.adds != seen.adds;
        let from = match self.manner.shared && is_other {
            true => self.offset,
            false if now.end != seen.end => now.end.min(seen.end).max(self.offset),
            false => return Ok(()),
        };
        if from < self.end() {
            let placed = place.place(from, self.end())?;
            let holes = placed.holes || seen.holes && from > self.offset;
            self.placed = Placed { holes, ..placed };
        }
        Ok(())
    }

    /// Makes later stores go to pages of this process.
    fn make_private(&mut self, mount: &Mount) -> Result<()> {
        self.manner = Manner { shared: false, stores: false, ..self.manner };
        self.replace(mount)
    }
}

struct Mappings {
    latch: Latch,
    list: UnsafeCell<Vec<Mapping>>,
    /// Length of the list, read without the latch.
    count: AtomicUsize,
}

// SAFETY: the list is reached only through `with`, which holds the latch.
unsafe impl Sync for Mappings {}

static MAPPINGS: Mappings =
    Mappings { latch: Latch::new(), list: UnsafeCell::new(Vec::new()), count: AtomicUsize::new(0) };

impl Mappings {
    fn with<R>(&self, act: impl FnOnce(&mut Vec<Mapping>) -> R) -> Result<R> {
        let _held = self.latch.hold()?;
        // SAFETY: the latch is held, and the reference does not leave this function.
        let list = unsafe { &mut *self.list.get() };
        let result = act(list);
        self.count.store(list.len(), Ordering::Relaxed);
        Ok(result)
    }

    /// As `with`, if a mapping has pages in `range`.
    fn with_any_in<R>(
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

/// Returns the pages that a call names by an address and a length. Errors: `EINVAL`.
fn pages(start: *const c_void, length: usize) -> Result<Range<usize>> {
    let start = start as usize;
    let end =
        length.checked_next_multiple_of(PAGE_BYTES).and_then(|length| start.checked_add(length));
    match end {
        Some(end) if start % PAGE_BYTES == 0 => Ok(start..end),
        _ => Err(Errno(libc::EINVAL)),
    }
}

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

/// Handles the removal of pages of ours in this range.
fn removed(start: *const c_void, length: usize) {
    let Ok(range) = pages(start, length) else { return };
    if let Some(Ok(gone)) = MAPPINGS.with_any_in(&range, |list| Ok(cut(list, &range))) {
        give_up(gone);
    }
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

/// Takes a range out of the list. Returns the descriptions that have no pages any more.
fn cut(list: &mut Vec<Mapping>, range: &Range<usize>) -> Vec<HandleId> {
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

/// Closes descriptions whose pages are gone. Seals what was stored, unless other processes also
/// have the file mapped.
fn give_up(gone: Vec<HandleId>) {
    if gone.is_empty() {
        return;
    }
    let Some(mount) = mount::holder() else { return };
    for handle in gone {
        end(mount, mount.slot(), handle);
    }
    mount.reclaim();
}

fn end(mount: &Mount, slot: SlotId, handle: HandleId) {
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

/// Updates the mappings of a file that this process has changed or is about to look at.
pub fn follow(inode: InodeId) {
    if any() {
        follow_where(|mapping| mapping.inode == inode);
    }
}

/// As `follow`, for all files. For a process that has taken a lock, under which other processes may
/// have changed any of them.
pub fn follow_all() {
    if any() {
        follow_where(|_| true);
    }
}

fn follow_where(chosen: impl Fn(&Mapping) -> bool) {
    let Ok(mount) = mount::current() else { return };
    // Pages that cannot be placed for lack of blocks are tried again when the process next looks.
    let _ = MAPPINGS.with(|list| {
        for mapping in list.iter_mut().filter(|mapping| chosen(mapping)) {
            let _ = mapping.follow(mount);
        }
    });
}

/// As `follow`, for the file behind `handle`.
#[inline]
pub fn follow_handle(handle: HandleId) {
    if any() {
        if let Ok(inode) = mount::current().and_then(|mount| mount.inode_of(handle)) {
            follow(inode);
        }
    }
}
