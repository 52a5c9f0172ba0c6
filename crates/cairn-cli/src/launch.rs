//! Starting a program inside a job: the interposer library and the environment it needs.

use crate::error::{Error, Result};
use crate::store::OpenStore;
use cairn_posix::calls;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File name of the interposer library.
const LIBRARY: &str = "libcairn_preload.so";

/// Where the interposer library is: `CAIRN_PRELOAD`, beside this program, or in `../lib` from
/// there.
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
        return Err(Error::NoPreload { looked_for: places.join(", ") });
    };
    match found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        true => Err(Error::PreloadPath { path: found }),
        false => Ok(found),
    }
}

/// The command `words`, set up to run in the job of `store`; its calls are counted there if that is wanted.
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

/// The value of `LD_PRELOAD`: our library first, then what was there.
fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let others = before.map(OsStr::as_bytes).unwrap_or_default();
    for other in others.split(|byte| matches!(byte, b':' | b' ')) {
        let is_ours = other.ends_with(LIBRARY.as_bytes());
        if !other.is_empty() && !is_ours {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
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
    }
}
