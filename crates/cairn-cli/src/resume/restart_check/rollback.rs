//! Copies the content of a store that is abandoned for its last image to a directory of its own,
//! verified.
//!
//! Must stay true: nothing in the store or its images is removed here, and nobody writes to the
//! store meanwhile.

use cairn_agent::model::drain_task::{Delivery, DrainTask};
use cairn_agent::model::job::left_name;
use cairn_agent::persist::image_place;
use std::time::Duration;

use crate::create::claim::Claim;
use crate::drain::drain_with;
use crate::error::{Error, PersistError, Result, ResumeError};
use crate::output::{self, count};
use crate::store::survey;

/// Copies everything in the store out. Errors: the store has no image, programs still use it, or
/// something could not be copied.
pub fn set_aside(claim: &Claim, quiet: bool) -> Result<()> {
    let job = &claim.store.job;
    let name = job.job.clone();
    let persist = job
        .persist
        .as_ref()
        .ok_or_else(|| Error::Persist(PersistError::NoPersist { job: name.clone() }))?;
    if image_place::newest(persist, &name).is_none() {
        return Err(Error::Resume(ResumeError::NoImage {
            job: name,
            persist: persist.display().to_string(),
        }));
    }
    let not_left =
        |reason: String| Error::Resume(ResumeError::NotSetAside { job: name.clone(), reason });
    let nobody_uses_it = || match survey::programs(&claim.store)? {
        processes if processes.is_empty() => Ok(()),
        processes => Err(not_left(output::still_use(&processes))),
    };
    nobody_uses_it()?;
    let told = DrainTask { delivery: Delivery::LeftForImage, ..DrainTask::default() };
    let left = drain_with(&claim.store, None, Duration::ZERO, told, quiet);
    let left = left.map_err(|error| not_left(error.to_string()))?;
    if !left.outcome.complete || !left.outcome.unclean.is_empty() {
        return Err(not_left(crate::drain::left(&left.outcome)));
    }
    // A program may have entered the store meanwhile.
    nobody_uses_it()?;
    if image_place::newest(persist, &name).is_none() {
        return Err(Error::Resume(ResumeError::NoImage {
            job: name,
            persist: persist.display().to_string(),
        }));
    }
    if !quiet {
        let (files, place) = (count(left.files, "file"), persist.join(left_name(&name)));
        let place = place.display();
        output::say!(
            "cairn: {name}: all of the store as the last run left it, {files}, in {place}, verified"
        );
    }
    Ok(())
}
