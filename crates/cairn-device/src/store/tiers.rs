//! Places of the tiers of a namespace: `<ns>.tiers`, one line per tier in order of preference.
//!
//! ```text
//! ram
//! file 30313233343536373839616263646566 /nvme/cairn
//! dax 30313233343536373839616263646566 /pmem/cairn
//! block 30313233343536373839616263646566 /dev/nvme0n1
//! nvme-tcp 30313233343536373839616263646566 //10.0.0.5:4420/nqn.2026-11.io.cairn:target?nsid=1
//! ```
//! Must stay true: the list exists before its files are made or its devices written. So whoever
//! removes the store, or makes it again after its creator died, finds them. A namespace without a
//! list has one tier, in memory.
//!
//! Does not know the sizes of tiers; the namespace's geometry does.

use core::ffi::CStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use cairn_core::{Error, Superblock, TIERS_MAX};
use cairn_platform::checksum;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::directory::{Directory, StoreError, StoreResult};
use crate::media::label::{self, Identity};
use crate::media::media_file::{Access, Allocation, MediaFile};
use crate::media::medium::{self, Contents, MediumKind};

/// Longest list: a few words and the longest path for each tier.
const LIST_BYTES_MAX: usize = TIERS_MAX * (libc::PATH_MAX as usize + 64);

/// Place of a tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TierPlace {
    /// The store's own segment in shared memory.
    Ram,
    /// A file, mapped or not, a block device, or a namespace on another machine.
    Medium {
        /// Kind of medium.
        kind: MediumKind,
        /// Its absolute path.
        path: PathBuf,
        /// Identity in its label.
        identity: Identity,
    },
}

impl TierPlace {
    /// Returns a medium that is to be made at `path`.
    pub fn new(kind: MediumKind, path: &Path) -> SysResult<TierPlace> {
        Ok(TierPlace::Medium { kind, path: path.to_owned(), identity: sys::random()? })
    }

    /// Returns the superblock of the namespace that the medium at `path` keeps; `None` if there is
    /// no tier yet. Errors: it holds no namespace, or is in use. Use by another machine is an error
    /// only without `takes_over`.
    pub fn kept_namespace(
        kind: MediumKind,
        path: &Path,
        takes_over: bool,
    ) -> StoreResult<Option<Superblock>> {
        let is_there = match kind {
            MediumKind::File | MediumKind::Dax => path.symlink_metadata().is_ok(),
            MediumKind::Block | MediumKind::Remote => {
                matches!(medium::contents(path, takes_over)?, Contents::Tier(_))
            }
        };
        if !is_there {
            return Ok(None);
        }
        let file = match MediaFile::look(path, takes_over) {
            // The file was removed meanwhile, with the store that had it.
            Err(error) if error.errno == libc::ENOENT && !kind.is_device() => return Ok(None),
            opened => opened?,
        };
        let superblock = Superblock::read(&file, checksum::crc32c)
            .map_err(|error: Error| StoreError::new("recover", path, error))?;
        Ok(Some(superblock))
    }

    /// Whether it is a medium with a superblock, intact or not. Errors: nobody can tell.
    pub(crate) fn may_hold_namespace(&self) -> StoreResult<bool> {
        let TierPlace::Medium { path, identity, .. } = self else { return Ok(false) };
        match MediaFile::open_any(path, libc::LOCK_SH, Access::Read) {
            Ok((file, Ok(label))) if label.identity == *identity => {
                Ok(!matches!(cairn_core::inspect(&file, checksum::crc32c), Ok(None)))
            }
            Err(error) if !matches!(error.errno, libc::ENOENT | libc::EINVAL) => Err(error),
            // Nothing, or something that is not a tier.
            _ => Ok(false),
        }
    }

    /// Returns the same place with the identity of the tier that exists there, whichever machine
    /// has it. Errors: it does not exist, is no tier, or is in use.
    pub fn as_kept(&self) -> StoreResult<TierPlace> {
        let TierPlace::Medium { kind, path, .. } = self else { return Ok(TierPlace::Ram) };
        let identity = *MediaFile::look(path, true)?.identity();
        Ok(TierPlace::Medium { kind: *kind, path: path.clone(), identity })
    }

    /// Returns its identity as metadata record it; `None` in memory.
    pub fn identity_words(&self) -> Option<[u64; 2]> {
        match self {
            TierPlace::Ram => None,
            TierPlace::Medium { identity, .. } => Some(label::words(identity)),
        }
    }

    /// Returns the same kind of place for another namespace: a file beside this one, with `.name`
    /// added. Errors: there is nothing beside a device (`ENOTSUP`).
    pub fn beside(&self, name: &str) -> SysResult<TierPlace> {
        match self {
            TierPlace::Ram => Ok(TierPlace::Ram),
            TierPlace::Medium { kind, .. } if kind.is_device() => Err(Errno(libc::ENOTSUP)),
            TierPlace::Medium { kind, path, .. } => {
                let path = [path.as_os_str().as_bytes(), b".", name.as_bytes()].concat();
                TierPlace::new(*kind, Path::new(&std::ffi::OsString::from_vec(path)))
            }
        }
    }

    /// Whether the tier exists; for a file, whether there is anything at its path. Errors: nobody
    /// knows.
    pub(crate) fn is_made(&self) -> StoreResult<bool> {
        Ok(match self {
            TierPlace::Ram => false,
            TierPlace::Medium { kind, path, identity } if kind.is_device() => {
                let contents = medium::contents(path, false)?;
                matches!(
                    contents,
                    Contents::Tier(label) | Contents::Unfinished(label) if label.identity == *identity
                )
            }
            TierPlace::Medium { path, .. } => path.exists(),
        })
    }

    /// Makes a tier of `bytes` if it lies outside the store. Errors: as `MediaFile::create` and
    /// `create_on_device`.
    pub(crate) fn make(
        &self,
        bytes: u64,
        allocation: Allocation,
        may_overwrite: bool,
    ) -> StoreResult<()> {
        match self {
            TierPlace::Ram => Ok(()),
            TierPlace::Medium { kind, path, identity } if kind.is_device() => {
                MediaFile::create_on_device(path, bytes, *identity, may_overwrite)
            }
            TierPlace::Medium { kind, path, identity } => {
                let allocation = match (kind, allocation) {
                    (MediumKind::Dax, Allocation::AtOnce) => Allocation::ForMapping,
                    _ => allocation,
                };
                MediaFile::create(path, bytes, *identity, allocation)
            }
        }
    }

    fn append_line(&self, list: &mut Vec<u8>) {
        match self {
            TierPlace::Ram => list.extend(b"ram\n"),
            TierPlace::Medium { kind, path, identity } => {
                list.extend(word(*kind));
                let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
                list.extend(identity.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
                list.push(b' ');
                list.extend(path.as_os_str().as_bytes());
                list.push(b'\n');
            }
        }
    }

    fn parse(line: &[u8]) -> Option<TierPlace> {
        if line == b"ram" {
            return Some(TierPlace::Ram);
        }
        let named = |kind| Some((kind, line.strip_prefix(word(kind))?));
        let kinds = [MediumKind::File, MediumKind::Dax, MediumKind::Block, MediumKind::Remote];
        let (kind, rest) = kinds.into_iter().find_map(named)?;
        let (digits, path) = rest.split_at_checked(32)?;
        let path = path.strip_prefix(b" ").filter(|path| path.starts_with(b"/"))?;
        let mut identity = Identity::default();
        for (byte, pair) in identity.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        Some(TierPlace::Medium { kind, path, identity })
    }
}

/// Returns the first word of a line for such a medium.
fn word(kind: MediumKind) -> &'static [u8] {
    match kind {
        MediumKind::File => b"file ",
        MediumKind::Dax => b"dax ",
        MediumKind::Block => b"block ",
        MediumKind::Remote => b"nvme-tcp ",
    }
}

/// Writes the list `name` of a namespace that is being made. Writes none for a single tier in
/// memory. Errors: a path that is relative or contains a line feed (`EINVAL`).
pub fn write(directory: &Directory, name: &CStr, places: &[TierPlace]) -> StoreResult<()> {
    let failed = |errno| directory.error("write", name, errno);
    if places == [TierPlace::Ram] {
        return Ok(());
    }
    let mut list = Vec::new();
    places.iter().for_each(|place| place.append_line(&mut list));
    if parse(&list).as_deref() != Some(places) {
        return Err(failed(Errno(libc::EINVAL)).advise("a tier has an absolute path of one line"));
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let file = Descriptor::open(directory.raw(), name, flags, 0o600).map_err(failed)?;
    match sys::write(file.raw(), &list).map_err(failed)? {
        count if count == list.len() => Ok(()),
        _ => Err(failed(Errno(libc::ENOSPC))),
    }
}

/// Reads the list `name`. Errors: it is damaged (`EIO`).
pub fn read(directory: &Directory, name: &CStr) -> StoreResult<Vec<TierPlace>> {
    let failed = |errno| directory.error("read", name, errno);
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match Descriptor::open(directory.raw(), name, flags, 0) {
        Err(Errno(libc::ENOENT)) => return Ok(vec![TierPlace::Ram]),
        result => result.map_err(failed)?,
    };
    let mut list = vec![0; LIST_BYTES_MAX];
    let length = sys::read(file.raw(), &mut list).map_err(failed)?;
    let damaged = || failed(Errno(libc::EIO)).advise("the store is damaged");
    parse(&list[..length]).ok_or_else(damaged)
}

fn parse(list: &[u8]) -> Option<Vec<TierPlace>> {
    let lines = list.strip_suffix(b"\n")?.split(|&byte| byte == b'\n');
    lines.map(TierPlace::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;

    fn file(path: &str) -> TierPlace {
        TierPlace::new(MediumKind::File, Path::new(path)).unwrap()
    }

    #[test]
    fn list_is_read_as_it_was_written() {
        let scratch = Scratch::new();
        let device = TierPlace::new(MediumKind::Block, Path::new("/dev/nvme0n1")).unwrap();
        let dax = TierPlace::new(MediumKind::Dax, Path::new("/pmem/c")).unwrap();
        let remote = TierPlace::new(MediumKind::Remote, Path::new("//[::1]:1/nqn.x")).unwrap();
        let spaced = file("/nvme/with space:and/colon");
        let places = [TierPlace::Ram, spaced, file("/b"), device, dax, remote];
        write(&scratch.0, c"node.tiers", &places).unwrap();
        assert_eq!(read(&scratch.0, c"node.tiers").unwrap(), places);
        assert_ne!(places[1].beside("x").unwrap(), places[1]);
        let TierPlace::Medium { path, .. } = places[2].beside("rank-3").unwrap() else { panic!() };
        assert_eq!(path, Path::new("/b.rank-3"));
        assert_eq!(places[3].beside("rank-3"), Err(Errno(libc::ENOTSUP)));
    }

    #[test]
    fn single_tier_in_memory_needs_no_list() {
        let scratch = Scratch::new();
        write(&scratch.0, c"node.tiers", &[TierPlace::Ram]).unwrap();
        assert!(!scratch.0.contains(c"node.tiers"));
        assert_eq!(read(&scratch.0, c"node.tiers").unwrap(), [TierPlace::Ram]);
    }

    #[test]
    fn paths_that_a_line_cannot_hold_are_refused() {
        let scratch = Scratch::new();
        for path in ["relative", "/two\nlines", ""] {
            let error = write(&scratch.0, c"node.tiers", &[file(path)]).unwrap_err();
            assert_eq!(error.errno, libc::EINVAL, "{path:?}");
        }
    }

    #[test]
    fn damaged_list_is_refused() {
        let scratch = Scratch::new();
        let id = "0".repeat(32);
        for list in ["", "ram", "disk\n", "file /a\n", &format!("file {id} a\n"), "ram\n\n"] {
            std::fs::write(scratch.0.path().join("list"), list).unwrap();
            let error = read(&scratch.0, c"list").unwrap_err();
            assert_eq!(error.errno, libc::EIO, "{list:?}");
        }
    }
}
