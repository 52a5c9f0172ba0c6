//! Debt of a host: data that it was asked for and has not sent, or answers that it has not taken.
//!
//! Invariant: a host that pays at the least rate may take as long as that takes. A slower one has
//! the same time as everybody, plus the time that its bytes pay for. A host cannot save up time for
//! later.

use std::time::{Duration, Instant};

/// Rate from which a host does not count as slow, bytes per second.
const LEAST_RATE: u64 = 64 << 10;

/// Time since which a host owes something, plus the time that it has paid for; `None`: it owes
/// nothing.
#[derive(Default)]
pub(crate) struct Debt(Option<Instant>);

impl Debt {
    /// Begins the debt, unless there is one.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.0.get_or_insert(now);
    }

    /// Pays with a number of bytes.
    pub(crate) fn pay(&mut self, bytes: usize, now: Instant) {
        let time = Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / LEAST_RATE);
        self.0 = self.0.map(|since| (since + time).min(now));
    }

    /// Ends the debt.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }

    /// Time from which the host's time counts.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that a host has used up after 100 s, if it pays `bytes` in each second.
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

    /// Mechanism: time counted from the request for the data, and started anew with every byte that
    /// was taken.
    ///
    /// Consequence: a host that sent steadily lost its connection, and a host that took a byte now
    /// and then held memory for ever.
    ///
    /// Fix: bytes pay for time.
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
