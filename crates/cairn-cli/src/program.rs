//! What the file of a program tells: whether Cairn's library can be loaded into it, and which calls
//! its own code makes.
//!
//! Must stay true: nothing is run.

pub mod confined;
pub mod elf;
pub mod kernel_calls;
pub mod seccomp;

use cairn_platform::elf::{Loader, loader};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, LaunchError, Result};
use elf::Image;

/// Number of bytes of a program that are read first; they hold its headers.
const HEAD_BYTES: usize = 4096;
/// Why a Go program is not served.
pub const IS_GO: &str = "is a Go program: it calls the kernel directly, not the C library";
/// Why a static program is not served.
pub const IS_STATIC: &str = "is linked statically: Cairn's library cannot be loaded into it";
/// Search path if `PATH` is not set.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// Returns why Cairn cannot serve the program `name`, as far as its file tells; None if it can.
/// Reads only the beginning of a file that names a dynamic linker, as most programs do.
pub fn out_of_reach(name: &OsStr) -> Option<&'static str> {
    let path = find_program(name).ok()?;
    // The dynamic linker is not the program: the program it is told to run loads the library.
    if path.file_name()?.as_bytes().starts_with(b"ld") {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let mut bytes = vec![0; HEAD_BYTES];
    let count = file.read(&mut bytes).ok()?;
    bytes.truncate(count);
    if loader(&bytes) != Some(Loader::Kernel) {
        return None;
    }
    file.read_to_end(&mut bytes).ok()?;
    let image = Image::read(&bytes).ok()?;
    match image {
        Image { interpreter: Some(_), .. } | Image { has_cairn: true, .. } => None,
        Image { is_go: true, .. } => Some(IS_GO),
        _ => Some(IS_STATIC),
    }
}

/// Finds the program's file as a shell does. Errors: it does not exist, or is not executable.
pub fn find_program(name: &OsStr) -> Result<PathBuf> {
    let failed = |errno| {
        let source = io::Error::from_raw_os_error(errno);
        Error::Launch(LaunchError::Execute { command: name.to_string_lossy().into_owned(), source })
    };
    let candidates: Vec<PathBuf> = match name.as_bytes().contains(&b'/') {
        true => vec![PathBuf::from(name)],
        false => {
            let search = std::env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
            std::env::split_paths(&search).map(|directory| directory.join(name)).collect()
        }
    };
    let files: Vec<PathBuf> = candidates.into_iter().filter(|path| path.is_file()).collect();
    match (files.iter().find(|path| may_execute(path)), files.first()) {
        (Some(found), _) => Ok(found.clone()),
        (None, Some(_)) => Err(failed(libc::EACCES)),
        (None, None) if Path::new(name).is_dir() => Err(failed(libc::EACCES)),
        (None, None) => Err(failed(libc::ENOENT)),
    }
}

fn may_execute(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
