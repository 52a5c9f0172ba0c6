//! Descriptor table: which descriptors of this process are ours, and how many refer to each
//! open-file description.
//!
//! One word per descriptor number, in memory that the kernel provides on first touch. A forked
//! child inherits a copy, as it does the descriptors. Lock-free.
//!
//! Invariants:
//! - A number is in the table only while the kernel holds it open on the handle's placeholder. It
//!   is taken out before the kernel frees it, because another thread may get it at once.
//! - The process's slot references every handle that is counted here. The thread that takes out the
//!   last number of a handle releases that reference while it has the [`Left`]; until then nobody
//!   counts the handle again.
//!
//! Does not talk to the store.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use cairn_core::HandleId;
use cairn_platform::{mlock_exempt, sys};

use crate::error::{Errno, Result};

/// Descriptor numbers that can be ours; the kernel's default limit (`fs.nr_open`).
pub const DESCRIPTORS_MAX: usize = 1 << 20;
/// Handle numbers that can be counted.
const HANDLES_MAX: usize = 1 << 16;

/// Entry of a number that is being closed: no longer ours, not yet free.
const CLOSING: u32 = u32::MAX;
/// Flag in a handle's count: this process overwrote parts of blocks, so checksums must be
/// recomputed at close.
const UNSEALED: u32 = 1 << 31;

/// Flag in a handle's count: the handle was open when this process was forked, so its parent also
/// had it open.
const INHERITED: u32 = 1 << 30;
/// Flag in a handle's count: its reference was given up for an exec.
const GIVEN_UP: u32 = 1 << 29;
/// Unit of the second counter in a handle's count: threads that are about to release a handle after
/// its last number. Not only this handle's, but also earlier ones with the same handle number:
/// after the release the number may belong to another handle before the thread has finished here.
const RELEASING: u32 = 1 << 21;
const ALL_RELEASING: u32 = GIVEN_UP - RELEASING;
/// Part of a handle's count that counts its descriptor numbers.
const NUMBERS: u32 = RELEASING - 1;

const _: () = assert!(NUMBERS as usize >= DESCRIPTORS_MAX);

/// `DESCRIPTORS_MAX` entries (handle, 0 if not ours), then `HANDLES_MAX` counts.
static TABLE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// One more than the highest number ever entered, for descriptors and for handles.
static END: AtomicU32 = AtomicU32::new(0);
static HANDLES_END: AtomicU32 = AtomicU32::new(0);

/// Whether the table exists; it is created with the mount.
#[inline]
pub fn in_use() -> bool {
    !TABLE.load(Ordering::Acquire).is_null()
}

/// Creates the table if there is none. Errors: `ENOMEM`.
pub fn prepare() -> Result<()> {
    if in_use() {
        return Ok(());
    }
    let bytes = (DESCRIPTORS_MAX + HANDLES_MAX) * size_of::<AtomicU32>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let new = mlock_exempt::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    let null = core::ptr::null_mut();
    if TABLE.compare_exchange(null, new.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first; this mapping was never published.
        unsafe { mlock_exempt::unmap(new, bytes)? };
    }
    Ok(())
}

#[inline]
fn word(index: usize) -> Option<&'static AtomicU32> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return None;
    }
    // SAFETY: the mapping holds DESCRIPTORS_MAX + HANDLES_MAX words and is never unmapped. Both
    // callers check their index against their part.
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

/// Returns the handle behind a descriptor of ours.
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

/// Whether another thread is closing this descriptor of ours at this moment.
pub fn is_closing(descriptor: i32) -> bool {
    entry(descriptor).is_some_and(|entry| entry.load(Ordering::Relaxed) == CLOSING)
}

/// Enters a number that the kernel has just assigned for `handle`, which the slot references.
/// Returns what the table held before, if the number was closed without a call that we saw. Errors:
/// `EMFILE` if the number is too large for the table.
pub fn enter(descriptor: i32, handle: HandleId) -> Result<Option<Left>> {
    prepare()?;
    // Check the number before the handle is counted.
    entry(descriptor).ok_or(Errno(libc::EMFILE))?;
    countable(handle)?.fetch_add(1, Ordering::Relaxed);
    put(descriptor, handle)
}

/// Enters a number whose handle was counted before by [`share`] or [`refer`]. Result and errors as
/// [`enter`]; after an error the number is not counted any more.
pub fn put(descriptor: i32, handle: HandleId) -> Result<Option<Left>> {
    let Some(entry) = entry(descriptor) else {
        drop(drop_count(handle));
        return Err(Errno(libc::EMFILE));
    };
    END.fetch_max(descriptor as u32 + 1, Ordering::Relaxed);
    match entry.swap(handle.0, Ordering::AcqRel) {
        0 | CLOSING => Ok(None),
        before => Ok(Some(drop_count(HandleId(before)))),
    }
}

/// Counts one more number of a handle that has some. Returns false if it has none any more. Call
/// [`put`] or [`unshare`] next.
pub fn share(handle: HandleId) -> bool {
    let more = |before: u32| (before & NUMBERS > 0).then(|| before + 1);
    count(handle)
        .is_some_and(|count| count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok())
}

/// Undoes the count of a number that was not entered.
pub fn unshare(handle: HandleId) -> Left {
    drop_count(handle)
}

/// Counts one more number of a handle and makes the slot reference it by `retain`. Waits first for
/// a thread that is releasing it. Call [`put`] next. Errors: `EMFILE`; those of `retain`.
pub fn refer(handle: HandleId, retain: impl FnOnce() -> Result<()>) -> Result<()> {
    prepare()?;
    let count = countable(handle)?;
    while !is_counted(count) {
        sys::sched_yield();
    }
    // Nobody releases this reference while the handle is counted.
    retain().inspect_err(|_| drop(drop_count(handle)))
}

/// Counts one more number. Returns false if a thread is releasing the handle.
fn is_counted(count: &AtomicU32) -> bool {
    let is_free = |before: u32| before & NUMBERS > 0 || before & ALL_RELEASING == 0;
    let more = |before: u32| is_free(before).then(|| before + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

/// Returns the count of a handle that is about to get a number.
fn countable(handle: HandleId) -> Result<&'static AtomicU32> {
    let count = count(handle).ok_or(Errno(libc::EMFILE))?;
    HANDLES_END.fetch_max(handle.number() + 1, Ordering::Relaxed);
    Ok(count)
}

/// Result of taking a number out of the table. While one with `last` exists, its handle gets no
/// number except by [`enter`]. Release the handle before this is dropped.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// Handle that the number referred to.
    pub handle: HandleId,
    /// Whether it was this process's last number of the handle.
    pub last: bool,
    /// Whether checksums of its file must be recomputed. Set only together with `last`.
    pub unsealed: bool,
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(count) = count(self.handle).filter(|_| self.last) {
            count.fetch_sub(RELEASING, Ordering::Release);
        }
    }
}

/// Takes a number out before it is closed; call [`closed`] afterwards.
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

/// Frees the entry after the kernel has closed the number.
pub fn closed(descriptor: i32) {
    if let Some(entry) = entry(descriptor) {
        // Fails if another thread already got the number for a file of ours.
        let _ = entry.compare_exchange(CLOSING, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Clears the entry of a number that was given to something that is not ours.
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
    let less = |before: u32| match before & NUMBERS {
        1 => (before & ALL_RELEASING) + RELEASING,
        _ => before.saturating_sub(1),
    };
    // In one step, because another thread may receive a descriptor of the same handle meanwhile.
    let before =
        count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |before| Some(less(before)));
    let before = before.unwrap_or_default();
    let last = before & NUMBERS == 1;
    Left { handle, last, unsealed: last && before & UNSEALED != 0 }
}

/// Records that blocks behind `handle` must be sealed when this process closes it.
pub fn mark_unsealed(handle: HandleId) {
    if let Some(count) = count(handle) {
        if count.load(Ordering::Relaxed) & UNSEALED == 0 {
            count.fetch_or(UNSEALED, Ordering::Relaxed);
        }
    }
}

/// Whether [`mark_unsealed`] was called since the handle was entered or last sealed; clears the
/// mark.
pub fn take_unsealed(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| {
        count.load(Ordering::Relaxed) & UNSEALED != 0
            && count.fetch_and(!UNSEALED, Ordering::Relaxed) & UNSEALED != 0
    })
}

/// Whether any descriptor of this process refers to `handle`.
pub fn holds(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.load(Ordering::Relaxed) & NUMBERS != 0)
}

/// Rebuilds the counts in a child just forked, in which every open handle was inherited. What other
/// threads of the parent had begun is not completed here, and they went on while the memory was
/// copied, so all numbers are counted again.
pub(crate) fn forked() {
    let handles = HANDLES_END.load(Ordering::Relaxed).min(HANDLES_MAX as u32);
    for number in 1..handles {
        if let Some(count) = count(HandleId(number)) {
            count.fetch_and(UNSEALED, Ordering::Relaxed);
        }
    }
    let descriptors = END.load(Ordering::Relaxed).min(DESCRIPTORS_MAX as u32) as i32;
    for descriptor in 0..descriptors {
        closed(descriptor);
        if let Some(count) = lookup(descriptor).and_then(count) {
            count.fetch_add(1, Ordering::Relaxed);
            count.fetch_or(INHERITED, Ordering::Relaxed);
        }
    }
}

/// Whether the handle was open when this process was forked.
pub(crate) fn is_inherited(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.load(Ordering::Relaxed) & INHERITED != 0)
}

/// Marks the reference to the handle as given up. Returns false if it already was.
pub(crate) fn give_up(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.fetch_or(GIVEN_UP, Ordering::Relaxed) & GIVEN_UP == 0)
}

/// Clears the mark of [`give_up`]. Returns false if there was none.
pub(crate) fn take_back(handle: HandleId) -> bool {
    count(handle).is_some_and(|count| count.fetch_and(!GIVEN_UP, Ordering::Relaxed) & GIVEN_UP != 0)
}

/// Returns all descriptors of ours from `first` to `last`.
pub fn range(first: i32, last: i32) -> impl Iterator<Item = (i32, HandleId)> {
    let end = END.load(Ordering::Relaxed).min(DESCRIPTORS_MAX as u32) as i32;
    (first.max(0)..last.saturating_add(1).min(end))
        .filter_map(|descriptor| Some((descriptor, lookup(descriptor)?)))
}

/// Returns all descriptors of ours.
pub fn all() -> impl Iterator<Item = (i32, HandleId)> {
    range(0, i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // There is one table per process, so each test uses numbers of its own.
    #[test]
    fn numbers_and_counts_follow_open_dup_and_close() {
        let handle = HandleId(7);
        let told = |left: Option<Left>| left.map(|left| (left.handle, left.last, left.unsealed));
        assert_eq!(lookup(40), None);
        enter(40, handle).unwrap();
        enter(41, handle).unwrap();
        assert_eq!(lookup(41), Some(handle));
        mark_unsealed(handle);
        assert_eq!(told(leave(40)), Some((handle, false, false)));
        assert!(is_closing(40) && !is_ours(40));
        closed(40);
        assert!(!is_closing(40));
        assert_eq!(range(40, 49).collect::<Vec<_>>(), [(41, handle)]);
        assert!(holds(handle));
        assert!(share(handle));
        assert_eq!(told(forget(41)), Some((handle, false, false)));
        assert_eq!(told(Some(unshare(handle))), Some((handle, true, true)));
        assert!(!holds(handle) && !is_ours(41) && !share(handle));
        assert_eq!(leave(41), None);
        assert_eq!(leave(-1), None);
        assert_eq!(enter(DESCRIPTORS_MAX as i32, handle), Err(Errno(libc::EMFILE)));
    }

    /// Mechanism: a received number was counted and referenced while another thread that had closed
    /// the last number of the same handle was about to release it.
    ///
    /// Consequence: the received number was closed, and so `close` on it failed with EBADF.
    ///
    /// Fix: the number is not counted before the release is done.
    #[test]
    fn handle_is_referred_to_anew_only_when_its_release_is_done() {
        let handle = HandleId(9);
        enter(50, handle).unwrap();
        let left = leave(50).unwrap();
        assert!(!is_counted(count(handle).unwrap()), "it is not released yet");
        drop(left);
        refer(handle, || Ok(())).unwrap();
        assert_eq!(put(51, handle), Ok(None));
        assert!(holds(handle));
        assert_eq!(refer(HandleId(10), || Err(Errno(libc::EBADF))), Err(Errno(libc::EBADF)));
        assert!(!holds(HandleId(10)));
    }
}
