//! Leases as a process remembers them, and their records in its slot.
//!
//! Does not give or recall leases; `data/write/lease.rs` does.

use crate::engine::fields::fields;
use crate::engine::run::PinnedRun;
use crate::engine::slot::LEASES_PER_SLOT;
use crate::format::types::{HandleId, InodeId, SlotId};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

pub(crate) const LIVE: u64 = 1 << 63;

pub(crate) const BUSY: u64 = 1 << 62;

pub(crate) const PUBLISHED_SHIFT: u32 = 32;

pub(crate) const PUBLISHED_MAX: u64 = (1 << 30) - 1;

/// A lease in a process's slot; its first word is the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) at: usize,
}

fields!(Record {
    // Time of the last write under the lease.
    time, set_time: time 1;
    // Bytes of the write in progress.
    claimed, set_claimed: word 2;
    // Offset in the file of the first byte.
    start, set_start: word 3;
    handle, set_handle: word 4;
});

/// A lease, as its holder remembers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) handle: HandleId,
    pub(crate) slot: SlotId,
    pub(crate) inode: InodeId,
    pub(crate) record: Record,
    pub(crate) pin_index: usize,
    pub(crate) pin_ticket: u64,
    pub(crate) start: u64,
    pub(crate) run: PinnedRun,
}

/// The leases of this process.
#[derive(Default)]
pub(crate) struct Leases {
    pub(crate) seats: [Seat; LEASES_PER_SLOT],
    /// Index of the seat to give up next.
    pub(crate) next: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Seat {
    /// Description that has the lease, as a hint.
    pub(crate) handle: AtomicU32,
    pub(crate) lease: Mutex<Option<Lease>>,
}

/// A seat that this thread alone uses.
pub(crate) struct TakenSeat<'l> {
    pub(crate) index: usize,
    pub(crate) handle: &'l AtomicU32,
    pub(crate) lease: MutexGuard<'l, Option<Lease>>,
}

impl Leases {
    pub(crate) fn seat_of(&self, handle: HandleId) -> Option<usize> {
        self.seats.iter().position(|seat| seat.handle.load(Ordering::Relaxed) == handle.0)
    }

    /// Takes a seat. Never waits: its user may be a thread that a forked child does not have.
    pub(crate) fn take(&self, index: usize) -> Option<TakenSeat<'_>> {
        let Seat { handle, lease } = &self.seats[index];
        Some(TakenSeat { index, handle, lease: lease.try_lock().ok()? })
    }

    /// Takes a seat for a lease to `handle`: the one it has, else one without a live lease, else
    /// the next one in turn.
    pub(crate) fn take_for(&self, handle: HandleId, words: &[AtomicU64]) -> Option<TakenSeat<'_>> {
        if let Some(index) = self.seat_of(handle) {
            return self.take(index);
        }
        let is_live = |lease: &Lease| {
            words
                .get(lease.record.at)
                .is_some_and(|state| state.load(Ordering::Relaxed) & LIVE != 0)
        };
        let unused = (0..LEASES_PER_SLOT)
            .filter_map(|index| self.take(index))
            .find(|seat| !seat.lease.as_ref().is_some_and(is_live));
        unused.or_else(|| self.take(self.next.fetch_add(1, Ordering::Relaxed) % LEASES_PER_SLOT))
    }
}

impl TakenSeat<'_> {
    pub(crate) fn clear(&mut self) {
        self.handle.store(0, Ordering::Relaxed);
        *self.lease = None;
    }
}

/// Remembers a lease that the transaction, which has ended, gave.
pub(crate) fn keep_lease(seat: Option<TakenSeat>, lease: Option<Lease>) {
    if let Some((mut seat, lease)) = seat.zip(lease) {
        seat.handle.store(lease.handle.0, Ordering::Relaxed);
        *seat.lease = Some(lease);
    }
}
