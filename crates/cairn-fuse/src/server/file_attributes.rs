//! Attributes of files, as the kernel shows and sets them.

use cairn_core::{Attributes, Caller, Credentials, InodeId, TimeUpdate, Timestamp};
use cairn_posix::Result;
use cairn_posix::files::attributes;
use cairn_posix::mount::Mount;
use cairn_posix::process::server as files;
use fuser::{FileAttr, FileHandle, FileType, INodeNo, Request, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::node;
use crate::server::{Server, handle};

pub(super) fn time_of(time: Timestamp) -> SystemTime {
    let (seconds, nanoseconds) = time.parts();
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    base + Duration::from_nanos(nanoseconds as u64)
}

/// Returns a time that the kernel sent.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::from_parts(after.as_secs() as i64, i64::from(after.subsec_nanos())),
        // `fuser` subtracts the nanoseconds of such a time, which are to be added to the seconds.
        Err(error) => {
            let before = error.duration();
            Timestamp::from_parts(-(before.as_secs() as i64), i64::from(before.subsec_nanos()))
        }
    }
}

pub(super) fn kind_of(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

/// Returns attributes as the kernel wants them, with the sizes that preloaded programs see.
pub(super) fn shown(mount: &Mount, found: &Attributes) -> FileAttr {
    let stat = attributes::stat(mount, found);
    FileAttr {
        ino: node::number(found),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time_of(found.accessed),
        mtime: time_of(found.modified),
        ctime: time_of(found.changed),
        crtime: time_of(found.born),
        kind: kind_of(found.mode),
        perm: (found.mode & 0o7777) as u16,
        nlink: found.links,
        uid: found.uid,
        gid: found.gid,
        rdev: 0,
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

/// Attributes to be set.
pub(super) struct Change {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    /// Times of the last access and of the last modification.
    pub(super) times: (TimeUpdate, TimeUpdate),
}

pub(super) fn update(time: Option<TimeOrNow>) -> TimeUpdate {
    match time {
        None => TimeUpdate::Omit,
        Some(TimeOrNow::Now) => TimeUpdate::Now,
        Some(TimeOrNow::SpecificTime(time)) => TimeUpdate::At(timestamp(time)),
    }
}

impl Server {
    /// Takes the set-id bits of a file that somebody without the right to set them changes. The
    /// core does so for changes by this process's own user.
    pub(super) fn drop_set_id_bits(&self, request: &Request, inode: InodeId) -> Result<()> {
        let fs = self.mount.fs();
        let found = fs.attributes(inode)?;
        let is_executable_by_group = found.mode & 0o010 != 0;
        let lost = libc::S_ISUID | if is_executable_by_group { libc::S_ISGID } else { 0 };
        if request.uid() != 0 && found.mode & lost != 0 {
            let root = Credentials { uid: 0, gid: 0 };
            let caller = Caller { credentials: root, ..self.caller(request) };
            fs.set_mode(&caller, inode, found.mode & 0o7777 & !lost)?;
        }
        Ok(())
    }

    pub(super) fn set_attributes(
        &self,
        request: &Request,
        number: INodeNo,
        change: &Change,
        opened: Option<FileHandle>,
    ) -> Result<Attributes> {
        let inode = self.inode(number)?;
        let (fs, caller) = (self.mount.fs(), self.caller(request));
        if let Some(size) = change.size {
            match opened {
                Some(opened) => fs.note_change(handle(opened))?,
                None => fs.access(&caller, inode, b"", libc::W_OK as u32, false)?,
            }
            files::set_size(self.mount, inode, size)?;
            self.drop_set_id_bits(request, inode)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            fs.set_owner(&caller, inode, change.uid, change.gid)?;
        }
        if let Some(mode) = change.mode {
            fs.set_mode(&caller, inode, mode & 0o7777)?;
        }
        let (accessed, modified) = change.times;
        if (accessed, modified) != (TimeUpdate::Omit, TimeUpdate::Omit) {
            fs.set_times(&caller, inode, accessed, modified)?;
        }
        Ok(fs.attributes(inode)?)
    }
}
