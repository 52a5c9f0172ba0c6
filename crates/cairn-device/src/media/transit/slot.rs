//! One slot of an area: the bytes of one range of the file, and the state of their transfer.
//!
//! Must stay true: only the owner of a slot changes its range or its bytes. Everything in shared
//! memory is checked before it is used.
//!
//! Does not know what the bytes are for.

use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use cairn_core::ProcessIdentity;
use cairn_platform::mapping::PAGE_BYTES;
use cairn_platform::process;

use super::{SLOT_WORDS, Transit, W_SLOTS};
use crate::media::staging::STAGING_BYTES;

// Words of a slot.
const S_STATE: usize = 0;
pub(super) const S_OFFSET: usize = 1;
pub(super) const S_LENGTH: usize = 2;
const S_TICKET: usize = 3;

// Kinds of a slot's state, in its lowest bits. The bits above hold the owner, if there is one.
pub(super) const FREE: u64 = 0;
/// Owned. Its bytes do not count yet.
pub(super) const FILLING: u64 = 1;
pub(super) const STAGED: u64 = 2;
/// Owned.
pub(super) const WRITING: u64 = 3;
/// Owned. Staged, while more bytes are added to it.
pub(super) const GROWING: u64 = 4;
pub(super) const WANTED: u64 = 5;
/// Owned.
pub(super) const READING: u64 = 6;
pub(super) const READY: u64 = 7;
/// Owned. Its bytes are being handed out.
pub(super) const TAKEN: u64 = 8;
/// Owned, being read or handed out. The file has changed, so its bytes are outdated.
pub(super) const SPOILED: u64 = 9;
pub(super) const KIND: u64 = 15;
/// Kind of a slot that could not be written. It stays until it can be written, so that nobody takes
/// the old bytes of the file for its bytes.
pub(super) const LOST: u64 = WRITING;

/// Bits of a thread id and of its start time.
const PID_BITS: u32 = 22;
const START_BITS: u32 = 38;

/// A slot for the bytes of one range.
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

    /// Changes the state from `from` to `to`. Returns false, and changes nothing, if it differs
    /// from `from`.
    pub(super) fn change(&self, from: u64, to: u64) -> bool {
        let changed =
            self.word(S_STATE).compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        changed.is_ok()
    }

    /// Sets the state. The caller owns the slot.
    pub(super) fn set(&self, state: u64) {
        self.word(S_STATE).store(state, Ordering::SeqCst);
    }

    /// Gives the caller's slot a range and a ticket.
    pub(super) fn describe(&self, offset: u64, length: usize) {
        self.word(S_OFFSET).store(offset, Ordering::Relaxed);
        self.word(S_LENGTH).store(length as u64, Ordering::Relaxed);
        self.word(S_TICKET).store(self.area.next_ticket(), Ordering::Relaxed);
    }

    /// Returns its ticket: an earlier request has a lower number.
    pub(super) fn ticket(&self) -> u64 {
        self.word(S_TICKET).load(Ordering::Relaxed)
    }

    /// Returns the range of the file that it is for, unchecked.
    pub(super) fn range(&self) -> Range<u64> {
        let offset = self.word(S_OFFSET).load(Ordering::Relaxed);
        offset..offset.saturating_add(self.word(S_LENGTH).load(Ordering::Relaxed))
    }

    /// Returns the range as offset and length, if a slot has room for it.
    pub(super) fn sound_range(&self) -> Option<(u64, usize)> {
        let range = self.range();
        let length = range.end - range.start;
        (length <= room_at(range.start) as u64).then_some((range.start, length as usize))
    }

    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        let own = self.range();
        own.start < range.end && range.start < own.end
    }

    /// Returns the offset of the slot's memory in the area.
    pub(super) fn start(&self) -> usize {
        PAGE_BYTES + self.index * STAGING_BYTES
    }

    /// Returns the address for the byte at an offset of the file that begins its range. The address
    /// has the same offset in its page as the byte has in the file.
    pub(super) fn address(&self, offset: u64) -> *mut u8 {
        let at = self.start() + offset as usize % PAGE_BYTES;
        // SAFETY: inside the mapping, which is as long as all slots.
        unsafe { self.area.mapping.address().as_ptr().add(at) }
    }

    /// Takes the slot from an owner that is gone. Bytes that a program relies on stay staged.
    pub(super) fn reclaim_slot(&self, state: u64) -> bool {
        let left = match state & KIND {
            WRITING | GROWING => STAGED,
            FILLING | READING | TAKEN | SPOILED => FREE,
            _ => return false,
        };
        self.change(state, left)
    }
}

/// Number of bytes from an offset of the file on that a slot can hold.
pub(super) fn room_at(offset: u64) -> usize {
    STAGING_BYTES - offset as usize % PAGE_BYTES
}

/// Returns the owner bits of the calling thread for slots of a pid namespace; `None` if others
/// could not tell whether it is alive.
pub(super) fn claim(pid_namespace: u64) -> Option<u64> {
    thread_local! {
        /// Value of `process::generation`, and the identity of this thread that belongs to it.
        static KNOWN: Cell<Option<(u64, ProcessIdentity)>> = const { Cell::new(None) };
    }
    let generation = process::generation();
    let identity = match KNOWN.get() {
        Some((known, identity)) if known == generation => identity,
        _ => {
            // A failure is not remembered: the process may lack descriptors only for a moment.
            let identity = process::thread_identity().ok()?;
            KNOWN.set(Some((generation, identity)));
            identity
        }
    };
    let fits = identity.pid >> PID_BITS == 0 && identity.start_time >> START_BITS == 0;
    let owner = identity.start_time << PID_BITS | u64::from(identity.pid);
    (fits && identity.pid_namespace == pid_namespace).then_some(owner << KIND.count_ones())
}

/// Whether the thread that owns a slot in this state is gone. False for a slot without an owner.
pub(super) fn owner_is_dead(state: u64, pid_namespace: u64) -> bool {
    let owner = state >> KIND.count_ones();
    let identity = ProcessIdentity {
        pid: (owner & ((1 << PID_BITS) - 1)) as u32,
        pid_namespace,
        start_time: owner >> PID_BITS,
    };
    owner != 0 && !process::is_alive(identity)
}
