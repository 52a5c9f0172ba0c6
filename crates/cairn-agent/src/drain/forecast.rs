//! Forecast whether the undrained data will be safe before the job's time limit, planned backwards
//! from the limit at the measured rate.
//!
//! Must stay true: a rate limit is lifted while there is still time for the bytes that it would
//! hold back. Nothing is forecast before something was copied.

use crate::model::protocol::Forecast;

/// Seconds reserved for work that the rate does not cover: the last flush, the manifest.
const RESERVE_S: f64 = 5.0;
/// Factor by which the measured rate may get worse.
const SLACK: f64 = 1.25;
/// Limits are lifted this many seconds before the end in any case, if something is undrained.
const LAST_S: f64 = 60.0;

/// Speed of the drain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Bytes per second without limits, as measured; None before anything was copied.
    pub free: Option<f64>,
    /// Bytes per second under the present limits.
    pub kept: Option<f64>,
}

/// Returns the forecast, and whether limits must be lifted.
pub fn forecast(now: f64, until: u64, undrained_bytes: u64, rates: Rates) -> (Forecast, bool) {
    let left = (until as f64 - now).max(0.0);
    let needed_at = |rate: f64| undrained_bytes as f64 / rate.max(1.0) * SLACK + RESERVE_S;
    let needed = rates.free.map(needed_at);
    let is_behind = |needed: Option<f64>| needed.is_some_and(|needed| needed >= left);
    let is_short = left <= LAST_S || is_behind(rates.kept.map(needed_at));
    let lifts = undrained_bytes > 0 && (is_short || is_behind(needed));
    let forecast = Forecast {
        until,
        left_s: left as u64,
        undrained_bytes,
        needed_s: needed.map(|needed| needed.ceil() as u64),
        in_time: undrained_bytes == 0 || !is_behind(needed) && left > 0.0,
    };
    (forecast, lifts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(free: u64, kept: u64) -> Rates {
        let rate = |mib: u64| Some((mib * MIB) as f64);
        Rates { free: rate(free), kept: rate(kept) }
    }

    fn look(left_s: u64, undrained_mib: u64, rates: Rates) -> (bool, bool) {
        let (forecast, lifts) = forecast(1e9, 1_000_000_000 + left_s, undrained_mib * MIB, rates);
        assert_eq!((forecast.left_s, forecast.undrained_bytes), (left_s, undrained_mib * MIB));
        (forecast.in_time, lifts)
    }

    #[test]
    fn limit_is_kept_while_there_is_time_and_lifted_before_it_is_too_late() {
        // 1000 MiB: 1255 s at the limit, 17.5 s without.
        assert_eq!(look(2000, 1000, at(100, 1)), (true, false));
        assert_eq!(look(1254, 1000, at(100, 1)), (true, true));
        assert_eq!(look(17, 1000, at(100, 1)), (false, true));
    }

    #[test]
    fn nothing_is_late_when_nothing_is_left() {
        assert_eq!(look(0, 0, at(1, 1)), (true, false));
        assert_eq!(look(0, 1, at(1, 1)), (false, true));
    }

    #[test]
    fn what_was_never_measured_is_not_foretold_but_has_the_last_minute_to_itself() {
        assert_eq!(look(61, 1000, Rates::default()), (true, false));
        assert_eq!(look(60, 1000, Rates::default()), (true, true));
    }
}
