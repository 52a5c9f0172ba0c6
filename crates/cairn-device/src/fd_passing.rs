//! Open-file descriptions on their way between processes: what travels for them, and how their
//! arrival or loss shows.
//!
//! In a message a *token* takes the place of a placeholder: the write end of a FIFO of the store
//! without readers, `handles/<ns>.<n>.token`, so that a call that nobody intercepts fails. It has a
//! shared `flock`, which ends with the last copy of it, wherever that is: in a process, or in a
//! message that the kernel drops with its socket. So who gets the lock for itself alone knows that
//! nothing is on its way.
//! Invariant: the reference of what is on its way is taken under a shared lock, and given up under
//! an exclusive one.

use cairn_core::{HandleId, Result};

use crate::descriptor::Descriptor;
use crate::namespace::Namespace;
use crate::short_path::ShortPath;
use crate::sys::{self, Errno, SysResult};

impl Namespace {
    /// A token of `handle`, which stays open for as long as a copy of the token is anywhere.
    pub fn launch(&self, handle: HandleId) -> SysResult<Descriptor> {
        let token = self.new_token(handle.number())?;
        while let Err(errno) = sys::flock(token.raw(), libc::LOCK_SH) {
            // Whoever has it for itself has it for one transaction.
            if errno != Errno(libc::EINTR) {
                return Err(errno);
            }
        }
        let inode = sys::fstat(token.raw())?.st_ino;
        self.fs.launch(handle, inode).map_err(|error| Errno(error.errno()))?;
        Ok(token)
    }

    /// Gives up the reference of `handle` on its way, if no token of it is anywhere.
    pub fn land(&self, handle: HandleId) -> Result<()> {
        let path = self.token_path(handle.number());
        let token = self.open_token(&path, libc::O_RDONLY)?;
        match sys::flock(token.raw(), libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => {}
            Err(Errno(libc::EWOULDBLOCK | libc::EINTR)) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let landed = self.fs.land(handle, sys::now());
        // Closing would not do if a child was forked meanwhile.
        sys::flock(token.raw(), libc::LOCK_UN)?;
        landed
    }

    /// Gives up the references of all that was on its way and is no more.
    pub fn land_all(&self) -> Result<()> {
        let mut from = 0;
        while self.fs.flights() > 0 {
            let Some(handle) = self.fs.next_in_flight(from)? else { break };
            self.land(handle)?;
            from = handle.number() + 1;
        }
        Ok(())
    }

    fn new_token(&self, handle: u32) -> SysResult<Descriptor> {
        let path = self.token_path(handle);
        // A FIFO is opened for writing only while it has a reader.
        let reader = match self.open_token(&path, libc::O_RDONLY) {
            Err(Errno(libc::ENOENT)) => {
                self.make_token(&path)?;
                self.open_token(&path, libc::O_RDONLY)?
            }
            result => result?,
        };
        let token = self.open_token(&path, libc::O_WRONLY)?;
        drop(reader);
        // Away from the numbers that the application gives to its own files.
        Ok(token.raise())
    }

    fn open_token(&self, path: &ShortPath, access: i32) -> SysResult<Descriptor> {
        let flags = access | libc::O_NONBLOCK | libc::O_NOFOLLOW;
        Descriptor::open(self.handles(), path, flags, 0)
    }

    fn make_token(&self, path: &ShortPath) -> SysResult<()> {
        match sys::mknodat(self.handles(), path, libc::S_IFIFO | 0o666) {
            Ok(()) => {}
            Err(Errno(libc::EEXIST)) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        // Whatever the application's mask took away; of nothing that another process may have put
        // in its place.
        let token = self.open_token(path, libc::O_RDONLY)?;
        let stat = sys::fstat(token.raw())?;
        match stat.st_mode & libc::S_IFMT == libc::S_IFIFO && stat.st_nlink == 1 {
            true => sys::fchmod(token.raw(), 0o666),
            false => Err(Errno(libc::EIO)),
        }
    }

    fn token_path(&self, handle: u32) -> ShortPath {
        let mut path = self.placeholder_path(handle);
        path.push(b".token");
        path
    }
}
