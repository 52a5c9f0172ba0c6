//! `cairn status --wait`: follows a drain and an archive that run in the background.
//!
//! Must stay true: the agent is only asked for its status; nothing else changes. If the user stops
//! watching, the drain continues.

use cairn_agent::model::archive::Phase as ArchivePhase;
use cairn_agent::model::policy::AtEnd;
use cairn_agent::model::protocol::{Phase, Status};
use std::thread;
use std::time::Duration;

use crate::drain::drain_state::DrainProgress;
use crate::drain::left;
use crate::error::{Error, PersistError, Result};
use crate::output::progress::Progress;
use crate::settings::archive;
use crate::store::OpenStore;

/// Interval between two requests. The agent notices a closed file within this time.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Watches the agent of `store` until it has nothing left to drain and archive, or cannot continue
/// for now. Errors: `NoPersist`, `NotDrained` with what is left.
pub fn to_the_end(store: &OpenStore, quiet: bool) -> Result<()> {
    let label = match (&store.job.persist, &store.job.archive) {
        (Some(persist), _) => format!("draining to {}", persist.display()),
        (None, Some(policy)) => format!("archiving in {}", policy.url),
        (None, None) => {
            return Err(Error::Persist(PersistError::NoPersist { job: store.job.job.clone() }));
        }
    };
    let mut progress = Progress::new(&label, 0, quiet);
    let mut agent = store.agent()?;
    let mut was_at_rest = false;
    loop {
        match agent.status() {
            Ok(status) if was_at_rest && is_at_rest(store, &status) => {
                drop(progress);
                judge_drain(store, &status)?;
                return judge_archive(store, &status);
            }
            Ok(status) => {
                was_at_rest = is_at_rest(store, &status);
                let (done, total) = match (&store.job.persist, &status.archive) {
                    (None, Some(archive)) => (archive.sent_bytes, archive.sending_bytes),
                    _ => (status.progress.bytes_done, status.progress.bytes_total),
                };
                progress.set(done, total);
                thread::sleep(ASK_EVERY);
            }
            // An agent that was killed is replaced, and the next one continues its work.
            Err(cairn_agent::Error::AgentAnswer { .. }) => agent = store.agent()?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether the agent has nothing to do, or cannot continue for now.
fn is_at_rest(store: &OpenStore, status: &Status) -> bool {
    let is_archive_at_rest = match (&store.job.archive, &status.archive) {
        (None, _) => true,
        (Some(_), Some(archive)) => archive.phase != ArchivePhase::Uploading,
        // The agent has not looked yet, or does not look before somebody asks.
        (Some(_), None) => store.job.drain.at_end == AtEnd::Nothing && !store.is_running(),
    };
    (status.settled || status.phase == Phase::Retrying) && is_archive_at_rest
}

fn judge_drain(store: &OpenStore, status: &Status) -> Result<()> {
    let Some(persist) = &store.job.persist else { return Ok(()) };
    let last = &status.last;
    let summary = match &status.reason {
        _ if last.complete && last.open.is_empty() && status.settled => return Ok(()),
        Some(reason) => format!("the drain is not complete: {reason}; the agent tries again"),
        None if !last.open.is_empty() || !last.failed.is_empty() => left(last),
        None => {
            DrainProgress::of(store)?.lines(&persist.display().to_string(), "the store").join("; ")
        }
    };
    Err(Error::Persist(PersistError::NotDrained { summary }))
}

fn judge_archive(store: &OpenStore, status: &Status) -> Result<()> {
    let summary = match (&store.job.archive, &status.archive) {
        (None, _) => return Ok(()),
        (Some(_), Some(archive)) if archive.is_complete() => return Ok(()),
        (Some(_), Some(archive)) => format!("archive not complete: {}", archive::missing(archive)),
        (Some(_), None) => format!("not archived; archive it with: cairn drain {}", store.job.job),
    };
    Err(Error::Persist(PersistError::NotDrained { summary }))
}
