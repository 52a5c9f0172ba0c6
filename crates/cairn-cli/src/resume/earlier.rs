//! Stores that earlier runs left and that a run with a new one may be meant to go on in: said
//! before it begins.
//!
//! Must stay true: nothing is said where nothing is wrong, and nothing to the ranks of a launcher,
//! whose nodes may drain to one directory.

use crate::create::request::Request;
use crate::store::{OpenStore, Roots};
use cairn_posix::process::rank;

/// Jobs named in a line at most.
const NAMES_MAX: usize = 3;

/// A line each; none if the job has a store, in which it goes on.
pub fn lines(roots: &Roots, request: &Request, command: &[String]) -> Vec<String> {
    let job = request.job.as_deref();
    if rank::seat().is_some() || job.is_some_and(|job| roots.find(job).is_some()) {
        return Vec::new();
    }
    let store = job.is_none().then(|| store_of(roots, command)).flatten();
    store.into_iter().collect()
}

/// The stores that runs of the same command have left.
fn store_of(roots: &Roots, command: &[String]) -> Option<String> {
    let stores = roots.all().into_iter().filter_map(|(_, path)| OpenStore::open(&path).ok());
    let left = stores.filter(|store| store.job.command == command && !store.is_running());
    let jobs: Vec<String> = left.map(|store| store.job.job).collect();
    Some(format!(
        "this is a new job; the same command has left the store of {}; to go on in it: --job {}",
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

/// What to write after `--job`.
fn one_of(jobs: &[String]) -> &str {
    match jobs {
        [job] => job,
        _ => "NAME",
    }
}
