//! Selects the checkpoints that leave the store: complete ones that are on the level where they are
//! wanted, and that the job's policy retains no longer.
//!
//! A pure function of the register. Must stay true: the newest complete checkpoint of a family
//! stays, whatever the policy says. A checkpoint that is wanted in the persist directory leaves
//! only when all of it is verified there. Does not know which files form a checkpoint, nor when it
//! is complete; `sets.rs` and its register do.

use crate::checkpoint::sets::register::Checkpoint;
use crate::checkpoint::space_policy::SpacePolicy;
use std::collections::HashMap;

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;

/// Returns the checkpoints to drop now, oldest first.
pub fn surplus<'a>(
    complete: &'a [Checkpoint],
    policy: &SpacePolicy,
    now_ns: i64,
) -> Vec<&'a Checkpoint> {
    let mut newest_first: Vec<&Checkpoint> = complete.iter().collect();
    newest_first.sort_by_key(|known| std::cmp::Reverse(known.id));
    let oldest_ns = policy.retain_seconds.map(|seconds| {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        now_ns.saturating_sub(seconds.saturating_mul(NANOSECONDS_PER_SECOND))
    });
    let mut newer = HashMap::new();
    let mut kept_bytes = 0_u64;
    let mut given_up = Vec::new();
    for known in newest_first {
        // Position in its family, 0 for the newest.
        let place: &mut u64 = newer.entry(&known.name.family).or_default();
        let is_too_many = policy.retain_count.is_some_and(|count| *place >= count);
        let with_it = kept_bytes.saturating_add(known.bytes());
        let is_too_much = policy.retain_bytes.is_some_and(|most| with_it > most);
        let is_too_old = oldest_ns.is_some_and(|oldest| known.modified_ns < oldest);
        let is_surplus = *place > 0 && (is_too_many || is_too_much || is_too_old);
        if is_surplus && known.level >= known.wanted {
            given_up.push(known);
        } else {
            kept_bytes = with_it;
        }
        *place += 1;
    }
    given_up.reverse();
    given_up
}

/// Returns when the next checkpoint becomes too old if no new one comes before, nanoseconds since
/// the epoch.
pub fn next_due_ns(complete: &[Checkpoint], policy: &SpacePolicy, now_ns: i64) -> Option<i64> {
    let seconds = i64::try_from(policy.retain_seconds?).unwrap_or(i64::MAX);
    let age_ns = seconds.saturating_mul(NANOSECONDS_PER_SECOND);
    let mut newest = HashMap::new();
    for known in complete {
        let id: &mut u64 = newest.entry(&known.name.family).or_default();
        *id = known.id.max(*id);
    }
    let others = complete.iter().filter(|known| newest[&known.name.family] != known.id);
    let due = others.filter_map(|known| known.modified_ns.checked_add(age_ns)?.checked_add(1));
    due.filter(|due_ns| *due_ns > now_ns).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::name::{Family, Name};
    use crate::checkpoint::sets::Member;
    use crate::checkpoint::sets::register::Level;
    use crate::file::path::FilePath;

    /// Returns a checkpoint of ten bytes, changed at this second and drained.
    fn checkpoint(family: &str, step: u64, second: i64) -> Checkpoint {
        let path = FilePath::parse(format!("{family}.{step}").as_bytes()).expect("a path");
        Checkpoint {
            id: step,
            name: Name { family: Family(family.as_bytes().to_vec()), step: Some(step.into()) },
            ordinal: step,
            completed_ns: second * NANOSECONDS_PER_SECOND,
            modified_ns: second * NANOSECONDS_PER_SECOND,
            wanted: Level::Pfs,
            level: Level::Pfs,
            files: vec![Member { path, inode: 2, version: 1, bytes: 10 }],
        }
    }

    /// Returns the steps dropped at second 100.
    fn given_up(complete: &[Checkpoint], policy: &SpacePolicy) -> Vec<u64> {
        let found = surplus(complete, policy, 100 * NANOSECONDS_PER_SECOND);
        found.iter().map(|known| known.id).collect()
    }

    fn count(count: u64) -> SpacePolicy {
        SpacePolicy { retain_count: Some(count), ..SpacePolicy::default() }
    }

    #[test]
    fn older_checkpoints_go_and_the_newest_ones_stay() {
        let known = [checkpoint("a", 9, 10), checkpoint("a", 10, 20), checkpoint("a", 11, 30)];
        assert_eq!(given_up(&known, &count(1)), [9, 10]);
        assert_eq!(given_up(&known, &count(2)), [9]);
        assert_eq!(given_up(&known, &count(0)), [9, 10], "the newest stays");
        let bytes = SpacePolicy { retain_bytes: Some(25), ..SpacePolicy::default() };
        assert_eq!(given_up(&known, &bytes), [9]);
        let age = SpacePolicy { retain_seconds: Some(75), ..SpacePolicy::default() };
        assert_eq!(given_up(&known, &age), [9, 10]);
        assert!(given_up(&known, &SpacePolicy::default()).is_empty());
    }

    #[test]
    fn each_family_keeps_its_newest() {
        let known = [checkpoint("a", 1, 10), checkpoint("b", 2, 20), checkpoint("b", 3, 30)];
        assert_eq!(given_up(&known, &count(1)), [2]);
        let bytes = SpacePolicy { retain_bytes: Some(0), ..SpacePolicy::default() };
        assert_eq!(given_up(&known, &bytes), [2]);
    }

    #[test]
    fn what_is_too_old_next_is_known() {
        let known = [10, 20, 30].map(|second| checkpoint("a", second as u64, second));
        let age = |seconds| SpacePolicy { retain_seconds: Some(seconds), ..SpacePolicy::default() };
        let due = |policy: &SpacePolicy, second: i64| {
            let due_ns = next_due_ns(&known, policy, second * NANOSECONDS_PER_SECOND)?;
            let surplus = |at_ns| surplus(&known, policy, at_ns).len();
            assert_eq!(surplus(due_ns), surplus(due_ns - 1) + 1, "not before, and then");
            Some(due_ns / NANOSECONDS_PER_SECOND)
        };
        assert_eq!(due(&age(75), 31), Some(85));
        assert_eq!(due(&age(75), 86), Some(95));
        assert_eq!(due(&age(75), 96), None, "the newest stays");
        assert_eq!(due(&age(u64::MAX), 31), None);
        assert_eq!(due(&count(1), 31), None);
    }

    #[test]
    fn what_is_not_where_it_is_wanted_stays() {
        let mut known = [checkpoint("a", 1, 10), checkpoint("a", 2, 20), checkpoint("a", 3, 30)];
        known[0].level = Level::Node;
        assert_eq!(given_up(&known, &count(1)), [2]);
        known[0].wanted = Level::Node;
        assert_eq!(given_up(&known, &count(1)), [1, 2]);
    }
}
