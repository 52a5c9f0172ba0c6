//! Names: creating, removing, renaming and linking files and directories; unique temporary names.

use cairn_core::{HandleId, InodeId, PATH_BYTES_MAX, RenameMode};

use crate::descriptors::description;
use crate::error::{Errno, PathError, PathResult, Result};
use crate::files::file;
use crate::files::place::Place;
use crate::kernel::configuration;
use crate::task::fs_context;
use crate::{kernel, mount};

/// Mode bits of a new directory. Set-user-ID has no meaning for a directory.
const DIRECTORY_BITS: u32 = 0o1777;
/// Most names tried for a temporary file, the same as in the C library.
const TEMPORARY_ATTEMPTS_MAX: usize = 238_328;
/// Most symbolic links that `canonical` follows in the last component.
const SYMLINKS_MAX: usize = 40;

/// As `mkdir(2)`.
pub fn make_directory(place: &Place, mode: u32) -> PathResult<()> {
    let (mount, caller) = description::caller()?;
    let mode = mode & DIRECTORY_BITS & !fs_context::umask();
    let made = mount.fs().make_directory(&caller, place.base, place.path, mode);
    mount.at(place, false, made).map(drop)
}

/// As `mknod(2)`, for regular files only. Errors: `EPERM` for others, as on a file system without
/// special files.
pub fn make_node(place: &Place, mode: u32) -> PathResult<()> {
    if !matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG) {
        return Err(why_no_special_file(place));
    }
    if place.path.last() == Some(&b'/') {
        return Err(name_of_a_directory(place));
    }
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
    let descriptor = file::open(place, flags, mode)?;
    Ok(description::close(descriptor)?)
}

/// Returns the error for a special file. Errors of the name come before `EPERM`.
fn why_no_special_file(place: &Place) -> PathError {
    let name = place.path.iter().rposition(|&byte| byte == b'/').map_or(0, |last| last + 1);
    match file::stat(place, false) {
        Ok(_) => Errno(libc::EEXIST).into(),
        Err(PathError::Errno(Errno(libc::ENOENT))) => {
            let parent = Place { base: place.base, path: &place.path[..name] };
            let parent = if name == 0 { Ok(()) } else { file::stat(&parent, true).map(drop) };
            parent.err().unwrap_or(Errno(libc::EPERM).into())
        }
        Err(error) => error,
    }
}

/// Returns the error for creating anything but a directory under a name that ends with a slash.
fn name_of_a_directory(place: &Place) -> PathError {
    let end = place.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    match file::stat(&Place { base: place.base, path: &place.path[..end] }, false) {
        Ok(_) => Errno(libc::EEXIST).into(),
        Err(error) => error,
    }
}

/// As `rmdir(2)`.
pub fn remove_directory(place: &Place) -> PathResult<()> {
    let (mount, caller) = description::caller()?;
    let removed = mount.fs().remove_directory(&caller, place.base, place.path);
    mount.at(place, false, removed)
}

/// As `unlink(2)`.
pub fn unlink(place: &Place) -> PathResult<()> {
    let (mount, caller) = description::caller()?;
    let removed = mount.fs().unlink(&caller, place.base, place.path);
    mount.at(place, false, removed)?;
    mount.reclaim();
    Ok(())
}

/// As `remove(3)`.
pub fn remove(place: &Place) -> PathResult<()> {
    match unlink(place) {
        Err(PathError::Errno(Errno(libc::EISDIR))) => remove_directory(place),
        result => result,
    }
}

/// As `renameat2(2)`. Errors: `EXDEV` if a name leaves the mount; `EINVAL` for `RENAME_WHITEOUT`.
pub fn rename(from: &Place, to: &Place, flags: u32) -> Result<()> {
    let mode = rename_mode(flags)?;
    let (mount, caller) = description::caller()?;
    mount.fs().rename(&caller, (from.base, from.path), (to.base, to.path), mode)?;
    mount.reclaim();
    Ok(())
}

/// Converts the flags of `renameat2`. Errors: `EINVAL`.
pub fn rename_mode(flags: u32) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// As `linkat(2)`. Errors: `EXDEV` if a name leaves the mount.
pub fn link(old: &Place, new: &Place, follow: bool) -> Result<()> {
    let (mount, caller) = description::caller()?;
    Ok(mount.fs().link(&caller, (old.base, old.path), (new.base, new.path), follow)?)
}

/// As `symlink(2)`.
pub fn symlink(target: &[u8], place: &Place) -> PathResult<()> {
    let (mount, caller) = description::caller()?;
    let made = mount.fs().symlink(&caller, target, place.base, place.path);
    mount.at(place, false, made).map(drop)
}

/// Returns the target of a symbolic link.
pub fn read_link(place: &Place) -> PathResult<Vec<u8>> {
    let (mount, caller) = description::caller()?;
    let mut target = Vec::with_capacity(PATH_BYTES_MAX);
    let read = mount.fs().read_link(&caller, place.base, place.path, &mut target);
    mount.at(place, false, read)?;
    Ok(target)
}

/// Returns the absolute path of a directory of ours. Errors: `ENOENT` if it was removed.
pub fn absolute(directory: InodeId) -> Result<Vec<u8>> {
    let below = mount::current()?.fs().path_of(directory)?;
    let mut path = configuration::get().map_or(Vec::new(), |found| found.mount().to_vec());
    if !below.is_empty() {
        path.push(b'/');
        path.extend_from_slice(&below);
    }
    Ok(path)
}

/// As `realpath(3)`: returns the absolute path without symbolic links, `.` and `..`.
pub fn canonical(place: &Place) -> PathResult<Vec<u8>> {
    let mut base = place.base;
    let mut path = place.path.to_vec();
    for _ in 0..=SYMLINKS_MAX {
        let here = Place { base, path: &path };
        let attributes = file::stat(&here, true)?;
        if attributes.is_directory() {
            return Ok(absolute(attributes.inode)?);
        }
        // For a file, resolve the part before the last component to find its directory.
        let split = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (before, name) = (path[..split].to_vec(), path[split..].to_vec());
        let directory = file::resolve(&Place { base, path: &before }, true)?;
        let last = Place { base: directory, path: &name };
        if !file::stat(&last, false)?.is_symlink() {
            let mut result = absolute(directory)?;
            result.push(b'/');
            result.extend_from_slice(&name);
            return Ok(result);
        }
        let target = read_link(&last)?;
        let mount = configuration::get().map_or(&b""[..], |found| found.mount());
        match below(mount, &target) {
            Some(rest) => (base, path) = (cairn_core::ROOT, rest.to_vec()),
            None if target.first() == Some(&b'/') => {
                let outside = std::ffi::CString::new(target);
                return Err(PathError::Elsewhere(outside.map_err(|_| Errno(libc::EINVAL))?));
            }
            None => (base, path) = (directory, target),
        }
    }
    Err(Errno(libc::ELOOP).into())
}

fn below<'a>(mount: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(mount)?;
    match rest.first() {
        None => Some(rest),
        Some(b'/') => {
            let start = rest.iter().position(|&byte| byte != b'/').unwrap_or(rest.len());
            Some(&rest[start..])
        }
        Some(_) => None,
    }
}

/// Fills the `XXXXXX` before the last `suffix` bytes of `template` with letters and digits until
/// `make` succeeds on the name. `make` gets the template and returns `EEXIST` to try another name.
/// Errors: `EINVAL` if the X are missing.
pub fn with_temporary_name<T>(
    template: &mut [u8],
    suffix: usize,
    mut make: impl FnMut(&[u8]) -> PathResult<T>,
) -> PathResult<T> {
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let end = template.len().checked_sub(suffix).ok_or(Errno(libc::EINVAL))?;
    let start = end.checked_sub(6).ok_or(Errno(libc::EINVAL))?;
    if template[start..end] != *b"XXXXXX" {
        return Err(Errno(libc::EINVAL).into());
    }
    for _ in 0..TEMPORARY_ATTEMPTS_MAX {
        let mut random = [0; 6];
        kernel::getrandom(&mut random)?;
        for (place, byte) in template[start..end].iter_mut().zip(random) {
            *place = LETTERS[usize::from(byte) % LETTERS.len()];
        }
        match make(template) {
            Err(PathError::Errno(Errno(libc::EEXIST))) => {}
            result => return result,
        }
    }
    Err(Errno(libc::EEXIST).into())
}

/// Returns the place that an open descriptor of ours names, for calls with `AT_EMPTY_PATH`.
pub fn place_of(handle: HandleId) -> Result<Place<'static>> {
    Ok(Place { base: mount::current()?.inode_of(handle)?, path: b"" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_name_replaces_exactly_the_six_letters_before_the_suffix() {
        let mut template = *b"/cairn/fXXXXXX.txt";
        let mut tries = 0;
        with_temporary_name(&mut template, 4, |_| {
            tries += 1;
            if tries < 3 { Err(Errno(libc::EEXIST).into()) } else { Ok(()) }
        })
        .unwrap();
        assert_eq!((&template[..8], &template[14..], tries), (&b"/cairn/f"[..], &b".txt"[..], 3));
        assert!(template[8..14].iter().all(u8::is_ascii_alphanumeric));
        let refused = with_temporary_name(&mut template, 4, |_| Ok(()));
        assert_eq!(refused, Err(Errno(libc::EINVAL).into()));
    }

    #[test]
    fn only_whole_components_are_below_the_mount() {
        assert_eq!(below(b"/cairn", b"/cairn//a"), Some(&b"a"[..]));
        assert_eq!(below(b"/cairn", b"/cairn"), Some(&b""[..]));
        assert_eq!(below(b"/cairn", b"/cairnx"), None);
    }
}
