//! Non-blocking socket of a connection.

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sockopt};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Result};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Silence after which TCP probes whether the host is there.
const IDLE: Duration = Duration::from_secs(60);
/// Time between two probes.
const IDLE_EVERY: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which the host is gone.
const IDLE_TIMES: u32 = 6;

/// A socket.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: OwnedFd,
    local: SocketAddr,
}

impl Socket {
    /// Socket of a host.
    pub(super) fn new(stream: TcpStream) -> Result<Socket> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, IDLE_EVERY)?;
        sockopt::set_tcp_keepcnt(&stream, IDLE_TIMES)?;
        let local = stream.local_addr()?;
        Socket::over(stream.into(), local)
    }

    /// Any other stream, of a host that has reached us at `local`.
    pub(super) fn over(descriptor: OwnedFd, local: SocketAddr) -> Result<Socket> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Socket { descriptor, local })
    }

    /// Address at which the host has reached us.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Receives into the parts, in order. Returns the number of bytes; 0 at the end of the stream;
    /// `None` if there is nothing yet.
    pub(super) fn receive(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
        unless_blocked(|| rustix::io::readv(&self.descriptor, parts))
    }

    /// Sends the parts. `is_more`: more follows at once. Returns the number of bytes taken; `None`
    /// if nothing can be sent now.
    pub(super) fn send(&self, parts: &[IoSlice<'_>], is_more: bool) -> Result<Option<usize>> {
        let more = if is_more { SendFlags::MORE } else { SendFlags::empty() };
        unless_blocked(|| {
            let control = &mut SendAncillaryBuffer::default();
            rustix::net::sendmsg(&self.descriptor, parts, control, SendFlags::NOSIGNAL | more)
        })
    }

    /// Sends bytes of a file, as `send` does; 0 if the file has none there.
    pub(super) fn send_file(
        &self,
        file: &File,
        offset: u64,
        bytes: usize,
    ) -> Result<Option<usize>> {
        unless_blocked(|| {
            rustix::fs::sendfile(&self.descriptor, file, Some(&mut offset.clone()), bytes)
        })
    }

    /// Ends the connection for the thread that serves it.
    pub(super) fn hang_up(&self) {
        // The connection may have ended before.
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn unless_blocked(mut call: impl FnMut() -> rustix::io::Result<usize>) -> Result<Option<usize>> {
    loop {
        return match call() {
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
            Ok(count) => Ok(Some(count)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Mechanism: a host that may be silent for ever, and whose machine had died, was never
    /// detected.
    ///
    /// Consequence: its connections stayed.
    #[test]
    fn hosts_that_are_silent_are_asked_whether_they_are_there() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::new(stream).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), IDLE);
    }
}
