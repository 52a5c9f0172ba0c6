//! Decides whether a new store may use a persist directory that has files already.
//!
//! Must stay true: a run that would replace files that an earlier start, or another job, has
//! drained is refused before any program starts. The message names the alternatives.

use cairn_agent::model::job::Job;
use cairn_agent::persist::ownership;
use std::path::PathBuf;

use crate::error::{Error, PersistError, Result};
use crate::output::waiting::waited_for;
use crate::request::Request;
use crate::settings::stage_option::Stage;

/// Checks the persist directory before a new store of `job` is used, and claims it. With `--fresh`,
/// moves existing files aside. Errors: `Owned`.
pub fn settle(job: &Job, request: &Request) -> Result<()> {
    let Some(persist) = &job.persist else { return Ok(()) };
    loop {
        free(job, request)?;
        match ownership::claim(persist, job) {
            // Another job was faster.
            Err(cairn_agent::Error::Owned { .. }) => {}
            claimed => return Ok(claimed?),
        }
    }
}

fn free(job: &Job, request: &Request) -> Result<()> {
    let goes_on = request.stage != Stage::Nothing;
    let Some(persist) = job.persist.as_ref().filter(|_| !job.shared) else { return Ok(()) };
    let look = |path: &PathBuf| ownership::owner(path, &job.job, job.launch.as_deref());
    let find = || waited_for(persist, || look(persist));
    while let Some(owner) = find()? {
        if request.fresh {
            let place = ownership::set_aside(persist, &owner)?;
            crate::output::say!(
                "cairn: {}: what job {owner} drained is set aside in {}",
                job.job,
                place.display()
            );
            continue;
        }
        let is_own = owner == job.job;
        if is_own && goes_on {
            return Ok(());
        }
        return Err(Error::Persist(PersistError::Owned { path: persist.clone(), owner, is_own }));
    }
    Ok(())
}
