//! One slot of an area: the bytes of one range of the file, and what is being done to them.
//!
//! Must stay true: only who owns a slot changes its range or its bytes. What stands in shared
//! memory is checked before it is used.
//! Does not know what the bytes are for.

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use cairn_core::ProcessIdentity;

use super::{SLOT_WORDS, Transit, W_SLOTS};
use crate::mapping::PAGE_BYTES;
use crate::process;
use crate::staging::STAGING_BYTES;

// Words of a slot.
const S_STATE: usize = 0;
pub(super) const S_OFFSET: usize = 1;
pub(super) const S_LENGTH: usize = 2;
const S_TICKET: usize = 3;

// The lowest bits of a slot's state. Above them, where somebody owns it, who.
pub(super) const FREE: u64 = 0;
/// Owned: its bytes are nobody's yet.
pub(super) const FILLING: u64 = 1;
pub(super) const STAGED: u64 = 2;
/// Owned.
pub(super) const WRITING: u64 = 3;
/// Owned: staged, and more is put behind.
pub(super) const GROWING: u64 = 4;
pub(super) const WANTED: u64 = 5;
/// Owned.
pub(super) const READING: u64 = 6;
pub(super) const READY: u64 = 7;
/// Owned: its bytes are being handed out.
pub(super) const TAKEN: u64 = 8;
/// Owned, reading or taken: what was read is no longer what the file has.
pub(super) const SPOILED: u64 = 9;
pub(super) const KIND: u64 = 15;
/// Of a slot that could not be written: it stays until it can, so that nobody takes what the file
/// has for its bytes.
pub(super) const LOST: u64 = WRITING;

/// Bits of a thread id and of its start time.
const PID_BITS: u32 = 22;
const START_BITS: u32 = 38;

/// Place for the bytes of one range.
pub(super) struct Slot<'a> {
    pub(super) area: &'a Transit,
    pub(super) index: usize,
}

impl Slot<'_> {
    pub(super) fn word(&self, word: usize) -> &AtomicU64 {
        self.area.word(W_SLOTS + self.index * SLOT_WORDS + word)
    }

    pub(super) fn state(&self) -> u64 {
        self.word(S_STATE).load(Ordering::SeqCst)
    }

    pub(super) fn kind(&self) -> u64 {
        self.state() & KIND
    }

    /// Makes `from` into `to`; false, and nothing done, if it was something else.
    pub(super) fn change(&self, from: u64, to: u64) -> bool {
        let changed =
            self.word(S_STATE).compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        changed.is_ok()
    }

    /// For who owns the slot.
    pub(super) fn set(&self, state: u64) {
        self.word(S_STATE).store(state, Ordering::SeqCst);
    }

    /// Gives the slot, which is the caller's, a range and its turn.
    pub(super) fn describe(&self, offset: u64, length: usize) {
        self.word(S_OFFSET).store(offset, Ordering::Relaxed);
        self.word(S_LENGTH).store(length as u64, Ordering::Relaxed);
        self.word(S_TICKET).store(self.area.next_ticket(), Ordering::Relaxed);
    }

    /// Its turn: what came first has the lower number.
    pub(super) fn ticket(&self) -> u64 {
        self.word(S_TICKET).load(Ordering::Relaxed)
    }

    /// The bytes of the file it is for, as far as they can be true.
    pub(super) fn range(&self) -> Range<u64> {
        let offset = self.word(S_OFFSET).load(Ordering::Relaxed);
        offset..offset.saturating_add(self.word(S_LENGTH).load(Ordering::Relaxed))
    }

    /// The range, if a slot has room for it.
    pub(super) fn sound_range(&self) -> Option<(u64, usize)> {
        let range = self.range();
        let length = range.end - range.start;
        (length <= room_at(range.start) as u64).then_some((range.start, length as usize))
    }

    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        let own = self.range();
        own.start < range.end && range.start < own.end
    }

    /// Where the slot's memory starts in the area.
    pub(super) fn start(&self) -> usize {
        PAGE_BYTES + self.index * STAGING_BYTES
    }

    /// Where the byte of an offset of the file stands that begins its range: as far into a page as
    /// there.
    pub(super) fn address(&self, offset: u64) -> *mut u8 {
        let at = self.start() + offset as usize % PAGE_BYTES;
        // SAFETY: inside the mapping, which is as long as all slots.
        unsafe { self.area.mapping.address().as_ptr().add(at) }
    }

    /// Gives the slot up for an owner that is gone: what a program relies on stays staged.
    pub(super) fn bereave(&self, state: u64) -> bool {
        let left = match state & KIND {
            WRITING | GROWING => STAGED,
            FILLING | READING | TAKEN | SPOILED => FREE,
            _ => return false,
        };
        self.change(state, left)
    }
}

/// How many bytes that begin at an offset of the file a slot can hold.
pub(super) fn room_at(offset: u64) -> usize {
    STAGING_BYTES - offset as usize % PAGE_BYTES
}

/// What the calling thread owns slots with in a pid namespace; none if others could not tell
/// whether it lives.
pub(super) fn claim(pid_namespace: u64) -> Option<u64> {
    thread_local! {
        /// `process::generation`, and the identity of this thread that is right for it.
        static KNOWN: Cell<Option<(u64, ProcessIdentity)>> = const { Cell::new(None) };
    }
    let generation = process::generation();
    let identity = match KNOWN.get() {
        Some((known, identity)) if known == generation => identity,
        _ => {
            // Failure is not remembered: a process may lack descriptors for a moment.
            let identity = process::thread_identity().ok()?;
            KNOWN.set(Some((generation, identity)));
            identity
        }
    };
    let fits = identity.pid >> PID_BITS == 0 && identity.start_time >> START_BITS == 0;
    let owner = identity.start_time << PID_BITS | u64::from(identity.pid);
    (fits && identity.pid_namespace == pid_namespace).then_some(owner << KIND.count_ones())
}

/// Whether the thread that owns a slot in such a state is gone. A slot that nobody owns has no such
/// thread.
pub(super) fn is_bereft(state: u64, pid_namespace: u64) -> bool {
    let owner = state >> KIND.count_ones();
    let identity = ProcessIdentity {
        pid: (owner & ((1 << PID_BITS) - 1)) as u32,
        pid_namespace,
        start_time: owner >> PID_BITS,
    };
    owner != 0 && !process::is_alive(identity)
}
