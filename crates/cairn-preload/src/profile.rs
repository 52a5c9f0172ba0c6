//! Profile of a program built with `-pg`. The C library writes it at exit, past every hook. It goes
//! to the kernel's current directory, which is a stand-in without write permission while the
//! program is in a Cairn directory, or to the path in `GMON_OUT_PREFIX`, which can lead below the
//! mount.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cairn_posix::files::cwd;
use cairn_posix::kernel;
use cairn_posix::kernel::configuration;

/// If set, the profile's name is this value followed by the process id.
const PREFIX: &str = "GMON_OUT_PREFIX";
/// Maximum number of directory names tried. A killed process with the same id may have left some.
const TRIES: u32 = 100;

/// As the C library's function of this name, which the program's start-up code registered to run at
/// exit.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _mcleanup() {
    let write = || {
        // SAFETY: no argument.
        unsafe { next!(_mcleanup: fn() -> ())() }
    };
    let prefix = std::env::var_os(PREFIX).unwrap_or_default();
    let (folder, name) = match prefix.as_bytes().iter().rposition(|&byte| byte == b'/') {
        Some(at) => prefix.as_bytes().split_at(at + 1),
        None => (&b""[..], prefix.as_bytes()),
    };
    let (folder, name) = (Path::new(OsStr::from_bytes(folder)), OsStr::from_bytes(name));
    let leads_elsewhere = !folder.as_os_str().is_empty();
    // With an empty name the process id alone is the name. A prefix without a directory cannot
    // express that.
    let place = configuration::get()
        .filter(|_| leads_elsewhere && !name.is_empty() || !leads_elsewhere && cwd::is_stand_in())
        .and_then(|configuration| make_place(configuration.store()));
    let Some(place) = place else { return write() };
    if leads_elsewhere {
        // SAFETY: the program is ending. Its other threads were already in a race with the C
        // library's own reading of the variable.
        unsafe { std::env::set_var(PREFIX, name) };
    }
    if let Err(error) = write_in(&place, folder, write) {
        let _ =
            writeln!(io::stderr(), "cairn: the profile of this program cannot be written: {error}");
    }
    let _ = fs::remove_dir_all(&place);
}

/// Creates a directory in the store that nobody else uses.
fn make_place(store: &[u8]) -> Option<PathBuf> {
    let store = Path::new(OsStr::from_bytes(store));
    let names = (0..TRIES).map(|count| format!("profile.{}.{count}", kernel::getpid()));
    let mut places = names.map(|name| store.join(name));
    places.find(|place| DirBuilder::new().mode(0o700).create(place).is_ok())
}

/// Runs `write` with `place` as the kernel's current directory, then copies the files made there to
/// `folder`, a path of the program.
fn write_in(place: &Path, folder: &Path, write: impl Fn()) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let failed = |errno: cairn_posix::Errno| io::Error::from_raw_os_error(errno.0);
    let open = |path: &Path| {
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        kernel::openat(libc::AT_FDCWD, &path, flags, 0).map_err(|errno| failed(errno.into()))
    };
    let (here, there) = (open(Path::new("."))?, open(place));
    let moved = there.is_ok_and(|there| {
        let moved = kernel::fchdir(there).is_ok();
        let _ = kernel::close(there);
        moved
    });
    if moved {
        write();
        let _ = kernel::fchdir(here);
    }
    let _ = kernel::close(here);
    let files: Vec<OsString> =
        fs::read_dir(place)?.map(|file| Ok(file?.file_name())).collect::<io::Result<_>>()?;
    for name in files {
        fs::write(folder.join(&name), fs::read(place.join(&name))?)?;
    }
    Ok(())
}
