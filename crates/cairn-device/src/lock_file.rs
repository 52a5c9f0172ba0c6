//! Files of the store on which the kernel keeps the locks of files: one for each file that was ever
//! locked, named after its inode number and when it was born, so that another file of that number
//! has another one.
//!
//! Must stay true: one is removed only when its file is gone, so that nobody comes to lock it; who
//! still has it open loses nothing.
//! Does not know who holds locks; the kernel does.

use cairn_core::{InodeId, Timestamp};
use std::fs;
use std::io;
use std::path::Path;

const BETWEEN: &str = ".lock-";

/// Its name in the directory of placeholders, for a file of `namespace`.
pub fn name(namespace: &str, inode: InodeId, born: Timestamp) -> String {
    format!("{namespace}{BETWEEN}{}-{:x}", inode.0, born.0)
}

/// Whose it is, if this is one of `namespace`.
fn owner(namespace: &str, name: &str) -> Option<(InodeId, Timestamp)> {
    let (inode, born) = name.strip_prefix(namespace)?.strip_prefix(BETWEEN)?.split_once('-')?;
    let inode = inode.parse().ok()?;
    u64::from_str_radix(born, 16).ok().map(|born| (InodeId(inode), Timestamp(born as i64)))
}

/// Removes those of files of `namespace` of the store in `store` that do not exist any more; how
/// many.
/// Errors: the directory cannot be read, or a file not removed.
pub fn sweep(
    store: &Path,
    namespace: &str,
    mut exists: impl FnMut(InodeId, Timestamp) -> bool,
) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(store.join("handles"))? {
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
