//! Forecast whether the undrained data will be safe before the job's time limit, planned backwards
//! from the limit at the measured rate.
//!
//! Must stay true: a rate limit is lifted while there is still time for the bytes that it would
//! hold back. Nothing is forecast before something was copied. Walking the namespaces costs at most
//! a twentieth of a processor.

use crate::agent::shared::Shared;
use crate::model::error::Result;
use crate::store::node::Kind;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant, SystemTime};

/// Seconds reserved for work that the rate does not cover: the last flush, the manifest.
const RESERVE_S: f64 = 5.0;
/// Factor by which the measured rate may get worse.
const SLACK: f64 = 1.25;
/// Limits are lifted this many seconds before the end in any case, if something is undrained.
const LAST_S: f64 = 60.0;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A look is followed by a pause of this many times its duration.
const LOOK_FACTOR: u32 = 20;

/// Speed of the drain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Bytes per second without limits, as measured; None before anything was copied.
    pub free: Option<f64>,
    /// Bytes per second under the present limits.
    pub kept: Option<f64>,
}

/// Forecast for the end of the job's time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// End of the job's time, seconds since the epoch.
    pub until: u64,
    /// Seconds until then.
    pub left_s: u64,
    /// Bytes of files to be drained that are only in the store.
    pub undrained_bytes: u64,
    /// Seconds to drain them as fast as possible, with a reserve; None before anything was
    /// measured.
    pub needed_s: Option<u64>,
    /// Whether they will be safe by then, as far as is known.
    pub in_time: bool,
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

/// Renews the forecast from time to time.
#[derive(Default)]
pub struct Forecaster {
    next: Option<Instant>,
}

impl Forecaster {
    /// Renews the forecast if that is due and the job has a time limit.
    pub fn look(&mut self, shared: &Shared) -> Result<()> {
        let Some(until) = shared.meter.pace.policy().until else {
            shared.state().forecast = None;
            shared.meter.pace.lift(false);
            return Ok(());
        };
        let started = Instant::now();
        if self.next.is_some_and(|next| next > started) {
            return Ok(());
        }
        let undrained_bytes = undrained_bytes(shared)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let rates = shared.meter.pace.rates();
        let (forecast, lifts) = forecast(now.as_secs_f64(), until, undrained_bytes, rates);
        shared.meter.pace.lift(lifts);
        shared.state().forecast = Some(forecast);
        self.next = Some(Instant::now() + LOOK_EVERY.max(started.elapsed() * LOOK_FACTOR));
        Ok(())
    }
}

/// Bytes of files that are to be drained and are only in the store, including files that are still
/// being written.
fn undrained_bytes(shared: &Shared) -> Result<u64> {
    let left_out = shared.meter.left_out();
    let mut bytes = 0;
    for volume in shared.volumes().0 {
        let tree = volume.tree()?;
        let files = tree.iter().filter(|(path, node)| {
            node.kind == Kind::File && !node.unclean && !node.drained && !left_out.contains(*path)
        });
        bytes += files.map(|(_, node)| node.bytes).sum::<u64>();
    }
    Ok(bytes)
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
