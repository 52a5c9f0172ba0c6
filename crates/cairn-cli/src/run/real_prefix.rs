//! What lies at the mount prefix in the real file system: nothing, unless a program reached it past
//! Cairn, or the user had the prefix hide it.

use crate::output::{count, escaped};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names that are looked at, at most.
const NAMES_MAX: u64 = 100_000;

/// What a run has left there.
pub struct Strayed {
    path: PathBuf,
    /// Names below it.
    pub names: u64,
}

impl Strayed {
    /// None if there is nothing. Only for who knows that nothing was there before.
    pub fn at(mount: &str) -> Option<Strayed> {
        let path = PathBuf::from(mount);
        path.symlink_metadata().ok()?;
        let names = names_below(&path);
        Some(Strayed { path, names })
    }

    /// A line that says so.
    pub fn line(&self) -> String {
        let path = escaped(self.path.as_os_str().as_bytes());
        let more = if self.names >= NAMES_MAX { "more than " } else { "" };
        format!(
            "{path} was made in the real file system, with {more}{} below it, by a program that called the system past Cairn: that is not \
             in the store; move it to where it belongs, or no run of this prefix begins (cairn check PROGRAM says whether a program is served)",
            count(self.names, "name")
        )
    }
}

/// Names below a directory, without those behind other file systems or symbolic links.
fn names_below(directory: &Path) -> u64 {
    let mut names = 0;
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            names += 1;
            if names >= NAMES_MAX {
                return names;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(entry.path());
            }
        }
    }
    names
}
