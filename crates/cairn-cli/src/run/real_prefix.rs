//! Looks for files at the mount prefix in the real file system. There are none unless a
//! program bypassed Cairn, or the user let the prefix hide a directory.

use crate::output::{count, escaped};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of names to count.
const NAMES_MAX: u64 = 100_000;

/// What a run has left at the mount prefix in the real file system.
pub struct Strayed {
    path: PathBuf,
    /// Number of names below it.
    pub names: u64,
}

impl Strayed {
    /// Returns what is at `mount`; None if nothing is. Precondition: nothing was there before the
    /// run.
    pub fn at(mount: &str) -> Option<Strayed> {
        let path = PathBuf::from(mount);
        path.symlink_metadata().ok()?;
        let names = names_below(&path);
        Some(Strayed { path, names })
    }

    /// Whether it is more than an empty directory.
    pub fn is_something(&self) -> bool {
        self.names > 0 || !self.path.is_dir()
    }

    /// Returns a message about it.
    pub fn line(&self) -> String {
        let path = escaped(self.path.as_os_str().as_bytes());
        let more = if self.names >= NAMES_MAX { "at least " } else { "" };
        format!(
            "{path} was made in the real file system, with {more}{} below it, by a program that bypassed Cairn; these files are not \
             in the store: move them away, or later runs with this prefix are refused (cairn check PROGRAM says whether a program is served)",
            count(self.names, "name")
        )
    }
}

/// Counts the names below a directory, up to a limit. Follows no symbolic link, and enters no other
/// file system.
fn names_below(directory: &Path) -> u64 {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|found| found.dev());
    let own = device(directory);
    let mut names = 0;
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            names += 1;
            if names >= NAMES_MAX {
                return names;
            }
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && device(&path) == own {
                left.push(path);
            }
        }
    }
    names
}
