//! Files of ours in the address space.
//!
//! A mapping shows the file's blocks in the tier itself: what is stored through a shared one is in
//! the file at once, for every process, whatever becomes of this one. Private ones share the blocks
//! until a page is stored to. Of a tier on another machine the blocks are shown in shared memory,
//! for every process of this one; `sync` brings there what was stored.
//! Invariants: a mapping has a description of its own, so its blocks are nobody else's until it
//! ends, in all processes that inherited it. The list knows every page that shows a block, so a
//! page that is no longer in it can do no harm. Weaker than a local file system: that another
//! process made the file longer or shorter, or filled a hole under a mapping that only reads, is
//! seen when this process next looks at the file (`follow`).
//!
//! ```text
//! mapping.rs   the list of mappings; what is unmapped, what follows the file
//! create.rs    mmap                      place.rs    where the pieces of a file are put
//! resize.rs    mremap                    change.rs   mprotect, msync, madvise
//! life.rs      fork, exec, exit          lock.rs     mlockall
//! ```

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use cairn_core::{HandleId, InodeId, SlotId};

use crate::data::upkeep;
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

pub use change::{advise, protect, show_other_pages, sync};
pub use create::{Request, map};
pub use life::quiet;
pub(crate) use life::{before_exec, end_all, retain};
pub use lock::{lock_all, unlock_all};
pub use resize::remap;

const PAGE_BYTES: usize = 4096;
/// More than any address space has.
const LENGTH_MAX: usize = isize::MAX as usize / 2;
/// Pages of a file, one after the other, with the same protection.
#[derive(Clone)]
struct Mapping {
    pages: Range<usize>,
    /// Place of the first page in the file.
    offset: u64,
    handle: HandleId,
    inode: InodeId,
    manner: Manner,
    /// The file was open for writing, so that a protection may permit stores later.
    may_store: bool,
    placed: Placed,
    /// Process that made it; children inherit it.
    generation: u64,
}

impl Mapping {
    fn place<'a>(&self, mount: &'a Mount) -> Place<'a> {
        let (mapping, inode, manner) = (self.handle, self.inode, self.manner);
        let (start, offset) = (self.pages.start, self.offset);
        Place { mount, mapping, inode, start, offset, manner }
    }

    /// Offset in the file behind the last page.
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

    /// The part that lies in `pages`.
    fn part(&self, pages: Range<usize>) -> Mapping {
        let offset = self.offset + (pages.start - self.pages.start) as u64;
        Mapping { pages, offset, ..self.clone() }
    }

    /// The part that lies in a range, which it overlaps.
    fn part_in(&self, range: &Range<usize>) -> Mapping {
        self.part(self.pages.start.max(range.start)..self.pages.end.min(range.end))
    }

    /// Places everything anew.
    fn replace(&mut self, mount: &Mount) -> Result<()> {
        self.placed = self.place(mount).place(self.offset, self.end())?;
        Ok(())
    }

    /// Shows what became of the file since it was placed. What cannot be shown stays as it is.
    fn follow(&mut self, mount: &Mount) -> Result<()> {
        let (place, seen) = (self.place(mount), self.placed);
        let now = place.state()?;
        // Private pages below the end may be the process's own by now.
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

    /// Lets stores go to pages of this process from now on.
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

// SAFETY: the list is only reached through `with`, which holds the latch.
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
            // A signal handler that interrupted a call of ours: it does not get to touch our pages.
            Err(errno) => Some(Err(errno)),
        }
    }
}

/// Whether there is a mapping of ours.
#[inline]
pub fn any() -> bool {
    MAPPINGS.count.load(Ordering::Relaxed) > 0
}

/// Whether pages of ours are in the range.
pub fn is_shown(start: *const c_void, length: usize) -> bool {
    let Ok(range) = pages(start, length) else { return false };
    MAPPINGS.with_any_in(&range, |_| Ok(())).is_some()
}

/// The pages that a call names by an address and a length. Errors: `EINVAL`.
fn pages(start: *const c_void, length: usize) -> Result<Range<usize>> {
    let start = start as usize;
    let end =
        length.checked_next_multiple_of(PAGE_BYTES).and_then(|length| start.checked_add(length));
    match end {
        Some(end) if start % PAGE_BYTES == 0 => Ok(start..end),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// As `munmap(2)`. `None`: there is nothing of ours in the range.
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

/// Pages of ours in this range are gone.
fn removed(start: *const c_void, length: usize) {
    let Ok(range) = pages(start, length) else { return };
    if let Some(Ok(gone)) = MAPPINGS.with_any_in(&range, |list| Ok(cut(list, &range))) {
        give_up(gone);
    }
}

/// Lets `map`, which gives `MAP_FAILED` for a failure, put something else there. `None`, and
/// nothing was done: there is nothing of ours in the range.
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

/// Closes descriptions whose pages are gone. What was stored is sealed, unless other processes have
/// it mapped, too.
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
            // A block that stays stale is sealed by the drain.
            let _ = upkeep::seal(mount, inode);
        }
    }
    // An error has nowhere to go: the pages are gone.
    let _ = mount.fs().release(slot, handle, mount::now());
    mount.fs().note_barrier();
}

/// This process has changed the file, or looks at it: its mappings show what it is now.
pub fn follow(inode: InodeId) {
    if any() {
        follow_where(|mapping| mapping.inode == inode);
    }
}

/// As `follow`, of all files: the process has a lock, under which others may have changed any of
/// them.
pub fn follow_all() {
    if any() {
        follow_where(|_| true);
    }
}

fn follow_where(chosen: impl Fn(&Mapping) -> bool) {
    let Ok(mount) = mount::current() else { return };
    // What cannot be shown now, for want of blocks, may be when the process next looks.
    let _ = MAPPINGS.with(|list| {
        for mapping in list.iter_mut().filter(|mapping| chosen(mapping)) {
            let _ = mapping.follow(mount);
        }
    });
}

/// As `follow`, of the file behind `handle`.
#[inline]
pub fn follow_handle(handle: HandleId) {
    if any() {
        if let Ok(inode) = mount::current().and_then(|mount| mount.inode_of(handle)) {
            follow(inode);
        }
    }
}
