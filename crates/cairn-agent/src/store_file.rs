//! Small files in a store's directory, read by the tools. The directory is its user's alone, but other processes of that user
//! may have put anything there.
//!
//! Must stay true: reading waits for nobody and takes no more memory than the caller allows, whatever stands there.

use cairn_device::descriptor::Descriptor;
use cairn_device::directory::c_path;
use cairn_device::{Errno, sys};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What tells one version of a file that is replaced whole from another: inode, seconds and nanoseconds of its last change.
pub type Version = (u64, i64, i64);

/// The version of the file at `path` now; None if there is none.
pub fn version(path: &Path) -> Option<Version> {
    let found = path.metadata().ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec()))
}

/// What the regular file holds, which is an error if there is more than `bytes_max` of it.
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
