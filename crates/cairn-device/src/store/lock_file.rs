//! Lock files of the store: the kernel keeps the locks of Cairn's files on them. There is one for
//! each file that was ever locked. It is named after the inode number and the birth time of that
//! file, so that a later file with the same number has another one.
//!
//! Must stay true: a lock file is removed only when its file is gone, because then nobody locks it
//! any more. A process that still has it open loses nothing.
//!
//! Does not know who holds locks; the kernel does.

use cairn_core::{InodeId, Timestamp};
use std::fs;
use std::io;
use std::path::Path;

const BETWEEN: &str = ".lock-";
/// Directory of placeholders and lock files, in that of the store.
const DIRECTORY: &str = "handles";

/// Returns the name of the lock file in the directory of placeholders, for a file of `namespace`.
pub fn name(namespace: &str, inode: InodeId, born: Timestamp) -> String {
    format!("{namespace}{BETWEEN}{}-{:x}", inode.0, born.0)
}

/// Whether the path of an open file is that of a lock file of any store.
pub fn is_path(path: &[u8]) -> bool {
    let mut names = path.rsplit(|&byte| byte == b'/');
    let (name, directory) = (names.next().unwrap_or_default(), names.next());
    directory == Some(DIRECTORY.as_bytes())
        && name.windows(BETWEEN.len()).any(|part| part == BETWEEN.as_bytes())
}

/// Returns the file that a lock file of `namespace` belongs to; `None` for any other name.
fn owner(namespace: &str, name: &str) -> Option<(InodeId, Timestamp)> {
    let (inode, born) = name.strip_prefix(namespace)?.strip_prefix(BETWEEN)?.split_once('-')?;
    let inode = inode.parse().ok()?;
    u64::from_str_radix(born, 16).ok().map(|born| (InodeId(inode), Timestamp(born as i64)))
}

/// Removes the lock files, in the store at `store`, of files of `namespace` that do not exist any
/// more. Returns their number. Errors: the directory cannot be read, or a file cannot be removed.
pub fn sweep(
    store: &Path,
    namespace: &str,
    mut exists: impl FnMut(InodeId, Timestamp) -> bool,
) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(store.join(DIRECTORY))? {
        let entry = entry?;
        let Some((inode, born)) =
            entry.file_name().to_str().and_then(|name| owner(namespace, name))
        else {
            continue;
        };
        if !exists(inode, born) {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_files_go_with_their_files() {
        let store = std::env::temp_dir().join(format!("cairn-lock-files-{}", std::process::id()));
        fs::create_dir_all(store.join("handles")).expect("makes");
        let [old, new] = [Timestamp(-5), Timestamp(7)];
        let paths = [name("node", InodeId(3), old), name("node", InodeId(3), new)];
        assert!(is_path(b"/dev/shm/cairn-0/a/handles/node.lock-3-7 (deleted)"));
        assert!(!is_path(b"/dev/shm/handles.lock-3-7") && !is_path(b"/handles/node.3"));
        let others = ["node.3", "node.3.token", "node.lock-3", "node.lock-3-x"];
        let other_namespace = name("node.1", InodeId(3), old);
        let all = paths.iter().map(String::as_str).chain(others).chain([other_namespace.as_str()]);
        all.clone()
            .for_each(|path| fs::write(store.join("handles").join(path), "").expect("writes"));
        let swept = sweep(&store, "node", |inode, born| (inode, born) == (InodeId(3), new));
        assert_eq!(swept.expect("sweeps"), 1);
        let left: Vec<&str> =
            all.filter(|path| store.join("handles").join(path).exists()).collect();
        assert_eq!(left, [&[paths[1].as_str()], &others[..], &[other_namespace.as_str()]].concat());
        fs::remove_dir_all(store).expect("removes");
    }
}
