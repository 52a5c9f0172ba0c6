//! Names this process has met, in front of the tree of all names.
//!
//! A slot holds the name record where a (directory, name) was last found. The record itself says what it names, so
//! a slot that is out of date is seen to be (names.rs) and nothing ever has to be taken out. The table is private to
//! the process and grows with the number of names it meets, never under the lock.

use crate::types::InodeId;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Slots of the first table; each following one has eight times as many.
const FIRST_SLOTS: usize = 512;
const GROWTH: usize = 8;
const TABLES: usize = 5;

/// The table in use and the smaller ones it has replaced.
pub(crate) struct NameCache {
    tables: [OnceLock<Box<[AtomicU64]>>; TABLES],
    current: AtomicUsize,
    /// Slots filled since the table was made: it is full when there are as many.
    filled: AtomicUsize,
}

/// Where a (directory, name) belongs: the number picks the slot, its high half tells names that share one apart.
#[derive(Clone, Copy)]
pub(crate) struct Place(u64);

impl Place {
    pub(crate) fn new(directory: InodeId, name_hash: u64) -> Place {
        const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;
        let mixed = (name_hash ^ u64::from(directory.0) << 32).wrapping_mul(MULTIPLIER);
        Place(mixed ^ mixed >> 32)
    }

    fn tag(self) -> u64 {
        self.0 >> 32 << 32
    }
}

impl NameCache {
    pub(crate) fn new() -> NameCache {
        let cache = NameCache {
            tables: Default::default(),
            current: AtomicUsize::new(0),
            filled: AtomicUsize::new(0),
        };
        cache.tables[0].get_or_init(|| table(FIRST_SLOTS));
        cache
    }

    fn slot(&self, place: Place) -> Option<&AtomicU64> {
        let table = self.tables[self.current.load(Ordering::Acquire)].get()?;
        table.get(place.0 as usize & (table.len() - 1))
    }

    /// The record where the name may be.
    pub(crate) fn recall(&self, place: Place) -> Option<u32> {
        let entry = self.slot(place)?.load(Ordering::Relaxed);
        (entry as u32 != 0 && entry >> 32 << 32 == place.tag()).then_some(entry as u32)
    }

    /// Remembers the record where the name is.
    pub(crate) fn learn(&self, place: Place, record: u32) {
        if let Some(slot) = self.slot(place) {
            slot.store(place.tag() | u64::from(record), Ordering::Relaxed);
            self.filled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes room for more names if the table is full. Not under the lock.
    pub(crate) fn grow_if_full(&self) {
        let current = self.current.load(Ordering::Relaxed);
        let slots = self.tables[current].get().map_or(0, |table| table.len());
        if self.filled.load(Ordering::Relaxed) >= slots && current + 1 < TABLES {
            self.tables[current + 1].get_or_init(|| table(slots * GROWTH));
            self.current.store(current + 1, Ordering::Release);
            self.filled.store(0, Ordering::Relaxed);
        }
    }
}

fn table(slots: usize) -> Box<[AtomicU64]> {
    (0..slots).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_table_gives_way_to_a_larger_one() {
        let cache = NameCache::new();
        let places: Vec<Place> = (0..2000).map(|hash| Place::new(InodeId(7), hash)).collect();
        for (&place, record) in places.iter().zip(1..) {
            cache.grow_if_full();
            cache.learn(place, record);
            assert_eq!(cache.recall(place), Some(record));
        }
        assert_eq!(cache.current.load(Ordering::Relaxed), 1);
        let other = Place::new(InodeId(8), 5);
        assert_eq!(cache.recall(other), None);
    }
}
