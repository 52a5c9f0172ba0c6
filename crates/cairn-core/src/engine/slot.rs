//! Process slots: the layout of a slot's words, and the fields of its head.
//!
//! Does not know what the parts mean; `process.rs`, `pin.rs`, `streams.rs` and `lease.rs` do.

use crate::engine::fields::fields;
use crate::format::layout::{HANDLES_MAX, SLOT_WORDS, SLOTS_MAX};
use crate::format::types::SlotId;

/// Number of runs a slot remembers: a file of a GiB that was written beside others has so many.
pub(crate) const WARM_RUNS: usize = 128;

/// Concurrent writes of one process that were planned under the lock.
pub(crate) const WRITES_PER_SLOT: usize = 7;
/// One more pin for zeroing a tail: appends that keep their places may need that before they can go
/// on.
pub(crate) const SETTLING_PER_SLOT: usize = 1;
/// Index of the first pin of a lease; the later ones are of leases, too.
pub(crate) const LEASED_FIRST: usize = WRITES_PER_SLOT + SETTLING_PER_SLOT;
const _: () = assert!(LEASED_FIRST % LEASES_PER_SLOT == 0);
/// Number of pins of one process.
pub(crate) const PINS_PER_SLOT: usize = LEASED_FIRST + LEASES_PER_SLOT;
/// Words of a pin.
pub(crate) const PIN_WORDS: usize = 16;

/// Streams of one process.
pub(crate) const STREAMS_PER_SLOT: usize = 16;
/// Words of a stream.
pub(crate) const STREAM_WORDS: usize = 2;

/// Leases of one process.
pub(crate) const LEASES_PER_SLOT: usize = 4;
/// Words of a lease's record.
pub(crate) const LEASE_WORDS: usize = 8;

// First words of the parts of a slot, behind its head.
pub(crate) const WARM_FIRST: usize = 8;
pub(crate) const PINS_FIRST: usize = WARM_FIRST + WARM_RUNS;
pub(crate) const BITS_FIRST: usize = PINS_FIRST + PINS_PER_SLOT * PIN_WORDS;
pub(crate) const BITS_WORDS: usize = HANDLES_MAX as usize / 64;
pub(crate) const STREAMS_FIRST: usize = BITS_FIRST + BITS_WORDS;
pub(crate) const STREAMS_END: usize = STREAMS_FIRST + STREAMS_PER_SLOT * STREAM_WORDS;
pub(crate) const LEASES_FIRST: usize = STREAMS_END;
const _: () = assert!(LEASES_FIRST + LEASES_PER_SLOT * LEASE_WORDS <= SLOT_WORDS);
// A lease is one cache line, which its holder changes with every write.
const _: () = assert!(LEASES_FIRST % LEASE_WORDS == 0 && LEASE_WORDS * size_of::<u64>() == 64);
// The number of a slot takes half of its id.
const _: () = assert!(SLOTS_MAX <= 1 << 16);

/// A process slot.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub id: SlotId,
    pub at: usize,
}

fields!(Slot {
    state, set_state: high 0;
    flags, set_flags: low 0;
    pid, set_pid: high 1;
    parent, set_parent: low 1;
    start_time, set_start_time: word 2;
    pid_namespace, set_pid_namespace: word 3;
    directory, set_directory: word 4;
    stand_in, set_stand_in: word 5;
    // Number of uses of this slot; it survives while the slot is free, see `SlotId`.
    uses, set_uses: low 6;
    warm_top, set_warm_top: word 7;
});

impl Slot {
    /// First word of pin `index`.
    pub(crate) fn pin_at(self, index: usize) -> usize {
        self.at + PINS_FIRST + index * PIN_WORDS
    }

    /// First word of stream `index`.
    pub(crate) fn stream_at(self, index: usize) -> usize {
        self.at + STREAMS_FIRST + index * STREAM_WORDS
    }

    /// First word of lease `index`.
    pub(crate) fn lease_at(self, index: usize) -> usize {
        self.at + LEASES_FIRST + index * LEASE_WORDS
    }
}
