//! The profile of a program that was built with `-pg`. The C library writes it at exit, past every hook, into the kernel's
//! current directory: while the program is in a directory of ours it cannot be made there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fs, io};

use cairn_posix::{configuration, cwd, kernel};

/// As the C library's function of this name, which the start-up code of such a program has called at exit.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _mcleanup() {
    let write = || {
        // SAFETY: no argument.
        unsafe { next!(_mcleanup: fn() -> ())() }
    };
    match configuration::get().filter(|_| cwd::is_stand_in()) {
        None => write(),
        Some(configuration) => {
            let store = Path::new(OsStr::from_bytes(configuration.store()));
            let place = store.join(format!("profile.{}", kernel::getpid()));
            if fs::create_dir(&place).is_err() {
                return write();
            }
            if let Err(error) = write_in(&place, write) {
                eprintln!("cairn: the profile of this program could not be written: {error}");
            }
            let _ = fs::remove_dir_all(&place);
        }
    }
}

/// Lets `write` make files in `place`, and copies them to where the program is.
fn write_in(place: &Path, write: impl Fn()) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let here = kernel::openat(libc::AT_FDCWD, c".", flags, 0)
        .map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    let there = std::ffi::CString::new(place.as_os_str().as_bytes())?;
    let moved = kernel::openat(libc::AT_FDCWD, &there, flags, 0).is_ok_and(|there| {
        let moved = kernel::fchdir(there).is_ok();
        let _ = kernel::close(there);
        moved
    });
    write();
    if moved {
        let _ = kernel::fchdir(here);
    }
    let _ = kernel::close(here);
    for file in fs::read_dir(place)? {
        let file = file?;
        fs::write(file.file_name(), fs::read(file.path())?)?;
    }
    Ok(())
}
