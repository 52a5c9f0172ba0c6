//! Small files in a store's directory, read by the tools. Only their user can write to the
//! directory, but other processes of that user may have put anything there.
//!
//! Must stay true: a read waits for nobody and takes no more memory than the caller allows,
//! whatever has the name. A file is replaced whole: a reader finds the old or the new content. A
//! failed replacement leaves nothing behind.

use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys;
use cairn_platform::sys::{Errno, c_path};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::model::error::{Error, Result};

/// Version of a file that is replaced whole: inode, seconds and nanoseconds of its last change.
pub type Version = (u64, i64, i64);

/// Returns the version of the file at `path`; None if there is none.
pub fn version(path: &Path) -> Option<Version> {
    let found = path.metadata().ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec()))
}

/// Reads a regular file. Errors: it is not a regular file, or is longer than `bytes_max`.
pub fn read(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let system = |Errno(errno)| io::Error::from_raw_os_error(errno);
    let name = c_path(path).map_err(system)?;
    let file = match Descriptor::open_regular(libc::AT_FDCWD, &name, libc::O_RDONLY, 0) {
        Err(Errno(libc::EINVAL | libc::ELOOP)) => {
            return Err(io::Error::other("it is not a regular file"));
        }
        opened => opened.map_err(system)?,
    };
    match sys::fstat(file.raw()).map_err(system)?.st_size {
        size if size > bytes_max as i64 => Err(io::Error::other("it is too large to be Cairn's")),
        _ => file.read_up_to(bytes_max).map_err(system),
    }
}

/// What a replaced file must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MustSurvive {
    /// The death of the process that wrote it.
    Process,
    /// The loss of power of the node, if the directory survives it.
    Node,
}

/// Replaces the file at `path` by `value` as JSON. Errors: `Json`, `File`.
pub fn replace_json(path: &Path, value: &impl Serialize, outlives: MustSurvive) -> Result<()> {
    let json = |source| Error::Json { path: path.to_path_buf(), source };
    replace(path, &serde_json::to_vec(value).map_err(json)?, outlives)
}

/// Replaces the file at `path` by one with these bytes that only this user can access. Errors:
/// `File`.
pub fn replace(path: &Path, bytes: &[u8], outlives: MustSurvive) -> Result<()> {
    let unfinished = unfinished(path);
    let replaced = write_new(&unfinished, bytes, outlives)
        .and_then(|()| fs::rename(&unfinished, path))
        .and_then(|()| match (outlives, path.parent()) {
            (MustSurvive::Node, Some(directory)) => File::open(directory)?.sync_all(),
            _ => Ok(()),
        });
    if replaced.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    replaced.map_err(Error::file("write", path))
}

/// Returns the name under which this process writes a file until it is complete.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    path.with_file_name(name)
}

/// Whether `name` is the name under which some process writes the file `of`.
pub fn is_unfinished(name: &OsStr, of: &str) -> bool {
    let middle = || {
        name.to_str()?.strip_prefix('.')?.strip_prefix(of)?.strip_prefix('.')?.strip_suffix(".new")
    };
    middle().is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

fn write_new(path: &Path, bytes: &[u8], outlives: MustSurvive) -> io::Result<()> {
    // A killed process may have left something under this name, or another process may have put
    // something there that is not a file at all.
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    if outlives == MustSurvive::Node { file.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn scratch(name: &str) -> PathBuf {
        let name = format!("cairn-store-file-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("a scratch directory");
        directory
    }

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).expect("lists").flatten().map(|entry| entry.file_name()).collect()
    }

    /// Mechanism: the unfinished file was opened whatever had its name. Consequence: a FIFO of that
    /// name blocked for ever, and the target of a symbolic link was overwritten. Fix: whatever has
    /// the name is removed first.
    #[test]
    fn what_has_the_name_of_the_unfinished_file_is_neither_waited_for_nor_written_to() {
        let directory = scratch("name");
        let (path, other) = (directory.join("a.json"), directory.join("other"));
        let made = Command::new("mkfifo").arg(unfinished(&path)).status().expect("starts");
        assert!(made.success());
        replace_json(&path, &[1], MustSurvive::Process).expect("replaces");
        fs::write(&other, "precious").expect("writes");
        std::os::unix::fs::symlink(&other, unfinished(&path)).expect("links");
        replace_json(&path, &[1, 2], MustSurvive::Node).expect("replaces");
        assert_eq!(fs::read(&path).expect("is there"), b"[1,2]");
        assert_eq!(fs::read(&other).expect("is there"), b"precious");
        assert_eq!(path.metadata().expect("is there").mode() & 0o777, 0o600);
        fs::remove_dir_all(directory).expect("removes");
    }

    #[test]
    fn of_a_file_that_cannot_be_replaced_nothing_stays() {
        let directory = scratch("nothing");
        let path = directory.join("a.json");
        fs::create_dir(&path).expect("is made");
        assert!(matches!(replace(&path, b"x", MustSurvive::Process), Err(Error::File { .. })));
        assert_eq!(names(&directory), ["a.json"]);
        fs::remove_dir_all(directory).expect("removes");
    }
}
