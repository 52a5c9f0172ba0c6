//! Checks of the copying calls before anything moves, in the order in which the kernel makes them.

use crate::descriptors::description;
use cairn_platform::sys;

use super::End;
use crate::error::{Errno, Result};
use crate::mount;

/// Properties of one side of a copy.
struct Facts {
    read: bool,
    write: bool,
    append: bool,
    /// `S_IF*`.
    kind: u32,
    device: u64,
    inode: u64,
    size: u64,
}

impl Facts {
    fn of(end: End) -> Result<Facts> {
        match end {
            End::Kernel(descriptor) => Facts::of_descriptor(descriptor),
            End::Ours(handle) => {
                let info = description::opened(handle)?;
                let size = mount::current()?.fs().attributes(info.inode)?.size;
                let kind = if info.is_directory { libc::S_IFDIR } else { libc::S_IFREG };
                let inode = u64::from(info.inode.0);
                let (read, write, append) = (info.read, info.write, info.append);
                Ok(Facts { read, write, append, kind, device: 0, inode, size })
            }
        }
    }

    fn of_descriptor(descriptor: i32) -> Result<Facts> {
        let status = sys::fstat(descriptor)?;
        let flags = sys::fcntl(descriptor, libc::F_GETFL, 0)?;
        if flags & libc::O_PATH != 0 {
            return Err(Errno(libc::EBADF));
        }
        let access = flags & libc::O_ACCMODE;
        Ok(Facts {
            read: access != libc::O_WRONLY,
            write: access != libc::O_RDONLY,
            append: flags & libc::O_APPEND != 0,
            kind: status.st_mode & libc::S_IFMT,
            device: status.st_dev,
            inode: status.st_ino,
            size: status.st_size as u64,
        })
    }

    fn is(&self, kind: u32) -> bool {
        self.kind == kind
    }

    fn can_seek(&self) -> bool {
        !matches!(self.kind, libc::S_IFIFO | libc::S_IFSOCK)
    }
}

fn unless(condition: bool, failure: i32) -> Result<()> {
    match condition {
        true => Ok(()),
        false => Err(Errno(failure)),
    }
}

fn not_before_the_start(offset: Option<&i64>) -> Result<()> {
    unless(offset.is_none_or(|&offset| offset >= 0), libc::EINVAL)
}

/// Makes the checks of `sendfile(2)`.
pub fn sendfile(source: End, target: End, offset: Option<&i64>, length: usize) -> Result<()> {
    let from = Facts::of(source)?;
    unless(from.read, libc::EBADF)?;
    unless(offset.is_none() || from.can_seek(), libc::ESPIPE)?;
    not_before_the_start(offset)?;
    let to = Facts::of(target)?;
    unless(to.write, libc::EBADF)?;
    unless(!to.append && from.can_seek(), libc::EINVAL)?;
    unless(length == 0 || !from.is(libc::S_IFDIR), libc::EINVAL)
}

/// Makes the checks of `splice(2)`.
pub fn splice(
    (source, source_offset): (End, Option<&i64>),
    (target, target_offset): (End, Option<&i64>),
    length: usize,
) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let (from, to) = (Facts::of(source)?, Facts::of(target)?);
    for (side, offset) in [(&from, source_offset), (&to, target_offset)] {
        unless(offset.is_none() || !side.is(libc::S_IFIFO), libc::ESPIPE)?;
    }
    unless(from.read && to.write, libc::EBADF)?;
    unless(from.is(libc::S_IFIFO) || to.is(libc::S_IFIFO), libc::EINVAL)?;
    unless(!to.append && !from.is(libc::S_IFDIR), libc::EINVAL)?;
    not_before_the_start(source_offset)?;
    not_before_the_start(target_offset)
}

/// Makes the checks of `copy_file_range(2)`. `offsets` are the starts of the two ranges, with the
/// cursors already taken into account.
pub fn range(source: End, target: End, offsets: [i64; 2], length: usize) -> Result<()> {
    let (from, to) = (Facts::of(source)?, Facts::of(target)?);
    unless(!from.is(libc::S_IFDIR) && !to.is(libc::S_IFDIR), libc::EISDIR)?;
    unless(from.is(libc::S_IFREG) && to.is(libc::S_IFREG), libc::EINVAL)?;
    unless(from.read && to.write && !to.append, libc::EBADF)?;
    let [start, target_start] = offsets.map(|offset| offset as u64);
    for begin in [start, target_start] {
        unless(begin.checked_add(length as u64).is_some(), libc::EOVERFLOW)?;
    }
    unless(offsets.iter().all(|&offset| offset >= 0), libc::EINVAL)?;
    let copied = (length as u64).min(from.size.saturating_sub(start));
    let is_same = (from.device, from.inode) == (to.device, to.inode);
    let overlap = start < target_start + copied && target_start < start + copied;
    unless(!is_same || !overlap, libc::EINVAL)
}
