//! Pages of a namespace on another machine that programs have mapped. They are *shown*: they stand
//! in shared memory, in the file of the transit area.
//!
//! ```text
//! area │ a mark for each page │ the pages, each as far from the first as it is in the namespace
//! ```
//! While a page is shown, it is the current content: every process of this machine reads it there,
//! and writes both to it and to the namespace. What programs store in it reaches the namespace at
//! write-back.
//!
//! Must stay true: a page is shown, put away, written and written back in a turn at it. Its mark is
//! set when all of the page is there, and cleared before the page goes. Readers take no turn.
//! Instead they check afterwards whether pages have gone, and read again; if pages go all the time,
//! they take a turn.
//!
//! Does not know which pages programs have mapped.

use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use cairn_core::{Error, Result};
use cairn_nvme::shared::SharedRemote;
use cairn_platform::copy::copy_out;
use cairn_platform::mapping::{Mapping, Populate};
use cairn_platform::sys::{self, Errno, SysResult};

use super::pages::{Pages, read_all};
use super::transfer::{in_buffer, pages_of, pieces};
use super::{MediaFile, PAGE};
use crate::media::staging::STAGING_BYTES;
use crate::media::transit::{AREA_BYTES, Transit};

const MARKS_AT: u64 = AREA_BYTES as u64;
const PIECE_PAGES: usize = STAGING_BYTES / PAGE;
/// Number of marks that are read at once when pages are put away, most pages that one call puts
/// away, and number of failed pieces after which it stops.
const MARKS: usize = PAGE;
const PUT_AWAY_MAX: usize = 1024 * PIECE_PAGES;
const FAILURES_MAX: usize = 16;
/// One part in this many of the file system for shared memory is left free for other stores, and at
/// most `LEFT_FREE_MAX` bytes.
const LEFT_FREE: u64 = 8;
const LEFT_FREE_MAX: u64 = 1 << 30;
/// Most rounds in one call of `evict_unmapped`. Each one asks again which ranges are mapped.
const LOOKS_MAX: usize = 100;
/// Number of reads without a turn, each of which may find that pages have gone, before the reader
/// takes a turn at them.
const READS_MAX: usize = 3;

/// Marks of a page: it is not shown; it is shown; it is shown and programs may have stored to it.
const ABSENT: u8 = 0;
const SHOWN: u8 = 1;
const STORED_TO: u8 = 2;

/// This process's mapping of the file, made when it first shows a page or writes to a shown one.
#[derive(Debug, Default)]
pub(super) struct View {
    mapping: AtomicPtr<Mapping>,
    /// Page at which the next call that puts pages away begins.
    next: AtomicU64,
}

impl View {
    pub fn get(&self) -> Option<&Mapping> {
        let mapping = self.mapping.load(Ordering::Acquire);
        // SAFETY: null, or leaked by `get_or_make` and freed only with `self`.
        unsafe { mapping.as_ref() }
    }

    fn get_or_make(&self, make: impl FnOnce() -> Result<Mapping>) -> Result<&Mapping> {
        if self.get().is_none() {
            let made = Box::into_raw(Box::new(make()?));
            let (none, order) = (core::ptr::null_mut(), Ordering::AcqRel);
            if self.mapping.compare_exchange(none, made, order, Ordering::Acquire).is_err() {
                // SAFETY: made above, and nobody else knows it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
        Ok(self.get().expect("one was made"))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let mapping = *self.mapping.get_mut();
        if !mapping.is_null() {
            // SAFETY: leaked by `get_or_make`, and no reference outlives `self`.
            drop(unsafe { Box::from_raw(mapping) });
        }
    }
}

impl MediaFile {
    /// Returns the descriptor of the file in which pages are shown and the offset of the first
    /// page; `None` if this is no namespace on another machine, or has no area.
    pub fn shown_at(&self) -> Option<(i32, u64)> {
        let transit = self.transit.as_ref().filter(|_| self.remote.is_some())?;
        Some((transit.descriptor(), self.pages_at()))
    }

    /// Shows whole pages that a program will map, and store to if `may_be_stored_to`. For any other
    /// medium it prepares a mapping of the file itself. Errors: as `Media::flush`; as `load`;
    /// `NoSpace`; `FileTooLarge` past the process's limit.
    pub fn show(&self, offset: u64, length: usize, may_be_stored_to: bool) -> Result<()> {
        self.check(offset, length)?;
        let Some(remote) = self.remote.as_ref().filter(|_| self.transit.is_some()) else {
            return self.settle_for_mapping();
        };
        let view = self.view()?;
        self.settle_for_mapping()?;
        let mark = if may_be_stored_to { STORED_TO } else { SHOWN };
        for (at, _, bytes) in pieces(offset, length) {
            let _turn = self.turn(at, bytes)?;
            for (part, found) in self.marked(at, bytes)? {
                let pages = pages_of(at + part.start as u64, part.len());
                if found == ABSENT {
                    let shown = self.fetch(remote, view, &pages);
                    let shown = shown.and_then(|()| set_marks(view, &pages, mark));
                    // `evict_unmapped` finds only pages with a mark, so these are freed here.
                    if shown.is_err() {
                        let _ = self.let_memory_go(&pages);
                    }
                    shown?;
                } else if found < mark {
                    set_marks(view, &pages, mark)?;
                }
            }
        }
        Ok(())
    }

    fn fetch(&self, remote: &SharedRemote, view: &Mapping, pages: &Range<u64>) -> Result<()> {
        let (place, length) = (self.pages_at() + pages.start, (pages.end - pages.start) as usize);
        // With one more page for the marks.
        if !has_room(&sys::fstatfs(view.file().raw())?, (length + PAGE) as u64) {
            return Err(Error::NoSpace);
        }
        view.populate(place as usize, length, Populate::Write)?;
        // SAFETY: `populate` found the range in the mapping; nobody reads pages without a mark.
        let target = unsafe { view.address().as_ptr().add(place as usize) };
        // SAFETY: as above.
        Ok(unsafe { Pages::Remote(remote).read(target, length, pages.start) }?)
    }

    /// Writes to the namespace what programs may have stored in the shown pages of a range.
    pub(super) fn write_back_shown(&self, offset: u64, length: usize) -> Result<()> {
        let Some((remote, _)) = self.shown() else { return Ok(()) };
        self.check(offset, length)?;
        for (at, _, bytes) in pieces(offset, length) {
            let _turn = self.turn(at, bytes)?;
            for (part, mark) in self.marked(at, bytes)? {
                if mark == STORED_TO {
                    self.write_back_pages(remote, &pages_of(at + part.start as u64, part.len()))?;
                }
            }
        }
        Ok(())
    }

    /// Writes shown pages to the namespace. They go through a buffer, because what is sent must not
    /// change meanwhile.
    fn write_back_pages(&self, remote: &SharedRemote, pages: &Range<u64>) -> Result<()> {
        let (buffer, length) = (self.staging.take()?, (pages.end - pages.start) as usize);
        let address = in_buffer(&buffer, pages.start);
        // SAFETY: a piece has room in the buffer, which is used here only.
        unsafe {
            self.get_shown(address, length, pages.start)?;
            Pages::Remote(remote).write(address, length, pages.start)?;
        }
        Ok(())
    }

    /// Writes back the shown pages that lie in none of the ranges that are `mapped`, and frees
    /// their memory: a bounded number of them, while `goes_on` returns true. `mapped` is asked
    /// again after each new mapping. Errors: those of `mapped`; as `store`, of the first pages that
    /// stay because they could not be written back.
    pub fn evict_unmapped(
        &self,
        mapped: &dyn Fn() -> Result<Vec<Range<u64>>>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let Some((_, transit)) = self.shown() else { return Ok(()) };
        for _ in 0..LOOKS_MAX {
            let mappings = transit.mappings();
            let mapped = mapped()?;
            let nothing_is_mapped = mapped.is_empty();
            let is_last = self.put_away_all_but(&joined(mapped), mappings, goes_on)?;
            // A program that has just mapped something may not have marked it yet.
            if is_last && nothing_is_mapped {
                // From then on a sync does not flush on account of earlier mappings, so flush here.
                self.flush_by_kernel()?;
                transit.nothing_is_mapped(mappings);
            }
            if is_last || transit.mappings() == mappings || !goes_on() {
                break;
            }
        }
        Ok(())
    }

    /// Puts away the shown pages outside these ranges, which come from `joined`. Returns false if
    /// some remain, because there were too many, another mapping was made, or `goes_on` returned
    /// false. The next call begins where this one ends.
    fn put_away_all_but(
        &self,
        mapped: &[Range<u64>],
        mappings: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let Some((_, transit)) = self.shown() else { return Ok(false) };
        let is_mapped = |page: u64| {
            let at = page * PAGE as u64;
            let next = mapped.partition_point(|range| range.end <= at);
            mapped.get(next).is_some_and(|range| range.start <= at)
        };
        let end = self.bytes / PAGE as u64;
        let start = self.view.next.load(Ordering::Relaxed).min(end);
        let (mut left, mut failures, mut failed) = (PUT_AWAY_MAX, 0, Ok(()));
        let mut evict_unmapped = |first: u64, count: usize| {
            if left < count
                || failures == FAILURES_MAX
                || !goes_on()
                || transit.mappings() != mappings
            {
                return false;
            }
            match self.let_go(first, count, mappings) {
                Ok(()) => left -= count,
                Err(error) => {
                    failures += 1;
                    failed = failed.and(Err(error));
                }
            }
            true
        };
        for part in [start..end, 0..start] {
            if let Some(stopped) = self.each_shown(part, &is_mapped, &mut evict_unmapped)? {
                self.view.next.store(stopped, Ordering::Relaxed);
                return failed.map(|()| false);
            }
        }
        self.view.next.store(0, Ordering::Relaxed);
        failed.map(|()| transit.mappings() == mappings)
    }

    /// Calls `act` with the first page and the number of pages of each run of shown pages that are
    /// not kept, at most a piece long, until it returns false. Returns the first page of the run at
    /// which it did.
    fn each_shown(
        &self,
        pages: Range<u64>,
        is_kept: &dyn Fn(u64) -> bool,
        act: &mut dyn FnMut(u64, usize) -> bool,
    ) -> Result<Option<u64>> {
        let Some((_, transit)) = self.shown() else { return Ok(None) };
        let (mut marks, mut first) = ([ABSENT; MARKS], pages.start);
        while let Some(data) = sys::next_data(transit.descriptor(), MARKS_AT + first)? {
            first = first.max(data - MARKS_AT);
            let count = pages.end.saturating_sub(first).min(MARKS as u64) as usize;
            if count == 0 {
                break;
            }
            // SAFETY: the array has room for that many.
            unsafe { read_all(transit.file(), marks.as_mut_ptr(), count, MARKS_AT + first)? };
            let goes = |page: &usize| marks[*page] != ABSENT && !is_kept(first + *page as u64);
            let mut page = 0;
            while page < count {
                let run = (page..count).take(PIECE_PAGES).take_while(goes).count();
                if run > 0 && !act(first + page as u64, run) {
                    return Ok(Some(first + page as u64));
                }
                page += run.max(1);
            }
            first += count as u64;
        }
        Ok(None)
    }

    /// Writes pages back, at most those of a piece, and frees their memory. Does nothing if there
    /// were more mappings since `mappings`. After the first failure only pages that need no
    /// write-back are freed.
    fn let_go(&self, first: u64, count: usize, mappings: u64) -> Result<()> {
        let Some((remote, transit)) = self.shown() else { return Ok(()) };
        let view = self.view()?;
        let (at, bytes) = (first * PAGE as u64, count * PAGE);
        let _turn = self.turn(at, bytes)?;
        if transit.mappings() != mappings {
            return Ok(());
        }
        let mut brought = Ok(());
        for (part, mark) in self.marked(at, bytes)? {
            let pages = pages_of(at + part.start as u64, part.len());
            if mark == STORED_TO {
                brought = brought.and_then(|()| self.write_back_pages(remote, &pages));
                if brought.is_err() {
                    continue;
                }
            }
            set_marks(view, &pages, ABSENT)?;
            transit.note_gone();
            self.let_memory_go(&pages)?;
        }
        brought
    }

    /// Frees the memory of pages that have no mark. The caller has a turn at them.
    fn let_memory_go(&self, pages: &Range<u64>) -> SysResult<()> {
        let file = self.transit.as_ref().ok_or(Errno(libc::EIO))?.descriptor();
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        sys::fallocate(file, mode, self.pages_at() + pages.start, pages.end - pages.start)
    }

    /// As `MediaFile::put`, to a namespace on another machine and to its shown pages.
    pub(super) fn write_remote(
        &self,
        remote: &SharedRemote,
        address: *mut u8,
        at: u64,
        bytes: usize,
    ) -> SysResult<()> {
        if self.shown().is_none() {
            return self.put_pages(Pages::Remote(remote), address, at, bytes);
        }
        for (part, mark) in self.marked(at, bytes)? {
            // SAFETY: the part lies within the piece.
            let (address, at) = (unsafe { address.add(part.start) }, at + part.start as u64);
            match mark {
                ABSENT => self.put_pages(Pages::Remote(remote), address, at, part.len())?,
                _ => self.put_shown(remote, (address, part.len()), at, mark)?,
            }
        }
        Ok(())
    }

    fn put_shown(
        &self,
        remote: &SharedRemote,
        (address, bytes): (*mut u8, usize),
        at: u64,
        mark: u8,
    ) -> SysResult<()> {
        let view = self.view().map_err(|_| Errno(libc::ENOMEM))?;
        let place = (self.pages_at() + at) as usize;
        view.check(place, bytes).map_err(|_| Errno(libc::EIO))?;
        let pages = pages_of(at, bytes);
        let length = (pages.end - pages.start) as usize;
        // Until the namespace has them, these bytes may exist only here: the write may fail, or
        // this process may die.
        set_marks(view, &pages, STORED_TO).map_err(|_| Errno(libc::ENOSPC))?;
        // SAFETY: `check` found the range in the mapping, and its pages stay as long as our turn
        // lasts; the pages of the piece in memory are the caller's.
        unsafe {
            if !copy_out(view.address().as_ptr().add(place), address, bytes) {
                return Err(Errno(libc::EFAULT));
            }
            // Whole pages are read back: around the bytes, and perhaps over them by now, stand
            // stores of programs.
            let first = address.sub((at - pages.start) as usize);
            self.get_shown(first, length, pages.start)?;
            Pages::Remote(remote).write(first, length, pages.start)?;
        }
        // The memory of these marks exists already, so this needs no space.
        let _ = set_marks(view, &pages, mark);
        Ok(())
    }

    /// Whether any page is shown, or may be.
    pub fn shows(&self) -> bool {
        self.shown().is_some()
    }

    /// As `MediaFile::get`, from shown pages, and from the namespace where none is shown.
    pub(super) fn read_remote(
        &self,
        remote: &SharedRemote,
        address: *mut u8,
        at: u64,
        bytes: usize,
    ) -> SysResult<()> {
        let pages = pages_of(at, bytes);
        let first = address.wrapping_sub((at - pages.start) as usize);
        let length = (pages.end - pages.start) as usize;
        for tried in 0.. {
            let Some((_, transit)) = self.shown() else {
                // SAFETY: the pages of the piece are the caller's.
                return unsafe { Pages::Remote(remote).read(first, length, pages.start) };
            };
            let turn = match tried >= READS_MAX {
                true => self.turn(at, bytes).map_err(|_| Errno(libc::EIO))?,
                false => None,
            };
            let (gone, mut is_sure) = (transit.gone(), true);
            for (part, mark) in self.marked(pages.start, length)? {
                let (target, place) =
                    (first.wrapping_add(part.start), pages.start + part.start as u64);
                // SAFETY: as above.
                unsafe {
                    match mark {
                        ABSENT => Pages::Remote(remote).read(target, part.len(), place)?,
                        _ => self.get_shown(target, part.len(), place)?,
                    }
                }
                is_sure &= mark == ABSENT;
            }
            // During a turn none of its pages goes.
            if is_sure || turn.is_some() || transit.gone() == gone {
                break;
            }
        }
        Ok(())
    }

    /// # Safety
    /// `target` is writable for `length` bytes and nobody else uses them.
    unsafe fn get_shown(&self, target: *mut u8, length: usize, at: u64) -> SysResult<()> {
        let file = self.transit.as_ref().ok_or(Errno(libc::EIO))?.file();
        // Not from the mapping: an access there would recreate a page that goes at this moment.
        // SAFETY: promised by the caller.
        unsafe { read_all(file, target, length, self.pages_at() + at) }
    }

    /// Returns the parts of `bytes` at `at` whose pages have the same mark. The range fits into a
    /// buffer.
    fn marked(
        &self,
        at: u64,
        bytes: usize,
    ) -> SysResult<impl Iterator<Item = (Range<usize>, u8)> + use<>> {
        let file = self.transit.as_ref().ok_or(Errno(libc::EIO))?.file();
        let pages = pages_of(at, bytes);
        let (count, before) =
            ((pages.end - pages.start) as usize / PAGE, (at - pages.start) as usize);
        let mut marks = [ABSENT; PIECE_PAGES];
        assert!(count <= marks.len(), "a piece fits into a buffer");
        // SAFETY: the array has room for that many.
        unsafe { read_all(file, marks.as_mut_ptr(), count, MARKS_AT + pages.start / PAGE as u64)? };
        let mut page = 0;
        Ok(core::iter::from_fn(move || {
            let first = page;
            let mark = *marks[..count].get(first)?;
            page += marks[first..count].iter().take_while(|&&next| next == mark).count();
            let within = |page: usize| (page * PAGE).clamp(before, before + bytes) - before;
            Some((within(first)..within(page), mark))
        }))
    }

    /// Returns the namespace and the area, if pages may be shown.
    fn shown(&self) -> Option<(&SharedRemote, &Transit)> {
        let transit = self.transit.as_ref().filter(|transit| transit.is_mapped())?;
        Some((self.remote.as_ref()?, transit))
    }

    fn pages_at(&self) -> u64 {
        MARKS_AT + (self.bytes / PAGE as u64).next_multiple_of(PAGE as u64)
    }

    fn view(&self) -> Result<&Mapping> {
        self.view.get_or_make(|| {
            let file = self.transit.as_ref().ok_or(Error::Invalid)?.file();
            let end = self.pages_at() + self.bytes;
            if (sys::fstat(file.raw())?.st_size as u64) < end {
                if end > sys::soft_limit(libc::RLIMIT_FSIZE)? {
                    return Err(Error::FileTooLarge);
                }
                sys::ftruncate(file.raw(), end)?;
            }
            Ok(Mapping::new(file.duplicate()?, end as usize)?)
        })
    }
}

/// Sorts the ranges, merges those that meet, and drops empty ones.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let meet = next.start <= range.end;
        if meet {
            range.end = range.end.max(next.end);
        }
        meet
    });
    ranges
}

/// Whether the file system for shared memory has room for `bytes` more without using the part that
/// is left free.
fn has_room(memory: &libc::statfs, bytes: u64) -> bool {
    let block = (memory.f_bsize as u64).max(1);
    let left_free = (memory.f_blocks / LEFT_FREE).min(LEFT_FREE_MAX / block);
    memory.f_bavail >= left_free + bytes.div_ceil(block)
}

/// Sets the marks of pages. The caller has a turn at them.
fn set_marks(view: &Mapping, pages: &Range<u64>, mark: u8) -> Result<()> {
    let count = (pages.end - pages.start) as usize / PAGE;
    let first = MARKS_AT as usize + pages.start as usize / PAGE;
    view.populate(first, count, Populate::Write)?;
    for index in first..first + count {
        // SAFETY: `populate` found the range in the mapping and made it present; all other access
        // is the kernel's.
        let place = unsafe { AtomicU8::from_ptr(view.address().as_ptr().add(index)) };
        place.store(mark, Ordering::Release);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_room_where(available: u64, size: u64, bytes: u64) -> bool {
        // SAFETY: plain integers.
        let mut memory = unsafe { core::mem::zeroed::<libc::statfs>() };
        (memory.f_bsize, memory.f_bavail, memory.f_blocks) = (4096, available / 4096, size / 4096);
        has_room(&memory, bytes)
    }

    #[test]
    fn ranges_in_any_order_are_joined() {
        let ranges = vec![7..9, 0..0, 3..8, 1..2, 5..5, 3..4, 2..3, 20..30, 9..9];
        assert_eq!(joined(ranges), [1..9, 20..30]);
    }

    /// Mechanism: an eighth was left free, however large the memory was.
    ///
    /// Consequence: on a machine with hundreds of gigabytes nothing could be mapped although many
    /// gigabytes were free.
    ///
    /// Fix: at most one gigabyte is left free.
    #[test]
    fn eighth_of_the_memory_stays_free_and_a_gigabyte_of_a_large_one() {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        assert!(has_room_where(5 * MIB, 32 * MIB, MIB));
        assert!(!has_room_where(5 * MIB, 32 * MIB, MIB + 1));
        assert!(has_room_where(27 * GIB, 252 * GIB, 26 * GIB));
        assert!(!has_room_where(27 * GIB, 252 * GIB, 26 * GIB + 1));
    }
}
