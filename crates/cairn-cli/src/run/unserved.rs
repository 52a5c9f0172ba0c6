//! Reads the notes that the library writes about programs of the job that it cannot serve.

use cairn_agent::model::store_file;
use cairn_posix::process::unserved::{NOTES, UNCAUGHT, UNREACHED};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::output::escaped;

/// Maximum number of paths in a message.
const PATHS_MAX: usize = 3;
/// Maximum number of programs that are read.
const PROGRAMS_MAX: usize = 1000;
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// Returns the paths of programs that gained rights, sorted. Notes that cannot be read are left
/// out.
pub fn programs(store: &Path) -> Vec<String> {
    noted(store, |name| name != UNCAUGHT.to_bytes() && !name.starts_with(UNREACHED.as_bytes()))
}

/// Returns the paths of programs that inherited what they cannot use, sorted.
pub fn unreached(store: &Path) -> Vec<String> {
    noted(store, |name| name.starts_with(UNREACHED.as_bytes()))
}

fn noted(store: &Path, is_meant: impl Fn(&[u8]) -> bool) -> Vec<String> {
    let notes = fs::read_dir(store.join(NOTES.to_string_lossy().as_ref()));
    let notes = notes.into_iter().flatten().flatten().take(PROGRAMS_MAX);
    let meant = notes.filter(|note| is_meant(note.file_name().as_bytes()));
    let paths = meant.filter_map(|note| store_file::read(&note.path(), PATH_BYTES_MAX).ok());
    let mut paths: Vec<String> = paths.map(|path| escaped(&path)).collect();
    paths.sort();
    paths
}

/// Returns the library or program whose raw system calls could not be caught; None if there is
/// none.
pub fn uncaught(store: &Path) -> Option<String> {
    let note =
        store.join(NOTES.to_string_lossy().as_ref()).join(UNCAUGHT.to_string_lossy().as_ref());
    store_file::read(&note, PATH_BYTES_MAX).ok().map(|path| escaped(&path))
}

/// Returns a message about a library whose raw system calls could not be caught.
pub fn line_of_uncaught(library: &str) -> String {
    format!(
        "not served: calls that {library} makes past the C library: this kernel cannot intercept them (that takes prctl of Linux 5.11 or newer)"
    )
}

/// Returns a message about programs that gained rights; None if there are none.
pub fn line(programs: &[String]) -> Option<String> {
    let why = "runs with extra rights (set-user-ID, set-group-ID or capabilities), so the system does \
               not load Cairn's library into it or into programs that it starts";
    (!programs.is_empty()).then(|| format!("not served: {}: {why}", few(programs)))
}

/// Returns a message about programs that inherited what they cannot use; None if there are none.
pub fn line_of_unreached(programs: &[String]) -> Option<String> {
    let why = "is static or has another C library, and began with files or a directory of the store, which it \
               cannot use: give --mount-fuse";
    (!programs.is_empty()).then(|| format!("not served: {}: {why}", few(programs)))
}

/// Names the first few programs.
fn few(programs: &[String]) -> String {
    let named: Vec<&str> = programs.iter().take(PATHS_MAX).map(String::as_str).collect();
    named.join(", ") + if programs.len() > PATHS_MAX { ", ..." } else { "" }
}
