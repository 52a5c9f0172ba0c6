//! Starts a program inside a job: the interposer library and the environment it needs.

use cairn_posix::files::cwd;
use cairn_posix::kernel::calls;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, LaunchError, Result};
use crate::store::OpenStore;

/// File name of the interposer library.
const LIBRARY: &str = "libcairn_preload.so";
/// Name prefixes of libraries that must be loaded before any other.
const SANITIZERS: [&str; 5] = ["libasan.", "libtsan.", "libubsan.", "liblsan.", "libclang_rt."];

/// Finds the interposer library: in `CAIRN_PRELOAD`, beside this program, or in `../lib`,
/// `../lib64` or `../lib/cairn` from there.
pub fn find_library() -> Result<PathBuf> {
    let named = std::env::var_os("CAIRN_PRELOAD").filter(|path| !path.is_empty());
    let candidates: Vec<PathBuf> = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let program = std::env::current_exe();
            let program = program.map_err(Error::file("find", Path::new("cairn")))?;
            let beside = program.parent().unwrap_or(Path::new("/"));
            ["", "../lib", "../lib64", "../lib/cairn"]
                .iter()
                .map(|directory| beside.join(directory).join(LIBRARY))
                .collect()
        }
    };
    let Some(found) = candidates.iter().find_map(|path| path.canonicalize().ok()) else {
        let places: Vec<String> =
            candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(Error::Launch(LaunchError::NoPreload { looked_for: places.join(", ") }));
    };
    match found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        true => Err(Error::Launch(LaunchError::PreloadPath { path: found })),
        false => Ok(found),
    }
}

/// Returns the command `words`, set up to run in the job of `store`. Its calls are counted there if
/// `counts_calls`.
pub fn command(
    store: &OpenStore,
    library: &Path,
    words: &[OsString],
    counts_calls: bool,
) -> Command {
    let program = words.first().map(OsString::as_os_str).unwrap_or_default();
    let mut command = Command::new(program);
    command
        .args(words.get(1..).unwrap_or_default())
        .env("LD_PRELOAD", preload(library, std::env::var_os("LD_PRELOAD").as_deref()))
        .env("CAIRN_STORE", store.directory())
        .env("CAIRN_MOUNT", &store.job.mount)
        .env("CAIRN_SCOPE", store.job.scope.to_string())
        .env("CAIRN_JOB", &store.job.job);
    if counts_calls {
        command.env(calls::VARIABLE, "1");
    }
    command
}

/// Records in the store the directory where the run was started, which core files need. Without it,
/// a program that dies in a directory below the mount prefix leaves no core file.
pub fn note_directory(store: &OpenStore) {
    let link = store.directory().join(OsStr::from_bytes(cwd::LAUNCH_LINK.to_bytes()));
    let unfinished = link.with_extension(format!("{}.new", std::process::id()));
    let make = || match std::env::current_dir()? {
        here if here.starts_with(&store.job.mount) => Ok(()),
        here => symlink(here, &unfinished).and_then(|()| fs::rename(&unfinished, &link)),
    };
    if make().is_err() {
        let _ = fs::remove_file(&unfinished);
    }
}

/// Whether system calls that programs make with their own instructions are served: the kernel can
/// redirect them to Cairn, and `CAIRN_RAW_CALLS` is not `pass`.
pub fn catches_raw_calls() -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    let is_wanted = std::env::var_os("CAIRN_RAW_CALLS").is_none_or(|what| what != "pass");
    // SAFETY: the call takes numbers only; it turns off a feature that is off in this thread.
    let can = || unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) } == 0;
    cfg!(target_arch = "x86_64") && is_wanted && can()
}

/// Returns the value of `LD_PRELOAD`: sanitizers, then our library, then the other libraries of
/// `before`. Sanitizers come first so that they also see the program's calls on files of the store.
fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let others = before.map(OsStr::as_bytes).unwrap_or_default();
    let others = others.split(|byte| matches!(byte, b':' | b' ')).filter(|other| !other.is_empty());
    let others = others.filter(|other| !other.ends_with(LIBRARY.as_bytes()));
    let (sanitizers, others): (Vec<&[u8]>, Vec<&[u8]>) =
        others.partition(|other| is_sanitizer(other));
    let ours = library.as_os_str().as_bytes();
    let all: Vec<&[u8]> = sanitizers.into_iter().chain([ours]).chain(others).collect();
    OsString::from_vec(all.join(&b':'))
}

fn is_sanitizer(library: &[u8]) -> bool {
    let name = library.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    SANITIZERS.iter().any(|sanitizer| name.starts_with(sanitizer.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_library_comes_first_once_and_others_stay() {
        let library = Path::new("/lib/libcairn_preload.so");
        let value = |before: &str| preload(library, Some(OsStr::new(before)));
        assert_eq!(preload(library, None), "/lib/libcairn_preload.so");
        assert_eq!(value("/a.so /b.so"), "/lib/libcairn_preload.so:/a.so:/b.so");
        assert_eq!(value("/old/libcairn_preload.so:/a.so"), "/lib/libcairn_preload.so:/a.so");
        assert_eq!(
            value("/a.so:/b/libasan.so.8"),
            "/b/libasan.so.8:/lib/libcairn_preload.so:/a.so"
        );
    }
}
