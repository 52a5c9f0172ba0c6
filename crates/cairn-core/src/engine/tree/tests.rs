//! The tree compared with collections of the standard library, with keys that cluster, ascend and
//! collide in their high words.

use super::*;
use crate::engine::fs::Microfs;
use crate::format::layout::{Geometry, NAMES_ROOT};
use crate::format::memory::HeapMemory;
use crate::format::types::{Credentials, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

const TREE: Tree = Tree { root_word: NAMES_ROOT };

fn namespace() -> Microfs {
    let mut geometry = Geometry::new(b"/cairn", [64, 0, 0, 0], 0);
    geometry.inode_capacity = 32 << 10;
    let memory = HeapMemory::new(geometry.segment_bytes() as usize / 8);
    let sum = |seed: u32, _: &[u8]| seed;
    let owner = Credentials { uid: 1, gid: 1 };
    Microfs::format(&memory, &geometry, sum, owner, Timestamp(1)).expect("format");
    Microfs::open(Box::new(memory), sum).expect("open")
}

/// xorshift64*: enough randomness for a test, the same everywhere.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

fn random_key(state: &mut u64) -> Key {
    match next(state) % 3 {
        0 => key((7 << 32) + next(state) % 64, next(state) % 8),
        1 => key(next(state), next(state)),
        _ => key((9 << 32) + next(state) % 5000, 1),
    }
}

#[test]
fn tree_agrees_with_a_sorted_set_while_it_grows_and_shrinks() {
    let fs = namespace();
    let mut expected = BTreeSet::new();
    let mut state = 0x6361_6972_6e31;
    for round in 0..60_000 {
        let growing = round / 10_000 % 2 == 0;
        let wanted = random_key(&mut state);
        fs.transact(|tx| {
            if (next(&mut state) % 4 != 0) == growing {
                if expected.insert(wanted) {
                    // The gap may be of another key: `insert_into` must notice if it does not fit.
                    let searched = wanted.saturating_sub(Key::from(next(&mut state) % 3));
                    let gap = TREE.ceiling_and_gap(tx, searched).map(|(_, gap)| gap);
                    if !gap.is_some_and(|gap| TREE.insert_into(tx, gap, wanted)) {
                        TREE.insert(tx, wanted)?;
                    }
                }
            } else {
                let victim = expected.range(wanted..).next().copied().unwrap_or(wanted);
                assert_eq!(TREE.remove(tx, victim), expected.remove(&victim));
            }
            let probe = random_key(&mut state);
            assert_eq!(TREE.floor(tx, probe), expected.range(..=probe).next_back().copied());
            assert_eq!(TREE.ceiling(tx, probe), expected.range(probe..).next().copied());
            if round % 100 == 0 {
                let some = next(&mut state) as usize % 400;
                let ascent = TREE.ascend(tx, probe).take(some);
                assert!(ascent.eq(expected.range(probe..).take(some).copied()));
            }
            Ok(())
        })
        .expect("no contradiction");
    }
    let left: Vec<Key> = expected.iter().copied().collect();
    fs.transact(|tx| {
        assert_eq!(TREE.ceiling(tx, 0), left.first().copied());
        assert_eq!(TREE.floor(tx, Key::MAX), left.last().copied());
        Ok(())
    })
    .expect("no contradiction");
    for entry in left {
        assert_eq!(fs.transact(|tx| Ok(TREE.remove(tx, entry))), Ok(true));
    }
    assert_eq!(fs.transact(|tx| Ok(tx.records_in_use(SlabKind::Node))), Ok(0));
}

/// Mechanism: an entry was replaced in place although a separator, an earlier entry with the same
/// high word, lay between the old and the new one. Consequence: no search found the entry any more,
/// and the blocks of such an extent were given to another file. Fix: replace in place only where
/// the separators allow it.
#[test]
fn entry_replaced_past_a_stale_separator_is_found() {
    const HIGH_WORDS: u64 = 600;
    let fs = namespace();
    let mut expected = BTreeMap::new();
    let mut state = 0x6361_6972_6e32;
    for round in 0..30_000 {
        // Leaves split while the tree grows. Their separators outlive the entries that are removed
        // while it shrinks.
        let growing = round / 3_000 % 2 == 0;
        // The low word does not affect the order of entries, because each high word occurs once.
        let (wanted, new) = (next(&mut state) % HIGH_WORDS, next(&mut state) % 16);
        fs.transact(|tx| {
            match expected.get(&wanted).copied() {
                None if growing => {
                    TREE.insert(tx, key(wanted, new))?;
                    expected.insert(wanted, new);
                }
                Some(old) if growing || new % 2 == 0 => {
                    TREE.replace(tx, key(wanted, old), key(wanted, new))?;
                    expected.insert(wanted, new);
                }
                Some(old) => {
                    assert!(TREE.remove(tx, key(wanted, old)), "round {round}");
                    expected.remove(&wanted);
                }
                None => {}
            }
            let entry = |(&high, &low): (&u64, &u64)| key(high, low);
            let below = expected.range(..=wanted).next_back().map(entry);
            let above = expected.range(wanted..).next().map(entry);
            assert_eq!(TREE.floor(tx, key(wanted, u64::MAX)), below, "round {round}");
            assert_eq!(TREE.ceiling(tx, key(wanted, 0)), above, "round {round}");
            Ok(())
        })
        .expect("no contradiction");
    }
}

#[test]
fn ascending_keys_leave_full_leaves() {
    let fs = namespace();
    for entry in 0..LEAF_CAPACITY as u64 * 20 {
        fs.transact(|tx| TREE.insert(tx, key(entry, 0))).expect("insert");
    }
    let nodes = fs.transact(|tx| Ok(tx.records_in_use(SlabKind::Node)));
    assert!(nodes.is_ok_and(|nodes| nodes <= 22), "{nodes:?}");
}

#[test]
fn failed_change_leaves_the_tree_as_it_was() {
    let fs = namespace();
    for entry in 0..500 {
        fs.transact(|tx| TREE.insert(tx, key(entry, 1))).expect("insert");
    }
    let failed: Result<()> = fs.transact(|tx| {
        for entry in 500..520 {
            TREE.insert(tx, key(entry, 1))?;
        }
        for entry in 0..20 {
            TREE.remove(tx, key(entry, 1));
        }
        Err(Error::Invalid)
    });
    assert_eq!(failed, Err(Error::Invalid));
    fs.transact(|tx| {
        assert_eq!(TREE.ceiling(tx, 0), Some(key(0, 1)));
        assert_eq!(TREE.floor(tx, Key::MAX), Some(key(499, 1)));
        Ok(())
    })
    .expect("unchanged");
}
