//! Requests that move data, and locks.
//!
//! Must stay true: a request that appends appends once. Who waits for a lock can be interrupted.

use cairn_core::{Caller, Credentials, HandleId, OpenOptions};
use cairn_posix::data::io as data;
use cairn_posix::data::io::At;
use cairn_posix::data::transfer::Buffers;
use cairn_posix::mount::Mount;
use cairn_posix::process::server as files;
use cairn_posix::{Errno, Result, mount};
use fuser::{FileHandle, INodeNo, LockOwner, ReplyEmpty, Request};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::locks::{Locks, Owner, Range};
use crate::requester;
use crate::server::dispatch::code;
use crate::server::{AGAIN, LOCK_PAUSE, Server, handle};

/// Buffers for reads, the one that was used last on top: its memory is in the processor's cache.
#[derive(Default)]
pub(super) struct ReadBuffers(Mutex<Vec<Vec<u8>>>);

impl ReadBuffers {
    fn stack(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with `size` bytes, whatever is in them.
    pub(super) fn with<T>(&self, size: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buffer = self.stack().pop().unwrap_or_default();
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let result = act(&mut buffer[..size]);
        self.stack().push(buffer);
        result
    }
}

impl Server {
    pub(super) fn write(&self, opened: HandleId, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.with_buffers(bytes, |buffers| data::write(opened, buffers, At::Offset(offset)))
    }

    /// Reads at the position of a description. What an earlier server has read for the same
    /// request, and may not have answered, is read once more where it was.
    pub(super) fn read_on(
        &self,
        request: &Request,
        opened: HandleId,
        target: &mut [u8],
    ) -> Result<usize> {
        let cursor = self.mount.fs().handle(opened)?.cursor;
        let number = request.unique().0 & !AGAIN;
        let begun = (request.unique().0 & AGAIN != 0).then(|| self.answers.find_begun(number));
        let (at, length) = match begun.flatten() {
            Some(before) if cursor > before => {
                (At::Offset(before), target.len().min((cursor - before) as usize))
            }
            _ => {
                self.answers.note_begin(number, cursor);
                (At::Cursor, target.len())
            }
        };
        self.read(opened, &mut target[..length], at)
    }

    pub(super) fn read(&self, opened: HandleId, target: &mut [u8], at: At) -> Result<usize> {
        let entry = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
        // SAFETY: the entry describes `target`, which is borrowed mutably during the call.
        data::read(opened, unsafe { Buffers::one(&entry) }, at)
    }

    /// Writes behind what a description says is before: at the end of the file if it appends, and
    /// at its position otherwise. Writes what an earlier server has written for the same request
    /// not once more.
    pub(super) fn write_behind(
        &self,
        request: &Request,
        opened: HandleId,
        bytes: &[u8],
        appends: bool,
    ) -> Result<usize> {
        if let Some(length) = self.answered(request) {
            return Ok(length as usize);
        }
        let fs = self.mount.fs();
        let end = || -> Result<u64> {
            let info = fs.handle(opened)?;
            Ok(if appends { fs.attributes(info.inode)?.size } else { info.cursor })
        };
        let number = request.unique().0 & !AGAIN;
        let begun = (request.unique().0 & AGAIN != 0).then(|| self.answers.find_begun(number));
        let done = match begun.flatten() {
            Some(before) => self.written(opened, before, end()?, bytes)?,
            None => {
                self.answers.note_begin(number, end()?);
                0
            }
        };
        let rest = &bytes[done..];
        let write = |buffers: Buffers| match appends {
            true => data::write_at_end(opened, buffers),
            false => data::write(opened, buffers, At::Cursor),
        };
        let length = match rest.is_empty() {
            true => done,
            false => done + self.with_buffers(rest, write)?,
        };
        self.note_answer(request, length as u64);
        Ok(length)
    }

    /// Returns how many of `bytes` were written at `before`, which was the end when that began, and
    /// is `end` now: all of them, or a part if the server was killed on the way.
    fn written(&self, opened: HandleId, before: u64, end: u64, bytes: &[u8]) -> Result<usize> {
        let inode = self.mount.fs().handle(opened)?.inode;
        let caller = Caller {
            slot: self.mount.slot(),
            credentials: Credentials { uid: 0, gid: 0 },
            groups: &[],
            now: mount::now(),
        };
        let options = OpenOptions { read: true, ..OpenOptions::default() };
        let reader = files::open(self.mount, &caller, (inode, b""), options, 0)?.handle;
        let has_at = |offset, bytes: &[u8]| {
            self.buffers.with(bytes.len(), |found| {
                let entry =
                    libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() };
                // SAFETY: the entry describes `found`, which nobody else uses meanwhile.
                let buffers = unsafe { Buffers::one(&entry) };
                data::read(reader, buffers, At::Offset(offset)) == Ok(bytes.len()) && found == bytes
            })
        };
        let length = bytes.len() as u64;
        let grown = end.saturating_sub(before).min(length) as usize;
        let done = match grown {
            0 => 0,
            _ if has_at(before, &bytes[..grown]) => grown,
            // Others have written before.
            _ if grown == bytes.len() && has_at(end - length, bytes) => grown,
            _ => 0,
        };
        files::release(self.mount, caller.slot, reader)?;
        Ok(done)
    }

    /// Calls `act`, which only reads them, with `bytes` as buffers.
    pub(super) fn with_buffers<T>(&self, bytes: &[u8], act: impl FnOnce(Buffers) -> T) -> T {
        let entry =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the entry describes `bytes`, which a write only reads.
        act(unsafe { Buffers::one(&entry) })
    }

    pub(super) fn lock_owner(
        &self,
        number: INodeNo,
        opened: FileHandle,
        owner: LockOwner,
    ) -> Result<Owner> {
        let opened = handle(opened);
        Ok(Owner { inode: self.inode(number)?, opened, number: owner.0 })
    }

    pub(super) fn set_lock(
        &self,
        request: &Request,
        owner: Owner,
        range: Range,
        reply: ReplyEmpty,
    ) {
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
