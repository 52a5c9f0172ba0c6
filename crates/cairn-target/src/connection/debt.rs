//! What a host owes: data that it was asked for, or room for what it is sent.
//!
//! Must stay true: who pays at the least rate may take as long as that takes; who pays less has
//! only the time that everybody has, and a little more for what it pays. Nobody saves up more than
//! that.

use std::time::{Duration, Instant};

/// What is enough for a host not to be called slow, bytes a second.
const LEAST_RATE: u64 = 64 << 10;

/// Since when a host owes something, less the time that it has paid for.
#[derive(Default)]
pub(crate) struct Debt(Option<Instant>);

impl Debt {
    /// It owes something, if it did not already.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.0.get_or_insert(now);
    }

    /// It has paid so many bytes.
    pub(crate) fn pay(&mut self, bytes: usize, now: Instant) {
        let time = Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / LEAST_RATE);
        self.0 = self.0.map(|since| (since + time).min(now));
    }

    /// It owes nothing.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }

    /// From when on its time counts.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of its time a host has used up after 100 s in each of which it has paid so many
    /// bytes.
    fn used(bytes: usize) -> Duration {
        let (begun, mut debt) = (Instant::now(), Debt::default());
        debt.begin(begun);
        let mut now = begun;
        for _ in 0..100 {
            now += Duration::from_secs(1);
            debt.pay(bytes, now);
        }
        now - debt.since().expect("it owes")
    }

    /// Mechanism: time counted from when the data were asked for, and anew with every byte that was
    /// taken. Consequence: a host that was sending steadily lost its connection, and one that took
    /// a byte now and then held memory for ever. Fix: bytes pay for time.
    #[test]
    fn who_pays_at_the_least_rate_has_time_and_who_pays_little_has_not() {
        assert_eq!(used(LEAST_RATE as usize), Duration::ZERO);
        assert_eq!(used(LEAST_RATE as usize / 2), Duration::from_secs(50));
        assert!(used(1) > Duration::from_secs(99));
        assert_eq!(used(1 << 30), Duration::ZERO);
    }

    #[test]
    fn nothing_is_saved_up_for_later() {
        let (begun, mut debt) = (Instant::now(), Debt::default());
        debt.begin(begun);
        let later = begun + Duration::from_secs(1);
        debt.pay(1 << 30, later);
        debt.begin(later + Duration::from_secs(5));
        assert_eq!(debt.since(), Some(later));
        debt.end();
        assert_eq!(debt.since(), None);
    }
}
