//! Order of a job's checkpoints outside of its stores: the one rule for the manifest and the
//! archive.
//!
//! A checkpoint gets its place when it is first recorded, and keeps it as long as it is the same
//! one. The place is after all that are recorded, but before those of its own store with higher
//! numbers, because the newest are copied first. So the newest checkpoint is the last that was
//! completed by the store that added one last, even if that store is an old one that was resumed.
//!
//! Must stay true: no clock is used. A store numbers its checkpoints in the order of completion
//! (`sets/register.rs`).

/// Returns the place of checkpoint `id` of `store` among `others`, given as (store, id, place).
/// Checkpoints at that place or later move one place up.
pub fn place<'a>(
    store: &str,
    id: u64,
    others: impl Iterator<Item = (&'a str, u64, u64)> + Clone,
) -> u64 {
    let later = others.clone().filter(|other| other.0 == store && other.1 > id);
    let end = || others.map(|other| other.2).max().map_or(1, |last| last + 1);
    later.map(|other| other.2).min().unwrap_or_else(end)
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn checkpoint_comes_behind_all_but_those_of_its_store_with_higher_numbers() {
        let others = [("a", 1, 1), ("a", 4, 2), ("a", 5, 3), ("b", 1, 4)];
        for (store, id, expected) in [("a", 6, 5), ("a", 3, 2), ("b", 2, 5), ("c", 1, 5)] {
            assert_eq!(place(store, id, others.into_iter()), expected, "{store} {id}");
        }
        assert_eq!(place("a", 7, [].into_iter()), 1);
    }
}
