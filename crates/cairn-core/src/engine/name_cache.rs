//! Name cache: names that this process has met, in front of the tree of all names.
//!
//! A slot holds the name record where a (directory, name) was last found, and the inode it named
//! then. The record itself says what it names, so a stale slot is detected (names.rs) and never has
//! to be removed. The inode serves only for a prefetch. A set has as many slots as fit into a cache
//! line. The table is private to the process. It grows with the number of names met, never under
//! the lock.

use crate::format::types::InodeId;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Slots per set.
const WAYS: usize = 5;
/// Sets of the first table; each later table has eight times as many.
const FIRST_SETS: usize = 128;
const GROWTH: usize = 8;
const TABLES: usize = 5;

/// The current table and the smaller ones that it replaced.
pub(crate) struct NameCache {
    tables: [OnceLock<Box<[Set]>>; TABLES],
    current: AtomicUsize,
    /// Slots filled since the table was made.
    filled: AtomicUsize,
    /// Half of the slots are filled, so some sets are full.
    is_full: AtomicBool,
}

/// Slots for names of one hash.
#[derive(Default)]
#[repr(align(64))]
struct Set {
    /// Tag in the high half, record in the low half; 0 is empty.
    records: [AtomicU64; WAYS],
    inodes: [AtomicU32; WAYS],
}

const _: () = assert!(size_of::<Set>() == 64);

/// Place of a (directory, name) in a table. The low bits select the set; the high half tells names
/// in one set apart.
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

impl Set {
    /// Returns the slot whose entry has the tag of `place`.
    fn find(&self, place: Place) -> Option<usize> {
        let is_ours = |entry: u64| entry as u32 != 0 && entry >> 32 << 32 == place.tag();
        self.records.iter().position(|slot| is_ours(slot.load(Ordering::Relaxed)))
    }

    fn first_empty(&self) -> Option<usize> {
        self.records.iter().position(|slot| slot.load(Ordering::Relaxed) == 0)
    }
}

impl NameCache {
    pub(crate) fn new() -> NameCache {
        let cache = NameCache {
            tables: Default::default(),
            current: AtomicUsize::new(0),
            filled: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
        };
        cache.tables[0].get_or_init(|| table(FIRST_SETS));
        cache
    }

    fn table(&self) -> &[Set] {
        let table = self.tables[self.current.load(Ordering::Acquire)].get();
        table.expect("a table is made before it is the current one")
    }

    fn set(&self, place: Place) -> &Set {
        let table = self.table();
        &table[place.0 as usize & (table.len() - 1)]
    }

    /// Returns the record that may hold the name, and the inode that it may name.
    pub(crate) fn recall(&self, place: Place) -> Option<(u32, InodeId)> {
        let set = self.set(place);
        let way = set.find(place)?;
        let record = set.records[way].load(Ordering::Relaxed) as u32;
        Some((record, InodeId(set.inodes[way].load(Ordering::Relaxed))))
    }

    /// Remembers the record that holds the name, and the inode that it names.
    pub(crate) fn learn(&self, place: Place, record: u32, inode: InodeId) {
        let set = self.set(place);
        let known = set.find(place);
        if known.is_none() {
            let filled = self.filled.fetch_add(1, Ordering::Relaxed) + 1;
            if filled >= self.table().len() * WAYS / 2 {
                self.is_full.store(true, Ordering::Relaxed);
            }
        }
        // A full set drops another name.
        let way = known.or_else(|| set.first_empty()).unwrap_or(record as usize % WAYS);
        set.inodes[way].store(inode.0, Ordering::Relaxed);
        set.records[way].store(place.tag() | u64::from(record), Ordering::Relaxed);
    }

    /// Whether the cache would do better with a larger table.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Replaces the table by a larger one, if there is one left. Not under the lock.
    #[cold]
    pub(crate) fn grow(&self) {
        if !self.is_full.swap(false, Ordering::Relaxed) {
            return;
        }
        let next = self.current.load(Ordering::Relaxed) + 1;
        let sets = self.table().len() * GROWTH;
        if let Some(made) = self.tables.get(next) {
            made.get_or_init(|| table(sets));
            self.filled.store(0, Ordering::Relaxed);
            self.current.store(next, Ordering::Release);
        }
    }
}

fn table(sets: usize) -> Box<[Set]> {
    (0..sets).map(|_| Set::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_table_gives_way_to_a_larger_one() {
        let cache = NameCache::new();
        let places: Vec<Place> = (0..2000).map(|hash| Place::new(InodeId(7), hash)).collect();
        for (&place, record) in places.iter().zip(1..) {
            if cache.is_full() {
                cache.grow();
            }
            cache.learn(place, record, InodeId(record + 1));
            assert_eq!(cache.recall(place), Some((record, InodeId(record + 1))));
        }
        assert_eq!(cache.current.load(Ordering::Relaxed), 1);
        let other = Place::new(InodeId(8), 5);
        assert_eq!(cache.recall(other), None);
    }

    #[test]
    fn names_of_one_set_stand_side_by_side_and_each_once() {
        let cache = NameCache::new();
        let places: Vec<Place> =
            (1..=WAYS as u64 + 1).map(|tag| Place(tag << 32 | FIRST_SETS as u64)).collect();
        for round in [100, 200] {
            for (&place, record) in places[..WAYS].iter().zip(round..) {
                cache.learn(place, record, InodeId(1));
            }
            for (&place, record) in places[..WAYS].iter().zip(round..) {
                assert_eq!(cache.recall(place), Some((record, InodeId(1))));
            }
        }
        assert_eq!(cache.filled.load(Ordering::Relaxed), WAYS);
        cache.learn(places[WAYS], 7, InodeId(1));
        let left = places.iter().filter(|&&place| cache.recall(place).is_some()).count();
        assert_eq!((left, cache.recall(places[WAYS])), (WAYS, Some((7, InodeId(1)))));
    }
}
