//! Path resolution: from a path to an inode in one walk, under one lock, symbolic links included.
//!
//! A path is relative to a directory of the namespace. `..` of the root and absolute link targets
//! outside the mount prefix leave the namespace: the walk then ends with `Error::Escapes`, and
//! `Microfs::escape_path` returns the path outside. A walk within bounds ends with
//! `Error::OutOfBounds` instead, or stays inside.

use crate::engine::fs::Microfs;
use crate::engine::inode::{EXECUTE, Inode};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::text::find_slash;
use crate::format::types::{
    Above, Caller, InodeId, NAME_BYTES_MAX, PATH_BYTES_MAX, PathBounds, ROOT,
};
use crate::namespace::names::Entry;
use std::cell::OnceCell;

/// Maximum number of symbolic links followed on one path, as in Linux.
const SYMLINKS_MAX: usize = 40;

/// How a walk treats a symbolic link as the last component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// Follows it.
    Follow,
    /// Follows it only if a slash comes after it.
    Keep,
    /// Never follows it: the name itself is created, moved or removed.
    Name,
    /// Follows it unless a slash comes after it: no file can be created there.
    Create,
}

impl Last {
    fn follows(self, is_last: bool, slash: bool) -> bool {
        match self {
            _ if !is_last => true,
            Last::Follow => true,
            Last::Keep => slash,
            Last::Name => false,
            Last::Create => !slash,
        }
    }
}

/// The bounds of one walk.
#[derive(Clone, Copy)]
struct Bounds {
    /// Directory that the walk started from.
    base: InodeId,
    given: PathBounds,
}

impl Bounds {
    /// No bounds, wherever the walk starts.
    const NONE: Bounds = Bounds { base: ROOT, given: PathBounds::NONE };
}

/// Returns the treatment for operations with a flag `follow`.
pub(crate) fn last(follow: bool) -> Last {
    if follow { Last::Follow } else { Last::Keep }
}

/// Room for the last component if it comes from a symbolic link and not from the caller's path.
pub(crate) type Spare = OnceCell<SpareName>;

/// A name of up to 255 bytes.
pub(crate) struct SpareName {
    bytes: [u8; NAME_BYTES_MAX],
    length: u8,
}

fn keep<'p>(spare: &'p Spare, name: &[u8]) -> &'p [u8] {
    let kept = spare.get_or_init(|| {
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        SpareName { bytes, length: name.len() as u8 }
    });
    &kept.bytes[..kept.length as usize]
}

/// Result of a walk.
pub(crate) struct Walked<'p> {
    /// Directory that holds the last component.
    pub parent: Inode,
    /// The last component; empty if the path was empty.
    pub name: &'p [u8],
    /// Inode that it names, if it exists.
    pub target: Option<Inode>,
    /// Directory entry, if there is one; none for the base, `.` and `..`.
    pub entry: Option<Entry>,
    /// The path ended in a slash: the target must be a directory.
    pub trailing_slash: bool,
}

impl Walked<'_> {
    /// Whether the last component is a name that may be created or removed: not empty, `.` or `..`.
    pub(crate) fn has_ordinary_name(&self) -> bool {
        !matches!(self.name, b"" | b"." | b"..")
    }

    /// Returns the target. Errors: `NotFound` if there is none; `NotDirectory` if the path ended in
    /// a slash and the target is not a directory.
    pub(crate) fn existing(&self, tx: &Transaction) -> Result<Inode> {
        let target = self.target.ok_or(Error::NotFound)?;
        match self.trailing_slash && !target.is_directory(tx) {
            true => Err(Error::NotDirectory),
            false => Ok(target),
        }
    }
}

/// Outcome of a walk up to a symbolic link that must be followed.
enum Step<'p> {
    Done(Walked<'p>),
    Symlink { directory: Inode, link: Inode, rest: &'p [u8] },
}

/// Inode that a component names, with its directory entry unless it is the base, `.` or `..`.
type Found = (Inode, Option<Entry>);

fn arrived(parent: Inode, name: &[u8], found: Option<Found>, trailing_slash: bool) -> Step<'_> {
    let (target, entry) = (found.map(|(inode, _)| inode), found.and_then(|(_, entry)| entry));
    Step::Done(Walked { parent, name, target, entry, trailing_slash })
}

/// Splits off the first component: `(component, rest after its slashes, whether a slash followed)`.
fn split_component(path: &[u8]) -> (&[u8], &[u8], bool) {
    let end = find_slash(path).unwrap_or(path.len());
    let (component, tail) = path.split_at(end);
    let slashes = tail.iter().position(|&byte| byte != b'/').unwrap_or(tail.len());
    (component, &tail[slashes..], slashes > 0)
}

fn skip_slashes(path: &[u8]) -> &[u8] {
    let slashes = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    &path[slashes..]
}

/// Returns the rest of an absolute path below `mount`, or `None` if it lies elsewhere.
fn below_mount<'p>(mount: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let mut rest = skip_slashes(path);
    for component in mount.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let (found, tail, _) = split_component(rest);
        if found != component {
            return None;
        }
        rest = tail;
    }
    Some(rest)
}

impl Transaction<'_> {
    /// Walks `path` from `base`. The target may be absent; everything before it must exist.
    pub(crate) fn walk<'p>(
        &self,
        mount: &[u8],
        caller: &Caller,
        (base, path): (InodeId, &'p [u8]),
        last: Last,
        given: PathBounds,
        spare: &'p Spare,
    ) -> Result<Walked<'p>> {
        if path.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let bounds = Bounds { base, given };
        match self.walk_to_symlink(caller, self.inode(base)?, path, last, bounds)? {
            Step::Done(walked) => Ok(walked),
            Step::Symlink { directory, link, rest } => {
                let mut buffer = PathBuffer::new(rest)?;
                let start = (directory, link);
                self.walk_through_symlinks(mount, caller, start, &mut buffer, (last, bounds), spare)
            }
        }
    }

    #[inline(always)]
    fn walk_to_symlink<'p>(
        &self,
        caller: &Caller,
        base: Inode,
        path: &'p [u8],
        last: Last,
        bounds: Bounds,
    ) -> Result<Step<'p>> {
        let mut directory = base;
        let mut rest = skip_slashes(path);
        loop {
            let (component, after, slash) = split_component(rest);
            let is_last = after.is_empty();
            if !directory.is_directory(self) {
                // Only the base itself, named by an empty path, may be something else than a
                // directory.
                return match component.is_empty() {
                    true => Ok(arrived(directory, component, Some((directory, None)), false)),
                    false => Err(Error::NotDirectory),
                };
            }
            if !component.is_empty() {
                directory.permit(self, caller, EXECUTE)?;
            }
            if component.len() > NAME_BYTES_MAX {
                return Err(Error::NameTooLong);
            }
            let found = self.component(directory, component, bounds)?;
            let target = found.map(|(inode, _)| inode);
            if let Some(link) = target.filter(|target| target.is_symlink(self)) {
                if last.follows(is_last, slash) {
                    if bounds.given.no_links {
                        return Err(Error::SymlinkLoop);
                    }
                    // A slash after the link asks for the directory behind it: keep it for the next
                    // round.
                    let tail = &rest[component.len()..];
                    return Ok(Step::Symlink { directory, link, rest: tail });
                }
            }
            if is_last {
                return Ok(arrived(directory, component, found, slash));
            }
            directory = target.ok_or(Error::NotFound)?;
            rest = after;
        }
    }

    #[inline(always)]
    fn component(
        &self,
        directory: Inode,
        component: &[u8],
        bounds: Bounds,
    ) -> Result<Option<Found>> {
        match component {
            b"" | b"." => Ok(Some((directory, None))),
            b".." if directory.id == bounds.base && bounds.given.above != Above::There => {
                match bounds.given.above {
                    Above::Itself => Ok(Some((directory, None))),
                    _ => Err(Error::OutOfBounds),
                }
            }
            b".." if directory.id == ROOT => Err(Error::Escapes),
            b".." => self.parent_of(directory).map(|parent| Some((parent, None))),
            name => match self.find_name(directory.id, name) {
                Some(entry) => {
                    self.inode(entry.inode).map(|found| Some((found, Some(entry)))).map_err(|_| {
                        self.mark_corrupt("name without inode");
                        Error::NotFound
                    })
                }
                None => Ok(None),
            },
        }
    }

    /// Puts the link's target in front of the rest of the path, and walks on.
    #[cold]
    fn walk_through_symlinks<'p>(
        &self,
        mount: &[u8],
        caller: &Caller,
        (mut directory, mut link): (Inode, Inode),
        buffer: &mut PathBuffer,
        (last, bounds): (Last, Bounds),
        spare: &'p Spare,
    ) -> Result<Walked<'p>> {
        for _ in 0..SYMLINKS_MAX {
            buffer.prepend_target(self, link)?;
            let mut path = buffer.as_bytes();
            if path.first() == Some(&b'/') {
                (directory, path) = match bounds.given.above {
                    Above::There if bounds.given.one_device => return Err(Error::OutOfBounds),
                    Above::There => {
                        (self.inode(ROOT)?, below_mount(mount, path).ok_or(Error::Escapes)?)
                    }
                    Above::Forbidden => return Err(Error::OutOfBounds),
                    Above::Itself => (self.inode(bounds.base)?, path),
                };
            }
            match self.walk_to_symlink(caller, directory, path, last, bounds)? {
                Step::Done(walked) => {
                    return Ok(Walked { name: keep(spare, walked.name), ..walked });
                }
                Step::Symlink { directory: next, link: found, rest } => {
                    let left = rest.len();
                    buffer.keep_last(left);
                    (directory, link) = (next, found);
                }
            }
        }
        Err(Error::SymlinkLoop)
    }
}

/// A path that grows at its front: the rest to walk is at the end of the buffer.
struct PathBuffer {
    bytes: [u8; 2 * (PATH_BYTES_MAX + 1)],
    start: usize,
}

impl PathBuffer {
    /// Errors: `NameTooLong`.
    fn new(rest: &[u8]) -> Result<PathBuffer> {
        if rest.len() > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        let mut buffer = PathBuffer { bytes: [0; 2 * (PATH_BYTES_MAX + 1)], start: 0 };
        buffer.start = buffer.bytes.len() - rest.len();
        buffer.bytes[buffer.start..].copy_from_slice(rest);
        Ok(buffer)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn keep_last(&mut self, length: usize) {
        self.start = self.bytes.len() - length;
    }

    fn prepend_target(&mut self, tx: &Transaction, link: Inode) -> Result<()> {
        let record = link.target(tx);
        let length = tx.text_length(record);
        self.start = self.start.checked_sub(length).ok_or(Error::NameTooLong)?;
        if self.bytes.len() - self.start > PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        tx.copy_text(record, &mut self.bytes[self.start..self.start + length]);
        Ok(())
    }
}

impl Microfs {
    /// Calls [`Transaction::walk`] with the mount prefix of the namespace.
    pub(crate) fn walk<'p>(
        &self,
        tx: &Transaction,
        caller: &Caller,
        path: (InodeId, &'p [u8]),
        last: Last,
        spare: &'p Spare,
    ) -> Result<Walked<'p>> {
        tx.walk(&self.geometry().mount, caller, path, last, PathBounds::NONE, spare)
    }

    /// Does the same within bounds.
    pub(crate) fn walk_within<'p>(
        &self,
        tx: &Transaction,
        caller: &Caller,
        path: (InodeId, &'p [u8]),
        (last, bounds): (Last, PathBounds),
        spare: &'p Spare,
    ) -> Result<Walked<'p>> {
        tx.walk(&self.geometry().mount, caller, path, last, bounds, spare)
    }

    /// Returns where a path leads that leaves the namespace: an absolute path outside the mount
    /// prefix, to be handed to the kernel. Call it after an operation failed with `Escapes`.
    /// Errors: `Invalid` if the path does not leave.
    pub fn escape_path(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        follow: bool,
    ) -> Result<Vec<u8>> {
        let last = if follow { Last::Follow } else { Last::Keep };
        let mut outside = Vec::with_capacity(PATH_BYTES_MAX + 1);
        self.transact(|tx| {
            let mount = &self.geometry().mount;
            let mut directory = tx.inode(base)?;
            let mut buffer = PathBuffer::new(path)?;
            for _ in 0..=SYMLINKS_MAX {
                let mut left = buffer.as_bytes();
                if left.first() == Some(&b'/') && !outside.is_empty() {
                    match below_mount(mount, left) {
                        Some(below) => left = below,
                        None => {
                            outside.clear();
                            outside.extend_from_slice(left);
                            return Ok(());
                        }
                    }
                    directory = tx.inode(ROOT)?;
                }
                outside.clear();
                match tx.walk_to_symlink(caller, directory, left, last, Bounds::NONE) {
                    Ok(Step::Done(_)) => return Err(Error::Invalid),
                    Ok(Step::Symlink { directory: next, link, rest }) => {
                        let keep = rest.len();
                        directory = next;
                        buffer.keep_last(keep);
                        buffer.prepend_target(tx, link)?;
                        outside.push(b'/');
                    }
                    Err(Error::Escapes) => {
                        climb_out(tx, mount, directory, left, &mut outside);
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(Error::SymlinkLoop)
        })?;
        Ok(outside)
    }
}

/// Builds `<mount>/../<rest>` for a path that climbs above the root: everything up to
/// the `..` of the root is resolved already; the kernel resolves the rest.
fn climb_out(tx: &Transaction, mount: &[u8], base: Inode, path: &[u8], outside: &mut Vec<u8>) {
    let mut directory = base;
    let mut rest = skip_slashes(path);
    while !rest.is_empty() {
        let (component, after, _) = split_component(rest);
        if component == b".." && directory.id == ROOT {
            break;
        }
        match tx.component(directory, component, Bounds::NONE) {
            Ok(Some((next, _))) => directory = next,
            _ => break,
        }
        rest = after;
    }
    let parent_end = mount.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    outside.extend_from_slice(&mount[..parent_end]);
    outside.push(b'/');
    outside.extend_from_slice(rest.strip_prefix(b"..").map_or(rest, skip_slashes));
}
