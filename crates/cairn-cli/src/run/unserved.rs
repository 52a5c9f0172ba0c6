//! Programs that ran in the job but that nothing of it was served to: what the library noted when
//! they were executed.

use crate::output::escaped;
use cairn_agent::model::store_file;
use cairn_posix::process::unserved::{NOTES, UNCAUGHT};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Paths in a message at most.
const PATHS_MAX: usize = 3;
/// Programs that are known of at most.
const PROGRAMS_MAX: usize = 1000;
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// The paths of those programs, sorted. One whose note cannot be read is left out.
pub fn programs(store: &Path) -> Vec<String> {
    let notes = fs::read_dir(store.join(NOTES.to_string_lossy().as_ref()));
    let notes = notes.into_iter().flatten().flatten().take(PROGRAMS_MAX);
    let of_programs = notes.filter(|note| note.file_name().as_bytes() != UNCAUGHT.to_bytes());
    let paths = of_programs.filter_map(|note| store_file::read(&note.path(), PATH_BYTES_MAX).ok());
    let mut paths: Vec<String> = paths.map(|path| escaped(&path)).collect();
    paths.sort();
    paths
}

/// The library, or program, of which calls of the kernel could not be caught. None: there is no
/// such.
pub fn uncaught(store: &Path) -> Option<String> {
    let note =
        store.join(NOTES.to_string_lossy().as_ref()).join(UNCAUGHT.to_string_lossy().as_ref());
    store_file::read(&note, PATH_BYTES_MAX).ok().map(|path| escaped(&path))
}

/// A line that says that.
pub fn line_of_uncaught(library: &str) -> String {
    format!(
        "not served: calls that {library} makes past the C library: this kernel does not let them be caught (prctl, Linux 5.11 or newer)"
    )
}

/// A line that says so; none if there are no such programs.
pub fn line(programs: &[String]) -> Option<String> {
    let named: Vec<&str> = programs.iter().take(PATHS_MAX).map(String::as_str).collect();
    let more = if programs.len() > PATHS_MAX { ", ..." } else { "" };
    (!programs.is_empty()).then(|| {
        format!(
            "not served: {}{more}: gained rights by being executed (set-user-ID, set-group-ID or capabilities), so the \
             system loads nothing into it, nor into what it starts",
            named.join(", ")
        )
    })
}
