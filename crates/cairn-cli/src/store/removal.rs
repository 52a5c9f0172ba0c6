//! Leftovers of removed stores: tiers that stay, and removals that were cut off.
//!
//! Must stay true: a removal that has begun is finished by the next run of the job or by a command
//! that removes stores. No leftover is taken for a store.

use cairn_device::MediumKind;
use cairn_device::store::{LeftTier, finish_removal};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::output::waiting::SAID_AFTER;

use crate::error::{Error, Result};
use crate::store::Roots;

/// Pause between attempts.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long to wait for another command that is removing the same store.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does the same as `finish_earlier`, before a new store is created. A failure is printed and does
/// not stop the caller.
pub fn finish_before(roots: &Roots, job: &str) {
    if let Err(error) = finish_earlier(roots, job) {
        crate::output::say!(
            "cairn: {job}: an earlier store of the job is not removed yet: {error}; try: cairn gc"
        );
    }
}

/// Finishes the removal of earlier stores of `job`. Returns whether there was one. Errors: the
/// removal fails, or another command works on it for a minute.
pub fn finish_earlier(roots: &Roots, job: &str) -> Result<bool> {
    let removed = roots.removed(job);
    removed.iter().try_for_each(|path| finish(job, path))?;
    Ok(!removed.is_empty())
}

/// Finishes one removal.
pub fn finish(job: &str, path: &Path) -> Result<()> {
    let started = Instant::now();
    let mut is_said = false;
    loop {
        match finish_removal(path) {
            Ok(Some(left)) => {
                say_left(job, &left);
                return Ok(());
            }
            // Another command has finished it.
            Err(_) if path.symlink_metadata().is_err() => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(None) => {}
        }
        if started.elapsed() > PATIENCE {
            let late = io::Error::from_raw_os_error(libc::ETIMEDOUT);
            return Err(Error::file("wait for another command that removes", path)(late));
        }
        if started.elapsed() > SAID_AFTER && !is_said {
            is_said = true;
            crate::output::say!(
                "cairn: {job}: waiting for a command that removes an earlier store of the job"
            );
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Prints which tiers stay.
pub fn say_left(job: &str, left: &[LeftTier]) {
    left.iter().for_each(|left| crate::output::say!("cairn: {job}: {}", shown_left(left)));
}

/// Returns a message about a tier that stays when its store is removed.
fn shown_left(left: &LeftTier) -> String {
    let remedy = match (left.error.errno, left.kind) {
        // The tier belongs to another store, here or on another machine.
        (libc::ESTALE | libc::EWOULDBLOCK, _) => "",
        _ if left.error.holder.is_some() => "",
        (_, MediumKind::Remote) => {
            " and its claim by this machine, until a run takes it: here with --tier, elsewhere with --tier and take-over=yes"
        }
        _ => ", until a run takes it with --tier, or somebody removes it",
    };
    let error = Error::from(left.error.clone());
    format!("a tier was not emptied: {error}; it keeps its data{remedy}")
}
