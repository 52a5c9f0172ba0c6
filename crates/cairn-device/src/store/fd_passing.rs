//! Open-file descriptions in transit between processes: the descriptor that travels for them, and
//! how their arrival or loss is detected.
//!
//! In a message a *token* takes the place of a placeholder descriptor. It is the write end of a
//! FIFO of the store, `handles/<ns>.<n>.token`. The FIFO has no reader, so that a call that nobody
//! intercepts fails. The token has a shared `flock`, which ends with its last copy, wherever that
//! is: in a process, or in a message that the kernel drops with its socket. So a process that gets
//! the exclusive lock knows that no token is in transit.
//!
//! Invariant: the reference for a handle in transit is taken under a shared lock and given up under
//! an exclusive one.

use cairn_core::{HandleId, Result};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::short_path::ShortPath;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::store::namespace::Namespace;

impl Namespace {
    /// Makes a token of `handle` and takes the reference for its transit. The handle stays open as
    /// long as any copy of the token exists.
    pub fn launch(&self, handle: HandleId) -> SysResult<Descriptor> {
        let token = self.new_token(handle.number())?;
        while let Err(errno) = sys::flock(token.raw(), libc::LOCK_SH) {
            // The exclusive lock is held for one transaction only.
            if errno != Errno(libc::EINTR) {
                return Err(errno);
            }
        }
        let inode = sys::fstat(token.raw())?.st_ino;
        self.fs.launch(handle, inode).map_err(|error| Errno(error.errno()))?;
        Ok(token)
    }

    /// Gives up the transit reference of `handle` if no token of it exists any more.
    pub fn land(&self, handle: HandleId) -> Result<()> {
        let path = self.token_path(handle.number());
        let token = self.open_token(&path, libc::O_RDONLY)?;
        match sys::flock(token.raw(), libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => {}
            Err(Errno(libc::EWOULDBLOCK | libc::EINTR)) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let landed = self.fs.land(handle, sys::now());
        // Closing is not enough: a child forked meanwhile would keep the lock.
        sys::flock(token.raw(), libc::LOCK_UN)?;
        landed
    }

    /// Gives up the transit references of all handles whose tokens do not exist any more.
    pub fn reap_transfers(&self) -> Result<()> {
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
        // Opening a FIFO for writing succeeds only while it has a reader.
        let reader = match self.open_token(&path, libc::O_RDONLY) {
            Err(Errno(libc::ENOENT)) => {
                self.make_token(&path)?;
                self.open_token(&path, libc::O_RDONLY)?
            }
            result => result?,
        };
        let token = self.open_token(&path, libc::O_WRONLY)?;
        drop(reader);
        // Moves it away from the numbers that the application's own files get.
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
        // Restores the mode bits that the application's umask removed. Checks first that no other
        // process has put another file in this place.
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
