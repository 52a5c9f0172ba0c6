//! From the kernel's requests to the server's methods, and back to its answers.

use cairn_core::Attributes;
use cairn_posix::data::io::At;
use cairn_posix::files::{allocate, attributes, extended, file};
use cairn_posix::process::{handover, server as files};
use cairn_posix::{Errno, Result};
use fuser::{
    AccessFlags, BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use crate::locks::Range;
use crate::server::file_attributes::{Change, kind_of, shown, update};
use crate::server::{NO_TIME, OPENED, REQUEST_BYTES, Server, Start, WRITERS, handle, inherited};
use crate::{node, requester};

pub(super) fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.0)
}

fn empty(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(code(errno)),
    }
}

/// Answers with a value, or with its size if the caller gave no room for it.
fn value(reply: ReplyXattr, size: u32, result: Result<Vec<u8>>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(code(errno)),
    }
}

impl Server {
    /// Answers with a name and its file, or with the error.
    fn entry(&self, reply: ReplyEntry, result: Result<Attributes>) {
        match result {
            Ok(found) => reply.entry(&NO_TIME, &shown(self.mount, &found), Generation(0)),
            Err(errno) => reply.error(code(errno)),
        }
    }

    /// Answers with attributes, or with the error.
    fn attr(&self, reply: ReplyAttr, result: Result<Attributes>) {
        match result {
            Ok(found) => reply.attr(&NO_TIME, &shown(self.mount, &found)),
            Err(errno) => reply.error(code(errno)),
        }
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if self.start == Start::Again {
            // The kernel keeps what the first server asked for.
            return Ok(());
        }
        let _ = config.set_max_write(REQUEST_BYTES);
        for wanted in [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_HAS_RESEND,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ] {
            // An older kernel lacks some.
            let _ = config.add_capabilities(wanted);
        }
        let resends = config.capabilities().contains(InitFlags::FUSE_HAS_RESEND);
        self.answers.begin(resends);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, self.look_up(request, (parent, name)));
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attr(reply, self.found(number));
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        opened: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let times = (update(accessed), update(modified));
        let change = Change { mode, uid, gid, size, times };
        self.attr(reply, self.set_attributes(request, number, &change, opened));
    }

    fn readlink(&self, request: &Request, number: INodeNo, reply: ReplyData) {
        let read = || {
            let (inode, mut target) = (self.inode(number)?, Vec::new());
            self.mount.fs().read_link(&self.caller(request), inode, b"", &mut target)?;
            Ok(target)
        };
        match read() {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        self.entry(reply, self.make_node(request, (parent, name), mode));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        self.entry(reply, self.make_directory(request, (parent, name), mode));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove(request, (parent, name)));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.remove_directory(request, (parent, name)));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.entry(reply, self.link_to(request, (parent, name), target));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.rename(request, (parent, name), (new_parent, new_name), flags));
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.entry(reply, self.link(request, number, (parent, name)));
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open(request, number, flags.0) {
            Ok(opened) => reply.opened(opened, OPENED),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (created, kind) = match inherited::description(parent, name) {
            Some(description) => (self.share(request, description), inherited::OPENED),
            None => (self.create(request, (parent, name), flags, mode), OPENED),
        };
        match created {
            Ok((found, opened)) => {
                reply.created(&NO_TIME, &shown(self.mount, &found), Generation(0), opened, kind);
            }
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        opened: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.buffers.with(size.min(REQUEST_BYTES) as usize, |target| {
            let number = handle(opened);
            let read = match inherited::is_inherited(opened) {
                true => self.read_on(request, number, target),
                false => self.read(number, target, At::Offset(offset)),
            };
            match read {
                Ok(length) => reply.data(&target[..length]),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        opened: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Pages of a mapping have a place of their own.
        let is_of_mapping = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = flags.0 & libc::O_APPEND != 0;
        let has_place = is_of_mapping || !appends && !inherited::is_inherited(opened);
        let opened = handle(opened);
        let written = match has_place {
            true => self.write(opened, offset, bytes),
            false => self.write_behind(request, opened, bytes, appends),
        };
        if is_of_mapping {
            // Of a process that is being killed, this may be all that the server hears.
            let inode = self.inode(number);
            for killed in inode.map(|inode| WRITERS.killed(inode)).unwrap_or_default() {
                let _ = self.mount.fs().note_change(killed);
                let _ = self.mount.fs().note_death(killed);
            }
        } else {
            WRITERS.write(opened, request.pid());
        }
        if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            // The bytes are written; a file that is gone meanwhile has no bits to lose.
            let _ = self.inode(number).and_then(|inode| self.drop_set_id_bits(request, inode));
        }
        match written {
            Ok(length) => reply.written(length as u32),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn flush(
        &self,
        request: &Request,
        number: INodeNo,
        opened: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let opened = handle(opened);
        if let Ok(info) = self.mount.fs().handle(opened) {
            self.locks.end(info.inode, owner.0);
            WRITERS.flush(opened);
            let pid = request.pid();
            if info.write && requester::is_killed(pid) && WRITERS.is_writer(opened, pid) {
                let _ = self.mount.fs().note_death(opened);
            }
        } else if let Ok(inode) = self.inode(number) {
            self.locks.end(inode, owner.0);
        }
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        opened: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.release(opened);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, opened: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, file::sync(handle(opened)));
    }

    fn opendir(&self, request: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open(request, number, libc::O_RDONLY) {
            Ok(opened) => reply.opened(opened, FopenFlags::empty()),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        opened: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.release(opened);
        reply.ok();
    }

    fn forget(&self, _: &Request, number: INodeNo, _: u64) {
        if let Some(kept) = self.removed.forget(number) {
            let _ = files::release(self.mount, self.mount.slot(), kept);
        }
    }

    fn readdir(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(request, number, offset, &mut |position, name, found| {
            reply.add(node::number(found), position, kind_of(found.mode), name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(request, number, offset, &mut |position, name, found| {
            let number = node::number(found);
            reply.add(number, position, name, &NO_TIME, &shown(self.mount, found), Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, file::sync_all());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match attributes::statvfs(self.mount) {
            Ok(space) => reply.statfs(
                space.f_blocks,
                space.f_bfree,
                space.f_bavail,
                space.f_files,
                space.f_ffree,
                space.f_bsize as u32,
                space.f_namemax as u32,
                space.f_frsize as u32,
            ),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        bytes: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let set = || {
            let (inode, caller) = (self.inode(number)?, self.caller(request));
            let update = extended::update(flags)?;
            self.once(request, cairn_core::Error::Exists, || {
                self.mount.fs().set_extended(&caller, inode, name.as_bytes(), bytes, update)
            })
        };
        empty(reply, set());
    }

    fn getxattr(
        &self,
        request: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let get = || {
            if number == INodeNo::ROOT && name.as_bytes() == handover::STORE_ATTRIBUTE.to_bytes() {
                return Ok(self.store.as_bytes().to_vec());
            }
            let (inode, caller) = (self.inode(number)?, self.caller(request));
            Ok(self.mount.fs().extended(&caller, inode, name.as_bytes())?)
        };
        value(reply, size, get());
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        value(reply, size, self.inode(number).and_then(extended::list));
    }

    fn removexattr(&self, request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = || {
            let (inode, caller) = (self.inode(number)?, self.caller(request));
            self.once(request, cairn_core::Error::NoData, || {
                self.mount.fs().remove_extended(&caller, inode, name.as_bytes())
            })
        };
        empty(reply, remove());
    }

    fn access(&self, request: &Request, number: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let permitted = || {
            let (inode, caller) = (self.inode(number)?, self.caller(request));
            let mask = mask.bits() as u32 & 7;
            Ok(self.mount.fs().access(&caller, inode, b"", mask, false)?)
        };
        empty(reply, permitted());
    }

    fn getlk(
        &self,
        _: &Request,
        number: INodeNo,
        opened: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        let range = Range { start, end, kind };
        let found = self
            .lock_owner(number, opened, owner)
            .and_then(|owner| self.locks.get(self.mount, owner, range));
        match found {
            // The kernel does not say which process has a lock of a description.
            Ok(found) => reply.locked(found.start, found.end, found.kind, 0),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        number: INodeNo,
        opened: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let range = Range { start, end, kind };
        match self.lock_owner(number, opened, owner) {
            Ok(owner) if waits => self.set_lock(request, owner, range, reply),
            Ok(owner) => empty(reply, self.locks.set(self.mount, owner, range)),
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        opened: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (offset, length) = (offset as i64, length as i64);
        let done = allocate::change(handle(opened), mode, offset, length);
        let done = done.and_then(|()| self.drop_set_id_bits(request, self.inode(number)?));
        empty(reply, done);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        opened: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match file::seek(handle(opened), offset, whence) {
            Ok(position) => reply.offset(position),
            Err(errno) => reply.error(code(errno)),
        }
    }
}
