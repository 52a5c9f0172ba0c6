//! Waiting for space: writers that found none, whether programs or stage-in, and the agent that may
//! make some.
//!
//! The state is a few words of the segment, used without a lock. A waiter owns a place: a word that
//! it renews while it waits. A place that is not renewed for a second is free. So a waiter that
//! dies, is stopped, or jumps out of its call leaves nothing behind. The agent publishes how long
//! waiting is worthwhile, that it is at work, and when it searched in vain.
//!
//! Must stay true: no write depends on these words. A lost or foreign value costs a wait that ends,
//! or an error that would have come anyway.
//!
//! Has no clock: times are milliseconds of a clock that all processes of the node share. They wrap
//! after 49 days.

pub(crate) mod parts;
pub(crate) mod pool;
use crate::engine::fs::Microfs;
use crate::format::layout::{
    SPACE_BEAT, SPACE_IN_VAIN, SPACE_PATIENCE, SPACE_PLACES, SPACE_WAITERS,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// A place that was not renewed for this long is free.
const PLACE_LIFE_MS: u32 = 1000;
/// An agent that has not reported for this long is taken to be idle.
const AGENT_LIFE_MS: u32 = 5000;
/// Marks a word that holds a time.
const IS_SET: u64 = 1 << 32;

/// A point in time: milliseconds of a clock of the node. Only differences have a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub u32);

impl Moment {
    /// Milliseconds from `earlier` to this moment; 0 if it is not later.
    pub fn since(self, earlier: Moment) -> u32 {
        let passed = self.0.wrapping_sub(earlier.0);
        if passed > u32::MAX / 2 { 0 } else { passed }
    }
}

/// A waiter for space.
#[derive(Debug)]
pub struct SpaceWaiter {
    began: Moment,
    /// Index of its place and the value it stored there; none while all places are taken.
    place: Option<(usize, u64)>,
}

/// Outlook of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Somebody works on it.
    Some,
    /// Nobody works on it, or the attempt was in vain.
    None,
}

/// Summary of the waiters for space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceWaiters {
    /// Number of waiters. A lower bound: the number of places is limited.
    pub count: usize,
    /// Longest wait so far, milliseconds.
    pub longest_ms: u32,
    /// Shortest wait so far, milliseconds.
    pub shortest_ms: u32,
}

impl Microfs {
    /// Publishes how long it is worth waiting for space, milliseconds; 0 if nobody makes any. For
    /// the agent.
    pub fn offer_space(&self, patience_ms: u32) {
        let word = self.space_word(SPACE_PATIENCE);
        if word.load(Ordering::Relaxed) != u64::from(patience_ms) {
            word.store(u64::from(patience_ms), Ordering::Relaxed);
        }
    }

    /// Returns how long it is worth waiting for space, milliseconds; 0 if it is not.
    pub fn space_patience_ms(&self) -> u32 {
        self.space_word(SPACE_PATIENCE).load(Ordering::Relaxed) as u32
    }

    /// Begins to wait for space.
    pub fn begin_waiting(&self, now: Moment) -> SpaceWaiter {
        let mut waiter = SpaceWaiter { began: now, place: None };
        self.keep_waiting(&mut waiter, now);
        waiter
    }

    /// Renews the place of a waiter, or takes one. To be called several times a second.
    pub fn keep_waiting(&self, waiter: &mut SpaceWaiter, now: Moment) {
        let renewed = place(waiter.began, now);
        let take = |index: usize, known: u64| {
            let word = self.space_word(SPACE_WAITERS + index);
            let taken = word.compare_exchange(known, renewed, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok().then_some((index, renewed))
        };
        let kept = waiter.place.and_then(|(index, known)| take(index, known));
        waiter.place = kept.or_else(|| {
            (0..SPACE_PLACES).find_map(|index| {
                let known = self.space_word(SPACE_WAITERS + index).load(Ordering::Relaxed);
                if is_taken(known, now) { None } else { take(index, known) }
            })
        });
    }

    /// Ends a wait, whatever its outcome.
    pub fn end_waiting(&self, waiter: SpaceWaiter) {
        if let Some((index, known)) = waiter.place {
            let word = self.space_word(SPACE_WAITERS + index);
            // The place may belong to another waiter, if this process was stopped for a while.
            let _ = word.compare_exchange(known, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns the outlook of a waiter.
    pub fn space_hope(&self, waiter: &SpaceWaiter, now: Moment) -> Prospect {
        let waited_ms = now.since(waiter.began);
        let said = |word| match self.space_word(word).load(Ordering::Relaxed) {
            0 => None,
            said => Some(Moment(said as u32)),
        };
        // Only a search that began after the waiter did counts for it.
        let is_since = |at: Moment| (1..=waited_ms).contains(&at.since(waiter.began));
        let in_vain = said(SPACE_IN_VAIN).is_some_and(is_since);
        let silence_ms = said(SPACE_BEAT).map_or(waited_ms, |at| now.since(at).min(waited_ms));
        match waited_ms >= self.space_patience_ms() || in_vain || silence_ms > AGENT_LIFE_MS {
            true => Prospect::None,
            false => Prospect::Some,
        }
    }

    /// Returns a summary of the waiters. For the agent.
    pub fn space_waiters(&self, now: Moment) -> SpaceWaiters {
        let words = (0..SPACE_PLACES)
            .map(|index| self.space_word(SPACE_WAITERS + index).load(Ordering::Relaxed));
        let mut found = SpaceWaiters::default();
        for word in words.filter(|&word| is_taken(word, now)) {
            let waited_ms = now.since(Moment((word >> 32) as u32));
            found.longest_ms = found.longest_ms.max(waited_ms);
            found.shortest_ms = match found.count {
                0 => waited_ms,
                _ => found.shortest_ms.min(waited_ms),
            };
            found.count += 1;
        }
        found
    }

    /// Reports that space is being made. For the agent, several times a second while somebody
    /// waits.
    pub fn space_is_made(&self, now: Moment) {
        self.space_word(SPACE_BEAT).store(IS_SET | u64::from(now.0), Ordering::Relaxed);
    }

    /// Reports that a search that began at `began` found nothing to give up. For the agent.
    pub fn report_no_space(&self, began: Moment) {
        self.space_word(SPACE_IN_VAIN).store(IS_SET | u64::from(began.0), Ordering::Relaxed);
    }

    fn space_word(&self, word: usize) -> &AtomicU64 {
        &self.memory().words()[word]
    }
}

/// Encodes a taken place: when its owner began to wait, and when it last renewed the place. Never
/// 0, because the low word is odd.
fn place(began: Moment, now: Moment) -> u64 {
    u64::from(began.0) << 32 | u64::from(now.0 | 1)
}

fn is_taken(word: u64, now: Moment) -> bool {
    let renewed = Moment(word as u32);
    // The renewal time was made odd, so it may be one millisecond ahead.
    word != 0 && now.0.wrapping_add(1).wrapping_sub(renewed.0) <= PLACE_LIFE_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::Geometry;
    use crate::format::memory::HeapMemory;
    use crate::format::types::{Credentials, Timestamp};

    const PATIENCE_MS: u32 = 30_000;

    fn namespace() -> Microfs {
        let mut geometry = Geometry::new(b"/m", [16, 0, 0, 0], 0);
        geometry.inode_capacity = 64;
        let memory = HeapMemory::new(geometry.segment_bytes() as usize / 8);
        let checksum = |seed: u32, bytes: &[u8]| {
            bytes.iter().fold(seed, |sum, &byte| sum.rotate_left(5) ^ u32::from(byte))
        };
        let owner = Credentials { uid: 0, gid: 0 };
        Microfs::format(&memory, &geometry, checksum, owner, Timestamp(0)).expect("formats");
        let fs = Microfs::open(Box::new(memory), checksum).expect("opens");
        fs.offer_space(PATIENCE_MS);
        fs
    }

    /// Just before the clock wraps.
    const START: u32 = u32::MAX - 500;

    fn at(passed_ms: u32) -> Moment {
        Moment(START.wrapping_add(passed_ms))
    }

    impl Moment {
        fn half_way(self) -> Moment {
            Moment(self.0.wrapping_add(u32::MAX / 2 + 2))
        }
    }

    #[test]
    fn waiters_are_counted_until_they_end_or_fall_silent() {
        let fs = namespace();
        let mut first = fs.begin_waiting(at(0));
        let second = fs.begin_waiting(at(400));
        let dead = fs.begin_waiting(at(450));
        fs.keep_waiting(&mut first, at(800));
        let waiters = fs.space_waiters(at(900));
        assert_eq!(waiters, SpaceWaiters { count: 3, longest_ms: 900, shortest_ms: 450 });
        fs.end_waiting(second);
        fs.keep_waiting(&mut first, at(1600));
        let waiters = fs.space_waiters(at(1700));
        assert_eq!((waiters.count, waiters.longest_ms), (1, 1700), "the dead one is forgotten");
        // It was only stopped, and has its place again.
        let mut woken = dead;
        fs.keep_waiting(&mut woken, at(1750));
        assert_eq!(fs.space_waiters(at(1800)).count, 2);
        fs.end_waiting(first);
        fs.end_waiting(woken);
        assert_eq!(fs.space_waiters(at(1800)).count, 0);
    }

    #[test]
    fn place_that_its_owner_lost_while_it_was_stopped_stays_the_new_owners() {
        let fs = namespace();
        let stopped: Vec<SpaceWaiter> =
            (0..SPACE_PLACES).map(|_| fs.begin_waiting(at(0))).collect();
        let one_more = fs.begin_waiting(at(10));
        assert!(one_more.place.is_none(), "it waits all the same");
        assert_eq!(fs.space_hope(&one_more, at(20)), Prospect::Some);
        let others: Vec<SpaceWaiter> =
            (0..SPACE_PLACES).map(|_| fs.begin_waiting(at(2000))).collect();
        stopped.into_iter().for_each(|waiter| fs.end_waiting(waiter));
        assert_eq!(fs.space_waiters(at(2001)).count, SPACE_PLACES);
        others.into_iter().for_each(|waiter| fs.end_waiting(waiter));
        assert_eq!(fs.space_waiters(at(2001)).count, 0);
    }

    #[test]
    fn hope_ends_with_patience_a_silent_agent_or_a_look_in_vain() {
        let fs = namespace();
        let waiter = fs.begin_waiting(at(0));
        assert_eq!(fs.space_hope(&waiter, at(AGENT_LIFE_MS)), Prospect::Some, "it may be replaced");
        assert_eq!(fs.space_hope(&waiter, at(AGENT_LIFE_MS + 1)), Prospect::None);
        fs.space_is_made(at(PATIENCE_MS - 100));
        assert_eq!(fs.space_hope(&waiter, at(PATIENCE_MS - 1)), Prospect::Some);
        assert_eq!(fs.space_hope(&waiter, at(PATIENCE_MS)), Prospect::None);

        let waiter = fs.begin_waiting(at(PATIENCE_MS));
        fs.report_no_space(at(PATIENCE_MS - 5));
        fs.space_is_made(at(PATIENCE_MS));
        assert_eq!(fs.space_hope(&waiter, at(PATIENCE_MS + 9)), Prospect::Some, "looked too early");
        fs.report_no_space(at(PATIENCE_MS + 5));
        assert_eq!(fs.space_hope(&waiter, at(PATIENCE_MS + 9)), Prospect::None);

        // A search half the clock's range away does not count for this waiter.
        let waiter = fs.begin_waiting(at(PATIENCE_MS + 6).half_way());
        fs.space_is_made(waiter.began);
        assert_eq!(fs.space_hope(&waiter, waiter.began), Prospect::Some);

        fs.offer_space(0);
        assert_eq!(fs.space_hope(&fs.begin_waiting(at(0)), at(0)), Prospect::None);
    }

    #[test]
    fn threads_that_begin_at_the_same_time_have_places_of_their_own() {
        let fs = namespace();
        std::thread::scope(|scope| {
            for _ in 0..SPACE_PLACES {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mut waiter = fs.begin_waiting(at(0));
                        let (index, _) = waiter.place.expect("there are as many places");
                        fs.keep_waiting(&mut waiter, at(1));
                        assert_eq!(waiter.place.map(|(index, _)| index), Some(index));
                        fs.end_waiting(waiter);
                    }
                });
            }
        });
        assert_eq!(fs.space_waiters(at(1)).count, 0);
    }
}
