//! Tests before a job starts whether its programs will be served: a process of ours, which loads
//! the library like any other program, looks at the mount prefix.
//!
//! Must stay true: the probe writes nothing to the store, which may be full or failing. The command
//! reports what is wrong and what to do, because the library cannot.
//!
//! Does not examine the job's own program; `cairn check` does.

use cairn_agent::model::error::why;
use clap::Args;
use std::ffi::{CStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{fs, io};

use crate::error::{Error, LaunchError, Result};
use crate::run::launch;
use crate::store::OpenStore;

/// Variable that disables the probe if set to `never`.
const VARIABLE: &str = "CAIRN_RUN_PROBE";

/// Find out whether files below the prefix are served here (started by `cairn run`).
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print all findings as JSON (for `cairn check --self`)
    #[arg(long)]
    pub report: bool,
    /// The mount prefix
    pub mount: PathBuf,
}

/// Starts the probe in the job of `store`. Errors: `Unserved`.
pub fn check(store: &OpenStore, library: &Path) -> Result<()> {
    if std::env::var_os(VARIABLE).is_some_and(|when| when == "never") {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(Error::file("find", Path::new("cairn")))?;
    let words: [OsString; 3] = [program.into(), "probe".into(), store.job.mount.clone().into()];
    let mut command = launch::command(store, library, &words, false);
    // The probe needs no redirection of raw system calls.
    command.env("CAIRN_RAW_CALLS", "pass");
    let output = command.stdin(Stdio::null()).output().map_err(|source| {
        Error::Launch(LaunchError::Execute {
            command: words[0].to_string_lossy().into_owned(),
            source,
        })
    })?;
    if output.status.success() {
        return Ok(());
    }
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let reason = match (complaint(&output.stderr), found) {
        (Some(linker), _) => format!("the dynamic linker cannot load it: {linker}"),
        (None, found) if found.is_empty() => {
            format!("a program with it ends with {}", output.status)
        }
        (None, found) => found,
    };
    Err(Error::Launch(LaunchError::Unserved { library: library.to_path_buf(), reason }))
}

/// Returns why the dynamic linker could not load the library, from the linker's message on standard
/// error.
pub fn complaint(said: &[u8]) -> Option<String> {
    let said = String::from_utf8_lossy(said);
    let reason = said.split("cannot be preloaded (").nth(1)?.split(')').next()?;
    Some(reason.to_owned())
}

/// Runs in the probe process. Returns the exit code; prints the reason of a failure to standard
/// output.
pub fn run(arguments: &Arguments) -> i32 {
    match find_out(&arguments.mount) {
        Ok(()) => 0,
        Err(reason) => {
            crate::output::line(&reason);
            1
        }
    }
}

/// Checks that files below `mount` are served in this process. Errors: the reason, for a person.
pub fn find_out(mount: &Path) -> std::result::Result<(), String> {
    // SAFETY: the name is NUL-terminated.
    let prefix = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cairn_prefix".as_ptr()) };
    if prefix.is_null() {
        return Err(format!("it is not Cairn's, or glibc {} did not load it", glibc()));
    }
    // SAFETY: Cairn's library declares the function of this name with this type (`cairn.h`).
    let prefix: Prefix = unsafe { std::mem::transmute(prefix) };
    look_at(mount, prefix).map_err(|source| {
        let mount = mount.display();
        format!(
            "{mount} is not a directory of the store: {}; library and command may be of different versions",
            why(&source)
        )
    })
}

/// Returns the version of this process's C library.
pub fn glibc() -> String {
    // SAFETY: the function takes no arguments and returns a static NUL-terminated string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}

/// Type of `cairn_prefix` in `cairn.h`.
type Prefix = unsafe extern "C" fn(*mut c_char, usize) -> c_int;

/// Checks that this process has a store at `mount` and can look at its root directory. Writes
/// nothing, because programs are served even if the store is full or its device is gone.
fn look_at(mount: &Path, prefix: Prefix) -> io::Result<()> {
    let mut text = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the function stores at most `text.len()` bytes at `text`.
    let length = unsafe { prefix(text.as_mut_ptr().cast(), text.len()) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    if text.get(..length) != Some(mount.as_os_str().as_bytes()) {
        return Err(io::Error::other("the library knows another prefix"));
    }
    match fs::metadata(mount)?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}
