//! Files of ours in the address space.
//!
//! A mapping shows the file's blocks in the tier itself: what is stored through a shared one is in the file at once, for
//! every process, whatever becomes of this one. Private ones share the blocks until a page is stored to.
//! Invariants: a mapping has a description of its own, so its blocks are nobody else's until it ends, in all processes that
//! inherited it. The list knows every page that shows a block, so a page that is no longer in it can do no harm.
//! Weaker than a local file system: that another process made the file longer or shorter, or filled a hole under a mapping
//! that only reads, is seen when this process next looks at the file (`follow`).
//! Where the pieces of a file are is for `place.rs` to find; another length or place of a mapping is `resize.rs`'s.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use cairn_core::{HandleId, InodeId, SlotId};
use cairn_device::process;

use crate::error::{Errno, Result};
use crate::io::{self, At};
use crate::kernel;
use crate::latch::{Held, Latch};
use crate::mount::{self, Mount};
use crate::transfer::Buffers;
use crate::upkeep;

mod place;
mod resize;

use place::{Manner, Place, Placed};

pub use resize::remap;

const PAGE_BYTES: usize = 4096;
/// More than any address space has.
const LENGTH_MAX: usize = isize::MAX as usize / 2;
/// Flags of `mmap` that say where a mapping goes, and those that say how its pages are had.
const PLACE_FLAGS: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | MAP_32BIT;
const PAGE_FLAGS: i32 = libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_NORESERVE;
#[cfg(target_arch = "x86_64")]
const MAP_32BIT: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const MAP_32BIT: i32 = 0;

/// What one `mmap` asks for.
#[derive(Clone, Copy)]
pub struct Request {
    /// Wanted address, or null.
    pub address: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// `PROT_*`.
    pub protection: i32,
    /// `MAP_*`.
    pub flags: i32,
    /// Offset in the file.
    pub offset: i64,
}

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

/// As `mmap(2)` of the file behind `handle`.
///
/// # Safety
/// As for `mmap`: a fixed address replaces what is there.
pub unsafe fn map(handle: HandleId, request: &Request) -> Result<*mut c_void> {
    let mount = mount::current()?;
    let info = mount.fs().handle(handle)?;
    let offset = u64::try_from(request.offset).map_err(|_| Errno(libc::EINVAL))?;
    if offset % PAGE_BYTES as u64 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if info.path_only {
        return Err(Errno(libc::EBADF));
    }
    if request.length == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let length = request.length.checked_next_multiple_of(PAGE_BYTES);
    let length = length.filter(|&length| length <= LENGTH_MAX).ok_or(Errno(libc::ENOMEM))?;
    if offset + length as u64 > i64::MAX as u64 {
        return Err(Errno(libc::EOVERFLOW));
    }
    let shared = match request.flags & libc::MAP_TYPE {
        libc::MAP_PRIVATE => false,
        libc::MAP_SHARED => true,
        libc::MAP_SHARED_VALIDATE if request.flags & libc::MAP_SYNC == 0 => true,
        libc::MAP_SHARED_VALIDATE => return Err(Errno(libc::EOPNOTSUPP)),
        _ => return Err(Errno(libc::EINVAL)),
    };
    let stores = shared && request.protection & libc::PROT_WRITE != 0;
    if !info.read || stores && !info.write {
        return Err(Errno(libc::EACCES));
    }
    if info.is_directory {
        return Err(Errno(libc::ENODEV));
    }
    let (protection, flags) = (request.protection, request.flags & PAGE_FLAGS);
    let wanted = Wanted {
        handle,
        inode: info.inode,
        request: Request { length, ..*request },
        offset,
        manner: Manner { protection, shared, stores, flags },
        may_store: info.write,
    };
    // What is mapped of a tier in a file makes all writes to it wait for the disk: not for pages that may be copied.
    if !shared && !mount.is_in_memory() {
        // SAFETY: promised by the caller.
        return unsafe { copy(handle, &wanted.request, offset) };
    }
    // SAFETY: promised by the caller.
    match unsafe { wanted.map(mount) } {
        // Nothing is executed in place where the tier's file system forbids that.
        Err(Errno(libc::EPERM)) if !shared => {
            // SAFETY: promised by the caller.
            unsafe { copy(handle, &wanted.request, offset) }
        }
        mapped => mapped,
    }
}

/// A request that was found good.
struct Wanted {
    handle: HandleId,
    inode: InodeId,
    request: Request,
    offset: u64,
    manner: Manner,
    may_store: bool,
}

impl Wanted {
    /// # Safety
    /// As for `mmap`.
    unsafe fn map(&self, mount: &Mount) -> Result<*mut c_void> {
        let caller = mount.caller();
        let mapping = mount.fs().map_file(&caller, self.handle, self.manner.stores)?;
        // SAFETY: promised by the caller.
        let mapped = unsafe { reserve(&self.request, libc::PROT_NONE) }.and_then(|start| {
            // What a fixed address replaced is gone.
            removed(start, self.request.length);
            let placed = self.place(mount, mapping, start);
            if placed.is_err() {
                // SAFETY: the reservation made above.
                let _ = unsafe { kernel::munmap(start.cast(), self.request.length) };
            }
            placed.map(|()| start)
        });
        if mapped.is_err() {
            let _ = mount.fs().release(mount.slot(), mapping, caller.now);
        }
        mapped
    }

    /// Fills the reservation at `start`.
    fn place(&self, mount: &Mount, mapping: HandleId, start: *mut c_void) -> Result<()> {
        let pages = pages(start, self.request.length)?;
        let mut made = Mapping {
            pages,
            offset: self.offset,
            handle: mapping,
            inode: self.inode,
            manner: self.manner,
            may_store: self.may_store,
            placed: Placed { moves: 0, adds: 0, end: 0, holes: false },
            generation: process::generation(),
        };
        if self.manner.stores {
            await_writes(mount, mapping)?;
        }
        made.replace(mount)?;
        made.manner.flags = 0;
        MAPPINGS.with(|list| list.push(made))
    }
}

/// Anonymous memory where the request wants it.
///
/// # Safety
/// As for `mmap`.
unsafe fn reserve(request: &Request, protection: i32) -> Result<*mut c_void> {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = request.flags & PLACE_FLAGS | kind;
    // SAFETY: promised by the caller.
    unsafe { kernel::map(request.address, request.length, protection, flags, -1, 0) }
}

/// A private mapping that is a copy.
///
/// # Safety
/// As for `mmap`.
unsafe fn copy(handle: HandleId, request: &Request, offset: u64) -> Result<*mut c_void> {
    // SAFETY: promised by the caller.
    let start = unsafe { reserve(request, libc::PROT_READ | libc::PROT_WRITE) }?;
    removed(start, request.length);
    // SAFETY: the new mapping has `length` bytes and nobody else knows it yet.
    let filled = unsafe { fill(handle, start, request.length, offset) };
    // SAFETY: the mapping made above, not written to any more.
    let finished =
        filled.and_then(|()| unsafe { kernel::protect(start, request.length, request.protection) });
    if finished.is_err() {
        // SAFETY: the mapping made above.
        let _ = unsafe { kernel::munmap(start.cast(), request.length) };
    }
    finished.map(|()| start)
}

unsafe fn fill(handle: HandleId, start: *mut c_void, length: usize, offset: u64) -> Result<()> {
    let mut done = 0;
    while done < length {
        let entry = libc::iovec { iov_base: start.wrapping_byte_add(done), iov_len: length - done };
        // SAFETY: promised by the caller of this function.
        let buffers = unsafe { Buffers::one(&entry) };
        match io::read(handle, buffers, At::Offset(offset + done as u64))? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(())
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

/// Lets `map`, which gives `MAP_FAILED` for a failure, put something else there. `None`, and nothing was done: there is nothing
/// of ours in the range.
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

/// Closes descriptions whose pages are gone. What was stored is sealed, unless other processes have it mapped, too.
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
}

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
fn await_writes(mount: &Mount, mapping: HandleId) -> Result<()> {
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

/// This process has changed the file, or looks at it: its mappings show what it is now.
pub fn follow(inode: InodeId) {
    if any() {
        follow_where(|mapping| mapping.inode == inode);
    }
}

/// As `follow`, of all files: the process has a lock, under which others may have changed any of them.
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

/// Lets no mapping be made known or end until what is returned is dropped, in this process and in a child that is forked
/// meanwhile: so the child has a list that is whole, and the descriptions that are in it. Errors: `EDEADLK`.
pub fn quiet() -> Result<Held<'static>> {
    MAPPINGS.latch.hold()
}

/// In a forked child whose creation was not seen: holds on to what it has mapped. A file that is gone leaves zeros.
pub(crate) fn retain(mount: &Mount, slot: SlotId) {
    // The list is as the parent left it.
    let _ = MAPPINGS.with(|list| {
        list.retain(|mapping| {
            let is_held = mount.fs().retain(slot, mapping.handle).is_ok();
            if !is_held {
                detach_pages(mapping);
            }
            is_held
        });
    });
}

/// Puts zeros where a mapping of ours is.
fn detach_pages(mapping: &Mapping) {
    let request = Request {
        address: mapping.pages.start as *mut c_void,
        length: mapping.pages.len(),
        protection: mapping.manner.protection,
        flags: libc::MAP_FIXED,
        offset: 0,
    };
    // SAFETY: replaces only what the mapping consists of.
    let _ = unsafe { reserve(&request, request.protection) };
}

/// Before an exec, which ends all mappings. The executed program may never look at the store, so what this process has
/// inherited no longer counts as open for writing: if the exec fails, the process keeps what it sees, and what it stores is
/// its own. True: there are mappings.
pub(crate) fn before_exec(mount: &Mount, slot: SlotId) -> bool {
    if !any() {
        return false;
    }
    let mine = process::generation();
    let is_inherited = |mapping: &Mapping| mapping.manner.stores && mapping.generation != mine;
    let given_up = MAPPINGS.with(|list| {
        let mut given_up = Vec::new();
        while let Some(found) = list.iter().find(|mapping| is_inherited(mapping)) {
            let old = found.handle;
            let Ok(new) = mount.fs().map_file(&mount.caller(), old, false) else { break };
            for mapping in list.iter_mut().filter(|mapping| mapping.handle == old) {
                mapping.handle = new;
                if mapping.make_private(mount).is_err() {
                    detach_pages(mapping);
                }
            }
            given_up.push(old);
        }
        given_up
    });
    for handle in given_up.unwrap_or_default() {
        end(mount, slot, handle);
    }
    true
}

/// At the end of the process: threads that go on for a moment can no longer store to files. What was stored is sealed.
pub(crate) fn end_all(mount: &Mount, slot: SlotId) {
    if !any() {
        return;
    }
    let handles = MAPPINGS.with(|list| {
        let mut handles = Vec::new();
        for mut mapping in list.drain(..) {
            if mapping.manner.stores && mapping.make_private(mount).is_err() {
                detach_pages(&mapping);
            }
            if !handles.contains(&mapping.handle) {
                handles.push(mapping.handle);
            }
        }
        handles
    });
    for handle in handles.unwrap_or_default() {
        end(mount, slot, handle);
    }
}
