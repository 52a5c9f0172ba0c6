//! `cairn status --wait`: following a drain that goes on in the background.
//!
//! Must stay true: asking changes nothing: the agent is watched, not told; whoever stops watching stops nothing.

use crate::drain::left;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::standing::Standing;
use crate::store::OpenStore;
use cairn_agent::protocol::{Phase, Status};
use std::thread;
use std::time::Duration;

/// How often the agent is asked. Within that time it has seen whatever was closed before.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Watches the drain of `store` until its agent has nothing to do, or can do nothing for now.
/// Errors: `NoPersist`, `NotDrained` with what is left.
pub fn to_the_end(store: &OpenStore, quiet: bool) -> Result<()> {
    let Some(persist) = &store.job.persist else {
        return Err(Error::NoPersist { job: store.job.job.clone() });
    };
    let place = persist.display().to_string();
    let mut progress = Progress::new(&format!("draining to {place}"), 0, quiet);
    let mut agent = store.agent()?;
    let mut was_at_rest = false;
    loop {
        match agent.status() {
            Ok(status) if was_at_rest && is_at_rest(&status) => {
                drop(progress);
                return judge(store, &place, &status);
            }
            Ok(status) => {
                was_at_rest = is_at_rest(&status);
                progress.set(status.progress.bytes_done, status.progress.bytes_total);
                thread::sleep(ASK_EVERY);
            }
            // One that was killed is replaced, and takes up where it was.
            Err(cairn_agent::Error::AgentAnswer { .. }) => agent = store.agent()?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the agent has nothing to do, or can do nothing for now.
fn is_at_rest(status: &Status) -> bool {
    status.settled || status.phase == Phase::Retrying
}

fn judge(store: &OpenStore, place: &str, status: &Status) -> Result<()> {
    let last = &status.last;
    let summary = match &status.reason {
        _ if last.complete && status.settled => return Ok(()),
        Some(reason) => format!("the drain is not complete: {reason}; it is tried again"),
        None if !last.open.is_empty() || !last.failed.is_empty() => left(last),
        None => Standing::of(store)?.lines(place, "the store").join("; "),
    };
    Err(Error::NotDrained { summary })
}
