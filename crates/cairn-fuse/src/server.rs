//! Answers the kernel's requests.
//!
//! Must stay true:
//! - The rights are those of the process that asks, at every call that a local file system checks.
//! - An open description is held by two slots, this process's and the keeper's, so that it outlives
//!   either. What it holds ends when the kernel releases it.
//! - A request that comes a second time, because a server was killed before it answered, is not
//!   carried out twice if that would make a difference.
//! - A request that may wait for long does not keep others waiting.

use cairn_core::{
    Attributes, Caller, Credentials, HandleId, InodeId, OpenOptions, Opened, RenameMode, SlotId,
    TimeUpdate, Timestamp,
};
use cairn_posix::data::io::{self as data, At};
use cairn_posix::data::transfer::Buffers;
use cairn_posix::files::{allocate, attributes, extended, file};
use cairn_posix::mount::{self, Mount};
use cairn_posix::process::server as files;
use cairn_posix::{Errno, Result};
use fuser::{
    AccessFlags, BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, SessionACL, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::answers::Answers;
use crate::locks::{Locks, Owner, Range};
use crate::removed::Removed;
use crate::writers::WriterTable;
use crate::{device, node, requester};

/// The kernel keeps no attribute and no name: preloaded programs change them without telling it.
const NO_TIME: Duration = Duration::ZERO;
/// Largest request, bytes. The kernel allows no more unless its administrator raised the limit, and
/// larger ones are not faster.
const REQUEST_BYTES: u32 = 1 << 20;
/// Threads that answer requests. Writes that wait for room, and opens that wait for data from
/// elsewhere, each keep one until they are done.
const THREADS: usize = 16;
/// Pause of a thread that waits for a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Flag of a request that the kernel sends again.
const AGAIN: u64 = 1 << 63;

/// What is served, and to whom.
#[derive(Clone, Debug)]
pub struct Service {
    /// Directory of the store.
    pub store: PathBuf,
    /// Prefix below which programs see its files.
    pub prefix: PathBuf,
    /// Slot that keeps open files if this server is killed.
    pub keeper: SlotId,
    /// Whether other users than the mount's owner have access, by the modes of files.
    pub for_all: bool,
}

/// Whether the mount is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The kernel waits for its first answer.
    New,
    /// An earlier server of the mount died.
    Again,
}

/// Serves a mount until it is unmounted. Errors: the store cannot be opened; the kernel refuses the
/// connection.
/// `answers` is the memory that all servers of a mount share, see [`crate::answers()`].
pub fn serve(
    connection: OwnedFd,
    answers: OwnedFd,
    start: Start,
    service: &Service,
) -> io::Result<()> {
    let answers = Answers::map(answers)?;
    let as_error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
    let prefix = service.prefix.as_os_str().as_bytes();
    let mount = files::begin(service.store.as_os_str().as_bytes(), prefix).map_err(as_error)?;
    if start == Start::Again {
        let shared = mount.fs().share_handles(service.keeper, mount.slot());
        shared.map_err(|error| as_error(error.into()))?;
        // Before files are closed: the slot of the dead server must not be the last that has one.
        mount.reap_gone();
    }
    let server = Server {
        mount,
        keeper: service.keeper,
        start,
        locks: Arc::default(),
        buffers: ReadBuffers::default(),
        removed: Removed::default(),
        answers,
    };
    let mut config = fuser::Config::default();
    config.acl = if service.for_all { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    // With a connection for each thread, requests that a thread has read would fail with it.
    config.clone_fd = false;
    let served = match start {
        Start::New => fuser::Session::from_fd(server, connection, config.acl, config)?.run(),
        Start::Again => device::go_on(server, connection, config)?.run(),
    };
    // After an error the slot is left to whoever reaps it: what was being written is unclean.
    served?;
    // If the mount was ended by force, programs could not close what they were writing.
    for unfinished in WRITERS.unfinished() {
        let _ = mount.fs().note_death(unfinished);
    }
    let _ = mount.fs().detach(mount.slot(), mount::now());
    Ok(())
}

struct Server {
    mount: &'static Mount,
    keeper: SlotId,
    start: Start,
    locks: Arc<Locks>,
    buffers: ReadBuffers,
    removed: Removed,
    answers: Answers,
}

/// The writers below the mount of this process, which serves one.
static WRITERS: LazyLock<WriterTable> = LazyLock::new(WriterTable::default);

/// Where a name is: a directory, and the name in it.
type Name<'a> = (INodeNo, &'a OsStr);

fn handle(number: FileHandle) -> HandleId {
    HandleId(number.0 as u32)
}

fn code(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.0)
}

fn time_of(time: Timestamp) -> SystemTime {
    let (seconds, nanoseconds) = time.parts();
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    base + Duration::from_nanos(nanoseconds as u64)
}

/// Returns a time that the kernel sent.
fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::from_parts(after.as_secs() as i64, i64::from(after.subsec_nanos())),
        // `fuser` subtracts the nanoseconds of such a time, which are to be added to the seconds.
        Err(error) => {
            let before = error.duration();
            Timestamp::from_parts(-(before.as_secs() as i64), i64::from(before.subsec_nanos()))
        }
    }
}

fn kind_of(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

/// Returns attributes as the kernel wants them, with the sizes that preloaded programs see.
fn shown(mount: &Mount, found: &Attributes) -> FileAttr {
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

/// Options of an open by the flags of `open(2)`. Each write says itself whether it appends: the
/// flags of the description may have changed since, and pages of a mapping have a place.
fn options(flags: i32) -> OpenOptions {
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        _ => (true, true),
    };
    OpenOptions { read, write, truncate: flags & libc::O_TRUNC != 0, ..OpenOptions::default() }
}

/// Flag of an open for execution (`__FMODE_EXEC` in the kernel).
const FOR_EXECUTION: i32 = 0x20;

/// How the kernel treats an open file: requests go past its page cache, and mappings are possible.
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

impl Server {
    fn lock_owner(&self, number: INodeNo, opened: FileHandle, owner: LockOwner) -> Result<Owner> {
        let opened = handle(opened);
        Ok(Owner { inode: self.inode(number)?, opened, number: owner.0 })
    }

    /// Takes the set-id bits of a file that somebody without the right to set them changes. The
    /// core does so for changes by this process's own user.
    fn drop_set_id_bits(&self, request: &Request, inode: InodeId) -> Result<()> {
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

    /// Returns the result of a request that an earlier server carried out.
    fn answered(&self, request: &Request) -> Option<u64> {
        let number = request.unique().0;
        (number & AGAIN != 0).then(|| self.answers.find(number & !AGAIN)).flatten()
    }

    /// Notes that a request begins, with the time. Returns the time at which an earlier server
    /// began the same request, if that server did not say that it was done.
    fn begin(&self, request: &Request) -> Option<Timestamp> {
        let number = request.unique().0 & !AGAIN;
        let begun = (request.unique().0 & AGAIN != 0).then(|| self.answers.find_begun(number));
        let begun = begun.flatten().map(|nanoseconds| Timestamp(nanoseconds as i64));
        self.answers.note_begin(number, begun.unwrap_or(mount::now()).0 as u64);
        begun
    }

    /// Does what cannot be done twice, unless an earlier server did it for the same request.
    /// `done`: the error that says that it was done.
    fn once(
        &self,
        request: &Request,
        done: cairn_core::Error,
        act: impl FnOnce() -> cairn_core::Result<()>,
    ) -> Result<()> {
        if self.answered(request).is_some() {
            return Ok(());
        }
        let begun = self.begin(request);
        match act() {
            Err(error) if error == done && begun.is_some() => {}
            acted => acted?,
        }
        self.note_answer(request, 1);
        Ok(())
    }

    /// Notes that a request was carried out.
    fn note_answer(&self, request: &Request, result: u64) {
        self.answers.note(request.unique().0 & !AGAIN, result);
    }

    /// Returns the caller behind a request.
    fn caller(&self, request: &Request) -> Caller {
        let credentials = Credentials { uid: request.uid(), gid: request.gid() };
        // Root passes every check.
        let groups = if credentials.uid == 0 { &[] } else { requester::groups(request.pid()) };
        Caller { slot: self.mount.slot(), credentials, groups, now: mount::now() }
    }

    fn found(&self, number: INodeNo) -> Result<Attributes> {
        node::attributes(self.mount, number)
    }

    /// Returns the inode with this number. Errors: as [`node::attributes`]; the kernel looks the
    /// path up once more after `ESTALE`.
    fn inode(&self, number: INodeNo) -> Result<InodeId> {
        Ok(self.found(number)?.inode)
    }

    fn look_up(&self, request: &Request, (parent, name): Name<'_>) -> Result<Attributes> {
        let parent = self.inode(parent)?;
        Ok(self.mount.fs().stat(&self.caller(request), parent, name.as_bytes(), false)?)
    }

    /// Lets the keeper hold a description, too, and notes whose it is.
    fn keep(&self, request: &Request, opened: &Opened, writes: bool) -> FileHandle {
        // Without the keeper, files that are open when this server is killed are unclean.
        let _ = self.mount.fs().retain(self.keeper, opened.handle);
        self.note_answer(request, u64::from(opened.handle.0));
        if writes {
            WRITERS.open(opened.handle, opened.inode, request.pid());
        }
        FileHandle(u64::from(opened.handle.0))
    }

    /// Returns the description that an earlier server opened for the same request.
    fn opened_before(&self, request: &Request) -> Option<(HandleId, InodeId)> {
        let opened = HandleId(self.answered(request)? as u32);
        Some((opened, self.mount.fs().handle(opened).ok()?.inode))
    }

    fn open(&self, request: &Request, number: INodeNo, flags: i32) -> Result<FileHandle> {
        if let Some((opened, _)) = self.opened_before(request) {
            return Ok(FileHandle(u64::from(opened.0)));
        }
        let inode = self.inode(number)?;
        let mut caller = self.caller(request);
        let options = OpenOptions { no_follow: true, ..options(flags) };
        if flags & FOR_EXECUTION != 0 && !options.write && !options.truncate {
            self.mount.fs().access(&caller, inode, b"", libc::X_OK as u32, false)?;
            // A program that may be executed is read for its user, who may not read it himself.
            caller.credentials.uid = 0;
        }
        let opened = files::open(self.mount, &caller, (inode, b""), options, 0)?;
        Ok(self.keep(request, &opened, options.write))
    }

    fn create(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        flags: i32,
        mode: u32,
    ) -> Result<(Attributes, FileHandle)> {
        if let Some((opened, inode)) = self.opened_before(request) {
            return Ok((self.mount.fs().attributes(inode)?, FileHandle(u64::from(opened.0))));
        }
        let (parent, caller) = (self.inode(parent)?, self.caller(request));
        // If the server that made the file was the only one to hold it, it is opened again.
        let exclusive = flags & libc::O_EXCL != 0 && self.answered(request).is_none();
        let options = OpenOptions { create: true, exclusive, no_follow: true, ..options(flags) };
        let begun = self.begin(request);
        let place = (parent, name.as_bytes());
        let opened = match files::open(self.mount, &caller, place, options, mode & 0o7777) {
            // Made by this request, if it was made since this began.
            Err(Errno(libc::EEXIST)) if begun.is_some() => {
                let found = self.mount.fs().stat(&caller, parent, name.as_bytes(), false)?;
                if begun.is_none_or(|begun| found.born < begun) {
                    return Err(Errno(libc::EEXIST));
                }
                let options = OpenOptions { exclusive: false, ..options };
                files::open(self.mount, &caller, place, options, 0)?
            }
            opened => opened?,
        };
        self.note_answer(request, u64::from(opened.handle.0));
        let opened_for = self.keep(request, &opened, options.write);
        Ok((self.mount.fs().attributes(opened.inode)?, opened_for))
    }

    /// Drops both references to a description.
    fn release(&self, opened: HandleId) {
        self.locks.end_of(opened);
        WRITERS.close(opened);
        let own = files::release(self.mount, self.mount.slot(), opened);
        let kept = files::release(self.mount, self.keeper, opened);
        // The kernel reports no error of a release to anybody. Whoever reads the file finds it
        // unclean if its data are not durable.
        let _ = own.and(kept);
    }

    fn set_attributes(
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

    fn make_directory(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        mode: u32,
    ) -> Result<Attributes> {
        self.make(request, (parent, name), |caller, parent| {
            self.mount.fs().make_directory(caller, parent, name.as_bytes(), mode & 0o7777)
        })
    }

    /// Makes a name, unless an earlier server has made it for the same request. Returns the
    /// attributes of what was made.
    fn make(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        act: impl FnOnce(&Caller, InodeId) -> cairn_core::Result<InodeId>,
    ) -> Result<Attributes> {
        let (fs, caller, parent) = (self.mount.fs(), self.caller(request), self.inode(parent)?);
        if self.answered(request).is_some() {
            return Ok(fs.stat(&caller, parent, name.as_bytes(), false)?);
        }
        let begun = self.begin(request);
        let made = match act(&caller, parent) {
            Err(cairn_core::Error::Exists) if begun.is_some() => {
                let found = fs.stat(&caller, parent, name.as_bytes(), false)?;
                if begun.is_none_or(|begun| found.changed < begun) {
                    return Err(Errno(libc::EEXIST));
                }
                found.inode
            }
            made => made?,
        };
        self.note_answer(request, 1);
        Ok(fs.attributes(made)?)
    }

    fn make_node(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        mode: u32,
    ) -> Result<Attributes> {
        if !matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG) {
            return Err(Errno(libc::EPERM));
        }
        let flags = libc::O_WRONLY | libc::O_EXCL;
        let (found, opened) = self.create(request, (parent, name), flags, mode)?;
        self.release(handle(opened));
        Ok(found)
    }

    fn link_to(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        target: &Path,
    ) -> Result<Attributes> {
        self.make(request, (parent, name), |caller, parent| {
            let target = target.as_os_str().as_bytes();
            self.mount.fs().symlink(caller, target, parent, name.as_bytes())
        })
    }

    fn link(
        &self,
        request: &Request,
        number: INodeNo,
        (parent, name): Name<'_>,
    ) -> Result<Attributes> {
        let inode = self.inode(number)?;
        self.make(request, (parent, name), |caller, parent| {
            let place = (parent, name.as_bytes());
            self.mount.fs().link(caller, (inode, b""), place, false).map(|()| inode)
        })
    }

    fn rename(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        (new_parent, new_name): Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (parent, new_parent) = (self.inode(parent)?, self.inode(new_parent)?);
        let mode = match flags {
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            flags if flags.is_empty() => RenameMode::Replace,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let (from, to) = ((parent, name.as_bytes()), (new_parent, new_name.as_bytes()));
        self.removing(request, to, |caller, begun| {
            let fs = self.mount.fs();
            // An exchange that is done twice undoes itself.
            let is_done = |begun| {
                let found = fs.stat(caller, to.0, to.1, false);
                mode == RenameMode::Exchange && found.is_ok_and(|found| found.changed >= begun)
            };
            match begun.is_some_and(is_done) {
                true => Ok(()),
                false => fs.rename(caller, from, to, mode),
            }
        })
    }

    fn remove(&self, request: &Request, (parent, name): Name<'_>) -> Result<()> {
        let place = (self.inode(parent)?, name.as_bytes());
        self.removing(request, place, |caller, _| self.mount.fs().unlink(caller, place.0, place.1))
    }

    fn remove_directory(&self, request: &Request, (parent, name): Name<'_>) -> Result<()> {
        let place = (self.inode(parent)?, name.as_bytes());
        self.removing(request, place, |caller, _| {
            self.mount.fs().remove_directory(caller, place.0, place.1)
        })
    }

    /// Does what may remove the file at `place`. The kernel may know that file, by a current
    /// directory or a path that it has just looked up, so its inode is kept until it forgets it.
    fn removing(
        &self,
        request: &Request,
        (parent, name): (InodeId, &[u8]),
        act: impl FnOnce(&Caller, Option<Timestamp>) -> cairn_core::Result<()>,
    ) -> Result<()> {
        if self.answered(request).is_some() {
            return Ok(());
        }
        let begun = self.begin(request);
        let (fs, caller) = (self.mount.fs(), self.caller(request));
        let options = OpenOptions { path_only: true, no_follow: true, ..OpenOptions::default() };
        let victim = fs.open_file(&caller, parent, name, options, 0).ok();
        let done = match act(&caller, begun) {
            Err(cairn_core::Error::NotFound) if begun.is_some() => Ok(()),
            done => done,
        };
        if done.is_ok() {
            self.note_answer(request, 1);
        }
        if let Some(Opened { handle, inode, .. }) = victim {
            let gone = fs.attributes(inode).ok().filter(|found| found.links == 0);
            let unneeded = match gone {
                Some(found) => self.removed.keep(node::number(&found), handle),
                None => Some(handle),
            };
            if let Some(unneeded) = unneeded {
                fs.release(caller.slot, unneeded, caller.now)?;
            }
        }
        self.mount.reclaim();
        Ok(done?)
    }

    /// Calls `add` with each entry of a directory behind position `after`: its number, the position
    /// behind it, its name, and its attributes. Stops when `add` returns true.
    fn list(
        &self,
        request: &Request,
        number: INodeNo,
        after: u64,
        add: &mut dyn FnMut(u64, &OsStr, &Attributes) -> bool,
    ) -> Result<()> {
        let own = self.found(number)?;
        if own.links == 0 {
            // The directory was removed: not even the dots are left.
            return Err(Errno(libc::ENOENT));
        }
        let fs = self.mount.fs();
        if after < DOT && add(DOT, OsStr::new("."), &own) {
            return Ok(());
        }
        if after < DOT_DOT {
            let parent = fs.attributes(fs.parent(own.inode)?)?;
            if add(DOT_DOT, OsStr::new(".."), &parent) {
                return Ok(());
            }
        }
        // Opening the directory was permitted; its mode may have changed since.
        let caller = self.caller(request);
        let caller = Caller { credentials: Credentials { uid: 0, ..caller.credentials }, ..caller };
        let behind = after.saturating_sub(DOT_DOT);
        fs.list(&caller, own.inode, behind, &mut |entry| {
            // Removed meanwhile otherwise.
            let Ok(found) = fs.attributes(entry.inode) else { return true };
            !add(entry.cookie.saturating_add(DOT_DOT), OsStr::from_bytes(entry.name), &found)
        })?;
        Ok(())
    }

    fn write(&self, opened: HandleId, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.with_buffers(bytes, |buffers| data::write(opened, buffers, At::Offset(offset)))
    }

    /// Appends, unless an earlier server has done so for the same request.
    fn append(&self, request: &Request, opened: HandleId, bytes: &[u8]) -> Result<usize> {
        if let Some(length) = self.answered(request) {
            return Ok(length as usize);
        }
        let fs = self.mount.fs();
        let size = || -> Result<u64> { Ok(fs.attributes(fs.handle(opened)?.inode)?.size) };
        let number = request.unique().0 & !AGAIN;
        let begun = (request.unique().0 & AGAIN != 0).then(|| self.answers.find_begun(number));
        match begun.flatten() {
            Some(before) if self.ends_with(opened, before, size()?, bytes)? => {
                return Ok(bytes.len());
            }
            Some(_) => {}
            None => self.answers.note_begin(number, size()?),
        }
        let length = self.with_buffers(bytes, |buffers| data::write_at_end(opened, buffers))?;
        self.note_answer(request, length as u64);
        Ok(length)
    }

    /// Whether `bytes` were appended to a file that was `before` long and is `size` long now.
    fn ends_with(&self, opened: HandleId, before: u64, size: u64, bytes: &[u8]) -> Result<bool> {
        let length = bytes.len() as u64;
        if size < before.saturating_add(length) {
            return Ok(false);
        }
        let inode = self.mount.fs().handle(opened)?.inode;
        let caller = Caller {
            slot: self.mount.slot(),
            credentials: Credentials { uid: 0, gid: 0 },
            groups: &[],
            now: mount::now(),
        };
        let options = OpenOptions { read: true, ..OpenOptions::default() };
        let reader = files::open(self.mount, &caller, (inode, b""), options, 0)?.handle;
        // Others may have appended before or after.
        let is_at = |offset| {
            self.buffers.with(bytes.len(), |found| {
                let entry =
                    libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() };
                // SAFETY: the entry describes `found`, which nobody else uses meanwhile.
                let buffers = unsafe { Buffers::one(&entry) };
                data::read(reader, buffers, At::Offset(offset)) == Ok(bytes.len()) && found == bytes
            })
        };
        let is_there = is_at(before) || is_at(size - length);
        files::release(self.mount, caller.slot, reader)?;
        Ok(is_there)
    }

    /// Calls `act`, which only reads them, with `bytes` as buffers.
    fn with_buffers<T>(&self, bytes: &[u8], act: impl FnOnce(Buffers) -> T) -> T {
        let entry =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the entry describes `bytes`, which a write only reads.
        act(unsafe { Buffers::one(&entry) })
    }

    fn set_lock(&self, request: &Request, owner: Owner, range: Range, reply: ReplyEmpty) {
        match self.locks.set(self.mount, owner, range) {
            Err(Errno(libc::EAGAIN | libc::EACCES)) => {
                let (mount, locks, pid) = (self.mount, self.locks.clone(), request.pid());
                let wait = move || match wait_for_lock(mount, &locks, owner, range, pid) {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.error(code(errno)),
                };
                // If no thread can be started, the reply is dropped, which the kernel sees as EIO.
                let _ = thread::Builder::new().name("lock".to_string()).spawn(wait);
            }
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(code(errno)),
        }
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

fn wait_for_lock(mount: &Mount, locks: &Locks, owner: Owner, range: Range, pid: u32) -> Result<()> {
    loop {
        match locks.set(mount, owner, range) {
            Err(Errno(libc::EAGAIN | libc::EACCES)) if requester::is_interrupted(pid) => {
                return Err(Errno(libc::EINTR));
            }
            Err(Errno(libc::EAGAIN | libc::EACCES)) => thread::sleep(LOCK_PAUSE),
            set => return set,
        }
    }
}

/// Positions of the dots in a directory; those of names come behind them.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// Attributes to be set.
struct Change {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    /// Times of the last access and of the last modification.
    times: (TimeUpdate, TimeUpdate),
}

fn update(time: Option<TimeOrNow>) -> TimeUpdate {
    match time {
        None => TimeUpdate::Omit,
        Some(TimeOrNow::Now) => TimeUpdate::Now,
        Some(TimeOrNow::SpecificTime(time)) => TimeUpdate::At(timestamp(time)),
    }
}

/// Buffers for reads, the one that was used last on top: its memory is in the processor's cache.
#[derive(Default)]
struct ReadBuffers(Mutex<Vec<Vec<u8>>>);

impl ReadBuffers {
    fn stack(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with `size` bytes, whatever is in them.
    fn with<T>(&self, size: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buffer = self.stack().pop().unwrap_or_default();
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let result = act(&mut buffer[..size]);
        self.stack().push(buffer);
        result
    }
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
        match self.create(request, (parent, name), flags, mode) {
            Ok((found, opened)) => {
                reply.created(&NO_TIME, &shown(self.mount, &found), Generation(0), opened, OPENED);
            }
            Err(errno) => reply.error(code(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        opened: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.buffers.with(size.min(REQUEST_BYTES) as usize, |target| {
            let entry = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
            // SAFETY: the entry describes `target`, which nobody else uses meanwhile.
            let buffers = unsafe { Buffers::one(&entry) };
            match data::read(handle(opened), buffers, At::Offset(offset)) {
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
        let appends = flags.0 & libc::O_APPEND != 0 && !is_of_mapping;
        let opened = handle(opened);
        let written = match appends {
            true => self.append(request, opened, bytes),
            false => self.write(opened, offset, bytes),
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
        self.release(handle(opened));
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
        self.release(handle(opened));
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
