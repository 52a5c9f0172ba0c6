//! Looks from time to time whether the undrained data will be safe before the job's time limit.
//!
//! Must stay true: walking the namespaces costs at most a twentieth of a processor.

use std::time::{Duration, Instant, SystemTime};

use crate::agent::shared::Shared;
use crate::drain::forecast::forecast;
use crate::model::error::Result;
use cairn_job::file::node::Kind;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A look is followed by a pause of this many times its duration.
const LOOK_FACTOR: u32 = 20;

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
