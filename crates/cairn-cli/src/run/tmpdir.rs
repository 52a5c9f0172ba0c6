//! `cairn run --tmpdir`: temporary files of programs in the store.
//!
//! Many frameworks write a file in TMPDIR and rename it to its place. From another file system that
//! is a copy. Not the default: programs also make sockets and FIFOs in TMPDIR (multiprocessing of
//! Python, MPI), which a store does not have.

use cairn_agent::model::job::Scope;
use cairn_device::store::notes::{HINTS, Kind};
use cairn_job::file::extended::Extended;
use cairn_job::file::path::FilePath;
use std::path::{Path, PathBuf};

use crate::claim::Claim;
use crate::error::{Error, Result, SettingError};
use crate::store::local;

/// Name of the directory below the prefix.
const NAME: &str = "tmp";
/// Everybody may make files there, and remove their own.
const MODE: u32 = 0o1777;

/// Makes the directory for temporary files, which are never drained. Returns its path as programs
/// see it.
pub fn make(claim: &Claim) -> Result<PathBuf> {
    let job = &claim.store.job;
    if job.scope == Scope::Rank {
        let problem = "does not work with --scope rank, where each rank has a store of its own";
        return Err(Error::Setting(SettingError::Option {
            option: "--tmpdir",
            problem: problem.to_string(),
        }));
    }
    let place = FilePath::root().join(NAME.as_bytes());
    for volume in &claim.store.volumes()? {
        local::make_directory(volume, &place, MODE, &Extended::default())?;
    }
    let place = Path::new(&job.mount).join(NAME);
    let hint = HINTS.iter().position(|name| *name == "temporary").map_or(0, |at| at as u64 + 1);
    for pattern in [place.display().to_string(), format!("{}/**", place.display())] {
        claim.note(Kind::Hint, hint, pattern.into_bytes())?;
    }
    Ok(place)
}
