//! Answers the kernel's requests.
//!
//! Must stay true:
//! - The rights are those of the process that asks, at every call that a local file system checks.
//! - An open description is held by two slots, this process's and the keeper's, so that it outlives
//!   either. What it holds ends when the kernel releases it.
//! - A request that comes a second time, because a server was killed before it answered, is not
//!   carried out twice if that would make a difference.
//! - Who waits for a lock keeps no thread of the server.

mod dispatch;
mod file_attributes;
mod inherited;
mod names;
mod transfer;

use cairn_core::{
    Attributes, Caller, Credentials, HandleId, InodeId, OpenOptions, Opened, SlotId, Timestamp,
};
use cairn_platform::sys;
use cairn_posix::mount::{self, Mount};
use cairn_posix::process::{handover, server as files};
use cairn_posix::{Errno, Result};
use fuser::{FileHandle, FopenFlags, INodeNo, Request, SessionACL};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use inherited::Inherited;
use transfer::ReadBuffers;

use crate::answers::Answers;
use crate::locks::Locks;
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
    let store = sys::c_path(&service.store).map_err(|errno| as_error(errno.into()))?;
    let server = Server {
        mount,
        store: handover::store_name(&store).map_err(as_error)?.as_ref().to_owned(),
        inherited: Inherited::default(),
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
    /// What programs of the job know the store by.
    store: CString,
    inherited: Inherited,
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

    /// Notes that the kernel closes a file.
    fn release(&self, number: FileHandle) {
        let opened = handle(number);
        match inherited::is_inherited(number) {
            true => self.inherited.close(opened, || self.let_go(opened)),
            false => self.let_go(opened),
        }
    }

    /// Drops both references to a description.
    fn let_go(&self, opened: HandleId) {
        self.locks.end_of(opened);
        WRITERS.close(opened);
        let own = files::release(self.mount, self.mount.slot(), opened);
        let kept = files::release(self.mount, self.keeper, opened);
        // The kernel reports no error of a release to anybody. Whoever reads the file finds it
        // unclean if its data are not durable.
        let _ = own.and(kept);
    }
}
