//! Which descriptors of this process are ours, and how many refer to each open-file description.
//!
//! One word per descriptor number, in memory that the kernel provides on first touch; a forked child inherits a
//! copy, as it does the descriptors. Lock-free.
//! Invariant: a number is entered only while the kernel holds it open on the handle's placeholder; it is taken out
//! before the kernel frees it, because another thread may get it at once.
//! Does not talk to the store: who takes out the last number of a handle releases it there.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use cairn_core::HandleId;
use cairn_device::sys;

use crate::error::{Errno, Result};

/// Descriptor numbers that can be ours; the kernel's default limit (`fs.nr_open`).
pub const DESCRIPTORS_MAX: usize = 1 << 20;
/// Handle numbers that can be counted.
const HANDLES_MAX: usize = 1 << 16;

/// Entry of a number that is being closed: no longer ours, not yet free.
const CLOSING: u32 = u32::MAX;
/// Flag in a handle's count: this process overwrote parts of blocks, so checksums are to be recomputed at close.
const UNSEALED: u32 = 1 << 31;

/// Flag in a handle's count: it was open when this process was forked, so its parent had it open, too.
const INHERITED: u32 = 1 << 30;
/// Flag in a handle's count: its reference was given up for an exec.
const GIVEN_UP: u32 = 1 << 29;
const FLAGS: u32 = UNSEALED | INHERITED | GIVEN_UP;

/// `DESCRIPTORS_MAX` entries (handle, 0 if not ours), then `HANDLES_MAX` counts.
static TABLE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// One more than the highest number ever entered.
static END: AtomicU32 = AtomicU32::new(0);

/// Whether any descriptor was ever entered.
#[inline]
pub fn in_use() -> bool {
    !TABLE.load(Ordering::Acquire).is_null()
}

/// Makes the table ready. Errors: `ENOMEM`.
pub fn prepare() -> Result<()> {
    if in_use() {
        return Ok(());
    }
    let bytes = (DESCRIPTORS_MAX + HANDLES_MAX) * size_of::<AtomicU32>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let new = sys::mmap(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    let null = core::ptr::null_mut();
    if TABLE.compare_exchange(null, new.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first; this mapping was never published.
        unsafe { sys::munmap(new, bytes)? };
    }
    Ok(())
}

#[inline]
fn word(index: usize) -> Option<&'static AtomicU32> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return None;
    }
    // SAFETY: the mapping holds DESCRIPTORS_MAX + HANDLES_MAX words and is never unmapped; both callers check
    // their index against their half.
    Some(unsafe { &*table.add(index) })
}

#[inline]
fn entry(descriptor: i32) -> Option<&'static AtomicU32> {
    match (descriptor as u32 as usize) < DESCRIPTORS_MAX {
        true => word(descriptor as usize),
        false => None,
    }
}

fn count(handle: HandleId) -> Option<&'static AtomicU32> {
    match (handle.number() as usize) < HANDLES_MAX {
        true => word(DESCRIPTORS_MAX + handle.number() as usize),
        false => None,
    }
}

/// The handle behind a descriptor of ours.
#[inline]
pub fn lookup(descriptor: i32) -> Option<HandleId> {
    match entry(descriptor)?.load(Ordering::Relaxed) {
        0 | CLOSING => None,
        handle => Some(HandleId(handle)),
    }
}

/// Whether the descriptor is ours.
#[inline]
pub fn is_ours(descriptor: i32) -> bool {
    lookup(descriptor).is_some()
}

/// Whether another thread is closing this descriptor of ours right now.
pub fn is_closing(descriptor: i32) -> bool {
    entry(descriptor).is_some_and(|entry| entry.load(Ordering::Relaxed) == CLOSING)
}

/// Enters a number that the kernel just gave us for `handle`. Returns what the table held before, if the number
/// was closed behind our back. Errors: `EMFILE` if it cannot be represented.
pub fn enter(descriptor: i32, handle: HandleId) -> Result<Option<Left>> {
    prepare()?;
    let (Some(entry), Some(count)) = (entry(descriptor), count(handle)) else {
        return Err(Errno(libc::EMFILE));
    };
    END.fetch_max(descriptor as u32 + 1, Ordering::Relaxed);
    count.fetch_add(1, Ordering::Relaxed);
    match entry.swap(handle.0, Ordering::AcqRel) {
        0 | CLOSING => Ok(None),
        before => Ok(Some(drop_count(HandleId(before)))),
    }
}

/// What taking a number out of the table left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The handle it referred to.
    pub handle: HandleId,
    /// It was the last number of this process that did.
    pub last: bool,
    /// Checksums of its file are to be recomputed. Only told with `last`.
    pub unsealed: bool,
}

/// Takes a number out before it is closed; finish with [`closed`].
pub fn leave(descriptor: i32) -> Option<Left> {
    let entry = entry(descriptor)?;
    loop {
        match entry.load(Ordering::Relaxed) {
            0 | CLOSING => return None,
            handle => {
                let taken =
                    entry.compare_exchange(handle, CLOSING, Ordering::AcqRel, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some(drop_count(HandleId(handle)));
                }
            }
        }
    }
}

/// The kernel has closed the number.
pub fn closed(descriptor: i32) {
    if let Some(entry) = entry(descriptor) {
        // Fails if another thread already got the number for a file of ours.
        let _ = entry.compare_exchange(CLOSING, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The number was given to something that is not ours: whatever the table says about it is out of date.
#[inline]
pub fn forget(descriptor: i32) -> Option<Left> {
    let entry = entry(descriptor)?;
    if entry.load(Ordering::Relaxed) == 0 {
        return None;
    }
    match entry.swap(0, Ordering::AcqRel) {
        0 | CLOSING => None,
        handle => Some(drop_count(HandleId(handle))),
    }
}

fn drop_count(handle: HandleId) -> Left {
    let Some(count) = count(handle) else { return Left { handle, last: false, unsealed: false } };
    // In one step, because another thread may receive a descriptor of the same handle meanwhile.
    let less = |before: u32| if before & !FLAGS == 1 { 0 } else { before.wrapping_sub(1) };
    let before =
        count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |before| Some(less(before)));
    let before = before.unwrap_or_default();
    let last = before & !FLAGS == 1;
    Left { handle, last, unsealed: last && before & UNSEALED != 0 }
}

/// Remembers that blocks behind `handle` must be sealed when this process closes it.
pub fn mark_unsealed(handle: HandleId) {
    if let Some(count) = count(handle) {
        if count.load(Ordering::Relaxed) & UNSEALED == 0 {
            count.fetch_or(UNSEALED, Ordering::Relaxed);
        }
    }
}

/// Whether [`mark_unsealed`] was called since the handle was entered or last sealed; clears the mark.
pub fn take_unsealed(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| {
        count.load(Ordering::Relaxed) & UNSEALED != 0
            && count.fetch_and(!UNSEALED, Ordering::Relaxed) & UNSEALED != 0
    })
}

/// Whether any descriptor of this process refers to `handle`.
pub fn holds(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.load(Ordering::Relaxed) & !FLAGS != 0)
}

/// In a child just forked: all that is open was inherited.
pub(crate) fn mark_inherited() {
    for (_, handle) in all() {
        if let Some(count) = count(handle) {
            count.fetch_or(INHERITED, Ordering::Relaxed);
        }
    }
}

/// Whether the handle was open when this process was forked.
pub(crate) fn is_inherited(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.load(Ordering::Relaxed) & INHERITED != 0)
}

/// Marks that the reference to the handle was given up; false if it was already.
pub(crate) fn give_up(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.fetch_or(GIVEN_UP, Ordering::Relaxed) & GIVEN_UP == 0)
}

/// Takes the mark of [`give_up`] back; false if there was none.
pub(crate) fn take_back(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.fetch_and(!GIVEN_UP, Ordering::Relaxed) & GIVEN_UP != 0)
}

/// All descriptors of ours from `first` to `last`.
pub fn range(first: i32, last: i32) -> impl Iterator<Item = (i32, HandleId)> {
    let end = END.load(Ordering::Relaxed).min(DESCRIPTORS_MAX as u32) as i32;
    (first.max(0)..last.saturating_add(1).min(end))
        .filter_map(|descriptor| Some((descriptor, lookup(descriptor)?)))
}

/// All descriptors of ours.
pub fn all() -> impl Iterator<Item = (i32, HandleId)> {
    range(0, i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: the table is one per process.
    #[test]
    fn numbers_and_counts_follow_open_dup_and_close() {
        let handle = HandleId(7);
        assert_eq!(lookup(40), None);
        enter(40, handle).unwrap();
        enter(41, handle).unwrap();
        assert_eq!(lookup(41), Some(handle));
        mark_unsealed(handle);
        assert_eq!(leave(40), Some(Left { handle, last: false, unsealed: false }));
        assert!(is_closing(40) && !is_ours(40));
        closed(40);
        assert!(!is_closing(40));
        assert_eq!(all().collect::<Vec<_>>(), [(41, handle)]);
        assert!(holds(handle));
        assert_eq!(forget(41), Some(Left { handle, last: true, unsealed: true }));
        assert!(!holds(handle) && !is_ours(41));
        assert_eq!(leave(41), None);
        assert_eq!(leave(-1), None);
        assert_eq!(enter(DESCRIPTORS_MAX as i32, handle), Err(Errno(libc::EMFILE)));
    }
}
