//! Notes at the start of a run about stores of earlier runs that the user may have meant to resume.
//!
//! Must stay true: there is no note if nothing is wrong. Ranks of a launcher get none, because
//! their nodes may drain to one directory.

use cairn_posix::process::rank;

use crate::request::Request;
use crate::store::{OpenStore, Roots};

/// Maximum number of jobs that a line names.
const NAMES_MAX: usize = 3;

/// Returns the notes, one line each; none if the run resumes the job's store.
pub fn lines(roots: &Roots, request: &Request, command: &[String]) -> Vec<String> {
    let job = request.job.as_deref();
    if rank::seat().is_some() || job.is_some_and(|job| roots.find(job).is_some()) {
        return Vec::new();
    }
    let store = job.is_none().then(|| store_of(roots, command)).flatten();
    store.into_iter().collect()
}

/// Returns a note about the stores that runs of the same command have left.
fn store_of(roots: &Roots, command: &[String]) -> Option<String> {
    let stores = roots.all().into_iter().filter_map(|(_, path)| OpenStore::open(&path).ok());
    let left = stores.filter(|store| store.job.command == command && !store.is_running());
    let jobs: Vec<String> = left.map(|store| store.job.job).collect();
    Some(format!(
        "this is a new job; an earlier run of the same command left the store of {}; to continue it: --job {}",
        named(&jobs)?,
        one_of(&jobs)
    ))
}

fn named(jobs: &[String]) -> Option<String> {
    let more = if jobs.len() > NAMES_MAX { ", ..." } else { "" };
    let names = jobs.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match jobs.len() {
        0 => None,
        1 => Some(format!("job {names}")),
        _ => Some(format!("jobs {names}{more}")),
    }
}

/// Returns the value for `--job` in the note.
fn one_of(jobs: &[String]) -> &str {
    match jobs {
        [job] => job,
        _ => "NAME",
    }
}
