//! Whether programs that are started in a job are served, found out before the job starts: a process of ours, which the library is
//! loaded into as into any other, uses a file below the prefix.
//!
//! Must stay true: nothing is left in the store. It says what is wrong and what to do; the library itself cannot.
//! Does not look at the job's own program; `cairn check` does.

use crate::error::{Error, Result};
use crate::launch;
use crate::store::OpenStore;
use cairn_agent::error::why;
use clap::Args;
use std::ffi::{CStr, OsString};
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Variable that, set to `never`, leaves the probe out.
const VARIABLE: &str = "CAIRN_RUN_PROBE";
/// What is written and read again.
const TEXT: &[u8] = b"served";

/// Find out whether files below the prefix are served here (started by `cairn run`).
#[derive(Args, Debug)]
pub struct Arguments {
    /// The prefix
    mount: PathBuf,
}

/// Starts the process in the job of `store`. Errors: `Unserved`.
pub fn check(store: &OpenStore, library: &Path) -> Result<()> {
    if std::env::var_os(VARIABLE).is_some_and(|when| when == "never") {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(Error::file("find", Path::new("cairn")))?;
    let words: [OsString; 3] = [program.into(), "probe".into(), store.job.mount.clone().into()];
    let mut command = launch::command(store, library, &words, false);
    let output = command.stdin(Stdio::null()).output().map_err(|source| Error::Execute {
        command: words[0].to_string_lossy().into_owned(),
        source,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let linker = said(&output.stderr);
    let linker =
        linker.split("cannot be preloaded (").nth(1).and_then(|rest| rest.split(')').next());
    let reason = match (linker, said(&output.stdout)) {
        (Some(linker), _) => format!("the dynamic linker cannot load it: {linker}"),
        (None, found) if found.is_empty() => {
            format!("a program with it ends with {}", output.status)
        }
        (None, found) => found,
    };
    Err(Error::Unserved { library: library.to_path_buf(), reason })
}

/// What that process does: the exit code, and the reason on standard output.
pub fn run(arguments: &Arguments) -> i32 {
    match find_out(&arguments.mount) {
        Ok(()) => 0,
        Err(reason) => {
            println!("{reason}");
            1
        }
    }
}

fn find_out(mount: &Path) -> std::result::Result<(), String> {
    // SAFETY: the name is terminated; what is found is not called.
    if unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"cairn_version".as_ptr()) }.is_null() {
        // SAFETY: takes nothing, and returns a text that stays.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy();
        return Err(format!("it is not Cairn's, or glibc {version} did not load it"));
    }
    use_a_file(mount).map_err(|source| {
        let mount = mount.display();
        format!("no file can be used below {mount}: {}; library and command may be of different versions", why(&source))
    })
}

/// A file that never gets a name.
fn use_a_file(mount: &Path) -> io::Result<()> {
    let flags = libc::O_TMPFILE | libc::O_EXCL;
    let mut options = fs::File::options();
    let mut file = options.read(true).write(true).custom_flags(flags).mode(0o600).open(mount)?;
    let mut seen = Vec::new();
    file.write_all(TEXT)?;
    file.rewind()?;
    file.read_to_end(&mut seen)?;
    match seen == TEXT {
        true => Ok(()),
        false => Err(io::Error::other("what is read is not what was written")),
    }
}
